//! Devices that record the writes to them, in order, with the barriers and syncs between.

use std::collections::HashMap;
use std::io::{self, IoSlice};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use cffs::device::{BlockDevice, Geometry, Image, MemoryDevice, PairedDevice};

use crate::mutants::Mutant;

/// An event that reached the device.
#[derive(Clone)]
pub enum Event {
    Write {
        offset: u64,
        data: Vec<u8>,
    },
    /// Discarded: these bytes may have any value from now on.
    Discard {
        offset: u64,
        len: u64,
    },
    Barrier,
    Sync,
}

/// The value of discarded bytes.
const DISCARDED: u8 = 0xa5;

impl Event {
    /// The bytes that the event writes, if any, and where.
    pub fn written(self) -> Option<(u64, Vec<u8>)> {
        match self {
            Event::Write { offset, data } => Some((offset, data)),
            Event::Discard { offset, len } => Some((offset, vec![DISCARDED; len as usize])),
            Event::Barrier | Event::Sync => None,
        }
    }

    /// Whether later writes are never in flight together with earlier ones.
    pub fn ends_phase(&self) -> bool {
        matches!(self, Event::Barrier | Event::Sync)
    }
}

/// The number of a disk's image among those of its volume.
pub type Disk = usize;
/// The disk with the volume itself.
pub const HOME: Disk = 0;
/// The disk with the volume's journal, if that is a separate one.
pub const JOURNAL: Disk = 1;

/// A volume's device, from its disks.
pub fn joined(mut disks: Vec<Arc<dyn BlockDevice>>) -> Arc<dyn BlockDevice> {
    let journal = disks.drain(JOURNAL..).next();
    let home = disks.swap_remove(HOME);
    match journal {
        Some(journal) => Arc::new(PairedDevice::new(home, journal)),
        None => home,
    }
}

/// The events that reached the disks of a volume, in one order.
pub struct Timeline {
    events: Mutex<Vec<(Disk, Event)>>,
    mutant: Option<Mutant>,
}

impl Timeline {
    /// A device with these images on its disks, and the record of its events.
    pub fn of(images: &[Image], mutant: Option<Mutant>) -> (Arc<dyn BlockDevice>, Arc<Timeline>) {
        let timeline = Arc::new(Timeline { events: Mutex::default(), mutant });
        let recorder = |(disk, image): (Disk, &Image)| {
            Arc::new(Recorder::new(disk, image.clone(), timeline.clone())) as Arc<dyn BlockDevice>
        };
        (joined(images.iter().enumerate().map(recorder).collect()), timeline)
    }

    /// The events since the last call.
    pub fn take(&self) -> Vec<(Disk, Event)> {
        let events = std::mem::take(&mut *self.events.lock().unwrap());
        match self.mutant {
            None | Some(Mutant::NoSyncOf(_)) => events,
            Some(mutant) => {
                let home = events.into_iter().map(|(disk, event)| {
                    assert_eq!(disk, HOME, "{mutant:?} is one of a single disk");
                    event
                });
                mutant.reorder(home.collect()).into_iter().map(|event| (HOME, event)).collect()
            }
        }
    }
}

/// A disk that never fails and loses nothing. The losses of a crash are chosen afterwards.
struct Recorder {
    disk: Disk,
    inner: MemoryDevice,
    timeline: Arc<Timeline>,
    mutant: Option<Mutant>,
    /// The checksums of the sectors of the intent log that the mutant changed, by their original checksums.
    chain: Mutex<HashMap<u32, u32>>,
    barriers: AtomicUsize,
    ticks: AtomicU64,
}

impl Recorder {
    fn new(disk: Disk, image: Image, timeline: Arc<Timeline>) -> Recorder {
        Recorder {
            disk,
            inner: MemoryDevice::from_image(image),
            mutant: timeline.mutant,
            timeline,
            chain: Mutex::default(),
            barriers: AtomicUsize::new(0),
            ticks: AtomicU64::new(0),
        }
    }

    fn record(&self, event: Event) {
        self.timeline.events.lock().unwrap().push((self.disk, event));
    }
}

impl BlockDevice for Recorder {
    fn geometry(&self) -> Geometry {
        self.inner.geometry()
    }
    /// Slow enough that a journal tries gaps.
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
            Some(Mutant::NoSyncOf(disk)) if disk == self.disk => Event::Barrier,
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
