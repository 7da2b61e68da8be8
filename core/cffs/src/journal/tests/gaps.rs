//! Records behind gaps.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use super::*;

const RECORDS: u64 = 28;
/// The blocks of a record with two images.
const RECORD: u64 = 3;

/// A device on which each record takes as long as the others, so that each gap is tried in turn.
struct Slow {
    inner: MemoryDevice,
    calls: AtomicU64,
}

impl BlockDevice for Slow {
    fn below(&self) -> Option<&dyn BlockDevice> {
        Some(&self.inner)
    }

    fn geometry(&self) -> Geometry {
        self.inner.geometry()
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<()> {
        self.inner.read_at(offset, buf)
    }

    fn write_at(&self, offset: u64, bufs: &[IoSlice<'_>]) -> io::Result<()> {
        self.inner.write_at(offset, bufs)
    }

    fn barrier(&self) -> io::Result<()> {
        self.inner.barrier()
    }

    fn sync(&self) -> io::Result<()> {
        self.inner.sync()
    }

    fn discard(&self, offset: u64, len: u64) -> io::Result<()> {
        self.inner.discard(offset, len)
    }

    fn elapsed(&self) -> Duration {
        Duration::from_millis(5 * self.calls.fetch_add(1, Ordering::Relaxed))
    }
}

/// A journal of `blocks` blocks with records, and the start of each, in the order of the journal.
fn with_records(blocks: u64) -> (MemoryDevice, Superblock, Vec<u64>) {
    let device = MemoryDevice::new(8 << 20);
    let options = MkfsOptions {
        cg_blocks: 2048,
        uuid: Some([1; 16]),
        hash_seed: Some([2; 16]),
        journal_bytes: blocks * BLOCK as u64,
        ..MkfsOptions::default()
    };
    let mut superblock = mkfs::make(&device, &options).expect("made");
    superblock.state = State::InUse;
    put_superblock(&device, &superblock).expect("written");
    let slow = Slow { inner: device, calls: AtomicU64::new(0) };
    let journaled = opened(&slow, &superblock);
    for value in 1..RECORDS + 1 {
        assert!(put_atomic(&journaled, &[1500, 1501], value).expect("written"));
    }
    assert_eq!(journaled.stats().drains, 1, "the journal is long enough");
    let device = slow.inner;
    let written: Vec<u64> = (superblock.journal.start + 2..superblock.journal.start + blocks)
        .filter(|block| {
            let mut bytes = vec![0; BLOCK];
            device.read_at(block * BLOCK as u64, &mut bytes).expect("read");
            bytes.starts_with(b"CFlr")
        })
        .collect();
    assert_eq!(written.len() as u64, RECORDS);
    (device, superblock, written)
}

fn gaps(records: &[u64]) -> Vec<u64> {
    records.windows(2).map(|pair| pair[1] - pair[0] - RECORD).collect()
}

#[test]
fn records_after_gaps_of_every_length_are_found() {
    let (device, superblock, records) = with_records(512);
    let tried = [0, 1, 3, 7, 15, 31, 63];
    assert_eq!(gaps(&records)[..14], [tried, tried].concat());
    assert!(gaps(&records)[14..].iter().all(|gap| *gap == 0), "they gain nothing: {records:?}");
    assert_eq!(value_at(&opened(&device, &superblock), 1500), RECORDS);
}

/// A record of the second lap is before the ones that it overtakes.
#[test]
fn the_newest_of_records_in_laps_counts() {
    let (device, superblock, records) = with_records(144);
    let last = value_at(&device, records[records.len() - 1] + 1);
    assert!(last < RECORDS, "the last record lies last: {records:?}");
    assert_eq!(value_at(&opened(&device, &superblock), 1500), RECORDS);
}

#[test]
fn a_torn_record_after_a_gap_ends_the_journal_and_a_damaged_one_puts_it_in_doubt() {
    let (device, superblock, records) = with_records(512);
    let last = records.len() - 1;
    for at in 1..last {
        let device = MemoryDevice::from_image(device.snapshot());
        damage(&device, records[at] + at as u64 % RECORD);
        let (journaled, doubt) = JournaledDevice::open(&device, &superblock);
        let end = crate::units::BlockNo(records[at - 1] + RECORD);
        assert_eq!(doubt, Some(Corruption::JournalRecord { block: end }), "record {at}");
        assert_eq!(value_at(&journaled, 1500), at as u64);
    }
    damage(&device, records[last] + 1);
    assert_eq!(value_at(&opened(&device, &superblock), 1500), RECORDS - 1);
}
