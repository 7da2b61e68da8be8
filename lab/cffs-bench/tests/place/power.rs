//! Power cuts while files are packed: no file is damaged, and nothing is left behind.
//!
//! One volume is packed repeatedly, alternating between two orders. At random moments, the emulated disk with
//! a volatile cache returns a copy of its contents after a power cut. The copy is mounted, which recovers it;
//! each file is compared, and the file system's own program checks it.
//!
//! `PLACE_POWER_CUTS` sets the number of power cuts on each file system.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use cffs_bench::disk::{Profile, Stroke};
use cffs_bench::peer::Peer;
use cffs_bench::serve::media::Media;
use cffs_bench::serve::server::{DiskServer, LoopDevice};
use cffs_bench::workload::random::Random;
use cffs_place::pack::{Options, pack};
use cffs_place::tree;

use crate::trees::{PEERS, turn, write};

const CUTS_USUAL: u64 = 10;
const SIZE: u64 = 512 << 20;
const FILES: u64 = 150;

fn run(program: &str, arguments: &[&str]) {
    let output = Command::new(program).args(arguments).output().expect(program);
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{program} {arguments:?}: {said}");
}

/// A mount that ends when it is dropped.
struct Mounted(PathBuf);

impl Mounted {
    fn at(peer: Peer, device: &Path, directory: &Path) -> Mounted {
        let options = match peer {
            // The original volume is mounted as well.
            Peer::Xfs => "noatime,nouuid",
            _ => "noatime",
        };
        let (device, at) = (device.to_str().expect("UTF-8"), directory.to_str().expect("UTF-8"));
        run("mount", &["-t", peer.name(), "-o", options, device, at]);
        Mounted(directory.to_owned())
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        // A thread's panic may leave files open for a moment.
        let at = self.0.to_str().expect("UTF-8");
        let unmounted =
            Command::new("umount").arg(at).status().is_ok_and(|status| status.success());
        if !unmounted {
            let _ = Command::new("umount").args(["-l", at]).status();
        }
    }
}

fn make(peer: Peer, device: &Path) {
    let device = device.to_str().expect("UTF-8");
    match peer {
        Peer::Ext4 => run("mkfs.ext4", &["-q", "-F", "-E", "nodiscard", device]),
        Peer::Xfs => run("mkfs.xfs", &["-q", "-f", "-K", device]),
        _ => run("mkfs.btrfs", &["-q", "-f", "-K", device]),
    }
}

fn contents(directory: &Path) -> BTreeMap<String, Vec<u8>> {
    let entries = fs::read_dir(directory).expect("list").map(|entry| entry.expect("entry").path());
    let name = |path: &Path| path.file_name().expect("name").to_string_lossy().into_owned();
    entries.map(|path| (name(&path), fs::read(&path).expect("read"))).collect()
}

/// Packs in alternating orders, so that files always have to be moved.
fn pack_until(over: &AtomicBool, directory: &Path) -> u64 {
    let known = cffs_place::volume::Volume::of(directory).expect("known");
    let mut moved = 0;
    for round in 0.. {
        if over.load(Ordering::Relaxed) {
            break;
        }
        let (mut found, _) = tree::walk(directory, true, |_| {}).expect("walk");
        if round % 2 == 1 {
            found[0].files.reverse();
        }
        let groups = found.into_iter().map(|directory| directory.files).collect();
        moved += pack(&known, groups, &Options::default(), &|| {}, &|| false).expect("pack").moved;
    }
    moved
}

/// Checks the state that a power cut has left.
fn check(peer: Peer, copy: &Path, scratch: &Path, expected: &BTreeMap<String, Vec<u8>>, cut: u64) {
    let at = scratch.join("copy-mnt");
    let device =
        Command::new("losetup").args(["--find", "--show"]).arg(copy).output().expect("losetup");
    let device = PathBuf::from(String::from_utf8_lossy(&device.stdout).trim());
    let mounted = Mounted::at(peer, &device, &at);
    let found = contents(&at.join("d"));
    assert!(found.keys().eq(expected.keys()), "{peer}, cut {cut}: other names");
    for (name, bytes) in expected {
        assert!(found[name] == *bytes, "{peer}, cut {cut}: {name} is damaged");
    }
    drop(mounted);
    peer.check(&device).unwrap_or_else(|error| panic!("{peer}, cut {cut}: {error:#}"));
    run("losetup", &["--detach", device.to_str().expect("UTF-8")]);
}

fn cut_often(peer: Peer, cuts: u64) {
    let scratch = tempfile::tempdir_in("/dev/shm").expect("a directory");
    let [served, at, copy] = ["served", "mnt", "copy"].map(|name| scratch.path().join(name));
    for directory in [&served, &at, &scratch.path().join("copy-mnt")] {
        fs::create_dir(directory).expect("a directory");
    }
    let media = Media::open(&scratch.path().join("backing"), SIZE).expect("media").volatile();
    let server = DiskServer::start(Profile::None, Stroke::Whole, media, &served).expect("a disk");
    let device = LoopDevice::attach(server.file(), Profile::Hdd7200, server.request_bytes());
    let device = device.expect("a loop device");
    make(peer, device.path());
    let mounted = Mounted::at(peer, device.path(), &at);
    let directory = at.join("d");
    fs::create_dir(&directory).expect("a directory");
    let mut random = Random::new(5);
    for file in 0..FILES {
        write(&directory.join(format!("f{file:03}")), 3000 + random.below(20_000), &mut random);
        write(&at.join(format!("other{file:03}")), 1 + random.below(20_000), &mut random);
        if file % 10 == 9 {
            rustix::fs::syncfs(fs::File::open(&at).expect("open")).expect("syncfs");
        }
    }
    let expected = contents(&directory);
    let over = AtomicBool::new(false);
    let (moved, lost) = std::thread::scope(|scope| {
        let packing = scope.spawn(|| pack_until(&over, &directory));
        let lost = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            let mut lost = 0;
            for cut in 0..cuts {
                let until = server.pacer().counters().writes + random.below(200);
                while server.pacer().counters().writes < until && !packing.is_finished() {
                    std::thread::sleep(Duration::from_micros(100));
                }
                let summary = server.media().copy_after_cut(cut, &copy).expect("a power cut");
                lost += summary.lost_sectors;
                check(peer, &copy, scratch.path(), &expected, cut);
            }
            lost
        }));
        over.store(true, Ordering::Relaxed);
        let moved = packing.join().expect("packing");
        (moved, lost.unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
    });
    println!("{peer}: {cuts} power cuts, {lost} sectors lost, {moved} files moved meanwhile");
    assert!(moved > FILES && lost > 0, "{peer}: nothing was going on");
    drop(mounted);
    drop(device);
    server.stop().expect("stop the disk");
}

#[test]
fn a_power_cut_while_packing_damages_no_file() {
    let _turn = turn();
    if !rustix::process::geteuid().is_root() {
        eprintln!("not run: power cuts need volumes, which only root may mount");
        return;
    }
    let cuts = std::env::var("PLACE_POWER_CUTS").ok().and_then(|cuts| cuts.parse().ok());
    for peer in PEERS {
        cut_often(peer, cuts.unwrap_or(CUTS_USUAL));
    }
}
