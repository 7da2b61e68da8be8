//! A tree from outside into a volume.
//!
//! The unit of work is a directory. Its entries are made in the order of their names, so listings and the
//! data on the device have that order, too. Changes of the tree by other users cannot redirect the copy out
//! of it ([`host`]).

use std::collections::{HashMap, VecDeque};
use std::ffi::{OsStr, OsString};
use std::fs::{File, Metadata};
use std::io;
use std::ops::Range;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use parking_lot::Mutex;

use super::copy::{CopyCause, Count, Job, Queue, without_privileges};
use super::host::{self, Entry, Identity};
use super::{Clears, CopyError, CopyOptions, Files, Making, Node, Observer, Put, Summary};
use crate::clock::Timestamp;
use crate::error::Error;
use crate::format::inode::FileType;
use crate::vfs::types::{NewFile, NewKind, SetAttr, SetTime};

const COPY_BYTES: usize = 1 << 20;
/// The unit in which stat(2) counts what a file occupies.
const SECTOR_BYTES: u64 = 512;
/// The number of files that are begun before the copy waits for the first half of them.
const BEGUN_MAX: usize = 256;
/// Most files that report no size are empty.
const EMPTY_BYTES: usize = 4096;
const BACKGROUND_INTERVAL: Duration = Duration::from_secs(1);

/// Copies a tree from outside into the volume, with owners, modes, times, extended attributes,
/// hard links and holes as `options` say.
///
/// The entries of the directory `source` are copied into the directory `target`, which is made if it is
/// missing and takes on `source`'s attributes; other files in it stay. A `source` that is not a
/// directory becomes the file `target`, or a file in it if that is a directory.
///
/// Copied files may be only in memory when it returns: [`Files::close`] makes them durable, or fails if they
/// are lost. An observer can end the copy early; then the summary has the files copied until then.
///
/// # Errors
///
/// A file that cannot be copied whole is reported to the observer and counted in
/// [`Summary::failures`]. An error is returned where the copy could not begin or could not continue: the
/// `source` cannot be read, the `target` cannot be made, either side has no space left, or the volume
/// accepts no changes.
///
/// ```
/// # use cffs::files::{Files, import, export};
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let device = std::sync::Arc::new(cffs::device::MemoryDevice::new(16 << 20));
/// # cffs::mkfs::make(&device, &Default::default())?;
/// # let clock = std::sync::Arc::new(cffs::clock::SystemClock);
/// # let files = Files::new(std::sync::Arc::new(cffs::open(device, clock, Default::default())?));
/// # let scratch = tempfile::tempdir()?;
/// # let host = scratch.path();
/// std::fs::write(host.join("f"), b"contents")?;
/// let summary = import(&files, host, b"/copy", &Default::default(), &())?;
/// assert_eq!((summary.files, summary.failures), (1, 0));
/// assert_eq!(files.read("/copy/f")?, b"contents");
///
/// let error = export(&files, b"/nope", host, &Default::default(), &()).unwrap_err();
/// assert_eq!(error.to_string(), "/nope: no such file or directory");
/// files.close()?;
/// # Ok(())
/// # }
/// ```
pub fn import(
    files: &Files,
    source: &Path,
    target: &[u8],
    options: &CopyOptions,
    observer: &dyn Observer,
) -> Result<Summary, CopyError> {
    import_into(&files.root(), source, target, options, observer)
}

/// Copies a tree from outside as [`import()`] does; `target` is a path from the directory `root` on.
///
/// # Errors
///
/// Those of [`import()`].
pub fn import_into(
    root: &Node,
    source: &Path,
    target: &[u8],
    options: &CopyOptions,
    observer: &dyn Observer,
) -> Result<Summary, CopyError> {
    let job = Job::new(options, observer);
    let import = Import::new(root, &job, source, target);
    if let Some(task) = import.begin()? {
        // If the background cannot write changes, the copy's own changes fail, too, and report it.
        let run = || {
            job.run(task, |task, queue| import.directory(task, queue));
            import.finish(0);
        };
        root.with_background(BACKGROUND_INTERVAL, run);
    }
    drop(import);
    job.finish()
}

/// Copies a file outside that is not a directory to a name in a directory of the volume, as [`import()`]
/// does.
///
/// # Errors
///
/// Those of [`import()`]; also every failure of this file.
pub fn import_file(
    source: &Path,
    dir: &Node,
    name: &[u8],
    options: &CopyOptions,
    observer: &dyn Observer,
) -> Result<Summary, CopyError> {
    let job = Job::new(options, observer);
    let import = Import::new(dir, &job, source, name);
    import.file(dir, name)?;
    drop(import);
    job.finish()
}

/// A file that is being made.
struct Begun {
    making: Making,
    path: PathBuf,
    /// The counter for it; a directory is counted when it is complete.
    count: Option<Count>,
    bytes: u64,
}

struct Import<'a> {
    root: &'a Node,
    job: &'a Job<'a>,
    source: &'a Path,
    target: &'a [u8],
    /// The inode of each source file with several names, by device and number.
    first_names: Mutex<HashMap<Identity, Node>>,
    /// The files that all threads have begun, each with its directory, or for a directory with itself.
    begun: Mutex<VecDeque<(Begun, Arc<Target>)>>,
}

/// A directory to copy, and its copy.
struct Task {
    source: Source,
    /// Where it is, for messages.
    path: PathBuf,
    target: Arc<Target>,
}

/// A directory in the volume, which may still be made.
struct Target {
    node: Node,
    /// Whether it could not be made. Then its entries cannot be made either: one failure for all.
    has_failed: AtomicBool,
    above: Option<Arc<Target>>,
}

impl Target {
    fn new(node: Node, above: Option<Arc<Target>>) -> Arc<Target> {
        Arc::new(Target { node, has_failed: AtomicBool::new(false), above })
    }

    fn has_failed(&self) -> bool {
        self.has_failed.load(Ordering::Acquire)
    }
}

/// A directory outside: open, or as a name in one that is open.
pub(super) enum Source {
    Open(Entry),
    Named(Arc<Entry>, OsString),
}

impl<'a> Import<'a> {
    fn new(root: &'a Node, job: &'a Job<'a>, source: &'a Path, target: &'a [u8]) -> Import<'a> {
        let (first_names, begun) = (Mutex::default(), Mutex::default());
        Import { root, job, source, target, first_names, begun }
    }

    /// The path that an error about a file of the source names: if the volume refused it, that of its copy.
    fn refused(&self, path: &Path, cause: &CopyCause) -> PathBuf {
        match (cause.innermost(), path.strip_prefix(self.source)) {
            (CopyCause::Volume(_), Ok(below)) => {
                let copy = Path::new(OsStr::from_bytes(self.target)).join(below);
                copy.components().collect()
            }
            _ => path.to_owned(),
        }
    }

    /// Copies a source that is not a directory; else makes the first directory.
    fn begin(&self) -> Result<Option<Task>, CopyError> {
        let (source, target) = (self.source, self.target);
        let of_source = |error| CopyError::new(source, error);
        let of_target = |error| CopyError::new(Path::new(OsStr::from_bytes(target)), error);
        if let Some(dir) = Entry::dir_itself(source).map_err(of_source)? {
            self.root.make_dir_all(target).map_err(of_target)?;
            let target = self.root.at(target).map_err(of_target)?;
            // The root needs no lookup, but the volume may be closed.
            target.attr().map_err(of_target)?;
            let path = source.to_owned();
            let target = Target::new(target, None);
            return Ok(Some(Task { source: Source::Open(dir), path, target }));
        }
        let name = source.file_name().unwrap_or_default();
        let (dir, target_name) = match self.root.at(target).and_then(|node| {
            let is_dir = node.file_type() == FileType::Directory;
            if is_dir { Ok(node) } else { Err(Error::NotDirectory) }
        }) {
            Ok(node) => (node, name.as_bytes().to_vec()),
            Err(_) => super::resolve::parent(self.root, target).map_err(of_target)?,
        };
        self.file(&dir, &target_name).map(|()| None)
    }

    /// Copies a source that is not a directory.
    fn file(&self, dir: &Node, name: &[u8]) -> Result<(), CopyError> {
        let source = self.source;
        let outside = host::parent(source).map_err(CopyCause::from);
        let copied = outside.and_then(|(outside, own_name)| {
            let found = outside.find(&own_name)?;
            let Some(begun) = self.entry(source, &found, &found.metadata()?, (dir, name))? else {
                return Ok(());
            };
            self.root.finish(begun.making)?;
            begun.count.iter().for_each(|count| self.job.copied(*count, source, begun.bytes));
            Ok(())
        });
        copied.map_err(|cause| CopyError { path: self.refused(source, &cause), cause })
    }

    fn directory(&self, task: Task, queue: &Queue<Task>) {
        if task.target.has_failed() {
            return;
        }
        let mut directories = Vec::new();
        let filled = self.fill(&task, &mut directories);
        match filled {
            Ok(Some(making)) => {
                let (path, count) = (task.path, Some(Count::Directories));
                self.add(Begun { making, path, count, bytes: 0 }, &task.target);
            }
            Ok(None) => self.job.copied(Count::Directories, &task.path, 0),
            Err(cause) => self.failed(&task.path, cause, &task.target),
        }
        // The queue hands out the newest first.
        queue.add(directories.into_iter().rev());
    }

    /// Makes the entries of a directory, and sets its attributes. Adds the directories in it to
    /// `directories`. `None` if the copy has ended early.
    fn fill(&self, task: &Task, directories: &mut Vec<Task>) -> Result<Option<Making>, CopyCause> {
        let dir = Arc::new(match &task.source {
            Source::Open(dir) => dir.try_clone()?,
            Source::Named(above, name) => above.dir(name)?,
        });
        for name in dir.names()? {
            if self.job.has_ended() {
                return Ok(None);
            }
            let path = task.path.join(&name);
            let copied = dir.find(&name).map_err(CopyCause::from).and_then(|outside| {
                let metadata = outside.metadata()?;
                if metadata.is_dir() {
                    let source = Source::Named(Arc::clone(&dir), name);
                    directories.push(self.make_dir(source, &path, &metadata, &task.target)?);
                    return Ok(None);
                }
                self.entry(&path, &outside, &metadata, (&task.target.node, name.as_bytes()))
            });
            match copied {
                Ok(begun) => begun.into_iter().for_each(|begun| self.add(begun, &task.target)),
                Err(cause) => self.failed(&path, cause, &task.target),
            }
        }
        // Making the entries changed the directory's times, so its own come last. A server makes the files
        // that were begun before that.
        let (metadata, node) = (dir.metadata()?, &task.target.node);
        let xattrs = if self.job.options.xattrs { self.xattrs(&dir)? } else { Vec::new() };
        let clears = if self.job.options.xattrs { Clears::All } else { Clears::Nothing };
        if !xattrs.is_empty() {
            return self.attributes(&dir, &metadata, node, None).map(|()| None);
        }
        Ok(Some(node.begin_attributes(&self.changes(&metadata, None), clears)?))
    }

    /// Begins to make a directory. It is filled later.
    fn make_dir(
        &self,
        source: Source,
        path: &Path,
        metadata: &Metadata,
        above: &Arc<Target>,
    ) -> Result<Task, CopyCause> {
        let Source::Named(_, name) = &source else { return Err(Error::NotDirectory.into()) };
        let new = self.new_file(NewKind::Directory, metadata, &above.node)?;
        let (node, making) = above.node.begin_dir(name.as_bytes(), &new)?;
        let target = Target::new(node, Some(Arc::clone(above)));
        let path = path.to_owned();
        self.add(Begun { making, path: path.clone(), count: None, bytes: 0 }, &target);
        Ok(Task { source, path, target })
    }

    /// Notes a file that was begun, to be waited for.
    fn add(&self, begun: Begun, target: &Arc<Target>) {
        if begun.making.is_made() {
            return begun.count.iter().for_each(|count| {
                self.job.copied(*count, &begun.path, begun.bytes);
            });
        }
        let are_many = {
            let mut all = self.begun.lock();
            all.push_back((begun, Arc::clone(target)));
            all.len() >= BEGUN_MAX
        };
        if are_many {
            // The server makes the others meanwhile.
            self.finish(BEGUN_MAX / 2);
        }
    }

    /// Waits for the files that were begun, the first ones first, until `left` are left, and counts them.
    fn finish(&self, left: usize) {
        // Held, so that a directory is complete before its entries.
        let mut all = self.begun.lock();
        while all.len() > left {
            let Some((Begun { making, path, count, bytes }, target)) = all.pop_front() else {
                return;
            };
            match self.root.finish(making) {
                Ok(()) => count.iter().for_each(|count| self.job.copied(*count, &path, bytes)),
                Err(error) => {
                    // A directory that was begun has no count of its own.
                    let above = if count.is_none() { target.above.as_ref() } else { Some(&target) };
                    if count.is_none() {
                        target.has_failed.store(true, Ordering::Release);
                    }
                    if !is_in_none(&error, above) {
                        let cause = CopyCause::from(error);
                        self.job.failed(&self.refused(&path, &cause), cause);
                    }
                }
            }
        }
    }

    /// Takes note of a failure in a directory.
    fn failed(&self, path: &Path, cause: CopyCause, dir: &Arc<Target>) {
        if let CopyCause::Volume(error @ Error::Stale) = &cause {
            // Whether the directory was made.
            self.finish(0);
            if is_in_none(error, Some(dir)) {
                return;
            }
        }
        self.job.failed(&self.refused(path, &cause), cause);
    }

    /// Copies one entry that is not a directory, or begins to.
    fn entry(
        &self,
        path: &Path,
        found: &Entry,
        metadata: &Metadata,
        (dir, name): (&Node, &[u8]),
    ) -> Result<Option<Begun>, CopyCause> {
        let file_type = metadata.file_type();
        let target = if file_type.is_symlink() { found.link_target()? } else { Vec::new() };
        let (kind, count) = match () {
            () if file_type.is_file() => (NewKind::Regular, Count::Files),
            () if file_type.is_symlink() => (NewKind::Symlink(&target), Count::Symlinks),
            () if file_type.is_fifo() => (NewKind::Fifo, Count::Special),
            () if file_type.is_socket() => (NewKind::Socket, Count::Special),
            () if file_type.is_char_device() => {
                (NewKind::CharDevice(device(metadata)), Count::Special)
            }
            () => (NewKind::BlockDevice(device(metadata)), Count::Special),
        };
        let new = self.new_file(kind, metadata, dir)?;
        if let Some(contents) = self.whole(found, metadata) {
            let (changes, inherits_acls) = (self.changes(metadata, None), !self.job.options.xattrs);
            let making =
                dir.put(name, &Put { new, contents: &contents, changes, inherits_acls })?;
            let (path, bytes) = (path.to_owned(), contents.len() as u64);
            return Ok(Some(Begun { making, path, count: Some(count), bytes }));
        }
        let Some(node) = self.make_or_link(path, metadata, dir, name, &new)? else {
            return Ok(None);
        };
        let (bytes, size) = match file_type.is_file() {
            true => contents(self.job, found, metadata, &node)
                .map(|(bytes, size)| (bytes, Some(size)))?,
            false => (0, None),
        };
        self.attributes(found, metadata, &node, size)?;
        self.job.copied(count, path, bytes);
        Ok(None)
    }

    /// The contents of a file that one call can make: it has one name, no extended attributes that are copied
    /// and no holes, and it is small. `None` also if they cannot be read.
    fn whole(&self, found: &Entry, metadata: &Metadata) -> Option<Vec<u8>> {
        let len = if metadata.is_file() { metadata.len() } else { 0 };
        // Every file that the kernel makes up has a size of 0, too.
        let may_be_made_up = metadata.is_file() && len == 0;
        let may_have_holes = len > metadata.blocks() * SECTOR_BYTES;
        if metadata.nlink() > 1 || len > COPY_BYTES as u64 || may_be_made_up || may_have_holes {
            return None;
        }
        if self.job.options.xattrs && !self.xattrs(found).is_ok_and(|xattrs| xattrs.is_empty()) {
            return None;
        }
        let mut contents = vec![0; len as usize];
        found.file().read_exact_at(&mut contents, 0).ok()?;
        Some(contents)
    }

    /// The extended attributes of a source file that its copy gets.
    fn xattrs(&self, found: &Entry) -> io::Result<Vec<(Vec<u8>, Vec<u8>)>> {
        let mut xattrs = found.xattrs()?;
        xattrs.retain(|(name, _)| self.root.copies_xattr(name, self.job.options.owner));
        Ok(xattrs)
    }

    /// Makes the file. If another name of it was copied already, links to that and returns `None`.
    fn make_or_link(
        &self,
        path: &Path,
        metadata: &Metadata,
        dir: &Node,
        name: &[u8],
        new: &NewFile<'_>,
    ) -> Result<Option<Node>, CopyCause> {
        if metadata.nlink() < 2 {
            return Ok(Some(dir.replace(name, new)?));
        }
        // Held while the file is made, so that no other thread makes it a second time.
        let mut first_names = self.first_names.lock();
        let identity = (metadata.dev(), metadata.ino());
        if let Some(first) = first_names.get(&identity) {
            match dir.link(first, name) {
                Err(Error::Exists) => {
                    dir.unlink(name)?;
                    dir.link(first, name)?;
                }
                linked => drop(linked?),
            }
            self.job.copied(Count::HardLinks, path, 0);
            return Ok(None);
        }
        let node = dir.replace(name, new)?;
        first_names.insert(identity, node.try_clone()?);
        Ok(Some(node))
    }

    /// The new file for a file outside. Without its owner, it belongs to its directory's owner, and loses its
    /// set-id bits. In a mounted volume, other users cannot open it before its attributes are set.
    fn new_file<'n>(
        &self,
        kind: NewKind<'n>,
        metadata: &Metadata,
        dir: &Node,
    ) -> Result<NewFile<'n>, Error> {
        let mut permissions = self.permissions(metadata);
        if self.root.is_attached() {
            // Until its attributes are set, it belongs to this program, which must be able to fill it.
            let of_owner = if kind == NewKind::Directory { 0o700 } else { permissions };
            permissions = of_owner & 0o700;
        }
        match self.job.options.owner {
            true => {
                let (uid, gid) = (metadata.uid(), metadata.gid());
                Ok(NewFile { kind, permissions, uid, gid, times: None })
            }
            false => dir.new_file(kind, permissions),
        }
    }

    fn permissions(&self, metadata: &Metadata) -> u32 {
        match self.job.options.owner {
            true => metadata.mode() & 0o7777,
            false => without_privileges(metadata.mode() & 0o7777),
        }
    }

    /// Sets all attributes that can be set, and fails with an error of one that cannot.
    fn attributes(
        &self,
        found: &Entry,
        metadata: &Metadata,
        node: &Node,
        mut size: Option<u64>,
    ) -> Result<(), CopyCause> {
        let (mut outcome, mut permissions) = (Ok(()), self.permissions(metadata));
        if self.job.options.xattrs {
            let xattrs = self.xattrs(found)?;
            if let Some(size) = size.take_if(|_| !xattrs.is_empty()) {
                // Before the attributes, since a change of the size removes capabilities.
                node.set_attr(&SetAttr { size: Some(size), ..SetAttr::default() })?;
            }
            (permissions, outcome) = node.copy_xattrs(&xattrs, permissions);
        }
        let mut changes = self.changes(metadata, size);
        changes.permissions = changes.permissions.map(|_| permissions);
        // An error here may be one that ends the copy.
        node.set_attr(&changes).map_err(CopyCause::from).and(outcome)
    }

    /// The attributes that a copy takes over, and its size.
    fn changes(&self, metadata: &Metadata, size: Option<u64>) -> SetAttr {
        let owner = self.job.options.owner;
        let is_symlink = metadata.file_type().is_symlink();
        let time = |seconds, nanoseconds: i64| {
            SetTime::To(Timestamp { seconds, nanoseconds: nanoseconds as u32 })
        };
        SetAttr {
            permissions: (!is_symlink).then_some(self.permissions(metadata)),
            uid: owner.then_some(metadata.uid()),
            gid: owner.then_some(metadata.gid()),
            size,
            atime: Some(time(metadata.atime(), metadata.atime_nsec())),
            mtime: Some(time(metadata.mtime(), metadata.mtime_nsec())),
            ..SetAttr::default()
        }
    }
}

/// Whether a file could not be made because its directory was not.
fn is_in_none(error: &Error, dir: Option<&Arc<Target>>) -> bool {
    matches!(error, Error::Stale) && dir.is_some_and(|dir| dir.has_failed())
}

fn device(metadata: &Metadata) -> u64 {
    let device = metadata.rdev();
    u64::from(rustix::fs::major(device)) << 32 | u64::from(rustix::fs::minor(device))
}

/// Copies the ranges with data, and returns their length and the size.
///
/// Files that the kernel generates (/proc, /sys) report a size of 0 or of a page, whatever they contain. So
/// an empty file is read to its end, and a file may end before its size if it still reports the same size.
fn contents(
    job: &Job<'_>,
    found: &Entry,
    metadata: &Metadata,
    node: &Node,
) -> Result<(u64, u64), CopyCause> {
    let source = found.file();
    let mut copied = 0;
    if metadata.len() == 0 {
        if found.is_readable() {
            copied = copy_range(job, source, 0..u64::MAX, &mut vec![0; EMPTY_BYTES], node)?;
        }
        return Ok((copied, copied));
    }
    let mut buf = vec![0; COPY_BYTES.min(metadata.len() as usize)];
    for range in host::data_ranges(source, metadata)? {
        let wanted = range.end - range.start;
        let read = copy_range(job, source, range.clone(), &mut buf, node)?;
        copied += read;
        if read < wanted {
            if found.metadata()?.len() != metadata.len() {
                return Err(io::Error::other("the file became shorter meanwhile").into());
            }
            return Ok((copied, range.start + read));
        }
    }
    Ok((copied, metadata.len()))
}

/// Copies a range of a file, or up to its end, and returns the length.
fn copy_range(
    job: &Job<'_>,
    source: &File,
    range: Range<u64>,
    buf: &mut [u8],
    node: &Node,
) -> Result<u64, CopyCause> {
    let mut at = range.start;
    while at < range.end {
        job.check_cancelled()?;
        let wanted = buf.len().min(usize::try_from(range.end - at).unwrap_or(usize::MAX));
        let read = source.read_at(&mut buf[..wanted], at)?;
        if read == 0 {
            break;
        }
        node.write_all_at(at, &buf[..read])?;
        at += read as u64;
    }
    Ok(at - range.start)
}
