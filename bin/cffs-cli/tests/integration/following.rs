//! Mounts that follow another program's changes to a volume in an object store.

use std::fs::{self, File};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant, SystemTime};

use crate::harness::{Scratch, can_mount, fail, succeed};

const ESTALE: i32 = 116;
const EROFS: i32 = 30;
/// How long a follower with an interval of one second may take. It takes two seconds on an idle machine.
const PATIENCE: Duration = Duration::from_secs(60);
/// More than the kernel reads ahead.
const LARGE: usize = 24 << 20;

/// A volume in a directory, mounted for writing, and mounted again to follow the changes.
struct Two {
    scratch: Scratch,
    url: String,
}

impl Two {
    fn new() -> Two {
        let scratch = Scratch::new();
        let url = format!("file://{}", scratch.path().join("tree").display());
        let two = Two { scratch, url };
        succeed(&mut two.run(&["mkfs", "--size", "1G", &two.url]));
        fs::create_dir_all(two.follower()).expect("made");
        // Never clean, so that the table from numbers to inodes in the store is out of date.
        two.mount("clean=never", &two.writer());
        two
    }

    fn run(&self, arguments: &[&str]) -> Command {
        let mut command = self.scratch.cffs([]);
        command.args(arguments);
        command
    }

    fn mount(&self, options: &str, at: &Path) {
        let options = format!("{options},{}", self.scratch.log_option());
        succeed(&mut self.run(&["mount", "-o", &options, &self.url, at.to_str().expect("UTF-8")]));
    }

    fn writer(&self) -> PathBuf {
        self.scratch.mountpoint()
    }

    fn follower(&self) -> PathBuf {
        self.scratch.path().join("follower")
    }

    /// Writes a file, and makes everything durable.
    fn write(&self, name: &str, contents: &[u8]) {
        fs::write(self.writer().join(name), contents).expect("written");
        self.sync();
    }

    fn sync(&self) {
        succeed(self.scratch.cffs(["sync"]).arg(self.writer()));
    }

    /// The counters of the follower.
    fn stats(&self) -> serde_json::Value {
        let at = self.follower();
        let stats = succeed(&mut self.run(&["stats", "--json", at.to_str().expect("UTF-8")]));
        serde_json::from_str(&stats).expect("it is JSON")
    }

    fn umount(&self) {
        succeed(self.scratch.cffs(["umount"]).arg(self.follower()));
        self.scratch.umount();
    }
}

impl Drop for Two {
    /// Removes the mount even after a failing test; the scratch directory removes the writer's mount.
    fn drop(&mut self) {
        let _ = self.scratch.cffs(["umount", "-l"]).arg(self.follower()).output();
    }
}

fn wait_for(what: &str, is_so: impl Fn() -> bool) {
    let began = Instant::now();
    while !is_so() {
        assert!(began.elapsed() < PATIENCE, "{what}");
        thread::sleep(Duration::from_millis(50));
    }
}

fn read_at(file: &File, offset: u64) -> Result<u8, Option<i32>> {
    let mut byte = [0];
    file.read_exact_at(&mut byte, offset).map_err(|error| error.raw_os_error())?;
    Ok(byte[0])
}

/// Changes contents, but restores size and modification time.
fn rewrite_unnoticed(path: &Path, contents: &[u8]) {
    let before = fs::metadata(path).expect("there");
    let file = File::options().write(true).open(path).expect("there");
    assert_eq!(before.size(), contents.len() as u64);
    file.write_all_at(contents, 0).expect("written");
    file.set_modified(before.modified().expect("known")).expect("set");
    file.sync_all().expect("synced");
}

#[test]
fn a_mount_moves_with_what_another_writes() {
    if !can_mount() {
        return;
    }
    let two = Two::new();
    let (from, to) = (two.writer(), two.follower());
    fs::create_dir_all(from.join("d/e")).expect("made");
    two.write("d/e/open", &[1; 4096]);
    two.write("d/e/closed", &[1; 4096]);
    two.mount("follow=1", &to);
    let refused = fs::write(to.join("x"), b"x").expect_err("read-only");
    assert_eq!(refused.raw_os_error(), Some(EROFS), "{refused}");

    // New names and contents, in directories that were listed before.
    assert_eq!(fs::read_dir(to.join("d/e")).expect("listed").count(), 2);
    let open = File::open(to.join("d/e/open")).expect("there");
    assert_eq!(read_at(&open, 0), Ok(1));
    assert_eq!(fs::read(to.join("d/e/closed")).expect("there"), [1; 4096]);
    assert!(!to.join("d/e/new").exists());
    two.write("d/e/new", b"new");
    wait_for("a new name", || to.join("d/e/new").exists());
    assert_eq!(fs::read(to.join("d/e/new")).expect("there"), b"new");
    assert_eq!(fs::read_dir(to.join("d/e")).expect("listed").count(), 3);

    // Contents in the kernel's cache, of an open file and of a closed one. Each is synced separately, so the
    // follower may show a version with only the first change.
    rewrite_unnoticed(&from.join("d/e/open"), &[2; 4096]);
    rewrite_unnoticed(&from.join("d/e/closed"), &[2; 4096]);
    wait_for("contents of an open file", || read_at(&open, 0) == Ok(2));
    let closed = || fs::read(to.join("d/e/closed")).expect("there");
    wait_for("contents of a file that was closed", || closed() == [2; 4096]);

    // Unchanged contents stay in the kernel's cache. A new name shows that the previous version was shown
    // completely. The last sync of the open file may have come after it was read, so it is read again first.
    // Other programs of this machine may drop the kernel's caches: then the next version shows the change.
    let show = |name: String| {
        two.write(&name, b"other contents");
        wait_for("another file", || to.join(&name).exists());
    };
    let reads = || two.stats()["requests"]["read"].as_u64().expect("there were some");
    show("unrelated".into());
    let stays_cached = (0..3).any(|version| {
        assert_eq!(read_at(&open, 0), Ok(2));
        let before = reads();
        show(format!("other{version}"));
        show(format!("another{version}"));
        assert_eq!(read_at(&open, 0), Ok(2));
        reads() == before
    });
    assert!(stays_cached, "each version drops contents that it did not change");

    // Removed files.
    fs::remove_file(from.join("d/e/new")).expect("removed");
    fs::rename(from.join("d/e/closed"), from.join("moved")).expect("renamed");
    two.sync();
    wait_for("a name that is gone", || !to.join("d/e/new").exists());
    wait_for("a name that moved", || to.join("moved").exists());
    assert!(!to.join("d/e/closed").exists());
    drop(open);
    two.umount();
}

/// A file stays open across versions, even if it was created after the volume was last clean; a replaced one
/// returns an error, and nothing of the file that now has its number.
#[test]
fn open_files_are_read_on_or_are_stale() {
    if !can_mount() {
        return;
    }
    let two = Two::new();
    let (from, to) = (two.writer(), two.follower());
    two.mount("follow=1", &to);
    let mut contents = vec![1; LARGE];
    contents[LARGE - 1] = 2;
    two.write("stays", &contents);
    two.write("goes", &contents);
    wait_for("the files", || to.join("goes").exists());
    let open = |name: &str| {
        let file = File::open(to.join(name)).expect("there");
        assert_eq!(read_at(&file, 0), Ok(1));
        file
    };
    let (stays, goes) = (open("stays"), open("goes"));
    let number = fs::metadata(to.join("goes")).expect("there").ino();
    fs::remove_file(from.join("goes")).expect("removed");
    // The number is reused by another file.
    contents.fill(9);
    let is_reused = (0..64).any(|count| {
        let path = from.join(format!("other{count}"));
        fs::write(&path, &contents[..LARGE / 8]).expect("written");
        fs::metadata(&path).expect("there").ino() == number
    });
    two.write("last", b"last");
    wait_for("the next version", || to.join("last").exists());
    assert_eq!(read_at(&stays, LARGE as u64 - 1), Ok(2), "its number is not in the table yet");
    let last = LARGE as u64 / 8 - 1;
    for offset in [last, LARGE as u64 - 1] {
        let read = read_at(&goes, offset);
        assert!(matches!(read, Err(Some(ESTALE)) | Ok(1)), "{read:?}, reused: {is_reused}");
    }
    assert_eq!(read_at(&goes, LARGE as u64 - 1), Err(Some(ESTALE)));
    drop((stays, goes));
    two.umount();
}

/// While nothing happens, a follower makes one request per interval.
#[test]
fn an_idle_follower_asks_once_in_each_interval() {
    if !can_mount() {
        return;
    }
    let two = Two::new();
    two.write("file", b"contents");
    two.mount("follow=1", &two.follower());
    assert_eq!(fs::read(two.follower().join("file")).expect("there"), b"contents");
    let counts = || {
        let stats = two.stats();
        let count = |name: &str| stats["store"][name].as_u64().expect(name);
        [count("gets"), count("lists"), count("puts")]
    };
    let (began, before) = (SystemTime::now(), counts());
    wait_for("requests", || counts()[0] >= before[0] + 3);
    let after = counts();
    let intervals = began.elapsed().expect("time goes on").as_secs();
    assert!(after[0] - before[0] <= intervals + 2, "{before:?} {after:?} in {intervals} s");
    assert_eq!(after[1..], before[1..]);
    two.umount();
}

#[test]
fn sources_that_cannot_be_followed() {
    let scratch = Scratch::new();
    let url = format!("file://{}", scratch.path().join("tree").display());
    succeed(scratch.cffs(["mkfs", "--size", "64M"]).arg(&url));
    let image = scratch.image();
    let refused = |options: &str, source: &Path, more: &[&str], why: &str| {
        let mut mount = scratch.cffs(["mount", "-o", options]);
        let said = fail(32, mount.arg(source).arg(scratch.mountpoint()).args(more));
        assert!(said.contains(why), "{said}");
    };
    refused("follow", &image, &[], "'follow' is for a volume in an object store");
    let url = Path::new(&url);
    refused("follow,rw", url, &[], "leave out 'rw'");
    refused("follow=0", url, &[], "'follow' is a number of seconds from 1 to 3600, not '0'");
    refused("follow", url, &["--nfs", "127.0.0.1:0"], "leave out --nfs or 'follow'");
    let version = format!("{}@monday", url.display());
    refused("follow", Path::new(&version), &[], "version monday does not change");
}
