//! A message of `/dev/fuse`, served and answered on the descriptor that it was read from.

use std::io;

use rustix::io::Errno;

use super::device::Device;
use crate::Handler;
use crate::dispatch::{Dispatcher, Outcome};
use crate::protocol::{Frame, encode};

/// A message as the frame that it is.
pub(super) fn cut<'m, H: Handler>(
    dispatcher: &Dispatcher<H>,
    message: &'m [u8],
) -> io::Result<Frame<'m>> {
    Frame::contiguous(message, dispatcher.dialect())
        .map_err(|malformed| io::Error::new(io::ErrorKind::InvalidData, malformed))
}

/// Serves a request, with room for the answer's payload, and answers it where it was read.
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
        // `ENOENT`: the caller was killed, and the request withdrawn or answered. `ENODEV`: the session ends,
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
