//! The layout of a tree whose files were made durable a few at a time, as by clients of a server.

use super::*;
use crate::disk::Counters;

const FILE_BYTES: usize = 4096;

/// The number of calls of a server's clients in progress; they share an epoch.
const AT_ONCE: usize = 16;
const DIRS: usize = 60;
const FILES: usize = 6_000;

fn file_of(i: usize) -> (usize, String) {
    (i * DIRS / FILES, format!("file-{i:07}"))
}

struct Tree {
    dirs: Vec<InodeNo>,
    empty: Vec<InodeNo>,
    files: Vec<InodeNo>,
}

impl Tree {
    fn make(volume: &Volume) -> Tree {
        let dirs = |what: &str| -> Vec<InodeNo> {
            let make_one = |i| {
                make(volume, InodeNo::ROOT, &format!("{what}-{i}"), NewKind::Directory).unwrap()
            };
            let dirs: Vec<_> = (0..DIRS).map(make_one).collect();
            for some in dirs.chunks(AT_ONCE) {
                volume.sync_files(some, false).unwrap();
            }
            dirs
        };
        let (dirs, empty) = (dirs("tree"), dirs("new"));
        let files = create(volume, &dirs);
        Tree { dirs, empty, files }
    }

    fn write(&self, volume: &Volume) {
        for some in self.files.chunks(AT_ONCE) {
            for file in some {
                volume.write(&Caller::ROOT, *file, 0, &[7; FILE_BYTES]).unwrap();
            }
            volume.sync_files(some, false).unwrap();
        }
    }
}

fn create(volume: &Volume, dirs: &[InodeNo]) -> Vec<InodeNo> {
    let mut files = Vec::new();
    for first in (0..FILES).step_by(AT_ONCE) {
        let some: Vec<_> = (first..FILES.min(first + AT_ONCE))
            .map(|i| {
                let (dir, name) = file_of(i);
                make(volume, dirs[dir], &name, NewKind::Regular).unwrap()
            })
            .collect();
        volume.sync_files(&some, false).unwrap();
        files.extend(some);
    }
    files
}

/// Costs of reading all files cold, and of listing all names with their attributes. With `again`,
/// other files are created meanwhile, and all contents are written a second time.
fn cold(journal_bytes: u64, again: bool) -> [(f64, Counters); 2] {
    let plan = LibraryPlan { profile: Profile::Hdd7200, size: 1 << 30, journal_bytes, ..plan(1) };
    let disk = plan.disk(Peer::Cffs).unwrap();
    let open = || {
        Volume::open(
            disk.clone(),
            Arc::new(TestClock::default()),
            OpenOptions { atime: AtimeMode::Never, ..OpenOptions::default() },
        )
        .unwrap()
    };
    let volume = open();
    let tree = Tree::make(&volume);
    tree.write(&volume);
    if again {
        create(&volume, &tree.empty);
        tree.write(&volume);
    }
    volume.close().unwrap();
    let measured = |name: &str, work: &dyn Fn(&Volume)| {
        let volume = open();
        disk.power_cycle();
        let (before, started) = (disk.counters(), disk.now());
        work(&volume);
        let seconds = disk.now().since(started).as_secs();
        let cost = disk.counters().since(&before);
        println!(
            "  {name}: {seconds:.3} s, {} requests, {:.1} MiB",
            cost.requests(),
            cost.read_bytes as f64 / 1048576.0
        );
        volume.close().unwrap();
        (seconds, cost)
    };
    let read = measured("read", &|volume| {
        let mut buf = [0; FILE_BYTES];
        for file in &tree.files {
            volume.find(*file).unwrap();
            assert_eq!(volume.read(*file, 0, &mut buf).unwrap(), FILE_BYTES);
            volume.release(*file, 1);
        }
    });
    let listed = measured("list", &|volume| {
        for dir in &tree.dirs {
            let mut names = 0;
            volume.find(*dir).unwrap();
            volume
                .read_dir(*dir, 0, true, &mut |_| {
                    names += 1;
                    true
                })
                .unwrap();
            assert_eq!(names, FILES / DIRS);
        }
    });
    [read, listed]
}

/// Prints figures of decision 004. With a journal for durable files, their final places are chosen for
/// reading.
#[test]
fn files_made_durable_a_few_at_a_time_are_placed_together() {
    for (again, seconds_max, requests_max) in [(false, 0.25, 20), (true, 0.35, 40)] {
        for journal_bytes in [0, 16 << 20] {
            println!("journal of {journal_bytes} bytes, written again: {again}");
            let [(seconds, read), (_, listed)] = cold(journal_bytes, again);
            assert!(listed.requests() <= 6, "{listed:?}");
            if journal_bytes > 0 {
                assert!(seconds <= seconds_max && read.requests() <= requests_max, "{read:?}");
                // A mostly empty run of a directory would be read with its files.
                let needed = (FILES * FILE_BYTES) as u64;
                assert!(read.read_bytes <= needed * 5 / 4 + (1 << 20), "{read:?}");
            }
        }
    }
}
