//! The stream of requests of a program that is attached to a directory, and the stream of answers.

use std::io::{self, IoSliceMut, Read, Write};
use std::os::unix::net::UnixStream;

use cffs::error::Error;
use cffs::wire::{self, Answer, Fault, HEADER_BYTES, REQUEST_BYTES_MAX, Reply, Request};

use rustix::io::retry_on_intr;
use rustix::net::{RecvAncillaryBuffer, RecvFlags, ReturnFlags, recvmsg};

use super::Sessions;
use super::program::Program;

/// How much is received at once.
const RECEIVED_BYTES: usize = 64 << 10;
/// How many answers wait until they are sent together.
const ANSWERS_BYTES: usize = 32 << 10;
/// After this many calls the program is told that they were carried out, even if others have arrived.
const CALLS_SETTLED: u64 = 64;

pub(super) struct Requests<'a> {
    sessions: &'a Sessions,
    stream: &'a UnixStream,
    /// The number of the program's ticket; `None` if it may only read.
    lease: Option<u64>,
    received: Vec<u8>,
    /// The first byte of `received` that was not decoded.
    at: usize,
    answers: Vec<u8>,
    /// The number of calls that were carried out, and of those that were reported to the program.
    calls: u64,
    settled: u64,
}

impl<'a> Requests<'a> {
    pub fn new(sessions: &'a Sessions, stream: &'a UnixStream, lease: Option<u64>) -> Requests<'a> {
        let (received, answers) = Default::default();
        Requests { sessions, stream, lease, received, at: 0, answers, calls: 0, settled: 0 }
    }

    /// Serves until the program ends the session or breaks the rules, or the server closes it.
    ///
    /// # Errors
    ///
    /// Errors of the connection, and violations of the protocol.
    pub fn serve(mut self, program: &mut Program<'_>) -> io::Result<()> {
        // An idle program may stay attached as long as it wants.
        self.stream.set_read_timeout(None)?;
        let served = self.serve_all(program);
        // The program learns of all calls that were carried out.
        served.and(self.settle())
    }

    fn serve_all(&mut self, program: &mut Program<'_>) -> io::Result<()> {
        while let Some(request) = self.next()? {
            // Requests that have arrived already must not delay an unmount or a restart.
            if self.sessions.is_closing() {
                return Ok(());
            }
            if let (true, Some(lease)) = (request.is_change(), self.lease)
                && !self.sessions.await_lease(lease, self.stream)
            {
                return Ok(());
            }
            self.calls += 1;
            let is_answered = request.is_answered();
            let outcome = if request.is_change() && self.lease.is_none() {
                Some(Reply::Fault(Fault::from(&Error::ReadOnly)))
            } else {
                let changing = request.is_change().then(|| self.sessions.sharing.during_change());
                let outcome = program.carry_out(request);
                drop(changing);
                outcome
            };
            match (outcome, is_answered) {
                (Some(reply), true) => self.answer(&Answer::Reply(reply)),
                (Some(Reply::Fault(fault)), false) => {
                    self.answer(&Answer::PutFailed { call: self.calls, fault });
                }
                _ => {}
            }
            if self.calls - self.settled >= CALLS_SETTLED {
                self.settle()?;
            } else if self.answers.len() >= ANSWERS_BYTES {
                self.flush()?;
            }
        }
        Ok(())
    }

    /// The next request; `None` if the connection has ended.
    fn next(&mut self) -> io::Result<Option<Request>> {
        loop {
            let rest = &self.received[self.at..];
            if let Some((head, rest)) = rest.split_first_chunk::<HEADER_BYTES>() {
                let (len, kind) = wire::header(*head, REQUEST_BYTES_MAX)?;
                if let Some(body) = rest.get(..len) {
                    let request = Request::decode(kind, body)?;
                    self.at += HEADER_BYTES + len;
                    return Ok(Some(request));
                }
            }
            // The program may wait for an answer, or for its memory, before it sends more.
            self.settle()?;
            if !self.receive()? {
                return Ok(None);
            }
        }
    }

    /// Receives more bytes; false if the connection has ended.
    ///
    /// # Errors
    ///
    /// Errors of the connection; a descriptor comes with the bytes.
    fn receive(&mut self) -> io::Result<bool> {
        self.received.drain(..self.at);
        self.at = 0;
        let filled = self.received.len();
        self.received.resize(filled + RECEIVED_BYTES, 0);
        let len = look(self.stream, &mut self.received[filled..])?;
        self.received.truncate(filled + len);
        (&mut &*self.stream).read_exact(&mut self.received[filled..])?;
        Ok(len > 0)
    }

    fn answer(&mut self, answer: &Answer) {
        self.answers.extend(answer.encode());
    }

    /// Reports the calls that were carried out, and sends all answers.
    fn settle(&mut self) -> io::Result<()> {
        if self.calls > self.settled {
            self.settled = self.calls;
            self.answer(&Answer::Settled { calls: self.calls });
        }
        self.flush()
    }

    fn flush(&mut self) -> io::Result<()> {
        (&mut &*self.stream).write_all(&self.answers)?;
        self.answers.clear();
        Ok(())
    }
}

/// Waits for bytes, and copies them, but leaves them in the stream.
///
/// Closing a descriptor may take arbitrarily long, and an unmount waits for this session. So a descriptor
/// must not be received: it stays in the stream, which is closed after the session.
fn look(stream: &UnixStream, buffer: &mut [u8]) -> io::Result<usize> {
    let (mut no_descriptors, mut parts) =
        (RecvAncillaryBuffer::default(), [IoSliceMut::new(buffer)]);
    let looked =
        retry_on_intr(|| recvmsg(stream, &mut parts, &mut no_descriptors, RecvFlags::PEEK))?;
    if looked.flags.contains(ReturnFlags::CTRUNC) {
        return Err(wire::BadMessage.into());
    }
    Ok(looked.bytes)
}
