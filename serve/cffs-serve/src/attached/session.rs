//! A session: it reads the calls of one program, and carries them out in order.

use std::io::{self, Read, Write};
use std::mem::MaybeUninit;
use std::ops::ControlFlow;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use cffs::device::Access;
use cffs::vfs::errno;
use cffs::vfs::types::Attr;
use cffs::wire::{
    self, Answer, CALL_BYTES_MAX, Call, End, Failure, HEADER_BYTES, Handle, Removed, Ticket,
    VERSION,
};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::retry_on_intr;
use rustix::net::sockopt::set_socket_oobinline;
use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, recvmsg};

use super::Sessions;
use super::handles::Handles;
use super::memory::SharedMemory;
use super::program::Program;
use super::removal::{Failed, Removal};
use super::requests::Requests;

/// How long a program may take to send a whole call.
const CALL_PATIENCE: Duration = Duration::from_secs(10);
/// How long a program may take to receive some bytes of answers that wait for it, until it is attached.
const ANSWER_PATIENCE: Duration = Duration::from_secs(30);
/// How often a program gets reports, and the session checks whether the program still exists.
const REPORT_INTERVAL: Duration = Duration::from_millis(50);
/// How many answers wait until they are sent together.
const ANSWERS_BYTES: usize = 32 << 10;

pub(super) struct Session<'a> {
    sessions: &'a Sessions,
    stream: &'a UnixStream,
    peer: (u32, u32),
}

impl<'a> Session<'a> {
    pub fn new(sessions: &'a Sessions, stream: &'a UnixStream, peer: (u32, u32)) -> Session<'a> {
        Session { sessions, stream, peer }
    }

    /// Serves until the program ends the session or breaks the rules, or the server closes it.
    ///
    /// # Errors
    ///
    /// Errors of the connection, and violations of the protocol.
    pub fn serve(&self) -> io::Result<()> {
        self.stream.set_write_timeout(Some(ANSWER_PATIENCE))?;
        // Otherwise the kernel discards bytes that are sent with MSG_OOB, and closes descriptors sent with
        // them.
        set_socket_oobinline(self.stream, true)?;
        match self.call(false)?.map(|(call, _)| call) {
            Some(Call::Hello { oldest, newest }) if (oldest..=newest).contains(&VERSION) => {
                self.send(&Answer::Welcome { version: VERSION })?;
            }
            Some(Call::Hello { .. }) => {
                return self.refuse("the server does not know this version of attaching");
            }
            Some(_) => return Err(wire::BadMessage.into()),
            None => return Ok(()),
        }
        while let Some((call, descriptor)) = self.call(true)? {
            match (call, descriptor) {
                (Call::Remove { ticket, name, recursive }, _) => {
                    self.remove(&ticket, &name, recursive)?;
                }
                (Call::Attach { ticket, umask, memory_bytes }, Some(memory)) => {
                    // The ticket is used after this: closing a refused descriptor may take arbitrarily long,
                    // and an unmount does not wait for that.
                    let memory = SharedMemory::new(memory, memory_bytes)?;
                    return self.attach(&ticket, umask, memory);
                }
                _ => return Err(wire::BadMessage.into()),
            }
        }
        Ok(())
    }

    /// The next call, and the descriptor that came with it, if one may; `None` if the connection has ended.
    fn call(&self, takes_descriptor: bool) -> io::Result<Option<(Call, Option<OwnedFd>)>> {
        let deadline = Instant::now() + CALL_PATIENCE;
        let mut head = [0; HEADER_BYTES];
        let (mut received, mut descriptor) = (0, None);
        if takes_descriptor {
            (received, descriptor) = self.receive(&mut head, deadline)?;
            if received == 0 {
                return Ok(None);
            }
        }
        if received < HEADER_BYTES && !self.read(&mut head[received..], deadline)? {
            return Ok(None);
        }
        let (len, kind) = wire::header(head, CALL_BYTES_MAX)?;
        let mut body = [0; CALL_BYTES_MAX];
        let body = &mut body[..len];
        match self.read(body, deadline)? {
            true => Ok(Some((Call::decode(kind, body)?, descriptor))),
            false => Err(io::ErrorKind::UnexpectedEof.into()),
        }
    }

    /// Receives some bytes, and a descriptor that comes with them.
    ///
    /// # Errors
    ///
    /// Errors of the connection; more than one descriptor.
    fn receive(
        &self,
        buffer: &mut [u8],
        deadline: Instant,
    ) -> io::Result<(usize, Option<OwnedFd>)> {
        let left = deadline.saturating_duration_since(Instant::now());
        self.stream.set_read_timeout(Some(left.max(Duration::from_millis(1))))?;
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let mut parts = [io::IoSliceMut::new(buffer)];
        let received = retry_on_intr(|| {
            recvmsg(self.stream, &mut parts, &mut control, RecvFlags::CMSG_CLOEXEC)
        })?;
        let mut descriptors: Vec<OwnedFd> = Vec::new();
        for message in control.drain() {
            if let RecvAncillaryMessage::ScmRights(sent) = message {
                descriptors.extend(sent);
            }
        }
        if descriptors.len() > 1 || received.flags.contains(ReturnFlags::CTRUNC) {
            return Err(wire::BadMessage.into());
        }
        Ok((received.bytes, descriptors.pop()))
    }

    /// Carries out the requests of a program until its session ends.
    fn attach(&self, ticket: &Ticket, umask: u32, memory: SharedMemory) -> io::Result<()> {
        // Dropped after the handles: an unmount waits for their references.
        let Some((granted, _inside)) = self.sessions.redeem(ticket, self.peer) else {
            return self.refuse("the ticket is not valid, or no longer");
        };
        if granted.are_covered {
            return self.refuse(
                "something is mounted in a volume, which this program would pass by: unmount it first",
            );
        }
        let volume = self.sessions.volume.get();
        let root = match super::find(&volume, granted.directory) {
            Ok(root) => root,
            Err(error) => return self.refuse(&error.to_string()),
        };
        let mut handles = Handles::new(&volume);
        handles.add(Handle::ROOT, &root, false);
        let mut lease = None;
        if granted.access == Access::ReadWrite {
            if !self.sessions.begin_lease(&granted) {
                return self.refuse("another session has the number of this ticket");
            }
            lease = Some(EndLease(self.sessions, granted.number));
        }
        let number = lease.as_ref().map(|lease| lease.1);
        let observer = &*self.sessions.observer;
        let mut program = Program::new(&volume, observer, (&granted.user, umask), memory, handles);
        self.send(&Answer::Attached { root })?;
        // A session may wait for its program indefinitely, for requests as well as for the program to receive
        // answers: its user may have stopped the program. The session takes no more memory meanwhile.
        self.stream.set_write_timeout(None)?;
        let served = Requests::new(self.sessions, self.stream, number).serve(&mut program);
        program.end(self.sessions.is_closing());
        served
    }

    /// Fills the buffer until the deadline, however slowly the bytes arrive. Returns false if the connection
    /// has ended before the first byte. Descriptors that come with the bytes are discarded by the kernel.
    fn read(&self, buffer: &mut [u8], deadline: Instant) -> io::Result<bool> {
        let mut filled = 0;
        while filled < buffer.len() {
            let left = deadline.saturating_duration_since(Instant::now());
            // A timeout of zero would wait forever.
            self.stream.set_read_timeout(Some(left.max(Duration::from_millis(1))))?;
            match (&mut &*self.stream).read(&mut buffer[filled..]) {
                Ok(0) if filled == 0 => return Ok(false),
                Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Ok(more) => filled += more,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
            if Instant::now() >= deadline && filled < buffer.len() {
                return Err(io::ErrorKind::TimedOut.into());
            }
        }
        Ok(true)
    }

    fn send(&self, answer: &Answer) -> io::Result<()> {
        (&mut &*self.stream).write_all(&answer.encode())
    }

    fn refuse(&self, why: &str) -> io::Result<()> {
        self.send(&Answer::Refused(why.to_owned()))
    }

    fn remove(&self, ticket: &Ticket, name: &[u8], recursive: bool) -> io::Result<()> {
        let Some((granted, inside)) = self.sessions.redeem(ticket, self.peer) else {
            return self.refuse("the ticket is not valid, or no longer");
        };
        if granted.access == Access::ReadOnly {
            return self.refuse("the ticket is for reading");
        }
        let changing = self.sessions.sharing.during_change();
        let volume = self.sessions.volume.get();
        let mut report = Report::new(self);
        let removed = match super::find(&volume, granted.directory) {
            Ok(Attr { ino, .. }) => {
                let observer = &*self.sessions.observer;
                let mut step =
                    |step: Option<Failed<'_>>, removed: &Removed| report.step(step, removed);
                Removal::new(&volume, observer, &granted.user, &mut step).run(ino, name, recursive)
            }
            Err(error) => {
                let removed = Removed::default();
                let _ = report.step(Some(Failed { path: name.to_vec(), error: &error }), &removed);
                removed
            }
        };
        drop((changing, inside));
        report.finish(removed)
    }
}

/// Ends the lease of a session when it is dropped.
struct EndLease<'a>(&'a Sessions, u64);

impl Drop for EndLease<'_> {
    fn drop(&mut self) {
        self.0.end_lease(self.1);
    }
}

/// Whether a program has ended, or has closed its side of the connection, which ends the call.
pub(super) fn has_hung_up(stream: &UnixStream) -> io::Result<bool> {
    let mut descriptors = [PollFd::new(stream, PollFlags::RDHUP)];
    poll(&mut descriptors, Some(&Timespec { tv_sec: 0, tv_nsec: 0 }))?;
    Ok(!descriptors[0].revents().is_empty())
}

/// The answers to a call while it is carried out.
struct Report<'a> {
    session: &'a Session<'a>,
    waiting: Vec<u8>,
    steps: u32,
    sent: Instant,
    end: End,
    failure: Option<io::Error>,
}

impl<'a> Report<'a> {
    fn new(session: &'a Session<'a>) -> Report<'a> {
        let (waiting, sent) = (Vec::new(), Instant::now());
        Report { session, waiting, steps: 0, sent, end: End::Complete, failure: None }
    }

    /// Records a failure, if it is one, and reports from time to time. Breaks if the call is to end.
    fn step(&mut self, failed: Option<Failed<'_>>, removed: &Removed) -> ControlFlow<()> {
        if let Some(Failed { path, error }) = failed {
            let failure =
                Failure { path, errno: errno(error) as u16, text: error.without_advice() };
            self.waiting.extend(Answer::Failed(failure).encode());
        }
        if self.session.sessions.is_closing.load(Ordering::Acquire) {
            self.end = End::Closing;
            return ControlFlow::Break(());
        }
        self.steps += 1;
        let is_due = self.steps.is_multiple_of(64) && self.sent.elapsed() >= REPORT_INTERVAL;
        if !is_due && self.waiting.len() < ANSWERS_BYTES {
            return ControlFlow::Continue(());
        }
        self.waiting.extend(Answer::Progress(*removed).encode());
        match self.flush().and_then(|()| has_hung_up(self.session.stream)) {
            Ok(false) => ControlFlow::Continue(()),
            Ok(true) => {
                let is_closing = self.session.sessions.is_closing.load(Ordering::Acquire);
                self.end = if is_closing { End::Closing } else { End::Cancelled };
                ControlFlow::Break(())
            }
            Err(error) => {
                self.failure = Some(error);
                ControlFlow::Break(())
            }
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        (&mut &*self.session.stream).write_all(&self.waiting)?;
        self.waiting.clear();
        self.sent = Instant::now();
        Ok(())
    }

    fn finish(mut self, removed: Removed) -> io::Result<()> {
        if let Some(error) = self.failure.take() {
            return Err(error);
        }
        self.waiting.extend(Answer::Done { removed, end: self.end }.encode());
        self.flush()
    }
}
