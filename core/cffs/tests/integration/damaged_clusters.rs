//! A check of contents finds damaged clusters, as reads and scrubs do, and names all files that use one.
//! After the repair all files can be read.
//!
//! Regression: a check compared contents with the checksums of small files only. A repair removed these, and
//! the next check found nothing, but reads still failed; the clusters of large files were not checked.

use std::collections::BTreeSet;
use std::io::IoSlice;
use std::ops::ControlFlow;
use std::sync::Arc;

use cffs::device::fault::{Effect, Fault, Strike, Target};
use cffs::device::{BlockDevice, FaultDevice, MemoryDevice};
use cffs::fsck::{self, CheckOptions, Code, LossKind, Place, Repair, Report};
use cffs::units::{FragRun, InodeNo};
use cffs::vfs::{Caller, Marks, Volume};

use crate::clusters::{ROOT, device, is_sound, open, read, text, write};
use cffs_testing::setup::FILE;

const FRAGMENT_BYTES: u64 = 1024;
const FRAGMENT: usize = FRAGMENT_BYTES as usize;

/// A file as it was before the damage.
struct Before {
    name: String,
    ino: InodeNo,
    contents: Vec<u8>,
    clusters: BTreeSet<FragRun>,
}

struct Sample {
    device: Arc<MemoryDevice>,
    files: Vec<Before>,
}

fn new(volume: &Volume, name: &str) -> InodeNo {
    let ino = volume.make(&Caller::ROOT, ROOT, name.as_bytes(), &FILE).expect("made").ino;
    volume.release(ino, 1);
    ino
}

fn copy(volume: &Volume, source: InodeNo, name: &str) {
    let (target, mut done) = (new(volume, name), 0);
    while done < volume.attr(source).expect("its attributes").size {
        let left = u64::MAX - done;
        done += volume.copy(&Caller::ROOT, (source, done), (target, done), left).expect("copied");
    }
}

/// A closed and marked volume: 20 small files, one of which was removed, a large file, and copies.
fn sample() -> Sample {
    let device = device();
    let volume = open(&device);
    let small: Vec<InodeNo> =
        (0..20).map(|number| new(&volume, &format!("small {number}"))).collect();
    for (number, ino) in small.iter().enumerate() {
        write(&volume, *ino, 0, &text(number as u64, 5000));
    }
    volume.sync().expect("synced");
    let large = new(&volume, "large");
    write(&volume, large, 0, &text(77, 300_000));
    volume.sync().expect("synced");
    copy(&volume, small[3], "copy of small");
    copy(&volume, large, "copy of large");
    volume.unlink(&Caller::ROOT, ROOT, b"small 5").expect("unlinked");
    volume.sync().expect("synced");
    Marks::of(&volume).set("before").expect("marked");

    let mut names: Vec<String> = (0..20).map(|number| format!("small {number}")).collect();
    names.remove(5);
    names.extend(["large", "copy of small", "copy of large"].map(String::from));
    let look = |name: String| {
        let ino = volume.lookup(ROOT, name.as_bytes()).expect("found").ino;
        let pieces = volume.admin().explain(ino).expect("explained").pieces;
        assert!(!pieces.is_empty() && pieces.iter().all(|piece| piece.in_cluster), "{name}");
        let clusters = pieces.iter().map(|piece| piece.run).collect();
        let contents = read(&volume, ino);
        volume.release(ino, 1);
        Before { name, ino, contents, clusters }
    };
    let files: Vec<Before> = names.into_iter().map(look).collect();
    volume.close().expect("closed");
    is_sound(&device);
    Sample { device, files }
}

impl Sample {
    fn file(&self, name: &str) -> &Before {
        self.files.iter().find(|file| file.name == name).expect("a file")
    }

    /// The files with contents in a cluster, in the order of their numbers.
    fn users(&self, run: FragRun) -> Vec<&Before> {
        let mut users: Vec<_> =
            self.files.iter().filter(|file| file.clusters.contains(&run)).collect();
        users.sort_by_key(|file| file.ino);
        users
    }
}

fn check(device: &dyn BlockDevice, repair: Repair) -> Report {
    let options = CheckOptions { repair, force: true, contents: true, ..CheckOptions::default() };
    fsck::check(device, &options, &()).expect("checked")
}

/// The files that changed since the mark. The repair changed the sectors of their directory as well.
fn changed_files(volume: &Volume) -> BTreeSet<String> {
    let mut listed = BTreeSet::new();
    let all = Marks::of(volume).changes(ROOT, "before", &mut |change| {
        listed.insert(String::from_utf8_lossy(change.path).into_owned());
        ControlFlow::Continue(())
    });
    all.expect("listed");
    listed.remove("");
    listed
}

fn scrub(volume: &Volume) -> Vec<String> {
    volume.admin().scrub(&mut |_| ControlFlow::Continue(())).expect("scrubbed").problems
}

/// Tests that a check finds exactly the files that use the cluster, and that the repair makes all readable.
fn damage_and_repair(sample: &Sample, run: FragRun) {
    let device = Arc::new(MemoryDevice::from_image(sample.device.snapshot()));
    let at = run.start.0 * FRAGMENT_BYTES + 200;
    device.write_at(at, &[IoSlice::new(b"damaged!")]).expect("written");
    let users = sample.users(run);
    let expected: Vec<_> =
        users.iter().map(|file| (Code::Contents, Place::Inode(file.ino))).collect();
    let lost: BTreeSet<Vec<u8>> =
        users.iter().map(|file| format!("/{}", file.name).into_bytes()).collect();

    for (repair, exit_code) in [(Repair::No, 4), (Repair::Preen, 4), (Repair::Yes, 1)] {
        let report = check(&*device, repair);
        let found: Vec<_> = report.problems.iter().map(|p| (p.code, p.place)).collect();
        assert_eq!(found, expected, "{repair:?}");
        assert_eq!(report.exit_code(), exit_code, "{repair:?}");
        assert!(report.losses.iter().all(|loss| loss.kind == LossKind::Contents));
        let named: BTreeSet<_> = report.losses.into_iter().map(|loss| loss.path).collect();
        assert_eq!(named, lost, "{repair:?}");
    }
    is_sound(&device);

    let volume = open(&device);
    assert_eq!(scrub(&volume), Vec::<String>::new());
    let names: BTreeSet<String> = users.iter().map(|file| file.name.clone()).collect();
    assert_eq!(changed_files(&volume), names);
    for file in &sample.files {
        let contents = read(&volume, file.ino);
        assert_eq!(contents.len(), file.contents.len(), "{}", file.name);
        let parts = || contents.chunks(FRAGMENT).zip(file.contents.chunks(FRAGMENT));
        let kept = parts().filter(|(now, before)| now == before).count();
        let zeros = parts().filter(|(now, _)| now.iter().all(|byte| *byte == 0)).count();
        assert_eq!(kept + zeros, parts().count(), "{}", file.name);
        assert_eq!(zeros > 0, names.contains(&file.name), "{}", file.name);
        assert_eq!(kept > 0, file.clusters.len() > 1 || zeros == 0, "{}", file.name);
        // The files can be changed, too.
        write(&volume, file.ino, 100, b"new");
    }
    volume.sync().expect("synced");
    assert_eq!(scrub(&volume), Vec::<String>::new());
    volume.close().expect("closed");
    is_sound(&device);
}

#[test]
fn a_repair_names_all_files_with_contents_in_a_damaged_cluster_and_makes_them_readable() {
    let sample = sample();
    let [small, large] = ["small 3", "large"].map(|name| sample.file(name));
    let first = *small.clusters.first().expect("a cluster");
    let users: Vec<&str> = sample.users(first).iter().map(|file| &*file.name).collect();
    assert!(users.contains(&"copy of small") && users.len() > 3, "{users:?}");
    damage_and_repair(&sample, first);

    assert!(large.clusters.len() > 1);
    for run in &large.clusters {
        let users: Vec<&str> = sample.users(*run).iter().map(|file| &*file.name).collect();
        assert_eq!(users, ["large", "copy of large"]);
    }
    damage_and_repair(&sample, *large.clusters.last().expect("a cluster"));
}

/// The contents may be read another day, so the files keep the cluster.
#[test]
fn a_cluster_that_cannot_be_read_is_not_taken_from_its_files() {
    let sample = sample();
    for name in ["small 3", "large"] {
        let run = *sample.file(name).clusters.first().expect("a cluster");
        let start = run.start.0 * FRAGMENT_BYTES;
        let device = Arc::new(MemoryDevice::from_image(sample.device.snapshot()));
        let faulty = FaultDevice::new(Arc::clone(&device), 1);
        let target = Target::reads().within(start..start + 1);
        faulty.arm(Fault { target, strike: Strike::Always, effect: Effect::IO_ERROR });
        let report = check(&faulty, Repair::Yes);
        assert_eq!((report.exit_code(), report.unreadable_sectors), (4, 1), "{name}");
        is_sound(&device);
        let volume = open(&device);
        for file in &sample.files {
            assert!(read(&volume, file.ino) == file.contents, "{}", file.name);
        }
        volume.close().expect("closed");
    }
}
