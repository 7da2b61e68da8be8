//! The calls of an attached program that find and read files.

use std::cell::Cell;

use rustix::fs::fstatvfs;

use super::{Remote, Session, checked_xattr, unexpected};
use crate::error::{Error, Result};
use crate::files::DirItem;
use crate::vfs::types::{Attr, StatFs};
use crate::wire::{
    Entry, Memory, Outcome, Query, READ_BYTES_MAX, Reply, Request, WALK_BYTES_MAX, fitting,
};

impl Session {
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

    /// The file at a path from this directory on, out of which nothing leads.
    pub fn walk(&self, path: &[u8], follow: bool) -> Result<(Remote, Attr)> {
        let (dir, path) = (self.handle, checked_path(path)?);
        self.session.found(|result| Request::Query(Query::Walk { dir, path, follow, result }))
    }

    /// Reads from `at` on, and returns how much: less than asked for only at the end.
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

    /// The contents of a file at a path; `None` if it is too large for one request.
    pub fn read_small(&self, path: &[u8]) -> Option<Result<Vec<u8>>> {
        let read = Cell::new(None);
        self.read_many(&[path], &|_, contents| read.set(Some(contents.map(<[u8]>::to_vec))));
        read.into_inner()
    }

    /// Reads whole files at paths from this directory on, and passes the contents of each, or why it could
    /// not be read, to `visit` with its position. Returns the positions of those that are too large for this.
    pub fn read_many<P: AsRef<[u8]>>(
        &self,
        paths: &[P],
        visit: &dyn Fn(usize, Result<&[u8]>),
    ) -> Vec<usize> {
        let path = |position: &usize| paths[*position].as_ref();
        let (mut too_large, mut pending): (Vec<usize>, Vec<usize>) = Default::default();
        for position in 0..paths.len() {
            match checked_path(path(&position)) {
                Ok(_) => pending.push(position),
                Err(error) => visit(position, Err(error)),
            }
        }
        // In the order of their names, which is about that on the device. They are taken from the end.
        pending.sort_unstable_by(|a, b| path(b).cmp(path(a)));
        let (mut buffer, mut has_failed) = (Vec::new(), false);
        while let Some(first) = pending.last().copied() {
            // After an error of a whole request, the next one fails as well, or serves one file.
            let count = if has_failed { 1 } else { fitting(pending.iter().rev().map(path)) };
            let asked = pending.split_off(pending.len() - count);
            let named = asked.iter().rev().map(|position| path(position).to_vec()).collect();
            let is_position = |(at, _): &(u16, Outcome)| usize::from(*at) < count;
            let (outcomes, first_error) = match self.ask_many(named, &mut buffer) {
                // Otherwise the same request would be made for ever.
                Ok(outcomes) if !outcomes.iter().any(is_position) => {
                    (Vec::new(), Some(unexpected()))
                }
                Ok(outcomes) => (outcomes, None),
                Err(error) => (Vec::new(), Some(error)),
            };
            has_failed = first_error.is_some();
            let mut left: Vec<Option<usize>> = asked.iter().rev().copied().map(Some).collect();
            if let Some(error) = first_error {
                // The others are asked for again, and fail by themselves.
                visit(first, Err(error));
                left[0] = None;
            }
            for (at, outcome) in outcomes {
                let Some(position) = left.get_mut(usize::from(at)).and_then(Option::take) else {
                    continue;
                };
                match outcome {
                    Outcome::Contents(Memory { offset, len }) => {
                        let begin = offset as usize;
                        visit(position, Ok(&buffer[begin..begin + len as usize]));
                    }
                    Outcome::TooLarge => too_large.push(position),
                    Outcome::Fault(fault) => visit(position, Err(fault.into())),
                }
            }
            pending.extend(left.into_iter().rev().flatten());
        }
        too_large
    }

    /// Asks for many files. Returns the outcomes of some of them, with contents that lie in the buffer.
    fn ask_many(&self, paths: Vec<Vec<u8>>, buffer: &mut Vec<u8>) -> Result<Vec<(u16, Outcome)>> {
        let mut connection = self.session.connection()?;
        let contents = connection.reserve(READ_BYTES_MAX as u32)?;
        let query = Query::ReadMany { dir: self.handle, paths, contents };
        let Reply::Many(mut outcomes) = connection.call(&Request::Query(query))? else {
            return Err(unexpected());
        };
        let mut used = 0;
        for (_, outcome) in &mut outcomes {
            if let Outcome::Contents(Memory { offset, len }) = outcome {
                *offset = offset.checked_sub(contents.offset).ok_or_else(unexpected)?;
                used = used.max(offset.checked_add(*len).ok_or_else(unexpected)? as usize);
            }
        }
        if used > READ_BYTES_MAX {
            return Err(unexpected());
        }
        buffer.resize(used, 0);
        connection.fetch(contents.offset, buffer)?;
        Ok(outcomes)
    }

    /// The entries of this directory.
    pub fn entries(&self) -> Result<Vec<DirItem>> {
        let (mut items, mut cookie) = (Vec::new(), 0);
        loop {
            let Reply::Entries(entries, is_end) =
                self.query(Query::List { dir: self.handle, cookie })?
            else {
                return Err(unexpected());
            };
            match (is_end, entries.last()) {
                (false, Some(last)) => cookie = last.cookie,
                (false, None) => return Err(unexpected()),
                (true, _) => {}
            }
            items
                .extend(entries.into_iter().map(|Entry { name, attr, .. }| DirItem { name, attr }));
            if is_end {
                return Ok(items);
            }
        }
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

/// A path that can be sent.
fn checked_path(path: &[u8]) -> Result<Vec<u8>> {
    match path {
        path if path.len() > WALK_BYTES_MAX => Err(Error::NameTooLong),
        path if path.contains(&0) => Err(Error::Invalid("a path with a zero byte")),
        path => Ok(path.to_vec()),
    }
}
