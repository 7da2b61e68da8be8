//! Rules of the journal that a run with crashes cannot miss: another rule makes up for each of them there.

use std::io::{self, IoSlice};
use std::sync::Arc;

use parking_lot::Mutex;

use super::{
    BLOCK, HOME, damage, made, opened, put, put_atomic, put_superblock, superblock_of, value_at,
    with_records,
};
use crate::device::fault::{Effect, Fault, Strike, Target};
use crate::device::{
    BlockDevice, FaultDevice, Geometry, Image, Journal, JournalState, MemoryDevice, PairedDevice,
};
use crate::error::Corruption;
use crate::format::Superblock;
use crate::journal::{JournaledDevice, medium};
use crate::mkfs::{self, MkfsOptions};
use crate::units::BlockNo;

/// A journal that is stopped was once made empty without its blocks being written to their places.
#[test]
fn stopping_the_journal_writes_its_blocks_to_their_places() {
    let (image, superblock) = made();
    let device = MemoryDevice::from_image(image);
    let journaled = opened(&device, &superblock);
    assert!(put_atomic(&journaled, &HOME, 5).expect("written"));
    assert_eq!(value_at(&device, HOME[0]), 0);
    journaled.stop().expect("stopped");
    assert_eq!((journaled.live_blocks(), value_at(&journaled, HOME[0])), (0, 5));
    assert!(!put_atomic(&journaled, &HOME, 6).expect("refused"), "it stays off");
    assert!(HOME.iter().all(|block| value_at(&device, *block) == 5), "at their places");
    assert_eq!(opened(&device, &superblock).live_blocks(), 0);
}

/// A record names the one before it by its checksum. One that follows another, which a device that lost or
/// restored a write leaves, is of another time.
#[test]
fn a_record_after_another_than_it_names_puts_the_journal_in_doubt() {
    let (device, superblock) = with_records();
    // The second record as it is where other values were journaled before.
    let (image, _) = made();
    let other = MemoryDevice::from_image(image);
    let journaled = opened(&other, &superblock);
    for value in 11..14 {
        assert!(put_atomic(&journaled, &HOME[..2], value).expect("written"));
    }
    let second = superblock.journal.start + 2 + 3;
    for block in second..second + 3 {
        let mut bytes = vec![0; BLOCK];
        other.read_at(block * BLOCK as u64, &mut bytes).expect("read");
        device.write_at(block * BLOCK as u64, &[IoSlice::new(&bytes)]).expect("written");
    }
    let (journaled, doubt) = JournaledDevice::open(&device, &superblock);
    assert_eq!(doubt, Some(Corruption::JournalRecord { block: BlockNo(second) }));
    assert_eq!(value_at(&journaled, HOME[0]), 1, "what comes before it counts");
    // Nor does it count where nothing follows it.
    damage(&device, second + 3);
    damage(&device, second + 4);
    assert_eq!(value_at(&JournaledDevice::open(&device, &superblock).0, HOME[0]), 1);
}

/// A crash can lose the note of a header that has a record. Recovery wrote the next header before it noted
/// that one, and a crash then left a journal that was two headers ahead of the volume, which was refused.
#[test]
fn a_header_is_noted_before_the_next_one_is_written() {
    let (image, superblock) = made();
    let device = MemoryDevice::from_image(image);
    let journaled = opened(&device, &superblock);
    put_superblock(&journaled, &superblock).expect("written");
    let noted = superblock_of(&device.snapshot());
    // The journal is full, and its next header has a record.
    let next = (0..).find(|value| {
        assert!(put_atomic(&journaled, &HOME, *value).expect("written"));
        superblock_of(&device.snapshot()) != noted
    });
    put_superblock(&device, &noted).expect("the note is lost");
    let keeping = Keeping { inner: device, images: Mutex::new(Vec::new()) };
    let journaled = opened(&keeping, &noted);
    assert_eq!(Some(value_at(&journaled, HOME[0])), next);
    put_superblock(&journaled, &Superblock { mounts: 1, ..noted }).expect("written");
    let images = keeping.images.lock();
    assert!(images.len() > 3, "the journal was made empty");
    for image in images.iter() {
        let journaled = opened(MemoryDevice::from_image(image.clone()), &superblock_of(image));
        assert_eq!(Some(value_at(&journaled, HOME[0])), next);
    }
}

/// A device that keeps what a crash leaves after each write.
struct Keeping {
    inner: MemoryDevice,
    images: Mutex<Vec<Image>>,
}

impl BlockDevice for Keeping {
    fn geometry(&self) -> Geometry {
        self.inner.geometry()
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<()> {
        self.inner.read_at(offset, buf)
    }

    fn write_at(&self, offset: u64, bufs: &[IoSlice<'_>]) -> io::Result<()> {
        self.inner.write_at(offset, bufs)?;
        self.images.lock().push(self.inner.snapshot());
        Ok(())
    }

    fn barrier(&self) -> io::Result<()> {
        Ok(())
    }

    fn sync(&self) -> io::Result<()> {
        Ok(())
    }

    fn discard(&self, offset: u64, len: u64) -> io::Result<()> {
        self.inner.discard(offset, len)
    }
}

/// A device that keeps the order of what it was asked for.
struct Noting {
    inner: MemoryDevice,
    calls: Mutex<Vec<Call>>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Call {
    Write { block: u64 },
    Sync,
}

impl BlockDevice for Noting {
    fn geometry(&self) -> Geometry {
        self.inner.geometry()
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<()> {
        self.inner.read_at(offset, buf)
    }

    fn write_at(&self, offset: u64, bufs: &[IoSlice<'_>]) -> io::Result<()> {
        self.calls.lock().push(Call::Write { block: offset / BLOCK as u64 });
        self.inner.write_at(offset, bufs)
    }

    fn barrier(&self) -> io::Result<()> {
        self.sync()
    }

    fn sync(&self) -> io::Result<()> {
        self.calls.lock().push(Call::Sync);
        self.inner.sync()
    }

    fn discard(&self, offset: u64, len: u64) -> io::Result<()> {
        self.inner.discard(offset, len)
    }
}

/// Otherwise, writes after a journal was given up could be overwritten from it after a crash.
#[test]
fn that_a_journal_was_given_up_is_durable_before_anything_else_is_written() {
    let home =
        Arc::new(Noting { inner: MemoryDevice::new(1 << 20), calls: Mutex::new(Vec::new()) });
    let journal = Arc::new(FaultDevice::new(MemoryDevice::new(20 * BLOCK as u64), 1));
    let paired = PairedDevice::new(Arc::clone(&home), Arc::clone(&journal) as Arc<dyn BlockDevice>);
    let options = MkfsOptions { cg_blocks: 256, ..MkfsOptions::default() };
    let superblock: Superblock = mkfs::make(&paired, &options).expect("made");
    let medium = medium(&paired, &superblock).expect("its own");
    let (journaled, doubt) = JournaledDevice::open_with(paired, medium, &superblock);
    assert_eq!(doubt, None);
    assert!(put_atomic(&journaled, &HOME, 1).expect("written"));
    let target = Target::writes();
    journal.arm(Fault { target, strike: Strike::Always, effect: Effect::IO_ERROR });
    home.calls.lock().clear();
    put(&journaled, HOME[0], 2).expect("written");
    assert_eq!(journaled.stats().state, JournalState::Off);
    let calls = home.calls.lock().clone();
    let given_up = [Call::Write { block: 0 }, Call::Sync, Call::Write { block: HOME[0] }];
    assert!(calls.ends_with(&given_up), "{calls:?}");
    assert_eq!(
        calls[calls.len() - 4],
        Call::Sync,
        "all of the journal is at home before: {calls:?}"
    );
}
