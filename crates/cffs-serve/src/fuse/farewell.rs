//! What a server says of its end to the commands that asked for it.
//!
//! A caller that unmounts a volume wants to know what became of it, but the mount through which one talks to
//! the server is gone by then, and what the device says may be older: a volume that could not be
//! written at all still looks as it did before. So the one who is about to unmount listens on a socket
//! of its own, and has the server connect to it by way of the mount. The socket has a name that is in
//! no directory, and goes with its listener. The server of a volume that is not mounted is asked over its
//! own socket (`crate::socket`).
//!
//! ```text
//!   Farewell::ask: listen ──attribute──▶ server connects
//!   unmount(2)                           Serving ▶ Closing ▶ Closed | Failed, or the end of the stream
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

/// What the attribute's name begins with by which a server is asked; the number of the socket follows.
const ATTRIBUTE: &str = "system.cffs.farewell.";
/// The listeners that one server may have at once.
const LISTENERS_MAX: usize = 16;
/// Numbers that may be taken by somebody else.
const ATTEMPTS: u32 = 100;

/// What a server says.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Word {
    /// The volume is still mounted somewhere.
    Serving,
    /// The volume is being completed.
    Closing,
    /// What it has been waiting for, and for how long.
    Waiting(String),
    /// The image is complete, and free for others.
    Closed,
    /// It could not be completed: why, and what is lost.
    Failed(String),
}

/// The server's side.
#[derive(Default)]
pub(crate) struct Farewells(Mutex<Vec<UnixStream>>);

impl Farewells {
    /// The number of the socket, if the attribute with this name asks for a farewell.
    pub fn number(name: &[u8]) -> Option<u32> {
        let number = name.strip_prefix(ATTRIBUTE.as_bytes())?;
        std::str::from_utf8(number).ok()?.parse().ok()
    }

    /// Connects to a listener.
    pub fn connect(&self, number: u32) -> io::Result<()> {
        let stream = UnixStream::connect_addr(&address(number)?)?;
        // A listener that does not read does not keep the server waiting.
        stream.set_nonblocking(true)?;
        let mut streams = self.lock();
        if streams.len() == LISTENERS_MAX {
            streams.remove(0);
        }
        streams.push(stream);
        drop(streams);
        self.say(&Word::Serving);
        Ok(())
    }

    /// Says something to all listeners.
    pub fn say(&self, word: &Word) {
        let Ok(mut line) = serde_json::to_vec(word) else { return };
        line.push(b'\n');
        self.lock().retain_mut(|stream| stream.write_all(&line).is_ok());
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Vec<UnixStream>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What comes of listening for a while.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Heard {
    /// The server said something.
    Word(Word),
    /// Nothing was said.
    Nothing,
    /// The server has ended.
    End,
}

/// The listener's side.
pub struct Farewell {
    stream: BufReader<UnixStream>,
    line: Vec<u8>,
    /// The server's process, if the kernel lets it be waited for.
    process: Option<OwnedFd>,
}

impl Heard {
    /// Whether nothing will be said after this.
    pub fn is_last(&self) -> bool {
        matches!(self, Heard::Word(Word::Closed | Word::Failed(_)) | Heard::End)
    }
}

impl Farewell {
    /// Has the server of the volume to which `path` belongs, which is a process of the user `uid`, say
    /// what becomes of it. Only root and that user may ask.
    pub fn ask(path: &Path, uid: u32) -> io::Result<Farewell> {
        let ask = |name: String| Ok(lgetxattr(path, name, &mut [0_u8; 64]).map(drop)?);
        Farewell::heard_from(ask, |peer| peer.uid.as_raw() == uid)
    }

    /// The same of the process that serves an image without a mount.
    pub fn ask_unmounted(image: &Path, process: u32) -> io::Result<Farewell> {
        let ask = |name| match socket::call(image, &Message { name, value: None })? {
            Some(Reply::Answer(_)) => Ok(()),
            Some(Reply::Error(error)) => Err(io::Error::other(error)),
            None => Err(io::ErrorKind::NotConnected.into()),
        };
        let is_it = |peer: &UCred| peer.pid.as_raw_nonzero().get().cast_unsigned() == process;
        Farewell::heard_from(ask, is_it)
    }

    /// Listens, has a server connect, and takes the connection of the right one.
    fn heard_from(
        ask: impl FnOnce(String) -> io::Result<()>,
        is_it: impl Fn(&UCred) -> bool,
    ) -> io::Result<Farewell> {
        let (listener, number) = listen()?;
        ask(format!("{ATTRIBUTE}{number}"))?;
        listener.set_nonblocking(true)?;
        // The server has connected before it answered. Others may have, too.
        loop {
            let (stream, _) = listener.accept()?;
            let peer = socket_peercred(&stream)?;
            if is_it(&peer) {
                stream.set_nonblocking(false)?;
                let process = pidfd_open(peer.pid, PidfdFlags::empty()).ok();
                let stream = BufReader::new(stream);
                return Ok(Farewell { stream, line: Vec::new(), process });
            }
        }
    }

    /// Waits until the server's process is gone, for at most `timeout`, and returns whether it is, as
    /// far as this one can see. A volume that could not be closed still says whose it is, and others
    /// leave it alone as long as that process lives; one that was has an open log and a program.
    pub fn wait_for_exit(&self, timeout: Duration) -> bool {
        let Some(process) = &self.process else { return true };
        let timeout = Timespec::try_from(timeout).ok();
        // If this fails, a program that opens the volume too early gets the reason.
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
                // Something that a newer server says.
                serde_json::from_slice(&line).map_or(Heard::Nothing, Heard::Word)
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
    SocketAddr::from_abstract_name(format!("cffs-farewell-{number}"))
}

#[cfg(test)]
mod tests;
