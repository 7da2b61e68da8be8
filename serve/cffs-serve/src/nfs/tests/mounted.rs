//! One volume, mounted and served by NFS: each side sees the other's changes at once.
//!
//! The kernel may cache everything for a year, so that only notifications can make it look again. Where
//! mounting is not possible, these tests print that and pass.

use std::fs::{self, File};
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

use super::hostile::Panicking;
use super::*;
use crate::fuse;
use crate::shared::Companion;

const ALL: &str = "/:insecure,no_root_squash";

/// A volume that is mounted and served until the value is dropped.
struct Mounted {
    served: Option<Served>,
    directory: tempfile::TempDir,
    stopper: fuse::Stopper,
    thread: Option<thread::JoinHandle<Result<fuse::Ended, fuse::ServeError>>>,
}

impl Mounted {
    fn new() -> Option<Mounted> {
        if !can_mount() {
            return None;
        }
        let device = Arc::new(MemoryDevice::new(64 << 20));
        cffs::mkfs::make(&*device, &Default::default()).expect("made");
        let open = OpenOptions { waiter: Arc::new(fuse::LeaveSeat), ..OpenOptions::default() };
        let volume = cffs::open(device, Arc::new(SystemClock), open).expect("opened");
        let volume = Arc::new(volume);
        let directory = tempfile::tempdir().expect("a directory");
        let options = options();
        let caches = Arc::new(options.caches.clone());
        let served = Served::with_observer(Arc::clone(&volume), &[ALL], caches);
        let server = fuse::Server::mount(volume, directory.path(), &options).expect("mounted");
        let stopper = server.stopper();
        let thread = Some(thread::spawn(move || server.serve()));
        Some(Mounted { served: Some(served), directory, stopper, thread })
    }

    fn served(&self) -> &Served {
        self.served.as_ref().expect("it is served")
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    fn names(&self, dir: &str) -> Vec<String> {
        names_in(&self.path(dir))
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        // The end of the mount closes the volume.
        self.served = None;
        let stopped = self.stopper.stop();
        if let Some(thread) = self.thread.take()
            && stopped.is_ok()
            && !thread::panicking()
        {
            thread.join().expect("no panic").expect("served");
        }
    }
}

fn options() -> fuse::Options {
    fuse::Options {
        source: PathBuf::from("memory"),
        read_only: false,
        allow_other: false,
        suid: true,
        dev: true,
        exec: true,
        atime: cffs::vfs::types::AtimeMode::Never,
        fixed: Default::default(),
        transport: fuse::TransportChoice::Auto,
        watch: Arc::default(),
        no_symlink_follow: false,
        device: None,
        journal: None,
        block_device: false,
        regroup_after: None,
        cache_bytes: 0,
        program: Err(String::new()),
        caches: fuse::KernelCaches::default(),
        ttl: fuse::TTL_ALONE,
        follow: None,
    }
}

fn can_mount() -> bool {
    let can = rustix::process::geteuid().is_root() && Path::new("/dev/fuse").exists();
    if !can {
        eprintln!("not run: this takes root and /dev/fuse");
    }
    can
}

fn names_in(dir: &Path) -> Vec<String> {
    let entries = fs::read_dir(dir).expect("a directory");
    let name = |entry: io::Result<fs::DirEntry>| entry.expect("read").file_name();
    let mut names: Vec<_> = entries.map(|entry| name(entry).into_string().expect("text")).collect();
    names.sort();
    names
}

fn remove(client: &mut Client, dir: &nfs_fh3, name: &str) {
    ok(now(client.remove(&REMOVE3args { object: at(dir, name) })));
}

fn rename(client: &mut Client, from: diropargs3<'_>, to: diropargs3<'_>) {
    ok(now(client.rename(&RENAME3args { from, to })));
}

fn set(client: &mut Client, file: &nfs_fh3, new_attributes: sattr3) {
    let object = file.clone();
    ok(now(client.setattr(&SETATTR3args { object, new_attributes, guard: Nfs3Option::None })));
}

fn write(client: &mut Client, file: &nfs_fh3, offset: u64, data: &[u8]) {
    ok(now(client.write(&write_args(file, offset, data, stable_how::UNSTABLE))));
}

#[test]
fn a_mount_sees_what_clients_write() {
    let Some(mounted) = Mounted::new() else { return };
    let (root, mut client) = (mounted.served().root(), mounted.served().client(0, 0));
    let file = create(&mut client, &root, "f", 0o644);
    write(&mut client, &file, 0, &[b'a'; 10_000]);
    let path = mounted.path("f");
    // From here on, it is in the page cache, and so are its attributes.
    let open = File::open(&path).expect("opened");
    assert_eq!(fs::read(&path).expect("read"), [b'a'; 10_000]);
    assert_eq!(open.metadata().expect("there").len(), 10_000);

    write(&mut client, &file, 5000, b"bbbb");
    let mut four = [0; 4];
    open.read_exact_at(&mut four, 5000).expect("read");
    assert_eq!(&four, b"bbbb", "overwritten");
    write(&mut client, &file, 10_000, b"the end");
    assert_eq!(open.metadata().expect("there").len(), 10_007, "it grew");
    assert_eq!(fs::read(&path).expect("read")[10_000..], *b"the end");
    let cut = sattr3 { size: Nfs3Option::Some(5002), ..sattr3::default() };
    set(&mut client, &file, cut);
    assert_eq!(open.metadata().expect("there").len(), 5002, "it was cut");
    assert_eq!(fs::read(&path).expect("read").len(), 5002);
    let longer = sattr3 { size: Nfs3Option::Some(5100), ..sattr3::default() };
    set(&mut client, &file, longer);
    let contents = fs::read(&path).expect("read");
    assert_eq!((contents.len(), &contents[5000..5004]), (5100, &b"bb\0\0"[..]), "it grew again");
    // CREATE of an existing file truncates it.
    let attributes = sattr3 { size: Nfs3Option::Some(0), ..sattr3::default() };
    let args = CREATE3args { where_: at(&root, "f"), how: createhow3::UNCHECKED(attributes) };
    ok(now(client.create(&args)));
    assert_eq!(fs::read(&path).expect("read"), b"");
}

#[test]
fn a_mount_sees_names_that_clients_make_and_remove() {
    let Some(mounted) = Mounted::new() else { return };
    let (root, mut client) = (mounted.served().root(), mounted.served().client(0, 0));
    let dir = mkdir(&mut client, &root, "d", 0o755);
    let path = |name: &str| mounted.path(&format!("d/{name}"));
    for name in ["made", "exclusive", "dir", "link", "symlink", "fifo", "renamed"] {
        assert!(!path(name).exists(), "the kernel knows now that there is no {name}");
    }
    // Twice: the second listing is read from the pages of the first.
    assert_eq!((mounted.names("d"), mounted.names("d")), (vec![], vec![]));

    // A name that the kernel has not looked up is nevertheless in the next listing, also for a program that
    // rewinds the directory, which requests no attributes.
    let open = File::open(mounted.path("d")).expect("opened");
    let mut listing = rustix::fs::Dir::read_from(&open).expect("a directory");
    assert_eq!((&mut listing).count(), 2, "itself and its parent");
    create(&mut client, &dir, "unasked", 0o644);
    listing.rewind();
    assert_eq!((&mut listing).count(), 3);
    assert_eq!(mounted.names("d"), ["unasked"]);
    remove(&mut client, &dir, "unasked");
    let file = create(&mut client, &dir, "made", 0o644);
    assert!(path("made").exists());
    assert_eq!(mounted.names("d"), ["made"]);
    let exclusive = createhow3::EXCLUSIVE(createverf3([3; 8]));
    ok(now(client.create(&CREATE3args { where_: at(&dir, "exclusive"), how: exclusive })));
    mkdir(&mut client, &dir, "dir", 0o755);
    let symlink_data = Opaque::borrowed(b"made");
    let symlink = symlinkdata3 {
        symlink_attributes: sattr3::default(),
        symlink_data: nfspath3(symlink_data),
    };
    ok(now(client.symlink(&SYMLINK3args { where_: at(&dir, "symlink"), symlink })));
    let fifo = mknoddata3::NF3FIFO(sattr3::default());
    ok(now(client.mknod(&MKNOD3args { where_: at(&dir, "fifo"), what: fifo })));
    assert_eq!(fs::metadata(path("made")).expect("there").nlink(), 1);
    ok(now(client.link(&LINK3args { file: file.clone(), link: at(&dir, "link") })));
    assert_eq!(fs::metadata(path("made")).expect("there").nlink(), 2, "by the other name");
    for name in ["exclusive", "dir", "link", "symlink", "fifo"] {
        assert!(fs::symlink_metadata(path(name)).is_ok(), "{name}");
    }
    assert_eq!(mounted.names("d"), ["dir", "exclusive", "fifo", "link", "made", "symlink"]);

    rename(&mut client, at(&dir, "made"), at(&dir, "renamed"));
    assert!(!path("made").exists() && path("renamed").exists());
    assert_eq!(mounted.names("d").len(), 6);
    let open = File::open(path("renamed")).expect("opened");
    remove(&mut client, &dir, "renamed");
    assert!(!path("renamed").exists());
    assert_eq!(fs::metadata(path("link")).expect("there").nlink(), 1, "of what has a name left");
    remove(&mut client, &dir, "link");
    assert_eq!(open.metadata().expect("open").nlink(), 0, "of an open file");
    ok(now(client.rmdir(&RMDIR3args { object: at(&dir, "dir") })));
    assert!(!path("dir").exists());
    assert_eq!(mounted.names("d"), ["exclusive", "fifo", "symlink"]);
}

#[test]
fn a_mount_sees_what_clients_rename_and_replace() {
    let Some(mounted) = Mounted::new() else { return };
    let (root, mut client) = (mounted.served().root(), mounted.served().client(0, 0));
    let (a, b) = (mkdir(&mut client, &root, "a", 0o755), mkdir(&mut client, &root, "b", 0o755));
    let (old, new) = (create(&mut client, &a, "f", 0o644), create(&mut client, &b, "f", 0o644));
    write(&mut client, &old, 0, b"old");
    write(&mut client, &new, 0, b"the new one");
    let tree = mkdir(&mut client, &a, "tree", 0o755);
    create(&mut client, &tree, "leaf", 0o644);
    assert_eq!(fs::read(mounted.path("a/f")).expect("read"), b"old");
    assert_eq!(fs::read(mounted.path("b/f")).expect("read"), b"the new one");
    assert!(mounted.path("a/tree/leaf").exists() && !mounted.path("b/tree").exists());
    assert_eq!((mounted.names("a").len(), mounted.names("b").len()), (2, 1));

    rename(&mut client, at(&b, "f"), at(&a, "f"));
    assert_eq!(fs::read(mounted.path("a/f")).expect("read"), b"the new one", "it was replaced");
    assert!(!mounted.path("b/f").exists());
    rename(&mut client, at(&a, "tree"), at(&b, "tree"));
    assert!(!mounted.path("a/tree/leaf").exists() && mounted.path("b/tree/leaf").exists());
    assert_eq!(fs::metadata(mounted.path("a")).expect("there").nlink(), 2, "one directory less");
    assert_eq!((mounted.names("a"), mounted.names("b")), (vec!["f".into()], vec!["tree".into()]));
}

#[test]
fn a_mount_sees_attributes_that_clients_set() {
    let Some(mounted) = Mounted::new() else { return };
    let (root, mut client) = (mounted.served().root(), mounted.served().client(0, 0));
    let file = create(&mut client, &root, "f", 0o644);
    let path = mounted.path("f");
    let before = fs::metadata(&path).expect("there");
    let changes = sattr3 {
        mode: Nfs3Option::Some(0o600),
        uid: Nfs3Option::Some(7),
        gid: Nfs3Option::Some(8),
        mtime: set_mtime::SET_TO_CLIENT_TIME(nfstime3 { seconds: 9, nseconds: 10 }),
        ..sattr3::default()
    };
    set(&mut client, &file, changes);
    let after = fs::metadata(&path).expect("there");
    assert_eq!((after.mode() & 0o7777, after.uid(), after.gid()), (0o600, 7, 8));
    assert_eq!((after.mtime(), after.mtime_nsec()), (9, 10));
    assert!(after.ctime_nsec() != before.ctime_nsec() || after.ctime() != before.ctime());
    // A write by a user other than root clears the set-id bits, which the kernel had cached.
    set(&mut client, &file, sattr3 { mode: Nfs3Option::Some(0o4777), ..sattr3::default() });
    assert_eq!(fs::metadata(&path).expect("there").mode() & 0o7777, 0o4777);
    let mut other = mounted.served().client(9, 9);
    write(&mut other, &file, 0, b"x");
    assert_eq!(fs::metadata(&path).expect("there").mode() & 0o7777, 0o777);
}

#[test]
fn clients_see_what_is_changed_on_the_mount() {
    let Some(mounted) = Mounted::new() else { return };
    let (root, mut client) = (mounted.served().root(), mounted.served().client(0, 0));
    let path = mounted.path("f");
    fs::write(&path, b"from the mount").expect("written");
    let file = ok(lookup(&mut client, &root, "f")).object;
    assert_eq!(&ok(now(client.read(&read_args(&file)))).data[..], b"from the mount");
    let open = File::options().read(true).write(true).open(&path).expect("opened");
    open.write_all_at(b"FROM", 0).expect("written");
    assert_eq!(&ok(now(client.read(&read_args(&file)))).data[..], b"FROM the mount");
    open.set_len(4).expect("cut");
    assert_eq!(attributes(&mut client, &file).size, 4);
    fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).expect("set");
    assert_eq!(attributes(&mut client, &file).mode & 0o7777, 0o600);
    fs::hard_link(&path, mounted.path("g")).expect("linked");
    assert_eq!(attributes(&mut client, &file).nlink, 2);
    fs::rename(&path, mounted.path("h")).expect("renamed");
    assert_eq!(failure(lookup(&mut client, &root, "f")), nfsstat3::NFS3ERR_NOENT);
    ok(lookup(&mut client, &root, "h"));
    fs::remove_file(mounted.path("g")).expect("removed");
    fs::remove_file(mounted.path("h")).expect("removed");
    let stale = now(client.getattr(&GETATTR3args { object: file.clone() }));
    assert_eq!(failure(stale), nfsstat3::NFS3ERR_STALE, "though it is open on the mount");
}

/// Both sides concurrently change one directory and its files: no call hangs, and in the end both see the
/// same. A notification that waits for a program whose request waits for the notification would hang here.
#[test]
fn both_sides_at_once_agree_in_the_end() {
    let Some(mounted) = Mounted::new() else { return };
    const ROUNDS: usize = 60;
    let root = mounted.served().root();
    let dir = mkdir(&mut mounted.served().client(0, 0), &root, "d", 0o755);
    thread::scope(|scope| {
        for number in 0..3 {
            let (mounted, dir) = (&mounted, &dir);
            scope.spawn(move || {
                let mut client = mounted.served().client(0, 0);
                for round in 0..ROUNDS {
                    let name = format!("c{number}.{}", round % 4);
                    let how = createhow3::UNCHECKED(sattr3::default());
                    let made = ok(now(client.create(&CREATE3args { where_: at(dir, &name), how })));
                    write(&mut client, &some(made.obj), 0, &[number as u8; 9000]);
                    let to = format!("c{number}.{}", (round + 1) % 4);
                    rename(&mut client, at(dir, &name), at(dir, &to));
                    let how = createhow3::UNCHECKED(sattr3::default());
                    let _ = now(client.create(&CREATE3args { where_: at(dir, "shared"), how }));
                }
            });
            scope.spawn(move || {
                for round in 0..ROUNDS {
                    let path = mounted.path(&format!("d/m{number}.{}", round % 4));
                    fs::write(&path, vec![number as u8; 9000]).expect("written");
                    fs::read(&path).expect("read");
                    let to = mounted.path(&format!("d/m{number}.{}", (round + 1) % 4));
                    fs::rename(&path, to).expect("renamed");
                    mounted.names("d");
                    let _ = fs::remove_file(mounted.path("d/shared"));
                    let _ = fs::read(mounted.path(&format!("d/c{number}.1")));
                }
            });
        }
    });
    let mut client = mounted.served().client(0, 0);
    for name in mounted.names("d") {
        let file = ok(lookup(&mut client, &dir, &name)).object;
        let there = ok(now(client.read(&read_args(&file))));
        assert!(fs::read(mounted.path(&format!("d/{name}"))).expect("read") == there.data[..]);
    }
}

/// A volume that is mounted and served on a device that can be made to panic, with a client.
struct OnPanicking {
    device: Arc<Panicking>,
    volume: Arc<Volume>,
    directory: tempfile::TempDir,
    nfs: Arc<Running>,
    stopper: fuse::Stopper,
    thread: thread::JoinHandle<Result<fuse::Ended, fuse::ServeError>>,
    client: Client,
    root: nfs_fh3,
}

impl OnPanicking {
    fn new() -> OnPanicking {
        let device = MemoryDevice::new(64 << 20);
        cffs::mkfs::make(&device, &Default::default()).expect("made");
        let device = Arc::new(Panicking(device, AtomicBool::new(false)));
        let volume =
            cffs::open(Arc::clone(&device) as _, Arc::new(SystemClock), Default::default());
        let volume = Arc::new(volume.expect("opened"));
        let (directory, options) = (tempfile::tempdir().expect("a directory"), options());
        let (any, caches) = ("127.0.0.1:0".parse().expect("one"), Arc::new(options.caches.clone()));
        let exports = vec![ALL.parse().expect("an export")];
        let nfs = Server::bind(Arc::clone(&volume), any, exports, caches).expect("bound");
        let address = nfs.address().expect("an address");
        let mount = fuse::Server::mount(Arc::clone(&volume), directory.path(), &options);
        let mount = mount.expect("mounted");
        let exports = nfs.exports();
        let nfs = Arc::new(nfs.start().expect("started"));
        mount.set_companion(Arc::clone(&nfs) as _, exports);
        let stopper = mount.stopper();
        let thread = thread::spawn(move || mount.serve());

        let connect = || Blocking(TcpStream::connect(address).expect("connected"));
        let path = nfs3_client::nfs3_types::mount::dirpath(Opaque::borrowed(b"/"));
        let root = now(MountClient::new(connect()).mnt(path)).expect("mounted").fhandle.0.to_vec();
        let auth = auth_unix { machinename: Opaque::borrowed(b"test"), ..auth_unix::default() };
        let (auth, none) = (opaque_auth::auth_unix(&auth), opaque_auth::default());
        let client = Client::new_with_auth(connect(), auth, none);
        let root = nfs_fh3 { data: Opaque::owned(root) };
        OnPanicking { device, volume, directory, nfs, stopper, thread, client, root }
    }

    /// The end of the mount: nothing may have been written since the panic.
    fn check_the_end(self) {
        let ended = self.thread.join().expect("the mount ended");
        assert!(matches!(ended, Err(fuse::ServeError::Close(_))), "{ended:?}");
        assert!(self.nfs.end().is_err());
        assert!(self.volume.close().is_err(), "it was not closed, and cannot be");
        assert!(!self.directory.path().join("f").exists(), "the directory is what it was");
    }
}

#[test]
fn a_panic_of_the_server_takes_the_mount_away() {
    if !can_mount() {
        return;
    }
    let mut both = OnPanicking::new();
    fs::write(both.directory.path().join("f"), b"in memory alone").expect("written");
    both.device.1.store(true, Ordering::Relaxed);
    let how = createhow3::UNCHECKED(sattr3::default());
    let args = CREATE3args { where_: at(&both.root, "g"), how };
    assert!(now(both.client.create(&args)).is_err());
    both.check_the_end();
}

#[test]
fn a_panic_of_the_mount_ends_what_clients_get() {
    if !can_mount() {
        return;
    }
    let mut both = OnPanicking::new();
    let file = File::create(both.directory.path().join("f")).expect("made");
    ok(lookup(&mut both.client, &both.root, "f"));
    both.device.1.store(true, Ordering::Relaxed);
    file.sync_all().expect_err("it panicked");
    both.device.1.store(false, Ordering::Relaxed);
    let answer = lookup(&mut both.client, &both.root, "f");
    assert!(matches!(answer, Err(RpcError::SystemErr)), "{answer:?}");
    both.volume.sync().expect_err("nothing more is written");
    drop(file);
    both.stopper.stop().expect("unmounted");
    both.check_the_end();
}
