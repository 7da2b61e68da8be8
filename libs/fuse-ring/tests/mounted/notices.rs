//! Notifications to the kernel. Every time to live is an hour here, so that the kernel learns of changes
//! only from notifications.

use std::fs;
use std::os::unix::fs::MetadataExt;

use fuse_ring::protocol::NodeId;
use fuse_ring::{CachedData, CachedName};

use crate::harness::Setup;
use crate::on_both_transports;
use crate::tree::Tree;

on_both_transports! {
    names_are_invalidated
    deletions_are_seen
    attributes_and_data_are_invalidated
    data_is_stored
    notices_after_the_end_fail
}

fn names_are_invalidated(setup: Setup) {
    for how in [CachedName::Invalidate, CachedName::Expire] {
        let tree = Tree::default();
        let mounted = setup.mount(tree.clone());
        let path = mounted.path.join("file");
        assert!(!path.exists());
        tree.put(b"file", b"x");
        assert!(!path.exists(), "the kernel remembers the absence");
        assert!(mounted.notifier.inval_entry(NodeId::ROOT, b"file", how).unwrap());
        assert!(path.exists());
        mounted.end().unwrap();
    }
}

fn deletions_are_seen(setup: Setup) {
    let tree = Tree::default();
    let mounted = setup.mount(tree.clone());
    let path = mounted.path.join("file");
    let node = tree.put(b"file", b"x");
    assert!(path.exists());
    tree.take(b"file").unwrap();
    assert!(path.exists(), "the kernel remembers the name");
    assert!(mounted.notifier.delete(NodeId::ROOT, node, b"file").unwrap());
    assert!(!path.exists());
    assert!(!mounted.notifier.delete(NodeId::ROOT, node, b"other").unwrap(), "unknown");
    mounted.end().unwrap();
}

fn attributes_and_data_are_invalidated(setup: Setup) {
    let tree = Tree::default();
    let mounted = setup.mount(tree.clone());
    let path = mounted.path.join("file");
    let node = tree.put(b"file", b"before");
    let file = fs::File::open(&path).unwrap();
    let read = || {
        let mut data = [0; 10];
        let len = std::os::unix::fs::FileExt::read_at(&file, &mut data, 0).unwrap();
        data[..len].to_vec()
    };
    assert_eq!(read(), b"before");
    tree.put(b"file", b"change");
    assert_eq!(read(), b"before", "from the page cache");
    assert!(mounted.notifier.inval_inode(node, CachedData::Keep).unwrap());
    assert_eq!(read(), b"before", "the data was to be kept");
    assert!(mounted.notifier.inval_inode(node, CachedData::Range(0, 6)).unwrap());
    assert_eq!(read(), b"change");
    tree.put(b"file", b"longer now");
    assert!(mounted.notifier.inval_inode(node, CachedData::From(0)).unwrap());
    assert_eq!((fs::metadata(&path).unwrap().size(), read()), (10, b"longer now".to_vec()));
    assert!(!mounted.notifier.inval_inode(NodeId(999), CachedData::Keep).unwrap(), "unknown");
    drop(file);
    mounted.end().unwrap();
}

fn data_is_stored(setup: Setup) {
    let tree = Tree::default();
    let mounted = setup.mount(tree.clone());
    let path = mounted.path.join("file");
    let node = tree.put(b"file", &[b'a'; 8192]);
    let file = fs::File::open(&path).unwrap();
    assert!(mounted.notifier.store(node, 0, &[b'b'; 8192]).unwrap());
    let mut data = [0; 8192];
    std::os::unix::fs::FileExt::read_exact_at(&file, &mut data, 0).unwrap();
    assert!(data.iter().all(|&byte| byte == b'b'), "not what the handler has");
    assert_eq!(tree.seen().largest.0, 0, "the handler was not called");
    drop(file);
    mounted.end().unwrap();
}

fn notices_after_the_end_fail(setup: Setup) {
    let mounted = setup.mount(Tree::default());
    let notifier = mounted.notifier.clone();
    mounted.end().unwrap();
    assert!(notifier.inval_inode(NodeId::ROOT, CachedData::Keep).is_err());
}
