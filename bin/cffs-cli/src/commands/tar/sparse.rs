//! Sparse files in pax archives, in the format of GNU tar: records contain the file's name and size, a map
//! contains the places of its contents, and the entry contains only these contents.
//!
//! Version 1.0 is written, with the map before the contents; 0.0 and 0.1, whose maps are records, are read as
//! well. A reader without support for this format gets a file with another name that begins with the map.

use std::io::Read;
use std::ops::Range;

use anyhow::{Context, bail, ensure};
use cffs::error::Error;
use cffs::files::Node;
use cffs::vfs::types::SeekFor;
use tar_wire::Entry;
use tar_wire::pax::Record;

/// The map is padded to blocks of the archive.
const BLOCK_BYTES: usize = 512;
/// The limit of ranges in a map, 64 MiB of memory: an archive is not trusted.
const RANGES_MAX: u64 = 1 << 22;
/// The digits of the largest number.
const DIGITS_MAX: usize = 20;

/// The ranges of a file that have contents. The rest are holes.
#[derive(Debug, PartialEq, Eq)]
pub struct Map {
    /// The size of the file, including holes.
    pub size: u64,
    /// Sorted, not empty, and disjoint.
    pub data: Vec<Range<u64>>,
}

impl Map {
    /// The map of a file without holes.
    pub fn whole(size: u64) -> Map {
        Map { size, data: Vec::from_iter([Range { start: 0, end: size }]) }
    }

    /// The map of a regular file of a volume.
    pub fn of_file(file: &Node, size: u64) -> Result<Map, Error> {
        let mut data = Vec::new();
        let mut at = 0;
        while at < size {
            let start = match file.seek(at, SeekFor::Data) {
                Ok(start) => start,
                Err(Error::NoData) => break,
                Err(error) => return Err(error),
            };
            at = file.seek(start, SeekFor::Hole)?.min(size);
            data.push(start..at);
        }
        Ok(Map { size, data })
    }

    /// Whether the file has no hole.
    pub fn is_whole(&self) -> bool {
        self.data_bytes() == self.size
    }

    /// The number of bytes outside holes.
    pub fn data_bytes(&self) -> u64 {
        self.data.iter().map(|range| range.end - range.start).sum()
    }

    /// The map in the form that precedes the contents.
    pub fn encoded(&self) -> Vec<u8> {
        // An empty range marks the end of a hole at the end.
        let ends_in_hole = self.data.last().is_none_or(|last| last.end < self.size);
        let end = ends_in_hole.then_some(self.size..self.size);
        let mut text = format!("{}\n", self.data.len() + usize::from(ends_in_hole));
        for range in self.data.iter().chain(&end) {
            text += &format!("{}\n{}\n", range.start, range.end - range.start);
        }
        let mut bytes = text.into_bytes();
        bytes.resize(bytes.len().next_multiple_of(BLOCK_BYTES), 0);
        bytes
    }

    /// The records of a file with this name.
    pub fn records(&self, name: &[u8]) -> Vec<Record> {
        let record =
            |key: &str, value: &[u8]| (format!("GNU.sparse.{key}").into_bytes(), value.to_vec());
        Vec::from_iter([
            record("major", b"1"),
            record("minor", b"0"),
            record("name", name),
            record("realsize", self.size.to_string().as_bytes()),
        ])
    }

    /// The map of an entry whose contents are about to be read; afterwards the input is at the contents.
    /// `None` if its headers mention no holes.
    pub fn of_entry(entry: &Entry, input: &mut impl Read) -> anyhow::Result<Option<Map>> {
        if let Some((size, pieces)) = &entry.gnu_pieces {
            return Map::checked(*size, pieces).map(Some);
        }
        let (mut major, mut size, mut numbers) = (0, None, Vec::new());
        for (key, value) in &entry.records {
            let Some(key) = key.strip_prefix(b"GNU.sparse.") else { continue };
            match key {
                b"major" => major = number(value)?,
                b"realsize" | b"size" => size = Some(number(value)?),
                b"offset" | b"numbytes" => numbers.push(number(value)?),
                // A file that is a single hole has an empty map.
                b"map" if value.is_empty() => numbers.clear(),
                b"map" => {
                    numbers =
                        value.split(|byte| *byte == b',').map(number).collect::<Result<_, _>>()?;
                }
                _ => {}
            }
        }
        match (major, size) {
            (0, None) => Ok(None),
            (0, Some(size)) => Map::checked(size, &numbers).map(Some),
            (1, Some(size)) => Map::checked(size, &read_numbers(input)?).map(Some),
            (1, None) => bail!("a file with holes has no size"),
            _ => bail!("unknown version {major} of files with holes"),
        }
    }

    fn checked(size: u64, numbers: &[u64]) -> anyhow::Result<Map> {
        let mut data = Vec::new();
        let mut last = 0;
        for pair in numbers.chunks(2) {
            let end = match *pair {
                [start, len] if start >= last => start.checked_add(len),
                _ => None,
            };
            let end = end.filter(|end| *end <= size).context(NO_SENSE)?;
            if pair[1] > 0 {
                data.push(pair[0]..end);
            }
            last = end;
        }
        Ok(Map { size, data })
    }
}

const NO_SENSE: &str = "its map of holes is invalid";

fn number(digits: &[u8]) -> anyhow::Result<u64> {
    std::str::from_utf8(digits).ok().and_then(|text| text.parse().ok()).context(NO_SENSE)
}

/// The numbers of a map of version 1.0, and the rest of its last block.
fn read_numbers(input: &mut impl Read) -> anyhow::Result<Vec<u64>> {
    let (mut digits, mut numbers, mut count) = (Vec::new(), Vec::new(), None);
    let mut block = [0; BLOCK_BYTES];
    loop {
        input.read_exact(&mut block).context("its map of holes is cut off")?;
        for byte in block {
            if byte != b'\n' {
                ensure!(digits.len() < DIGITS_MAX, NO_SENSE);
                digits.push(byte);
                continue;
            }
            let read = number(&digits)?;
            digits.clear();
            let wanted = *count.get_or_insert(read);
            ensure!(wanted <= RANGES_MAX, "more than {RANGES_MAX} pieces between its holes");
            numbers.push(read);
            // The count comes first.
            if numbers.len() as u64 > wanted * 2 {
                numbers.remove(0);
                return Ok(numbers);
            }
        }
    }
}
