use super::*;
use crate::clock::Timestamp;
use crate::format::inode::FileType;
use crate::inode::Inode;
use crate::units::{Container, SectorIndex};

const VNODES_MAX: usize = 16 * PARTS;

/// A vnode that equals the device, which has it in the root directory.
fn vnode(number: u64) -> Arc<Vnode> {
    let (ino, now) = (InodeNo(number), Timestamp::default());
    let inode = Inode::new(ino, 1, FileType::Regular, InodeNo::ROOT, now);
    let container = Container { file: InodeNo::ROOT, sector: SectorIndex(0) };
    Arc::new(Vnode::new(inode, Some(container), true))
}

#[test]
fn an_inode_has_one_vnode() {
    let table = VnodeTable::new(VNODES_MAX);
    let first = table.insert(vnode(100));
    assert!(Arc::ptr_eq(&first, &table.insert(vnode(100))));
    assert!(table.get(InodeNo(100)).is_some_and(|vnode| Arc::ptr_eq(&first, &vnode)));
    table.remove(InodeNo(100));
    assert!(table.get(InodeNo(100)).is_none());
}

#[test]
fn what_is_used_stays_and_the_rest_is_bounded() {
    let table = VnodeTable::new(VNODES_MAX);
    let in_hand = table.insert(vnode(100));
    table.insert(vnode(101));
    for number in 1000..20_000 {
        table.insert(vnode(number));
        assert!(table.get(InodeNo(101)).is_some(), "forgotten after {number}");
        assert!(table.len() <= VNODES_MAX, "{} vnodes after {number}", table.len());
    }
    assert!(table.get(InodeNo(100)).is_some_and(|vnode| Arc::ptr_eq(&in_hand, &vnode)));
}

#[test]
fn what_is_all_used_is_bounded_as_well() {
    let table = VnodeTable::new(VNODES_MAX);
    for number in 1000..20_000 {
        table.insert(vnode(number));
        assert!(table.get(InodeNo(number)).is_some());
        assert!(table.len() <= VNODES_MAX, "{} vnodes after {number}", table.len());
    }
}
