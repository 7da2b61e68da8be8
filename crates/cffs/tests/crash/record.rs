//! A device that keeps what was written to it, in order, with the barriers and syncs between.

use std::io::{self, IoSlice};
use std::sync::Mutex;

use cffs::device::{BlockDevice, Geometry, Image, MemoryDevice};

/// What reached the device.
#[derive(Clone)]
pub enum Event {
    Write { offset: u64, data: Vec<u8> },
    Barrier,
    Sync,
}

/// The device; it never fails and loses nothing. What a crash loses is decided afterwards.
pub struct Recorder {
    inner: MemoryDevice,
    events: Mutex<Vec<Event>>,
}

impl Recorder {
    pub fn new(image: Image) -> Recorder {
        Recorder { inner: MemoryDevice::from_image(image), events: Mutex::default() }
    }

    /// The events since the last call.
    pub fn take(&self) -> Vec<Event> {
        std::mem::take(&mut *self.events.lock().unwrap())
    }

    fn record(&self, event: Event) {
        self.events.lock().unwrap().push(event);
    }
}

impl BlockDevice for Recorder {
    fn geometry(&self) -> Geometry {
        self.inner.geometry()
    }
    fn read_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<()> {
        self.inner.read_at(offset, buf)
    }
    fn write_at(&self, offset: u64, bufs: &[IoSlice<'_>]) -> io::Result<()> {
        self.inner.write_at(offset, bufs)?;
        let data = bufs.iter().flat_map(|buf| buf.iter().copied()).collect();
        self.record(Event::Write { offset, data });
        Ok(())
    }
    fn barrier(&self) -> io::Result<()> {
        self.record(Event::Barrier);
        Ok(())
    }
    fn sync(&self) -> io::Result<()> {
        self.record(Event::Sync);
        Ok(())
    }
    fn discard(&self, offset: u64, len: u64) -> io::Result<()> {
        self.inner.discard(offset, len)?;
        self.record(Event::Write { offset, data: vec![0; len as usize] });
        Ok(())
    }
}
