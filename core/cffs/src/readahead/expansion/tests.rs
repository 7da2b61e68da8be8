use std::sync::Arc;
use std::thread;
use std::time::Duration;

use super::{CLUSTERS_MAX, Job, expand_after, extents_after};
use crate::clock::TestClock;
use crate::device::{BlockDevice, HoldDevice, MemoryDevice, RequestKind};
use crate::format::superblock::Compression;
use crate::mkfs::{self, MkfsOptions};
use crate::readahead::survey::Survey;
use crate::units::{BlockNo, FragNo, InodeNo};
use crate::vfs::{Caller, NewFile, NewKind, OpenOptions, Volume};

const FILES: u64 = 200;

fn open<D: BlockDevice + 'static>(device: &Arc<D>) -> Volume {
    let options =
        OpenOptions { epoch_interval: Duration::from_secs(3600), ..OpenOptions::default() };
    Volume::open(device.clone(), Arc::new(TestClock::default()), options).expect("open")
}

/// An empty volume with compression.
fn empty() -> MemoryDevice {
    let device = MemoryDevice::new(64 << 20);
    let compression = Some(Compression::Zstd(1));
    mkfs::make(&device, &MkfsOptions { compression, ..MkfsOptions::default() }).expect("mkfs");
    device
}

/// Makes files that take a sixth of a cluster each.
fn make(volume: &Volume, files: u64, line: &str) -> Vec<InodeNo> {
    let file = NewFile { kind: NewKind::Regular, permissions: 0o644, uid: 0, gid: 0, times: None };
    let make = |number: u64| {
        let name = format!("file {number}");
        let ino =
            volume.make(&Caller::ROOT, InodeNo::ROOT, name.as_bytes(), &file).expect("made").ino;
        volume.write(&Caller::ROOT, ino, 0, contents(number, line).as_bytes()).expect("written");
        ino
    };
    (0..files).map(make).collect()
}

fn contents(number: u64, line: &str) -> String {
    format!("this is {line} of file {number}\n").repeat(400)
}

/// A volume with a directory of files.
fn device() -> Arc<MemoryDevice> {
    let device = Arc::new(empty());
    let volume = open(&device);
    make(&volume, FILES, "line").into_iter().for_each(|ino| volume.release(ino, 1));
    volume.close().expect("closed");
    device
}

/// The files in the order of the directory, each with its first cluster.
fn files(volume: &Volume) -> Vec<(InodeNo, FragNo)> {
    let mut files = Vec::new();
    let mut add = |name: &[u8]| {
        let ino = volume.lookup(InodeNo::ROOT, name).expect("found").ino;
        let vnode = volume.inodes().peek(ino).expect("in memory");
        let cluster = volume
            .inodes()
            .contents()
            .clusters(&vnode.state.read())
            .next()
            .expect("in a cluster")
            .start;
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

/// Regression: the earlier cluster at the place of one that was in flight was expanded, and stayed in memory
/// as the contents of the new one.
#[test]
fn a_cluster_in_flight_is_not_expanded() {
    let device = Arc::new(HoldDevice::new(empty()));
    let volume = open(&device);
    let inodes = volume.inodes();
    let files = make(&volume, 60, "text 0");
    let rewrite = |line: &str| {
        for (number, ino) in (0..).zip(&files) {
            let text = contents(number, line);
            volume.write(&Caller::ROOT, *ino, 0, text.as_bytes()).expect("written");
        }
    };
    for line in ["text 1", "text 2", "text 3"] {
        volume.sync().expect("synced");
        files.iter().for_each(|ino| volume.fetch(*ino).expect("fetched"));
        rewrite(line);
    }
    thread::scope(|scope| {
        let held = device.hold(RequestKind::Write);
        let syncing = scope.spawn(|| volume.sync());
        assert!(device.wait_for_request(Duration::from_secs(60)), "the epoch is in flight");
        let survey = Survey::new(inodes);
        let container = |ino| inodes.peek(ino).and_then(|vnode| vnode.state.read().container);
        let mut in_flight_and_in_memory = 0;
        for ino in &files {
            let job = Job {
                container: container(*ino).expect("it has a name"),
                ino: *ino,
                cluster: FragNo(0),
            };
            in_flight_and_in_memory += extents_after(&survey, &job)
                .into_iter()
                .flat_map(|(_, extent)| survey.blocks_of_run(extent.run()))
                .filter(|block| inodes.cache.resident(BlockNo(*block)))
                .count();
            expand_after(&survey, &job);
        }
        assert!(in_flight_and_in_memory > 0, "places of earlier clusters are used again");
        drop(held);
        syncing.join().expect("joined").expect("synced");
    });
    for (number, ino) in (0..).zip(files) {
        let mut bytes = vec![0; contents(number, "text 3").len()];
        volume.read(ino, 0, &mut bytes).expect("read");
        assert!(bytes == contents(number, "text 3").as_bytes(), "file {number}");
        volume.release(ino, 1);
    }
}
