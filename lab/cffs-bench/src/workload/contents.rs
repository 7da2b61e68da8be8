//! The contents of files: noise, or pieces of real files. A file of noise cannot be compressed alone, but the
//! noise of neighbours overlaps, so they can be compressed together.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context, Result, ensure};

use super::random::Random;

/// The maximum number of bytes of real files in memory.
const REAL_BYTES_MAX: usize = 64 << 20;
/// Bytes from the part of a file in the noise to the part of the next file.
const NOISE_STEP: u64 = 97;
/// The same for real files: the mean size of a file in a source tree, so that neighbours are as similar as
/// there.
const REAL_STEP: u64 = 12_000;

/// A buffer, of which the contents of each file are a part.
#[derive(Clone, Debug)]
pub struct Contents {
    bytes: Arc<[u8]>,
    /// Bytes from the part of a file to the part of the next one.
    step: u64,
}

impl Contents {
    /// Noise for files of up to `max` bytes.
    pub fn new(seed: u64, max: usize) -> Contents {
        let mut random = Random::new(seed);
        let noise = (0..max / 8 + 4096).flat_map(|_| random.number().to_le_bytes()).collect();
        Contents { bytes: noise, step: NOISE_STEP }
    }

    /// The files below `directory`, one after the other in the order of their paths, up to 64 MiB. These
    /// suffice for files of up to 32 MiB.
    pub fn below(directory: &Path) -> Result<Contents> {
        let mut bytes = Vec::new();
        append(directory, &mut bytes)?;
        let enough = bytes.len() >= REAL_BYTES_MAX;
        ensure!(enough, "{} has less than 64 MiB in its files", directory.display());
        bytes.truncate(REAL_BYTES_MAX);
        Ok(Contents { bytes: bytes.into(), step: REAL_STEP })
    }

    /// The contents of the file with this number.
    pub fn of(&self, number: u64, len: usize) -> &[u8] {
        let room = self.bytes.len() - len;
        let at = (number.wrapping_mul(self.step) % (room as u64 + 1)) as usize;
        &self.bytes[at..at + len]
    }
}

/// Appends the files below a directory until there are enough bytes.
fn append(directory: &Path, bytes: &mut Vec<u8>) -> Result<()> {
    let read = || format!("read {}", directory.display());
    let entries: std::io::Result<Vec<_>> = fs::read_dir(directory).with_context(read)?.collect();
    let mut entries = entries.with_context(read)?;
    entries.sort_by_key(fs::DirEntry::file_name);
    for entry in entries {
        if bytes.len() >= REAL_BYTES_MAX {
            break;
        }
        let (path, kind): (PathBuf, _) = (entry.path(), entry.file_type()?);
        if kind.is_dir() {
            append(&path, bytes)?;
        } else if kind.is_file() {
            bytes.extend(fs::read(&path).with_context(|| format!("read {}", path.display()))?);
        }
    }
    Ok(())
}
