//! Serves a message of `/dev/fuse`, and answers it on the descriptor from which it was read.

use std::io;

use rustix::io::Errno;

use super::device::Device;
use crate::Handler;
use crate::dispatch::{Dispatcher, Outcome};
use crate::protocol::{Frame, encode};

/// The frame of a message.
pub(super) fn cut<'m, H: Handler>(
    dispatcher: &Dispatcher<H>,
    message: &'m [u8],
) -> io::Result<Frame<'m>> {
    Frame::contiguous(message, dispatcher.dialect())
        .map_err(|malformed| io::Error::new(io::ErrorKind::InvalidData, malformed))
}

/// Serves a request, with room for the answer's payload, and sends the answer.
pub(super) fn reply<H: Handler>(
    dispatcher: &Dispatcher<H>,
    device: &Device,
    frame: &Frame<'_>,
    payload: &mut [u8],
) -> io::Result<()> {
    let Outcome::Reply(result) = dispatcher.serve(frame, payload) else {
        return Ok(());
    };
    let header = encode::header(frame.unique().0, result);
    match device.send(&header, &payload[..result.unwrap_or(0)]) {
        // `ENOENT`: the caller was killed, and the request withdrawn or answered. `ENODEV`: the session is
        // ending, which the next read reports as well.
        Ok(()) | Err(Errno::NOENT | Errno::NODEV | Errno::NOTCONN) => Ok(()),
        Err(errno) => {
            // The kernel rejected the answer, and still waits for one.
            tracing::error!(opcode = ?frame.opcode(), ?result, %errno, "reply refused");
            let _ = device.send(&encode::header(frame.unique().0, Err(Errno::IO)), &[]);
            Ok(())
        }
    }
}
