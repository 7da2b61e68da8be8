//! A slow device in memory: before each block of a request another thread may run.

use std::io::{self, IoSlice};

use cffs::device::{BlockDevice, Geometry, MemoryDevice};
use cffs::lock::schedule;

const PIECE_BYTES: usize = 4096;

pub struct SlowDevice(pub MemoryDevice);

impl BlockDevice for SlowDevice {
    fn geometry(&self) -> Geometry {
        self.0.geometry()
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<()> {
        for (at, piece) in (offset..).step_by(PIECE_BYTES).zip(buf.chunks_mut(PIECE_BYTES)) {
            schedule::point();
            self.0.read_at(at, piece)?;
        }
        Ok(())
    }

    fn write_at(&self, offset: u64, bufs: &[IoSlice<'_>]) -> io::Result<()> {
        let mut at = offset;
        for buf in bufs {
            for piece in buf.chunks(PIECE_BYTES) {
                schedule::point();
                self.0.write_at(at, &[IoSlice::new(piece)])?;
                at += piece.len() as u64;
            }
        }
        Ok(())
    }

    fn barrier(&self) -> io::Result<()> {
        schedule::point();
        self.0.barrier()
    }

    fn sync(&self) -> io::Result<()> {
        schedule::point();
        self.0.sync()
    }

    fn discard(&self, offset: u64, len: u64) -> io::Result<()> {
        schedule::point();
        self.0.discard(offset, len)
    }
}
