//! The file or tree that is copied or moved.
//!
//! Its owner may change it while root copies or removes it. So entries are looked up in an open directory,
//! without following symbolic links, and replaced entries are detected.

use std::ffi::{OsStr, OsString};
use std::fs::{self, File, Metadata};
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use rustix::fs::{
    AtFlags, CWD, Dir, Mode, OFlags, ResolveFlags, openat, openat2, readlinkat, syncfs, unlinkat,
};

/// A file, or the root of a tree. Entries are named by their path from the root, which itself has an empty
/// one.
pub(crate) struct Source {
    /// The path by which messages name it.
    path: PathBuf,
    above: OwnedFd,
    name: OsString,
}

/// The name of a directory that is given without a name of its own.
const ITSELF: &str = ".";

impl Source {
    pub fn open(from: &Path) -> Result<Source> {
        let above = from.parent().filter(|above| !above.as_os_str().is_empty());
        let above = above.unwrap_or(Path::new("."));
        let name = from.file_name().filter(|name| {
            // With a slash, or a slash and a dot, at its end, a link means its target.
            let is_link = || fs::symlink_metadata(above.join(name)).is_ok_and(|s| s.is_symlink());
            let path = from.as_os_str().as_bytes();
            !((path.ends_with(b"/") || path.ends_with(b"/.")) && is_link())
        });
        let (above, name) = name.map_or((from, OsStr::new(ITSELF)), |name| (above, name));
        let at = || from.display().to_string();
        let above = openat(CWD, above, DIRECTORY, Mode::empty()).with_context(at)?;
        Ok(Source { path: from.to_owned(), above, name: name.to_owned() })
    }

    /// The path of an entry, for messages.
    pub fn shown(&self, entry: &Path) -> PathBuf {
        // Not by `join`: the root's path is empty, and its name would end with a slash.
        self.path.components().chain(entry.components()).collect()
    }

    pub fn status(&self, entry: &Path) -> io::Result<Metadata> {
        let (above, name) = self.directory_of(entry)?;
        status(&above, name)
    }

    /// Writes back the volume of the source, and returns the status of the root. After that, the first write
    /// to a page through a mapping changes the time of its file.
    pub fn written_back(&self) -> io::Result<Metadata> {
        let root = Path::new("");
        self.write_back(&self.status(root)?)?;
        let status = self.status(root)?;
        // A second time: a page that was written before the status was read hides later writes to it until it
        // is written back.
        self.write_back(&status)?;
        Ok(status)
    }

    /// Writes back the volume of the source, whose root has this status.
    pub fn write_back(&self, root: &Metadata) -> io::Result<()> {
        if root.is_dir() || root.is_file() {
            syncfs(self.read(Path::new(""), root)?)?;
        }
        Ok(())
    }

    /// Opens an entry for reading, without blocking; refuses one that has replaced the one of this status.
    pub fn read(&self, entry: &Path, expected: &Metadata) -> io::Result<File> {
        let (above, name) = self.directory_of(entry)?;
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let file = File::from(openat(&above, name, flags, Mode::empty())?);
        let now = file.metadata()?;
        match (now.dev(), now.ino()) == (expected.dev(), expected.ino()) {
            true => Ok(file),
            false => Err(io::Error::other("replaced meanwhile")),
        }
    }

    /// The names in a directory.
    pub fn names(&self, entry: &Path, expected: &Metadata) -> io::Result<Vec<OsString>> {
        let mut names = Vec::new();
        for found in Dir::read_from(self.read(entry, expected)?)? {
            let name = found?.file_name().to_bytes().to_owned();
            if !matches!(&name[..], b"." | b"..") {
                names.push(OsString::from_vec(name));
            }
        }
        Ok(names)
    }

    pub fn link_target(&self, entry: &Path) -> io::Result<OsString> {
        let (above, name) = self.directory_of(entry)?;
        Ok(OsString::from_vec(readlinkat(&above, name, Vec::new())?.into_bytes()))
    }

    /// Whether an entry was changed, replaced or removed since it had this status.
    pub fn has_changed(&self, entry: &Path, before: &Metadata) -> bool {
        self.status(entry).map_or(true, |now| state(&now) != state(before))
    }

    /// Refuses a source that cannot be removed by its name.
    pub fn refuse_nameless(&self) -> Result<()> {
        if self.name == ITSELF {
            bail!("{}: a directory can be moved by its name only", self.path.display());
        }
        Ok(())
    }

    /// Removes an entry if it is still the one of this status.
    pub fn remove(&self, entry: &Path, before: &Metadata) -> io::Result<()> {
        let (above, name) = self.directory_of(entry)?;
        let now = status(&above, name)?;
        // Removing entries changes their directory, and removing a name the file of that name.
        let may_change = before.is_dir() || before.nlink() > 1;
        let is_same = now.ino() == before.ino() && (may_change || state(&now) == state(before));
        if !is_same {
            return Err(io::Error::other("changed meanwhile"));
        }
        let flags = if before.is_dir() { AtFlags::REMOVEDIR } else { AtFlags::empty() };
        Ok(unlinkat(&above, name, flags)?)
    }

    /// The directory of an entry, and the entry's name in it.
    fn directory_of<'a>(&'a self, entry: &'a Path) -> io::Result<(OwnedFd, &'a OsStr)> {
        let Some(name) = entry.file_name() else {
            return Ok((self.above.try_clone()?, &self.name));
        };
        let directory = Path::new(&self.name).join(entry.parent().unwrap_or(Path::new("")));
        let within = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS;
        Ok((openat2(&self.above, &directory, DIRECTORY, Mode::empty(), within)?, name))
    }
}

const DIRECTORY: OFlags = OFlags::PATH.union(OFlags::DIRECTORY).union(OFlags::CLOEXEC);

fn status(above: &OwnedFd, name: &OsStr) -> io::Result<Metadata> {
    let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    File::from(openat(above, name, flags, Mode::empty())?).metadata()
}

/// A write to the file changes its state, and replacing the file does, too.
fn state(status: &Metadata) -> (u64, u64, i64, i64) {
    (status.dev(), status.ino(), status.ctime(), status.ctime_nsec())
}
