use cffs::clock::SystemClock;
use cffs::device::{BlockDevice, MemoryDevice};
use cffs::mkfs::{self, MkfsOptions};
use cffs::vfs::types::{NewFile, NewKind, RenameMode};

use super::*;

const FILE: NewFile<'static> =
    NewFile { kind: NewKind::Regular, permissions: 0o644, umask: 0, uid: 0, gid: 0 };

/// So many files are made until one of them has a number that was free, at most.
const NUMBERS: u32 = 10_000;

struct Never;

impl Newer for Never {
    fn newer(&mut self) -> std::result::Result<Option<Arc<Volume>>, String> {
        Ok(None)
    }
}

/// A volume that is written.
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

/// What it is now, for reading. A copy in memory stands for what an object store keeps of each sync.
fn version(device: &MemoryDevice, volume: &Volume) -> Arc<Volume> {
    volume.sync().expect("synced");
    let copy: Arc<dyn BlockDevice> = Arc::new(MemoryDevice::from_image(device.snapshot()));
    let options = cffs::vfs::types::OpenOptions { read_only: true, ..Default::default() };
    Arc::new(cffs::open(copy, Arc::new(SystemClock), options).expect("opened"))
}

fn following(first: Arc<Volume>) -> Following {
    let follow = Follow { every: Duration::from_secs(3600), source: Arc::new(Mutex::new(Never)) };
    Following::new(follow, Current::new(first), KernelCaches::default())
}

/// As the adapter answers a lookup.
fn look_up(following: &Following, dir: InodeNo, name: &[u8]) -> Result<Attr> {
    following
        .on(dir, |view| view.volume.lookup(dir, name).inspect(|attr| view.note(dir, name, attr)))
}

fn attr(following: &Following, ino: InodeNo) -> Result<Attr> {
    following.on(ino, |view| view.volume.attr(ino))
}

/// A name leads to another file of the same number: the one that the kernel knows is stale until the name is
/// looked up, and then it is the new one.
#[test]
fn a_number_that_another_file_has_is_stale() {
    let (device, volume) = written();
    let first = volume.make(InodeNo::ROOT, b"f", &FILE).expect("made");
    volume.release(first.ino, 1);
    let following = following(version(&device, &volume));
    assert_eq!(look_up(&following, InodeNo::ROOT, b"f").expect("there").ino, first.ino);

    volume.unlink(InodeNo::ROOT, b"f").expect("removed");
    volume.close().expect("closed");
    let volume = open(&device);
    let make = || {
        let made = volume.make(InodeNo::ROOT, b"f", &FILE).expect("made");
        volume.release(made.ino, 1);
        if made.ino != first.ino {
            volume.unlink(InodeNo::ROOT, b"f").expect("removed");
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

/// A file below a directory that moved: stale while the table of numbers is behind, found when it is not, and
/// by its new name in either case.
#[test]
fn a_file_that_moved_is_found_by_its_new_name() {
    let (device, volume) = written();
    let dir = NewFile { kind: NewKind::Directory, permissions: 0o755, ..FILE };
    let from = volume.make(InodeNo::ROOT, b"from", &dir).expect("made").ino;
    let file = volume.make(from, b"f", &FILE).expect("made").ino;
    let following = following(version(&device, &volume));
    look_up(&following, InodeNo::ROOT, b"from").expect("there");
    look_up(&following, from, b"f").expect("there");
    volume
        .rename(InodeNo::ROOT, b"from", InodeNo::ROOT, b"to", RenameMode::Replace)
        .expect("renamed");
    following.show(version(&device, &volume));
    assert!(matches!(attr(&following, file), Err(Error::Stale)));
    look_up(&following, InodeNo::ROOT, b"to").expect("there");
    assert_eq!(attr(&following, file).expect("there").ino, file);

    volume
        .rename(InodeNo::ROOT, b"to", InodeNo::ROOT, b"again", RenameMode::Replace)
        .expect("renamed");
    assert!(volume.clean_point().expect("reached"));
    following.show(version(&device, &volume));
    assert_eq!(attr(&following, file).expect("there").ino, file);
}

/// What the kernel keeps of contents is right as long as the file is as it was when it was opened last.
#[test]
fn contents_are_kept_while_they_are_the_same() {
    let (device, volume) = written();
    let file = volume.make(InodeNo::ROOT, b"f", &FILE).expect("made").ino;
    volume.write(file, 0, b"one").expect("written");
    let following = following(version(&device, &volume));
    look_up(&following, InodeNo::ROOT, b"f").expect("there");
    assert!(!following.open(file).expect("opened"), "nothing is known of what there was");
    following.close(file);
    volume.make(InodeNo::ROOT, b"other", &FILE).expect("made");
    following.show(version(&device, &volume));
    assert!(following.open(file).expect("opened"));
    volume.write(file, 0, b"two").expect("written");
    following.show(version(&device, &volume));
    assert!(following.open(file).expect("opened"), "dropped when the version came");
    following.close(file);
    following.close(file);
    volume.write(file, 0, b"six").expect("written");
    following.show(version(&device, &volume));
    assert!(!following.open(file).expect("opened"));
    following.forget(file, 1);
    assert!(following.nodes().is_empty(), "the kernel has forgotten it");
}
