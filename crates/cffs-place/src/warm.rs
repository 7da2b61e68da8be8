//! Reading in the order of the device.
//!
//! A plain reader goes where the names lead, and waits for each request before it sends the next.
//! This module reads the inodes in their order first, learns where the contents lie, and requests
//! these in device order without waiting in between: the kernel merges adjacent requests, and the
//! arm moves one way. The contents stay in the page cache for the next program.

use std::fs::File;
use std::io;
use std::os::unix::fs::{DirEntryExt, MetadataExt};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use serde::Serialize;

use crate::extents::{self, Kind};
use crate::sys;
use crate::tree::{Unseen, open_for_reading};

/// A file, with its inode.
pub type ByInode = (u64, PathBuf);

/// The files and bytes read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Warmed {
    /// Files.
    pub files: u64,
    /// Bytes of contents.
    pub bytes: u64,
    /// The runs that they lie in.
    pub runs: u64,
    /// Files that were left out because they are more than may be read.
    pub left_out: u64,
}

/// The files below some paths, by inode, with what could not be looked at. A path may be a file itself.
pub fn files_below(paths: &[PathBuf]) -> Result<(Vec<ByInode>, Vec<Unseen>)> {
    let (mut files, mut unseen) = (Vec::new(), Vec::new());
    for path in paths {
        let status = match std::fs::symlink_metadata(path) {
            Ok(status) => status,
            Err(error) => {
                unseen.push((path.clone(), error));
                continue;
            }
        };
        if status.is_dir() {
            descend(path, status.dev(), &mut files, &mut unseen)?;
        } else if status.is_file() {
            files.push((status.ino(), path.clone()));
        }
    }
    Ok((files, unseen))
}

/// Lists without opening a file: entries have the number of their inode.
fn descend(
    root: &Path,
    device: u64,
    files: &mut Vec<ByInode>,
    unseen: &mut Vec<Unseen>,
) -> Result<()> {
    let mut pending = vec![root.to_owned()];
    while let Some(at) = pending.pop() {
        let entries = match std::fs::symlink_metadata(&at).and_then(|status| {
            if status.dev() == device { std::fs::read_dir(&at).map(Some) } else { Ok(None) }
        }) {
            Ok(Some(entries)) => entries,
            Ok(None) => continue,
            Err(error) if at == root => return Err(error).context(root.display().to_string()),
            Err(error) => {
                unseen.push((at, error));
                continue;
            }
        };
        for entry in entries {
            match entry.and_then(|entry| Ok((entry.file_type()?, entry.ino(), entry.path()))) {
                Ok((kind, _, path)) if kind.is_dir() => pending.push(path),
                Ok((kind, inode, path)) if kind.is_file() => files.push((inode, path)),
                Ok(_) => {}
                Err(error) => unseen.push((at.clone(), error)),
            }
        }
    }
    Ok(())
}

/// A piece to read: where on the device, of which file, and where in it.
struct Piece {
    physical: u64,
    length: u64,
    file: usize,
    logical: u64,
}

/// Files that are open at once, if the system lets us; more than that are read in several rounds.
const OPEN_MAX: u64 = 4096;
/// Descriptors that other parts of the program need.
const OPEN_OTHERS: u64 = 64;

/// Reads files, given with their inodes, up to `bytes_max`. `seen` hears of each file that is on its way.
pub fn warm(
    mut files: Vec<ByInode>,
    bytes_max: u64,
    mut seen: impl FnMut(),
) -> (Warmed, Vec<Unseen>) {
    files.sort();
    files.dedup_by_key(|(inode, _)| *inode);
    let (mut warmed, mut unseen) = (Warmed::default(), Vec::new());
    for round in files.chunks(open_files_max()) {
        let mut open: Vec<File> = Vec::with_capacity(round.len());
        let mut pieces = Vec::new();
        for (_, path) in round {
            match look(path, open.len()) {
                Ok(Some((file, mut found))) => {
                    let bytes = found.iter().map(|piece| piece.length).sum::<u64>();
                    if warmed.bytes + bytes > bytes_max {
                        warmed.left_out += 1;
                        continue;
                    }
                    (warmed.files, warmed.bytes) = (warmed.files + 1, warmed.bytes + bytes);
                    pieces.append(&mut found);
                    open.push(file);
                }
                Ok(None) => {}
                Err(error) => unseen.push((path.clone(), error)),
            }
            seen();
        }
        warmed.runs += read(&open, pieces);
    }
    (warmed, unseen)
}

fn look(path: &Path, number: usize) -> io::Result<Option<(File, Vec<Piece>)>> {
    let file = open_for_reading(path)?;
    let status = file.metadata()?;
    if !status.is_file() {
        return Ok(None);
    }
    // What has no place yet is in memory anyway.
    let extents = extents::of(&file, false)?;
    let read =
        extents.iter().filter(|extent| !matches!(extent.kind, Kind::Unwritten | Kind::Inline));
    let pieces = read.map(|extent| Piece {
        physical: extent.physical,
        length: extent.length.min(status.len().saturating_sub(extent.logical)),
        file: number,
        logical: extent.logical,
    });
    Ok(Some((file, pieces.collect())))
}

/// Asks for the pieces in the order of the device, and returns the number of their runs.
fn read(open: &[File], mut pieces: Vec<Piece>) -> u64 {
    pieces.sort_by_key(|piece| piece.physical);
    let mut runs = 0;
    let mut end = None;
    let mut asked: Vec<sys::Piece<'_>> = Vec::new();
    for piece in &pieces {
        runs += u64::from(end != Some(piece.physical));
        end = Some((piece.physical + piece.length).next_multiple_of(sys::PAGE_BYTES));
        let piece_end = piece.logical + piece.length;
        // Small blocks may make an extent begin within a page.
        let mut at = piece.logical / sys::PAGE_BYTES * sys::PAGE_BYTES;
        while at < piece_end {
            let length = (piece_end - at).min(TOGETHER_BYTES);
            asked.push(sys::Piece { file: &open[piece.file], offset: at, length });
            at += length;
            let bytes: u64 = asked.iter().map(|piece| piece.length).sum();
            if bytes >= TOGETHER_BYTES || asked.len() >= TOGETHER_PIECES {
                read_together(&mut asked);
            }
        }
    }
    read_together(&mut asked);
    runs
}

/// Bytes requested together: more than any device takes as one request.
const TOGETHER_BYTES: u64 = 4 << 20;
const TOGETHER_PIECES: usize = 512;

fn read_together(asked: &mut Vec<sys::Piece<'_>>) {
    // Advice: a file that cannot be read ahead, say because it does not map, is read when its reader comes.
    let _ = sys::read_ahead(asked);
    asked.clear();
}

/// How many files can be open at once, after asking for as many as this process may have.
pub(crate) fn open_files_max() -> usize {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let now = getrlimit(Resource::Nofile);
    let _ = setrlimit(Resource::Nofile, Rlimit { current: now.maximum, ..now });
    let allowed = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
    allowed.saturating_sub(OPEN_OTHERS).clamp(1, OPEN_MAX) as usize
}
