use std::time::{Duration, Instant};

use cffs::clock::TestClock;
use cffs::device::MemoryDevice;
use cffs::mkfs::{self, MkfsOptions};
use cffs::vfs::types::{NewFile, NewKind};
use cffs::vfs::{Caller, OpenOptions};

use super::*;

const TOKEN: u64 = 5;

/// Ends a clone at its third name.
struct Stopper {
    cloning: Arc<Cloning>,
    seen: Mutex<Vec<Vec<u8>>>,
}

impl Observer for Stopper {
    fn changed(&self, change: Change<'_>) {
        let Change::Name(_, name) = change else { return };
        let mut seen = self.seen.lock().expect("not poisoned");
        seen.push(name.to_vec());
        if seen.len() == 3 {
            self.cloning.find(TOKEN, 0).expect("known").stop.store(true, Ordering::Release);
        }
    }

    fn broken(&self) {}
}

fn user(uid: u32) -> User {
    User::new(uid, uid, Vec::new())
}

#[test]
fn a_clone_ends_on_request_and_only_its_user_can_end_it() {
    let device = Arc::new(MemoryDevice::new(16 << 20));
    mkfs::make(&*device, &MkfsOptions::default()).expect("made");
    let clock = Arc::new(TestClock::default());
    let files =
        Files::new(Arc::new(cffs::open(device, clock, OpenOptions::default()).expect("opened")));
    files.make_dir("/tree").expect("made");
    (0..9).for_each(|number| files.write(format!("/tree/{number}"), b"x").expect("written"));
    let (volume, root) = (files.volume(), InodeNo::ROOT);
    let source = files.node("/tree").expect("found").ino();
    let cloning = Arc::new(Cloning::default());
    let ask = |ino, request, uid| {
        let observer = Stopper { cloning: Arc::clone(&cloning), seen: Mutex::default() };
        cloning.carry_out(volume, ino, request, user(uid), Box::new(observer))
    };
    let to = || CloneRequest::To(TOKEN, b"copy".to_vec());
    ask(root, to(), 0).expect_err("no source was named");
    ask(source, CloneRequest::From(TOKEN), 0).expect("named");
    ask(root, to(), 7).expect_err("another user's");
    ask(root, to(), 0).expect("begun");
    ask(root, to(), 0).expect_err("it has already begun");
    let begun = Instant::now();
    while cloning.is_running() {
        assert!(begun.elapsed() < Duration::from_secs(60), "it takes too long");
        std::thread::sleep(Duration::from_millis(5));
    }
    let status = cloning.status(TOKEN, 0).expect("known");
    assert_eq!((status.stage, status.failure), (Stage::Stopped, None));
    assert_eq!(files.read_dir("/copy").expect("listed").len(), 2);
    cloning.status(TOKEN, 7).expect_err("another user's");
    // Root may end the clones of others, and only root may.
    ask(source, CloneRequest::From(9), 7).expect("named");
    let is_stopped = || cloning.find(9, 7).expect("known").stop.load(Ordering::Acquire);
    ask(root, CloneRequest::Stop(9), 8).expect_err("another user's");
    assert!(!is_stopped());
    ask(root, CloneRequest::Stop(9), 0).expect("by root");
    assert!(is_stopped());
}

/// Regression: a file whose copy failed existed, but the kernel had cached that the name was missing.
#[test]
fn the_name_of_a_copy_is_reported_before_its_contents() {
    let device = Arc::new(MemoryDevice::new(16 << 20));
    mkfs::make(&*device, &MkfsOptions::default()).expect("made");
    let clock = Arc::new(TestClock::default());
    let files =
        Files::new(Arc::new(cffs::open(device, clock, OpenOptions::default()).expect("opened")));
    files.write("/file", b"contents").expect("written");
    let source = files.stat("/file").expect("found");
    let clone = Clone::new(TOKEN, 0, (source.ino, source.generation));
    clone.stop.store(true, Ordering::Release);
    let observer = Stopper { cloning: Arc::default(), seen: Mutex::default() };
    clone.end(clone.run(files.volume(), InodeNo::ROOT, b"copy", &user(0), &observer));
    assert_eq!(clone.status().stage, Stage::Stopped);
    assert_eq!(files.stat("/copy").expect("it stays").permissions, 0o700);
    assert_eq!(*observer.seen.lock().expect("not poisoned"), [b"copy"]);
}

fn add(cloning: &Cloning, token: u64, uid: u32) -> Result<()> {
    cloning.add(Clone::new(token, uid, (InodeNo::ROOT, 0)))
}

/// Regression: a user could remove the clones of others, and take all places.
#[test]
fn a_user_removes_its_own_clones_first_and_has_a_limit() {
    let cloning = Cloning::default();
    let most = CLONES_OF_USER_MAX as u64;
    add(&cloning, 100, 8).expect("added");
    for token in 0..=most {
        add(&cloning, token, 7).expect("added");
    }
    cloning.status(100, 8).expect("it stays");
    cloning.status(0, 7).expect_err("its place was needed");
    for token in 1..=most {
        cloning.begin(token, 7).expect("it stays");
    }
    add(&cloning, 50, 7).expect_err("all of the user's are running");
    add(&cloning, 101, 8).expect("another user's");
    // With many users, the oldest that is not running makes room.
    let others = CLONES_MAX as u64 - most - 2;
    for number in 0..others {
        add(&cloning, 0, 1000 + number as u32).expect("added");
    }
    add(&cloning, 0, 9).expect("added");
    cloning.status(100, 8).expect_err("its place was needed");
    cloning.status(101, 8).expect("it stays");
    assert_eq!(cloning.lock().len(), CLONES_MAX);
}

#[test]
fn the_longest_failure_fits_in_the_attribute() {
    let device = Arc::new(MemoryDevice::new(16 << 20));
    mkfs::make(&*device, &MkfsOptions::default()).expect("made");
    let clock = Arc::new(TestClock::default());
    let files =
        Files::new(Arc::new(cffs::open(device, clock, OpenOptions::default()).expect("opened")));
    let (volume, name) = (files.volume(), [1; 255]);
    let (kind, times) = (NewKind::Directory, None);
    let new = NewFile { kind, permissions: 0o755, uid: 0, gid: 0, times };
    let mut dirs = vec![InodeNo::ROOT];
    for _ in 0..18 {
        let dir = dirs[dirs.len() - 1];
        dirs.push(volume.make(&Caller::ROOT, dir, &name, &new).expect("made").ino);
    }
    let source = (dirs[1], volume.attr(dirs[1]).expect("there").generation);
    let clone = Clone::new(TOKEN, 0, source);
    let observer = Stopper { cloning: Arc::default(), seen: Mutex::new(vec![Vec::new(); 3]) };
    clone.end(clone.run(volume, InodeNo::ROOT, b"copy", &user(0), &observer));
    let status = clone.status().clone();
    let value = serde_json::json!(status).to_string();
    assert!((20_000..64 << 10).contains(&value.len()), "{} bytes", value.len());
    let failure = status.failure.expect("failed");
    assert!(failure.ends_with(": file name too long"), "{failure}");
}

#[test]
fn a_clone_counts_as_running_until_its_caller_has_the_result() {
    let cloning = Cloning::default();
    add(&cloning, TOKEN, 7).expect("added");
    assert!(!cloning.is_running());
    let clone = cloning.begin(TOKEN, 7).expect("begun");
    assert!(cloning.is_running());
    clone.end(Ok(Cloned::default()));
    assert!(cloning.is_running(), "its caller has not been told");
    assert_eq!(cloning.status(TOKEN, 7).expect("known").stage, Stage::Done);
    assert!(!cloning.is_running());
}

#[test]
fn each_request_can_be_read_back_from_its_attribute() {
    for request in [
        CloneRequest::From(7),
        CloneRequest::Stop(u64::MAX),
        CloneRequest::To(3, b"a name\xff with 3 spaces".to_vec()),
    ] {
        let value = request.to_value();
        let read = CloneRequest::from_attribute(CloneRequest::NAME.as_bytes(), &value);
        assert_eq!(read.expect("of a clone").expect("valid"), request);
    }
    let status = CloneRequest::status_name(42);
    assert_eq!(CloneRequest::asked_by(status.as_bytes()), Some(42));
    assert_eq!(CloneRequest::asked_by(b"system.cffs.clone"), None);
}

#[test]
fn other_values_are_refused() {
    for value in [
        &b""[..],
        b"from",
        b"from x",
        b"to 1",
        b"to 1 .",
        b"to 1 ..",
        b"from 1 name",
        b"begin 1",
        b"stop -1",
    ] {
        let read = CloneRequest::from_attribute(b"system.cffs.clone", value);
        assert!(read.expect("of a clone").is_err(), "{}", value.escape_ascii());
    }
    assert!(CloneRequest::from_attribute(b"user.clone", b"from 1").is_none());
}
