//! Files outside of the volume, by open directories and names.
//!
//! Other users may change the tree while it is copied, and replace a file or a directory by a symbolic link.
//! So no path is looked up twice: each name is looked up in an open directory, no symbolic link is followed,
//! and only the opened file is read or changed.

use std::ffi::{CString, OsStr, OsString};
use std::fs::{File, Metadata};
use std::io;
use std::ops::Range;
use std::os::fd::AsRawFd;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::Path;

use parking_lot::Mutex;
use rustix::fs::{
    AtFlags, CWD, FileType, Gid, Mode, OFlags, SeekFrom, Timespec, Timestamps, Uid, XattrFlags,
};
use rustix::io::Errno;

use super::places::{Place, Places, Trail};
use crate::clock::Timestamp;
use crate::format::xattr::XATTR_VALUE_BYTES_MAX;

#[cfg(test)]
mod tests;

/// The longest list of names that the kernel hands out.
const XATTR_LIST_BYTES_MAX: usize = 64 << 10;
/// The mode of a new file until it is complete.
const OWNER_ALONE: u32 = 0o600;

/// A file of any kind, open.
#[derive(Debug)]
pub struct Entry {
    file: File,
    /// Opened with O_PATH: it cannot be read, or should not be.
    is_path: bool,
}

/// Identifies a file of the host.
pub type Identity = (u64, u64);

impl Entry {
    /// The directory at a path, which may contain symbolic links.
    pub fn dir_at(path: &Path) -> io::Result<Entry> {
        let path = if path.as_os_str().is_empty() { Path::new(".") } else { path };
        open(CWD, path.as_os_str(), OFlags::RDONLY | OFlags::DIRECTORY)
    }

    /// The directory at a path; `None` for anything else, including a symbolic link.
    pub fn dir_itself(path: &Path) -> io::Result<Option<Entry>> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW;
        match open(CWD, path.as_os_str(), flags) {
            Ok(dir) => Ok(Some(dir)),
            Err(error) => match Errno::from_io_error(&error) {
                Some(Errno::NOTDIR | Errno::LOOP) => Ok(None),
                _ => Err(error),
            },
        }
    }

    /// Another descriptor of the same.
    pub fn try_clone(&self) -> io::Result<Entry> {
        Ok(Entry { file: self.file.try_clone()?, is_path: self.is_path })
    }

    /// The entry with a name in this directory.
    pub fn find(&self, name: &OsStr) -> io::Result<Entry> {
        let found = rustix::fs::statat(&self.file, name, AtFlags::SYMLINK_NOFOLLOW)?;
        let file_type = FileType::from_raw_mode(found.st_mode);
        let flags = OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::NOCTTY;
        let opened = match file_type {
            FileType::Directory => open(&self.file, name, OFlags::DIRECTORY | flags),
            FileType::RegularFile => match open(&self.file, name, OFlags::RDONLY | flags) {
                // It has no contents, unless the kernel generates them.
                Err(error) if found.st_size == 0 && is_denied(&error) && self.is_stored()? => {
                    open(&self.file, name, OFlags::PATH | flags)
                }
                opened => opened,
            },
            _ => open(&self.file, name, OFlags::PATH | flags),
        }?;
        let now = rustix::fs::fstat(&opened.file)?;
        if FileType::from_raw_mode(now.st_mode) == file_type { Ok(opened) } else { Err(replaced()) }
    }

    /// The directory with a name in this one.
    pub fn dir(&self, name: &OsStr) -> io::Result<Entry> {
        open(&self.file, name, OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW)
    }

    /// The names in this directory, in the order of their bytes.
    pub fn names(&self) -> io::Result<Vec<OsString>> {
        let mut names = Vec::new();
        for entry in rustix::fs::Dir::read_from(&self.file)? {
            let name = entry?.file_name().to_bytes().to_vec();
            if name != b"." && name != b".." {
                names.push(OsString::from_vec(name));
            }
        }
        names.sort_unstable();
        Ok(names)
    }

    /// The attributes.
    pub fn metadata(&self) -> io::Result<Metadata> {
        self.file.metadata()
    }

    /// The identity of the file.
    pub fn identity(&self) -> io::Result<Identity> {
        let metadata = self.metadata()?;
        Ok((metadata.dev(), metadata.ino()))
    }

    /// Whether this directory is the one with an identity, or below it.
    ///
    /// # Errors
    ///
    /// A directory above it cannot be opened.
    pub fn is_within(&self, identity: Identity) -> io::Result<bool> {
        let mut dir = self.try_clone()?;
        let mut now = dir.identity()?;
        while now != identity && now.0 == identity.0 {
            dir = open(&dir.file, OsStr::new(".."), OFlags::PATH | OFlags::DIRECTORY)?;
            let above = dir.identity()?;
            if above == now {
                break;
            }
            now = above;
        }
        Ok(now == identity)
    }

    /// Whether the file system stores files: /proc, /sys and their kind have no blocks.
    fn is_stored(&self) -> io::Result<bool> {
        Ok(rustix::fs::fstatfs(&self.file)?.f_blocks > 0)
    }

    /// Whether the file was opened for reading, not with O_PATH.
    pub fn is_readable(&self) -> bool {
        !self.is_path
    }

    /// The file, to be read or written.
    pub fn file(&self) -> &File {
        &self.file
    }

    /// The target of a symbolic link.
    pub fn link_target(&self) -> io::Result<Vec<u8>> {
        Ok(rustix::fs::readlinkat(&self.file, c"", Vec::new())?.into_bytes())
    }

    /// Makes a directory in this one, or opens the existing one.
    pub fn make_dir(&self, name: &OsStr) -> io::Result<()> {
        match rustix::fs::mkdirat(&self.file, name, Mode::from_raw_mode(0o700)) {
            // A symbolic link to a directory would redirect the copy.
            Err(Errno::EXIST) => self.dir(name).map(drop),
            made => Ok(made?),
        }
    }

    /// Makes an empty file in this directory, to be written.
    pub fn make_file(&self, name: &OsStr) -> io::Result<Entry> {
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW;
        open(&self.file, name, flags)
    }

    /// Makes a symbolic link in this directory.
    pub fn make_link(&self, name: &OsStr, target: &[u8]) -> io::Result<Entry> {
        rustix::fs::symlinkat(target, &self.file, name)?;
        self.made(name, |metadata| metadata.is_symlink())
    }

    /// Makes a pipe, a socket or a device in this directory.
    pub fn make_special(&self, name: &OsStr, kind: FileType, device: u64) -> io::Result<Entry> {
        let mode = Mode::from_raw_mode(OWNER_ALONE);
        rustix::fs::mknodat(&self.file, name, kind, mode, device)?;
        self.made(name, |metadata| {
            let found = metadata.file_type();
            let is_kind = match kind {
                FileType::Fifo => found.is_fifo(),
                FileType::Socket => found.is_socket(),
                FileType::CharacterDevice => found.is_char_device(),
                _ => found.is_block_device(),
            };
            is_kind && metadata.rdev() == device
        })
    }

    /// Opens a new file, which another program may have replaced since.
    fn made(&self, name: &OsStr, is_it: impl Fn(&Metadata) -> bool) -> io::Result<Entry> {
        let made = open(&self.file, name, OFlags::PATH | OFlags::NOFOLLOW)?;
        let metadata = made.metadata()?;
        if metadata.nlink() == 1 && is_it(&metadata) { Ok(made) } else { Err(replaced()) }
    }

    /// Gives a file with a name in `from` a name in this directory.
    pub fn hard_link(
        &self,
        name: &OsStr,
        (from, from_name): (&Entry, &OsStr),
        identity: Identity,
    ) -> io::Result<()> {
        rustix::fs::linkat(&from.file, from_name, &self.file, name, AtFlags::empty())?;
        let made = open(&self.file, name, OFlags::PATH | OFlags::NOFOLLOW)?;
        if made.identity()? == identity {
            return Ok(());
        }
        self.remove(name)?;
        Err(replaced())
    }

    /// Removes a name that is not a directory's, if it exists.
    pub fn remove(&self, name: &OsStr) -> io::Result<()> {
        match rustix::fs::unlinkat(&self.file, name, AtFlags::empty()) {
            Ok(()) | Err(Errno::NOENT) => Ok(()),
            Err(errno) => Err(errno.into()),
        }
    }

    /// The names of the extended attributes; none if the file system does not support them.
    fn xattr_names(&self) -> io::Result<Vec<CString>> {
        let mut list = vec![0u8; XATTR_LIST_BYTES_MAX];
        let listed = match self.by_path() {
            Some(path) => rustix::fs::listxattr(&path, &mut list),
            None => rustix::fs::flistxattr(&self.file, &mut list),
        };
        let len = match listed {
            Ok(len) => len,
            Err(Errno::OPNOTSUPP) => 0,
            Err(errno) => return Err(errno.into()),
        };
        let names = list[..len].split(|byte| *byte == 0).filter(|name| !name.is_empty());
        Ok(names.map(CString::new).collect::<Result<_, _>>()?)
    }

    /// Removes the extended attributes of these names.
    pub fn remove_xattrs(&self, names: impl Fn(&[u8]) -> bool) -> io::Result<()> {
        for name in self.xattr_names()?.iter().filter(|name| names(name.to_bytes())) {
            match self.by_path() {
                Some(path) => rustix::fs::removexattr(&path, name)?,
                None => rustix::fs::fremovexattr(&self.file, name)?,
            }
        }
        Ok(())
    }

    /// The extended attributes by name; none if the file system does not support them.
    pub fn xattrs(&self) -> io::Result<Vec<(Vec<u8>, Vec<u8>)>> {
        let mut found = Vec::new();
        for name in self.xattr_names()? {
            let mut value = vec![0u8; XATTR_VALUE_BYTES_MAX + 1];
            let read = match self.by_path() {
                Some(path) => rustix::fs::getxattr(&path, &name, &mut value),
                None => rustix::fs::fgetxattr(&self.file, &name, &mut value),
            };
            match read {
                Ok(len) => {
                    value.truncate(len);
                    found.push((name.into_bytes(), value));
                }
                // It was removed meanwhile, or this program may not read it.
                Err(Errno::NODATA | Errno::PERM | Errno::OPNOTSUPP) => {}
                Err(errno) => return Err(errno.into()),
            }
        }
        Ok(found)
    }

    /// Sets an extended attribute.
    pub fn set_xattr(&self, name: &[u8], value: &[u8]) -> io::Result<()> {
        let name = CString::new(name)?;
        match self.by_path() {
            Some(path) => rustix::fs::setxattr(&path, &name, value, XattrFlags::empty())?,
            None => rustix::fs::fsetxattr(&self.file, &name, value, XattrFlags::empty())?,
        }
        Ok(())
    }

    /// Sets owner and group.
    pub fn set_owner(&self, uid: u32, gid: u32) -> io::Result<()> {
        let (uid, gid) = (Some(Uid::from_raw(uid)), Some(Gid::from_raw(gid)));
        Ok(rustix::fs::chownat(&self.file, c"", uid, gid, AtFlags::EMPTY_PATH)?)
    }

    /// Sets the lower 12 bits of the mode. Does nothing for a symbolic link, which has none.
    pub fn set_permissions(&self, permissions: u32) -> io::Result<()> {
        let mode = Mode::from_raw_mode(permissions);
        match self.by_path() {
            Some(path) => rustix::fs::chmod(&path, mode)?,
            None => rustix::fs::fchmod(&self.file, mode)?,
        }
        Ok(())
    }

    /// Sets the times of last access and last change of the contents.
    pub fn set_times(&self, atime: Timestamp, mtime: Timestamp) -> io::Result<()> {
        let time =
            |time: Timestamp| Timespec { tv_sec: time.seconds, tv_nsec: time.nanoseconds.into() };
        let times = Timestamps { last_access: time(atime), last_modification: time(mtime) };
        match self.is_path {
            true => rustix::fs::utimensat(&self.file, c"", &times, AtFlags::EMPTY_PATH)?,
            false => rustix::fs::futimens(&self.file, &times)?,
        }
        Ok(())
    }

    /// Closes the file; some file systems report failed writes only here.
    pub fn close(self) -> io::Result<()> {
        Ok(nix::unistd::close(self.file)?)
    }

    /// Whether syncfs(2) may not reach the device: the kernel does not pass it on to file systems in user
    /// space, and reports success.
    pub fn keeps_syncfs(&self) -> io::Result<bool> {
        Ok(rustix::fs::fstatfs(&self.file)?.f_type == FUSE_SUPER_MAGIC)
    }

    /// Writes this file or directory to its device.
    pub fn sync(&self) -> io::Result<()> {
        Ok(rustix::fs::fsync(&self.file)?)
    }

    /// Writes all data of the file system with this file to its device.
    pub fn sync_file_system(&self) -> io::Result<()> {
        Ok(rustix::fs::syncfs(&self.file)?)
    }

    /// A path to a file opened with O_PATH, for calls that do not accept its descriptor.
    fn by_path(&self) -> Option<String> {
        self.is_path.then(|| format!("/proc/self/fd/{}", self.file.as_raw_fd()))
    }
}

/// The open directories from the top to a directory below it. A copy proceeds from a directory to the next
/// one of the tree, which takes one or two steps; a lookup from the top takes a step for each level.
#[derive(Debug)]
pub struct Way {
    top: Entry,
    /// The directory at the end.
    end: Entry,
    /// Its path.
    trail: Trail,
    /// The directories after the top.
    steps: Vec<Place>,
    /// The top, and the directory after each step.
    passed: Vec<Passed>,
}

/// A directory on a way.
#[derive(Debug)]
struct Passed {
    identity: Identity,
    /// The length of its path.
    trail_len: usize,
}

impl Way {
    /// A way without steps, from a directory with this path.
    pub fn from(top: &Entry, path: &Path) -> io::Result<Way> {
        let trail = Trail::from(path);
        Ok(Way {
            passed: vec![Passed { identity: top.identity()?, trail_len: trail.len() }],
            top: top.try_clone()?,
            end: top.try_clone()?,
            trail,
            steps: Vec::new(),
        })
    }

    /// Changes it to a directory below the top, and returns that with its path. Follows no links.
    pub fn lead(&mut self, places: &Mutex<Places>, to: Place) -> io::Result<(&Entry, &mut Trail)> {
        let (common, mut ahead) = places.lock().route(to, &self.steps);
        if !self.go_up_to(common)? {
            self.end = self.top.try_clone()?;
            self.cut(0);
            ahead = places.lock().route(to, &[]).1;
        }
        for (name, place) in ahead {
            let next = self.end.dir(&name)?;
            let identity = next.identity()?;
            self.trail.push(&name);
            self.passed.push(Passed { identity, trail_len: self.trail.len() });
            self.steps.push(place);
            self.end = next;
        }
        Ok((&self.end, &mut self.trail))
    }

    fn cut(&mut self, steps: usize) {
        self.steps.truncate(steps);
        self.passed.truncate(steps + 1);
        self.trail.cut(self.passed[steps].trail_len);
    }

    /// Shortens it; false if a directory was moved meanwhile, so that another directory contains it.
    fn go_up_to(&mut self, steps: usize) -> io::Result<bool> {
        if steps == self.steps.len() {
            return Ok(true);
        }
        let mut dir = self.end.try_clone()?;
        for _ in steps..self.steps.len() {
            match open(&dir.file, OsStr::new(".."), OFlags::RDONLY | OFlags::DIRECTORY) {
                Ok(above) => dir = above,
                Err(_) => return Ok(false),
            }
        }
        if dir.identity()? != self.passed[steps].identity {
            return Ok(false);
        }
        self.cut(steps);
        self.end = dir;
        Ok(true)
    }
}

/// `FUSE_SUPER_MAGIC` of `linux/magic.h`.
const FUSE_SUPER_MAGIC: rustix::fs::FsWord = 0x6573_5546;

fn open(dir: impl std::os::fd::AsFd, name: &OsStr, flags: OFlags) -> io::Result<Entry> {
    let mode = Mode::from_raw_mode(OWNER_ALONE);
    let file = rustix::fs::openat(dir, name, flags | OFlags::CLOEXEC, mode)?;
    Ok(Entry { file: file.into(), is_path: flags.contains(OFlags::PATH) })
}

fn is_denied(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::PermissionDenied
}

/// The error of a copy that found another file than the one that it had made or examined.
pub fn replaced() -> io::Error {
    io::Error::other("it was replaced while it was being copied")
}

/// The ranges of a file that have data; the whole file if the file system does not report them.
pub fn data_ranges(file: &File, metadata: &Metadata) -> io::Result<Vec<Range<u64>>> {
    let size = metadata.len();
    let everything = || Vec::from_iter([Range { start: 0, end: size }]);
    if metadata.blocks() * 512 >= size {
        return Ok(everything());
    }
    let mut ranges = Vec::new();
    let mut at = 0;
    while at < size {
        let start = match rustix::fs::seek(file, SeekFrom::Data(at)) {
            Ok(start) => start,
            Err(Errno::NXIO) => break,
            Err(Errno::INVAL | Errno::OPNOTSUPP) if at == 0 => return Ok(everything()),
            Err(errno) => return Err(errno.into()),
        };
        let end = rustix::fs::seek(file, SeekFrom::Hole(start))?.min(size);
        ranges.push(start..end);
        at = end;
    }
    Ok(ranges)
}

/// The directory that has the last name of a path, and that name.
pub fn parent(path: &Path) -> io::Result<(Entry, OsString)> {
    let name = path.file_name().ok_or(io::ErrorKind::InvalidInput)?;
    let dir = Entry::dir_at(path.parent().unwrap_or(Path::new("")))?;
    Ok((dir, OsStr::from_bytes(name.as_bytes()).to_owned()))
}
