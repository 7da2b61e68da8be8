//! Programs attached to a mounted volume: they call its server through a socket instead of the kernel.
//!
//! A program asks for a *ticket* by setting the attribute `system.cffs.attach` of a directory to a number
//! that it chose at random, and reads the ticket from the attribute with this number at the end. The kernel
//! passes this on only if the program can reach the directory and the mount is writable. The ticket grants
//! access to the directory with the program's rights at that moment. It is used for the removal of one name,
//! or for one session with requests of all kinds below the directory. The program sets the attribute again
//! before each second ends, or the session waits: a mount that becomes read-only is obeyed.
//!
//! ```text
//!   program ── setxattr, getxattr ──▶ kernel ──▶ Sessions: ticket, name of the socket
//!           ── connect, calls (wire) ──────────▶ a thread per session ──▶ Volume
//!                                                     └──▶ Observer: the kernel drops what it has cached
//! ```
//!
//! The server trusts a program with nothing: calls name no inodes, messages are small, contents are read
//! from shared memory by system calls, and a session has one thread and holds no lock while it waits for its
//! program. Its threads never serve requests of the kernel, so they may notify the kernel.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::io::{self, Write};
use std::net::Shutdown;
use std::os::fd::AsFd;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use cffs::device::Access;
use cffs::error::{Error, Result};
use cffs::format::inode::FileType;
use cffs::units::InodeNo;
use cffs::vfs::Volume;
use cffs::vfs::types::Attr;
use cffs::wire::{ATTRIBUTE, Answer, Invitation, LEASE, TO_READ, Ticket, hex};
use parking_lot::{Condvar, Mutex};
use rustix::net::sockopt::socket_peercred;
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

use crate::access::User;
use crate::shared::{Companion, Current, Observer};

mod handles;
mod memory;
mod program;
mod removal;
mod requests;
mod session;
#[cfg(test)]
mod tests;
mod tickets;
mod trees;
mod walk;
mod xattrs;

use tickets::{Directory, Granted, Tickets};

/// The attribute that the owner of the volume reads to end all sessions, after a remount that makes the
/// volume read-only.
pub const END: &str = "system.cffs.attach.end";

/// The most sessions, of all users and of one.
const SESSIONS_MAX: usize = 64;
const SESSIONS_OF_USER_MAX: usize = 16;
/// The number of these that are reserved for root and the user who mounted the volume.
const SESSIONS_OF_OWNERS: usize = 8;
/// The most threads for connections. The others wait until one of them has ended.
const THREADS_MAX: usize = 2 * SESSIONS_MAX;
/// How long a session that is to end may still send its answer.
const ANSWER_PATIENCE: Duration = Duration::from_secs(1);
/// How long a restart waits for calls. A message to the kernel waits for its lock on a directory, which a
/// program may hold as long as it wants.
const PAUSE_PATIENCE: Duration = Duration::from_secs(10);
/// The pause before a retry after a failure.
const RETRY_INTERVAL: Duration = Duration::from_millis(100);
/// How long the volume counts as shared after a request for a ticket, and after the last change. Longer than
/// a ticket is valid.
const SHARED_AFTER: Duration = Duration::from_secs(11);

/// The number in the value of [`ATTRIBUTE`]; `None` for other attributes.
pub(crate) fn asked(name: &[u8], value: &[u8]) -> Option<Result<u64>> {
    let number = |value| std::str::from_utf8(value).ok()?.parse().ok();
    let wrong = Error::Invalid("not a number");
    (name == ATTRIBUTE.as_bytes()).then(|| number(value).ok_or(wrong))
}

/// The number in the name of an attribute that has a ticket.
pub(crate) fn asked_by(name: &[u8]) -> Option<u64> {
    let number = name.strip_prefix(ATTRIBUTE.as_bytes())?.strip_prefix(b".")?;
    std::str::from_utf8(number).ok()?.parse().ok()
}

/// The number in the name of an attribute that gives a ticket to read files only.
pub(crate) fn asked_to_read(name: &[u8]) -> Option<u64> {
    asked_by(name.strip_suffix(TO_READ.as_bytes())?)
}

/// The sessions of the programs that are attached to a mounted volume.
pub(crate) struct Sessions {
    volume: Current,
    observer: Box<dyn Observer>,
    state: Mutex<State>,
    ended: Condvar,
    /// Whether sessions end as soon as they can.
    is_closing: AtomicBool,
    /// Whether a call panicked, so that the volume in memory may be half changed.
    panicked: AtomicBool,
    sharing: Sharing,
    /// Whether users other than the one who mounted the volume have access (`allow_other`).
    for_others: bool,
    /// The processors of the server. Threads that serve the kernel are bound to one each.
    processors: Option<CpuSet>,
}

#[derive(Default)]
struct State {
    tickets: Tickets,
    /// The socket, from the first ticket on.
    listener: Option<(String, Arc<UnixListener>)>,
    /// The threads for connections, of sessions and of those that are refused.
    threads: usize,
    /// The user and the socket of each session.
    sessions: HashMap<u64, (u32, Arc<UnixStream>)>,
    next: u64,
    /// The sessions that make requests, by the numbers of their tickets.
    leases: HashMap<u64, Lease>,
    /// The removals and the sessions with requests, all of which have references on inodes.
    calls: usize,
}

/// A program that requests a ticket.
pub(crate) struct Asking {
    pub user: User,
    /// Whether the program sees a mount inside of a volume. The server does not know its place.
    pub are_covered: bool,
    /// Whether the kernel has shown that the mount is writable.
    pub access: Access,
}

/// How long a session may carry out requests.
struct Lease {
    uid: u32,
    directory: Directory,
    renewed: Instant,
}

impl Sessions {
    /// Notifies `observer` of changes. No thread runs before the first request for a ticket.
    pub fn new(volume: Current, observer: Box<dyn Observer>, for_others: bool) -> Arc<Sessions> {
        let (state, ended, is_closing, panicked) = Default::default();
        Arc::new(Sessions {
            volume,
            observer,
            state,
            ended,
            is_closing,
            panicked,
            sharing: Sharing::new(),
            for_others,
            processors: sched_getaffinity(None).ok(),
        })
    }

    /// Makes a ticket for a directory and a user, or records the reason why `examine` refuses one. The
    /// program reads it with the number. If a session has this number, it may continue instead.
    ///
    /// # Errors
    ///
    /// [`Error::InUse`] if too many tickets are unused, or sessions are being ended; [`Error::NotDirectory`];
    /// [`Error::AccessDenied`] if only another user has access to the mount.
    pub fn ask(
        self: &Arc<Self>,
        dir: InodeNo,
        number: u64,
        uid: u32,
        examine: impl FnOnce() -> std::result::Result<Asking, &'static str>,
    ) -> Result<()> {
        let directory = self.directory(dir)?;
        {
            let mut state = self.state.lock();
            if let Some(lease) = state.leases.get_mut(&number)
                && (lease.uid, lease.directory) == (uid, directory)
            {
                // Before the session continues.
                self.sharing.begin();
                lease.renewed = Instant::now();
                self.ended.notify_all();
                return Ok(());
            }
        }
        self.make_ticket(directory, number, uid, examine)
    }

    /// Makes a ticket to read files below a directory, whose mount need not be writable, and returns the
    /// answer to the user; see [`ask`](Sessions::ask).
    ///
    /// # Errors
    ///
    /// Those of [`ask`](Sessions::ask).
    pub fn ask_to_read(
        self: &Arc<Self>,
        dir: InodeNo,
        number: u64,
        uid: u32,
        examine: impl FnOnce() -> std::result::Result<Asking, &'static str>,
    ) -> Result<Vec<u8>> {
        self.make_ticket(self.directory(dir)?, number, uid, examine)?;
        self.answer(number, uid)
    }

    fn directory(&self, dir: InodeNo) -> Result<Directory> {
        let attr = self.volume.get().attr(dir)?;
        if attr.file_type != FileType::Directory {
            return Err(Error::NotDirectory);
        }
        Ok((dir, attr.generation))
    }

    fn make_ticket(
        self: &Arc<Self>,
        directory: Directory,
        number: u64,
        uid: u32,
        examine: impl FnOnce() -> std::result::Result<Asking, &'static str>,
    ) -> Result<()> {
        // The kernel does not check this for attributes of the directory at which a volume is mounted.
        if !self.for_others && uid != rustix::process::geteuid().as_raw() {
            return Err(Error::AccessDenied);
        }
        self.state.lock().tickets.check_room(uid, Instant::now())?;
        // This takes long, and is not done for a user with too many tickets.
        let asking = examine();
        let mut state = self.state.lock();
        if self.is_closing() {
            return Err(Error::InUse(String::from("sessions are being ended")));
        }
        if let Ok(asking) = &asking {
            self.listen(&mut state)?;
            if asking.access == Access::ReadWrite {
                self.sharing.begin();
            }
        }
        state.tickets.add(directory, number, uid, asking, Instant::now())
    }

    /// The answer to the request of a user with this number.
    ///
    /// # Errors
    ///
    /// [`Error::NoAttribute`] if the user made none, or too long ago.
    pub fn answer(&self, number: u64, uid: u32) -> Result<Vec<u8>> {
        let state = self.state.lock();
        let shown = state.tickets.show(number, uid, Instant::now()).ok_or(Error::NoAttribute)?;
        let invitation = match (shown, &state.listener) {
            (Ok(ticket), Some((socket, _))) => {
                Invitation::Ticket { socket: socket.clone(), ticket }
            }
            (Ok(_), None) => return Err(Error::NoAttribute),
            (Err(why), _) => Invitation::Refused(why.to_owned()),
        };
        Ok(invitation.encode())
    }

    /// Ends all sessions and forgets all tickets. Programs can attach again.
    ///
    /// # Errors
    ///
    /// [`Error::InUse`] if a call does not end, or sessions are being ended already.
    pub fn interrupt(&self) -> Result<()> {
        if self.is_closing() {
            return Err(Error::InUse(String::from("sessions are being ended")));
        }
        let have_ended = self.close(Some(PAUSE_PATIENCE));
        self.go_on();
        if have_ended { Ok(()) } else { Err(Error::InUse(String::from("a call does not end"))) }
    }

    /// How long the kernel may cache names and attributes: `alone` while it is the only front end.
    pub fn lifetime(&self, alone: Duration, shared: Duration) -> Duration {
        if self.sharing.is_on() { alone.min(shared) } else { alone }
    }

    /// Opens the socket, and starts the thread that accepts connections.
    fn listen(self: &Arc<Self>, state: &mut State) -> io::Result<()> {
        if state.listener.is_some() {
            return Ok(());
        }
        // No other program can have taken a name that is random.
        let name = format!("cffs-{}", hex(&tickets::random()?));
        let listener = Arc::new(UnixListener::bind_addr(&SocketAddr::from_abstract_name(&name)?)?);
        let (sessions, accepting) = (Arc::clone(self), Arc::clone(&listener));
        let accept = move || {
            if let Some(processors) = &sessions.processors {
                let _ = sched_setaffinity(None, processors);
            }
            sessions.accept(&accepting);
        };
        thread::Builder::new().name(String::from("attaching")).spawn(accept)?;
        state.listener = Some((name, listener));
        Ok(())
    }

    /// Accepts connections until the socket is closed. This thread then drops the last reference to it:
    /// programs may have sent descriptors, and closing these may take arbitrarily long.
    fn accept(self: &Arc<Self>, listener: &Arc<UnixListener>) {
        let is_open = |state: &State| {
            state.listener.as_ref().is_some_and(|(_, open)| Arc::ptr_eq(open, listener))
        };
        loop {
            let mut state = self.state.lock();
            self.ended
                .wait_while(&mut state, |state| is_open(state) && state.threads >= THREADS_MAX);
            if !is_open(&state) {
                return;
            }
            drop(state);
            match listener.accept() {
                Ok((stream, _)) => self.begin(stream),
                // The socket is closed or, for example, no file descriptor is available.
                Err(_) => thread::sleep(RETRY_INTERVAL),
            }
        }
    }

    /// Starts the thread of a connection. The thread that accepts connections never closes one.
    fn begin(self: &Arc<Self>, stream: UnixStream) {
        self.state.lock().threads += 1;
        let stream = Arc::new(Mutex::new(Some(stream)));
        loop {
            let (sessions, shared) = (Arc::clone(self), Arc::clone(&stream));
            let attach = move || {
                let taken = shared.lock().take();
                if let Some(stream) = taken {
                    sessions.attach(Arc::new(stream));
                }
                sessions.state.lock().threads -= 1;
                sessions.ended.notify_all();
            };
            if thread::Builder::new().name(String::from("attached")).spawn(attach).is_ok() {
                return;
            }
            thread::sleep(RETRY_INTERVAL);
        }
    }

    /// Serves a connection to its end, and closes it.
    fn attach(&self, stream: Arc<UnixStream>) {
        match self.enter(&stream) {
            Ok((number, peer)) => {
                self.serve(&stream, peer);
                self.end_session(number);
            }
            Err(error) => tracing::debug!(%error, "a program was not attached"),
        }
    }

    /// Records a session, unless there are too many. Returns its number, and the user and group of its peer.
    fn enter(&self, stream: &Arc<UnixStream>) -> io::Result<(u64, (u32, u32))> {
        let peer = socket_peercred(stream.as_fd())?;
        let uid = peer.uid.as_raw();
        let mut state = self.state.lock();
        let most = if is_owner(uid) { SESSIONS_MAX } else { SESSIONS_MAX - SESSIONS_OF_OWNERS };
        let own = state.sessions.values().filter(|(other, _)| *other == uid).count();
        let is_full = state.sessions.len() >= most || own >= SESSIONS_OF_USER_MAX;
        if is_full || self.is_closing() {
            const WHY: &str = "too many programs are attached";
            // The buffer of a new socket is empty, so this does not wait.
            (&mut &**stream).write_all(&Answer::Refused(WHY.to_owned()).encode())?;
            return Err(io::Error::other(WHY));
        }
        let number = state.next;
        state.next += 1;
        state.sessions.insert(number, (uid, Arc::clone(stream)));
        Ok((number, (uid, peer.gid.as_raw())))
    }

    /// Serves a session until it ends.
    fn serve(&self, stream: &UnixStream, peer: (u32, u32)) {
        let served = || session::Session::new(self, stream, peer).serve();
        match catch_unwind(AssertUnwindSafe(served)) {
            Ok(Ok(())) => {}
            Ok(Err(error)) => tracing::debug!(%error, "an attached program was cut off"),
            Err(_) => tracing::error!("the session of an attached program panicked"),
        }
    }

    fn end_session(&self, number: u64) {
        let mut state = self.state.lock();
        state.sessions.remove(&number);
        self.ended.notify_all();
    }

    /// The meaning of a ticket, and the guard of the call that uses it.
    fn redeem(&self, ticket: &Ticket, peer: (u32, u32)) -> Option<(Granted, Inside<'_>)> {
        let mut state = self.state.lock();
        if self.is_closing() {
            return None;
        }
        let granted = state.tickets.redeem(ticket, peer, Instant::now())?;
        state.calls += 1;
        Some((granted, Inside(self)))
    }

    /// Permits a session with this ticket to carry out requests, until [`end_lease`](Sessions::end_lease).
    /// Fails if another session has its number.
    fn begin_lease(&self, granted: &Granted) -> bool {
        let Granted { number, asked, directory, ref user, .. } = *granted;
        let lease = Lease { uid: user.uid, directory, renewed: asked };
        match self.state.lock().leases.entry(number) {
            Entry::Occupied(_) => false,
            Entry::Vacant(free) => {
                free.insert(lease);
                true
            }
        }
    }

    fn end_lease(&self, number: u64) {
        self.state.lock().leases.remove(&number);
    }

    /// Waits until the program of a session has shown that its mount is writable. Returns false if the
    /// session is to end.
    fn await_lease(&self, number: u64, stream: &UnixStream) -> bool {
        let mut state = self.state.lock();
        loop {
            if self.is_closing() {
                return false;
            }
            let Some(lease) = state.leases.get(&number) else { return false };
            if lease.renewed.elapsed() < LEASE {
                return true;
            }
            if session::has_hung_up(stream).unwrap_or(true) {
                return false;
            }
            self.ended.wait_for(&mut state, RETRY_INTERVAL);
        }
    }

    /// Whether all sessions are being ended.
    fn is_closing(&self) -> bool {
        self.is_closing.load(Ordering::Acquire)
    }

    /// Closes the socket, ends all sessions, and waits for the calls that use the volume. It does not wait
    /// for other sessions, which may be closing descriptors that their programs have sent: this may take
    /// arbitrarily long. Returns whether all calls have ended within `patience`.
    fn close(&self, patience: Option<Duration>) -> bool {
        let mut state = self.state.lock();
        self.is_closing.store(true, Ordering::Release);
        state.tickets = Tickets::default();
        if let Some((_, listener)) = state.listener.take() {
            // Wakes the thread that accepts connections.
            let _ = rustix::net::shutdown(&*listener, rustix::net::Shutdown::Both);
        }
        for (_, stream) in state.sessions.values() {
            // Sessions that carry out a call still report that it ended.
            let _ = stream.shutdown(Shutdown::Read);
        }
        self.ended.notify_all();
        let answered = Instant::now() + ANSWER_PATIENCE;
        self.ended.wait_while_until(&mut state, |state| !state.sessions.is_empty(), answered);
        for (_, stream) in state.sessions.values() {
            let _ = stream.shutdown(Shutdown::Both);
        }
        let is_in_use = |state: &mut State| state.calls > 0;
        match patience {
            Some(patience) => {
                !self.ended.wait_while_for(&mut state, is_in_use, patience).timed_out()
            }
            None => {
                self.ended.wait_while(&mut state, is_in_use);
                true
            }
        }
    }
}

/// A removal, or a session with requests, until it is dropped: the volume is not closed before.
struct Inside<'a>(&'a Sessions);

impl Drop for Inside<'_> {
    fn drop(&mut self) {
        let sessions = self.0;
        if thread::panicking() {
            // The volume in memory may be half changed.
            const WHY: &str = "a call of an attached program panicked";
            tracing::error!("{WHY}");
            sessions.panicked.store(true, Ordering::Release);
            sessions.volume.get().writer().distrust(WHY);
            sessions.observer.broken();
        }
        let mut state = sessions.state.lock();
        state.calls -= 1;
        sessions.ended.notify_all();
    }
}

impl Companion for Sessions {
    /// Ends all sessions: a server that is replaced hands over its references, but must not hand over those
    /// of sessions.
    fn pause(&self) -> std::result::Result<(), String> {
        match self.close(Some(PAUSE_PATIENCE)) {
            true => Ok(()),
            false => Err(String::from(
                "a call of an attached program does not end, since the kernel has locked a directory; try again",
            )),
        }
    }

    fn go_on(&self) {
        self.is_closing.store(false, Ordering::Release);
    }

    fn end(&self) -> std::result::Result<(), String> {
        // The volume must not be closed before.
        self.close(None);
        match self.panicked.load(Ordering::Acquire) {
            true => Err(String::from("a call of an attached program panicked, as the log says")),
            false => Ok(()),
        }
    }

    fn broken(&self) {
        self.is_closing.store(true, Ordering::Release);
    }
}

/// Whether attached programs change the volume, are about to, or just did. A session that waits for its
/// program, or only reads, does not count.
struct Sharing {
    start: Instant,
    /// When it ends, in milliseconds after the start; 0 if it never began.
    until: AtomicU64,
    /// The removals and requests that are being carried out.
    changes: AtomicUsize,
}

impl Sharing {
    fn new() -> Sharing {
        Sharing { start: Instant::now(), until: AtomicU64::new(0), changes: AtomicUsize::new(0) }
    }

    /// Begins or extends it for [`SHARED_AFTER`].
    fn begin(&self) {
        let until = (self.start.elapsed() + SHARED_AFTER).as_millis() as u64;
        self.until.fetch_max(until, Ordering::SeqCst);
    }

    /// Extends it while a change is made, and then for [`SHARED_AFTER`].
    fn during_change(&self) -> Changing<'_> {
        self.changes.fetch_add(1, Ordering::SeqCst);
        Changing(self)
    }

    fn is_on(&self) -> bool {
        self.changes.load(Ordering::SeqCst) > 0
            || match self.until.load(Ordering::SeqCst) {
                0 => false,
                until => (self.start.elapsed().as_millis() as u64) < until,
            }
    }
}

/// A change that is being made, until this is dropped.
struct Changing<'a>(&'a Sharing);

impl Drop for Changing<'_> {
    fn drop(&mut self) {
        self.0.begin();
        self.0.changes.fetch_sub(1, Ordering::SeqCst);
    }
}

/// Whether a user is root, or the one who mounted the volume.
fn is_owner(uid: u32) -> bool {
    [0, rustix::process::geteuid().as_raw()].contains(&uid)
}

/// The directory of a ticket, with a reference on it.
///
/// # Errors
///
/// [`Error::Stale`] if it was removed.
fn find(volume: &Volume, (ino, generation): Directory) -> Result<Attr> {
    let attr = volume.find(ino)?;
    if attr.generation == generation && attr.nlink > 0 {
        return Ok(attr);
    }
    volume.release(ino, 1);
    Err(Error::Stale)
}
