//! Recordings of the device requests that each operation causes, while a volume is served.
//!
//! Other programs start a recording, fetch it piece by piece, and end it, each by reading an attribute, which
//! also works on a mount that the kernel considers read-only. A server without a mount is queried over its
//! socket.

use std::path::Path;

use cffs::error::Result;
use cffs::trace::Detail;
use cffs::vfs::Volume;
use rustix::fs::lgetxattr;

use super::control::{AskError, VALUE_BYTES_MAX, call_server};
use super::identity::check_owner;
use crate::socket;

const CAUSES: &str = "system.cffs.trace.causes";
const ALL: &str = "system.cffs.trace.all";
const NEXT: &str = "system.cffs.trace.next";
const STOP: &str = "system.cffs.trace.stop";

/// A command for the recording.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ask {
    Start(Detail),
    /// Returns a byte that tells whether more may follow, then the records since the previous fetch.
    Next,
    Stop,
}

impl Ask {
    /// The command with this attribute name.
    pub fn made_by(name: &[u8]) -> Option<Ask> {
        match std::str::from_utf8(name).ok()? {
            CAUSES => Some(Ask::Start(Detail::Causes)),
            ALL => Some(Ask::Start(Detail::All)),
            NEXT => Some(Ask::Next),
            STOP => Some(Ask::Stop),
            _ => None,
        }
    }

    /// Executes the command for the user `uid`, who must be root or the mounter, since a recording shows the
    /// actions of all users. Returns the length of the answer in `buf`.
    pub fn carry_out(self, volume: &Volume, uid: u32, buf: &mut [u8]) -> Result<usize> {
        check_owner(uid)?;
        let recorder = volume.recorder();
        match self {
            Ask::Start(detail) => recorder.start(detail).map(|()| 0),
            Ask::Stop => {
                recorder.stop();
                Ok(0)
            }
            Ask::Next => {
                // A call that only queries the length must not consume records.
                let Some((head, room)) = buf.split_first_mut() else { return Ok(1) };
                // Read first: if the recording has ended, the data read afterwards is complete.
                *head = u8::from(recorder.is_on());
                let taken = recorder.take(room.len());
                room[..taken.len()].copy_from_slice(&taken);
                Ok(1 + taken.len())
            }
        }
    }
}

impl Ask {
    /// The answer over the socket: the attribute's value as a list of bytes.
    pub fn answer(self, volume: &Volume, uid: u32) -> Result<serde_json::Value> {
        let mut value = vec![0; VALUE_BYTES_MAX];
        let len = self.carry_out(volume, uid, &mut value)?;
        Ok(serde_json::json!(value[..len]))
    }
}

/// The records since the last fetch.
#[derive(Clone, Debug)]
pub struct Recorded {
    /// Whether more may follow. If not, and there are no bytes, the trace is complete.
    pub is_on: bool,
    /// A piece of the trace.
    pub bytes: Vec<u8>,
}

/// Starts a recording of the volume of `path`, or of the image at `path`.
///
/// # Errors
///
/// `EINVAL` while another recording runs; the server's error.
pub fn start(path: &Path, detail: Detail) -> Result<(), AskError> {
    let name = if detail == Detail::All { ALL } else { CAUSES };
    ask(path, name).map(drop)
}

/// Ends the recording. Its remaining records can still be fetched.
///
/// # Errors
///
/// The server's error.
pub fn stop(path: &Path) -> Result<(), AskError> {
    ask(path, STOP).map(drop)
}

/// Fetches the next piece.
///
/// # Errors
///
/// The server's error.
pub fn next(path: &Path) -> Result<Recorded, AskError> {
    let mut bytes = ask(path, NEXT)?;
    if bytes.is_empty() {
        return Err(AskError::NotMounted);
    }
    let is_on = bytes.remove(0) != 0;
    Ok(Recorded { is_on, bytes })
}

fn ask(path: &Path, name: &str) -> Result<Vec<u8>, AskError> {
    let mut value = vec![0; VALUE_BYTES_MAX];
    let asked = match socket::is_url(path) {
        true => Err(AskError::NotMounted),
        false => lgetxattr(path, name, &mut value).map_err(AskError::of_owner_at(path)),
    };
    match asked {
        Ok(len) => {
            value.truncate(len);
            Ok(value)
        }
        Err(AskError::NotMounted) => {
            let value = call_server(path, name, None)?;
            serde_json::from_value(value).map_err(|_| AskError::NotMounted)
        }
        Err(error) => Err(error),
    }
}
