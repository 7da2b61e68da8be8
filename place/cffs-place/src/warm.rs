//! Reads files in device order.
//!
//! A plain reader follows the order of the names, and waits for each request before it sends the next. This
//! module first reads the inodes in their order, finds the extents, and then requests them in device order
//! without waiting in between: the kernel merges adjacent requests, and the arm moves in one direction. The
//! contents stay in the page cache for the next program.

use std::fs::File;
use std::io;
use std::os::unix::fs::{DirEntryExt, MetadataExt};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use serde::Serialize;

use crate::extents::{self, Kind};
use crate::sys;
use crate::tree::{Unseen, open_for_reading};

pub type ByInode = (u64, PathBuf);

/// The files and bytes read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Warmed {
    pub files: u64,
    pub bytes: u64,
    /// The contiguous runs of these bytes on the device.
    pub runs: u64,
    /// Files left out because of the limit.
    pub left_out: u64,
}

/// The files below some paths, by inode, and the paths that could not be read. A path may be a file itself.
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

/// Lists without opening a file: directory entries contain inode numbers.
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

/// A piece to read: its place on the device, its file, and its offset there.
struct Piece {
    physical: u64,
    length: u64,
    file: usize,
    logical: u64,
}

/// The most files open at once, if the system allows that; more are read in several rounds.
const OPEN_MAX: u64 = 4096;
/// Descriptors left for other parts of the program.
const OPEN_OTHERS: u64 = 64;

/// Reads files, given with their inodes, up to `bytes_max`. Calls `seen` for each file once its reads are
/// requested.
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
    // Contents without blocks are in memory anyway.
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

/// Requests the pieces in device order, and returns the number of their runs.
fn read(open: &[File], mut pieces: Vec<Piece>) -> u64 {
    pieces.sort_by_key(|piece| piece.physical);
    let mut runs = 0;
    let mut end = None;
    let mut asked: Vec<sys::Piece<'_>> = Vec::new();
    for piece in &pieces {
        runs += u64::from(end != Some(piece.physical));
        end = Some((piece.physical + piece.length).next_multiple_of(sys::PAGE_BYTES));
        let piece_end = piece.logical + piece.length;
        // With blocks smaller than a page, an extent may begin within a page.
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
    // Only advice: a file that cannot be read ahead, for example because it cannot be mapped, is read later.
    let _ = sys::read_ahead(asked);
    asked.clear();
}

/// How many files can be open at once, after raising the limit as far as allowed.
pub(crate) fn open_files_max() -> usize {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let now = getrlimit(Resource::Nofile);
    let _ = setrlimit(Resource::Nofile, Rlimit { current: now.maximum, ..now });
    let allowed = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
    allowed.saturating_sub(OPEN_OTHERS).clamp(1, OPEN_MAX) as usize
}
