//! A device that keeps what was written to it, in order, with the barriers and syncs between.

use std::collections::HashMap;
use std::io::{self, IoSlice};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use cffs::device::{BlockDevice, Geometry, Image, MemoryDevice};

use crate::mutants::Mutant;

/// What reached the device.
#[derive(Clone)]
pub enum Event {
    Write {
        offset: u64,
        data: Vec<u8>,
    },
    /// What lies there reads as anything from now on.
    Discard {
        offset: u64,
        len: u64,
    },
    Barrier,
    Sync,
}

/// What discarded bytes read as.
const DISCARDED: u8 = 0xa5;

impl Event {
    /// What the event puts on the device, if it puts anything there.
    pub fn written(self) -> Option<(u64, Vec<u8>)> {
        match self {
            Event::Write { offset, data } => Some((offset, data)),
            Event::Discard { offset, len } => Some((offset, vec![DISCARDED; len as usize])),
            Event::Barrier | Event::Sync => None,
        }
    }
}

/// The device; it never fails and loses nothing. What a crash loses is decided afterwards.
pub struct Recorder {
    inner: MemoryDevice,
    events: Mutex<Vec<Event>>,
    mutant: Option<Mutant>,
    /// The checksums of the sectors of the busy log that the mutant changed, by those they had.
    chain: Mutex<HashMap<u32, u32>>,
    barriers: AtomicUsize,
    ticks: AtomicU64,
}

impl Recorder {
    pub fn new(image: Image) -> Recorder {
        Recorder::mutated(image, None)
    }

    pub fn mutated(image: Image, mutant: Option<Mutant>) -> Recorder {
        Recorder {
            inner: MemoryDevice::from_image(image),
            events: Mutex::default(),
            mutant,
            chain: Mutex::default(),
            barriers: AtomicUsize::new(0),
            ticks: AtomicU64::new(0),
        }
    }

    /// The events since the last call.
    pub fn take(&self) -> Vec<Event> {
        let events = std::mem::take(&mut *self.events.lock().unwrap());
        match self.mutant {
            Some(mutant) => mutant.reorder(events),
            None => events,
        }
    }

    fn record(&self, event: Event) {
        self.events.lock().unwrap().push(event);
    }
}

impl BlockDevice for Recorder {
    fn geometry(&self) -> Geometry {
        self.inner.geometry()
    }
    /// So slow that a log tries its gaps.
    fn elapsed(&self) -> Duration {
        Duration::from_millis(5 * self.ticks.fetch_add(1, Ordering::Relaxed))
    }
    fn read_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<()> {
        self.inner.read_at(offset, buf)
    }
    fn write_at(&self, offset: u64, bufs: &[IoSlice<'_>]) -> io::Result<()> {
        let mut data: Vec<u8> = bufs.iter().flat_map(|buf| buf.iter().copied()).collect();
        if let Some(mutant) = self.mutant {
            mutant.change(&mut data, self.geometry(), &mut self.chain.lock().unwrap());
        }
        self.inner.write_at(offset, &[IoSlice::new(&data)])?;
        self.record(Event::Write { offset, data });
        Ok(())
    }
    fn barrier(&self) -> io::Result<()> {
        let number = self.barriers.fetch_add(1, Ordering::Relaxed);
        if self.mutant != Some(Mutant::NoBarrier(number)) {
            self.record(Event::Barrier);
        }
        Ok(())
    }
    fn sync(&self) -> io::Result<()> {
        self.barriers.store(0, Ordering::Relaxed);
        self.record(match self.mutant {
            Some(Mutant::NoSync) => Event::Barrier,
            _ => Event::Sync,
        });
        Ok(())
    }
    fn discard(&self, offset: u64, len: u64) -> io::Result<()> {
        let event = Event::Discard { offset, len };
        if let Some((_, data)) = event.clone().written() {
            self.inner.write_at(offset, &[IoSlice::new(&data)])?;
        }
        self.record(event);
        Ok(())
    }
}
