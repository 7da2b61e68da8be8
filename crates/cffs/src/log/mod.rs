//! The stable log: an epoch is durable after one write in one place (FORMAT: the stable log;
//! decisions/023).
//!
//! Offers [`LoggedDevice`], a device that does what the one below cannot: write blocks anywhere all
//! or none. It writes them into the log, and to their own places, *home*, later: it *drains* the log when
//! that is full, and whenever one of the rules below wants it. Until then reads get them from memory.
//! [`attach`] puts it on a volume that has a log, [`erase`] makes a log empty. Stands on `device` and
//! `format`.
//!
//! ```text
//!   log:   header │ header again │ record 0 of its era │ record 1 │ what is left of eras before
//!   drain: images go home ─ sync ─ next header ─ sync ─ next header again: the log is empty
//! ```
//!
//! Rules, by which a volume may be read with the log's images over it after any crash:
//!
//! 1. While a block has an image in the log, only draining writes it at home; any other
//!    write there drains first.
//! 2. Before a record is written, everything written past the log is durable.
//! 3. The log is made empty only when what it had is durable at home.
//! 4. Block 0, the superblock, is in no record, and writing it drains first: so a volume that is
//!    clean has an empty log.

use std::collections::BTreeMap;
use std::io::{self, IoSlice};
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use parking_lot::{Mutex, RwLock};

use crate::device::{BlockDevice, Geometry, LogState, LogStats};
use crate::error::{Corruption, Result};
use crate::format::log::{
    Entry, HEADER_BLOCKS, Header, Place, Record, entries_max, image_checksum,
};
use crate::format::superblock::{Incompat, SUPERBLOCK_BYTES};
use crate::format::{Checksum, Superblock};
use crate::units::BlockNo;

mod load;
#[cfg(test)]
mod tests;

/// The longest request that is put together from images that lie side by side at home.
const REQUEST_BYTES_MAX: usize = 1 << 20;
/// So much of the log is in memory at most: more is drained.
const LIVE_BYTES_MAX: usize = 32 << 20;

/// The images of blocks, by their places.
type Images = BTreeMap<u64, Arc<[u8]>>;

/// Where a log lies, and how its blocks are sealed.
#[derive(Clone, Copy)]
struct Area {
    start: u64,
    blocks: u32,
    block_bytes: usize,
    /// The blocks of the volume.
    volume_blocks: u64,
    checksum: Checksum,
    hash_seed: [u8; 16],
}

impl Area {
    fn of(superblock: &Superblock) -> Area {
        Area {
            start: superblock.log.start,
            blocks: superblock.log.blocks,
            block_bytes: superblock.block_bytes as usize,
            volume_blocks: superblock.blocks,
            checksum: superblock.checksum(),
            hash_seed: superblock.hash_seed,
        }
    }

    /// The byte at which a block of the log lies.
    fn offset(&self, block: u32) -> u64 {
        (self.start + u64::from(block)) * self.block_bytes as u64
    }

    fn holds(&self, block: u64) -> bool {
        (self.start..self.start + u64::from(self.blocks)).contains(&block)
    }

    /// The most images of a record.
    fn images_max(&self) -> u32 {
        entries_max(self.block_bytes as u32).min(self.blocks - HEADER_BLOCKS - 1)
    }

    fn write_header(&self, device: &dyn BlockDevice, at: u32, header: Header) -> io::Result<()> {
        let mut block = vec![0; self.block_bytes];
        header.encode_into(&mut block, self.checksum);
        device.write_at(self.offset(at), &[IoSlice::new(&block)])
    }
}

/// Whether the volume has a log.
pub fn has_log(superblock: &Superblock) -> bool {
    superblock.incompat.contains(Incompat::LOG)
}

/// Where the log of a volume lies, in bytes; nowhere, if it has none.
pub fn area_bytes(superblock: &Superblock) -> Range<u64> {
    if !has_log(superblock) {
        return 0..0;
    }
    let area = Area::of(superblock);
    area.offset(0)..area.offset(area.blocks)
}

/// Makes the log of a volume empty, whatever lies there. All its blocks are written, so that those
/// of an image are allocated by the file system below once and for all.
///
/// # Errors
///
/// Those of the device.
pub fn erase(device: &dyn BlockDevice, superblock: &Superblock) -> io::Result<()> {
    let area = Area::of(superblock);
    let zeros = vec![0; REQUEST_BYTES_MAX];
    let (mut at, end) = (area.offset(0), area.offset(area.blocks));
    while at < end {
        let len = (end - at).min(zeros.len() as u64);
        device.write_at(at, &[IoSlice::new(&zeros[..len as usize])])?;
        at += len;
    }
    // A header that is there before the zeros are could lead to records that were there before them.
    device.sync()?;
    for at in 0..HEADER_BLOCKS {
        area.write_header(device, at, Header::new(1, &area.hash_seed, area.blocks))?;
    }
    device.sync()
}

/// The device with the volume's log over it, if the volume has one and the device is not such a one
/// already. A superblock that cannot be used is left to its next reader.
///
/// # Errors
///
/// Those of the device; [`Corruption::LogHeader`] and [`Corruption::LogRecord`].
pub fn attach(device: Arc<dyn BlockDevice>) -> Result<Arc<dyn BlockDevice>> {
    if device.atomic_bytes_max() > 0 {
        return Ok(device);
    }
    let mut bytes = [0; SUPERBLOCK_BYTES];
    if device.geometry().size_bytes < bytes.len() as u64 {
        return Ok(device);
    }
    device.read_at(0, &mut bytes)?;
    match Superblock::decode(&bytes, 0) {
        Ok(superblock) if has_log(&superblock) => match LoggedDevice::open(device, &superblock) {
            (device, None) => Ok(Arc::new(device)),
            (_, Some(doubt)) => Err(doubt.into()),
        },
        _ => Ok(device),
    }
}

/// A device with the stable log of its volume.
pub struct LoggedDevice<D> {
    inner: D,
    area: Area,
    /// What the log has that is not at home yet. Never waited for with I/O under way.
    live: RwLock<Images>,
    /// Held while the log is written or drained.
    writer: Mutex<Writer>,
    /// Whether something was written past the log that is not known to be durable.
    is_unsynced: AtomicBool,
    /// Whether the log is written, and what it did. Never waited for with I/O under way.
    stats: Mutex<LogStats>,
}

/// Where the log goes on.
struct Writer {
    header: Header,
    /// Whether the header is on the device, and so records may follow it.
    has_begun: bool,
    /// The first block of the log that has no record.
    next: u32,
    place: Place,
}

impl Writer {
    /// Begins a new era with this header.
    fn begin(&mut self, header: Header) {
        self.header = header;
        self.has_begun = true;
        self.place = Place { era: header.era, sequence: 0, previous: 0 };
        self.next = HEADER_BLOCKS;
    }
}

impl<D: BlockDevice> LoggedDevice<D> {
    /// Puts its log over the device of a volume: what the log has is read into memory. Nothing is
    /// written before somebody writes.
    ///
    /// If the log is damaged, the device has what comes before the damage, and the damage is returned,
    /// too. Its user must check the whole volume then, and [`erase`] the log.
    pub fn open(inner: D, superblock: &Superblock) -> (Self, Option<Corruption>) {
        let area = Area::of(superblock);
        let loaded = load::load(&inner, &area);
        // Without a header nothing says which eras there were, so no record can be distinguished from one of
        // long ago.
        let state = match loaded.header {
            Some(_) => LogState::On,
            None => LogState::Off,
        };
        let live_bytes = (loaded.images.len() * area.block_bytes) as u64;
        let stats =
            LogStats { state, live_bytes, live_bytes_max: live_bytes, ..LogStats::default() };
        let header = loaded.header.unwrap_or(Header::new(0, &area.hash_seed, area.blocks));
        let device = LoggedDevice {
            inner,
            area,
            live: RwLock::new(loaded.images),
            writer: Mutex::new(Writer {
                header,
                has_begun: false,
                next: HEADER_BLOCKS,
                place: Place { era: header.era, sequence: 0, previous: 0 },
            }),
            is_unsynced: AtomicBool::new(true),
            stats: Mutex::new(stats),
        };
        (device, loaded.doubt)
    }

    /// The device below.
    pub fn inner(&self) -> &D {
        &self.inner
    }

    /// The blocks that the log has and home has not.
    pub fn live_blocks(&self) -> usize {
        self.live.read().len()
    }

    fn state(&self) -> LogState {
        self.stats.lock().state
    }

    /// Brings everything home, and makes the log empty.
    fn drain(&self, writer: &mut Writer) -> io::Result<()> {
        let live: Vec<(u64, Arc<[u8]>)> =
            self.live.read().iter().map(|(at, image)| (*at, Arc::clone(image))).collect();
        let mut rest = &live[..];
        while !rest.is_empty() {
            let (run, after) = rest.split_at(self.run_len(rest));
            let slices: Vec<IoSlice<'_>> =
                run.iter().map(|(_, image)| IoSlice::new(image)).collect();
            self.inner.write_at(run[0].0, &slices)?;
            rest = after;
        }
        self.flush()?;
        let header =
            Header::new(writer.header.sequence + 1, &self.area.hash_seed, self.area.blocks);
        self.area.write_header(&self.inner, 0, header)?;
        self.flush()?;
        // Should the first be damaged one day, what was there before must not count again.
        self.area.write_header(&self.inner, 1, header)?;
        writer.begin(header);
        self.live.write().clear();
        let mut stats = self.stats.lock();
        stats.drains += 1;
        stats.drained_bytes += stats.live_bytes;
        stats.live_bytes = 0;
        Ok(())
    }

    /// How many of the images at the head of the list lie side by side, and make one request.
    fn run_len(&self, images: &[(u64, Arc<[u8]>)]) -> usize {
        let block_bytes = self.area.block_bytes;
        let limit = (REQUEST_BYTES_MAX / block_bytes).max(1);
        let first = images[0].0;
        let expected = (0..).map(|index| first + index * block_bytes as u64);
        images.iter().zip(expected).take(limit).take_while(|((at, _), next)| at == next).count()
    }

    /// Has the device make everything durable; the caller holds the writer.
    fn flush(&self) -> io::Result<()> {
        self.is_unsynced.store(false, Ordering::Release);
        let result = self.inner.sync();
        if result.is_err() {
            // Linux reports a lost write once, and a later success does not cover it.
            self.stats.lock().state = LogState::Failed;
        }
        result
    }

    /// Whether these bytes are, in part, those of a block in the log, or of the superblock while there
    /// are any.
    fn must_drain(&self, offset: u64, len: u64) -> bool {
        let live = self.live.read();
        let block_bytes = self.area.block_bytes as u64;
        let from = (offset + 1).saturating_sub(block_bytes);
        let is_superblock = offset < block_bytes && !live.is_empty();
        is_superblock || live.range(from..offset.saturating_add(len)).next().is_some()
    }

    /// Makes a change past the log.
    fn bypass<T>(
        &self,
        offset: u64,
        len: u64,
        change: impl FnOnce() -> io::Result<T>,
    ) -> io::Result<T> {
        if len > 0 && self.must_drain(offset, len) {
            let mut writer = self.writer.lock();
            // Another may have done so meanwhile.
            if self.must_drain(offset, len) {
                self.drain(&mut writer)?;
                let is_superblock = offset < self.area.block_bytes as u64;
                self.stats.lock().drains_overlap += u64::from(!is_superblock);
            }
        }
        let result = change();
        self.is_unsynced.store(true, Ordering::Release);
        result
    }

    /// Whether these can be a record of this log.
    fn fits(&self, blocks: &[(u64, &[u8])]) -> bool {
        let block_bytes = self.area.block_bytes;
        let is_loggable = |(offset, image): &(u64, &[u8])| {
            let number = offset / block_bytes as u64;
            image.len() == block_bytes
                && offset.is_multiple_of(block_bytes as u64)
                && (1..self.area.volume_blocks).contains(&number)
                && !self.area.holds(number)
        };
        (1..=self.area.images_max() as usize).contains(&blocks.len())
            && blocks.iter().all(is_loggable)
    }

    /// The first block of the next record.
    fn record(&self, writer: &Writer, blocks: &[(u64, &[u8])]) -> (Vec<u8>, u32) {
        let entry = |(offset, image): &(u64, &[u8])| Entry {
            block: BlockNo(offset / self.area.block_bytes as u64),
            checksum: image_checksum(image),
        };
        let record = Record { place: writer.place, entries: blocks.iter().map(entry).collect() };
        let mut block = vec![0; self.area.block_bytes];
        let checksum = record.encode_into(&mut block, self.area.checksum);
        (block, checksum)
    }

    fn write_record(&self, writer: &mut Writer, blocks: &[(u64, &[u8])]) -> io::Result<bool> {
        let mut flushes = 1;
        if self.is_unsynced.load(Ordering::Acquire) {
            self.flush()?;
            flushes += 1;
        }
        let (head, checksum) = self.record(writer, blocks);
        let images = blocks.iter().map(|(_, image)| IoSlice::new(image));
        let slices: Vec<IoSlice<'_>> = std::iter::once(IoSlice::new(&head)).chain(images).collect();
        if let Err(error) = self.inner.write_at(self.area.offset(writer.next), &slices) {
            tracing::warn!("the log cannot be written ({error}); the volume goes on without it");
            self.stats.lock().failures += 1;
            // The next header makes whatever arrived of the record void.
            self.drain(writer)?;
            self.stats.lock().state = LogState::Off;
            return Ok(false);
        }
        self.flush()?;
        writer.next += 1 + blocks.len() as u32;
        writer.place =
            Place { sequence: writer.place.sequence + 1, previous: checksum, ..writer.place };
        let live_blocks = {
            let mut live = self.live.write();
            live.extend(blocks.iter().map(|(at, image)| (*at, Arc::from(*image))));
            live.len()
        };
        self.count_record(blocks.len(), live_blocks, flushes);
        Ok(true)
    }

    /// Notes a record of so many images, after which so many are live.
    fn count_record(&self, images: usize, live_blocks: usize, flushes: u64) {
        let bytes_of = |blocks: usize| (blocks * self.area.block_bytes) as u64;
        let mut stats = self.stats.lock();
        stats.records += 1;
        stats.written_bytes += bytes_of(1 + images);
        stats.flushes += flushes;
        stats.images += images as u64;
        // Each that did not take another's place has one of its own.
        let added = (bytes_of(live_blocks) - stats.live_bytes) / self.area.block_bytes as u64;
        stats.superseded_images += images as u64 - added;
        stats.live_bytes = bytes_of(live_blocks);
        stats.live_bytes_max = stats.live_bytes_max.max(stats.live_bytes);
    }
}

impl<D: BlockDevice> BlockDevice for LoggedDevice<D> {
    fn geometry(&self) -> Geometry {
        self.inner.geometry()
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<()> {
        let end = offset.saturating_add(buf.len() as u64);
        let from = (offset + 1).saturating_sub(self.area.block_bytes as u64);
        // Taken before home is read: what is not in the log any more is at home by then.
        let images: Vec<(u64, Arc<[u8]>)> = {
            let live = self.live.read();
            live.range(from..end).map(|(at, image)| (*at, Arc::clone(image))).collect()
        };
        self.inner.read_at(offset, buf)?;
        for (at, image) in images {
            let (first, last) = (offset.max(at), end.min(at + image.len() as u64));
            let (from, to) = ((first - offset) as usize, (last - offset) as usize);
            buf[from..to].copy_from_slice(&image[(first - at) as usize..(last - at) as usize]);
        }
        Ok(())
    }

    fn write_at(&self, offset: u64, bufs: &[IoSlice<'_>]) -> io::Result<()> {
        let len = bufs.iter().map(|buf| buf.len() as u64).sum();
        self.bypass(offset, len, || self.inner.write_at(offset, bufs))
    }

    fn barrier(&self) -> io::Result<()> {
        self.inner.barrier()
    }

    fn sync(&self) -> io::Result<()> {
        let _writer = self.writer.lock();
        self.flush()
    }

    fn discard(&self, offset: u64, len: u64) -> io::Result<()> {
        self.bypass(offset, len, || self.inner.discard(offset, len))
    }

    fn below(&self) -> Option<&dyn BlockDevice> {
        Some(&self.inner)
    }

    fn atomic_bytes_max(&self) -> u64 {
        u64::from(self.area.images_max()) * self.area.block_bytes as u64
    }

    fn stop_log(&self) -> io::Result<()> {
        let writer = &mut *self.writer.lock();
        match self.state() {
            LogState::On => {
                self.drain(writer)?;
                self.stats.lock().state = LogState::Off;
                Ok(())
            }
            LogState::Off => Ok(()),
            LogState::Failed => Err(after_failed_sync()),
        }
    }

    fn log_stats(&self) -> Option<LogStats> {
        Some(*self.stats.lock())
    }

    fn write_atomic(&self, blocks: &[(u64, &[u8])]) -> io::Result<bool> {
        if !self.fits(blocks) {
            return Ok(false);
        }
        let began = Instant::now();
        let writer = &mut *self.writer.lock();
        match self.state() {
            LogState::On => {}
            LogState::Off => return Ok(false),
            LogState::Failed => {
                return Err(after_failed_sync());
            }
        }
        let live_bytes = (self.live.read().len() + blocks.len()) * self.area.block_bytes;
        let is_full = writer.next + 1 + blocks.len() as u32 > self.area.blocks;
        let is_full = is_full || live_bytes > LIVE_BYTES_MAX;
        if !writer.has_begun || is_full {
            self.drain(writer)?;
            self.stats.lock().drains_full += u64::from(is_full);
        }
        let is_written = self.write_record(writer, blocks)?;
        if is_written {
            self.stats.lock().commits.add(began.elapsed());
        }
        Ok(is_written)
    }
}

fn after_failed_sync() -> io::Error {
    io::Error::other("the log is not written after a sync that failed")
}
