//! One connection: a thread that reads calls, one that writes replies, and their limits.
//!
//! ```text
//!   reader ── a permit for each call ──▶ pool of workers ── reply, with the permit ──▶ writer
//!     └───────── waits while the connection has too much under way ◀── permits come back ──┘
//! ```
//!
//! So a peer that sends calls and does not read replies occupies the bytes of its permits, but no worker. If
//! no other call of the connection is running, the worker sends as much of the reply as the peer accepts, and
//! leaves the rest to the writer.

use std::io::{self, BufReader, IoSlice, Read};
use std::net::{Shutdown, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{self, Receiver, Sender};
use std::thread;
use std::time::{Duration, Instant};

use nfs_wire::record::{self, Limits};
use parking_lot::{Condvar, Mutex};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{SendAncillaryBuffer, SendFlags, sendmsg};

use super::pool::{Job, Pool};
use super::request::{HEAD_BYTES_MAX, Peer, TRANSFER_BYTES_MAX};
use super::service::Service;
use super::stop::{Stop, Woken};

/// The size limit of a record: the longest WRITE.
const RECORD: Limits =
    Limits { bytes_max: (TRANSFER_BYTES_MAX + HEAD_BYTES_MAX) as usize, fragments_max: 64 };
/// The most calls of one connection in progress.
const CALLS_MAX: usize = 64;
/// The most bytes of these calls and their replies; beyond that no further call is read.
const BYTES_MAX: usize = 16 << 20;
/// The same for all connections together, except that each may always have one call in progress: peers that
/// do not read their replies do not stop others.
const TOTAL_BYTES_MAX: usize = 256 << 20;
/// How long receiving a record, and sending a reply, may take.
const RECORD_TIME: Duration = Duration::from_secs(30);
/// How long a peer has to close its end after the last reply. Closing here while calls still arrive would
/// reset the connection and lose replies in flight.
const HANG_UP_TIME: Duration = Duration::from_millis(500);
/// How long a connection may be idle. Clients reconnect when they need to.
const IDLE_TIME: Duration = Duration::from_secs(6 * 60);
const READ_AHEAD_BYTES: usize = 64 << 10;
/// Replies shorter than this are sent together with the next ones.
const BATCH_BYTES: usize = 256 << 10;

#[cfg(test)]
mod tests;

/// The bytes in progress on all connections.
#[derive(Default)]
pub(super) struct Total(AtomicUsize);

/// The calls in progress on a connection.
struct Underway {
    /// The number of calls, and their bytes.
    count: Mutex<(usize, usize)>,
    fell: Condvar,
    total: Arc<Total>,
}

/// The right to have a call in progress, released when its reply is written or dropped.
pub(super) struct Permit {
    underway: Arc<Underway>,
    bytes: usize,
}

impl Underway {
    fn new(total: &Arc<Total>) -> Underway {
        Underway { count: Mutex::default(), fell: Condvar::new(), total: Arc::clone(total) }
    }

    fn has_room(&self, (calls, bytes): (usize, usize)) -> bool {
        let is_free = self.total.0.load(Ordering::Relaxed) < TOTAL_BYTES_MAX;
        calls < CALLS_MAX && bytes < BYTES_MAX && (is_free || calls == 0)
    }

    fn wait_for_room(&self) {
        let mut count = self.count.lock();
        // If the total is exceeded, the end of one of its own calls wakes it.
        while !self.has_room(*count) {
            self.fell.wait(&mut count);
        }
    }
}

impl Permit {
    fn take(underway: &Arc<Underway>, bytes: usize) -> Permit {
        let mut count = underway.count.lock();
        (count.0, count.1) = (count.0 + 1, count.1 + bytes);
        underway.total.0.fetch_add(bytes, Ordering::Relaxed);
        Permit { underway: Arc::clone(underway), bytes }
    }

    /// Whether the connection has no other call in progress.
    fn is_alone(&self) -> bool {
        self.underway.count.lock().0 == 1
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        let mut count = self.underway.count.lock();
        (count.0, count.1) = (count.0 - 1, count.1 - self.bytes);
        self.underway.total.0.fetch_sub(self.bytes, Ordering::Relaxed);
        self.underway.fell.notify_all();
    }
}

/// A reply to send; `None` as bytes ends the connection.
pub(super) type Reply = (Option<Vec<u8>>, Permit);

/// The senders of replies to one peer.
#[derive(Clone)]
struct Replies {
    output: Arc<Output>,
    /// The writer ends with the last sender.
    writer: Sender<Reply>,
}

/// The stream to the peer, used by one thread at a time.
struct Output {
    stream: Arc<TcpStream>,
    /// The unsent rest of a reply, which the next sender sends first.
    rest: Mutex<Vec<u8>>,
}

impl Replies {
    /// Sends a reply directly, or passes it to the writer.
    fn send(&self, (reply, permit): Reply) {
        let reply = match reply {
            Some(bytes) if permit.is_alone() => match self.output.send_at_once(bytes) {
                Ok(()) => return,
                Err(left) => Some(left),
            },
            other => other,
        };
        // If the writer has ended, this drops the permit.
        let _ = self.writer.send((reply, permit));
    }
}

impl Output {
    /// Sends as much as the peer accepts, without waiting. Returns a reply that the writer must send; the
    /// rest of a partly sent reply is left for the writer.
    fn send_at_once(&self, bytes: Vec<u8>) -> Result<(), Vec<u8>> {
        let Some(mut rest) = self.rest.try_lock().filter(|rest| rest.is_empty()) else {
            return Err(bytes);
        };
        // On an error, the writer encounters it again.
        let sent = send_pieces(&self.stream, &[IoSlice::new(&bytes)]).unwrap_or(0);
        match sent {
            0 => Err(bytes),
            sent if sent == bytes.len() => Ok(()),
            sent => {
                rest.extend_from_slice(&bytes[sent..]);
                Err(Vec::new())
            }
        }
    }
}

/// Serves a connection until it ends, or the server stops taking calls.
pub(super) fn serve(
    stream: &Arc<TcpStream>,
    service: &Arc<Service>,
    pool: &Pool,
    total: &Arc<Total>,
    stop: &Stop,
) {
    let Ok(address) = stream.peer_addr() else { return };
    let ip = address.ip().to_canonical();
    let peer = Peer { address: ip, port: address.port() };
    let (writer, to_write) = mpsc::channel();
    let output = Arc::new(Output { stream: Arc::clone(stream), rest: Mutex::default() });
    let replies = Replies { output: Arc::clone(&output), writer };
    thread::scope(|scope| {
        scope.spawn(|| write_replies(&output, to_write));
        let underway = Arc::new(Underway::new(total));
        let calls = TimedStream { stream, until: Instant::now(), stop: Some(stop) };
        match read_calls(calls, service, pool, &peer, &underway, replies) {
            Ok(()) => {}
            Err(error) => tracing::debug!(peer = %address, %error, "connection ended"),
        }
        // Calls in progress are answered; the writer ends with the last reply.
    });
    hang_up(stream);
}

/// Announces the end, and discards further data of the peer, which repeats unanswered calls.
fn hang_up(stream: &TcpStream) {
    if stream.shutdown(Shutdown::Write).is_err() {
        return;
    }
    let mut rest = TimedStream { stream, until: Instant::now() + HANG_UP_TIME, stop: None };
    let mut ignored = [0; 4096];
    while rest.read(&mut ignored).is_ok_and(|len| len > 0) {}
}

fn read_calls(
    calls: TimedStream<'_>,
    service: &Arc<Service>,
    pool: &Pool,
    peer: &Peer,
    underway: &Arc<Underway>,
    replies: Replies,
) -> Result<(), record::RecordError> {
    let mut reader = BufReader::with_capacity(READ_AHEAD_BYTES, calls);
    loop {
        underway.wait_for_room();
        if reader.get_ref().stop.is_some_and(Stop::is_asked) {
            return Ok(());
        }
        reader.get_mut().until = Instant::now() + IDLE_TIME;
        let mut header = [0; 4];
        if reader.read(&mut header[..1])? == 0 {
            return Ok(());
        }
        reader.get_mut().until = Instant::now() + RECORD_TIME;
        reader.read_exact(&mut header[1..])?;
        let message = record::read(&mut reader, header, RECORD)?;
        let bytes = message.len() + service.reply_bytes_max(&message);
        let permit = Permit::take(underway, bytes);
        let (service, peer, replies) = (Arc::clone(service), *peer, replies.clone());
        let job: Job = Box::new(move || {
            let reply = service.answer(&peer, &message);
            replies.send((reply, permit));
        });
        if !pool.run(job) {
            return Ok(());
        }
    }
}

fn write_replies(Output { stream, rest }: &Output, replies: Receiver<Reply>) {
    let written = (|| {
        while let Ok(first) = replies.recv() {
            let mut batch = vec![first];
            let len = |reply: &Reply| reply.0.as_ref().map_or(0, Vec::len);
            // Waiting replies are sent together, up to a size that does not delay them beyond their time
            // limit.
            let mut bytes = len(&batch[0]);
            while bytes < BATCH_BYTES
                && let Ok(next) = replies.try_recv()
            {
                bytes += len(&next);
                batch.push(next);
            }
            let mut rest = rest.lock();
            let whole = batch.iter().map_while(|(reply, _)| reply.as_deref());
            let mut pieces: Vec<IoSlice<'_>> =
                std::iter::once(&rest[..]).chain(whole).map(IoSlice::new).collect();
            let is_whole = pieces.len() == 1 + batch.len();
            let until = Instant::now() + RECORD_TIME;
            TimedStream { stream, until, stop: None }.write_pieces(&mut pieces)?;
            rest.clear();
            if !is_whole {
                return Err(io::Error::new(io::ErrorKind::InvalidData, "not a call"));
            }
        }
        Ok(())
    })();
    if let Err(error) = written {
        tracing::debug!(%error, "a connection is given up");
        // This ends the reader.
        let _ = stream.shutdown(Shutdown::Both);
    }
}

/// A stream that fails when its time is up, even if bytes still trickle in or out.
struct TimedStream<'a> {
    stream: &'a TcpStream,
    until: Instant,
    /// Ends reading early, if set.
    stop: Option<&'a Stop>,
}

impl Read for TimedStream<'_> {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        let left = self.left()?;
        match self.stop {
            Some(stop) => match stop.wait_for(self.stream, Some(left))? {
                Woken::Ready => {}
                Woken::Timeout => return Err(io::ErrorKind::TimedOut.into()),
                Woken::Stop => return Err(io::Error::other("the server stops")),
            },
            None => self.stream.set_read_timeout(Some(left))?,
        }
        self.stream.read(buf)
    }
}

/// Sends as many bytes as the peer accepts, and returns their number. There is at most one piece more than a
/// connection has calls, which is below the kernel's limit.
fn send_pieces(stream: &TcpStream, pieces: &[IoSlice<'_>]) -> rustix::io::Result<usize> {
    let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
    sendmsg(stream, pieces, &mut SendAncillaryBuffer::default(), flags)
}

impl TimedStream<'_> {
    /// Sends all pieces, with one system call if the peer accepts them at once.
    fn write_pieces(&self, mut pieces: &mut [IoSlice<'_>]) -> io::Result<()> {
        // The first piece may be empty.
        IoSlice::advance_slices(&mut pieces, 0);
        while !pieces.is_empty() {
            match send_pieces(self.stream, pieces) {
                Ok(sent) => IoSlice::advance_slices(&mut pieces, sent),
                Err(Errno::AGAIN) => self.wait_for_room()?,
                Err(Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }

    fn wait_for_room(&self) -> io::Result<()> {
        let left = Timespec::try_from(self.left()?).map_err(io::Error::other)?;
        match poll(&mut [PollFd::new(self.stream, PollFlags::OUT)], Some(&left)) {
            Ok(_) | Err(Errno::INTR) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    fn left(&self) -> io::Result<Duration> {
        let left = self.until.saturating_duration_since(Instant::now());
        if left.is_zero() { Err(io::ErrorKind::TimedOut.into()) } else { Ok(left) }
    }
}
