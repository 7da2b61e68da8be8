use std::sync::Arc;

use cffs::clock::SystemClock;
use cffs::device::MemoryDevice;
use cffs::vfs::types::OpenOptions;

use super::*;

fn open(device: &Arc<MemoryDevice>, read_only: bool) -> Volume {
    let options = OpenOptions { read_only, ..OpenOptions::default() };
    cffs::open(Arc::clone(device) as Arc<_>, Arc::new(SystemClock), options).expect("open")
}

fn made() -> Arc<MemoryDevice> {
    let device = Arc::new(MemoryDevice::new(16 << 20));
    cffs::mkfs::make(&*device, &Default::default()).expect("made");
    device
}

#[test]
fn handles_survive_a_restart_and_no_forgery() {
    let device = made();
    let volume = open(&device, false);
    let root = volume.attr(InodeNo::ROOT).expect("root");
    let handle = Handles::of(&volume).expect("key").make(7, &root);
    volume.close().expect("closed");
    let volume = open(&device, false);
    let handles = Handles::of(&volume).expect("key");
    let target = Target { export: 7, ino: root.ino, generation: root.generation };
    assert_eq!(handles.read(&handle), Some(target));
    for bit in 0..handle.len() * 8 {
        let mut forged = handle;
        forged[bit / 8] ^= 1 << (bit % 8);
        assert_eq!(handles.read(&forged), None, "bit {bit}");
    }
    assert_eq!(handles.read(&handle[..35]), None);
    let other = Handles::of(&open(&made(), false)).expect("key");
    assert_eq!(other.read(&handle), None, "another volume's");
}

#[test]
fn a_read_only_volume_has_handles_too() {
    let device = made();
    let volume = open(&device, true);
    let handles = Handles::of(&volume).expect("a key for now");
    let root = volume.attr(InodeNo::ROOT).expect("root");
    assert!(handles.read(&handles.make(1, &root)).is_some());
}
