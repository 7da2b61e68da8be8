use std::sync::Arc;
use std::time::Duration;

use super::{CLUSTERS_MAX, Job, clusters_of, expand_after};
use crate::clock::TestClock;
use crate::device::MemoryDevice;
use crate::format::superblock::Compression;
use crate::mkfs::{self, MkfsOptions};
use crate::readahead::survey::Survey;
use crate::units::{FragNo, InodeNo};
use crate::vfs::{Caller, NewFile, NewKind, OpenOptions, Volume};

const FILES: u64 = 200;

fn open(device: &Arc<MemoryDevice>) -> Volume {
    let options =
        OpenOptions { epoch_interval: Duration::from_secs(3600), ..OpenOptions::default() };
    Volume::open(device.clone(), Arc::new(TestClock::default()), options).expect("open")
}

/// A volume with a directory of files that take a sixth of a cluster each.
fn device() -> Arc<MemoryDevice> {
    let device = Arc::new(MemoryDevice::new(64 << 20));
    let compression = Some(Compression::Zstd(1));
    mkfs::make(&*device, &MkfsOptions { compression, ..MkfsOptions::default() }).expect("mkfs");
    let volume = open(&device);
    let file = NewFile { kind: NewKind::Regular, permissions: 0o644, uid: 0, gid: 0, times: None };
    for number in 0..FILES {
        let name = format!("file {number}");
        let ino =
            volume.make(&Caller::ROOT, InodeNo::ROOT, name.as_bytes(), &file).expect("made").ino;
        let line = format!("this is line of file {number}\n");
        volume.write(&Caller::ROOT, ino, 0, line.repeat(400).as_bytes()).expect("written");
        volume.release(ino, 1);
    }
    volume.close().expect("closed");
    device
}

/// The files in the order of the directory, each with its first cluster.
fn files(volume: &Volume) -> Vec<(InodeNo, FragNo)> {
    let mut files = Vec::new();
    let mut add = |name: &[u8]| {
        let ino = volume.lookup(InodeNo::ROOT, name).expect("found").ino;
        let vnode = volume.inodes().peek(ino).expect("in memory");
        let cluster = clusters_of(&vnode.state.read()).next().expect("in a cluster").start;
        files.push((ino, cluster));
    };
    (0..FILES).for_each(|number| add(format!("file {number}").as_bytes()));
    files
}

#[test]
fn the_clusters_after_a_file_are_expanded_if_they_are_in_memory() {
    let volume = open(&device());
    let inodes = volume.inodes();
    let files = files(&volume);
    let mut clusters: Vec<FragNo> = files.iter().map(|(_, cluster)| *cluster).collect();
    clusters.dedup();
    assert!(clusters.len() > 2 * CLUSTERS_MAX, "{} clusters", clusters.len());
    let (ino, cluster) = files[0];
    let container = inodes.peek(ino).and_then(|vnode| vnode.state.read().container);
    let job = || Job { container: container.expect("it has a name"), ino, cluster };
    let expanded = |cluster: &FragNo| inodes.cache.expanded.get(*cluster).is_some();

    let read_before = inodes.cache.read_bytes();
    assert_eq!(expand_after(&Survey::new(inodes), &job()), None, "no contents are in memory");
    assert_eq!(inodes.cache.read_bytes(), read_before, "the device was not read");

    files.iter().for_each(|(ino, _)| volume.fetch(*ino).expect("fetched"));
    assert!(!clusters.iter().any(expanded), "a fetch expands nothing");
    let trigger = expand_after(&Survey::new(inodes), &job());
    assert_eq!(trigger, Some(clusters[1 + CLUSTERS_MAX / 2]), "the next job is due in the middle");
    assert!(clusters[1..=CLUSTERS_MAX].iter().all(expanded));
    assert!(!expanded(&clusters[CLUSTERS_MAX + 1]), "no more than the limit allows");
}
