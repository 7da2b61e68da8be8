//! How sessions end.

use std::fs::{self, File};
use std::io::Read;
use std::num::NonZeroUsize;
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use fuse_ring::protocol::{Attr, AttrReply, Context, Entry, FileHandle, NodeId};
use fuse_ring::{
    Connection, Ended, Errno, Handler, MountOptions, Rings, Session, Suspender, Unmount,
    make_requests,
};

use crate::harness::{Setup, eventually, is_mounted, on_uring};
use crate::on_both_transports;
use crate::tree::Tree;

on_both_transports! {
    unmounting_from_outside_ends_the_session
    an_open_file_keeps_the_session
    force_ends_everything
    a_session_that_is_not_served_leaves_nothing
    callers_wait_for_the_server
    a_panic_is_an_error_of_the_session
    a_suspended_session_is_resumed
    a_session_without_callers_is_suspended
}

fn unmounting_from_outside_ends_the_session(setup: Setup) {
    let tree = Tree::default();
    let mut mounted = setup.mount(tree.clone());
    fs::write(mounted.path.join("file"), "x").unwrap();
    assert_eq!(tree.seen().destroyed, 0);
    eventually(|| Command::new("umount").arg(&mounted.path).status().unwrap().success());
    mounted.join().unwrap();
    assert_eq!(tree.seen().destroyed, 1);
    // Ending a session that has ended succeeds.
    mounted.unmounter.unmount(Unmount::Now).unwrap();
}

fn an_open_file_keeps_the_session(setup: Setup) {
    let tree = Tree::default();
    let mut mounted = setup.mount(tree.clone());
    let path = mounted.path.join("file");
    fs::write(&path, "contents").unwrap();
    let mut file = File::open(&path).unwrap();
    let busy = mounted.unmounter.unmount(Unmount::Now).unwrap_err();
    assert_eq!(busy.raw_os_error(), Some(Errno::BUSY.raw_os_error()));
    mounted.unmounter.unmount(Unmount::Lazy).unwrap();
    assert!(!is_mounted(&mounted.path) && !path.exists());
    let mut contents = String::new();
    file.read_to_string(&mut contents).unwrap();
    assert_eq!((contents.as_str(), tree.seen().destroyed), ("contents", 0));
    drop(file);
    mounted.join().unwrap();
    assert_eq!(tree.seen().destroyed, 1);
}

/// With requests in every stage: waiting, being served, being answered.
fn force_ends_everything(setup: Setup) {
    let mut mounted = setup.mount(Tree::default());
    let path = mounted.path.join("file");
    fs::write(&path, "contents").unwrap();
    let file = File::open(&path).unwrap();
    let rounds = Arc::new(AtomicU64::new(0));
    let busy: Vec<_> = (0..4)
        .map(|thread| {
            let rounds = rounds.clone();
            // Through a descriptor, since the path names the directory below the mount once the mount is
            // removed.
            let root = File::open(&mounted.path).unwrap();
            std::thread::spawn(move || {
                let path = format!("/proc/self/fd/{}/{thread}", root.as_raw_fd());
                while fs::write(&path, [0; 5000]).and_then(|()| fs::remove_file(&path)).is_ok() {
                    rounds.fetch_add(1, Ordering::Relaxed);
                }
            })
        })
        .collect();
    eventually(|| rounds.load(Ordering::Relaxed) > 100);
    mounted.unmounter.unmount(Unmount::Force).unwrap();
    mounted.join().unwrap();
    assert_eq!(file.metadata().unwrap_err().raw_os_error(), Some(Errno::NOTCONN.raw_os_error()));
    busy.into_iter().for_each(|thread| thread.join().unwrap());
}

fn a_session_that_is_not_served_leaves_nothing(setup: Setup) {
    let tree = Tree::default();
    let (directory, session) = setup.session(tree.clone());
    let path = session.path().to_owned();
    assert!(is_mounted(&path));
    drop(session);
    assert!(!is_mounted(&path));
    assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 0);
    let nowhere = Session::mount(
        tree,
        directory.path().join("missing"),
        &MountOptions::default(),
        &setup.config,
    );
    assert_eq!(nowhere.err().and_then(|error| error.raw_os_error()), Some(2));
}

/// Between mounting and serving, a caller waits: it must neither fail nor hang once a server runs.
fn callers_wait_for_the_server(setup: Setup) {
    let (_directory, session) = setup.session(Tree::default());
    let path = session.path().join("file");
    let caller = std::thread::spawn(move || fs::write(path, "early"));
    std::thread::sleep(Duration::from_millis(100));
    assert!(!caller.is_finished());
    let unmounter = session.unmounter();
    let server = std::thread::spawn(move || session.serve().map(drop));
    eventually(|| caller.is_finished());
    caller.join().unwrap().unwrap();
    eventually(|| unmounter.unmount(Unmount::Now).is_ok());
    server.join().unwrap().unwrap();
}

/// A file system that panics at one name.
struct Clumsy;

impl Handler for Clumsy {
    fn getattr(
        &self,
        _: &Context<'_>,
        _: NodeId,
        _: Option<FileHandle>,
    ) -> Result<AttrReply, Errno> {
        let attr = Attr { ino: 1, mode: 0o040_755, nlink: 2, ..Attr::default() };
        Ok(AttrReply { attr, ttl: Duration::ZERO })
    }

    fn lookup(&self, _: &Context<'_>, _: NodeId, name: &[u8]) -> Result<Entry, Errno> {
        assert_ne!(name, b"trap", "on purpose");
        Err(Errno::NOENT)
    }
}

fn a_panic_is_an_error_of_the_session(setup: Setup) {
    let mut mounted = setup.mount(Clumsy);
    let errno = |name| fs::metadata(mounted.path.join(name)).unwrap_err().raw_os_error();
    assert_eq!(errno("before"), Some(Errno::NOENT.raw_os_error()));
    assert_eq!(errno("trap"), Some(Errno::IO.raw_os_error()));
    assert_eq!(errno("after"), Some(Errno::IO.raw_os_error()));
    mounted.unmounter.unmount(Unmount::Lazy).unwrap();
    assert_eq!(mounted.join().unwrap_err().to_string(), "the handler panicked");
}

/// Suspends a session, and makes the requests that this requires. They end with the next session.
fn suspend(suspender: &Suspender, path: &Path) -> std::thread::JoinHandle<std::io::Result<()>> {
    let (path, cores) = (path.to_owned(), suspender.fill());
    assert_eq!(suspender.obstacle(), None);
    suspender.suspend_or(|why| eprintln!("not suspended: {why}"));
    std::thread::spawn(move || make_requests(&path, &cores))
}

fn suspended(server: std::thread::JoinHandle<std::io::Result<Ended>>) -> Connection {
    eventually(|| server.is_finished());
    let Ended::Suspended(connection) = server.join().unwrap().unwrap() else {
        panic!("the session was not suspended");
    };
    connection
}

/// Divides a connection into its parts and restores it from them, as for another program.
fn handed_over(mut connection: Connection) -> Connection {
    let entries = connection.take_rings().map(|rings| rings.to_entries());
    let (device, path, granted) = connection.into_parts();
    let rings = entries.map(|entries| Rings::from_entries(entries).unwrap());
    Connection::from_parts(device, path, granted).with_rings(rings)
}

/// Several sessions serve one mount in sequence. A file stays open meanwhile, and callers that arrive between
/// two sessions wait for the second.
fn a_suspended_session_is_resumed(setup: Setup) {
    let tree = Tree::default();
    let (_directory, mut session) = setup.session(tree.clone());
    let path = session.path().to_owned();
    let (mut file, mut waiting, mut fills) = (None, Vec::new(), Vec::new());
    for round in 0..6 {
        let suspender = session.suspender();
        let server = std::thread::spawn(move || session.serve());
        let file = file.get_or_insert_with(|| File::create_new(path.join("file")).unwrap());
        file.write_all_at(&[round], round.into()).unwrap();
        // The session has answered some of the calls when it ends; the others wait.
        let start = |caller| {
            let name = path.join(format!("{round}-{caller}"));
            std::thread::spawn(move || fs::write(name, [7; 100_000]))
        };
        let mut callers: Vec<_> = (0..20).map(start).collect();
        fills.push(suspend(&suspender, &path));
        callers.extend((20..40).map(start));
        let connection = suspended(server);
        assert!(is_mounted(&path));
        callers.push(start(40));
        assert!(callers.iter().any(|caller| !caller.is_finished()));
        // The state for another program, with which this one continues if there is none.
        let connection = if round % 2 == 0 { handed_over(connection) } else { connection };
        session = Session::resume(tree.clone(), connection, &setup.config);
        waiting.extend(callers);
    }
    let unmounter = session.unmounter();
    let server = std::thread::spawn(move || session.serve());
    for caller in waiting {
        eventually(|| caller.is_finished());
        caller.join().unwrap().unwrap();
    }
    fills.into_iter().for_each(|fill| fill.join().unwrap().unwrap());
    assert_eq!(fs::read(path.join("file")).unwrap(), [0, 1, 2, 3, 4, 5]);
    for name in (0..6).flat_map(|round| (0..41).map(move |caller| format!("{round}-{caller}"))) {
        assert!(fs::read(path.join(&name)).unwrap() == [7; 100_000], "{name}");
    }
    drop(file);
    eventually(|| unmounter.unmount(Unmount::Now).is_ok());
    assert!(matches!(server.join().unwrap().unwrap(), Ended::Unmounted));
    assert_eq!(tree.seen().destroyed, 1);
}

/// Its threads wait in the kernel for a request that never arrives.
fn a_session_without_callers_is_suspended(mut setup: Setup) {
    for threads in [1, 2, 40] {
        setup.config.threads = NonZeroUsize::new(threads);
        let tree = Tree::default();
        let (_directory, mut session) = setup.session(tree.clone());
        let path = session.path().to_owned();
        for _ in 0..3 {
            let suspender = session.suspender();
            let server = std::thread::spawn(move || session.serve());
            fs::write(path.join("file"), "x").unwrap();
            // Each is back in the kernel.
            std::thread::sleep(Duration::from_millis(50));
            suspend(&suspender, &path);
            session = Session::resume(tree.clone(), suspended(server), &setup.config);
        }
        let unmounter = session.unmounter();
        let server = std::thread::spawn(move || session.serve());
        assert_eq!(fs::read(path.join("file")).unwrap(), b"x");
        eventually(|| unmounter.unmount(Unmount::Now).is_ok());
        assert!(matches!(server.join().unwrap().unwrap(), Ended::Unmounted));
    }
}

/// Regression: the kernel gives a newly registered entry none of the requests that already wait. So requests
/// that were made too early did not fill all entries.
#[test]
fn a_session_is_suspended_while_it_starts() {
    on_uring(|mut setup| {
        setup.config.threads = NonZeroUsize::new(40);
        let tree = Tree::default();
        let (_directory, session) = setup.session(tree.clone());
        let (path, suspender) = (session.path().to_owned(), session.suspender());
        let fill = std::thread::spawn(move || suspend(&suspender, &path).join().unwrap());
        // Requests that are made now wait for the first entries.
        std::thread::sleep(Duration::from_millis(200));
        let server = std::thread::spawn(move || session.serve());
        let session = Session::resume(tree, suspended(server), &setup.config);
        let unmounter = session.unmounter();
        let server = std::thread::spawn(move || session.serve());
        fill.join().unwrap().unwrap();
        eventually(|| unmounter.unmount(Unmount::Now).is_ok());
        assert!(matches!(server.join().unwrap().unwrap(), Ended::Unmounted));
    });
}

/// Without the requests that fill all entries, a session on rings continues, reports that, and loses no
/// request.
#[test]
fn a_session_whose_requests_cannot_be_held_continues() {
    on_uring(|setup| {
        let tree = Tree::default();
        let (_directory, session) = setup.session(tree.clone());
        let path = session.path().to_owned();
        let suspender = session.suspender();
        let server = std::thread::spawn(move || session.serve());
        for round in 0..2 {
            let (failed, failure) = std::sync::mpsc::channel();
            suspender.suspend_or(move |why| failed.send(why).unwrap());
            let name = path.join(format!("{round}"));
            let caller = std::thread::spawn(move || fs::write(name, "held for a while"));
            let why = failure.recv_timeout(Duration::from_secs(20)).unwrap();
            assert!(why.contains("could not be held"), "{why}");
            eventually(|| caller.is_finished());
            caller.join().unwrap().unwrap();
        }
        let fill = suspend(&suspender, &path);
        let session = Session::resume(tree, suspended(server), &setup.config);
        let unmounter = session.unmounter();
        let server = std::thread::spawn(move || session.serve());
        fill.join().unwrap().unwrap();
        assert_eq!(fs::read(path.join("1")).unwrap(), b"held for a while");
        eventually(|| unmounter.unmount(Unmount::Now).is_ok());
        assert!(matches!(server.join().unwrap().unwrap(), Ended::Unmounted));
    });
}

/// A file system without names. It counts lookups, each of which takes this long.
#[derive(Clone, Default)]
struct Nameless {
    lookups: Arc<AtomicU64>,
    takes: Duration,
}

impl Handler for Nameless {
    fn getattr(
        &self,
        _: &Context<'_>,
        _: NodeId,
        _: Option<FileHandle>,
    ) -> Result<AttrReply, Errno> {
        let attr = Attr { ino: 1, mode: 0o040_755, nlink: 2, ..Attr::default() };
        Ok(AttrReply { attr, ttl: Duration::from_secs(60) })
    }

    fn lookup(&self, _: &Context<'_>, _: NodeId, _: &[u8]) -> Result<Entry, Errno> {
        self.lookups.fetch_add(1, Ordering::AcqRel);
        std::thread::sleep(self.takes);
        Err(Errno::NOENT)
    }
}

/// Regression: the session continued after five seconds, so a server could not be replaced while its disk was
/// slow.
#[test]
fn a_session_is_suspended_when_a_slow_request_is_answered() {
    on_uring(|setup| {
        let late = Nameless { takes: Duration::from_secs(7), ..Nameless::default() };
        let (_directory, session) = setup.session(late.clone());
        let path = session.path().to_owned();
        let suspender = session.suspender();
        let server = std::thread::spawn(move || session.serve());
        let name = path.join("late");
        let caller = std::thread::spawn(move || fs::metadata(name).map(drop));
        eventually(|| late.lookups.load(Ordering::Acquire) > 0);
        let fill = suspend(&suspender, &path);
        let session = Session::resume(late, suspended(server), &setup.config);
        let unmounter = session.unmounter();
        let server = std::thread::spawn(move || session.serve());
        fill.join().unwrap().unwrap();
        assert_eq!(caller.join().unwrap().unwrap_err().kind(), std::io::ErrorKind::NotFound);
        eventually(|| unmounter.unmount(Unmount::Now).is_ok());
        assert!(matches!(server.join().unwrap().unwrap(), Ended::Unmounted));
    });
}

/// Regression: a session that was suspended while it started made all its requests to the next one, whose
/// handler had to answer them.
#[test]
fn a_suspended_session_makes_no_more_requests() {
    on_uring(|setup| {
        for round in 0..10 {
            let nameless = Nameless::default();
            let (_directory, session) = setup.session(nameless.clone());
            let path = session.path().to_owned();
            let suspender = session.suspender();
            let server = std::thread::spawn(move || session.serve());
            let fill = suspend(&suspender, &path);
            let session = Session::resume(nameless.clone(), suspended(server), &setup.config);
            let unmounter = session.unmounter();
            let server = std::thread::spawn(move || session.serve());
            fill.join().unwrap().unwrap();
            eventually(|| unmounter.unmount(Unmount::Now).is_ok());
            assert!(matches!(server.join().unwrap().unwrap(), Ended::Unmounted));
            // One call may have been in flight: its revalidation of the name fails, and it looks the name up.
            let count = nameless.lookups.load(Ordering::Acquire);
            assert!(count <= 2, "{count} lookups in round {round}");
        }
    });
}
