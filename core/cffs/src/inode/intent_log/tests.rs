use super::*;
use crate::device::MemoryDevice;
use crate::mkfs::{self, MkfsOptions};
use crate::tuning::LARGE_DIR_BYTES;
use crate::units::FileBlock;
use crate::vfs::read_superblock;

/// The log of a new volume, and its generation.
fn intent_log() -> (IntentLog, u64) {
    let device = MemoryDevice::new(1 << 30);
    mkfs::make(&device, &MkfsOptions::default()).expect("made");
    let superblock = read_superblock(&device).expect("there");
    let (layout, checksum) = (Layout::new(&superblock), superblock.checksum());
    let generation = superblock.generation;
    (IntentLog::new(layout, checksum, generation, LARGE_DIR_BYTES), generation)
}

/// A large directory: with a hundred times the bytes of one that is noted as a whole.
fn large(ino: u64) -> Holder {
    Holder::of_size(InodeNo(ino), 100 * LARGE_DIR_BYTES)
}

impl IntentLog {
    fn pending(&self) -> Vec<Record> {
        self.state.lock().pending.clone()
    }

    /// Whether the log lists the directory as a whole.
    fn is_whole(&self, ino: u64) -> bool {
        self.pending().contains(&Record::Directory(InodeNo(ino)))
    }
}

#[test]
fn the_first_change_of_a_directory_decides_how_it_is_noted() {
    let (intent_log, generation) = intent_log();
    let small = Holder::of_size(InodeNo(100), LARGE_DIR_BYTES);
    intent_log.container(&small, FileBlock(0), None);
    intent_log.container(&Holder::of_size(InodeNo(100), 1 << 30), FileBlock(1), None);
    assert_eq!(intent_log.pending(), [Record::Directory(InodeNo(100))], "it was small");
    intent_log.begin(generation + 1);
    let large = Holder { entries: 70, subdirectories: 5, buckets: 3, ..large(100) };
    intent_log.container(&large, FileBlock(9), None);
    let later = Holder { entries: 71, ..large };
    intent_log.container(&later, FileBlock(9), None);
    intent_log.bucket(&later, 2);
    intent_log.bucket(&later, 2);
    let dir = InodeNo(100);
    let parts = [
        Record::LargeDirectory { dir, entries: 70, subdirectories: 5, buckets: 3 },
        Record::DirectoryBlock { dir, position: 9, names: 0, subdirectories: 0 },
        Record::Bucket { dir, bucket: 2 },
    ];
    assert_eq!(
        intent_log.pending(),
        parts,
        "each part is noted once, and the counts are the first"
    );
}

#[test]
fn a_directory_with_too_many_changes_is_noted_as_a_whole_once() {
    let (intent_log, _) = intent_log();
    for position in 0..256 {
        intent_log.container(&large(100), FileBlock(position), None);
        assert!(!intent_log.is_whole(100), "with {position} blocks");
    }
    intent_log.bucket(&large(100), 0);
    assert!(intent_log.is_whole(100));
    let before = intent_log.pending().len();
    intent_log.container(&large(100), FileBlock(300), None);
    intent_log.bucket(&large(100), 7);
    intent_log.nameless_entry(InodeNo(7), InodeNo(100), FileBlock(400));
    intent_log.index(InodeNo(100));
    assert_eq!(intent_log.pending().len(), before, "a directory that is noted needs no more");
    // A quarter of its blocks at most.
    let middle = Holder::of_size(InodeNo(200), 2 * LARGE_DIR_BYTES);
    for position in 0..8 {
        assert!(!intent_log.is_whole(200), "with {position} blocks");
        intent_log.container(&middle, FileBlock(position), None);
    }
    intent_log.container(&middle, FileBlock(8), None);
    assert!(intent_log.is_whole(200));
}

#[test]
fn an_index_that_is_made_or_dropped_lists_its_directory_as_a_whole() {
    let (intent_log, _) = intent_log();
    intent_log.container(&large(100), FileBlock(1), None);
    intent_log.index(InodeNo(100));
    assert!(intent_log.is_whole(100));
}

#[test]
fn parts_of_directories_take_a_quarter_of_the_log_at_most() {
    let (intent_log, _) = intent_log();
    for dir in 0..1000 {
        for position in 0..200 {
            intent_log.container(&large(1000 + dir), FileBlock(position), None);
        }
    }
    let is_part = |record: &&Record| !matches!(record, Record::Directory(_));
    let pending = intent_log.pending();
    let bytes: usize = pending.iter().filter(is_part).map(Record::encoded_bytes).sum();
    let sector_bytes = intent_log.layout.sector_bytes;
    let half = (intent_log.sectors_max() * sector_bytes) as usize;
    assert!((half / 4..half / 4 + 64).contains(&bytes), "{bytes} of {half}");
    assert!(!intent_log.is_whole(1000) && intent_log.is_whole(1999));
    let mut writes = WriteSet::default();
    intent_log.write(&mut writes);
    assert!(!intent_log.fill().is_high(), "{:?}", intent_log.fill());
}

#[test]
fn an_inode_without_a_name_is_noted_unless_its_block_is() {
    let (intent_log, _) = intent_log();
    let entry = |ino: u64, position| {
        intent_log.nameless_entry(InodeNo(ino), InodeNo(100), FileBlock(position));
        intent_log.pending().contains(&Record::Nameless(InodeNo(ino)))
    };
    assert!(entry(7, 1), "nothing of the directory is noted");
    intent_log.container(&large(100), FileBlock(1), None);
    assert!(!entry(8, 1), "the block is noted");
    assert!(entry(9, 2), "the block is not noted");
    intent_log.index(InodeNo(100));
    assert!(!entry(10, 3), "the directory is noted as a whole");
    assert!(intent_log.pending().iter().all(|record| *record != Record::Nameless(InodeNo(8))));
}

#[test]
fn a_log_that_would_need_too_much_memory_says_that_it_does_not_tell_everything() {
    let (intent_log, generation) = intent_log();
    let small = Holder::of_size(InodeNo(100), 0);
    let mut high_from = None;
    for position in 0..NOTES_MAX as u64 + 1000 {
        intent_log.container(&small, FileBlock(position), None);
        let fill = intent_log.fill();
        assert!(fill.notes <= NOTES_MAX, "{} notes", fill.notes);
        match high_from {
            None => high_from = fill.is_high().then_some(position as usize),
            Some(_) => assert!(fill.is_high(), "not after {position} blocks"),
        }
    }
    assert!(high_from.is_some_and(|from| from.abs_diff(NOTES_MAX / 2) < 4), "{high_from:?}");
    assert_eq!(intent_log.fill().notes, 0, "what is of no use is not kept");
    let mut writes = WriteSet::default();
    intent_log.write(&mut writes);
    assert!(intent_log.fill().incomplete);
    assert_eq!(writes.block_count(), 1, "the sector that says so");
    intent_log.begin(generation + 1);
    assert!(!intent_log.fill().is_high());
}
