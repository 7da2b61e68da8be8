//! A tree from outside into a volume.
//!
//! The unit of work is a directory. Its entries are made in the order of their names, so that a
//! later listing, and the data that lies in the order of the listing, has that order, too.

use std::collections::HashMap;
use std::fs::{self, Metadata};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use parking_lot::Mutex;

use super::copy::{CopyCause, Count, Job, Queue};
use super::{CopyError, CopyOptions, Files, Node, Observer, Summary, host};
use crate::clock::Timestamp;
use crate::error::Error;
use crate::format::inode::FileType;
use crate::vfs::types::{NewFile, NewKind, SetAttr, SetTime, XattrMode};

const COPY_BYTES: usize = 1 << 20;
const BACKGROUND_INTERVAL: Duration = Duration::from_secs(1);

/// Copies a tree from outside into the volume, with owners, modes, times, extended attributes,
/// hard links and holes as `options` say.
///
/// What is in the directory `source` comes into the directory `target`, which is made if it is
/// missing and takes on `source`'s attributes; other files in it stay. A `source` that is not a
/// directory becomes the file `target`, or a file in it if that is a directory.
///
/// A file that cannot be copied is told to the observer and counted; an error is returned where
/// the copy as a whole ended.
pub fn import(
    files: &Files,
    source: &Path,
    target: &[u8],
    options: &CopyOptions,
    observer: &dyn Observer,
) -> Result<Summary, CopyError> {
    let job = Job::new(options, observer);
    let import = Import { files, job: &job, first_names: Mutex::new(HashMap::new()) };
    match import.begin(source, target) {
        Ok(Some(task)) => {
            // What the background cannot write, the copy's own changes cannot either, and tell.
            let run = || job.run(task, |task, queue| import.directory(task, queue));
            files.volume().with_background(BACKGROUND_INTERVAL, drop, run);
        }
        Ok(None) => {}
        Err(cause) => return Err(CopyError { path: source.to_owned(), cause }),
    }
    drop(import);
    job.finish()
}

struct Import<'a> {
    files: &'a Files,
    job: &'a Job<'a>,
    /// The inode of each file outside that has more than one name, by device and number.
    first_names: Mutex<HashMap<(u64, u64), Node>>,
}

/// A directory to copy: its path outside, and what it became.
struct Task {
    source: PathBuf,
    target: Node,
}

impl Import<'_> {
    /// Copies a source that is not a directory; else makes the first directory.
    fn begin(&self, source: &Path, target: &[u8]) -> Result<Option<Task>, CopyCause> {
        let metadata = fs::symlink_metadata(source)?;
        if metadata.is_dir() {
            self.files.make_dir_all(target)?;
            let target = self.files.node(target)?;
            return Ok(Some(Task { source: source.to_owned(), target }));
        }
        let (dir, name) = match self.files.node(target) {
            Ok(node) if node.attr()?.file_type == FileType::Directory => {
                (node, host::name_bytes(source).to_vec())
            }
            _ => super::resolve::parent(self.files.volume(), target)?,
        };
        self.entry(source, &metadata, &dir, &name)?;
        Ok(None)
    }

    fn directory(&self, task: Task, queue: &Queue<Task>) {
        let mut found = Vec::new();
        match self.fill(&task, &mut found) {
            Ok(()) => self.job.copied(Count::Directories, &task.source, 0),
            Err(cause) => self.job.failed(&task.source, cause),
        }
        // The queue hands out the newest first.
        queue.add(found.into_iter().rev());
    }

    fn fill(&self, task: &Task, found: &mut Vec<Task>) -> Result<(), CopyCause> {
        let mut paths = Vec::new();
        for entry in fs::read_dir(&task.source)? {
            paths.push(entry?.path());
        }
        paths.sort_unstable_by(|a, b| a.as_os_str().as_bytes().cmp(b.as_os_str().as_bytes()));
        for path in paths {
            if self.job.has_ended() {
                return Ok(());
            }
            let copied =
                fs::symlink_metadata(&path).map_err(CopyCause::from).and_then(|metadata| {
                    self.entry(&path, &metadata, &task.target, host::name_bytes(&path))
                });
            match copied {
                Ok(Some(target)) => found.push(Task { source: path, target }),
                Ok(None) => {}
                Err(cause) => self.job.failed(&path, cause),
            }
        }
        // Making the entries changed the directory's times, so its own come last.
        self.attributes(&task.source, &fs::symlink_metadata(&task.source)?, &task.target, None)
    }

    /// Copies one entry; of a directory only makes it, and returns it.
    fn entry(
        &self,
        path: &Path,
        metadata: &Metadata,
        dir: &Node,
        name: &[u8],
    ) -> Result<Option<Node>, CopyCause> {
        if metadata.is_dir() {
            let made = match dir.make(name, &new_file(NewKind::Directory, metadata)) {
                Err(Error::Exists) => dir.lookup(name)?,
                made => made?,
            };
            return match made.attr()?.file_type {
                FileType::Directory => Ok(Some(made)),
                _ => Err(Error::NotDirectory.into()),
            };
        }
        let file_type = metadata.file_type();
        if file_type.is_symlink() {
            let target = fs::read_link(path)?;
            let kind = NewKind::Symlink(target.as_os_str().as_bytes());
            let node = make_anew(dir, name, &new_file(kind, metadata))?;
            self.attributes(path, metadata, &node, None)?;
            self.job.copied(Count::Symlinks, path, 0);
            return Ok(None);
        }
        let kind = match () {
            () if file_type.is_file() => NewKind::Regular,
            () if file_type.is_fifo() => NewKind::Fifo,
            () if file_type.is_socket() => NewKind::Socket,
            () if file_type.is_char_device() => NewKind::CharDevice(device(metadata)),
            () => NewKind::BlockDevice(device(metadata)),
        };
        let Some(node) = self.make_or_link(path, metadata, dir, name, kind)? else {
            return Ok(None);
        };
        let bytes = if file_type.is_file() { contents(path, metadata, &node)? } else { 0 };
        let size = file_type.is_file().then_some(metadata.len());
        self.attributes(path, metadata, &node, size)?;
        let count = if file_type.is_file() { Count::Files } else { Count::Special };
        self.job.copied(count, path, bytes);
        Ok(None)
    }

    /// Makes the file; if another name of it was copied already, links to that and returns `None`.
    fn make_or_link(
        &self,
        path: &Path,
        metadata: &Metadata,
        dir: &Node,
        name: &[u8],
        kind: NewKind<'_>,
    ) -> Result<Option<Node>, CopyCause> {
        let new = new_file(kind, metadata);
        if metadata.nlink() < 2 {
            return Ok(Some(make_anew(dir, name, &new)?));
        }
        // Held while the file is made, so that no other thread makes it a second time.
        let mut first_names = self.first_names.lock();
        let identity = (metadata.dev(), metadata.ino());
        if let Some(first) = first_names.get(&identity) {
            match dir.link(first, name) {
                Err(Error::Exists) => {
                    dir.volume().unlink(dir.ino(), name)?;
                    dir.link(first, name)?;
                }
                linked => drop(linked?),
            }
            self.job.copied(Count::HardLinks, path, 0);
            return Ok(None);
        }
        let node = make_anew(dir, name, &new)?;
        first_names.insert(identity, dir.lookup(name)?);
        Ok(Some(node))
    }

    fn attributes(
        &self,
        path: &Path,
        metadata: &Metadata,
        node: &Node,
        size: Option<u64>,
    ) -> Result<(), CopyCause> {
        if self.job.options.xattrs {
            for (name, value) in host::xattrs(path)? {
                node.volume().set_xattr(node.ino(), &name, &value, XattrMode::Any)?;
            }
        }
        let is_symlink = metadata.file_type().is_symlink();
        let owner = self.job.options.owner;
        let time = |seconds, nanoseconds: i64| {
            SetTime::To(Timestamp { seconds, nanoseconds: nanoseconds as u32 })
        };
        let changes = SetAttr {
            permissions: (!is_symlink).then_some(metadata.mode() & 0o7777),
            uid: owner.then_some(metadata.uid()),
            gid: owner.then_some(metadata.gid()),
            size,
            atime: Some(time(metadata.atime(), metadata.atime_nsec())),
            mtime: Some(time(metadata.mtime(), metadata.mtime_nsec())),
            ..SetAttr::default()
        };
        node.volume().set_attr(node.ino(), &changes)?;
        Ok(())
    }
}

fn new_file<'a>(kind: NewKind<'a>, metadata: &Metadata) -> NewFile<'a> {
    NewFile {
        kind,
        permissions: metadata.mode() & 0o7777,
        umask: 0,
        uid: metadata.uid(),
        gid: metadata.gid(),
    }
}

fn device(metadata: &Metadata) -> u64 {
    let device = metadata.rdev();
    u64::from(rustix::fs::major(device)) << 32 | u64::from(rustix::fs::minor(device))
}

/// Makes a file; one that has the name already gives way, unless it is a directory.
fn make_anew(dir: &Node, name: &[u8], new: &NewFile<'_>) -> Result<Node, Error> {
    match dir.make(name, new) {
        Err(Error::Exists) => {
            dir.volume().unlink(dir.ino(), name)?;
            dir.make(name, new)
        }
        made => made,
    }
}

/// Copies what is not a hole and returns how much that was.
fn contents(path: &Path, metadata: &Metadata, node: &Node) -> Result<u64, CopyCause> {
    if metadata.len() == 0 {
        return Ok(0);
    }
    let source = fs::File::open(path)?;
    let mut copied = 0;
    let mut buf = vec![0; COPY_BYTES.min(metadata.len() as usize)];
    for range in host::data_ranges(&source, metadata)? {
        let mut at = range.start;
        while at < range.end {
            let wanted = buf.len().min((range.end - at) as usize);
            let read = source.read_at(&mut buf[..wanted], at)?;
            if read == 0 {
                return Err(std::io::Error::other("the file became shorter meanwhile").into());
            }
            node.write_all_at(at, &buf[..read])?;
            at += read as u64;
            copied += read as u64;
        }
    }
    Ok(copied)
}
