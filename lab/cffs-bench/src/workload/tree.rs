//! Files and directories: the basic operations of the workloads.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use super::Tally;

pub fn create(path: &Path, contents: &[u8]) -> io::Result<()> {
    OpenOptions::new().write(true).create_new(true).open(path)?.write_all(contents)
}

/// Replaces a file's contents in place, without truncating it first.
pub fn overwrite(path: &Path, contents: &[u8]) -> io::Result<()> {
    OpenOptions::new().write(true).open(path)?.write_all(contents)
}

/// Reads a whole file into `buffer`, replacing its contents; returns the number of bytes.
pub fn read(path: &Path, buffer: &mut [u8]) -> io::Result<u64> {
    let mut file = File::open(path)?;
    let mut total = 0;
    loop {
        match file.read(buffer)? {
            0 => return Ok(total),
            n => total += n as u64,
        }
    }
}

/// Fetches a file's attributes as du(1) and ls(1) do. The standard library also requests the creation time,
/// which FUSE does not deliver with the others.
pub fn attributes(path: &Path) -> io::Result<()> {
    Ok(rustix::fs::lstat(path).map(drop)?)
}

/// The action of a walk at each file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Visit {
    /// Nothing: only names and types are read, as by find(1).
    Names,
    /// Its attributes are read, as by du(1).
    Attributes,
    /// Its contents are read, as by tar(1).
    Contents,
}

/// Walks a tree in the order in which directories list their entries.
pub fn walk(root: &Path, visit: Visit, tally: &Tally) -> Result<()> {
    let mut buffer = vec![0; 256 << 10];
    let mut pending = vec![root.to_owned()];
    while let Some(dir) = pending.pop() {
        let mut inner = Vec::new();
        for entry in fs::read_dir(&dir).with_context(|| format!("list {}", dir.display()))? {
            let entry = entry?;
            // `d_type`, as find uses it: attributes are fetched only if they are needed.
            if entry.file_type()?.is_dir() {
                inner.push(entry.path());
                continue;
            }
            let bytes = match visit {
                Visit::Names => 0,
                Visit::Attributes => {
                    attributes(&entry.path())?;
                    0
                }
                Visit::Contents if entry.file_type()?.is_file() => {
                    read(&entry.path(), &mut buffer)?
                }
                Visit::Contents => 0,
            };
            if !tally.file(bytes)? {
                return Ok(());
            }
        }
        // The stack is reversed, so that directories are visited in the order in which they are listed.
        pending.extend(inner.into_iter().rev());
    }
    Ok(())
}

pub fn directories(root: &Path, stem: &str, count: u64) -> Result<Vec<PathBuf>> {
    (0..count)
        .map(|i| {
            let dir = root.join(format!("{stem}{i:03}"));
            fs::create_dir(&dir).with_context(|| format!("make {}", dir.display()))?;
            Ok(dir)
        })
        .collect()
}
