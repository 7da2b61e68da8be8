//! An archive into a tree of an image.

use std::ffi::OsStr;
use std::io::{self, Read};
use std::os::unix::ffi::OsStrExt;
use std::time::Duration;

use anyhow::{Context, anyhow, bail, ensure};
use cffs::clock::Timestamp;
use cffs::error::Error;
use cffs::files::{File, Files, Node};
use cffs::format::inode::FileType;
use cffs::vfs::types::{NewFile, NewKind, SetAttr, SetTime, XattrMode};
use tar::{Entry, EntryType};

use super::sparse::{self, Map};
use crate::output::note;

const COPY_BYTES: usize = 1 << 20;
/// Zeros of this length, at a multiple of it, can be a hole.
const HOLE_BYTES: usize = 4096;
const BACKGROUND_INTERVAL: Duration = Duration::from_secs(1);

/// What is taken over.
pub struct Options {
    /// Owners and groups.
    pub owner: bool,
    /// Extended attributes.
    pub xattrs: bool,
}

/// Reads an archive into the directory `top` and returns how many files are missing. What is wrong with them
/// goes to standard error. Fails if the archive cannot be read further, or the volume not be written.
pub fn archive(
    files: &Files,
    top: &[u8],
    options: &Options,
    input: impl Read,
) -> anyhow::Result<u64> {
    let shown = || OsStr::from_bytes(top).display().to_string();
    files.make_dir_all(top).with_context(shown)?;
    let mut extract = Extract {
        files,
        options,
        top: files.node(top).with_context(shown)?,
        directories: Vec::new(),
        failures: 0,
    };
    // What the background cannot write, the changes here cannot either, and return.
    files.volume().with_background(BACKGROUND_INTERVAL, drop, || {
        let read = extract.all(input);
        // Making what is in a directory changed its times, so its own come last.
        extract.finish_directories();
        read
    })?;
    Ok(extract.failures)
}

struct Extract<'a> {
    files: &'a Files,
    options: &'a Options,
    top: Node,
    /// Directories whose attributes are still to be set.
    directories: Vec<(Node, Attributes)>,
    failures: u64,
}

/// What an archive says of a file beside its contents.
struct Attributes {
    changes: SetAttr,
    xattrs: Vec<(Vec<u8>, Vec<u8>)>,
}

impl Extract<'_> {
    fn all(&mut self, input: impl Read) -> anyhow::Result<()> {
        let mut archive = tar::Archive::new(input);
        for entry in archive.entries()? {
            let mut entry = entry.context("standard input")?;
            let path = sparse::name(&mut entry).unwrap_or_else(|| entry.path_bytes().into_owned());
            match self.entry(&path, &mut entry) {
                Ok(()) => {}
                Err(error) if is_final(&error) => {
                    return Err(error.context(OsStr::from_bytes(&path).display().to_string()));
                }
                Err(error) => {
                    note!("cffs: {}: {error:#}", OsStr::from_bytes(&path).display());
                    self.failures += 1;
                }
            }
        }
        Ok(())
    }

    fn entry<R: Read>(&mut self, path: &[u8], entry: &mut Entry<'_, R>) -> anyhow::Result<()> {
        let attributes = self.attributes(entry)?;
        let Some((dir, name)) = self.place(path)? else {
            self.directories.push((self.top.try_clone()?, attributes));
            return Ok(());
        };
        let kind = entry.header().entry_type();
        let target = entry.link_name_bytes().map(|target| target.into_owned());
        let target = || target.as_deref().ok_or_else(|| anyhow!("a link that leads nowhere"));
        let kind = match kind {
            EntryType::Directory => return self.directory(&dir, name, attributes),
            EntryType::Link => return self.link(&dir, name, target()?),
            EntryType::Symlink => NewKind::Symlink(target()?),
            EntryType::Fifo => NewKind::Fifo,
            EntryType::Char => NewKind::CharDevice(device(entry)?),
            EntryType::Block => NewKind::BlockDevice(device(entry)?),
            EntryType::Regular | EntryType::Continuous | EntryType::GNUSparse => NewKind::Regular,
            other => bail!("entries of the kind {:?} are not known", char::from(other.as_byte())),
        };
        // Nothing gives way to a file whose map is of no use.
        let map = if kind == NewKind::Regular { Map::of_entry(entry)? } else { None };
        let node = self.make_anew(&dir, name, kind, &attributes)?;
        if kind == NewKind::Regular {
            self.contents(&node, entry, map)?;
        }
        self.set(&node, &attributes)
    }

    /// The directory that an entry lies in, made as far as it is missing, and its name; none for the top.
    fn place<'p>(&self, path: &'p [u8]) -> anyhow::Result<Option<(Node, &'p [u8])>> {
        let names: Vec<&[u8]> =
            path.split(|byte| *byte == b'/').filter(|name| !matches!(*name, b"" | b".")).collect();
        if names.contains(&&b".."[..]) {
            bail!("the name leads out of the directory: nothing was made");
        }
        let Some((name, above)) = names.split_last() else { return Ok(None) };
        let mut dir = self.top.try_clone()?;
        for name in above {
            let next = match dir.lookup(name) {
                Err(Error::NotFound) => {
                    dir.make(name, &self.new_file(&dir, NewKind::Directory, 0o755)?)
                }
                found => found,
            }?;
            if next.attr()?.file_type != FileType::Directory {
                let name = OsStr::from_bytes(name).display();
                bail!("{name}, above it, is no directory: nothing was made");
            }
            dir = next;
        }
        Ok(Some((dir, name)))
    }

    /// A file with its directory's owner.
    fn new_file<'k>(
        &self,
        dir: &Node,
        kind: NewKind<'k>,
        permissions: u32,
    ) -> Result<NewFile<'k>, Error> {
        let attr = dir.attr()?;
        Ok(NewFile { kind, permissions, umask: 0, uid: attr.uid, gid: attr.gid })
    }

    fn directory(&mut self, dir: &Node, name: &[u8], attributes: Attributes) -> anyhow::Result<()> {
        let made = match dir.make(name, &self.new_file(dir, NewKind::Directory, 0o755)?) {
            Err(Error::Exists) => dir.lookup(name)?,
            made => made?,
        };
        if made.attr()?.file_type != FileType::Directory {
            bail!("there is a file of this name that is no directory");
        }
        self.directories.push((made, attributes));
        Ok(())
    }

    fn link(&mut self, dir: &Node, name: &[u8], target: &[u8]) -> anyhow::Result<()> {
        let shown = || format!("the link to {}", OsStr::from_bytes(target).display());
        let (target_dir, target_name) =
            self.place(target)?.with_context(|| format!("{}: a directory", shown()))?;
        let first = target_dir.lookup(target_name).with_context(shown)?;
        match dir.link(&first, name) {
            Err(Error::Exists) => {
                self.files.volume().unlink(dir.ino(), name)?;
                dir.link(&first, name)?;
            }
            linked => drop(linked?),
        }
        Ok(())
    }

    /// Makes a file; one that has the name already gives way, unless it is a directory.
    fn make_anew(
        &self,
        dir: &Node,
        name: &[u8],
        kind: NewKind<'_>,
        attributes: &Attributes,
    ) -> Result<Node, Error> {
        let permissions = attributes.changes.permissions.unwrap_or(0o600);
        let new = self.new_file(dir, kind, permissions & 0o777)?;
        match dir.make(name, &new) {
            Err(Error::Exists) => {
                self.files.volume().unlink(dir.ino(), name)?;
                dir.make(name, &new)
            }
            made => made,
        }
    }

    fn contents<R: Read>(
        &self,
        node: &Node,
        entry: &mut Entry<'_, R>,
        map: Option<Map>,
    ) -> anyhow::Result<()> {
        let file = File::of(node.try_clone()?)?;
        let mut buf = vec![0; COPY_BYTES];
        // GNU tar's own format, whose holes come as zeros.
        let has_holes = entry.header().entry_type() == EntryType::GNUSparse;
        let size = match &map {
            None => copy(&file, 0, entry, has_holes, &mut buf)?,
            Some(map) => {
                for range in &map.data {
                    let mut part = entry.by_ref().take(range.end - range.start);
                    let end = copy(&file, range.start, &mut part, false, &mut buf)?;
                    ensure!(end == range.end, "there is less of it than its map of holes says");
                }
                map.size
            }
        };
        if has_holes || map.is_some() {
            let size = SetAttr { size: Some(size), ..SetAttr::default() };
            self.files.volume().set_attr(node.ino(), &size)?;
        }
        Ok(())
    }

    fn attributes<R: Read>(&self, entry: &mut Entry<'_, R>) -> anyhow::Result<Attributes> {
        let header = entry.header();
        let is_symlink = header.entry_type() == EntryType::Symlink;
        let mode = header.mode()? & 0o7777;
        let mode = if self.options.owner { mode } else { mode & 0o777 };
        let seconds = i64::try_from(header.mtime()?)?;
        let mut mtime = Timestamp { seconds, nanoseconds: 0 };
        let (mut uid, mut gid) = (u32::try_from(header.uid()?)?, u32::try_from(header.gid()?)?);
        let mut xattrs = Vec::new();
        if let Some(records) = entry.pax_extensions()? {
            for record in records {
                let record = record?;
                let (key, value) = (record.key_bytes(), record.value_bytes());
                let text = || std::str::from_utf8(value).context("a record of pax is no text");
                match key {
                    b"mtime" => mtime = time(text()?)?,
                    b"uid" => uid = text()?.parse()?,
                    b"gid" => gid = text()?.parse()?,
                    _ => {
                        if let Some(name) = key.strip_prefix(b"SCHILY.xattr.") {
                            xattrs.push((name.to_vec(), value.to_vec()));
                        }
                    }
                }
            }
        }
        let is_kept = |name: &[u8]| self.options.owner || name != b"security.capability";
        xattrs.retain(|(name, _)| self.options.xattrs && is_kept(name));
        let changes = SetAttr {
            permissions: (!is_symlink).then_some(mode),
            uid: self.options.owner.then_some(uid),
            gid: self.options.owner.then_some(gid),
            mtime: Some(SetTime::To(mtime)),
            ..SetAttr::default()
        };
        Ok(Attributes { changes, xattrs })
    }

    fn set(&self, node: &Node, attributes: &Attributes) -> anyhow::Result<()> {
        let volume = self.files.volume();
        for (name, value) in &attributes.xattrs {
            let set = volume.set_xattr(node.ino(), name, value, XattrMode::Any);
            set.with_context(|| OsStr::from_bytes(name).display().to_string())?;
        }
        volume.set_attr(node.ino(), &attributes.changes)?;
        Ok(())
    }

    fn finish_directories(&mut self) {
        while let Some((node, attributes)) = self.directories.pop() {
            if let Err(error) = self.set(&node, &attributes) {
                note!("cffs: a directory's attributes: {error:#}");
                self.failures += 1;
            }
        }
    }
}

/// Writes what is read from `at` on, zeros as holes if there are some, and returns where it ends.
fn copy(
    file: &File,
    mut at: u64,
    input: &mut impl Read,
    has_holes: bool,
    buf: &mut [u8],
) -> anyhow::Result<u64> {
    loop {
        let filled = fill(input, buf).map_err(Input)?;
        let mut rest = &buf[..filled];
        if rest.is_empty() {
            return Ok(at);
        }
        while !rest.is_empty() {
            let (run, is_hole) = if has_holes { first_run(rest) } else { (rest, false) };
            if !is_hole {
                file.write_all_at(at, run)?;
            }
            at += run.len() as u64;
            rest = &rest[run.len()..];
        }
    }
}

/// The pieces at the beginning that can all be holes, or cannot.
fn first_run(bytes: &[u8]) -> (&[u8], bool) {
    let is_hole = |piece: &[u8]| piece.iter().all(|byte| *byte == 0);
    let mut pieces = bytes.chunks(HOLE_BYTES);
    let first = pieces.next().is_some_and(is_hole);
    let len = pieces.take_while(|piece| is_hole(piece) == first).count() * HOLE_BYTES + HOLE_BYTES;
    (&bytes[..len.min(bytes.len())], first)
}

/// Reads as much as fits, or up to the end.
fn fill(input: &mut impl Read, buf: &mut [u8]) -> io::Result<usize> {
    let mut filled = 0;
    while filled < buf.len() {
        match input.read(&mut buf[filled..]) {
            Ok(0) => break,
            Ok(read) => filled += read,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(filled)
}

/// An error of the archive itself, after which it cannot be read further.
#[derive(Debug, thiserror::Error)]
#[error("standard input: {0}")]
struct Input(io::Error);

/// Whether nothing that follows can be better.
fn is_final(error: &anyhow::Error) -> bool {
    let of_volume = error.downcast_ref::<Error>();
    error.is::<Input>()
        || matches!(of_volume, Some(Error::NoSpace | Error::ReadOnly | Error::Latched(_)))
}

fn device<R: Read>(entry: &Entry<'_, R>) -> anyhow::Result<u64> {
    let header = entry.header();
    let part = |found: Option<u32>| found.context("a device without a number").map(u64::from);
    Ok(part(header.device_major()?)? << 32 | part(header.device_minor()?)?)
}

/// Seconds with a fraction, as pax has times.
fn time(text: &str) -> anyhow::Result<Timestamp> {
    let wrong = || anyhow!("'{text}' is no time");
    let (is_before, positive) = match text.strip_prefix('-') {
        Some(rest) => (true, rest),
        None => (false, text),
    };
    let (whole, fraction) = positive.split_once('.').unwrap_or((positive, ""));
    let digits: String = fraction.chars().chain("000000000".chars()).take(9).collect();
    let whole: i128 = whole.parse::<u64>().map_err(|_| wrong())?.into();
    let nanoseconds: i128 = digits.parse::<u32>().map_err(|_| wrong())?.into();
    let nanoseconds = whole * 1_000_000_000 + nanoseconds;
    let nanoseconds = if is_before { -nanoseconds } else { nanoseconds };
    let seconds = i64::try_from(nanoseconds.div_euclid(1_000_000_000)).map_err(|_| wrong())?;
    Ok(Timestamp { seconds, nanoseconds: nanoseconds.rem_euclid(1_000_000_000) as u32 })
}
