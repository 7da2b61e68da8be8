//! The core's crash explorer on volumes in a store: the machine stops at any change of the store, and another
//! program continues with the remains.
//!
//! The workloads, their promises, and `CFFS_CRASH`, `CFFS_CRASH_SEED` and `CFFS_CRASH_STATES` are those of
//! the core's explorer (`core/cffs/tests/crash`).

use std::collections::BTreeMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};

use super::*;

use cffs_testing::crash::case::{self, DEVICE_BYTES, FULL, HOLES, Medium, Opener, ROOMY, Record};
use cffs_testing::crash::explorer::{Explorer, KINDS, Workload};
use cffs_testing::crash::matrix;
use cffs_testing::random::Random;

/// States to try by default.
const STATES: u64 = 10_000;
/// The number of workloads within which a mutant must be caught.
const MUTANT_WORKLOADS: usize = 100;
/// Added to a kind: little is kept in memory until a sync, so that most of an epoch is sent ahead.
const AHEAD: u64 = KINDS;
const AHEAD_BYTES: u64 = 8 << 10;

/// Faults of a device that the test must detect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mutant {
    /// Every other sync is acknowledged without a record; the next sync commits everything.
    AcknowledgedEarly,
    /// The first write after a sync becomes part of the record after the next.
    OutOfOrder,
}

/// Volumes in stores.
#[derive(Default)]
struct Stores {
    mutant: Option<Mutant>,
}

/// The state that a crash leaves.
struct Left {
    store: InMemory,
    is_ahead: bool,
}

impl Clone for Left {
    fn clone(&self) -> Left {
        Left { store: self.store.fork(), is_ahead: self.is_ahead }
    }
}

/// The volumes made so far, by their kinds.
static STARTS: Mutex<BTreeMap<u64, Left>> = Mutex::new(BTreeMap::new());

impl Medium for Stores {
    type Left = Left;
    type Record = Images;
    const AGAIN: &'static str = "cargo test -p cffs-object --lib core_crash::one";

    fn start(&self, kind: u64) -> Left {
        STARTS.lock().expect("held").entry(kind).or_insert_with(|| start(kind)).clone()
    }

    fn sound(&self) -> Stores {
        Stores::default()
    }

    fn put(&self, left: Left) -> Opener {
        let location = at(Arc::new(left.store));
        Box::new(move || Ok(Arc::new(open(&location, left.is_ahead)?)))
    }

    fn record(&self, left: Left) -> Result<(Arc<dyn BlockDevice>, Images), String> {
        let store = Arc::new(FaultStore::over(left.store));
        store.keep_images();
        let device = open(&at(store.clone()), left.is_ahead)?;
        let device: Arc<dyn BlockDevice> = match self.mutant {
            None => Arc::new(device),
            Some(mutant) => Arc::new(Mutated::new(device, mutant)),
        };
        Ok((device, Images { store, is_ahead: left.is_ahead }))
    }
}

fn open(location: &Location, is_ahead: bool) -> Result<LogDevice, String> {
    let device = LogDevice::open(location, TAKE_OVER).map_err(|error| error.to_string())?;
    if is_ahead {
        device.keep_at_most(AHEAD_BYTES);
    }
    Ok(device)
}

fn start(kind: u64) -> Left {
    let store = Arc::new(InMemory::new());
    let geometry = Geometry { size_bytes: DEVICE_BYTES, sector_bytes: case::sector_bytes(kind) };
    let device = LogDevice::create(&at(store.clone()), geometry).expect("made");
    case::make(Arc::new(device), kind, 0);
    if kind & (ROOMY | HOLES | FULL) != 0 {
        let device = open(&at(store.clone()), false).expect("opened");
        case::shape(Arc::new(device), kind);
    }
    Left { store: store.fork(), is_ahead: kind & AHEAD != 0 }
}

/// The contents of a store after each of its changes.
struct Images {
    store: Arc<FaultStore>,
    is_ahead: bool,
}

impl Images {
    fn left(&self, store: InMemory) -> Left {
        Left { store, is_ahead: self.is_ahead }
    }
}

impl Record<Left> for Images {
    fn follow(&mut self, _: &mut Random) -> Option<Vec<Left>> {
        let images = self.store.take_images();
        (!images.is_empty()).then(|| images.into_iter().map(|store| self.left(store)).collect())
    }

    fn now(&self, _: &mut Random) -> Vec<Left> {
        vec![self.left(self.store.image())]
    }

    fn anywhere(self, random: &mut Random) -> Option<Left> {
        let mut images = self.store.take_images();
        let nth = random.below(images.len() as u64) as usize;
        Some(self.left(images.swap_remove(nth)))
    }
}

/// A device with a fault.
struct Mutated {
    inner: LogDevice,
    mutant: Mutant,
    /// Whether the last sync was acknowledged without a record.
    owes: AtomicBool,
    held: Mutex<Held>,
}

/// The first write after a sync.
enum Held {
    /// It has not come yet.
    Open,
    /// It is held back.
    Write(u64, Vec<u8>),
    /// It is on the device.
    Passed,
}

impl Mutated {
    fn new(inner: LogDevice, mutant: Mutant) -> Mutated {
        Mutated { inner, mutant, owes: AtomicBool::new(false), held: Mutex::new(Held::Open) }
    }

    /// Passes the held write to the device.
    fn pass(&self, held: &mut Held) -> std::io::Result<()> {
        match std::mem::replace(held, Held::Passed) {
            Held::Write(offset, data) => self.inner.write_at(offset, &[IoSlice::new(&data)]),
            Held::Open | Held::Passed => Ok(()),
        }
    }
}

impl BlockDevice for Mutated {
    fn below(&self) -> Option<&dyn BlockDevice> {
        Some(&self.inner)
    }

    fn geometry(&self) -> Geometry {
        self.inner.geometry()
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> std::io::Result<()> {
        self.inner.read_at(offset, buf)?;
        if let Held::Write(start, data) = &*self.held.lock().expect("held") {
            for (at, byte) in (*start..).zip(data) {
                if let Some(target) = at.checked_sub(offset).and_then(|at| buf.get_mut(at as usize))
                {
                    *target = *byte;
                }
            }
        }
        Ok(())
    }

    fn write_at(&self, offset: u64, bufs: &[IoSlice<'_>]) -> std::io::Result<()> {
        let mut held = self.held.lock().expect("held");
        let data: Vec<u8> = bufs.iter().flat_map(|buf| buf.iter().copied()).collect();
        match &*held {
            Held::Open if self.mutant == Mutant::OutOfOrder => {
                *held = Held::Write(offset, data);
                return Ok(());
            }
            Held::Write(start, there)
                if *start < offset + data.len() as u64 && offset < start + there.len() as u64 =>
            {
                self.pass(&mut held)?;
            }
            _ => {}
        }
        self.inner.write_at(offset, bufs)
    }

    fn barrier(&self) -> std::io::Result<()> {
        self.inner.barrier()
    }

    fn sync(&self) -> std::io::Result<()> {
        let owed = self.owes.fetch_xor(true, Ordering::SeqCst);
        if self.mutant == Mutant::AcknowledgedEarly && !owed {
            return Ok(());
        }
        self.inner.sync()?;
        let mut held = self.held.lock().expect("held");
        self.pass(&mut held)?;
        *held = Held::Open;
        Ok(())
    }

    fn discard(&self, offset: u64, len: u64) -> std::io::Result<()> {
        self.pass(&mut self.held.lock().expect("held"))?;
        self.inner.discard(offset, len)
    }
}

/// Alternates pairs of calls and long workloads, on volumes that send little or most of an epoch ahead.
fn nth(nth: u64, calls: u64) -> Workload {
    let workload = match nth % 4 {
        3 => Workload::nth_long(nth / 4),
        _ => Workload::nth_pair(nth, calls),
    };
    workload.of_kinds_from(if (nth / 16).is_multiple_of(2) { 0 } else { AHEAD })
}

#[test]
fn every_crash_of_a_volume_in_a_store_leaves_a_valid_state() {
    Explorer::new(Stores::default()).explore(nth, STATES);
}

#[test]
fn every_online_operation_on_every_kind_of_volume_in_a_store() {
    matrix::explore(&Explorer::new(Stores::default()), &[("in a store", 0)]);
}

/// Detects a sync that is acknowledged before its PUT, and writes in another order.
#[test]
fn a_faulty_device_is_caught() {
    for mutant in [Mutant::AcknowledgedEarly, Mutant::OutOfOrder] {
        let explorer = Explorer::new(Stores { mutant: Some(mutant) });
        let mut pairs = explorer.pairs().take(MUTANT_WORKLOADS);
        let caught = pairs.position(|pair| explorer.run(pair).is_err());
        println!("{mutant:?} was caught by workload {caught:?}");
        assert!(caught.is_some(), "{mutant:?} is not noticed");
    }
}

#[test]
fn one() {
    Explorer::new(Stores::default()).one();
}
