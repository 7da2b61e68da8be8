//! Resolves paths below a directory with the rights of a program, as the kernel does.

use cffs::error::{Error, Result};
use cffs::format::inode::FileType;
use cffs::units::InodeNo;
use cffs::vfs::Volume;
use cffs::vfs::types::Attr;

use crate::access::{EXECUTE, User, checks};

/// The most symbolic links in a path, as on Linux.
const LINKS_FOLLOWED_MAX: u32 = 40;

/// Resolves the paths of one request.
///
/// A path is resolved from the last directory that it shares with the path before it, as openat(2) does from
/// a descriptor of that directory. The right to search that directory is checked for each path, and the right
/// to search those above it once.
pub(super) struct Walk<'a> {
    volume: &'a Volume,
    user: &'a User,
    /// The number of names of paths and links that were looked up.
    steps: usize,
    /// The directories of the last path.
    last: Way<'a>,
}

/// The directories on a path without links and `..`.
#[derive(Default)]
struct Way<'a> {
    /// The name of each but the first.
    names: Vec<Vec<u8>>,
    /// The first is the one at which the path begins.
    dirs: Vec<Found<'a>>,
}

/// A file that was found, on which this holds a reference.
pub(super) struct Found<'a> {
    volume: &'a Volume,
    pub attr: Attr,
}

impl Drop for Found<'_> {
    fn drop(&mut self) {
        self.volume.release(self.attr.ino, 1);
    }
}

impl<'a> Walk<'a> {
    pub fn new(volume: &'a Volume, user: &'a User) -> Walk<'a> {
        Walk { volume, user, steps: 0, last: Way::default() }
    }

    /// How many names were looked up so far.
    pub fn steps(&self) -> usize {
        self.steps
    }

    /// The file at a path below a directory, which the path cannot leave: `..` stays in it, and an absolute
    /// link begins at it. A link at the end is followed if `follow_last`.
    ///
    /// # Errors
    ///
    /// Those of a system call, for example for a directory that the user may not search.
    pub fn find(&mut self, from: InodeNo, path: &[u8], follow_last: bool) -> Result<Found<'a>> {
        let mut wants_directory = path.ends_with(b"/");
        let mut pending = names(path);
        let mut above = self.shared(from, &pending)?;
        // The path, if it has no links and no `..`.
        let way = pending[..pending.len().saturating_sub(1)].to_vec();
        let mut is_straight = true;
        pending.drain(..above.len() - 1);
        pending.reverse();
        let mut followed = 0;
        while let Some(name) = pending.pop() {
            self.steps += 1;
            // The first directory stays at the bottom.
            let Some(dir) = above.last() else { return Err(Error::NotFound) };
            self.check_search(&dir.attr)?;
            match &name[..] {
                b"." => {
                    is_straight = false;
                    continue;
                }
                b".." => {
                    is_straight = false;
                    above.truncate((above.len() - 1).max(1));
                    continue;
                }
                _ => {}
            }
            let (dir, found) = (dir.attr, self.named(dir.attr.ino, &name)?);
            let is_last = pending.is_empty();
            let is_followed = follow_last || wants_directory || !is_last;
            if !is_followed || found.attr.file_type != FileType::Symlink {
                above.push(found);
                continue;
            }
            is_straight = false;
            followed += 1;
            if followed > LINKS_FOLLOWED_MAX {
                return Err(Error::Loop);
            }
            if is_last && !dir.lets_follow(&found.attr, self.user.uid) {
                return Err(Error::AccessDenied);
            }
            let target = self.volume.read_link(found.attr.ino)?;
            wants_directory |= is_last && target.ends_with(b"/");
            if target.starts_with(b"/") {
                above.truncate(1);
            }
            pending.extend(names(&target).into_iter().rev());
        }
        let found = above.pop().ok_or(Error::NotFound)?;
        if wants_directory && found.attr.file_type != FileType::Directory {
            return Err(Error::NotDirectory);
        }
        if is_straight && !above.is_empty() {
            self.last = Way { names: way, dirs: above };
        }
        Ok(found)
    }

    /// The directories of the last path with which a path below a directory begins; at least the first one.
    fn shared(&mut self, from: InodeNo, names: &[Vec<u8>]) -> Result<Vec<Found<'a>>> {
        let Way { names: known, mut dirs } = std::mem::take(&mut self.last);
        if dirs.first().is_none_or(|first| first.attr.ino != from) {
            return Ok(vec![self.held(self.volume.find(from)?)]);
        }
        let above = &names[..names.len().saturating_sub(1)];
        let shared = known.iter().zip(above).take_while(|(known, name)| known == name).count();
        dirs.truncate(shared + 1);
        // Its rights may have changed since.
        if let Some(last) = dirs.last_mut() {
            last.attr = self.volume.attr(last.attr.ino)?;
        }
        Ok(dirs)
    }

    /// The file with a name in a directory that the user may search.
    ///
    /// # Errors
    ///
    /// [`Error::NotFound`].
    pub fn named(&self, dir: InodeNo, name: &[u8]) -> Result<Found<'a>> {
        let attr = self.volume.lookup(dir, name)?;
        Ok(self.held(attr))
    }

    fn held(&self, attr: Attr) -> Found<'a> {
        Found { volume: self.volume, attr }
    }

    fn check_search(&self, dir: &Attr) -> Result<()> {
        if dir.file_type != FileType::Directory {
            return Err(Error::NotDirectory);
        }
        checks::check(self.volume, self.user, dir, EXECUTE)
    }
}

/// The names of a path; empty ones say nothing.
fn names(path: &[u8]) -> Vec<Vec<u8>> {
    path.split(|byte| *byte == b'/').filter(|name| !name.is_empty()).map(<[u8]>::to_vec).collect()
}
