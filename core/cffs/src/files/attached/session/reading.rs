//! The calls of an attached program that find and read files.

use rustix::fs::{fstat, fstatvfs};

use super::{Remote, Session, Tree, checked_xattr, unexpected};
use crate::error::{Error, Result};
use crate::files::DirItem;
use crate::vfs::types::{Attr, StatFs};
use crate::wire::{Entry, Query, READ_BYTES_MAX, Reply, Request, WALK_BYTES_MAX};

impl Session {
    /// The device number of the mount.
    pub fn mount_device(&self) -> Result<u64> {
        Ok(fstat(self.connection()?.directory()).map_err(std::io::Error::from)?.st_dev)
    }

    /// The sizes of the volume, by the kernel.
    pub fn stat_fs(&self) -> Result<StatFs> {
        let sizes = fstatvfs(self.connection()?.directory()).map_err(std::io::Error::from)?;
        Ok(StatFs {
            fragment_bytes: sizes.f_frsize as u32,
            block_bytes: sizes.f_bsize as u32,
            fragments: sizes.f_blocks,
            free_fragments: sizes.f_bfree,
            available_fragments: sizes.f_bavail,
            inodes: sizes.f_files.saturating_sub(sizes.f_ffree),
            free_inodes: sizes.f_ffree,
            name_bytes_max: sizes.f_namemax as u32,
        })
    }
}

impl Remote {
    fn query(&self, query: Query) -> Result<Reply> {
        self.session.call(&Request::Query(query))
    }

    /// The file at a path below this directory, which neither `..` nor links can leave.
    pub fn walk(&self, path: &[u8], follow: bool) -> Result<(Remote, Attr)> {
        let (dir, path) = (self.handle, checked_path(path)?);
        self.session.found(|result| Request::Query(Query::Walk { dir, path, follow, result }))
    }

    /// Reads from `at` on, and returns the length: less than requested only at the end.
    pub fn read_at(&self, mut at: u64, buffer: &mut [u8]) -> Result<usize> {
        let mut filled = 0;
        for part in buffer.chunks_mut(READ_BYTES_MAX) {
            let mut connection = self.session.connection()?;
            let contents = connection.reserve(part.len() as u32)?;
            let query = Query::Read { node: self.handle, at, contents };
            let len = match connection.call(&Request::Query(query))? {
                Reply::Count(len) => usize::try_from(len).unwrap_or(usize::MAX),
                _ => return Err(unexpected()),
            };
            let part_len = part.len();
            connection.fetch(contents.offset, part.get_mut(..len).ok_or_else(unexpected)?)?;
            filled += len;
            at += len as u64;
            if len < part_len {
                break;
            }
        }
        Ok(filled)
    }

    /// Reads from `at` on up to `len` bytes, and gives them to `take` piece by piece in their order.
    pub fn read_pieces_at(
        &self,
        at: u64,
        len: usize,
        take: &mut dyn FnMut(&[u8]),
    ) -> Result<usize> {
        let mut buffer = vec![0; len.min(READ_BYTES_MAX)];
        let mut done = 0;
        while done < len {
            let wanted = buffer.len().min(len - done);
            let read = self.read_at(at + done as u64, &mut buffer[..wanted])?;
            take(&buffer[..read]);
            done += read;
            if read < wanted {
                break;
            }
        }
        Ok(done)
    }

    /// The entries of this directory.
    pub fn entries(&self) -> Result<Vec<DirItem>> {
        let mut listing = Listing::default();
        while let Some(cookie) = listing.next {
            listing.add(self.query(Query::List { dir: self.handle, cookie })?)?;
        }
        Ok(listing.items)
    }

    /// Begins to walk below this directory.
    pub fn descend(&self) -> Result<Tree> {
        Tree::begin(&self.session, self.handle)
    }

    pub fn xattr(&self, name: &[u8]) -> Result<Vec<u8>> {
        let name = checked_xattr(name)?;
        match self.query(Query::Xattr { node: self.handle, name })? {
            Reply::Bytes(value) => Ok(value),
            _ => Err(unexpected()),
        }
    }

    /// The first data at or after an offset, or with `hole` the first hole.
    pub fn seek(&self, at: u64, hole: bool) -> Result<u64> {
        match self.query(Query::Seek { node: self.handle, at, hole })? {
            Reply::Count(found) => Ok(found),
            _ => Err(unexpected()),
        }
    }
}

/// The entries of a directory, as they arrive.
struct Listing {
    items: Vec<DirItem>,
    /// Where the next part begins; `None` at the end.
    next: Option<u64>,
}

impl Default for Listing {
    fn default() -> Listing {
        Listing { items: Vec::new(), next: Some(0) }
    }
}

impl Listing {
    fn add(&mut self, reply: Reply) -> Result<()> {
        let Reply::Entries(entries, is_end) = reply else { return Err(unexpected()) };
        self.next = match (is_end, entries.last()) {
            (true, _) => None,
            (false, Some(last)) => Some(last.cookie),
            (false, None) => return Err(unexpected()),
        };
        self.items
            .extend(entries.into_iter().map(|Entry { name, attr, .. }| DirItem { name, attr }));
        Ok(())
    }
}

/// A path that can be sent.
pub(super) fn checked_path(path: &[u8]) -> Result<Vec<u8>> {
    match path {
        path if path.len() > WALK_BYTES_MAX => Err(Error::NameTooLong),
        path if path.contains(&0) => Err(Error::Invalid("a path with a zero byte")),
        path => Ok(path.to_vec()),
    }
}
