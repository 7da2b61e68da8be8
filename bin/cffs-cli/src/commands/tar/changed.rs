//! Incremental archives, in the form of `tar --listed-incremental` of GNU tar: what changed, and for each
//! directory whose names may have changed, a list of its names. A directory loses names that its list does
//! not have when it is extracted.
//!
//! A list is the record `GNU.dumpdir`: entries of a letter, the name and a NUL, sorted by name, and another
//! NUL. GNU tar also renames directories by such lists; here, everything below a renamed directory is in the
//! archive.

use std::cmp::Ordering;
use std::collections::{HashMap, HashSet};

use anyhow::{Context, anyhow, bail, ensure};
use cffs::error::Error;
use cffs::files::{DirItem, Files, Node, WalkEntry};
use cffs::format::inode::FileType;
use cffs::units::InodeNo;
use cffs::vfs::CHANGED_PATH_BYTES_MAX;
use tar_wire::archive::EXTENSION_BYTES_MAX;

use super::way::Way;
use crate::output::printable;
use crate::tree::join;

#[cfg(test)]
mod tests;

/// The key of the record.
pub const DUMPDIR: &[u8] = b"GNU.dumpdir";
const DIRECTORY: u8 = b'D';
/// Another file in this archive.
const ARCHIVED: u8 = b'Y';
/// Another file that has not changed.
const UNCHANGED: u8 = b'N';

/// The contents of an incremental archive.
pub struct Changes {
    /// Paths below the top, each directory before its entries, and whether they were listed. The others are
    /// directories of listed files: extracting these changes their times.
    paths: Vec<(Vec<u8>, bool)>,
    /// Directories that could not be read.
    unread: Vec<(Vec<u8>, Error)>,
}

impl Changes {
    /// Finds the listed files below the directory `top`. Files that are gone are left out. All names of a
    /// file are changes if one is.
    pub fn find(
        files: &Files,
        top: &[u8],
        listed: Vec<Vec<u8>>,
    ) -> anyhow::Result<(Changes, Vec<WalkEntry>)> {
        let mut changes = Changes { paths: Vec::new(), unread: Vec::new() };
        let mut below = Vec::new();
        for path in listed {
            // It stands for everything below it.
            if path.len() > CHANGED_PATH_BYTES_MAX {
                below.push(path);
            } else {
                changes.paths.push((path, true));
            }
        }
        for path in &below {
            changes.add_walk(files, top, path, |_| true)?;
        }
        let mut entries = changes.entries(files, top)?;
        let linked = names_missing(&entries);
        if !linked.is_empty() {
            changes.add_walk(files, top, b"", |entry| linked.contains(&entry.attr.ino))?;
            entries = changes.entries(files, top)?;
        }
        Ok((changes, entries))
    }

    /// Adds paths at and below one.
    fn add_walk(
        &mut self,
        files: &Files,
        top: &[u8],
        path: &[u8],
        is_added: impl Fn(&WalkEntry) -> bool,
    ) -> anyhow::Result<()> {
        let start = if path.is_empty() { top.to_vec() } else { join(top, path) };
        let mut walk = match files.walk(&start) {
            Err(Error::NotFound | Error::NotDirectory | Error::Stale) => return Ok(()),
            walk => walk.with_context(|| printable(&start))?,
        };
        while let Some(entry) = walk.next() {
            match entry {
                Ok(entry) if is_added(&entry) => {
                    self.paths.push((below(top, &entry.path).to_vec(), true));
                }
                Ok(_) => {}
                Err(error) => self.unread.push((walk.unread().to_vec(), error)),
            }
        }
        Ok(())
    }

    /// Adds the directories of listed files, and finds all files.
    fn entries(&mut self, files: &Files, top: &[u8]) -> anyhow::Result<Vec<WalkEntry>> {
        let directories = |path: &(Vec<u8>, bool)| (parent(&path.0)?.to_vec(), false).into();
        let above: HashSet<(Vec<u8>, bool)> = self.paths.iter().filter_map(directories).collect();
        self.paths.extend(above);
        // Of equal paths, a listed one comes first.
        self.paths
            .sort_unstable_by(|one, other| by_names(&one.0, &other.0).then(other.1.cmp(&one.1)));
        self.paths.dedup_by(|one, other| one.0 == other.0);
        let mut way = Way::from(files.node(top)?);
        let (mut entries, mut found) = (Vec::new(), Vec::new());
        for (path, is_listed) in self.paths.drain(..) {
            match attributes(&mut way, top, &path) {
                Ok(entry) => {
                    entries.push(entry);
                    found.push((path, is_listed));
                }
                Err(error) if is_gone(&error) => {}
                Err(error) => return Err(error.context(printable(&path))),
            }
        }
        self.paths = found;
        Ok(entries)
    }

    /// The directories that could not be read while names were looked for.
    pub fn unread(&self) -> &[(Vec<u8>, Error)] {
        &self.unread
    }

    /// The list of the names in a directory; `None` if they have not changed. Sockets, which no archive
    /// contains, are left out.
    pub fn dumpdir(&self, path: &[u8], dir: &Node) -> anyhow::Result<Option<Vec<u8>>> {
        let path = if path == b"." { b"" } else { path };
        let Some(&(_, true)) = self.position(path).map(|at| &self.paths[at]) else {
            return Ok(None);
        };
        let mut items = dir.entries()?;
        items.retain(|item| item.attr.file_type != FileType::Socket);
        items.sort_unstable_by(|one, other| one.name.cmp(&other.name));
        let mut list = Vec::new();
        for DirItem { name, attr } in items {
            list.push(match attr.file_type {
                FileType::Directory => DIRECTORY,
                _ if self.position(&join(path, &name)).is_some() => ARCHIVED,
                _ => UNCHANGED,
            });
            list.extend_from_slice(&name);
            list.push(0);
        }
        list.push(0);
        let is_readable = list.len() as u64 + BESIDES_BYTES <= EXTENSION_BYTES_MAX;
        ensure!(is_readable, "the list of its names is too long for an archive");
        Ok(Some(list))
    }

    fn position(&self, path: &[u8]) -> Option<usize> {
        self.paths.binary_search_by(|(other, _)| by_names(other, path)).ok()
    }
}

/// The space for the other records of a directory.
const BESIDES_BYTES: u64 = 4 << 20;

/// A list: the letter of each name.
pub type Names = HashMap<Vec<u8>, u8>;

/// GNU tar would rename directories by this archive. It has neither the files of a renamed directory nor its
/// former name, so no further name may be removed by it.
#[derive(Debug, thiserror::Error)]
#[error("the archive renames directories; extract it with GNU tar")]
pub struct Renames;

/// Decodes a list.
///
/// # Errors
///
/// It is damaged; [`Renames`].
pub fn names(dumpdir: &[u8]) -> anyhow::Result<Names> {
    let damaged = || anyhow!("the list of its names is damaged");
    let entries = dumpdir.strip_suffix(b"\0").ok_or_else(damaged)?;
    let Some(entries) = entries.strip_suffix(b"\0") else {
        ensure!(entries.is_empty(), damaged());
        return Ok(Names::new());
    };
    let mut names = Names::new();
    for entry in entries.split(|byte| *byte == 0) {
        match entry {
            [letter @ (DIRECTORY | ARCHIVED | UNCHANGED), name @ ..] => {
                names.insert(name.to_vec(), *letter)
            }
            [b'R' | b'T' | b'X', ..] => bail!(Renames),
            _ => bail!(damaged()),
        };
    }
    Ok(names)
}

/// Removes the entries of a directory that a list does not have, or that the archive has as another type.
pub fn remove_others(dir: &Node, names: &Names) -> anyhow::Result<()> {
    let mut missing = None;
    for DirItem { name, attr } in dir.entries()? {
        let is_directory = attr.file_type == FileType::Directory;
        match (names.get(&name), is_directory) {
            (Some(&DIRECTORY), true) | (Some(&(ARCHIVED | UNCHANGED)), false) => {}
            // The archive does not have the file either.
            (Some(&UNCHANGED), true) => missing = Some(name),
            _ => drop(dir.remove_all(&name, attr.file_type)?),
        }
    }
    match missing {
        None => Ok(()),
        Some(name) => bail!(
            "{} is a directory here and was a file there: an earlier archive was not extracted",
            printable(&name)
        ),
    }
}

/// The files with names that are not among the entries.
fn names_missing(entries: &[WalkEntry]) -> HashSet<InodeNo> {
    let mut missing = HashMap::new();
    for WalkEntry { attr, .. } in entries {
        if attr.file_type != FileType::Directory && attr.nlink > 1 {
            *missing.entry(attr.ino).or_insert(attr.nlink) -= 1;
        }
    }
    missing.into_iter().filter(|(_, left)| *left > 0).map(|(ino, _)| ino).collect()
}

fn attributes(way: &mut Way, top: &[u8], path: &[u8]) -> anyhow::Result<WalkEntry> {
    if path.is_empty() {
        return Ok(WalkEntry { path: top.to_vec(), attr: way.top().attr()?, depth: 0 });
    }
    let mut names: Vec<&[u8]> = path.split(|byte| *byte == b'/').collect();
    let depth = names.len();
    let name = names.pop().unwrap_or_default();
    let attr = way.find(&names)?.lookup(name)?.attr()?;
    Ok(WalkEntry { path: join(top, path), attr, depth })
}

fn is_gone(error: &anyhow::Error) -> bool {
    matches!(error.downcast_ref(), Some(Error::NotFound | Error::NotDirectory | Error::Stale))
}

/// A path without that of the top.
fn below<'a>(top: &[u8], path: &'a [u8]) -> &'a [u8] {
    let path = &path[top.len()..];
    path.strip_prefix(b"/").unwrap_or(path)
}

fn parent(path: &[u8]) -> Option<&[u8]> {
    if path.is_empty() {
        return None;
    }
    Some(path.iter().rposition(|byte| *byte == b'/').map_or(b"", |slash| &path[..slash]))
}

/// The order in which each directory is followed by everything below it.
fn by_names(one: &[u8], other: &[u8]) -> Ordering {
    let byte = |byte: &u8| if *byte == b'/' { 0 } else { *byte };
    one.iter().map(byte).cmp(other.iter().map(byte))
}
