//! A tree from a volume to outside.
//!
//! The unit of work is a directory, as on the way in. Directories get their own modes and times at
//! the very end, so that one without permissions can be filled.

use std::collections::HashMap;
use std::ffi::OsStr;
use std::fs::{self, Permissions};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use parking_lot::Mutex;
use rustix::fs::{CWD, FileType as HostType, Mode};

use super::copy::{CopyCause, Count, Job, Queue};
use super::{CopyError, CopyOptions, Files, Node, Observer, Summary, host};
use crate::error::Error;
use crate::format::inode::FileType;
use crate::units::InodeNo;
use crate::vfs::types::{Attr, SeekFor};

const COPY_BYTES: usize = 1 << 20;

/// Copies a tree from the volume to outside; the counterpart of [`import`](super::import()).
///
/// What is in the directory `source` comes into the directory `target`, which is made if it is
/// missing. A `source` that is not a directory becomes the file `target`, or a file in it if that
/// is a directory. Files that exist give way.
pub fn export(
    files: &Files,
    source: &[u8],
    target: &Path,
    options: &CopyOptions,
    observer: &dyn Observer,
) -> Result<Summary, CopyError> {
    let job = Job::new(options, observer);
    let export = Export {
        job: &job,
        first_names: Mutex::new(HashMap::new()),
        directories: Mutex::new(Vec::new()),
    };
    match export.begin(files, source, target) {
        Ok(Some(task)) => job.run(task, |task, queue| export.directory(task, queue)),
        Ok(None) => {}
        Err(cause) => return Err(CopyError { path: target.to_owned(), cause }),
    }
    export.finish_directories();
    job.finish()
}

struct Export<'a> {
    job: &'a Job<'a>,
    /// The first name outside of each file that has more than one.
    first_names: Mutex<HashMap<InodeNo, PathBuf>>,
    /// Directories whose attributes are still to be set.
    directories: Mutex<Vec<(PathBuf, Node)>>,
}

/// A directory to copy: the one in the volume, and what it became.
struct Task {
    source: Node,
    target: PathBuf,
}

impl Export<'_> {
    fn begin(
        &self,
        files: &Files,
        source: &[u8],
        target: &Path,
    ) -> Result<Option<Task>, CopyCause> {
        let node = files.node_itself(source)?;
        let attr = node.attr()?;
        if attr.file_type == FileType::Directory {
            fs::create_dir_all(target)?;
            return Ok(Some(Task { source: node, target: target.to_owned() }));
        }
        let name = Path::new(OsStr::from_bytes(source));
        let target = match (target.is_dir(), name.file_name()) {
            (true, Some(name)) => target.join(name),
            _ => target.to_owned(),
        };
        self.entry(&node, &attr, &target)?;
        Ok(None)
    }

    fn directory(&self, task: Task, queue: &Queue<Task>) {
        let mut found = Vec::new();
        match self.fill(&task, &mut found) {
            Ok(()) => {
                self.job.copied(Count::Directories, &task.target, 0);
                self.directories.lock().push((task.target, task.source));
            }
            Err(cause) => self.job.failed(&task.target, cause),
        }
        queue.add(found.into_iter().rev());
    }

    fn fill(&self, task: &Task, found: &mut Vec<Task>) -> Result<(), CopyCause> {
        for item in task.source.entries()? {
            if self.job.has_ended() {
                return Ok(());
            }
            let target = task.target.join(OsStr::from_bytes(&item.name));
            let copied = task.source.lookup(&item.name).map_err(CopyCause::from).and_then(|node| {
                if item.attr.file_type == FileType::Directory {
                    make_dir(&target)?;
                    return Ok(Some(node));
                }
                self.entry(&node, &item.attr, &target).map(|()| None)
            });
            match copied {
                Ok(Some(source)) => found.push(Task { source, target }),
                Ok(None) => {}
                Err(cause) => self.job.failed(&target, cause),
            }
        }
        Ok(())
    }

    /// Copies what is not a directory.
    fn entry(&self, node: &Node, attr: &Attr, target: &Path) -> Result<(), CopyCause> {
        if attr.nlink < 2 {
            return self.make(node, attr, target);
        }
        let mut first_names = self.first_names.lock();
        if let Some(first) = first_names.get(&attr.ino) {
            remove_existing(target)?;
            fs::hard_link(first, target)?;
            self.job.copied(Count::HardLinks, target, 0);
            return Ok(());
        }
        // Made under the lock, so that no other thread links to it before it is there.
        self.make(node, attr, target)?;
        first_names.insert(attr.ino, target.to_owned());
        Ok(())
    }

    fn make(&self, node: &Node, attr: &Attr, target: &Path) -> Result<(), CopyCause> {
        remove_existing(target)?;
        let special = |kind| {
            let (major, minor) = ((attr.device >> 32) as u32, attr.device as u32);
            let device = rustix::fs::makedev(major, minor);
            rustix::fs::mknodat(CWD, target, kind, Mode::from_raw_mode(0o600), device)
        };
        let mut bytes = 0;
        let count = match attr.file_type {
            FileType::Regular => {
                bytes = contents(node, attr, target)?;
                Count::Files
            }
            FileType::Symlink => {
                let link = node.volume().read_link(node.ino())?;
                std::os::unix::fs::symlink(OsStr::from_bytes(&link), target)?;
                Count::Symlinks
            }
            FileType::Fifo => special(HostType::Fifo).map(|()| Count::Special)?,
            FileType::Socket => special(HostType::Socket).map(|()| Count::Special)?,
            FileType::CharDevice => special(HostType::CharacterDevice).map(|()| Count::Special)?,
            FileType::BlockDevice => special(HostType::BlockDevice).map(|()| Count::Special)?,
            FileType::Directory => return Err(Error::IsDirectory.into()),
        };
        self.attributes(node, attr, target)?;
        self.job.copied(count, target, bytes);
        Ok(())
    }

    /// The owner comes first, since changing it clears set-id bits; the times come last.
    fn attributes(&self, node: &Node, attr: &Attr, target: &Path) -> Result<(), CopyCause> {
        if self.job.options.owner {
            std::os::unix::fs::lchown(target, Some(attr.uid), Some(attr.gid))?;
        }
        if attr.file_type != FileType::Symlink {
            fs::set_permissions(target, Permissions::from_mode(attr.permissions))?;
        }
        if self.job.options.xattrs {
            for name in node.volume().xattr_names(node.ino())? {
                let value = node.volume().xattr(node.ino(), &name)?;
                host::set_xattr(target, &name, &value)?;
            }
        }
        Ok(host::set_times(target, attr.atime, attr.mtime)?)
    }

    /// Sets the attributes of the directories, those below first.
    fn finish_directories(&self) {
        let mut directories = std::mem::take(&mut *self.directories.lock());
        directories.sort_by_key(|(path, _)| std::cmp::Reverse(path.components().count()));
        for (path, node) in directories {
            let set = node
                .attr()
                .map_err(CopyCause::from)
                .and_then(|attr| self.attributes(&node, &attr, &path));
            if let Err(cause) = set {
                self.job.failed(&path, cause);
            }
        }
    }
}

fn make_dir(path: &Path) -> io::Result<()> {
    match fs::create_dir(path) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
            // A symbolic link to a directory would lead the copy elsewhere.
            if fs::symlink_metadata(path)?.is_dir() { Ok(()) } else { Err(error) }
        }
        made => made,
    }
}

fn remove_existing(path: &Path) -> io::Result<()> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

/// Copies what is not a hole and returns how much that was.
fn contents(node: &Node, attr: &Attr, target: &Path) -> Result<u64, CopyCause> {
    let target = fs::File::options().write(true).create_new(true).mode(0o600).open(target)?;
    let mut buf = vec![0; COPY_BYTES.min(attr.size as usize)];
    let mut copied = 0;
    let mut at = 0;
    while at < attr.size {
        at = match node.volume().seek(node.ino(), at, SeekFor::Data) {
            Ok(start) => start,
            Err(Error::NoData) => break,
            Err(error) => return Err(error.into()),
        };
        let end = node.volume().seek(node.ino(), at, SeekFor::Hole)?.min(attr.size);
        while at < end {
            let wanted = buf.len().min((end - at) as usize);
            let read = node.read_at(at, &mut buf[..wanted])?;
            if read == 0 {
                return Err(io::Error::from(io::ErrorKind::UnexpectedEof).into());
            }
            target.write_all_at(&buf[..read], at)?;
            at += read as u64;
            copied += read as u64;
        }
    }
    target.set_len(attr.size)?;
    Ok(copied)
}
