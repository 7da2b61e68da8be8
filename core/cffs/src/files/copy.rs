//! The common part of importing and exporting trees: options, result, and the threads.

use std::io;
use std::num::NonZeroUsize;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;

use parking_lot::{Condvar, Mutex};

use crate::error::Error;
use crate::printable;

/// How a tree is copied.
#[derive(Clone, Copy, Debug)]
pub struct CopyOptions {
    /// How many threads copy; one per core if not given.
    pub threads: Option<NonZeroUsize>,
    /// Whether extended attributes are copied, ACLs among them.
    pub xattrs: bool,
    /// Whether owner and group are copied. On the way out of a volume that takes privileges. Without
    /// them, copies have the owner of the target directory, and no set-id bits or capabilities.
    pub owner: bool,
}

impl Default for CopyOptions {
    fn default() -> CopyOptions {
        CopyOptions { threads: None, xattrs: true, owner: true }
    }
}

/// Watches the progress of a copy, and may end it. Called from several threads.
pub trait Observer: Sync {
    /// A file of any type was copied, with this many bytes of contents.
    fn copied(&self, path: &Path, bytes: u64) {
        let _ = (path, bytes);
    }

    /// A file could not be copied, or not all of it; the others will be.
    fn failed(&self, error: &CopyError) {
        let _ = error;
    }

    /// Whether to end the copy early. Called between files, and every megabyte of a file. Files that are
    /// copied already stay; the current one stays in part, and counts as a failure.
    fn is_cancelled(&self) -> bool {
        false
    }
}

/// Observes nothing.
impl Observer for () {}

/// Why a file was not copied, or not with all that belongs to it.
#[derive(Debug, thiserror::Error)]
#[error("{}: {cause}", printable(path.as_os_str().as_bytes()))]
pub struct CopyError {
    /// The file's path outside of the volume; in the volume, if a copy into it was refused there. Where the
    /// copy could not begin, the path that could not be used.
    pub path: PathBuf,
    /// The cause.
    pub cause: CopyCause,
}

impl CopyError {
    pub(super) fn new(path: &Path, cause: impl Into<CopyCause>) -> CopyError {
        CopyError { path: path.to_owned(), cause: cause.into() }
    }
}

/// Which side failed.
#[derive(Debug, thiserror::Error)]
pub enum CopyCause {
    /// The volume.
    #[error(transparent)]
    Volume(#[from] Error),
    /// The system outside.
    #[error(transparent)]
    Host(#[from] io::Error),
    /// Either side, about one extended attribute. The copy has all others.
    #[error("extended attribute {}: {cause}", printable(name))]
    Attribute {
        /// Its name.
        name: Vec<u8>,
        /// Which side failed.
        cause: Box<CopyCause>,
    },
}

impl From<rustix::io::Errno> for CopyCause {
    fn from(errno: rustix::io::Errno) -> CopyCause {
        CopyCause::Host(errno.into())
    }
}

impl CopyCause {
    /// The failure of an extended attribute.
    pub fn of_attribute(name: &[u8], cause: impl Into<CopyCause>) -> CopyCause {
        CopyCause::Attribute { name: name.to_vec(), cause: Box::new(cause.into()) }
    }

    /// The failure of the volume or of the system outside.
    pub fn innermost(&self) -> &CopyCause {
        match self {
            CopyCause::Attribute { cause, .. } => cause.innermost(),
            CopyCause::Volume(_) | CopyCause::Host(_) => self,
        }
    }

    /// Whether going on makes no sense, since every other file would fail, too.
    pub fn is_final(&self) -> bool {
        match self {
            CopyCause::Volume(error) => error.is_final(),
            CopyCause::Host(error) => error.kind() == io::ErrorKind::StorageFull,
            // A file with too many attributes fails as if there were no space.
            CopyCause::Attribute { cause, .. } => match cause.innermost() {
                CopyCause::Volume(Error::NoSpace) | CopyCause::Host(_) => false,
                cause => cause.is_final(),
            },
        }
    }
}

/// The permissions of a file whose copy lacks its access ACL. The permissions of the group are the mask of
/// the ACL, and those of others may be more than the ACL gives to a user.
pub fn without_acl(permissions: u32) -> u32 {
    permissions & !0o077
}

/// Counts of copied files.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Summary {
    /// Regular files.
    pub files: u64,
    /// Directories.
    pub directories: u64,
    /// Symbolic links.
    pub symlinks: u64,
    /// Second and further names of files.
    pub hard_links: u64,
    /// Pipes, sockets and devices.
    pub special: u64,
    /// Bytes of files' contents, holes not counted.
    pub bytes: u64,
    /// Files that were not copied, or not with all that belongs to them.
    pub failures: u64,
}

/// The permissions of a copy that has another owner: a program that ran with the rights of its owner
/// or group must not run with those of another.
pub(super) fn without_privileges(permissions: u32) -> u32 {
    permissions & !0o6000
}

/// Whether an extended attribute gives rights to callers that run the file, as set-id bits do.
pub(super) fn is_privilege(xattr: &[u8]) -> bool {
    xattr == b"security.capability"
}

/// The copy in work, shared by its threads.
pub(super) struct Job<'a> {
    pub(super) options: CopyOptions,
    observer: &'a dyn Observer,
    counts: [AtomicU64; 7],
    /// The failure that ended the copy.
    ended_by: Mutex<Option<CopyError>>,
}

/// A counter of the summary.
#[derive(Clone, Copy)]
pub(super) enum Count {
    Files,
    Directories,
    Symlinks,
    HardLinks,
    Special,
    Bytes,
    Failures,
}

impl<'a> Job<'a> {
    pub(super) fn new(options: &CopyOptions, observer: &'a dyn Observer) -> Job<'a> {
        Job { options: *options, observer, counts: Default::default(), ended_by: Mutex::new(None) }
    }

    /// Counts a file that was copied.
    pub(super) fn copied(&self, what: Count, path: &Path, bytes: u64) {
        self.counts[what as usize].fetch_add(1, Ordering::Relaxed);
        self.counts[Count::Bytes as usize].fetch_add(bytes, Ordering::Relaxed);
        self.observer.copied(path, bytes);
    }

    /// Takes note of a failure. Of those that end the copy, the observer learns the first one.
    pub(super) fn failed(&self, path: &Path, cause: impl Into<CopyCause>) {
        let error = CopyError::new(path, cause);
        self.counts[Count::Failures as usize].fetch_add(1, Ordering::Relaxed);
        if !error.cause.is_final() {
            return self.observer.failed(&error);
        }
        let mut ended_by = self.ended_by.lock();
        if ended_by.is_none() {
            self.observer.failed(&error);
            *ended_by = Some(error);
        }
    }

    /// Whether the copy has ended early.
    pub(super) fn has_ended(&self) -> bool {
        self.observer.is_cancelled() || self.ended_by.lock().is_some()
    }

    /// Fails once the observer has ended the copy.
    pub(super) fn check_cancelled(&self) -> io::Result<()> {
        match self.observer.is_cancelled() {
            true => Err(io::Error::new(io::ErrorKind::Interrupted, "the copy was cancelled")),
            false => Ok(()),
        }
    }

    /// The result of the copy.
    pub(super) fn finish(self) -> Result<Summary, CopyError> {
        if let Some(error) = self.ended_by.into_inner() {
            return Err(error);
        }
        let [files, directories, symlinks, hard_links, special, bytes, failures] =
            self.counts.map(AtomicU64::into_inner);
        Ok(Summary { files, directories, symlinks, hard_links, special, bytes, failures })
    }

    /// Works on `first`, and on what that work adds, in several threads until nothing is left. The
    /// newest is done first, so that few directories are in work at once.
    pub(super) fn run<T: Send>(&self, first: T, work: impl Fn(T, &Queue<T>) + Sync) {
        let threads = self.options.threads.or_else(|| thread::available_parallelism().ok());
        let queue = Queue {
            state: Mutex::new(QueueState { waiting: vec![first], in_work: 0 }),
            changed: Condvar::new(),
        };
        let run = || {
            while let Some(task) = queue.next(|| self.has_ended()) {
                let _done = Done(&queue);
                work(task, &queue);
            }
        };
        thread::scope(|scope| {
            for _ in 1..threads.map_or(1, NonZeroUsize::get) {
                scope.spawn(run);
            }
            run();
        });
    }
}

/// The jobs that are left.
pub(super) struct Queue<T> {
    state: Mutex<QueueState<T>>,
    changed: Condvar,
}

struct QueueState<T> {
    waiting: Vec<T>,
    in_work: usize,
}

impl<T> Queue<T> {
    pub(super) fn add(&self, tasks: impl IntoIterator<Item = T>) {
        self.state.lock().waiting.extend(tasks);
        self.changed.notify_all();
    }

    fn next(&self, has_ended: impl Fn() -> bool) -> Option<T> {
        let mut state = self.state.lock();
        loop {
            if has_ended() {
                return None;
            }
            if let Some(task) = state.waiting.pop() {
                state.in_work += 1;
                return Some(task);
            }
            if state.in_work == 0 {
                return None;
            }
            self.changed.wait(&mut state);
        }
    }
}

/// Counts a task as done, even if its work panicked: the others must not wait for it.
struct Done<'a, T>(&'a Queue<T>);

impl<T> Drop for Done<'_, T> {
    fn drop(&mut self) {
        self.0.state.lock().in_work -= 1;
        self.0.changed.notify_all();
    }
}
