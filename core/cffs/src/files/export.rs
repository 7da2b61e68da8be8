//! A tree from a volume to outside.
//!
//! The unit of work is a directory, as for an import. Directories get their modes and times at the very end,
//! so that directories without permissions can be filled. Changes of the target by other users cannot
//! redirect the copy out of it ([`host`]).

use std::collections::HashMap;
use std::ffi::{OsStr, OsString};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use parking_lot::Mutex;
use rustix::fs::FileType as HostType;

use super::copy::{CopyCause, Count, Job, Queue, is_privilege, without_acl, without_privileges};
use super::host::{self, Entry, Identity, Way};
use super::places::{Place, Places, Trail};
use super::{CopyError, CopyOptions, Files, Node, Observer, Summary};
use crate::error::Error;
use crate::format::inode::FileType;
use crate::units::InodeNo;
use crate::vfs::types::{Attr, SeekFor};
use crate::vfs::xattr::{follows_source, is_access_acl};

const COPY_BYTES: usize = 1 << 20;
const INTO_ITSELF: Error = Error::Invalid("a tree cannot be exported into itself");

/// Copies a tree from the volume to outside; the counterpart of [`import`](super::import()).
///
/// The entries of the directory `source` are copied into the directory `target`, which is made if it is
/// missing. A `source` that is not a directory becomes the file `target`, or a file in it if that
/// is a directory. Existing files are replaced. When it returns, everything is on the host's device.
///
/// # Errors
///
/// A file that cannot be copied whole is reported to the observer and counted in
/// [`Summary::failures`]. An error is returned if the copy could not begin or could not continue: there
/// is no `source`, the `target` cannot be made or is in the `source` of a mounted volume, either side has no
/// space left, or the host could not write everything to its device.
pub fn export(
    files: &Files,
    source: &[u8],
    target: &Path,
    options: &CopyOptions,
    observer: &dyn Observer,
) -> Result<Summary, CopyError> {
    let of_source = |error| CopyError::new(Path::new(OsStr::from_bytes(source)), error);
    let of_target = |error: io::Error| CopyError::new(target, error);
    let node = files.node_itself(source).map_err(of_source)?;
    let attr = node.attr().map_err(of_source)?;
    let is_dir = attr.file_type == FileType::Directory;
    if is_dir && is_into_itself(&node, attr.ino, target).map_err(of_source)? {
        return Err(CopyError::new(target, INTO_ITSELF));
    }
    let (root, path, name) = open_target(source, is_dir, target).map_err(of_target)?;
    let (device, inode) = root.identity().map_err(of_target)?;
    let is_on_mount = node.mount_device().map_err(of_source)? == Some(device);

    let job = Job::new(options, observer);
    let export = Export {
        job: &job,
        root_in_volume: is_on_mount.then_some(InodeNo(inode)),
        syncs_each: root.keeps_syncfs().map_err(of_target)?,
        first_names: Mutex::new(FirstNames {
            way: Way::from(&root, &path).map_err(of_target)?,
            files: HashMap::new(),
        }),
        ways: Mutex::new(Vec::new()),
        root,
        path,
        places: Mutex::new(Places::new()),
        directories: Mutex::new(Vec::new()),
    };
    match name {
        None => {
            let first = Task { source: node, place: Place::TOP };
            job.run(first, |task, queue| export.directory(task, queue));
        }
        Some(name) => {
            let path = export.path.join(&name);
            let target = Target { dir: &export.root, place: Place::TOP, name: &name, path: &path };
            if let Err(cause) = export.entry(&node, &attr, &target) {
                return Err(CopyError { path, cause });
            }
        }
    }
    export.finish_directories();
    let synced = match export.syncs_each {
        true => export.root.sync(),
        false => export.root.sync_file_system(),
    };
    let summary = job.finish()?;
    synced.map_err(of_target)?;
    Ok(summary)
}

/// Whether the target is in the directory `source` of a mounted volume.
fn is_into_itself(source: &Node, ino: InodeNo, target: &Path) -> Result<bool, Error> {
    let Some(device) = source.mount_device()? else { return Ok(false) };
    // Missing directories of the target are made below the last one that exists.
    match target.ancestors().find_map(|path| Entry::dir_at(path).ok()) {
        Some(dir) => Ok(dir.is_within((device, ino.0))?),
        None => Ok(false),
    }
}

/// The target directory, its path, and, if the source is not a directory, the name of its copy.
fn open_target(
    source: &[u8],
    is_dir: bool,
    target: &Path,
) -> io::Result<(Entry, PathBuf, Option<OsString>)> {
    if is_dir {
        std::fs::create_dir_all(target)?;
        return Ok((Entry::dir_at(target)?, target.to_owned(), None));
    }
    let own_name = Path::new(OsStr::from_bytes(source)).file_name();
    match (Entry::dir_at(target), own_name) {
        (Ok(dir), Some(name)) => Ok((dir, target.to_owned(), Some(name.to_owned()))),
        _ => {
            let (dir, name) = host::parent(target)?;
            let path = target.parent().unwrap_or(Path::new("")).to_owned();
            Ok((dir, path, Some(name)))
        }
    }
}

struct Export<'a> {
    job: &'a Job<'a>,
    /// The number of the target directory, if it is in the mounted volume itself. It is not copied: a copy of
    /// it would not end.
    root_in_volume: Option<InodeNo>,
    /// Whether each file is synced by itself.
    syncs_each: bool,
    /// The directory in which everything is made.
    root: Entry,
    /// Its path, for messages.
    path: PathBuf,
    /// The directories below it.
    places: Mutex<Places>,
    first_names: Mutex<FirstNames>,
    /// Ways to directories that no thread uses at the moment.
    ways: Mutex<Vec<Way>>,
    /// Directories whose attributes are still to be set, each after its parent.
    directories: Mutex<Vec<Made>>,
}

/// The first name of each file with several names, and its copy.
struct FirstNames {
    files: HashMap<InodeNo, (Place, OsString, Identity)>,
    /// To the directory of such a name.
    way: Way,
}

/// A directory to copy: the one in the volume, and its place outside.
struct Task {
    source: Node,
    place: Place,
}

/// A directory that was copied.
struct Made {
    source: Node,
    place: Place,
    identity: Identity,
}

/// A file that is made outside.
struct Target<'a> {
    /// The directory, and its place.
    dir: &'a Entry,
    place: Place,
    /// The name in it.
    name: &'a OsStr,
    /// The whole path, for messages.
    path: &'a Path,
}

impl Export<'_> {
    fn directory(&self, task: Task, queue: &Queue<Task>) {
        let mut found = Vec::new();
        let Task { source, place } = task;
        let is_root = self.root_in_volume == Some(source.ino());
        let filled = self.along_a_way(|way| {
            if is_root {
                return Err(INTO_ITSELF.into());
            }
            let (dir, trail) = way.lead(&self.places, place)?;
            let identity = self.fill(&source, (dir, place), trail, &mut found)?;
            self.job.copied(Count::Directories, trail.path(), 0);
            Ok(identity)
        });
        match filled {
            Ok(identity) => self.directories.lock().push(Made { source, place, identity }),
            Err(cause) => self.job.failed(&self.path_of(place), cause),
        }
        queue.add(found.into_iter().rev());
    }

    /// The path of a directory. It takes time in proportion to the depth.
    fn path_of(&self, place: Place) -> PathBuf {
        self.path.join(self.places.lock().path(place))
    }

    /// Calls `work` with a path of open directories, an unused one of this copy if possible.
    fn along_a_way<T>(
        &self,
        work: impl FnOnce(&mut Way) -> Result<T, CopyCause>,
    ) -> Result<T, CopyCause> {
        let free = self.ways.lock().pop();
        let mut way = match free {
            Some(way) => way,
            None => Way::from(&self.root, &self.path)?,
        };
        let done = work(&mut way);
        self.ways.lock().push(way);
        done
    }

    fn fill(
        &self,
        source: &Node,
        (dir, place): (&Entry, Place),
        trail: &mut Trail,
        found: &mut Vec<Task>,
    ) -> Result<Identity, CopyCause> {
        for item in source.entries()? {
            if self.job.has_ended() {
                break;
            }
            let name = OsStr::from_bytes(&item.name);
            let len = trail.push(name);
            let copied = source.lookup(&item.name).map_err(CopyCause::from).and_then(|node| {
                if item.attr.file_type == FileType::Directory {
                    dir.make_dir(name)?;
                    let place = self.places.lock().add(place, name);
                    found.push(Task { source: node, place });
                    return Ok(());
                }
                let target = Target { dir, place, name, path: trail.path() };
                self.entry(&node, &item.attr, &target)
            });
            if let Err(cause) = copied {
                self.job.failed(trail.path(), cause);
            }
            trail.cut(len);
        }
        Ok(dir.identity()?)
    }

    /// Copies a file that is not a directory to a name in an open directory.
    fn entry(&self, node: &Node, attr: &Attr, target: &Target<'_>) -> Result<(), CopyCause> {
        if attr.nlink < 2 {
            return self.make(node, attr, target).map(drop);
        }
        let (dir, name) = (target.dir, target.name);
        let mut first_names = self.first_names.lock();
        let FirstNames { files, way } = &mut *first_names;
        if let Some((place, first, identity)) = files.get(&attr.ino) {
            let (from, _) = way.lead(&self.places, *place)?;
            dir.remove(name)?;
            dir.hard_link(name, (from, first), *identity)?;
            self.job.copied(Count::HardLinks, target.path, 0);
            return Ok(());
        }
        // Made under the lock, so that no other thread links to it before it exists.
        let identity = self.make(node, attr, target)?;
        files.insert(attr.ino, (target.place, name.to_owned(), identity));
        Ok(())
    }

    fn make(&self, node: &Node, attr: &Attr, target: &Target<'_>) -> Result<Identity, CopyCause> {
        let (dir, name) = (target.dir, target.name);
        dir.remove(name)?;
        let special = |kind| {
            let (major, minor) = ((attr.device >> 32) as u32, attr.device as u32);
            let made = dir.make_special(name, kind, rustix::fs::makedev(major, minor));
            made.map(|made| (Count::Special, made))
        };
        let mut bytes = 0;
        let (count, made) = match attr.file_type {
            FileType::Regular => {
                let made = dir.make_file(name)?;
                bytes = contents(self.job, node, attr, made.file())?;
                (Count::Files, made)
            }
            FileType::Symlink => {
                let link = node.read_link()?;
                (Count::Symlinks, dir.make_link(name, &link)?)
            }
            FileType::Fifo => special(HostType::Fifo)?,
            FileType::Socket => special(HostType::Socket)?,
            FileType::CharDevice => special(HostType::CharacterDevice)?,
            FileType::BlockDevice => special(HostType::BlockDevice)?,
            FileType::Directory => return Err(Error::IsDirectory.into()),
        };
        self.attributes(node, attr, &made)?;
        let identity = made.identity()?;
        if self.syncs_each && attr.file_type == FileType::Regular {
            made.sync()?;
        }
        made.close()?;
        self.job.copied(count, target.path, bytes);
        Ok(identity)
    }

    /// The owner comes first, since changing it clears set-id bits and capabilities; the mode comes
    /// after the attributes, which cannot be set on a file that may not be written; the times last. An
    /// attribute that cannot be set does not prevent the others.
    fn attributes(&self, node: &Node, attr: &Attr, made: &Entry) -> Result<(), CopyCause> {
        let owner = self.job.options.owner;
        let mut permissions = match owner {
            true => attr.permissions,
            false => without_privileges(attr.permissions),
        };
        let mut outcome = Ok(());
        if owner {
            made.set_owner(attr.uid, attr.gid)?;
        }
        if self.job.options.xattrs {
            let names = node.xattr_names()?;
            made.remove_xattrs(|name| follows_source(name) && !names.iter().any(|n| n == name))?;
            for name in names.iter().filter(|name| owner || !is_privilege(name)) {
                let set = node.xattr(name).map_err(CopyCause::from);
                let set = set.and_then(|value| Ok(made.set_xattr(name, &value)?));
                if set.is_err() && is_access_acl(name) {
                    permissions = without_acl(permissions);
                }
                outcome = outcome.and(set.map_err(|cause| CopyCause::of_attribute(name, cause)));
            }
        }
        if attr.file_type != FileType::Symlink {
            made.set_permissions(permissions)?;
        }
        made.set_times(attr.atime, attr.mtime)?;
        outcome
    }

    /// Sets the attributes of the directories, those below first.
    fn finish_directories(&self) {
        let directories = std::mem::take(&mut *self.directories.lock());
        for made in directories.into_iter().rev() {
            if let Err(cause) = self.along_a_way(|way| self.finish_directory(&made, way)) {
                self.job.failed(&self.path_of(made.place), cause);
            }
        }
    }

    fn finish_directory(&self, made: &Made, way: &mut Way) -> Result<(), CopyCause> {
        let (dir, _) = way.lead(&self.places, made.place)?;
        if dir.identity()? != made.identity {
            return Err(host::replaced().into());
        }
        self.attributes(&made.source, &made.source.attr()?, dir)?;
        if self.syncs_each {
            dir.sync()?;
        }
        Ok(())
    }
}

/// Copies the ranges with data, and returns their length.
fn contents(
    job: &Job<'_>,
    node: &Node,
    attr: &Attr,
    target: &std::fs::File,
) -> Result<u64, CopyCause> {
    let mut buf = vec![0; COPY_BYTES.min(attr.size as usize)];
    let mut copied = 0;
    let mut at = 0;
    while at < attr.size {
        at = match node.seek(at, SeekFor::Data) {
            Ok(start) => start,
            Err(Error::NoData) => break,
            Err(error) => return Err(error.into()),
        };
        let end = node.seek(at, SeekFor::Hole)?.min(attr.size);
        while at < end {
            job.check_cancelled()?;
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
