use std::sync::OnceLock;

use cffs::clock::SystemClock;
use cffs::device::fault::{Effect, Fault, Strike, Target};
use cffs::device::{BlockDevice, FaultDevice, MemoryDevice};
use cffs::mkfs::{self, MkfsOptions};
use cffs::vfs::Caller;
use cffs::vfs::types::{NewFile, NewKind, RenameMode};

use super::*;
use crate::shared::NoObserver;

const FILE: NewFile<'static> =
    NewFile { kind: NewKind::Regular, permissions: 0o644, uid: 0, gid: 0, times: None };

/// The most files created until one of them gets a reused number.
const NUMBERS: u32 = 10_000;

struct Never;

impl Newer for Never {
    fn newer(&mut self) -> std::result::Result<Option<Arc<Volume>>, String> {
        Ok(None)
    }
}

/// A volume that is written to.
fn written() -> (Arc<MemoryDevice>, Volume) {
    let device = Arc::new(MemoryDevice::new(16 << 20));
    mkfs::make(&device, &MkfsOptions::default()).expect("made");
    let volume = open(&device);
    (device, volume)
}

fn open(device: &Arc<MemoryDevice>) -> Volume {
    let device: Arc<dyn BlockDevice> = device.clone();
    cffs::open(device, Arc::new(SystemClock), Default::default()).expect("opened")
}

/// A read-only volume of the current state. A copy in memory replaces the objects of each sync.
fn version(device: &MemoryDevice, volume: &Volume) -> Arc<Volume> {
    volume.sync().expect("synced");
    let copy: Arc<dyn BlockDevice> = Arc::new(MemoryDevice::from_image(device.snapshot()));
    let options = cffs::vfs::types::OpenOptions { read_only: true, ..Default::default() };
    Arc::new(cffs::open(copy, Arc::new(SystemClock), options).expect("opened"))
}

fn following(first: Arc<Volume>) -> Following {
    notifying(first, NoObserver)
}

fn notifying(first: Arc<Volume>, caches: impl Observer + 'static) -> Following {
    let follow = Follow { every: Duration::from_secs(3600), source: Arc::new(Mutex::new(Never)) };
    Following::new(follow, Current::new(first), caches)
}

/// A kernel in which a program opens the file immediately before its contents are dropped.
#[derive(Clone, Default)]
struct OpensFirst {
    following: Arc<OnceLock<Arc<Following>>>,
    /// For each such opening, whether it kept the cache.
    kept: Arc<Mutex<Vec<bool>>>,
}

impl Observer for OpensFirst {
    fn changed(&self, change: Change<'_>) {
        let Change::Contents(ino, ..) = change else { return };
        let following = self.following.get().expect("set");
        let opened = following.open(ino).expect("opened");
        self.kept.lock().expect("no panic").push(opened.is_none());
        following.close(ino, opened.unwrap_or(FileHandle(0)));
    }

    fn broken(&self) {}
}

/// A kernel that records the files whose contents it was told to drop.
struct Records(Arc<Mutex<Vec<InodeNo>>>);

impl Observer for Records {
    fn changed(&self, change: Change<'_>) {
        if let Change::Contents(ino, ..) = change {
            self.0.lock().expect("no panic").push(ino);
        }
    }

    fn broken(&self) {}
}

/// Whether opening and closing a file keeps the kernel's cached contents.
fn keeps(following: &Following, ino: InodeNo) -> bool {
    let opened = following.open(ino).expect("opened");
    following.close(ino, opened.unwrap_or(FileHandle(0)));
    opened.is_none()
}

/// A lookup, as the adapter answers it.
fn look_up(following: &Following, dir: InodeNo, name: &[u8]) -> Result<Attr> {
    following
        .on(dir, |view| view.volume.lookup(dir, name).inspect(|attr| view.note(dir, name, attr)))
}

fn attr(following: &Following, ino: InodeNo) -> Result<Attr> {
    following.on(ino, |view| view.volume.attr(ino))
}

/// A name refers to another file with the same number: the inode that the kernel refers to is stale until the
/// name is looked up, and then it is the new file.
#[test]
fn a_number_reused_by_another_file_is_stale() {
    let (device, volume) = written();
    let first = volume.make(&Caller::ROOT, InodeNo::ROOT, b"f", &FILE).expect("made");
    volume.release(first.ino, 1);
    let following = following(version(&device, &volume));
    assert_eq!(look_up(&following, InodeNo::ROOT, b"f").expect("there").ino, first.ino);

    volume.unlink(&Caller::ROOT, InodeNo::ROOT, b"f").expect("removed");
    volume.close().expect("closed");
    let volume = open(&device);
    let make = || {
        let made = volume.make(&Caller::ROOT, InodeNo::ROOT, b"f", &FILE).expect("made");
        volume.release(made.ino, 1);
        if made.ino != first.ino {
            volume.unlink(&Caller::ROOT, InodeNo::ROOT, b"f").expect("removed");
        }
        made
    };
    let again = (0..NUMBERS).map(|_| make()).find(|made| made.ino == first.ino);
    let again = again.expect("the number is used again");
    assert_ne!(again.generation, first.generation);
    following.show(version(&device, &volume));
    assert!(matches!(attr(&following, first.ino), Err(Error::Stale)));
    assert!(matches!(following.open(first.ino), Err(Error::Stale)));
    let found = look_up(&following, InodeNo::ROOT, b"f").expect("there");
    assert_eq!(found.generation, again.generation);
    following.show(version(&device, &volume));
    assert_eq!(attr(&following, first.ino).expect("there").generation, again.generation);
}

/// A file below a directory that was moved: stale while the table of numbers is out of date, found when it is
/// not, and found by its new name in both cases.
#[test]
fn a_file_that_moved_is_found_by_its_new_name() {
    let (device, volume) = written();
    let dir = NewFile { kind: NewKind::Directory, permissions: 0o755, ..FILE };
    let from = volume.make(&Caller::ROOT, InodeNo::ROOT, b"from", &dir).expect("made").ino;
    let file = volume.make(&Caller::ROOT, from, b"f", &FILE).expect("made").ino;
    let following = following(version(&device, &volume));
    look_up(&following, InodeNo::ROOT, b"from").expect("there");
    look_up(&following, from, b"f").expect("there");
    volume
        .rename(&Caller::ROOT, InodeNo::ROOT, b"from", InodeNo::ROOT, b"to", RenameMode::Replace)
        .expect("renamed");
    following.show(version(&device, &volume));
    assert!(matches!(attr(&following, file), Err(Error::Stale)));
    look_up(&following, InodeNo::ROOT, b"to").expect("there");
    assert_eq!(attr(&following, file).expect("there").ino, file);

    volume
        .rename(&Caller::ROOT, InodeNo::ROOT, b"to", InodeNo::ROOT, b"again", RenameMode::Replace)
        .expect("renamed");
    assert!(volume.writer().checkpoints().mark_clean().expect("reached"));
    following.show(version(&device, &volume));
    assert_eq!(attr(&following, file).expect("there").ino, file);
}

/// The kernel keeps contents while the file is unchanged since they were last dropped.
#[test]
fn contents_of_an_unchanged_file_are_kept() {
    let (device, volume) = written();
    let file = volume.make(&Caller::ROOT, InodeNo::ROOT, b"f", &FILE).expect("made").ino;
    volume.write(&Caller::ROOT, file, 0, b"one").expect("written");
    let following = following(version(&device, &volume));
    look_up(&following, InodeNo::ROOT, b"f").expect("there");
    assert!(!keeps(&following, file), "nothing is known of what the kernel has");
    volume.make(&Caller::ROOT, InodeNo::ROOT, b"other", &FILE).expect("made");
    following.show(version(&device, &volume));
    assert_eq!(following.open(file).expect("opened"), None);
    volume.write(&Caller::ROOT, file, 0, b"two").expect("written");
    following.show(version(&device, &volume));
    assert!(keeps(&following, file), "dropped when the version came");
    following.close(file, FileHandle(0));
    volume.write(&Caller::ROOT, file, 0, b"six").expect("written");
    following.show(version(&device, &volume));
    assert!(!keeps(&following, file));
    following.forget(file, 1);
    assert!(following.nodes().is_empty(), "the kernel has forgotten it");
}

/// When a file is opened, an earlier answer that tells the kernel to drop contents may still be in flight.
/// The second answer must not keep them: the kernel may process it first.
#[test]
fn contents_are_not_kept_while_an_answer_that_drops_them_is_in_flight() {
    let (device, volume) = written();
    let file = volume.make(&Caller::ROOT, InodeNo::ROOT, b"f", &FILE).expect("made").ino;
    let following = following(version(&device, &volume));
    look_up(&following, InodeNo::ROOT, b"f").expect("there");
    assert!(!keeps(&following, file));
    volume.write(&Caller::ROOT, file, 0, b"one").expect("written");
    following.show(version(&device, &volume));
    let first = following.open(file).expect("opened").expect("contents are dropped");
    let second = following.open(file).expect("opened").expect("the first is in flight");
    following.used(file, FileHandle(0));
    assert!(following.open(file).expect("opened").is_some(), "another handle says nothing");
    following.used(file, first);
    assert_eq!(following.open(file).expect("opened"), None);
    following.used(file, second);
    assert_eq!(following.open(file).expect("opened"), None);
}

/// A program that opens a file after a new version was found, but before the kernel has dropped the older
/// contents, must not keep them.
#[test]
fn contents_are_not_kept_before_a_version_has_dropped_them() {
    let (device, volume) = written();
    let file = volume.make(&Caller::ROOT, InodeNo::ROOT, b"f", &FILE).expect("made").ino;
    let kernel = OpensFirst::default();
    let following = Arc::new(notifying(version(&device, &volume), kernel.clone()));
    assert!(kernel.following.set(Arc::clone(&following)).is_ok());
    look_up(&following, InodeNo::ROOT, b"f").expect("there");
    let open = following.open(file).expect("opened");
    following.used(file, open.expect("nothing is known of what the kernel has"));
    volume.write(&Caller::ROOT, file, 0, b"one").expect("written");
    following.show(version(&device, &volume));
    assert_eq!(*kernel.kept.lock().expect("no panic"), [false]);
    assert!(keeps(&following, file), "the notification has returned");
}

/// The store did not answer when a new version was found: the file may have changed, so the kernel drops its
/// contents. It keeps those of a file that no longer exists.
#[test]
fn contents_of_a_file_that_cannot_be_read_are_dropped() {
    let (device, volume) = written();
    let file = volume.make(&Caller::ROOT, InodeNo::ROOT, b"f", &FILE).expect("made").ino;
    let dropped = Arc::new(Mutex::new(Vec::new()));
    let following = notifying(version(&device, &volume), Records(Arc::clone(&dropped)));
    look_up(&following, InodeNo::ROOT, b"f").expect("there");
    let open = following.open(file).expect("opened");
    following.used(file, open.expect("nothing is known of what the kernel has"));

    volume.sync().expect("synced");
    let copy = MemoryDevice::from_image(device.snapshot());
    let store = Arc::new(FaultDevice::new(copy, 0));
    let options = cffs::vfs::types::OpenOptions { read_only: true, ..Default::default() };
    let unread = cffs::open(Arc::clone(&store) as _, Arc::new(SystemClock), options);
    let unread = Arc::new(unread.expect("opened"));
    store.arm(Fault { target: Target::reads(), strike: Strike::Always, effect: Effect::IO_ERROR });
    following.show(unread);
    assert!(store.struck() > 0);
    assert_eq!(*dropped.lock().expect("no panic"), [file]);

    volume.unlink(&Caller::ROOT, InodeNo::ROOT, b"f").expect("removed");
    following.show(version(&device, &volume));
    assert_eq!(*dropped.lock().expect("no panic"), [file]);
}
