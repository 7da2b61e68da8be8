//! The requests that find and read files. They leave the access times as they are.

use std::time::{Duration, Instant};

use cffs::error::{Error, Result};
use cffs::format::inode::FileType;
use cffs::units::InodeNo;
use cffs::vfs::DirEntry;
use cffs::vfs::types::{Access, Attr, SeekFor};
use cffs::wire::{ENTRY_BYTES, Entry, Fault, Handle, LISTED_BYTES, Memory, Outcome, Query, Reply};

use super::super::handles::Held;
use super::super::walk::{Found, Walk};
use super::super::xattrs;
use super::Program;
use crate::access::{EXECUTE, READ, checks};

/// After this time, the rest of a batch is left to the next request, so that an unmount need not wait for it.
const BATCH_TIME: Duration = Duration::from_millis(200);
/// After this many names in the paths of a request, the rest is left to the next request: a path may have two
/// thousand names, and so may each link in it.
const STEPS_MAX: usize = 16 << 10;

/// A file that is to be read, and the position of its path in the request.
struct Wanted<'a> {
    position: u16,
    found: Found<'a>,
    /// Where it is on the device.
    offset: u64,
}

/// The paths of a request that were found.
struct Batch<'a> {
    /// The outcomes for those that cannot be read.
    outcomes: Vec<(u16, Outcome)>,
    wanted: Vec<Wanted<'a>>,
    /// The bytes that the faults take in the answer.
    fault_bytes: usize,
}

impl<'a> Program<'a> {
    pub(super) fn query(&mut self, query: Query) -> Result<Reply> {
        match query {
            Query::Walk { dir, path, follow, result } => {
                self.walk(dir, &path, follow, result).map(Reply::Attr)
            }
            Query::Read { node, at, contents } => self.read(node, at, contents).map(Reply::Count),
            Query::ReadMany { dir, paths, contents } => {
                self.read_many(dir, &paths, contents).map(Reply::Many)
            }
            Query::List { dir, cookie } => self.list(dir, cookie),
            Query::Xattr { node, name } => self.xattr(node, &name).map(Reply::Bytes),
            Query::Seek { node, at, hole } => self.seek(node, at, hole).map(Reply::Count),
            Query::Descend { dir, result } => {
                let begun =
                    self.handles.directory(dir).and_then(|dir| self.trees.begin(result, dir));
                begun.map(|()| Reply::Done)
            }
            Query::Continue { walk } => {
                let until = Instant::now() + BATCH_TIME;
                let next = self.trees.next(walk, self.user, until);
                next.map(|(steps, is_end)| Reply::Steps(steps, is_end))
            }
        }
    }

    fn walk(&mut self, dir: Handle, path: &[u8], follow: bool, result: Handle) -> Result<Attr> {
        let dir = self.handles.directory(dir)?;
        self.handles.check_room(result)?;
        let found = Walk::new(self.volume, self.user).find(dir, path, follow)?;
        let attr = found.attr;
        // The handle gets a reference of its own.
        self.handles.add(result, &self.volume.find(attr.ino)?, false);
        Ok(attr)
    }

    /// The regular file of a handle, if the program may read it. After a first read, it may continue to read,
    /// as through a descriptor.
    fn readable(&mut self, node: Handle) -> Result<InodeNo> {
        let Held { ino, file_type, is_own, is_read } = self.handles.get(node)?;
        if !is_own && !is_read {
            checks::check(self.volume, self.user, &self.volume.attr(ino)?, READ)?;
            self.handles.note_read(node);
        }
        check_regular(file_type)?;
        Ok(ino)
    }

    fn read(&mut self, node: Handle, at: u64, range: Memory) -> Result<u64> {
        let ino = self.readable(node)?;
        self.memory.check(range)?;
        self.contents.resize(range.len as usize, 0);
        let read = self.volume.read_with(ino, at, &mut self.contents, Access::Unnoted)?;
        self.memory.write(range.offset, &self.contents[..read])?;
        Ok(read as u64)
    }

    /// Reads the files in the order in which they are on the device, as long as they fit.
    fn read_many(
        &mut self,
        dir: Handle,
        paths: &[Vec<u8>],
        range: Memory,
    ) -> Result<Vec<(u16, Outcome)>> {
        let dir = self.handles.directory(dir)?;
        self.memory.check(range)?;
        let until = Instant::now() + BATCH_TIME;
        let Batch { mut outcomes, mut wanted, mut fault_bytes } =
            self.find_many(dir, paths, range, until);
        wanted.sort_unstable_by_key(|wanted| (wanted.offset, wanted.position));
        self.volume.fetch_batch(wanted.iter().map(|wanted| wanted.found.attr.ino));
        let mut contents = std::mem::take(&mut self.contents);
        contents.clear();
        for Wanted { position, found, .. } in &wanted {
            let is_over = Instant::now() >= until || fault_bytes >= LISTED_BYTES;
            if is_over && !outcomes.is_empty() {
                break;
            }
            let begin = contents.len();
            let left = range.len as usize - begin;
            // An additional byte shows that it does not fit: it may have grown.
            let read = self.volume.read_pieces(
                found.attr.ino,
                0,
                left + 1,
                Access::Unnoted,
                &mut |piece| contents.extend_from_slice(piece),
            );
            let outcome = match read {
                Ok(len) if len <= left => {
                    let (offset, len) = (range.offset + begin as u32, len as u32);
                    Outcome::Contents(Memory { offset, len })
                }
                Ok(_) if outcomes.is_empty() => Outcome::TooLarge,
                Ok(_) => {
                    contents.truncate(begin);
                    continue;
                }
                Err(error) => {
                    let fault = Fault::from(&error);
                    fault_bytes += fault.bytes();
                    Outcome::Fault(fault)
                }
            };
            if !matches!(outcome, Outcome::Contents(_)) {
                contents.truncate(begin);
            }
            outcomes.push((*position, outcome));
        }
        let written = self.memory.write(range.offset, &contents);
        self.contents = contents;
        written.map(|()| outcomes)
    }

    /// The files at the first paths whose contents fit together, as many as can be found in time.
    fn find_many(
        &self,
        dir: InodeNo,
        paths: &[Vec<u8>],
        range: Memory,
        until: Instant,
    ) -> Batch<'a> {
        let mut walk = Walk::new(self.volume, self.user);
        let (mut outcomes, mut wanted) = (Vec::new(), Vec::new());
        let (mut bytes, mut fault_bytes) = (0, 0);
        for (position, path) in (0..).zip(paths) {
            let is_late = position > 0 && Instant::now() >= until;
            if is_late || walk.steps() >= STEPS_MAX || fault_bytes >= LISTED_BYTES {
                break;
            }
            match self.find_readable(&mut walk, dir, path) {
                Ok((found, _)) if found.attr.size > range.len.into() => {
                    outcomes.push((position, Outcome::TooLarge));
                }
                Ok((found, offset)) => {
                    bytes += found.attr.size;
                    if bytes > range.len.into() {
                        break;
                    }
                    wanted.push(Wanted { position, found, offset });
                }
                Err(error) => {
                    let fault = Fault::from(&error);
                    fault_bytes += fault.bytes();
                    outcomes.push((position, Outcome::Fault(fault)));
                }
            }
        }
        Batch { outcomes, wanted, fault_bytes }
    }

    /// A regular file that the program may read, and where it is on the device.
    fn find_readable(
        &self,
        walk: &mut Walk<'a>,
        dir: InodeNo,
        path: &[u8],
    ) -> Result<(Found<'a>, u64)> {
        let found = walk.find(dir, path, true)?;
        checks::check(self.volume, self.user, &found.attr, READ)?;
        check_regular(found.attr.file_type)?;
        let offset = self.volume.admin().device_offset(found.attr.ino)?;
        Ok((found, offset))
    }

    /// Some entries of a directory with their attributes, for which the program needs to search it, too.
    fn list(&self, dir: Handle, cookie: u64) -> Result<Reply> {
        let dir = self.handles.directory(dir)?;
        checks::check(self.volume, self.user, &self.volume.attr(dir)?, READ | EXECUTE)?;
        let (mut entries, mut is_end) = (Vec::new(), true);
        let mut bytes = 0;
        let mut visit = |entry: &DirEntry<'_>| {
            is_end = bytes < LISTED_BYTES;
            if let (true, Some(attr)) = (is_end, entry.attr) {
                bytes += ENTRY_BYTES + entry.name.len();
                let (name, cookie) = (entry.name.to_vec(), entry.cookie);
                entries.push(Entry { name, cookie, attr });
            }
            is_end
        };
        let all = |_: &DirEntry<'_>| true;
        let listed =
            self.volume.read_dir_plus(dir, cookie, Some(&all), Access::Unnoted, &mut visit);
        entries.iter().for_each(|entry| self.volume.release(entry.attr.ino, 1));
        // A damaged part does not hide the entries before it.
        match listed {
            Err(error) if entries.is_empty() => Err(error),
            Err(_) => Ok(Reply::Entries(entries, false)),
            Ok(()) => Ok(Reply::Entries(entries, is_end)),
        }
    }

    fn xattr(&self, node: Handle, name: &[u8]) -> Result<Vec<u8>> {
        let attr = self.volume.attr(self.handles.get(node)?.ino)?;
        xattrs::check_read(self.volume, self.user, &attr, name)?;
        self.volume.xattr(attr.ino, name)
    }

    fn seek(&mut self, node: Handle, at: u64, hole: bool) -> Result<u64> {
        let ino = self.readable(node)?;
        self.volume.seek(ino, at, if hole { SeekFor::Hole } else { SeekFor::Data })
    }
}

pub(super) fn check_regular(file_type: FileType) -> Result<()> {
    match file_type {
        FileType::Regular => Ok(()),
        FileType::Directory => Err(Error::IsDirectory),
        _ => Err(Error::Invalid("not a regular file")),
    }
}
