//! Shutdown reports: a server reports the outcome of closing its volume to the commands that requested it.
//!
//! A command that unmounts a volume must report whether the image is complete. By then, the mount through
//! which it communicates with the server no longer exists, and the device may look unchanged because writing
//! failed. So the command listens on a socket before it unmounts, and requests through the mount that the
//! server connects to it. The socket's name is not in the file system and disappears with its listener. The
//! server of a volume that is not mounted gets the request over its own socket (`crate::socket`).
//!
//! ```text
//!   ShutdownListener::ask: listen ──attribute──▶ server connects
//!   unmount(2)                                   Serving ▶ Closing ▶ Closed | Failed, or end of stream
//! ```

use std::io::{self, BufRead, BufReader, Write};
use std::os::fd::OwnedFd;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};
use std::path::Path;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::lgetxattr;
use rustix::net::UCred;
use rustix::net::sockopt::socket_peercred;
use rustix::process::{PidfdFlags, pidfd_open};
use serde::{Deserialize, Serialize};

use crate::socket::{self, Message, Reply};

/// The prefix of the attribute that requests reports; the socket's number follows.
const ATTRIBUTE: &str = "system.cffs.shutdown.";
/// The most concurrent listeners of one server.
const LISTENERS_MAX: usize = 16;
/// How many socket numbers are tried, since other processes may use some.
const ATTEMPTS: u32 = 100;

/// The progress of closing a volume.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ShutdownReport {
    /// The volume is still mounted somewhere.
    Serving,
    /// The volume is being written completely.
    Closing,
    /// The server waits; the text gives the cause and the start.
    Waiting(String),
    /// The image is complete, and other programs may use it.
    Closed,
    /// The image could not be completed; the text gives the reason and the losses.
    Failed(String),
}

/// The server's side of shutdown reports.
#[derive(Default)]
pub(crate) struct ShutdownReports(Mutex<Vec<UnixStream>>);

impl ShutdownReports {
    /// The number of the socket, if the attribute with this name requests reports.
    pub fn number(name: &[u8]) -> Option<u32> {
        let number = name.strip_prefix(ATTRIBUTE.as_bytes())?;
        std::str::from_utf8(number).ok()?.parse().ok()
    }

    /// Connects to a listener, to which all later reports are sent.
    pub fn connect(&self, number: u32) -> io::Result<()> {
        let stream = UnixStream::connect_addr(&address(number)?)?;
        // The server must not wait for a listener that does not read.
        stream.set_nonblocking(true)?;
        let mut streams = self.lock();
        if streams.len() == LISTENERS_MAX {
            streams.remove(0);
        }
        streams.push(stream);
        drop(streams);
        self.send(&ShutdownReport::Serving);
        Ok(())
    }

    pub fn send(&self, report: &ShutdownReport) {
        let Ok(mut line) = serde_json::to_vec(report) else { return };
        line.push(b'\n');
        self.lock().retain_mut(|stream| stream.write_all(&line).is_ok());
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Vec<UnixStream>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The result of listening for a while.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Heard {
    /// The server sent a report.
    Report(ShutdownReport),
    /// The server sent nothing.
    Nothing,
    End,
}

/// The listener's side of shutdown reports.
pub struct ShutdownListener {
    stream: BufReader<UnixStream>,
    line: Vec<u8>,
    /// The server's process, if the kernel allows waiting for it.
    process: Option<OwnedFd>,
}

impl Heard {
    /// Whether this is the last report.
    pub fn is_last(&self) -> bool {
        matches!(
            self,
            Heard::Report(ShutdownReport::Closed | ShutdownReport::Failed(_)) | Heard::End
        )
    }
}

impl ShutdownListener {
    /// Requests reports from the server of the volume of `path`, a process of the user `uid`. Only root and
    /// that user may do this.
    pub fn ask(path: &Path, uid: u32) -> io::Result<ShutdownListener> {
        let ask = |name: String| Ok(lgetxattr(path, name, &mut [0_u8; 64]).map(drop)?);
        ShutdownListener::heard_from(ask, |peer| peer.uid.as_raw() == uid)
    }

    /// Requests reports from the process that serves an image without a mount.
    pub fn ask_unmounted(image: &Path, process: u32) -> io::Result<ShutdownListener> {
        let ask = |name| match socket::call(image, &Message { name, value: None })? {
            Some(Reply::Answer(_)) => Ok(()),
            Some(Reply::Error(error)) => Err(io::Error::other(error)),
            None => Err(io::ErrorKind::NotConnected.into()),
        };
        let is_it = |peer: &UCred| peer.pid.as_raw_nonzero().get().cast_unsigned() == process;
        ShutdownListener::heard_from(ask, is_it)
    }

    /// Listens, sends the request, and accepts the connection of the right server.
    fn heard_from(
        ask: impl FnOnce(String) -> io::Result<()>,
        is_it: impl Fn(&UCred) -> bool,
    ) -> io::Result<ShutdownListener> {
        let (listener, number) = listen()?;
        ask(format!("{ATTRIBUTE}{number}"))?;
        listener.set_nonblocking(true)?;
        // The server connects before it answers. Other processes may have connected as well.
        loop {
            let (stream, _) = listener.accept()?;
            let peer = socket_peercred(&stream)?;
            if is_it(&peer) {
                stream.set_nonblocking(false)?;
                let process = pidfd_open(peer.pid, PidfdFlags::empty()).ok();
                let stream = BufReader::new(stream);
                return Ok(ShutdownListener { stream, line: Vec::new(), process });
            }
        }
    }

    /// Waits up to `timeout` for the end of the server's process; returns whether it has ended, as far as
    /// this process can see. A volume that could not be closed stays marked as in use by that process, and
    /// the process may keep a log file and its program open.
    pub fn wait_for_exit(&self, timeout: Duration) -> bool {
        let Some(process) = &self.process else { return true };
        let timeout = Timespec::try_from(timeout).ok();
        // If poll fails, the worst case is that a program opens the volume too early and gets an error with
        // the reason.
        !matches!(poll(&mut [PollFd::new(process, PollFlags::IN)], timeout.as_ref()), Ok(0))
    }

    /// Listens for at most `timeout`.
    pub fn listen(&mut self, timeout: Duration) -> Heard {
        if self.stream.get_ref().set_read_timeout(Some(timeout)).is_err() {
            return Heard::End;
        }
        match self.stream.read_until(b'\n', &mut self.line) {
            Ok(0) => Heard::End,
            Ok(_) => {
                let line = std::mem::take(&mut self.line);
                // A newer server may send unknown reports.
                serde_json::from_slice(&line).map_or(Heard::Nothing, Heard::Report)
            }
            Err(error) => match error.kind() {
                io::ErrorKind::WouldBlock
                | io::ErrorKind::TimedOut
                | io::ErrorKind::Interrupted => Heard::Nothing,
                _ => Heard::End,
            },
        }
    }
}

fn listen() -> io::Result<(UnixListener, u32)> {
    let mut taken = io::Error::from(io::ErrorKind::AddrInUse);
    for attempt in 0..ATTEMPTS {
        let number = std::process::id().wrapping_add(attempt.wrapping_mul(1 << 22));
        match UnixListener::bind_addr(&address(number)?) {
            Ok(listener) => return Ok((listener, number)),
            Err(error) => taken = error,
        }
    }
    Err(taken)
}

fn address(number: u32) -> io::Result<SocketAddr> {
    SocketAddr::from_abstract_name(format!("cffs-shutdown-{number}"))
}

#[cfg(test)]
mod tests;
