//! The connection of an attached program with the server: messages, and contents in shared memory.

use std::collections::{HashMap, HashSet, VecDeque};
use std::io::{self, Read};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, ftruncate, memfd_create};
use rustix::io::{Errno, pread, pwrite};
use rustix::net::{
    SendAncillaryBuffer, SendAncillaryMessage, SendFlags, Shutdown, send, sendmsg, shutdown,
};

use super::answers::Answers;
use super::door::{AttachError, Door};
use super::ring::Ring;
use crate::error::{Error, Result};
use crate::vfs::types::Attr;
use crate::wire::{self, Answer, Call, Fault, LEASE, Memory, Reply, Request, VERSION};

/// The memory that is shared with the server.
const MEMORY_BYTES: u32 = 16 << 20;
/// How many bytes of requests wait until they are sent together.
const REQUESTS_BYTES: usize = 8 << 10;
/// How many bytes of contents wait for them to be sent.
const CONTENTS_BYTES: u32 = 256 << 10;

/// The connection of a session.
pub(super) struct Connection {
    door: Door,
    stream: UnixStream,
    memory: OwnedFd,
    ring: Ring,
    /// Requests that were not sent yet, and the contents that belong to them.
    requests: Vec<u8>,
    contents: u32,
    answers: Answers,
    /// The calls that were made, and those that were carried out.
    calls: u64,
    settled: u64,
    /// The last call that makes a change, for which the mount must be writable.
    last_change: u64,
    /// The calls that wait for a reply, in their order, each with the memory for its contents.
    asked: VecDeque<(Asked, Memory)>,
    /// The replies that have arrived and were not taken yet.
    replies: HashMap<Asked, Arrived>,
    /// The calls whose replies are discarded.
    abandoned: HashSet<Asked>,
    /// The puts that have failed.
    failed: HashMap<u64, Fault>,
    /// Why no more calls can be made.
    broken: Option<Broken>,
}

/// A call whose reply was not taken yet, by its number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[must_use = "its reply is kept until it is taken"]
pub(in crate::files) struct Asked(u64);

/// A reply, and the contents of the files that it names.
pub(super) struct Arrived {
    pub reply: Reply,
    /// Copied, since later calls use the memory.
    pub contents: Vec<u8>,
    /// Where the contents began in the shared memory.
    pub offset: u32,
}

/// Why no more calls can be made.
enum Broken {
    /// The mount has become read-only.
    ReadOnly,
    Ended(String),
}

impl From<&Broken> for Error {
    fn from(broken: &Broken) -> Error {
        match broken {
            Broken::ReadOnly => Error::ReadOnly,
            Broken::Ended(why) => Error::Detached(why.clone()),
        }
    }
}

impl Connection {
    /// Attaches this program to a directory of a mounted volume.
    ///
    /// # Errors
    ///
    /// See [`AttachError`].
    pub fn open(door: Door) -> Result<(Connection, Attr), AttachError> {
        let (ticket, stream) = door.connect()?;
        let umask = umask()?;
        let mut connection = Connection::new(door, stream)?;
        // If the server has closed the connection, its answer says why.
        let hello = Call::Hello { oldest: VERSION, newest: VERSION };
        let _ = send(&connection.stream, &hello.encode(), SendFlags::NOSIGNAL);
        match connection.opening_answer()? {
            Answer::Welcome { version: VERSION } => {}
            Answer::Refused(why) => return Err(AttachError::Refused(why)),
            _ => return Err(bad().into()),
        }
        connection.attach(&Call::Attach { ticket, umask, memory_bytes: MEMORY_BYTES })?;
        let root = match connection.opening_answer()? {
            Answer::Attached { root } => root,
            Answer::Refused(why) => return Err(AttachError::Refused(why)),
            _ => return Err(bad().into()),
        };
        connection.stream.set_nonblocking(true)?;
        Ok((connection, root))
    }

    pub(super) fn new(door: Door, stream: UnixStream) -> io::Result<Connection> {
        Ok(Connection {
            door,
            stream,
            memory: memory()?,
            ring: Ring::new(MEMORY_BYTES),
            requests: Vec::new(),
            contents: 0,
            answers: Answers::default(),
            calls: 0,
            settled: 0,
            last_change: 0,
            asked: VecDeque::new(),
            replies: HashMap::new(),
            abandoned: HashSet::new(),
            failed: HashMap::new(),
            broken: None,
        })
    }

    /// Sends the call that attaches, with the descriptor of the memory.
    fn attach(&self, call: &Call) -> io::Result<()> {
        let message = call.encode();
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        let descriptors = [self.memory.as_fd()];
        control.push(SendAncillaryMessage::ScmRights(&descriptors));
        let parts = [io::IoSlice::new(&message)];
        // It fits in the socket's buffer, which is empty.
        match sendmsg(&self.stream, &parts, &mut control, SendFlags::NOSIGNAL)? {
            sent if sent == message.len() => Ok(()),
            _ => Err(io::ErrorKind::WriteZero.into()),
        }
    }

    /// The next answer, before the connection is used by calls.
    fn opening_answer(&mut self) -> Result<Answer, AttachError> {
        loop {
            if let Some(answer) = self.answers.next()? {
                return Ok(answer);
            }
            let mut more = [0; 1 << 10];
            match self.stream.read(&mut more) {
                Ok(0) => return Err(AttachError::Closing),
                Ok(len) => self.answers.add(&more[..len]),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// Makes a call, and waits for its answer.
    ///
    /// # Errors
    ///
    /// The error of the request; [`Error::Detached`] if the session has ended, and [`Error::ReadOnly`] if the
    /// mount is read-only.
    pub fn call(&mut self, request: &Request) -> Result<Reply> {
        let asked = self.ask(request, Memory::default())?;
        self.answer(asked).map(|arrived| arrived.reply)
    }

    /// Makes a call without waiting. It is sent with others, at the latest by [`send`](Connection::send) or
    /// the next wait. The contents that it reads are put into a range of the shared memory.
    /// [`answer`](Connection::answer) must take its reply.
    ///
    /// # Errors
    ///
    /// As of [`begin`](Connection::begin).
    pub fn ask(&mut self, request: &Request, contents: Memory) -> Result<Asked> {
        self.push(request)?;
        let asked = Asked(self.calls);
        self.asked.push_back((asked, contents));
        self.send_if_many()?;
        Ok(asked)
    }

    /// Waits for the reply to a call.
    ///
    /// # Errors
    ///
    /// As of [`call`](Connection::call).
    pub fn answer(&mut self, asked: Asked) -> Result<Arrived> {
        self.wait(|connection| connection.replies.contains_key(&asked))?;
        match self.replies.remove(&asked) {
            Some(Arrived { reply: Reply::Fault(fault), .. }) => Err(fault.into()),
            Some(arrived) => Ok(arrived),
            None => Err(Error::Io(bad())),
        }
    }

    /// Discards the reply to a call when it arrives.
    pub fn abandon(&mut self, asked: Asked) {
        if self.replies.remove(&asked).is_none() {
            self.abandoned.insert(asked);
        }
    }

    /// Makes a call without an answer. Returns its number.
    ///
    /// # Errors
    ///
    /// As of [`call`](Connection::call), except for that of the request.
    pub fn begin(&mut self, request: &Request) -> Result<u64> {
        self.push(request)?;
        self.send_if_many()?;
        Ok(self.calls)
    }

    fn send_if_many(&mut self) -> Result<()> {
        let are_many = self.requests.len() >= REQUESTS_BYTES || self.contents >= CONTENTS_BYTES;
        if are_many { self.send() } else { Ok(()) }
    }

    /// Waits until a call without an answer was carried out, and returns its failure.
    ///
    /// # Errors
    ///
    /// As of [`call`](Connection::call). If the session has ended before, the call may have been carried out.
    pub fn finish(&mut self, call: u64) -> Result<()> {
        if self.settled < call && !self.failed.contains_key(&call) {
            self.wait(|connection| connection.settled >= call)?;
        }
        self.failed.remove(&call).map_or(Ok(()), |fault| Err(fault.into()))
    }

    /// Puts contents into the shared memory, for the next call.
    ///
    /// # Errors
    ///
    /// As of [`begin`](Connection::begin).
    pub fn share(&mut self, contents: &[u8]) -> Result<Memory> {
        let range = self.reserve(contents.len() as u32)?;
        let (offset, len) = (range.offset, range.len);
        let mut written = 0;
        while written < contents.len() {
            let at = u64::from(offset) + written as u64;
            written += pwrite(&self.memory, &contents[written..], at).map_err(io::Error::from)?;
        }
        self.contents += len;
        Ok(Memory { offset, len })
    }

    /// Takes a range of the shared memory for the next call.
    ///
    /// # Errors
    ///
    /// As of [`begin`](Connection::begin).
    pub fn reserve(&mut self, len: u32) -> Result<Memory> {
        self.check()?;
        loop {
            if let Some(offset) = self.ring.take(len, self.calls + 1) {
                return Ok(Memory { offset, len });
            }
            let first = self.ring.first_call().unwrap_or(self.calls);
            self.wait(|connection| connection.settled >= first)?;
        }
    }

    /// Copies contents that the server has put into the range of the last call.
    ///
    /// # Errors
    ///
    /// The server has named a range beyond the end of the memory.
    pub fn fetch(&self, offset: u32, buffer: &mut [u8]) -> Result<()> {
        let mut filled = 0;
        while filled < buffer.len() {
            let at = u64::from(offset) + filled as u64;
            match pread(&self.memory, &mut buffer[filled..], at).map_err(io::Error::from)? {
                0 => return Err(Error::Io(bad())),
                read => filled += read,
            }
        }
        Ok(())
    }

    #[cfg(test)]
    pub(super) fn stream_of_child(&self) -> OwnedFd {
        self.stream.try_clone().expect("a copy").into()
    }

    /// Ends the connection, even if a child of this process has it, too.
    pub fn shut_down(self) {
        // If this fails, the server has closed it.
        let _ = shutdown(&self.stream, Shutdown::Both);
    }

    /// The directory at which the session began.
    pub fn directory(&self) -> BorrowedFd<'_> {
        self.door.directory()
    }

    fn push(&mut self, request: &Request) -> Result<()> {
        self.check()?;
        self.calls += 1;
        if request.is_change() {
            self.last_change = self.calls;
        }
        self.requests.extend(request.encode());
        Ok(())
    }

    /// Fails if no more calls can be made.
    fn check(&self) -> Result<()> {
        self.broken.as_ref().map_or(Ok(()), |broken| Err(broken.into()))
    }

    /// Sends all requests. Receives meanwhile, since the server may wait for that.
    ///
    /// # Errors
    ///
    /// As of [`begin`](Connection::begin).
    pub fn send(&mut self) -> Result<()> {
        self.check()?;
        self.renew()?;
        self.contents = 0;
        let requests = std::mem::take(&mut self.requests);
        let mut rest = &requests[..];
        while !rest.is_empty() {
            // No SIGPIPE if the server has closed the connection: the program may not ignore it.
            match send(&self.stream, rest, SendFlags::NOSIGNAL) {
                Ok(sent) => rest = &rest[sent..],
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => self.exchange(PollFlags::IN | PollFlags::OUT)?,
                Err(errno) => {
                    self.receive_all();
                    return Err(self.end(&errno.into()));
                }
            }
        }
        Ok(())
    }

    /// Waits until the answers that have arrived satisfy a condition.
    fn wait(&mut self, is_satisfied: impl Fn(&Connection) -> bool) -> Result<()> {
        let mut outcome = self.send();
        while !is_satisfied(self) {
            outcome?;
            outcome = self.exchange(PollFlags::IN);
        }
        Ok(())
    }

    /// Waits for the stream, and takes in the answers that have arrived.
    fn exchange(&mut self, events: PollFlags) -> Result<()> {
        let interval = Timespec { tv_sec: 0, tv_nsec: (LEASE / 4).subsec_nanos().into() };
        let mut descriptors = [PollFd::new(&self.stream, events)];
        match poll(&mut descriptors, Some(&interval)) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(errno) => return Err(self.end(&errno.into())),
        }
        self.renew()?;
        self.receive().map(drop)
    }

    /// Takes in answers that have arrived; false if there were no bytes.
    fn receive(&mut self) -> Result<bool> {
        let mut more = [0; 16 << 10];
        match (&mut &self.stream).read(&mut more) {
            Ok(0) => return Err(self.end(&io::ErrorKind::ConnectionReset.into())),
            Ok(len) => self.answers.add(&more[..len]),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(false),
            // There may be more.
            Err(error) if error.kind() == io::ErrorKind::Interrupted => return Ok(true),
            Err(error) => return Err(self.end(&error)),
        }
        while let Some(answer) = self.answers.next().map_err(|error| self.end(&error))? {
            match answer {
                Answer::Reply(reply) => self.arrived(reply)?,
                Answer::PutFailed { call, fault } => drop(self.failed.insert(call, fault)),
                Answer::Settled { calls } => {
                    self.settled = calls;
                    self.ring.settle(calls);
                }
                _ => return Err(self.end(&bad())),
            }
        }
        Ok(true)
    }

    /// Keeps the reply to the next call that waits for one, and the contents that it names, whose memory is
    /// reused when the call is settled.
    fn arrived(&mut self, reply: Reply) -> Result<()> {
        let Some((asked, Memory { offset, len })) = self.asked.pop_front() else {
            return Err(self.end(&bad()));
        };
        if self.abandoned.remove(&asked) {
            return Ok(());
        }
        let mut contents = Vec::new();
        if let Reply::Many(outcomes) = &reply {
            let end = outcomes.iter().filter_map(|(_, outcome)| outcome.contents_end()).max();
            let used = end.map_or(0, |end| end.saturating_sub(offset.into()));
            if used > len.into() {
                return Err(self.end(&bad()));
            }
            contents.resize(used as usize, 0);
            self.fetch(offset, &mut contents)?;
        }
        self.replies.insert(asked, Arrived { reply, contents, offset });
        Ok(())
    }

    /// Takes in all answers that have arrived, before the session ends: those calls have been made.
    fn receive_all(&mut self) {
        while self.receive().is_ok_and(|more| more) {}
    }

    /// Renews the lease at the mount, so that the server makes changes, if it was not renewed recently.
    fn renew(&mut self) -> Result<()> {
        if self.settled >= self.last_change || self.door.asked().elapsed() < LEASE / 3 {
            return Ok(());
        }
        match self.door.ask() {
            // The server is ending the session, which the next call learns from the connection.
            Ok(()) | Err(AttachError::Busy) => Ok(()),
            Err(AttachError::ReadOnly) => {
                self.receive_all();
                self.broken = Some(Broken::ReadOnly);
                Err(Error::ReadOnly)
            }
            Err(error) => {
                self.receive_all();
                Err(self.end(&io::Error::other(error)))
            }
        }
    }

    /// Ends the session because of an error of the connection. Later calls fail, too.
    fn end(&mut self, error: &io::Error) -> Error {
        let is_closed =
            matches!(error.kind(), io::ErrorKind::ConnectionReset | io::ErrorKind::BrokenPipe);
        let why = if is_closed { AttachError::Closing.to_string() } else { error.to_string() };
        // The first error is the cause of the others.
        (&*self.broken.get_or_insert(Broken::Ended(why))).into()
    }
}

/// New memory for a session. Its size cannot change, so the server can rely on it.
fn memory() -> rustix::io::Result<OwnedFd> {
    let memory = memfd_create("cffs", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
    ftruncate(&memory, MEMORY_BYTES.into())?;
    fcntl_add_seals(&memory, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)?;
    Ok(memory)
}

/// The umask of this process. umask(2) would change it for a moment, which other threads would see.
fn umask() -> io::Result<u32> {
    let status = std::fs::read_to_string("/proc/self/status")?;
    let umask = status.lines().find_map(|line| line.strip_prefix("Umask:"));
    let umask = umask.and_then(|umask| u32::from_str_radix(umask.trim(), 8).ok());
    umask.ok_or_else(|| io::Error::other("the kernel does not show the umask"))
}

fn bad() -> io::Error {
    wire::BadMessage.into()
}
