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

/// How often the volume gets a chance to write what is due.
const BACKGROUND_INTERVAL: Duration = Duration::from_secs(1);
/// Threads that read ahead: one waits for the device while the other takes over what it has read.
const READ_AHEAD_THREADS: usize = 2;

/// The volume that is served: one and the same, unless a mount follows what another program writes.
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

/// What a front end has changed, as far as another may have it cached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change<'a> {
    /// The attributes of a file.
    Attributes(InodeNo),
    /// Contents of a file from an offset on, so many bytes or up to its end, and its attributes.
    Contents(InodeNo, u64, Option<u64>),
    /// A name in a directory, and so the directory's listing and attributes.
    Name(InodeNo, &'a [u8]),
}

/// A front end that caches what it read, and so has to learn of changes that others make.
pub trait Observer: Send + Sync {
    /// Something was changed. Called after the change and before it is answered, with no lock held, by a
    /// thread that this front end never waits for.
    fn changed(&self, change: Change<'_>);

    /// The volume in memory can no longer be trusted: nothing more is to be answered from it.
    fn broken(&self);
}

/// For a front end that has the volume to itself.
#[derive(Clone, Copy, Debug, Default)]
pub struct NoObserver;

impl Observer for NoObserver {
    fn changed(&self, _: Change<'_>) {}
    fn broken(&self) {}
}

/// What a front end with clients of its own exports to them, for those who administer the volume.
pub trait Exports: Send + Sync {
    /// Counts what it has served, by kind.
    fn calls(&self) -> serde_json::Value;

    /// What is exported, and the clients that are connected.
    fn describe(&self) -> serde_json::Value;

    /// Exports a directory, as the options of the command line say; in the place of an export of the same
    /// path, if there is one.
    ///
    /// # Errors
    ///
    /// What is wrong with the text, or with the directory.
    fn add(&self, text: &str) -> std::result::Result<(), String>;

    /// Ends an export: handles that clients have by it are stale from then on.
    ///
    /// # Errors
    ///
    /// There is none of this path.
    fn remove(&self, path: &str) -> std::result::Result<(), String>;
}

/// A companion server: a front end that serves the volume while it is mounted.
pub trait Companion: Send + Sync {
    /// Finishes the calls under way, and takes no others until [`go_on`](Companion::go_on) or
    /// [`end`](Companion::end). Clients wait.
    ///
    /// # Errors
    ///
    /// Why it goes on as before.
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
        volume.with_background(BACKGROUND_INTERVAL, failures_to_log(), work)
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
