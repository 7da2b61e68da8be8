//! A slow device in memory: before each block of a request another thread may run.

use std::io::{self, IoSlice};
use std::sync::atomic::{AtomicU64, Ordering};

use cffs::device::{BlockDevice, Control, Geometry, Image, MemoryDevice};
use cffs::lock::schedule;

const PIECE_BYTES: usize = 4096;

/// The device. Discarded blocks read as zeros.
pub struct SlowDevice {
    memory: MemoryDevice,
    /// It can grow up to the size of the memory.
    size_bytes: AtomicU64,
}

impl SlowDevice {
    /// A device of zeros.
    pub fn new(size_bytes: u64, size_bytes_max: u64) -> SlowDevice {
        SlowDevice::of(MemoryDevice::new(size_bytes_max).snapshot(), size_bytes)
    }

    /// The first `size_bytes` of an image.
    pub fn of(image: Image, size_bytes: u64) -> SlowDevice {
        let memory = MemoryDevice::from_image(image);
        SlowDevice { memory, size_bytes: AtomicU64::new(size_bytes) }
    }

    /// The contents at this moment.
    pub fn snapshot(&self) -> Image {
        self.memory.snapshot()
    }
}

impl BlockDevice for SlowDevice {
    fn geometry(&self) -> Geometry {
        let size_bytes = self.size_bytes.load(Ordering::Relaxed);
        Geometry { size_bytes, ..self.memory.geometry() }
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<()> {
        self.geometry().check(offset, buf.len() as u64)?;
        for (at, piece) in (offset..).step_by(PIECE_BYTES).zip(buf.chunks_mut(PIECE_BYTES)) {
            schedule::point();
            self.memory.read_at(at, piece)?;
        }
        Ok(())
    }

    fn write_at(&self, offset: u64, bufs: &[IoSlice<'_>]) -> io::Result<()> {
        let mut at = offset;
        for buf in bufs {
            self.geometry().check(at, buf.len() as u64)?;
            for piece in buf.chunks(PIECE_BYTES) {
                schedule::point();
                self.memory.write_at(at, &[IoSlice::new(piece)])?;
                at += piece.len() as u64;
            }
        }
        Ok(())
    }

    fn barrier(&self) -> io::Result<()> {
        schedule::point();
        self.memory.barrier()
    }

    fn sync(&self) -> io::Result<()> {
        schedule::point();
        self.memory.sync()
    }

    fn discard(&self, offset: u64, len: u64) -> io::Result<()> {
        self.geometry().check(offset, len)?;
        schedule::point();
        self.memory.discard(offset, len)
    }

    fn control(&self) -> &dyn Control {
        self
    }
}

impl Control for SlowDevice {
    fn grow(&self, size_bytes: u64) -> io::Result<()> {
        let grown = size_bytes.min(self.memory.geometry().size_bytes);
        self.size_bytes.fetch_max(grown, Ordering::Relaxed);
        Ok(())
    }
}
