//! Extracts an archive into a tree of an image.

use std::collections::{HashSet, VecDeque};
use std::io::{self, Read};
use std::time::Duration;

use anyhow::{Context, anyhow, bail, ensure};
use cffs::clock::Timestamp;
use cffs::error::Error;
use cffs::files::{Clears, File, Making, Node, Put, without_acl};
use cffs::vfs::is_access_acl;
use cffs::vfs::types::{NewKind, SetAttr, SetTime};
use tar_wire::{Archive, Entry, Kind};

use super::sparse::Map;
use super::way::Way;
use super::{changed, rights};
use crate::output::{note, printable};

#[cfg(test)]
mod tests;

const COPY_BYTES: usize = 1 << 20;
/// The mode of a directory until its attributes are set, and afterwards if its entry is damaged: it may have
/// been private.
const DAMAGED: u32 = 0o700;
/// The number of files that are begun before the first half of them are waited for.
const BEGUN_MAX: usize = 256;
const BACKGROUND_INTERVAL: Duration = Duration::from_secs(1);

/// The attributes to restore.
pub struct Options {
    /// Whether to restore owners and groups.
    pub owner: bool,
    /// Whether to restore extended attributes.
    pub xattrs: bool,
    /// The permissions that no file gets.
    pub umask: u32,
    /// Whether directories lose the names that an incremental archive does not list.
    pub incremental: bool,
}

/// Reads an archive into the directory `top` and returns how many files are missing. Reasons are printed on
/// standard error. Fails if the archive cannot be read further, or the volume cannot be written.
pub fn archive(
    root: &Node,
    top: &[u8],
    options: &Options,
    input: impl Read,
) -> anyhow::Result<u64> {
    let shown = || printable(top);
    root.make_dir_all(top).with_context(shown)?;
    let top = root.at(top).with_context(shown)?;
    let mut extract = Extract {
        options,
        way: Way::from(top.try_clone()?),
        way_to_targets: Way::from(top),
        directories: Vec::new(),
        buffer: vec![0; COPY_BYTES],
        begun: VecDeque::new(),
        missing: HashSet::new(),
        failures: 0,
    };
    // If background writes fail, so do the changes here, which return the error.
    root.with_background(BACKGROUND_INTERVAL, || {
        let read = extract.all(input);
        let made = extract.finish(0);
        // Creating entries changes the times of directories, so these are set last.
        let set = extract.finish_directories();
        first_error([read, made, set])
    })?;
    Ok(extract.failures)
}

/// Returns the first error, and reports those with another cause.
fn first_error(steps: [anyhow::Result<()>; 3]) -> anyhow::Result<()> {
    let mut errors: Vec<anyhow::Error> = steps.into_iter().filter_map(Result::err).collect();
    errors.dedup_by_key(|error| error.root_cause().to_string());
    errors.drain(errors.len().min(1)..).for_each(|error| note!("cffs: {error:#}"));
    errors.pop().map_or(Ok(()), Err)
}

struct Extract<'a> {
    options: &'a Options,
    /// The directories down to that of the last entry.
    way: Way,
    /// The directories down to that of the last hard link's target.
    way_to_targets: Way,
    /// Directories whose attributes must still be set.
    directories: Vec<Directory>,
    /// Holds contents between the archive and the volume.
    buffer: Vec<u8>,
    /// Files that are being made, with their paths.
    begun: VecDeque<(Making, Vec<u8>)>,
    /// The paths of those that could not be made.
    missing: HashSet<Vec<u8>>,
    failures: u64,
}

/// A directory, with its path in the archive.
struct Directory {
    node: Node,
    path: Vec<u8>,
    attributes: Attributes,
}

/// The attributes of a file in an archive.
struct Attributes {
    changes: SetAttr,
    xattrs: Vec<(Vec<u8>, Vec<u8>)>,
    /// Whether the ACLs among `xattrs` are the only ones of the file.
    has_acls: bool,
}

impl Extract<'_> {
    fn all(&mut self, input: impl Read) -> anyhow::Result<()> {
        let mut archive = Archive::new(input);
        while let Some(entry) = archive.next_entry().context("standard input")? {
            match self.entry(&entry, &mut archive) {
                Ok(()) => {}
                Err(error) if is_final(&error) => {
                    return Err(error.context(printable(&entry.path)));
                }
                Err(error) => self.failed(&entry.path, &error),
            }
            if self.begun.len() >= BEGUN_MAX {
                // The server makes the others meanwhile.
                self.finish(BEGUN_MAX / 2)?;
            }
        }
        Ok(())
    }

    /// Waits for files that were begun, the first ones first, until `left` are left. Returns the first error
    /// after which no other file can be made.
    fn finish(&mut self, left: usize) -> anyhow::Result<()> {
        let mut outcome = Ok(());
        while self.begun.len() > left {
            let Some((making, path)) = self.begun.pop_front() else { break };
            match self.way.top().finish(making).map_err(anyhow::Error::from) {
                Err(error) if is_final(&error) => {
                    let shown = || printable(&path);
                    outcome = outcome.and(Err(error).with_context(shown));
                }
                Err(error) => {
                    self.failed(&path, &error);
                    self.missing.insert(path);
                }
                Ok(()) => {}
            }
        }
        outcome
    }

    fn failed(&mut self, path: &[u8], error: &anyhow::Error) {
        let path = printable(path);
        match error.downcast_ref() {
            Some(Error::Stale) => {
                note!("cffs: {path}: its directory could not be made, or is gone")
            }
            _ => note!("cffs: {path}: {error:#}"),
        }
        self.failures += 1;
    }

    fn entry(&mut self, entry: &Entry, input: &mut impl Read) -> anyhow::Result<()> {
        let names = names(&entry.path)?;
        let attributes = self.attributes(entry);
        let Some((name, above)) = names.split_last() else {
            if !matches!(entry.kind, Kind::Directory) {
                bail!("an entry without a name that is not a directory");
            }
            let (node, path) = (self.way.top().try_clone()?, entry.path.clone());
            let attributes = attributes?;
            self.remove_others(&node, entry, input)?;
            self.directories.push(Directory { node, path, attributes });
            return Ok(());
        };
        let target = || match &*entry.link {
            b"" => Err(anyhow!("a link without a target")),
            link => Ok(link),
        };
        let device = u64::from(entry.device.0) << 32 | u64::from(entry.device.1);
        let kind = match entry.kind {
            Kind::Directory => {
                let dir = self.directory(&entry.path, (above, name), attributes)?;
                return self.remove_others(&dir, entry, input);
            }
            Kind::HardLink => return self.link((above, name), target()?),
            Kind::Symlink => NewKind::Symlink(target()?),
            Kind::Fifo => NewKind::Fifo,
            Kind::CharDevice => NewKind::CharDevice(device),
            Kind::BlockDevice => NewKind::BlockDevice(device),
            Kind::Regular => NewKind::Regular,
            Kind::Other(letter) => {
                bail!("entries of the kind {:?} are unknown", char::from(letter))
            }
        };
        let attributes = attributes?;
        // A file with an invalid map must not replace an existing one.
        let map = if kind == NewKind::Regular { Map::of_entry(entry, input)? } else { None };
        self.way.lead(above)?;
        let making = self.file(name, kind, &attributes, map, input)?;
        self.begun.extend(making.map(|making| (making, entry.path.clone())));
        Ok(())
    }

    /// Creates a file that is not a directory, or begins to, replacing an existing one.
    fn file(
        &mut self,
        name: &[u8],
        kind: NewKind<'_>,
        attributes: &Attributes,
        map: Option<Map>,
        input: &mut impl Read,
    ) -> anyhow::Result<Option<Making>> {
        let dir = self.way.end();
        let permissions = attributes.changes.permissions.unwrap_or(0o600);
        // Attached, it belongs to this program until its attributes are set.
        let until_then = if dir.is_attached() { 0o700 } else { 0o777 };
        let new = dir.new_file(kind, permissions & until_then)?;
        let buffer = &mut self.buffer;
        let mut filled = 0;
        if kind == NewKind::Regular && map.is_none() {
            filled = fill(input, buffer).map_err(Input)?;
        }
        if attributes.xattrs.is_empty() && map.is_none() && filled < buffer.len() {
            let (changes, inherits_acls) = (attributes.changes, !attributes.has_acls);
            let contents = &buffer[..filled];
            return Ok(Some(dir.put(name, &Put { new, contents, changes, inherits_acls })?));
        }
        let node = dir.replace(name, &new)?;
        if kind == NewKind::Regular {
            contents(&node, input, map, (buffer, filled))?;
        }
        set(&node, attributes).map(|()| None)
    }

    fn directory(
        &mut self,
        path: &[u8],
        (above, name): (&[&[u8]], &[u8]),
        attributes: anyhow::Result<Attributes>,
    ) -> anyhow::Result<Node> {
        self.way.lead(above)?;
        let permissions = match &attributes {
            // Attached, this program must be able to make files in it.
            Ok(attributes) if !self.way.top().is_attached() => {
                attributes.changes.permissions.unwrap_or(DAMAGED) & 0o777
            }
            _ => DAMAGED,
        };
        let dir = self.way.end();
        let new = dir.new_file(NewKind::Directory, permissions)?;
        let (node, making) = dir.begin_dir(name, &new)?;
        self.begun.push_back((making, path.to_vec()));
        // Files in it come next.
        self.way.enter(name, node.try_clone()?);
        let (to_finish, path) = (node.try_clone()?, path.to_vec());
        self.directories.push(Directory { node: to_finish, path, attributes: attributes? });
        Ok(node)
    }

    /// Removes what a directory has and its list in an incremental archive does not. GNU tar's own format
    /// has the list as contents.
    fn remove_others(
        &mut self,
        dir: &Node,
        entry: &Entry,
        input: &mut impl Read,
    ) -> anyhow::Result<()> {
        if !self.options.incremental {
            return Ok(());
        }
        let list = match entry.record(changed::DUMPDIR) {
            Some(list) => list.to_vec(),
            None => {
                let (mut list, most) = (Vec::new(), tar_wire::archive::EXTENSION_BYTES_MAX);
                input.take(most + 1).read_to_end(&mut list).map_err(Input)?;
                ensure!(list.len() as u64 <= most, "the list of its names is too long");
                list
            }
        };
        if !list.is_empty() {
            let removed = changed::remove_others(dir, &changed::names(&list)?);
            removed.context("names that are not in the archive")?;
        }
        Ok(())
    }

    fn link(&mut self, (above, name): (&[&[u8]], &[u8]), target: &[u8]) -> anyhow::Result<()> {
        let shown = || format!("the link to {}", printable(target));
        let names = names(target)?;
        let (target_name, above_target) =
            names.split_last().with_context(|| format!("{}: a directory", shown()))?;
        let target_dir = self.way_to_targets.find(above_target).with_context(shown)?;
        let first = target_dir.lookup(target_name).with_context(shown)?;
        self.way.lead(above)?;
        let dir = self.way.end();
        match dir.link(&first, name) {
            // The link exists already.
            Err(Error::Exists) if dir.lookup(name)?.ino() == first.ino() => {}
            Err(Error::Exists) => {
                dir.unlink(name)?;
                dir.link(&first, name)?;
            }
            linked => drop(linked?),
        }
        Ok(())
    }

    fn attributes(&mut self, entry: &Entry) -> anyhow::Result<Attributes> {
        if let Some(damage) = entry.damage {
            bail!("{damage}");
        }
        let options = self.options;
        let (mut mode, mut xattrs) = (entry.mode, Vec::new());
        let mut rights = rights::of_entry(entry)?;
        if options.xattrs {
            xattrs = tar_wire::pax::xattrs(&entry.records)?;
            xattrs.retain(|(name, _)| self.way.top().copies_xattr(name, options.owner));
            mode = rights.mode_with(mode);
            for unknown in rights.unknown() {
                let error = anyhow!(
                    "its ACL names a user or group that this machine does not know: {unknown}"
                );
                self.failed(&entry.path, &error);
            }
        } else {
            mode = rights.mode_without(mode);
        }
        let mode = if options.owner { mode } else { mode & 0o777 & !options.umask };
        if options.xattrs {
            // An ACL changes the mode when it is set.
            rights.set_mode(mode);
            rights.put(&mut xattrs);
        }
        let mtime =
            Timestamp { seconds: entry.mtime.seconds, nanoseconds: entry.mtime.nanoseconds };
        let changes = SetAttr {
            permissions: (entry.kind != Kind::Symlink).then_some(mode),
            uid: options.owner.then_some(entry.uid),
            gid: options.owner.then_some(entry.gid),
            mtime: Some(SetTime::To(mtime)),
            ..SetAttr::default()
        };
        Ok(Attributes { changes, xattrs, has_acls: options.xattrs })
    }

    /// Sets the attributes of directories, unless no change can succeed.
    fn finish_directories(&mut self) -> anyhow::Result<()> {
        while let Some(Directory { node, path, attributes }) = self.directories.pop() {
            if self.missing.contains(&path) {
                continue;
            }
            let replaces = self.options.incremental && attributes.has_acls;
            if replaces && let Err(error) = node.remove_xattrs_but(&attributes.xattrs) {
                self.failed(&path, &error.into());
            }
            let set = match attributes.xattrs.is_empty() {
                true => {
                    let clears = if attributes.has_acls { Clears::Acls } else { Clears::Nothing };
                    let begun = node.begin_attributes(&attributes.changes, clears);
                    begun
                        .map(|making| self.begun.push_back((making, path.clone())))
                        .map_err(Into::into)
                }
                false => set(&node, &attributes),
            };
            match set.context("a directory's attributes") {
                Err(error) if is_final(&error) => return Err(error),
                Err(error) => self.failed(&path, &error),
                Ok(()) => {}
            }
            if self.begun.len() >= BEGUN_MAX {
                self.finish(BEGUN_MAX / 2)?;
            }
        }
        self.finish(0)
    }
}

/// The components of a path, which must not leave the directory.
fn names(path: &[u8]) -> anyhow::Result<Vec<&[u8]>> {
    let names: Vec<&[u8]> =
        path.split(|byte| *byte == b'/').filter(|name| !matches!(*name, b"" | b".")).collect();
    ensure!(
        !names.contains(&&b".."[..]),
        "the name is outside of the directory; nothing was created"
    );
    Ok(names)
}

/// Sets all attributes that can be set, and fails with the first error. An ACL that is not in the archive is
/// removed first: the file inherited it from its directory, or had it before. The owner comes before
/// capabilities, since changing it clears them. Others get no rights by the mode before the ACLs are set.
fn set(node: &Node, attributes: &Attributes) -> anyhow::Result<()> {
    let mut outcome = anyhow::Ok(());
    if attributes.has_acls {
        let is_set = |acl: &[u8]| attributes.xattrs.iter().any(|(name, _)| name == acl);
        for acl in rights::XATTRS.into_iter().filter(|acl| !is_set(acl)) {
            outcome = outcome.and(node.remove_xattr(acl).map_err(Into::into));
        }
    }
    let mode = attributes.changes.permissions;
    let mut first = attributes.changes;
    if !attributes.xattrs.is_empty() {
        first.permissions = mode.map(without_acl);
    }
    // An error here may be one that ends the work.
    outcome = node.set_attr(&first).map_err(Into::into).and(outcome);
    let mut has_its_acl = true;
    for (name, value) in &attributes.xattrs {
        let set = node.set_xattr(name, value);
        has_its_acl &= set.is_ok() || !is_access_acl(name);
        let set = set.with_context(|| printable(name));
        outcome = outcome.and(set);
    }
    if first.permissions != mode && has_its_acl {
        let last = SetAttr { permissions: mode, ..SetAttr::default() };
        outcome = node.set_attr(&last).map_err(Into::into).and(outcome);
    }
    outcome
}

/// Writes the contents of a file, of which the buffer contains the first bytes if there is no map.
fn contents(
    node: &Node,
    input: &mut impl Read,
    map: Option<Map>,
    (buffer, filled): (&mut [u8], usize),
) -> anyhow::Result<()> {
    let file = File::of(node.try_clone()?)?;
    let Some(map) = map else {
        file.write_all_at(0, &buffer[..filled])?;
        copy(&file, filled as u64, input, buffer)?;
        return Ok(());
    };
    for range in &map.data {
        let mut part = input.by_ref().take(range.end - range.start);
        let end = copy(&file, range.start, &mut part, buffer)?;
        ensure!(end == range.end, "its contents are shorter than its map of holes says");
    }
    Ok(file.set_len(map.size)?)
}

/// Writes the input at offset `at`, and returns the end offset.
fn copy(file: &File, mut at: u64, input: &mut impl Read, buf: &mut [u8]) -> anyhow::Result<u64> {
    loop {
        let filled = fill(input, buf).map_err(Input)?;
        if filled == 0 {
            return Ok(at);
        }
        file.write_all_at(at, &buf[..filled])?;
        at += filled as u64;
    }
}

/// Reads until the buffer is full or the input ends.
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

/// An error of the archive as a whole, after which it cannot be read further.
#[derive(Debug, thiserror::Error)]
#[error("standard input: {0}")]
struct Input(io::Error);

/// Whether no later entry can succeed.
fn is_final(error: &anyhow::Error) -> bool {
    error.is::<Input>()
        || error.is::<changed::Renames>()
        || error.downcast_ref::<Error>().is_some_and(Error::is_final)
}
