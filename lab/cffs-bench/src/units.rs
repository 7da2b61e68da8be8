//! The size of clusters: how much is saved, and what a read of one small file costs, by the size of the unit
//! that is compressed, the codec and its level.
//!
//! The contents of a tree are packed as the file system packs them: in the order of directories, files from a
//! fragment on, larger files in pieces. Nothing is written.

use std::fmt;
use std::fs;
use std::io;
use std::path::Path;
use std::str::FromStr;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};

/// Sizes and places on the volume are multiples of this.
const FRAGMENT_BYTES: usize = 1024;
/// The header of a cluster.
const HEADER_BYTES: usize = 64;

/// How units are compressed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Codec {
    Lz4,
    /// Zstandard at this level.
    Zstd(i32),
}

impl fmt::Display for Codec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Codec::Lz4 => write!(f, "lz4"),
            Codec::Zstd(level) => write!(f, "zstd:{level}"),
        }
    }
}

impl FromStr for Codec {
    type Err = String;

    fn from_str(text: &str) -> Result<Codec, String> {
        let level = |text: &str| text.strip_prefix("zstd:")?.parse().ok();
        match text {
            "lz4" => Ok(Codec::Lz4),
            _ => level(text).map(Codec::Zstd).ok_or_else(|| "neither lz4 nor zstd:LEVEL".into()),
        }
    }
}

/// A codec with the memory that it reuses.
enum Compression {
    Lz4,
    Zstd(zstd::bulk::Compressor<'static>, zstd::bulk::Decompressor<'static>),
}

impl Compression {
    fn new(codec: Codec) -> io::Result<Compression> {
        Ok(match codec {
            Codec::Lz4 => Compression::Lz4,
            Codec::Zstd(level) => Compression::Zstd(
                zstd::bulk::Compressor::new(level)?,
                zstd::bulk::Decompressor::new()?,
            ),
        })
    }

    fn compress(&mut self, unit: &[u8]) -> io::Result<Vec<u8>> {
        match self {
            Compression::Lz4 => Ok(lz4_flex::block::compress(unit)),
            Compression::Zstd(compressor, _) => compressor.compress(unit),
        }
    }

    fn expand(&mut self, stored: &[u8], len: usize) -> io::Result<Vec<u8>> {
        match self {
            Compression::Lz4 => lz4_flex::block::decompress(stored, len).map_err(io::Error::other),
            Compression::Zstd(_, decompressor) => decompressor.decompress(stored, len),
        }
    }
}

/// Units of one size, compressed by one codec.
#[derive(Clone, Copy, Debug, Default)]
pub struct Units {
    pub stored_bytes: u64,
    pub compress_seconds: f64,
    /// The units that were stored compressed, and the bytes in them.
    pub expanded: u64,
    pub expanded_bytes: u64,
    pub expand_seconds: f64,
}

/// The contents of a tree, and the sizes of its files.
pub struct Contents {
    files: Vec<Vec<u8>>,
    pub bytes: u64,
}

impl Contents {
    /// Reads the regular files of a tree into memory, directory by directory, sorted by name.
    pub fn of(tree: &Path) -> Result<Contents> {
        let mut contents = Contents { files: Vec::new(), bytes: 0 };
        contents.add(tree)?;
        Ok(contents)
    }

    pub fn files(&self) -> usize {
        self.files.len()
    }

    fn add(&mut self, dir: &Path) -> Result<()> {
        let listed = fs::read_dir(dir).with_context(|| format!("listing {}", dir.display()))?;
        let mut entries = listed.collect::<io::Result<Vec<_>>>()?;
        entries.sort_by_key(fs::DirEntry::file_name);
        let (dirs, others): (Vec<_>, Vec<_>) = entries
            .into_iter()
            .partition(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()));
        for entry in others {
            if entry.file_type()?.is_file() {
                let path = entry.path();
                let read =
                    fs::read(&path).with_context(|| format!("reading {}", path.display()))?;
                self.bytes += read.len() as u64;
                self.files.push(read);
            }
        }
        dirs.iter().try_for_each(|entry| self.add(&entry.path()))
    }

    /// Packs the contents into units of up to this many bytes.
    fn packed(&self, unit_bytes: usize) -> Vec<Vec<u8>> {
        let (mut units, mut unit) = (Vec::new(), Vec::new());
        for piece in self.files.iter().flat_map(|file| file.chunks(unit_bytes)) {
            if unit.len() + piece.len() > unit_bytes {
                units.push(std::mem::take(&mut unit));
            }
            unit.extend_from_slice(piece);
            unit.resize(unit.len().next_multiple_of(FRAGMENT_BYTES).min(unit_bytes), 0);
        }
        units.extend(Some(unit).filter(|unit| !unit.is_empty()));
        units
    }

    /// Compresses all contents and expands them again.
    pub fn measure(&self, unit_bytes: usize, codec: Codec) -> Result<Units> {
        let mut compression = Compression::new(codec)?;
        ensure!(unit_bytes > 0 && self.bytes > 0, "there is nothing to compress");
        let mut measured = Units::default();
        let (mut compressing, mut expanding) = (Duration::ZERO, Duration::ZERO);
        for unit in self.packed(unit_bytes) {
            let begun = Instant::now();
            let stored = compression.compress(&unit)?;
            compressing += begun.elapsed();
            let fragments = |bytes: usize| bytes.next_multiple_of(FRAGMENT_BYTES) as u64;
            let (whole, compressed) =
                (fragments(unit.len()), fragments(HEADER_BYTES + stored.len()));
            // A unit that saves less than an eighth is stored as it is.
            if compressed > whole - whole / 8 {
                measured.stored_bytes += whole;
                continue;
            }
            measured.stored_bytes += compressed;
            measured.expanded += 1;
            measured.expanded_bytes += unit.len() as u64;
            let begun = Instant::now();
            let expanded = compression.expand(&stored, unit.len())?;
            expanding += begun.elapsed();
            assert_eq!(expanded, unit, "a unit is expanded to its contents");
        }
        measured.compress_seconds = compressing.as_secs_f64();
        measured.expand_seconds = expanding.as_secs_f64();
        Ok(measured)
    }
}
