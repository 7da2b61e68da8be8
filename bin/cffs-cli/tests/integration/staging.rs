//! A mount with a staging directory whose server is repeatedly killed while in use.
//!
//! `CFFS_STAGING_KILLS` sets the number of kills, `CFFS_STAGING_SEED` their times and the files.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::Write;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::Mutex;
use std::thread;
use std::time::Duration;

use crate::harness::store_server::{SECRET, StoreServer};
use crate::harness::{Scratch, can_mount, succeed, wait_for};

const URL: &str = "s3://bucket/tree";
/// The delay of each request, so that syncs are staged at the next kill.
const DELAY_MS: &str = "15";
const WRITERS: u64 = 3;
const LONGEST_LIFE_MS: u64 = 400;

/// Pseudorandom numbers, the same in each run.
struct Numbers(u64);

impl Numbers {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (self.0 >> 33) % bound
    }
}

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok().map(|number| number.parse().expect("a number"))
}

/// The contents acknowledged by syncs, by path.
#[derive(Default)]
struct Acknowledged {
    /// New files with their contents.
    files: BTreeMap<String, Vec<u8>>,
    /// For each overwritten file: the last number whose sync returned, and the last number written.
    counters: BTreeMap<String, (u64, u64)>,
}

impl Acknowledged {
    /// Checks that a tree contains everything.
    fn check(&self, tree: &Path, when: &str) {
        for (name, contents) in &self.files {
            let found = fs::read(tree.join(name)).unwrap_or_else(|error| {
                panic!("{when}: {name}, which was synced, is lost: {error}")
            });
            assert!(found == *contents, "{when}: {name} has something else");
        }
        for (name, (synced, written)) in &self.counters {
            let found = fs::read(tree.join(name)).unwrap_or_default();
            let found = found.first_chunk().map_or(0, |bytes| u64::from_le_bytes(*bytes));
            let is_right = (*synced..=*written).contains(&found);
            assert!(is_right, "{when}: {name} has {found}, of {synced} to {written}");
        }
    }
}

/// Writes and syncs new files in a directory, and one that is overwritten, until that fails because the
/// server was killed.
fn work(mount: &Path, new: &str, writer: u64, mut numbers: Numbers, all: &Mutex<Acknowledged>) {
    let counter = format!("counters/{writer}");
    for number in 0.. {
        let is_new = numbers.below(3) > 0;
        let outcome = if is_new {
            let name = format!("{new}/{writer}-{number}");
            let len = numbers.below(60_000) as usize;
            let contents: Vec<u8> = (0..len).map(|at| (at as u64 * 7 + number) as u8).collect();
            let write = || {
                let mut file = File::create(mount.join(&name))?;
                file.write_all(&contents)?;
                file.sync_all()
            };
            write().map(|()| drop(all.lock().expect("whole").files.insert(name, contents)))
        } else {
            let value = {
                let mut all = all.lock().expect("whole");
                let entry = all.counters.entry(counter.clone()).or_default();
                entry.1 += 1;
                entry.1
            };
            let write = || {
                let mut options = File::options();
                let path = mount.join(&counter);
                let file = options.write(true).create(true).truncate(false).open(path)?;
                file.write_all_at(&value.to_le_bytes(), 0)?;
                file.sync_all()
            };
            write().map(|()| {
                let mut all = all.lock().expect("whole");
                all.counters.get_mut(&counter).expect("counted").0 = value;
            })
        };
        if outcome.is_err() {
            return;
        }
    }
}

/// Kills a server at a random moment while programs write and sync, and mounts the volume again with the same
/// directory: everything acknowledged exists, and also for other readers, since it was sent.
#[test]
fn kills_lose_nothing_that_was_acknowledged() {
    let scratch = Scratch::new();
    let Some(mut slow) = StoreServer::start(&scratch) else { return };
    let direct = slow.endpoint.clone();
    let line = slow.put_behind_line(&["--delay-ms", DELAY_MS]);
    let Some(_line) = line.filter(|_| can_mount()) else { return };
    let run = |arguments: &[&str]| slow.cffs(&scratch, SECRET, arguments);
    let elsewhere = |path: &str, to: &Path| {
        let mut export = run(&["export", "-q", URL, path, to.to_str().expect("UTF-8")]);
        succeed(export.env("AWS_ENDPOINT_URL", &direct));
    };
    succeed(&mut run(&["mkfs", "-q", "--size", "4G", URL]));
    let (directory, staging) = (scratch.mountpoint(), scratch.path().join("staging"));
    let (at, waits) = (directory.to_str().expect("UTF-8"), staging.to_str().expect("UTF-8"));
    let log = scratch.log_option();
    let start = || {
        let mut mount = run(&["mount", "-f", "-o", &log, "--staging", waits, URL, at]);
        let server = mount.stderr(Stdio::null()).spawn();
        wait_for(|| scratch.is_mounted());
        server.expect("it started")
    };
    let out = scratch.path().join("elsewhere");

    let kills = number("CFFS_STAGING_KILLS").unwrap_or(5);
    let seed = number("CFFS_STAGING_SEED").unwrap_or(1);
    let mut numbers = Numbers(seed);
    let mut all = Acknowledged::default();
    let mut waited = 0;
    let mut server = start();
    fs::create_dir(directory.join("counters")).expect("made");
    for kill in 1..=kills {
        let new = format!("new-{kill}");
        fs::create_dir(directory.join(&new)).expect("made");
        File::open(&directory).and_then(|root| root.sync_all()).expect("synced");
        let counters = all.counters.clone();
        let here = Mutex::new(Acknowledged { files: BTreeMap::new(), counters });
        thread::scope(|scope| {
            for writer in 0..WRITERS {
                let (directory, new, here) = (&directory, &new, &here);
                let numbers = Numbers(seed << 40 | kill << 8 | writer);
                scope.spawn(move || work(directory, new, writer, numbers, here));
            }
            thread::sleep(Duration::from_millis(numbers.below(LONGEST_LIFE_MS)));
            server.kill().expect("killed");
            server.wait().expect("it ends");
        });
        succeed(scratch.cffs(["umount", "-l"]).arg(&directory).env("LC_ALL", "C"));
        waited += records(&staging).len();

        let when = format!("kill {kill} with CFFS_STAGING_SEED={seed}");
        let here = here.into_inner().expect("whole");
        server = start();
        here.check(&directory, &format!("here after {when}"));
        fs::create_dir(&out).expect("made");
        for path in [&*new, "counters"] {
            elsewhere(&format!("/{path}"), &out.join(path));
        }
        here.check(&out, &format!("elsewhere after {when}"));
        fs::remove_dir_all(&out).expect("removed");
        all.files.extend(here.files);
        all.counters = here.counters;
    }
    scratch.umount();
    assert!(server.wait().expect("it ends").success());
    assert!(records(&staging).is_empty(), "a release waits until all is sent");
    elsewhere("/", &out);
    all.check(&out, "in the end");
    succeed(&mut run(&["fsck", "-n", "-f", "--contents", URL]));
    println!("{kills} kills, {} files synced; {waited} records waited", all.files.len());
    assert!(waited as u64 > kills, "hardly anything waits: {waited} records");
}

/// The records in a staging directory.
fn records(directory: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(directory).into_iter().flatten().flatten();
    let is_record = |path: &PathBuf| path.file_name().is_some_and(|name| name.len() == 20);
    entries.map(|entry| entry.path()).filter(is_record).collect()
}
