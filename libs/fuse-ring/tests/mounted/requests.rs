//! Requests that are interrupted, refused, or end with the connection.

use std::collections::HashMap;
use std::process::{Command, Stdio};
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

use fuse_ring::protocol::{
    Attr, AttrReply, Context, Entry, Features, FileHandle, NodeId, Read, Statfs, Unique,
};
use fuse_ring::{Errno, Handler, READERS_MIN, SPARES, TransportChoice, Unmount, will_wait};
use rustix::process::{Pid, Signal, kill_process};

use crate::harness::{Setup, eventually};
use crate::on_both_transports;

on_both_transports! {
    a_signal_interrupts_a_request
    waiting_requests_do_not_stop_others
    requests_before_the_start_do_not_stop_each_other
}

/// A file system of one file, whose readers wait until they are interrupted or released.
#[derive(Clone, Default)]
struct Slow(Arc<(Mutex<State>, Condvar)>);

#[derive(Default)]
struct State {
    /// The waiting readers, and whether each was interrupted.
    waiting: HashMap<Unique, bool>,
    interrupts: usize,
    open: bool,
}

impl Slow {
    fn with<T>(&self, look: impl FnOnce(&mut State) -> T) -> T {
        let result = look(&mut self.0.0.lock().unwrap());
        self.0.1.notify_all();
        result
    }
}

const FILE: NodeId = NodeId(2);

fn attr(node: NodeId) -> Attr {
    let mode = if node == FILE { 0o100_644 } else { 0o040_755 };
    Attr { ino: node.0, mode, nlink: 1, size: 4096, ..Attr::default() }
}

impl Handler for Slow {
    fn lookup(&self, _: &Context<'_>, _: NodeId, name: &[u8]) -> Result<Entry, Errno> {
        let ttl = Duration::from_secs(100);
        match name {
            b"slow" => Ok(Entry {
                node: FILE,
                generation: 0,
                attr: attr(FILE),
                entry_ttl: ttl,
                attr_ttl: ttl,
            }),
            _ => Err(Errno::NOENT),
        }
    }

    fn getattr(
        &self,
        _: &Context<'_>,
        node: NodeId,
        _: Option<FileHandle>,
    ) -> Result<AttrReply, Errno> {
        Ok(AttrReply { attr: attr(node), ttl: Duration::ZERO })
    }

    fn statfs(&self, cx: &Context<'_>, _: NodeId) -> Result<Statfs, Errno> {
        self.wait(cx).map(|()| Statfs::default())
    }

    fn read(&self, cx: &Context<'_>, _: NodeId, _: &Read, buf: &mut [u8]) -> Result<usize, Errno> {
        self.wait(cx)?;
        buf.fill(b'.');
        Ok(buf.len())
    }

    fn interrupt(&self, unique: Unique) {
        self.with(|state| {
            state.interrupts += 1;
            if let Some(interrupted) = state.waiting.get_mut(&unique) {
                *interrupted = true;
            }
        });
    }
}

impl Slow {
    /// Waits until the request is interrupted or all are released.
    fn wait(&self, cx: &Context<'_>) -> Result<(), Errno> {
        will_wait();
        let (state, changed) = &*self.0;
        let mut state = state.lock().unwrap();
        state.waiting.insert(cx.unique, false);
        let mut state =
            changed.wait_while(state, |state| !state.open && !state.waiting[&cx.unique]).unwrap();
        if state.waiting.remove(&cx.unique) == Some(true) {
            return Err(Errno::INTR);
        }
        Ok(())
    }
}

/// Only synchronous requests can be interrupted: not read-ahead, so the test uses direct I/O, and not direct
/// I/O that may be asynchronous.
fn a_signal_interrupts_a_request(mut setup: Setup) {
    setup.config.wishes.features.remove(Features::ASYNC_DIO);
    let slow = Slow::default();
    let mounted = setup.mount(slow.clone());
    let mut reader = Command::new("dd")
        .arg(format!("if={}", mounted.path.join("slow").display()))
        .args(["of=/dev/null", "bs=4096", "count=1", "iflag=direct"])
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    eventually(|| slow.with(|state| state.waiting.len() == 1));
    assert_eq!(slow.with(|state| state.interrupts), 0);
    kill_process(Pid::from_child(&reader), Signal::TERM).unwrap();
    eventually(|| reader.try_wait().unwrap().is_some());
    assert!(!reader.wait().unwrap().success());
    slow.with(|state| assert_eq!((state.waiting.len(), state.interrupts), (0, 1)));
    mounted.end().unwrap();
}

/// Waiting requests must not block another caller, not even on the same core: io_uring has more threads than
/// these two, and `/dev/fuse` has spare threads.
fn waiting_requests_do_not_stop_others(setup: Setup) {
    let slow = Slow::default();
    let mounted = setup.mount(slow.clone());
    let count = match setup.config.transport {
        TransportChoice::Uring => 2,
        _ => READERS_MIN.max(std::thread::available_parallelism().unwrap().get()) + SPARES - 1,
    };
    let readers: Vec<_> = (0..count)
        .map(|_| {
            Command::new("taskset")
                .args(["-c", "0", "dd", "of=/dev/null", "bs=4096", "count=1", "iflag=direct"])
                .arg(format!("if={}", mounted.path.join("slow").display()))
                .stderr(Stdio::null())
                .spawn()
                .unwrap()
        })
        .collect();
    eventually(|| slow.with(|state| state.waiting.len() == count));
    let other = Command::new("taskset")
        .args(["-c", "0", "stat"])
        .arg(mounted.path.join("slow"))
        .stdout(Stdio::null())
        .status();
    assert!(other.unwrap().success());
    slow.with(|state| state.open = true);
    for mut reader in readers {
        assert!(reader.wait().unwrap().success());
    }
    mounted.end().unwrap();
}

/// Requests of one core that arrive before the server starts must be served concurrently, however many
/// threads have started when the first of them is served.
fn requests_before_the_start_do_not_stop_each_other(setup: Setup) {
    const COUNT: usize = 4;
    let slow = Slow::default();
    let (_directory, session) = setup.session(slow.clone());
    let mut callers: Vec<_> = (0..COUNT)
        .map(|_| {
            Command::new("taskset")
                .args(["-c", "0", "stat", "-f"])
                .arg(session.path())
                .stdout(Stdio::null())
                .spawn()
                .unwrap()
        })
        .collect();
    for caller in &callers {
        let call = format!("/proc/{}/syscall", caller.id());
        let statfs = format!("{} ", nix::libc::SYS_statfs);
        eventually(|| std::fs::read_to_string(&call).unwrap().starts_with(&statfs));
    }
    let unmounter = session.unmounter();
    let server = std::thread::spawn(move || session.serve());
    eventually(|| slow.with(|state| state.waiting.len() == COUNT));
    slow.with(|state| state.open = true);
    for caller in &mut callers {
        assert!(caller.wait().unwrap().success());
    }
    eventually(|| unmounter.unmount(Unmount::Now).is_ok());
    server.join().unwrap().unwrap();
}
