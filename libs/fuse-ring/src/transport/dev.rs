//! The classic transport: read a request from `/dev/fuse`, write the answer back.
//!
//! It works everywhere. Any number of threads may use it concurrently, each with its own descriptor and
//! buffers. Its disadvantages: a request wakes an arbitrary thread on an arbitrary core, and takes two system
//! calls.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;

use super::answer::{cut, reply};
use super::device::{Device, Received};
use super::memory::Pages;
use super::reader_slots::ReaderSlots;
use super::sync_pool::SyncPool;
use super::waiting::Waiting;
use crate::Handler;
use crate::dispatch::Dispatcher;

/// The length of a `WRITE`'s header and argument. A message is received this far before a page boundary, so
/// that the data of a write is page-aligned, as direct I/O to a disk requires.
const HEAD_LEN: usize = 40 + 40;

const PAGE: usize = 4096;

/// How long requests outside the rings are collected if another one arrived within this time before. The
/// kernel puts all pending `FORGET`s into one message, and no caller waits for them; a thread that received
/// each immediately would run once per removed file, on the callers' cores. But the space of a removed file
/// becomes free only when it is forgotten, which matters on a full volume; so a single request is not
/// delayed, and none for long.
const GATHERING: Duration = Duration::from_millis(1);

/// The buffers of one thread, allocated once.
pub(crate) struct Buffers {
    message: Pages,
    payload: Pages,
}

impl Buffers {
    /// Buffers for payloads of up to `payload_len` bytes.
    pub(crate) fn new(payload_len: usize) -> io::Result<Buffers> {
        Ok(Buffers { message: Pages::new(PAGE + payload_len)?, payload: Pages::new(payload_len)? })
    }

    /// The buffer for received messages: room for the payload and more than the head.
    pub(crate) fn message(&mut self) -> &mut [u8] {
        &mut self.message[PAGE - HEAD_LEN..]
    }
}

/// Serves requests until the connection ends, while the thread has a slot. Requests that mainly wait for a
/// disk are passed to the pool.
pub(crate) fn serve<H: Handler>(
    dispatcher: &Dispatcher<H>,
    device: &Arc<Device>,
    buffers: &mut Buffers,
    slots: &Arc<ReaderSlots>,
    waiting: &Waiting,
    pool: &SyncPool,
) -> io::Result<()> {
    let place = waiting.enter(device);
    while slots.take() {
        match device.receive(buffers.message())? {
            Received::Message(len) => {
                let message = &buffers.message[PAGE - HEAD_LEN..][..len];
                let frame = cut(dispatcher, message)?;
                if SyncPool::is_for(frame.opcode()) {
                    pool.put(device, waiting, &frame, message);
                } else {
                    waiting.begin(&place, &frame);
                    let replied = reply(dispatcher, device, &frame, &mut buffers.payload);
                    place.end();
                    replied?;
                }
            }
            Received::Nothing => {}
            Received::Ended => {
                dispatcher.disconnected();
                break;
            }
        }
    }
    Ok(())
}

/// Serves the requests that are sent over the device while rings carry the others: `FORGET` and `INTERRUPT`.
/// Ends with the connection, or once `stop` is readable.
///
/// The device must be [nonblocking](Device::set_nonblocking).
pub(crate) fn serve_beside<H: Handler>(
    dispatcher: &Dispatcher<H>,
    device: &Device,
    buffers: &mut Buffers,
    stop: BorrowedFd<'_>,
) -> io::Result<()> {
    let mut last = Instant::now();
    loop {
        match device.receive(buffers.message())? {
            Received::Message(len) => {
                let frame = cut(dispatcher, &buffers.message[PAGE - HEAD_LEN..][..len])?;
                reply(dispatcher, device, &frame, &mut buffers.payload)?;
            }
            Received::Ended => {
                dispatcher.disconnected();
                return Ok(());
            }
            Received::Nothing => {
                let mut wanted = [
                    PollFd::from_borrowed_fd(stop, PollFlags::IN),
                    PollFd::from_borrowed_fd(device.as_fd(), PollFlags::IN),
                ];
                match poll(&mut wanted, None) {
                    Ok(_) | Err(Errno::INTR) => {}
                    Err(errno) => return Err(errno.into()),
                }
                if !wanted[0].revents().is_empty() {
                    return Ok(());
                }
                if last.elapsed() < GATHERING {
                    thread::sleep(GATHERING);
                }
                last = Instant::now();
            }
        }
    }
}
