//! The log of a server in the background: a file, or the system's log.

use std::fs::File;
use std::io::{self, Write};
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};
use std::sync::Mutex;

use tracing_subscriber::EnvFilter;
use tracing_subscriber::fmt::MakeWriter;

/// Where journald and syslogd listen.
const SYSTEM_LOG: &str = "/dev/log";
/// Facility daemon, severity notice.
const PRIORITY: u32 = 3 << 3 | 5;

/// Which messages are logged, in the terms of `tracing`, for instance `debug`.
const FILTER_VARIABLE: &str = "CFFS_LOG";

/// Sends messages to standard error.
pub fn to_stderr() {
    let builder = tracing_subscriber::fmt().with_env_filter(filter()).with_writer(io::stderr);
    // A second call is a mistake without consequences: the first one counts.
    let _ = builder.try_init();
}

/// Sends messages to `file` or, without one, to the system's log; where nobody listens there, to a
/// file of our own. Returns the name of what was chosen.
pub fn to_background(file: Option<&Path>) -> anyhow::Result<String> {
    if let Some(path) = file {
        return to_file(path);
    }
    let socket = UnixDatagram::unbound()?;
    if socket.connect(SYSTEM_LOG).is_ok() {
        let builder = tracing_subscriber::fmt()
            .with_env_filter(filter())
            .with_ansi(false)
            .without_time()
            .with_writer(SystemLog(socket));
        let _ = builder.try_init();
        return Ok(String::from("the system's log"));
    }
    to_file(&own_file()?)
}

fn filter() -> EnvFilter {
    EnvFilter::try_from_env(FILTER_VARIABLE).unwrap_or_else(|_| EnvFilter::new("info"))
}

fn to_file(path: &Path) -> anyhow::Result<String> {
    use anyhow::Context;
    let file = File::options().create(true).append(true).open(path);
    let file = file.with_context(|| format!("log file {}", path.display()))?;
    let builder = tracing_subscriber::fmt()
        .with_env_filter(filter())
        .with_ansi(false)
        .with_writer(Mutex::new(file));
    let _ = builder.try_init();
    Ok(path.display().to_string())
}

/// `/var/log/cffs.log` for root, a file in the directory of the user's state for others.
fn own_file() -> io::Result<PathBuf> {
    if rustix::process::geteuid().is_root() {
        return Ok(PathBuf::from("/var/log/cffs.log"));
    }
    let state = std::env::var_os("XDG_STATE_HOME").map(PathBuf::from);
    let home = || std::env::var_os("HOME").map(|home| PathBuf::from(home).join(".local/state"));
    let dir = state.or_else(home).unwrap_or_else(std::env::temp_dir).join("cffs");
    std::fs::create_dir_all(&dir)?;
    Ok(dir.join("cffs.log"))
}

/// Writes each message as one datagram of the syslog protocol.
struct SystemLog(UnixDatagram);

impl<'a> MakeWriter<'a> for SystemLog {
    type Writer = Message<'a>;

    fn make_writer(&'a self) -> Message<'a> {
        Message { socket: &self.0, text: Vec::new() }
    }
}

/// A message under construction; sent when it is dropped.
struct Message<'a> {
    socket: &'a UnixDatagram,
    text: Vec<u8>,
}

impl Write for Message<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.text.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Drop for Message<'_> {
    fn drop(&mut self) {
        let mut datagram = format!("<{PRIORITY}>cffs[{}]: ", std::process::id()).into_bytes();
        datagram.extend_from_slice(self.text.trim_ascii_end());
        // There is nobody left to tell if the log itself fails.
        let _ = self.socket.send(&datagram);
    }
}
