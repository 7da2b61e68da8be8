//! The interfaces between the front ends of one volume, and the volume's background work.
//!
//! ```text
//!   change by NFS ──▶ Volume ──▶ Observer::changed ──▶ the kernel drops cached data ──▶ reply
//!   unmounted     ──▶ Companion::end: the companion server finishes its calls ──▶ Volume::close
//! ```

use std::sync::Arc;
use std::time::Duration;

use cffs::error::{Error, Result};
use cffs::units::InodeNo;
use cffs::vfs::Volume;
use cffs::vfs::types::Attr;
use parking_lot::RwLock;

/// The interval of the volume's background writes.
const BACKGROUND_INTERVAL: Duration = Duration::from_secs(1);
/// Threads that read ahead: one waits for the device while the other handles the data that it read.
const READ_AHEAD_THREADS: usize = 2;

/// The served volume. It changes only on a mount that follows another program's changes.
#[derive(Clone)]
pub struct Current(Arc<RwLock<(u64, Arc<Volume>)>>);

impl Current {
    /// This volume, until there is a newer version.
    pub fn new(volume: Arc<Volume>) -> Current {
        Current(Arc::new(RwLock::new((0, volume))))
    }

    /// The volume.
    pub fn get(&self) -> Arc<Volume> {
        self.version().1
    }

    /// The volume, and how many versions there were before.
    pub fn version(&self) -> (u64, Arc<Volume>) {
        self.0.read().clone()
    }

    /// This version comes next.
    pub fn set(&self, newer: Arc<Volume>) {
        let mut current = self.0.write();
        *current = (current.0 + 1, newer);
    }
}

/// A change by one front end of data that another may have cached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change<'a> {
    /// The attributes of a file.
    Attributes(InodeNo),
    /// Contents of a file from an offset on, with a length or up to its end, and its attributes.
    Contents(InodeNo, u64, Option<u64>),
    /// A name in a directory, and so the directory's listing and attributes.
    Name(InodeNo, &'a [u8]),
}

/// A front end that caches data and must learn of changes by others.
pub trait Observer: Send + Sync {
    /// Reports a change. Called after the change and before its reply, with no lock held, by a thread that
    /// this front end never waits for.
    fn changed(&self, change: Change<'_>);

    /// Stops all answers from the volume in memory, which can no longer be trusted.
    fn broken(&self);
}

/// For a front end that has the volume to itself.
#[derive(Clone, Copy, Debug, Default)]
pub struct NoObserver;

impl Observer for NoObserver {
    fn changed(&self, _: Change<'_>) {}
    fn broken(&self) {}
}

/// The exports of a front end with clients of its own, for administration.
pub trait Exports: Send + Sync {
    /// Counts of the calls that it served, by kind.
    fn calls(&self) -> serde_json::Value;

    /// The exports, and the connected clients.
    fn describe(&self) -> serde_json::Value;

    /// Exports a directory, given as on the command line. Replaces an export of the same path.
    ///
    /// # Errors
    ///
    /// The fault of the text or of the directory.
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
    /// Finishes the calls under way, and takes no others until [`go_on`](Companion::go_on) or
    /// [`end`](Companion::end). Clients wait.
    ///
    /// # Errors
    ///
    /// Why it continues as before.
    fn pause(&self) -> std::result::Result<(), String>;

    /// Goes on after a pause.
    fn go_on(&self);

    /// Finishes the calls under way, and ends. A second call does nothing.
    ///
    /// # Errors
    ///
    /// Why the volume in memory cannot be trusted: it must not be closed.
    fn end(&self) -> std::result::Result<(), String>;

    /// Stops all answers from the volume in memory, which can no longer be trusted. Does not wait.
    fn broken(&self);
}

/// The file at a path below a directory. Symbolic links are not followed.
///
/// # Errors
///
/// [`Error::Invalid`] for a path with `..` in it; those of looking names up.
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

/// Does the work of front ends while threads do the background work of the volume: writing what is due,
/// reading ahead.
pub fn keep<T>(volume: &Volume, work: impl FnOnce() -> T) -> T {
    volume.with_prefetch(READ_AHEAD_THREADS, || {
        volume.writer().with_background(BACKGROUND_INTERVAL, failures_to_log(), work)
    })
}

/// A failure of the background is logged when it first shows, and again if another follows: the
/// volume itself has latched read-only, and answers say so.
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
