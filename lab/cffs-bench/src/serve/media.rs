//! The bytes of an emulated disk, and their loss in a power cut.
//!
//! The bytes are in a backing file. Volatile media remember each write until the next flush, with the
//! overwritten bytes, so that [`Media::cut_power`] can undo any part of them: flushed writes survive, and any
//! sectors of the others may survive, in any order of writing.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;

use anyhow::{Context, Result};
use parking_lot::Mutex;
use rustix::fs::{SeekFrom, seek};
use serde::Serialize;

use crate::workload::random::Random;

/// The unit that a disk writes atomically, in bytes.
const SECTOR_BYTES: u64 = 4096;

/// A write that no flush has covered yet.
struct Unsynced {
    offset: u64,
    before: Vec<u8>,
    after: Vec<u8>,
}

impl Unsynced {
    /// The write's pieces, cut where sectors end, as ranges of its bytes.
    fn sectors(&self) -> impl Iterator<Item = std::ops::Range<usize>> {
        let (offset, len) = (self.offset, self.after.len() as u64);
        let first = SECTOR_BYTES - offset % SECTOR_BYTES;
        let starts = std::iter::once(0).chain((first..len).step_by(SECTOR_BYTES as usize));
        starts.map(move |start| {
            let end = (offset + start) / SECTOR_BYTES * SECTOR_BYTES + SECTOR_BYTES - offset;
            start as usize..end.min(len) as usize
        })
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct PowerCut {
    /// Writes that no flush had covered.
    pub unsynced_writes: u64,
    /// The sectors of these writes. Each counts as often as it was written.
    pub unsynced_sectors: u64,
    pub lost_sectors: u64,
}

/// The bytes of a disk.
pub struct Media {
    backing: File,
    size: u64,
    /// The writes since the last flush; none for media that are not volatile.
    unsynced: Option<Mutex<Vec<Unsynced>>>,
}

impl Media {
    /// `size` bytes in the file at `path`, which is created or resized.
    pub fn open(path: &Path, size: u64) -> Result<Media> {
        let backing = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .open(path)
            .with_context(|| format!("open the backing file {}", path.display()))?;
        backing.set_len(size).context("give the backing file its size")?;
        Ok(Media { backing, size, unsynced: None })
    }

    /// Makes the media volatile, so that their power can be cut.
    pub fn volatile(self) -> Media {
        Media { unsynced: Some(Mutex::default()), ..self }
    }

    pub fn size(&self) -> u64 {
        self.size
    }

    pub fn read(&self, offset: u64, buf: &mut [u8]) -> io::Result<()> {
        self.backing.read_exact_at(buf, offset)
    }

    /// Writes `data`, which ends within the media.
    pub fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        let Some(unsynced) = &self.unsynced else {
            return self.backing.write_all_at(data, offset);
        };
        let mut unsynced = unsynced.lock();
        let mut before = vec![0; data.len()];
        self.backing.read_exact_at(&mut before, offset)?;
        self.backing.write_all_at(data, offset)?;
        unsynced.push(Unsynced { offset, before, after: data.to_vec() });
        Ok(())
    }

    /// Makes everything written so far survive a power cut.
    pub fn flush(&self) {
        if let Some(unsynced) = &self.unsynced {
            unsynced.lock().clear();
        }
    }

    /// Loses a part of the writes since the last flush, chosen by `seed`: all, all but the first
    /// ones, a single write, parts of it, or single sectors. The disk must not be in use
    /// meanwhile.
    pub fn cut_power(&self, seed: u64) -> Result<PowerCut> {
        let unsynced = self.unsynced.as_ref().context("the disk is not volatile")?;
        let writes = std::mem::take(&mut *unsynced.lock());
        lose(&writes, seed, &self.backing)
    }

    /// Writes to the file `copy` the bytes of the disk after a power cut at this moment. The disk itself
    /// continues, so that many moments of one run can be tested.
    pub fn copy_after_cut(&self, seed: u64, copy: &Path) -> Result<PowerCut> {
        let unsynced = self.unsynced.as_ref().context("the disk is not volatile")?;
        // Locked, so that no write happens meanwhile.
        let writes = unsynced.lock();
        let copy = OpenOptions::new().write(true).create(true).truncate(true).open(copy)?;
        copy.set_len(self.size)?;
        copy_data(&self.backing, &copy)?;
        lose(&writes, seed, &copy)
    }
}

/// Copies a file without its holes.
fn copy_data(from: &File, to: &File) -> Result<()> {
    let mut buffer = vec![0; 1 << 20];
    let mut at = 0;
    while let Ok(begin) = seek(from, SeekFrom::Data(at)) {
        let end = seek(from, SeekFrom::Hole(begin))?;
        at = begin;
        while at < end {
            let part = buffer.len().min((end - at) as usize);
            from.read_exact_at(&mut buffer[..part], at)?;
            to.write_all_at(&buffer[..part], at)?;
            at += part as u64;
        }
    }
    Ok(())
}

/// Undoes the writes that `seed` selects.
fn lose(writes: &[Unsynced], seed: u64, file: &File) -> Result<PowerCut> {
    for write in writes.iter().rev() {
        file.write_all_at(&write.before, write.offset)?;
    }
    let mut random = Random::new(seed);
    let way = random.below(6);
    let chosen = random.index(writes.len().max(1));
    let mut cut =
        PowerCut { unsynced_writes: writes.len() as u64, unsynced_sectors: 0, lost_sectors: 0 };
    for (number, write) in writes.iter().enumerate() {
        for sector in write.sectors() {
            let survives = match way {
                0 => false,
                1 => number != chosen,
                2 => number == chosen,
                3 => number < chosen,
                4 => number < chosen || number == chosen && random.below(2) == 0,
                _ => random.below(2) == 0,
            };
            cut.unsynced_sectors += 1;
            if survives {
                let at = write.offset + sector.start as u64;
                file.write_all_at(&write.after[sector], at)?;
            } else {
                cut.lost_sectors += 1;
            }
        }
    }
    Ok(cut)
}
