//! The classic transport: read a request from `/dev/fuse`, write the answer back.
//!
//! It works everywhere. Any number of threads may do it at once, each on a descriptor and with
//! buffers of its own. Its price is that a request wakes whichever thread waits, on whichever core,
//! and that each takes two system calls.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};

use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;

use super::device::{Device, Received};
use super::memory::Pages;
use crate::Handler;
use crate::dispatch::{Dispatcher, Outcome};
use crate::protocol::{Frame, encode};

/// Header and argument of a `WRITE`. A message is received this far before a page boundary, so
/// that the data of a write starts on one and can go to a disk by direct I/O.
const HEAD_LEN: usize = 40 + 40;

const PAGE: usize = 4096;

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

    /// Where messages are received: room for the payload and more than the head.
    pub(crate) fn message(&mut self) -> &mut [u8] {
        &mut self.message[PAGE - HEAD_LEN..]
    }
}

/// Serves requests until the connection ends.
pub(crate) fn serve<H: Handler>(
    dispatcher: &Dispatcher<H>,
    device: &Device,
    buffers: &mut Buffers,
) -> io::Result<()> {
    loop {
        match device.receive(buffers.message())? {
            Received::Message(len) => answer(dispatcher, device, buffers, len)?,
            Received::Nothing => {}
            Received::Ended => return Ok(()),
        }
    }
}

/// Serves what comes over the device while rings carry the rest: `FORGET` and `INTERRUPT`. Ends
/// with the connection, or once `stop` is readable.
///
/// The device must be [nonblocking](Device::set_nonblocking).
pub(crate) fn serve_beside<H: Handler>(
    dispatcher: &Dispatcher<H>,
    device: &Device,
    buffers: &mut Buffers,
    stop: BorrowedFd<'_>,
) -> io::Result<()> {
    loop {
        match device.receive(buffers.message())? {
            Received::Message(len) => answer(dispatcher, device, buffers, len)?,
            Received::Ended => return Ok(()),
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
            }
        }
    }
}

/// Serves the message of `len` bytes that stands in the buffers.
pub(crate) fn answer<H: Handler>(
    dispatcher: &Dispatcher<H>,
    device: &Device,
    buffers: &mut Buffers,
    len: usize,
) -> io::Result<()> {
    let message = &buffers.message[PAGE - HEAD_LEN..][..len];
    let frame = Frame::contiguous(message, dispatcher.dialect())
        .map_err(|malformed| io::Error::new(io::ErrorKind::InvalidData, malformed))?;
    let Outcome::Reply(result) = dispatcher.serve(&frame, &mut buffers.payload) else {
        return Ok(());
    };
    let header = encode::header(frame.unique().0, result);
    match device.send(&header, &buffers.payload[..result.unwrap_or(0)]) {
        // `ENOENT`: the caller was killed and the request withdrawn. `ENODEV`: the session ends,
        // which the next read will say too.
        Ok(()) | Err(Errno::NOENT | Errno::NODEV | Errno::NOTCONN) => Ok(()),
        Err(errno) => {
            // The kernel did not like the answer and still waits for one.
            tracing::error!(opcode = ?frame.opcode(), ?result, %errno, "reply refused");
            let _ = device.send(&encode::header(frame.unique().0, Err(Errno::IO)), &[]);
            Ok(())
        }
    }
}
