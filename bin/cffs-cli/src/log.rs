//! The log of a server in the background: a file, or the system's log.
//!
//! Servers of several volumes share a log, so each line names its volume. Repeated messages are counted
//! instead of written ([`limit`]).

use std::fmt;
use std::fs::File;
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};
use std::sync::{LazyLock, Mutex};
use std::time::Instant;

use cffs_web::RecentLog;
use rustix::fs::OFlags;
use rustix::io::Errno;
use tracing::callsite::Identifier;
use tracing::{Event, Level, Metadata, Subscriber};
use tracing_subscriber::EnvFilter;
use tracing_subscriber::fmt::format::Writer;
use tracing_subscriber::fmt::time::{FormatTime, SystemTime};
use tracing_subscriber::fmt::{FmtContext, FormatEvent, FormatFields, MakeWriter};
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::registry::LookupSpan;
use tracing_subscriber::util::SubscriberInitExt;

use crate::output::{counted, note, on_one_line};

use self::limit::{Admission, Limit};

mod limit;
#[cfg(test)]
mod tests;

/// The socket of journald or syslogd.
const SYSTEM_LOG: &str = "/dev/log";
/// The facility daemon, in the priority of a message.
const DAEMON: u32 = 3 << 3;
/// Other users must not learn which files of a volume are damaged.
const LOG_MODE: u32 = 0o600;

/// The environment variable that filters messages, in the syntax of `tracing`, for instance `debug`.
const FILTER_VARIABLE: &str = "CFFS_LOG";

/// The last messages of this program, whether they are logged or not.
pub fn recent() -> RecentLog {
    static RECENT: LazyLock<RecentLog> = LazyLock::new(RecentLog::default);
    RECENT.clone()
}

/// Sends messages to standard error.
pub fn to_stderr() {
    let builder = tracing_subscriber::fmt().with_env_filter(filter()).with_writer(io::stderr);
    // Only the first call has an effect.
    let _ = builder.finish().with(recent()).try_init();
}

/// Sends messages about a volume to `file` or, without one, to the system's log; if that does not exist, to a
/// file of our own. If no log can be written, the volume is served without one, with a message on standard
/// error if `is_said`.
pub fn to_background(file: Option<&Path>, volume: &Path, is_said: bool) {
    let volume = volume.to_path_buf();
    if file.is_none()
        && let Some(socket) = system_log()
    {
        let lines = Lines::new(volume, false);
        let builder = tracing_subscriber::fmt().with_env_filter(filter()).event_format(lines);
        let _ = builder.with_writer(SystemLog(socket)).finish().with(recent()).try_init();
        return;
    }
    let Some(path) = self::file(file) else {
        if is_said {
            note!(
                "cffs: no log is written: no system log listens, and neither XDG_STATE_HOME, HOME nor \
                 XDG_RUNTIME_DIR names a directory for one; name a file with -o logfile=FILE"
            );
        }
        return;
    };
    match open(&path) {
        Ok(file) => {
            let lines = Lines::new(volume, true);
            let builder = tracing_subscriber::fmt().with_env_filter(filter()).event_format(lines);
            let _ = builder.with_writer(Mutex::new(file)).finish().with(recent()).try_init();
        }
        Err(error) if is_said => note!(
            "cffs: no log is written: {}: {error}; the volume is served without one",
            path.display()
        ),
        Err(_) => {}
    }
}

/// The file of the log: the named one, or one of our own if there is no system log.
pub fn file(named: Option<&Path>) -> Option<PathBuf> {
    match named {
        Some(named) => Some(named.to_owned()),
        None => system_log().map_or_else(own_file, |_| None),
    }
}

fn system_log() -> Option<UnixDatagram> {
    let socket = UnixDatagram::unbound().ok()?;
    socket.connect(SYSTEM_LOG).ok()?;
    Some(socket)
}

fn filter() -> EnvFilter {
    EnvFilter::try_from_env(FILTER_VARIABLE).unwrap_or_else(|_| EnvFilter::new("info"))
}

/// Opens a log for appending. Does not follow symbolic links, which others may have planted.
fn open(path: &Path) -> io::Result<File> {
    let opened = File::options()
        .create(true)
        .append(true)
        .mode(LOG_MODE)
        .custom_flags(OFlags::NOFOLLOW.bits() as i32)
        .open(path);
    opened.map_err(|error| match Errno::from_io_error(&error) {
        Some(Errno::LOOP) => io::Error::other("it is a symbolic link; name the file itself"),
        _ => error,
    })
}

/// `/var/log/cffs.log` for root; a file in the directory of the user's state, or of the session, for others.
/// Never in a directory that others can write, where they could plant a file with its name.
fn own_file() -> Option<PathBuf> {
    if rustix::process::geteuid().is_root() {
        return Some(PathBuf::from("/var/log/cffs.log"));
    }
    let dir = own_dir(|name| std::env::var_os(name).map(PathBuf::from))?.join("cffs");
    // If this fails, opening the log returns the reason.
    let _ = std::fs::create_dir_all(&dir);
    Some(dir.join("cffs.log"))
}

fn own_dir(variable: impl Fn(&str) -> Option<PathBuf>) -> Option<PathBuf> {
    // A relative path is ignored (XDG Base Directory Specification).
    let variable = |name| variable(name).filter(|path| path.is_absolute());
    variable("XDG_STATE_HOME")
        .or_else(|| variable("HOME").map(|home| home.join(".local/state")))
        .or_else(|| variable("XDG_RUNTIME_DIR"))
}

/// Writes one message per line: time, level, volume, text and fields.
struct Lines {
    volume: String,
    has_time: bool,
    limit: Limit<Identifier>,
}

impl Lines {
    fn new(volume: PathBuf, has_time: bool) -> Lines {
        let volume = volume.display().to_string().escape_debug().to_string();
        Lines { volume, has_time, limit: Limit::new() }
    }

    fn head(&self, level: Level, out: &mut Writer<'_>) -> fmt::Result {
        if self.has_time {
            SystemTime.format_time(out)?;
            out.write_char(' ')?;
        }
        write!(out, "{level:>5} {}: ", self.volume)
    }
}

impl<S, N> FormatEvent<S, N> for Lines
where
    S: Subscriber + for<'a> LookupSpan<'a>,
    N: for<'a> FormatFields<'a> + 'static,
{
    fn format_event(
        &self,
        context: &FmtContext<'_, S, N>,
        mut out: Writer<'_>,
        event: &Event<'_>,
    ) -> fmt::Result {
        let metadata = event.metadata();
        let Admission::Written { left_out } = self.limit.admit(metadata.callsite(), Instant::now())
        else {
            return Ok(());
        };
        if left_out > 0 {
            self.head(Level::WARN, &mut out)?;
            writeln!(out, "omitted {} like one above", counted(left_out, "message"))?;
        }
        self.head(*metadata.level(), &mut out)?;
        let mut fields = String::new();
        context.format_fields(Writer::new(&mut fields), event)?;
        // A name in a field must not begin another line.
        writeln!(out, "{}", on_one_line(fields))
    }
}

/// Writes each line as one datagram of the syslog protocol.
struct SystemLog(UnixDatagram);

impl<'a> MakeWriter<'a> for SystemLog {
    type Writer = Message<'a>;

    fn make_writer(&'a self) -> Message<'a> {
        self.message(Level::INFO)
    }

    fn make_writer_for(&'a self, metadata: &Metadata<'_>) -> Message<'a> {
        self.message(*metadata.level())
    }
}

impl SystemLog {
    fn message(&self, level: Level) -> Message<'_> {
        Message { socket: &self.0, priority: DAEMON | severity(level), text: Vec::new() }
    }
}

/// The severity of a message in the syslog protocol (RFC 5424). Administrators set alerts on it.
fn severity(level: Level) -> u32 {
    match level {
        Level::ERROR => 3,
        Level::WARN => 4,
        Level::INFO => 5,
        Level::DEBUG | Level::TRACE => 7,
    }
}

/// A message under construction; sent when it is dropped.
struct Message<'a> {
    socket: &'a UnixDatagram,
    priority: u32,
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
        for line in self.text.split(|byte| *byte == b'\n').filter(|line| !line.is_empty()) {
            let mut datagram =
                format!("<{}>cffs[{}]: ", self.priority, std::process::id()).into_bytes();
            datagram.extend_from_slice(line);
            // A failure of the log itself cannot be reported anywhere.
            let _ = self.socket.send(&datagram);
        }
    }
}
