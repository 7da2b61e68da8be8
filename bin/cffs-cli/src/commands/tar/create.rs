//! Writes a tree of an image as an archive.

use std::collections::HashMap;
use std::ffi::OsStr;
use std::io::{self, Read, Write};
use std::num::NonZeroUsize;
use std::ops::Range;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::Mutex;

use anyhow::Context;
use cffs::error::Error;
use cffs::files::{File, Files, Node, WalkEntry};
use cffs::format::inode::FileType;
use cffs::units::InodeNo;
use cffs::vfs::types::Attr;
use cffs::wire::WALK_BYTES_MAX;
use tar::{Builder, EntryType, Header};
use tar_wire::pax::{self, Record, Time};

use super::append::append;
use super::changed::{Changes, DUMPDIR};
use super::rights;
use super::sparse::Map;
use super::way::Way;
use crate::output::{note, printable};

#[cfg(test)]
mod tests;

/// The number of files of the tree that are read together, in device order.
const BATCH_FILES: usize = 4096;
const BATCH_BYTES: u64 = 16 << 20;
/// Longer files are read one at a time, piece by piece.
const SMALL_BYTES: u64 = 1 << 20;

/// The attributes to archive.
#[derive(Clone, Copy)]
pub struct Options {
    /// Whether to archive extended attributes, including ACLs.
    pub xattrs: bool,
    /// Whether to archive holes as holes; otherwise as zeros.
    pub holes: bool,
}

/// Writes an archive, with names relative to `top`, and returns how many files are missing in it. Reasons are
/// printed on standard error.
pub fn archive(
    files: &Files,
    top: &[u8],
    options: Options,
    out: impl Write,
) -> anyhow::Result<u64> {
    let mut archive = Archive::new(files, top, options, out)?;
    archive.add_all(top, files.walk(top).with_context(|| printable(top))?)?;
    archive.builder.finish()?;
    Ok(archive.failures)
}

/// The same of what changed below the directory `top`, whose paths were listed.
pub fn archive_changes(
    files: &Files,
    top: &[u8],
    listed: Vec<Vec<u8>>,
    options: Options,
    out: impl Write,
) -> anyhow::Result<u64> {
    let mut archive = Archive::new(files, top, options, out)?;
    let (changes, entries) = Changes::find(files, top, listed)?;
    changes.unread().iter().for_each(|(path, error)| archive.failed(path, error));
    archive.changes = Some(changes);
    archive.add_all(top, entries.into_iter().map(Ok))?;
    archive.builder.finish()?;
    Ok(archive.failures)
}

/// The length of the prefix to remove from each path, so that names begin below the directory `top`, or with
/// the name of the file `top`.
fn names_from(files: &Files, top: &[u8]) -> Result<usize, Error> {
    let end = top.iter().rposition(|byte| *byte != b'/').map_or(0, |last| last + 1);
    Ok(match files.stat(top)?.file_type {
        FileType::Directory => top.len(),
        _ => top[..end].iter().rposition(|byte| *byte == b'/').map_or(0, |slash| slash + 1),
    })
}

/// The contents of a batch's files, or why they could not be read.
type Contents = Vec<Option<anyhow::Result<Vec<u8>>>>;

fn put(contents: &Mutex<Contents>, position: usize, read: Result<&[u8], Error>) {
    if let Ok(mut contents) = contents.lock() {
        contents[position] = Some(read.map(<[u8]>::to_vec).map_err(Into::into));
    }
}

/// Whether a file is read as a whole, together with others.
fn is_small(attr: &Attr) -> bool {
    let may_have_holes = attr.allocated_bytes < attr.size;
    attr.file_type == FileType::Regular && attr.size <= SMALL_BYTES && !may_have_holes
}

struct Archive<'a, W: Write> {
    files: &'a Files,
    /// The directories down to that of the last file that was opened.
    way: Way,
    names_from: usize,
    options: Options,
    builder: Builder<W>,
    /// The first name of each file that has more than one.
    first_names: HashMap<InodeNo, Vec<u8>>,
    /// The contents of an incremental archive.
    changes: Option<Changes>,
    failures: u64,
}

impl<'a, W: Write> Archive<'a, W> {
    fn new(
        files: &'a Files,
        top: &[u8],
        options: Options,
        out: W,
    ) -> anyhow::Result<Archive<'a, W>> {
        let shown = || printable(top);
        Ok(Archive {
            files,
            way: Way::from(files.node(top).with_context(shown)?),
            names_from: names_from(files, top).with_context(shown)?,
            options,
            builder: Builder::new(out),
            first_names: HashMap::new(),
            changes: None,
            failures: 0,
        })
    }

    fn add_all(
        &mut self,
        top: &[u8],
        entries: impl Iterator<Item = Result<WalkEntry, Error>>,
    ) -> io::Result<()> {
        let mut batch = Vec::new();
        let (mut batch_bytes, mut last_dir) = (0, top.to_vec());
        for found in entries {
            let entry = match found {
                Ok(entry) => entry,
                Err(error) => {
                    self.failed(&last_dir, &error);
                    continue;
                }
            };
            if entry.attr.file_type == FileType::Directory {
                last_dir.clone_from(&entry.path);
            }
            batch_bytes += if is_small(&entry.attr) { entry.attr.size } else { 0 };
            batch.push(entry);
            if batch.len() >= BATCH_FILES || batch_bytes >= BATCH_BYTES {
                self.add(std::mem::take(&mut batch))?;
                batch_bytes = 0;
            }
        }
        self.add(batch)
    }

    fn failed(&mut self, path: &[u8], error: &dyn std::fmt::Display) {
        note!("cffs: {}: {error:#}", printable(path));
        self.failures += 1;
    }

    /// Adds a part of the walk, in its order. Fails if the archive cannot be written.
    fn add(&mut self, batch: Vec<WalkEntry>) -> io::Result<()> {
        let mut contents = self.read(&batch);
        for (entry, contents) in batch.iter().zip(&mut contents) {
            self.entry(entry, contents.take())?;
        }
        Ok(())
    }

    /// The contents of the small files of a batch.
    fn read(&mut self, batch: &[WalkEntry]) -> Contents {
        let mut contents = Vec::new();
        contents.resize_with(batch.len(), || None);
        let is_read = |entry: &WalkEntry| is_small(&entry.attr) && entry.attr.size > 0;
        let small = batch.iter().enumerate().filter(|(_, entry)| is_read(entry));
        if self.files.opened().is_err() {
            // The server takes no longer paths. These files are read one at a time.
            let small = small.filter(|(_, entry)| entry.path.len() <= WALK_BYTES_MAX);
            let (positions, paths): (Vec<_>, Vec<_>) =
                small.map(|(position, entry)| (position, &entry.path)).unzip();
            let contents = Mutex::new(contents);
            self.files.read_many(&paths, NonZeroUsize::MIN, |at, read| {
                put(&contents, positions[at], read);
            });
            return contents.into_inner().unwrap_or_default();
        }
        let mut opened = Vec::new();
        for (position, entry) in small {
            match self.open(entry) {
                Ok(file) => opened.push((position, file)),
                Err(error) => contents[position] = Some(Err(error)),
            }
        }
        let (batch, missed) = self.files.batch_of(opened);
        for (position, error) in missed {
            contents[position] = Some(Err(error.into()));
        }
        let contents = Mutex::new(contents);
        batch.read_whole(NonZeroUsize::MIN, |position, read| put(&contents, position, read));
        contents.into_inner().unwrap_or_default()
    }

    /// Opens a regular file.
    fn open(&mut self, entry: &WalkEntry) -> anyhow::Result<File> {
        Ok(File::of(self.find(entry)?)?)
    }

    fn find(&mut self, entry: &WalkEntry) -> anyhow::Result<Node> {
        if entry.depth == 0 {
            return Ok(self.way.top().try_clone()?);
        }
        let path = self.name(entry);
        let mut names: Vec<&[u8]> = path.split(|byte| *byte == b'/').collect();
        let name = names.pop().unwrap_or_default();
        Ok(self.way.find(&names)?.lookup(name)?)
    }

    /// The file of an entry. Its number is enough, unless the volume is at the server of a mount.
    fn node(&mut self, entry: &WalkEntry) -> anyhow::Result<Node> {
        match self.files.opened() {
            Ok(_) => Ok(self.files.node_by_number(entry.attr.ino)?),
            Err(_) => self.find(entry),
        }
    }

    fn entry(
        &mut self,
        entry: &WalkEntry,
        contents: Option<anyhow::Result<Vec<u8>>>,
    ) -> io::Result<()> {
        let attr = &entry.attr;
        let name = self.name(entry);
        let has_names = attr.nlink > 1 && attr.file_type != FileType::Directory;
        if has_names && let Some(first) = self.first_names.get(&attr.ino) {
            let first = first.clone();
            let header = self.header(entry, EntryType::Link, 0);
            return append(&mut self.builder, header, &name, &first, io::empty());
        }
        if self.file(entry, &name, contents)? && has_names {
            self.first_names.insert(attr.ino, name);
        }
        Ok(())
    }

    /// Adds a file under its first name. Returns whether the archive contains it.
    fn file(
        &mut self,
        entry: &WalkEntry,
        name: &[u8],
        contents: Option<anyhow::Result<Vec<u8>>>,
    ) -> io::Result<bool> {
        match entry.attr.file_type {
            FileType::Regular => self.regular(entry, name, contents),
            FileType::Symlink => match self.node(entry).and_then(|node| Ok(node.read_link()?)) {
                Ok(target) => {
                    self.extensions(entry)?;
                    let header = self.header(entry, EntryType::Symlink, 0);
                    append(&mut self.builder, header, name, &target, io::empty())?;
                    Ok(true)
                }
                Err(error) => {
                    self.failed(&entry.path, &error);
                    Ok(false)
                }
            },
            // The format has no sockets, which are useless without their program. GNU tar skips them with a
            // note as well.
            FileType::Socket => {
                note!("cffs: {}: a socket is left out", printable(&entry.path));
                Ok(false)
            }
            _ => self.without_contents(entry, name).map(|()| true),
        }
    }

    /// The relative name in the archive.
    fn name(&self, entry: &WalkEntry) -> Vec<u8> {
        let name = entry.path.get(self.names_from..).unwrap_or_default();
        let name = &name[name.iter().take_while(|byte| **byte == b'/').count()..];
        if name.is_empty() { b".".to_vec() } else { name.to_vec() }
    }

    fn without_contents(&mut self, entry: &WalkEntry, name: &[u8]) -> io::Result<()> {
        let attr = &entry.attr;
        let kind = match attr.file_type {
            FileType::Directory => EntryType::Directory,
            FileType::CharDevice => EntryType::Char,
            FileType::BlockDevice => EntryType::Block,
            _ => EntryType::Fifo,
        };
        let mut records = Vec::new();
        if let Some(changes) = self.changes.take_if(|_| kind == EntryType::Directory) {
            match self.node(entry).and_then(|node| changes.dumpdir(name, &node)) {
                Ok(dumpdir) => records.extend(dumpdir.map(|list| (DUMPDIR.to_vec(), list))),
                Err(error) => self.failed(&entry.path, &error),
            }
            self.changes = Some(changes);
        }
        self.with_records(entry, records)?;
        let mut header = self.header(entry, kind, 0);
        if attr.device != 0 || matches!(kind, EntryType::Char | EntryType::Block) {
            header.set_device_major((attr.device >> 32) as u32)?;
            header.set_device_minor(attr.device as u32)?;
        }
        append(&mut self.builder, header, name, b"", io::empty())
    }

    fn regular(
        &mut self,
        entry: &WalkEntry,
        name: &[u8],
        contents: Option<anyhow::Result<Vec<u8>>>,
    ) -> io::Result<bool> {
        let attr = &entry.attr;
        match contents {
            Some(Ok(contents)) => {
                self.extensions(entry)?;
                let header = self.header(entry, EntryType::Regular, contents.len() as u64);
                append(&mut self.builder, header, name, b"", &*contents)?;
                Ok(true)
            }
            Some(Err(error)) => {
                self.failed(&entry.path, &error);
                Ok(false)
            }
            None if attr.size == 0 => {
                self.extensions(entry)?;
                let header = self.header(entry, EntryType::Regular, 0);
                append(&mut self.builder, header, name, b"", io::empty())?;
                Ok(true)
            }
            None => self.large(entry, name),
        }
    }

    /// A file that is read while it is written. After an error the rest is filled with zeros, since the
    /// archive already contains its length.
    fn large(&mut self, entry: &WalkEntry, name: &[u8]) -> io::Result<bool> {
        let file = match self.open(entry) {
            Ok(file) => file,
            Err(error) => {
                self.failed(&entry.path, &error);
                return Ok(false);
            }
        };
        let size = entry.attr.size;
        let map = match self.options.holes {
            true => Map::of_file(file.node(), size),
            false => Ok(Map::whole(size)),
        };
        let map = match map {
            Ok(map) => map,
            Err(error) => {
                self.failed(&entry.path, &error);
                return Ok(false);
            }
        };
        let mut padded =
            Padded { file, rest: map.data.clone().into_iter(), now: 0..0, failure: None };
        if map.is_whole() {
            self.extensions(entry)?;
            let header = self.header(entry, EntryType::Regular, size);
            append(&mut self.builder, header, name, b"", &mut padded)?;
        } else {
            self.with_records(entry, map.records(name))?;
            let encoded = map.encoded();
            let header = sparse_header(
                &entry.attr,
                self.mode(entry),
                name,
                encoded.len() as u64 + map.data_bytes(),
            )?;
            self.builder.append(&header, encoded.chain(&mut padded))?;
        }
        if let Some(error) = padded.failure {
            self.failed(&entry.path, &error);
        }
        Ok(true)
    }

    /// The fields that do not fit into the header.
    fn extensions(&mut self, entry: &WalkEntry) -> io::Result<()> {
        self.with_records(entry, Vec::new())
    }

    fn with_records(&mut self, entry: &WalkEntry, mut records: Vec<Record>) -> io::Result<()> {
        let mtime = entry.attr.mtime;
        let mtime = Time { seconds: mtime.seconds, nanoseconds: mtime.nanoseconds };
        records.push((b"mtime".to_vec(), pax::time_value(mtime).into_bytes()));
        if self.options.xattrs {
            match self.xattrs(entry) {
                Ok(xattrs) => records.extend(xattrs),
                Err(error) => self.failed(&entry.path, &error),
            }
        }
        let mut contents = Vec::new();
        records.iter().for_each(|(key, value)| pax::encode(key, value, &mut contents));
        let mut header = Header::new_ustar();
        header.set_entry_type(EntryType::XHeader);
        header.set_size(contents.len() as u64);
        header.set_cksum();
        self.builder.append(&header, &*contents)
    }

    fn xattrs(&mut self, entry: &WalkEntry) -> anyhow::Result<Vec<Record>> {
        let node = self.node(entry)?;
        let names = node.xattr_names()?;
        names.iter().map(|name| Ok(rights::record(name, node.xattr(name)?))).collect()
    }

    fn header(&mut self, entry: &WalkEntry, kind: EntryType, size: u64) -> Header {
        filled(Header::new_gnu(), &entry.attr, self.mode(entry), kind, size)
    }

    fn mode(&mut self, entry: &WalkEntry) -> u32 {
        let mode = entry.attr.permissions;
        if self.options.xattrs {
            return mode;
        }
        let node = self.node(entry).ok();
        rights::mode_without(mode, |name| node.as_ref()?.xattr(name).ok())
    }
}

/// GNU tar looks for the records of holes only with a POSIX header. This name is for programs that do not
/// support these records; a name that is too long for such a header is omitted.
fn sparse_header(attr: &Attr, mode: u32, name: &[u8], size: u64) -> io::Result<Header> {
    const DIR: &str = "GNUSparseFile.0";
    let plain = filled(Header::new_ustar(), attr, mode, EntryType::Regular, size);
    let name = Path::new(OsStr::from_bytes(name));
    let shown = name.parent().unwrap_or(name).join(DIR).join(name.file_name().unwrap_or_default());
    let mut header = plain.clone();
    if header.set_path(shown).is_err() {
        header = plain;
        header.set_path(DIR)?;
    }
    header.set_cksum();
    Ok(header)
}

fn filled(mut header: Header, attr: &Attr, mode: u32, kind: EntryType, size: u64) -> Header {
    header.set_entry_type(kind);
    header.set_mode(mode);
    header.set_uid(attr.uid.into());
    header.set_gid(attr.gid.into());
    header.set_mtime(u64::try_from(attr.mtime.seconds).unwrap_or(0));
    header.set_size(size);
    header
}

/// The contents of a file between its holes, padded to the lengths in its header.
struct Padded {
    file: File,
    rest: std::vec::IntoIter<Range<u64>>,
    now: Range<u64>,
    failure: Option<anyhow::Error>,
}

impl Read for Padded {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        while self.now.is_empty() {
            match self.rest.next() {
                Some(next) => self.now = next,
                None => return Ok(0),
            }
        }
        let left = self.now.end - self.now.start;
        let wanted = usize::try_from(left).unwrap_or(usize::MAX).min(buf.len());
        let buf = &mut buf[..wanted];
        if self.failure.is_none() {
            match self.file.read_at(self.now.start, buf) {
                Ok(0) if wanted > 0 => {
                    self.failure = Some(anyhow::anyhow!("the file has become shorter"));
                }
                Ok(read) => {
                    self.now.start += read as u64;
                    return Ok(read);
                }
                Err(error) => self.failure = Some(error.into()),
            }
        }
        buf.fill(0);
        self.now.start += wanted as u64;
        Ok(wanted)
    }
}
