//! The journal by itself: what a crash at any moment leaves, and that this finds a device on which one of
//! the journal's rules does not hold; what a damaged journal says; what becomes of one that fails.
//!
//! Blocks are filled with the number of their writer. The journal is so small that it is full
//! again and again.

use std::io::{self, IoSlice};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;

use super::{JournaledDevice, erase};
use crate::device::fault::{Effect, Fault, Strike, Target};
use crate::device::{
    BlockDevice, CrashingDevice, FaultDevice, Geometry, Image, Journal, JournalState, JournalStats,
    MemoryDevice, TraceDevice,
};
use crate::error::Corruption;
use crate::format::Superblock;
use crate::format::journal::Header;
use crate::format::superblock::State;
use crate::mkfs::{self, MkfsOptions};

mod external;
mod gaps;
mod rules;

const BLOCK: usize = 4096;
const JOURNAL_BLOCKS: u64 = 20;
/// Blocks that the journal's user writes; some of them are neighbours.
const HOME: [u64; 6] = [200, 201, 202, 210, 220, 221];

/// A volume that is marked as in use.
fn made() -> (Image, Superblock) {
    let (image, superblock) = made_clean();
    let superblock = Superblock { state: State::InUse, ..superblock };
    let device = MemoryDevice::from_image(image);
    put_superblock(&device, &superblock).expect("written");
    (device.snapshot(), superblock)
}

fn made_clean() -> (Image, Superblock) {
    let device = MemoryDevice::new(1 << 20);
    let options = MkfsOptions {
        cg_blocks: 256,
        uuid: Some([1; 16]),
        hash_seed: Some([2; 16]),
        journal_bytes: JOURNAL_BLOCKS * BLOCK as u64,
        ..MkfsOptions::default()
    };
    let superblock = mkfs::make(&device, &options).expect("made");
    (device.snapshot(), superblock)
}

fn block_of(value: u64) -> Vec<u8> {
    value.to_le_bytes().repeat(BLOCK / 8)
}

fn value_at(device: &dyn BlockDevice, block: u64) -> u64 {
    let mut bytes = vec![0; BLOCK];
    device.read_at(block * BLOCK as u64, &mut bytes).expect("read");
    let value = u64::from_le_bytes(std::array::from_fn(|index| bytes[index]));
    assert_eq!(bytes, block_of(value), "block {block} is torn");
    value
}

fn put(device: &dyn BlockDevice, block: u64, value: u64) -> io::Result<()> {
    device.write_at(block * BLOCK as u64, &[IoSlice::new(&block_of(value))])
}

fn put_atomic(device: &dyn BlockDevice, blocks: &[u64], value: u64) -> io::Result<bool> {
    let image = block_of(value);
    let pieces: Vec<(u64, &[u8])> =
        blocks.iter().map(|block| (block * BLOCK as u64, &image[..])).collect();
    device.journal().map_or(Ok(false), |journal| journal.commit(&pieces))
}

fn put_superblock(device: &dyn BlockDevice, superblock: &Superblock) -> io::Result<()> {
    device.write_at(0, &[IoSlice::new(&superblock.encode())])
}

fn superblock_of(image: &Image) -> Superblock {
    let mut bytes = [0; 512];
    image.read(0, &mut bytes).expect("read");
    Superblock::decode(&bytes, 0).expect("a superblock is written whole")
}

fn opened<D: BlockDevice>(device: D, superblock: &Superblock) -> JournaledDevice<D> {
    let (device, doubt) = JournaledDevice::open(device, superblock);
    assert_eq!(doubt, None);
    device
}

/// An operation that the device below the journal leaves out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Missing {
    /// A record is not waited for.
    SyncAfterRecord,
    /// Rule 2: writes past the journal may be reordered with the record.
    SyncBeforeRecord,
    /// Rule 3: images are on their way home while the header calls the journal empty.
    SyncBeforeHeader,
    /// Rules 1 and 3: the header may be reordered with writes past the journal, or over old records.
    SyncAfterHeader,
    /// Rules 1 and 4: the journal is never made empty.
    Header,
    /// Writes to home do not arrive.
    Home,
    /// The images of a record do not arrive.
    Images,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Home,
    Header,
    Record,
}

/// A call of the journal's user, and the resulting operations.
struct Work {
    mutant: Option<Missing>,
    /// The last write.
    last: Kind,
    is_atomic: bool,
    /// Writes since the user's last call.
    writes: u32,
}

struct Mutated {
    inner: CrashingDevice,
    journal_start: u64,
    work: Mutex<Work>,
}

impl Mutated {
    fn begin(&self, is_atomic: bool) {
        let mut work = self.work.lock();
        (work.is_atomic, work.writes) = (is_atomic, 0);
    }
}

impl BlockDevice for Mutated {
    fn geometry(&self) -> Geometry {
        self.inner.geometry()
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<()> {
        self.inner.read_at(offset, buf)
    }

    fn write_at(&self, offset: u64, bufs: &[IoSlice<'_>]) -> io::Result<()> {
        let mut work = self.work.lock();
        let at = (offset / BLOCK as u64).checked_sub(self.journal_start);
        work.last = match at {
            Some(0..2) => Kind::Header,
            Some(2..JOURNAL_BLOCKS) => Kind::Record,
            _ => Kind::Home,
        };
        work.writes += 1;
        match (work.mutant, work.last) {
            (Some(Missing::Header), Kind::Header) => Ok(()),
            (Some(Missing::Home), Kind::Home) if work.is_atomic => Ok(()),
            (Some(Missing::Images), Kind::Record) => self.inner.write_at(offset, &bufs[..1]),
            _ => self.inner.write_at(offset, bufs),
        }
    }

    fn barrier(&self) -> io::Result<()> {
        self.inner.barrier()
    }

    fn sync(&self) -> io::Result<()> {
        let work = self.work.lock();
        let is_lost = match work.mutant {
            Some(Missing::SyncAfterRecord) => work.last == Kind::Record,
            Some(Missing::SyncAfterHeader) => work.last == Kind::Header,
            // The first write of a user's call, except a record, goes home to empty the journal.
            Some(Missing::SyncBeforeHeader) => work.last == Kind::Home && work.writes > 0,
            Some(Missing::SyncBeforeRecord) => {
                work.last == Kind::Home && work.writes == 0 && work.is_atomic
            }
            _ => false,
        };
        if is_lost { Ok(()) } else { self.inner.sync() }
    }

    fn discard(&self, offset: u64, len: u64) -> io::Result<()> {
        self.inner.discard(offset, len)
    }

    fn elapsed(&self) -> Duration {
        self.inner.elapsed()
    }
}

/// The values that may be read after a crash.
#[derive(Clone, Debug)]
struct Model {
    /// For each block the durable value, and the values written after it.
    blocks: [Vec<u64>; HOME.len()],
    mounts: Vec<u32>,
    /// Whether nothing was journaled since the superblock was written.
    is_quiet: bool,
}

impl Model {
    fn settle(&mut self) {
        for values in &mut self.blocks {
            values.drain(..values.len() - 1);
        }
        self.mounts.drain(..self.mounts.len() - 1);
    }

    fn allows(&self, found: &[u64; HOME.len()], mounts: u32) -> bool {
        self.mounts.contains(&mounts)
            && self.blocks.iter().zip(found).all(|(values, found)| values.contains(found))
    }
}

/// SplitMix64.
fn random(state: &mut u64, limit: u64) -> u64 {
    *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let mut z = *state;
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    (z ^ (z >> 31)) % limit
}

/// The values of the blocks at home; of one that was torn, none that there can be.
fn values(device: &dyn BlockDevice) -> [u64; HOME.len()] {
    HOME.map(|block| {
        let mut bytes = vec![0; BLOCK];
        device.read_at(block * BLOCK as u64, &mut bytes).expect("read");
        let value = u64::from_le_bytes(std::array::from_fn(|index| bytes[index]));
        if bytes == block_of(value) { value } else { u64::MAX }
    })
}

/// Whether a crash left what the model allows, before the call under way or after it.
fn judge(image: Image, before: &Model, after: &Model) -> Result<(), String> {
    let superblock = superblock_of(&image);
    let mounts = superblock.mounts;
    let (device, doubt) = JournaledDevice::open(MemoryDevice::from_image(image), &superblock);
    if let Some(doubt) = doubt {
        return Err(doubt.to_string());
    }
    let found = values(&device);
    if !before.allows(&found, mounts) && !after.allows(&found, mounts) {
        return Err(format!("{found:?}, {mounts} mounts: neither {before:?} nor {after:?}"));
    }
    let newest = after.mounts.last() == Some(&mounts);
    if after.is_quiet && newest && device.live_blocks() > 0 {
        return Err("the superblock was written, and the journal is not empty".into());
    }
    Ok(())
}

/// Works at random on a journal, and tries crashes in each call and after it.
fn run(seed: u64, mutant: Option<Missing>, calls: u64) -> Result<usize, String> {
    let (image, mut superblock) = made_clean();
    let work = Work { mutant, last: Kind::Home, is_atomic: false, writes: 0 };
    let (journal_start, work) = (superblock.journal.start, Mutex::new(work));
    let inner = CrashingDevice::new(image, 4, seed);
    let bottom = Arc::new(Mutated { inner, journal_start, work });
    let mut device = opened(Arc::clone(&bottom), &superblock);
    let mut model =
        Model { blocks: HOME.map(|_| vec![0]), mounts: vec![superblock.mounts], is_quiet: false };
    let (mut state, mut tried) = (seed, 0);
    for value in 1..calls {
        let before = model.clone();
        let mut random = |limit| random(&mut state, limit) as usize;
        let mut call = random(10);
        if superblock.state == State::Clean && call < 8 {
            // A volume is marked as in use before it is changed.
            call = 10;
        }
        bottom.begin(call < 5);
        match call {
            0..5 => {
                let chosen = 1 + random((1 << HOME.len()) - 1);
                let members = (0..HOME.len()).filter(|index| chosen >> index & 1 == 1);
                let members: Vec<usize> = members.collect();
                members.iter().for_each(|index| model.blocks[*index].push(value));
                model.settle();
                model.is_quiet = false;
                let blocks: Vec<u64> = members.iter().map(|index| HOME[*index]).collect();
                assert!(put_atomic(&device, &blocks, value).expect("written"));
            }
            5..8 => {
                let index = random(HOME.len() as u64);
                model.blocks[index].push(value);
                put(&device, HOME[index], value).expect("written");
            }
            8 | 10 => {
                superblock.state = if call == 8 { State::Clean } else { State::InUse };
                superblock.mounts += 1;
                model.mounts.push(superblock.mounts);
                model.is_quiet = true;
                put_superblock(&device, &superblock).expect("written");
            }
            _ => {
                let (again, doubt) = JournaledDevice::open(Arc::clone(&bottom), &superblock);
                if let Some(doubt) = doubt {
                    return Err(doubt.to_string());
                }
                device = again;
            }
        }
        let mut images = bottom.inner.take_images();
        let now = (0..4).map(|_| bottom.inner.inner().crash_seeded(random(1 << 40) as u64));
        let now: Vec<Image> = now.collect::<io::Result<_>>().expect("images");
        for image in images.drain(..) {
            judge(image, &before, &model).map_err(|why| format!("in call {value}: {why}"))?;
            tried += 1;
        }
        for image in now {
            judge(image, &model, &model).map_err(|why| format!("call {value}: {why}"))?;
            tried += 1;
        }
        for (values, block) in model.blocks.iter().zip(HOME) {
            let found = value_at(&device, block);
            if values.last() != Some(&found) {
                return Err(format!("call {value}: block {block} has {found}, not {values:?}"));
            }
        }
    }
    Ok(tried)
}

#[test]
fn a_crash_leaves_what_was_journaled_and_whole_records_only() {
    let tried: usize = (0..12)
        .map(|seed| run(seed, None, 150).unwrap_or_else(|why| panic!("seed {seed}: {why}")))
        .sum();
    assert!(tried > 10_000, "{tried}");
}

/// Each rule of the journal is needed: without it, a crash leaves a wrong state, which is detected.
#[test]
fn a_device_without_one_of_the_rules_is_found_out() {
    for mutant in [
        Missing::SyncAfterRecord,
        Missing::SyncBeforeRecord,
        Missing::SyncBeforeHeader,
        Missing::SyncAfterHeader,
        Missing::Header,
        Missing::Home,
        Missing::Images,
    ] {
        let caught = (0..12).any(|seed| run(seed, Some(mutant), 150).is_err());
        assert!(caught, "{mutant:?} was not found out");
    }
}

#[test]
fn a_record_is_one_write_and_one_flush() {
    let (image, superblock) = made();
    let device = TraceDevice::new(MemoryDevice::from_image(image));
    let journaled = opened(&device, &superblock);
    assert!(put_atomic(&journaled, &HOME, 1).expect("written"));
    let before = device.counts();
    assert!(put_atomic(&journaled, &HOME[..3], 2).expect("written"));
    let cost = device.counts() - before;
    assert_eq!((cost.writes, cost.syncs, cost.barriers), (1, 1, 0));
}

/// A copy of the volume may have gone on in the last one.
#[test]
fn each_opening_begins_an_era() {
    for (image, superblock) in [made_clean(), made()] {
        let device = TraceDevice::new(MemoryDevice::from_image(image));
        let journaled = opened(&device, &superblock);
        let before = device.counts();
        assert!(put_atomic(&journaled, &HOME, 1).expect("written"));
        // The header, the superblock, which notes it, and the record.
        assert_eq!((device.counts() - before).writes, 3);
    }
}

#[test]
fn the_journals_work_is_counted() {
    let (image, superblock) = made_clean();
    let device = TraceDevice::new(MemoryDevice::from_image(image));
    let journaled = opened(&device, &superblock);
    put_superblock(&journaled, &superblock).expect("an era begins");
    let commits = || journaled.stats().commits;
    let stalled = || journaled.stats().stalled;
    let stats = || {
        let (commits, drain_time, stalled) = Default::default();
        JournalStats { commits, drain_time, stalled, ..journaled.stats() }
    };
    assert_eq!(stats(), JournalStats::default());
    assert_eq!(commits().percentile(50), None);
    assert!(put_atomic(&journaled, &HOME, 1).expect("written"));
    let before = device.counts();
    assert!(put_atomic(&journaled, &HOME[..3], 2).expect("written"));
    let cost = device.counts() - before;
    let block_bytes = BLOCK as u64;
    let expected = JournalStats {
        records: 2,
        written_bytes: 7 * block_bytes + cost.written_bytes,
        // One more for what was there before it was opened.
        flushes: 3,
        images: 9,
        superseded_images: 3,
        live_bytes: 6 * block_bytes,
        live_bytes_max: 6 * block_bytes,
        ..JournalStats::default()
    };
    assert_eq!(stats(), expected);
    assert!(
        commits().percentile(50) <= commits().percentile(99) && commits().percentile(50).is_some()
    );

    assert_eq!(stalled(), Duration::ZERO);
    put(&journaled, HOME[0], 3).expect("written");
    let for_overlap = stalled();
    assert!(for_overlap > Duration::ZERO);
    let drained = JournalStats {
        drains: 1,
        drains_overlap: 1,
        drained_bytes: 6 * block_bytes,
        live_bytes: 0,
        ..expected
    };
    assert_eq!(stats(), drained);
    assert!(put_atomic(&journaled, &HOME, 4).expect("written"));
    assert_eq!(stats().flushes, 5, "one for writes past the journal");
    put_superblock(&journaled, &superblock).expect("written");
    assert_eq!((stats().drains, stats().drains_overlap), (2, 1));
    assert_eq!(stalled(), for_overlap, "that was a checkpoint");
    // 18 blocks hold two records of seven.
    (0..3).for_each(|value| assert!(put_atomic(&journaled, &HOME, value).expect("written")));
    assert_eq!((stats().drains, stats().drains_full), (3, 1));
    assert!(stalled() > for_overlap);
}

#[test]
fn a_block_that_no_record_may_have_is_refused_and_not_written() {
    let (image, superblock) = made();
    let device = TraceDevice::new(MemoryDevice::from_image(image));
    let journaled = opened(&device, &superblock);
    let (start, blocks) = (superblock.journal.start, superblock.blocks);
    for refused in [&[][..], &[0], &[start], &[200, start + JOURNAL_BLOCKS - 1], &[blocks]] {
        assert!(!put_atomic(&journaled, refused, 1).expect("refused"), "{refused:?}");
    }
    let long: Vec<u64> = (200..200 + JOURNAL_BLOCKS).collect();
    assert!(!put_atomic(&journaled, &long, 1).expect("refused"));
    assert!(!journaled.commit(&[(BLOCK as u64 + 512, &block_of(1))]).expect("refused"));
    assert_eq!(device.counts().writes, 0);
}

/// A journal with three records, which are in memory no more.
fn with_records() -> (MemoryDevice, Superblock) {
    let (image, superblock) = made();
    let device = MemoryDevice::from_image(image);
    let journaled = opened(&device, &superblock);
    for value in 1..4 {
        assert!(put_atomic(&journaled, &HOME[..2], value).expect("written"));
    }
    drop(journaled);
    (device, superblock)
}

fn damage(device: &MemoryDevice, block: u64) {
    device.write_at(block * BLOCK as u64 + 100, &[IoSlice::new(b"damage")]).expect("written");
}

#[test]
fn one_header_is_enough_and_without_both_the_journal_is_in_doubt() {
    let (device, superblock) = with_records();
    let start = superblock.journal.start;
    for gone in [start, start + 1] {
        let device = MemoryDevice::from_image(device.snapshot());
        damage(&device, gone);
        assert_eq!(value_at(&opened(&device, &superblock), HOME[0]), 3);
    }
    damage(&device, start);
    damage(&device, start + 1);
    let (journaled, doubt) = JournaledDevice::open(&device, &superblock);
    assert!(matches!(doubt, Some(Corruption::JournalHeader { .. })), "{doubt:?}");
    assert!(!put_atomic(&journaled, &HOME, 9).expect("refused"), "the eras are unknown");
    erase(&device, &superblock_of(&device.snapshot())).expect("erased");
    assert_eq!(value_at(&opened(&device, &superblock), HOME[0]), 0);
}

/// No header could follow one with the last number that there is; only damage, or malice, makes such a one.
#[test]
fn a_header_with_the_last_number_is_not_valid() {
    let (device, superblock) = with_records();
    let put_last = |at: u64| {
        let mut block = vec![0; BLOCK];
        let blocks = JOURNAL_BLOCKS as u32;
        Header { sequence: u64::MAX, era: 1, previous: 0, blocks, uuid: [0; 16] }
            .encode_into(&mut block, superblock.checksum());
        let at = (superblock.journal.start + at) * BLOCK as u64;
        device.write_at(at, &[IoSlice::new(&block)]).expect("written");
    };
    put_last(0);
    let journaled = opened(&device, &superblock);
    assert_eq!(value_at(&journaled, HOME[0]), 3, "the other header counts");
    drop(journaled);
    put_last(1);
    let (journaled, doubt) = JournaledDevice::open(&device, &superblock);
    assert!(matches!(doubt, Some(Corruption::JournalHeader { .. })), "{doubt:?}");
    assert!(!put_atomic(&journaled, &HOME, 9).expect("refused"), "the eras are unknown");
}

#[test]
fn a_torn_record_ends_the_journal_and_a_damaged_one_puts_it_in_doubt() {
    let (device, superblock) = with_records();
    let first = superblock.journal.start + 2;
    let image = |record: u64| first + 3 * record + 1;
    for block in [image(2), image(2) - 1] {
        let device = MemoryDevice::from_image(device.snapshot());
        damage(&device, block);
        assert_eq!(value_at(&opened(&device, &superblock), HOME[0]), 2);
    }
    for block in [image(1), image(1) - 1] {
        let device = MemoryDevice::from_image(device.snapshot());
        damage(&device, block);
        let (journaled, doubt) = JournaledDevice::open(&device, &superblock);
        let expected = Corruption::JournalRecord { block: crate::units::BlockNo(image(1) - 1) };
        assert_eq!(doubt, Some(expected));
        assert_eq!(value_at(&journaled, HOME[0]), 1);
    }
}

/// An unreadable record may have been acknowledged as durable.
#[test]
fn a_record_that_cannot_be_read_puts_the_journal_in_doubt() {
    let (device, superblock) = with_records();
    let last = (superblock.journal.start + 2 + 6) * BLOCK as u64;
    let device = FaultDevice::new(device, 1);
    let target = Target::reads().within(last..last + 1);
    device.arm(Fault { target, strike: Strike::Always, effect: Effect::IO_ERROR });
    let (_, doubt) = JournaledDevice::open(&device, &superblock);
    assert!(matches!(doubt, Some(Corruption::JournalRecord { .. })), "{doubt:?}");
}

#[test]
fn a_journal_that_cannot_be_written_is_switched_off_and_nothing_is_lost() {
    let (image, superblock) = made();
    let device = FaultDevice::new(MemoryDevice::from_image(image), 1);
    let journaled = opened(&device, &superblock);
    assert!(put_atomic(&journaled, &HOME, 1).expect("written"));
    let records = (superblock.journal.start + 2) * BLOCK as u64;
    let end = (superblock.journal.start + JOURNAL_BLOCKS) * BLOCK as u64;
    let target = Target::writes().within(records..end);
    // The whole record arrives, but its write fails.
    let effect = Effect::Torn { sectors: 3 };
    device.arm(Fault { target, strike: Strike::Always, effect });
    assert!(!put_atomic(&journaled, &HOME[..2], 2).expect("refused"));
    assert_eq!(journaled.live_blocks(), 0);
    device.disarm();
    assert!(!put_atomic(&journaled, &HOME, 3).expect("refused"), "it stays off");
    let stats = journaled.stats();
    assert_eq!((stats.state, stats.failures, stats.live_bytes), (JournalState::Off, 1, 0));
    let journaled = opened(device.inner(), &superblock);
    assert!(HOME.iter().all(|block| value_at(&journaled, *block) == 1));
    assert!(put_atomic(&journaled, &HOME, 4).expect("written"), "until it is opened again");
}

/// Linux reports a lost write once: nothing may follow a record that perhaps is not there.
#[test]
fn nothing_is_journaled_after_a_sync_that_failed() {
    let (image, superblock) = made();
    let device = FaultDevice::new(MemoryDevice::from_image(image), 1);
    let journaled = opened(&device, &superblock);
    assert!(put_atomic(&journaled, &HOME, 1).expect("written"));
    let target = Target::flushes();
    device.arm(Fault { target, strike: Strike::Nth(0), effect: Effect::IO_ERROR });
    put_atomic(&journaled, &HOME, 2).expect_err("not durable");
    put_atomic(&journaled, &HOME, 3).expect_err("nothing follows it");
    assert_eq!(journaled.stats().state, JournalState::Failed);
    assert_eq!(value_at(&journaled, HOME[0]), 1);
}
