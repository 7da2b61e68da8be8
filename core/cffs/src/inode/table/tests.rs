use super::*;
use crate::clock::Timestamp;
use crate::format::inode::FileType;
use crate::inode::{Inode, VnodeGuard};
use crate::units::{Container, SectorIndex};

/// The cache size with the smallest table.
const CACHE_BYTES: u64 = 4 << 20;

fn table() -> (VnodeTable, Arc<Memory>) {
    let memory = Arc::new(Memory::new(CACHE_BYTES, CACHE_BYTES));
    (VnodeTable::new(memory.clone(), EpochNo(0)), memory)
}

/// Enters a vnode as the store does.
fn enter(table: &VnodeTable, memory: &Arc<Memory>, number: u64) -> Arc<Vnode> {
    let vnode = vnode(number);
    VnodeGuard::new(&vnode).open_account(memory);
    let vnode = table.insert(vnode);
    table.make_room();
    vnode
}

/// A vnode that equals the device, which has it in the root directory.
fn vnode(number: u64) -> Arc<Vnode> {
    let (ino, now) = (InodeNo(number), Timestamp::default());
    let inode = Inode::new(ino, 1, FileType::Regular, InodeNo::ROOT, now);
    let container = Container { file: InodeNo::ROOT, sector: SectorIndex(0) };
    Arc::new(Vnode::new(inode, Some(container), true))
}

#[test]
fn an_inode_has_one_vnode() {
    let (table, memory) = table();
    let first = enter(&table, &memory, 100);
    let charged = memory.inode_bytes();
    assert!(Arc::ptr_eq(&first, &enter(&table, &memory, 100)));
    assert_eq!(memory.inode_bytes(), charged, "the other one is not charged");
    assert!(table.get(InodeNo(100)).is_some_and(|vnode| Arc::ptr_eq(&first, &vnode)));
    table.remove(InodeNo(100));
    assert!(table.get(InodeNo(100)).is_none());
    drop(first);
    assert_eq!(memory.inode_bytes(), 0);
}

#[test]
fn used_entries_stay_and_the_rest_is_bounded() {
    let (table, memory) = table();
    let in_hand = enter(&table, &memory, 100);
    enter(&table, &memory, 101);
    for number in 1000..20_000 {
        enter(&table, &memory, number);
        assert!(table.get(InodeNo(101)).is_some(), "forgotten after {number}");
        assert!(memory.inode_bytes() <= memory.inode_bytes_max(), "after {number}");
    }
    assert!(table.get(InodeNo(100)).is_some_and(|vnode| Arc::ptr_eq(&in_hand, &vnode)));
    assert!(table.len() > 500, "{} are left", table.len());
}

#[test]
fn used_entries_are_bounded_as_well() {
    let (table, memory) = table();
    for number in 1000..20_000 {
        enter(&table, &memory, number);
        assert!(table.get(InodeNo(number)).is_some());
        assert!(memory.inode_bytes() <= memory.inode_bytes_max(), "after {number}");
    }
}

#[test]
fn vnodes_in_use_do_not_cause_constant_sweeps() {
    let (table, memory) = table();
    let in_hand: Vec<_> = (1000..6000).map(|number| enter(&table, &memory, number)).collect();
    assert!(memory.inode_bytes() > memory.inode_bytes_max());
    let sweeps = table.rotor.load(Ordering::Relaxed) / (2 * PARTS);
    assert!((1..40).contains(&sweeps), "{sweeps} sweeps of all parts");
    drop(in_hand);
    (6000..9000).for_each(|number| drop(enter(&table, &memory, number)));
    assert!(memory.inode_bytes() <= memory.inode_bytes_max() * 9 / 8);
}
