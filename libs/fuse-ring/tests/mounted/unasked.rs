//! Asynchronous requests, and how a session avoids them.

use std::fs::{self, File};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc;
use std::time::Duration;

use fuse_ring::CachedName::Invalidate;
use fuse_ring::protocol::{
    Attr, AttrReply, Context, Create, Entry, FileHandle, NodeId, Opcode, Opened,
};
use fuse_ring::{Errno, Handler, Unmount};

use crate::harness::{Setup, eventually, on_uring};
use crate::on_both_transports;

on_both_transports! {
    programs_do_not_cause_an_open
}

const TTL: Duration = Duration::from_secs(100);
const DIRECTORY: NodeId = NodeId(2);

/// A directory `d`, in which each number except 0 is the name of an empty file, and other files can be made.
#[derive(Clone, Default)]
struct Numbers(Arc<Counts>);

struct Counts {
    requests: [AtomicU64; 64],
    forgotten: AtomicU64,
}

impl Default for Counts {
    fn default() -> Counts {
        Counts { requests: std::array::from_fn(|_| AtomicU64::new(0)), forgotten: 0.into() }
    }
}

impl Numbers {
    fn count(&self, opcode: Opcode) -> u64 {
        self.0.requests[opcode as usize].load(Ordering::Relaxed)
    }

    fn forgotten(&self) -> u64 {
        self.0.forgotten.load(Ordering::Relaxed)
    }
}

fn attr(node: NodeId) -> Attr {
    let mode = if node.0 <= DIRECTORY.0 { 0o040_755 } else { 0o100_644 };
    let uid = rustix::process::geteuid().as_raw();
    Attr { ino: node.0, mode, nlink: 1, uid, ..Attr::default() }
}

fn entry(node: NodeId) -> Entry {
    Entry { node, generation: 0, attr: attr(node), entry_ttl: TTL, attr_ttl: TTL }
}

impl Handler for Numbers {
    fn arrived(&self, opcode: Opcode, _: NodeId, _: u32) {
        self.0.requests[opcode as usize].fetch_add(1, Ordering::Relaxed);
    }

    fn forget(&self, node: NodeId, _: u64) {
        assert_ne!(node, NodeId(u64::MAX), "the session's own node");
        self.0.forgotten.fetch_add(1, Ordering::Relaxed);
    }

    fn lookup(&self, _: &Context<'_>, _: NodeId, name: &[u8]) -> Result<Entry, Errno> {
        if name == b"d" {
            return Ok(entry(DIRECTORY));
        }
        let number = str::from_utf8(name).ok().and_then(|name| name.parse::<u64>().ok());
        match number {
            Some(number) if number > 0 => Ok(entry(NodeId(DIRECTORY.0 + number))),
            _ => Err(Errno::NOENT),
        }
    }

    fn getattr(
        &self,
        _: &Context<'_>,
        node: NodeId,
        _: Option<FileHandle>,
    ) -> Result<AttrReply, Errno> {
        Ok(AttrReply { attr: attr(node), ttl: TTL })
    }

    fn create(
        &self,
        _: &Context<'_>,
        _: NodeId,
        _: &[u8],
        _: &Create,
    ) -> Result<(Entry, Opened), Errno> {
        Ok((entry(NodeId(1 << 40)), Opened::default()))
    }
}

/// Each new file causes a `RELEASE`, until the kernel has learned that opening is elided.
fn programs_do_not_cause_an_open(mut setup: Setup) {
    setup.config.wishes.elide_open = true;
    let numbers = Numbers::default();
    let (directory, session) = setup.session(numbers.clone());
    let unmounter = session.unmounter();
    let (report, ready) = mpsc::channel();
    let serving = std::thread::spawn(move || {
        session.serve_then(move || report.send(()).expect("the test waits")).map(drop)
    });
    ready.recv().expect("it gets ready");
    let names = directory.path().join("d");
    drop(File::create_new(names.join("made")).expect("made"));
    drop(File::open(names.join("1")).expect("opened"));
    assert_eq!((numbers.count(Opcode::Create), numbers.count(Opcode::Open)), (1, 0));
    eventually(|| unmounter.unmount(Unmount::Now).is_ok());
    serving.join().expect("it does not panic").expect("it ends well");
    let release = rustix::system::uname().release().to_string_lossy().into_owned();
    let mut numbers_of_release =
        release.split(['.', '-']).map_while(|part| part.parse::<u32>().ok());
    let version = (numbers_of_release.next(), numbers_of_release.next());
    if version < (Some(6), Some(18)) {
        println!("SKIPPED: Linux {release} releases files that it has made");
        return;
    }
    assert_eq!(numbers.count(Opcode::Release), 0);
}

/// Over io_uring a separate thread reads `FORGET`s, and waking it for each takes processor time on the core
/// of the program that removes files.
///
/// On a busy machine, some arrive together by chance, and others alone: so this needs only one success in
/// many attempts.
#[test]
fn forgets_come_together() {
    const FILES: u64 = 100;
    on_uring(|setup| {
        let numbers = Numbers::default();
        let mounted = setup.mount(numbers.clone());
        let messages = || numbers.count(Opcode::Forget) + numbers.count(Opcode::BatchForget);
        let together = || {
            for number in 1..=FILES {
                fs::metadata(mounted.path.join(format!("d/{number}"))).expect("there");
            }
            let (forgotten, before) = (numbers.forgotten(), messages());
            for number in 1..=FILES {
                let name = number.to_string();
                let known = mounted.notifier.inval_entry(DIRECTORY, name.as_bytes(), Invalidate);
                assert!(known.expect("it can be dropped"));
                std::thread::sleep(Duration::from_micros(50));
            }
            eventually(|| numbers.forgotten() - forgotten >= FILES);
            (messages() - before) * 2 < FILES
        };
        assert!((0..5).any(|_| together()));
        mounted.end().unwrap();
    });
}
