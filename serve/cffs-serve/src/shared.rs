//! The interfaces between the front ends of one volume, and the volume's background work.
//!
//! ```text
//!   change by NFS ──▶ Volume ──▶ Observer::changed ──▶ the kernel drops cached data ──▶ reply
//!   unmounted     ──▶ Companion::end: the companion server finishes its calls ──▶ Volume::close
//! ```

use std::fs;
use std::sync::Arc;
use std::time::Duration;

use cffs::error::{Error, Result};
use cffs::units::InodeNo;
use cffs::vfs::Volume;
use cffs::vfs::types::Attr;
use parking_lot::RwLock;

/// The interval of the volume's background writes.
const BACKGROUND_INTERVAL: Duration = Duration::from_secs(1);
/// The number of read-ahead threads: one waits for the device while the other processes data.
pub const READ_AHEAD_THREADS: usize = 2;

/// The current served volume. It changes only on a mount that follows another program's changes.
#[derive(Clone)]
pub struct Current(Arc<RwLock<(u64, Arc<Volume>)>>);

impl Current {
    /// This volume, until it is replaced by a newer version.
    pub fn new(volume: Arc<Volume>) -> Current {
        Current(Arc::new(RwLock::new((0, volume))))
    }

    pub fn get(&self) -> Arc<Volume> {
        self.version().1
    }

    /// The volume, and the number of earlier versions.
    pub fn version(&self) -> (u64, Arc<Volume>) {
        self.0.read().clone()
    }

    /// Replaces the volume by a newer version.
    pub fn set(&self, newer: Arc<Volume>) {
        let mut current = self.0.write();
        *current = (current.0 + 1, newer);
    }
}

/// A change that one front end made to data that another may have cached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change<'a> {
    Attributes(InodeNo),
    /// Contents of a file from an offset on, with a length or to the end, and the file's attributes.
    Contents(InodeNo, u64, Option<u64>),
    /// A name in a directory, and with it the directory's listing and attributes.
    Name(InodeNo, &'a [u8]),
    /// A name that was removed, without the directory's listing and attributes.
    Removed(InodeNo, &'a [u8]),
}

/// A front end that caches data and must be notified of changes by others.
pub trait Observer: Send + Sync {
    /// Called before another front end begins, which may change contents.
    fn joined(&self) {}

    /// Called after a change and before its reply, with no lock held, by a thread that this front end never
    /// waits for.
    fn changed(&self, change: Change<'_>);

    /// Stops all answers from the volume in memory, which can no longer be trusted.
    fn broken(&self);

    /// Whether this front end is a mount that is read-only, so that others must change nothing either.
    fn refuses_changes(&self) -> bool {
        false
    }
}

/// The observer of a volume with only one front end.
#[derive(Clone, Copy, Debug, Default)]
pub struct NoObserver;

impl Observer for NoObserver {
    fn changed(&self, _: Change<'_>) {}
    fn broken(&self) {}
}

/// The exports of a front end with its own clients, for administration.
pub trait Exports: Send + Sync {
    /// The numbers of calls served, by kind.
    fn calls(&self) -> serde_json::Value;

    /// The exports, and the connected clients.
    fn describe(&self) -> serde_json::Value;

    /// Exports a directory, given as on the command line. Replaces an export of the same path.
    ///
    /// # Errors
    ///
    /// The error in the text or with the directory.
    fn add(&self, text: &str) -> std::result::Result<(), String>;

    /// Ends an export: its handles become stale.
    ///
    /// # Errors
    ///
    /// The path is not exported.
    fn remove(&self, path: &str) -> std::result::Result<(), String>;
}

/// A companion server: a front end that serves the volume while it is mounted.
pub trait Companion: Send + Sync {
    /// Finishes the calls in progress, and takes no others until [`go_on`](Companion::go_on) or
    /// [`end`](Companion::end). Clients wait.
    ///
    /// # Errors
    ///
    /// The reason why it continues as before.
    fn pause(&self) -> std::result::Result<(), String>;

    /// Continues after a pause.
    fn go_on(&self);

    /// Finishes the calls in progress, and ends. Further calls of this function do nothing.
    ///
    /// # Errors
    ///
    /// The reason why the volume in memory cannot be trusted: it must not be closed.
    fn end(&self) -> std::result::Result<(), String>;

    /// Stops all answers from the volume in memory, which can no longer be trusted. Does not wait.
    fn broken(&self);
}

/// The file at a path below a directory. Symbolic links are not followed.
///
/// # Errors
///
/// [`Error::Invalid`] for a path that contains `..`; errors from looking names up.
pub fn find(volume: &Volume, from: InodeNo, path: &str) -> Result<Attr> {
    let mut found = volume.attr(from)?;
    for name in path.split('/').filter(|name| !name.is_empty() && *name != ".") {
        if name == ".." {
            return Err(Error::Invalid("a path with .. in it"));
        }
        found = volume.lookup(found.ino, name.as_bytes())?;
        volume.release(found.ino, 1);
    }
    Ok(found)
}

/// Whether the volume or its device caused an error, not the caller.
pub fn is_fault(error: &Error) -> bool {
    matches!(error, Error::Io(_) | Error::Corruption(_))
}

/// Logs the error of an operation if it is a fault: the log has only faults with the priority *error*.
pub fn log_fault(operation: &str, error: &Error) {
    if is_fault(error) {
        tracing::error!(operation, %error, "failed");
    }
}

/// The name of a user in /etc/passwd; "user" and the number without one.
pub fn user_name(uid: u32) -> String {
    let users = fs::read_to_string("/etc/passwd").unwrap_or_default();
    let named = users.lines().find_map(|line| {
        let mut fields = line.split(':');
        let name = fields.next()?;
        (fields.nth(1)?.parse() == Ok(uid)).then(|| name.to_owned())
    });
    named.unwrap_or_else(|| format!("user {uid}"))
}

/// Runs front ends while other threads do the volume's background work: writing due epochs, and reading
/// ahead.
pub fn keep<T>(volume: &Volume, work: impl FnOnce() -> T) -> T {
    volume.with_prefetch(READ_AHEAD_THREADS, || {
        volume.writer().background().run_during(BACKGROUND_INTERVAL, failures_to_log(), work)
    })
}

/// Logs the first failure of the background work, and each different one after it: the volume itself has
/// latched read-only, and its answers say so.
fn failures_to_log() -> impl FnMut(Result<()>) + Send {
    let mut last = None;
    move |result| {
        let failure = result.err().map(|error| error.to_string());
        if failure != last
            && let Some(error) = &failure
        {
            tracing::error!(error, "the volume could not be written; it is read-only from now on");
        }
        last = failure;
    }
}
