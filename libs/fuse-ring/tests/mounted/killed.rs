//! Callers that are killed while their request waits, and servers that are killed.

use std::fs::File;
use std::io::{BufRead, BufReader};
use std::num::NonZeroUsize;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant};

use fuse_ring::protocol::{
    Attr, AttrReply, Context, Entry, FileHandle, NodeId, Open, OpenFlags, Opened,
};
use fuse_ring::{Errno, Handler, Session};
use rustix::mount::UnmountFlags;

use crate::harness::{Setup, eventually, on_dev};

/// A file system with a file of each name. Lookups and fsyncs wait until they are released.
#[derive(Clone, Default)]
struct Slow(Arc<(Mutex<Gate>, Condvar)>);

#[derive(Default)]
struct Gate {
    waiting: usize,
    is_open: bool,
}

impl Slow {
    fn pass(&self) {
        fuse_ring::will_wait();
        let mut gate = self.0.0.lock().unwrap();
        gate.waiting += 1;
        while !gate.is_open {
            gate = self.0.1.wait(gate).unwrap();
        }
        gate.waiting -= 1;
    }

    fn waiting(&self) -> usize {
        self.0.0.lock().unwrap().waiting
    }

    fn set_open(&self, is_open: bool) {
        self.0.0.lock().unwrap().is_open = is_open;
        self.0.1.notify_all();
    }
}

fn attr(node: NodeId) -> Attr {
    let mode = if node == NodeId::ROOT { 0o040_755 } else { 0o100_644 };
    let uid = rustix::process::geteuid().as_raw();
    Attr { ino: node.0, mode, nlink: 1, uid, ..Attr::default() }
}

impl Handler for Slow {
    fn lookup(&self, _: &Context<'_>, _: NodeId, name: &[u8]) -> Result<Entry, Errno> {
        self.pass();
        let (node, ttl) = (NodeId(1 + u64::from(name[0])), Duration::from_secs(100));
        Ok(Entry { node, generation: 0, attr: attr(node), entry_ttl: ttl, attr_ttl: ttl })
    }

    fn getattr(
        &self,
        _: &Context<'_>,
        node: NodeId,
        _: Option<FileHandle>,
    ) -> Result<AttrReply, Errno> {
        Ok(AttrReply { attr: attr(node), ttl: Duration::from_secs(100) })
    }

    fn open(&self, _: &Context<'_>, _: NodeId, _: &Open) -> Result<Opened, Errno> {
        Ok(Opened { handle: FileHandle(0), flags: OpenFlags::empty() })
    }

    fn fsync(&self, _: &Context<'_>, _: NodeId, _: FileHandle, _: bool) -> Result<(), Errno> {
        self.pass();
        Ok(())
    }
}

/// Kills callers while the server has their requests, and returns when all have ended.
fn kill(slow: &Slow, mut callers: Vec<Child>, requests: usize) {
    eventually(|| slow.waiting() == requests);
    callers.iter_mut().for_each(|caller| caller.kill().unwrap());
    for mut caller in callers {
        eventually(|| caller.try_wait().unwrap().is_some());
    }
    // The server has not answered any of them.
    assert_eq!(slow.waiting(), requests);
    slow.set_open(true);
    eventually(|| slow.waiting() == 0);
    slow.set_open(false);
}

// Regression: a program that waited for a store that did not answer could not be killed.
#[test]
fn a_caller_that_is_killed_ends_before_its_answer() {
    on_dev(|mut setup| {
        // All threads must wait, so that none can read the kernel's messages about signals.
        setup.config.threads = NonZeroUsize::new(3);
        let slow = Slow::default();
        let mounted = setup.mount(slow.clone());
        let stat = |name: &str| {
            let mut stat = Command::new("stat");
            stat.arg(mounted.path.join(name)).stdout(Stdio::null()).spawn().unwrap()
        };
        kill(&slow, ["a", "b", "c", "d"].map(stat).into(), 3);

        slow.set_open(true);
        let files = ["a", "b", "c"].map(|name| File::open(mounted.path.join(name)).unwrap());
        slow.set_open(false);
        let sync = |file: &File| {
            let mut sync = Command::new("sync");
            sync.arg("/proc/self/fd/0").stdin(file.try_clone().unwrap()).spawn().unwrap()
        };
        kill(&slow, files.iter().map(sync).collect(), files.len());
        slow.set_open(true);
        files.iter().for_each(|file| file.sync_all().unwrap());
        drop(files);
        mounted.end().unwrap();
    });
}

/// A file system that never answers requests about its root, so the session's own first opening of a file
/// waits forever.
struct Silent;

impl Handler for Silent {
    fn getattr(
        &self,
        _: &Context<'_>,
        _: NodeId,
        _: Option<FileHandle>,
    ) -> Result<AttrReply, Errno> {
        println!("asked");
        loop {
            std::thread::park();
        }
    }
}

/// The environment variable with the mount point, for the process that serves.
const MOUNT_POINT: &str = "FUSE_RING_TEST_MOUNT_POINT";

crate::on_both_transports! {
    a_server_that_is_killed_while_it_waits_for_its_own_mount_ends
}

// Regression: over io_uring the server did not end. The waiting thread shared the memory of its rings, so
// their commands kept the connection open.
fn a_server_that_is_killed_while_it_waits_for_its_own_mount_ends(mut setup: Setup) {
    if let Some(path) = std::env::var_os(MOUNT_POINT) {
        setup.config.wishes.elide_open = true;
        let session = Session::mount(Silent, path, &setup.options, &setup.config).unwrap();
        session.serve().unwrap();
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().canonicalize().unwrap();
    let test = std::thread::current().name().unwrap().to_owned();
    let mut server = Command::new(std::env::current_exe().unwrap())
        .args([test.as_str(), "--exact", "--nocapture"])
        .env(MOUNT_POINT, &path)
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut said = BufReader::new(server.stdout.take().unwrap()).lines();
    assert!(said.any(|line| line.unwrap().contains("asked")), "it served nothing");
    server.kill().unwrap();
    let ended = end_within(&mut server, Duration::from_secs(20));
    // This aborts the connection, so that nothing hangs if the server does.
    rustix::mount::unmount(&path, UnmountFlags::FORCE | UnmountFlags::DETACH).unwrap();
    assert!(ended.is_some(), "it did not end before its connection was aborted");
}

fn end_within(process: &mut Child, limit: Duration) -> Option<ExitStatus> {
    let start = Instant::now();
    while start.elapsed() < limit {
        let ended = process.try_wait().unwrap();
        if ended.is_some() {
            return ended;
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    None
}
