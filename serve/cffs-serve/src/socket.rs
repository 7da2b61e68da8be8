//! The socket of a server without a mount: one query or request per connection. The socket's name is not in
//! the file system and disappears with the server.
//!
//! The name contains the server's process ID. A client takes that from the lock on the image, and checks that
//! the peer is this process, since any process may listen under any name. The server answers only root and
//! its own user. A volume in an object store has no lock here: its server listens on a second socket, which
//! is named after the URL, and of which the kernel tells the process and the user.
//!
//! ```text
//!   client ── {"name": "system.cffs.stats"} ──▶ server    the names and values are those of the
//!          ◀── {"answer": …} or {"error": "…"} ──          attributes of a mount (served::control)
//! ```

use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::fd::AsFd;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileTypeExt;
use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use cffs::device::file::{Access, FileDevice, OpenError, User};
use rustix::net::sockopt::socket_peercred;
use rustix::process::{Uid, geteuid};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::stopped;

/// The longest message of a client.
const MESSAGE_BYTES_MAX: u64 = 64 << 10;
/// How long a client may take to send its message, and to read the reply.
const PATIENCE: Duration = Duration::from_secs(10);
/// The most concurrent clients; further ones are disconnected. A sync may take long.
const CLIENTS_MAX: usize = 16;

/// A client's message.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Message {
    /// The attribute that the client would read or set on a mounted volume.
    pub name: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub value: Option<String>,
}

/// The server's reply.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Reply {
    /// The answer; null for a request that succeeded.
    Answer(Value),
    /// The reason of the failure.
    Error(String),
}

/// Answers clients in threads until the process ends.
///
/// # Errors
///
/// Errors from creating the socket and starting a thread.
pub fn listen(answer: impl Fn(&Message) -> Reply + Send + Sync + 'static) -> io::Result<()> {
    let listener = UnixListener::bind_addr(&address(std::process::id())?)?;
    let (answer, clients) = (Arc::new(answer), Arc::new(AtomicUsize::new(0)));
    let accept = move || {
        for stream in listener.incoming() {
            let Ok(stream) = stream else {
                // For example, no file descriptor is available.
                thread::sleep(Duration::from_millis(100));
                continue;
            };
            if !is_owner(&stream) || clients.load(Ordering::Acquire) >= CLIENTS_MAX {
                continue;
            }
            clients.fetch_add(1, Ordering::AcqRel);
            let (answer, counted) = (Arc::clone(&answer), Arc::clone(&clients));
            let serve = move || {
                if let Err(error) = serve(&stream, &*answer) {
                    tracing::debug!(%error, "a command was not answered");
                }
                counted.fetch_sub(1, Ordering::AcqRel);
            };
            if let Err(error) = thread::Builder::new().name(String::from("command")).spawn(serve) {
                clients.fetch_sub(1, Ordering::AcqRel);
                tracing::warn!(%error, "a command is not answered");
            }
        }
    };
    thread::Builder::new().name(String::from("commands")).spawn(accept).map(drop)
}

fn is_owner(stream: &UnixStream) -> bool {
    let own = rustix::process::geteuid();
    socket_peercred(stream.as_fd()).is_ok_and(|peer| peer.uid.is_root() || peer.uid == own)
}

fn serve(stream: &UnixStream, answer: &dyn Fn(&Message) -> Reply) -> io::Result<()> {
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_write_timeout(Some(PATIENCE))?;
    let mut line = Vec::new();
    BufReader::new(stream.take(MESSAGE_BYTES_MAX)).read_until(b'\n', &mut line)?;
    let reply = match serde_json::from_slice(&line) {
        Ok(message) => answer(&message),
        Err(error) => Reply::Error(format!("not a message: {error}")),
    };
    let mut stream = stream;
    stream.write_all(&serde_json::to_vec(&reply)?)
}

/// Lets programs of this machine find this process by the URL of the volume that it serves.
///
/// # Errors
///
/// Errors from creating the socket, whose name another server of the volume may have, and starting a thread.
pub fn listen_for(url: &Path) -> io::Result<()> {
    let listener = UnixListener::bind_addr(&address_of_url(url, geteuid())?)?;
    // The kernel tells clients the process; they use its own socket.
    let accept = move || {
        for stream in listener.incoming() {
            if stream.is_err() {
                // For example, no file descriptor is available.
                thread::sleep(Duration::from_millis(100));
            }
        }
    };
    thread::Builder::new().name(String::from("finders")).spawn(accept).map(drop)
}

/// Whether a volume is named by a URL, and so has no file with a lock.
pub fn is_url(volume: &Path) -> bool {
    volume.as_os_str().as_bytes().windows(3).any(|part| part == b"://")
}

/// The process of this user or of root that serves the volume at a URL. The name of a socket proves nothing,
/// so the servers of other users are not trusted.
pub fn server_of_url(url: &Path) -> Option<u32> {
    [geteuid(), Uid::ROOT].into_iter().find_map(|user| {
        let stream = UnixStream::connect_addr(&address_of_url(url, user).ok()?).ok()?;
        let peer = socket_peercred(stream.as_fd()).ok()?;
        (peer.uid == user).then(|| peer.pid.as_raw_nonzero().get().cast_unsigned())
    })
}

/// Sends a message to the server of a volume that is not mounted, named by its image or its URL; `None` if it
/// has no server.
///
/// # Errors
///
/// Errors of the connection.
pub fn call(volume: &Path, message: &Message) -> io::Result<Option<Reply>> {
    let found = if is_url(volume) { server_of_url(volume) } else { server_of(volume) };
    let Some(process) = found else { return Ok(None) };
    if stopped::is_stopped(process) {
        return Err(io::Error::other(stopped::explain(process)));
    }
    let mut stream = match UnixStream::connect_addr(&address(process)?) {
        Ok(stream) => stream,
        Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => return Ok(None),
        Err(error) => return Err(error),
    };
    let peer = socket_peercred(stream.as_fd())?;
    if peer.pid.as_raw_nonzero().get() as u32 != process {
        return Err(io::Error::other("another process listens in the place of the server"));
    }
    let mut line = serde_json::to_vec(message)?;
    line.push(b'\n');
    stream.write_all(&line)?;
    let mut reply = Vec::new();
    stream.read_to_end(&mut reply)?;
    if reply.is_empty() {
        return Err(io::Error::other(
            "its server does not answer this user, or answers too many others",
        ));
    }
    Ok(Some(serde_json::from_slice(&reply)?))
}

/// The process that has an image open. Does not find the server of a block device that is served read-only:
/// this function does not open block devices for writing, since udev would notice that.
fn server_of(image: &Path) -> Option<u32> {
    let file_type = std::fs::metadata(image).ok()?.file_type();
    if !file_type.is_file() && !file_type.is_block_device() {
        return None;
    }
    let user = |access| match FileDevice::open(image, access) {
        Err(OpenError::InUse {
            by: User::Writer(Some(process)) | User::Reader(Some(process)),
            ..
        }) if !process.is_elsewhere() => Some(process.pid),
        _ => None,
    };
    user(Access::ReadOnly)
        .or_else(|| if file_type.is_file() { user(Access::ReadWrite) } else { None })
}

/// The name contains a hash (FNV-1a) of the URL, since it has at most 107 bytes.
fn address_of_url(url: &Path, user: Uid) -> io::Result<SocketAddr> {
    let bytes = url.as_os_str().as_bytes();
    let end = bytes.iter().rposition(|byte| *byte != b'/').map_or(0, |last| last + 1);
    let hash = bytes[..end].iter().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3)
    });
    SocketAddr::from_abstract_name(format!("cffs-volume-{}-{hash:016x}", user.as_raw()))
}

fn address(process: u32) -> io::Result<SocketAddr> {
    SocketAddr::from_abstract_name(format!("cffs-server-{process}"))
}
