use super::*;
use crate::device::MemoryDevice;
use crate::mkfs::{self, MkfsOptions};
use crate::units::FileBlock;
use crate::vfs::read_superblock;

#[test]
fn a_log_that_would_need_too_much_memory_says_that_it_does_not_tell_everything() {
    let device = MemoryDevice::new(1 << 30);
    mkfs::make(&device, &MkfsOptions::default()).expect("made");
    let superblock = read_superblock(&device).expect("there");
    let layout = Layout::new(&superblock);
    let intent_log = IntentLog::new(layout, superblock.checksum(), superblock.generation);
    let mut high_from = None;
    for position in 0..NOTES_MAX as u64 + 1000 {
        intent_log.container(InodeNo(100), FileBlock(position), None);
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
    intent_log.begin(superblock.generation + 1);
    assert!(!intent_log.fill().is_high());
}
