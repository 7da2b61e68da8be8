//! The device that writes a journal: records, draining, and abandoning the journal.

use std::io::{self, IoSlice};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::RwLock;

use super::area::{Area, Images, Noted};
use super::writer::Writer;
use super::{REQUEST_BYTES_MAX, load};
use crate::device::{BlockDevice, Geometry, Journal, JournalState, JournalStats};
use crate::error::Corruption;
use crate::format::Superblock;
use crate::format::journal::{Entry, Place, Record, image_checksum};
use crate::format::superblock::{JournalFlags, SUPERBLOCK_BYTES};
use crate::lock::{self, Rank};
use crate::units::BlockNo;

/// The most bytes of the journal that are kept in memory; beyond that, it is drained.
const LIVE_BYTES_MAX: usize = 32 << 20;

/// A device with the journal of its volume.
pub struct JournaledDevice<D> {
    inner: D,
    /// The device that has the journal, if it is another.
    medium: Option<Arc<dyn BlockDevice>>,
    area: Area,
    /// The number of blocks of the volume, by the last superblock: the volume may grow.
    volume_blocks: AtomicU64,
    /// Images in the journal that are not at their places yet. This lock is never held during I/O.
    live: RwLock<Images>,
    /// Held while the journal is written or drained.
    writer: lock::Mutex<Writer>,
    /// Whether a write bypassed the journal and is not known to be durable.
    is_unsynced: AtomicBool,
    /// Whether the superblock says that nothing in the journal counts.
    is_unused: AtomicBool,
    /// Whether the journal is in use, and its counters. This lock is never held during I/O.
    stats: parking_lot::Mutex<JournalStats>,
}

impl<D: BlockDevice> JournaledDevice<D> {
    /// Puts the journal over the device of a volume that contains it, and reads the journal's images into
    /// memory. Nothing is written before the first write.
    ///
    /// If the journal is damaged, the device uses the records before the damage, and the damage is returned,
    /// too. The caller must then check the whole volume, and [`erase`](super::erase) the journal.
    pub fn open(inner: D, superblock: &Superblock) -> (Self, Option<Corruption>) {
        JournaledDevice::open_with(inner, None, superblock)
    }

    /// The same with a journal on another device, the volume's [`medium`](super::medium).
    pub fn open_with(
        inner: D,
        medium: Option<Arc<dyn BlockDevice>>,
        superblock: &Superblock,
    ) -> (Self, Option<Corruption>) {
        let area = Area::of(superblock);
        let is_unused = superblock.journal.flags.contains(JournalFlags::UNUSED);
        // The journal of a clean volume is empty, without even a part of a record, since no record is written
        // before the volume is marked as in use.
        let (is_clean, noted) = load::own_state(&inner);
        let journal = medium.as_deref().unwrap_or(&inner);
        let has_records = !is_clean && !is_unused;
        let mut loaded = load::load(journal, &area, has_records);
        if has_records {
            loaded.drop_if_not_of(noted, medium.is_some());
        }
        // Without a header the eras are unknown, so a new record could not be distinguished from an old one.
        let state = match loaded.header {
            Some(_) => JournalState::On,
            None => JournalState::Off,
        };
        let doubt = loaded.doubt.filter(|_| !is_unused);
        let live_bytes = (loaded.images.len() * area.block_bytes) as u64;
        let stats = JournalStats {
            state,
            live_bytes,
            live_bytes_max: live_bytes,
            ..JournalStats::default()
        };
        // A journal whose contents do not count may be of any age. No number is used twice.
        let newer = loaded.header.filter(|header| header.sequence >= noted.sequence);
        let header = newer.unwrap_or(area.header(noted));
        let is_noted = noted.sequence == 0 || is_unused || Noted::from(header) == noted;
        let device = JournaledDevice {
            inner,
            medium,
            area,
            volume_blocks: AtomicU64::new(superblock.blocks),
            live: RwLock::new(loaded.images),
            writer: lock::Mutex::new(Rank::Journal, Writer::new(&area, header, is_noted)),
            is_unsynced: AtomicBool::new(true),
            is_unused: AtomicBool::new(is_unused),
            stats: parking_lot::Mutex::new(stats),
        };
        (device, doubt)
    }

    /// The invariants of the journal, which debug builds check after each change of it.
    fn check(&self, writer: &Writer) {
        writer.check();
        let live = self.live.read();
        let stats = self.stats.lock();
        let bytes = (live.len() * self.area.block_bytes) as u64;
        assert_eq!(stats.live_bytes, bytes, "what is live is counted");
        assert!(stats.live_bytes <= stats.live_bytes_max, "the most that was live");
        let is_block = |(at, image): (&u64, &Arc<[u8]>)| {
            at.is_multiple_of(self.area.block_bytes as u64) && image.len() == self.area.block_bytes
        };
        assert!(live.iter().all(is_block), "whole blocks are live");
        let blocks = self.volume_blocks.load(Ordering::Acquire);
        let is_home = |at: &u64| self.area.is_home(at / self.area.block_bytes as u64, blocks);
        assert!(live.keys().all(is_home), "no block of the journal and no superblock is live");
    }

    /// The device below.
    pub fn inner(&self) -> &D {
        &self.inner
    }

    /// The blocks that the journal has and home has not.
    pub fn live_blocks(&self) -> usize {
        self.live.read().len()
    }

    fn state(&self) -> JournalState {
        self.stats.lock().state
    }

    /// The device that the journal is written to.
    fn medium(&self) -> &dyn BlockDevice {
        self.medium.as_deref().unwrap_or(&self.inner)
    }

    /// Writes all images home, empties the journal, and records its new header in the superblock.
    fn drain(&self, writer: &mut Writer) -> io::Result<()> {
        self.empty(writer)?;
        if self.is_unused.load(Ordering::Acquire) {
            return Ok(());
        }
        self.note(writer)?;
        // On the same device, this becomes durable with the next record. On another device, that record could
        // be newer than the volume.
        if self.medium.is_some() {
            self.is_unsynced.store(true, Ordering::Release);
        }
        Ok(())
    }

    /// Notes the header in the superblock.
    fn note(&self, writer: &mut Writer) -> io::Result<()> {
        self.change_superblock(|superblock| Noted::from(writer.header).put(superblock))?;
        writer.is_noted = true;
        Ok(())
    }

    /// Writes all images home, and empties the journal.
    fn empty(&self, writer: &mut Writer) -> io::Result<()> {
        let began = self.inner.elapsed();
        self.write_home()?;
        match self.begin_era(writer) {
            Err(error) if self.state() == JournalState::On => self.give_up(&error)?,
            begun => begun?,
        }
        self.forget();
        self.stats.lock().drain_time += self.inner.elapsed().saturating_sub(began);
        if cfg!(debug_assertions) {
            self.check(writer);
        }
        Ok(())
    }

    /// The same while a writer waits; the time is counted under this kind.
    fn drain_for_writer(
        &self,
        writer: &mut Writer,
        kind: impl FnOnce(&mut JournalStats) -> &mut u64,
    ) -> io::Result<()> {
        let began = self.elapsed();
        self.drain(writer)?;
        let took = self.elapsed().saturating_sub(began);
        let mut stats = self.stats.lock();
        *kind(&mut stats) += 1;
        stats.stalled += took;
        Ok(())
    }

    /// Drops the images that are at home.
    fn forget(&self) {
        self.live.write().clear();
        let mut stats = self.stats.lock();
        stats.drains += 1;
        stats.drained_bytes += stats.live_bytes;
        stats.live_bytes = 0;
    }

    /// Writes all images of the journal home, durably.
    fn write_home(&self) -> io::Result<()> {
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
        self.flush()
    }

    /// Empties the journal durably, and begins a new era.
    fn begin_era(&self, writer: &mut Writer) -> io::Result<()> {
        if !writer.is_noted {
            self.note(writer)?;
            self.is_unsynced.store(true, Ordering::Release);
        }
        // The record may be another process's, and not be durable.
        if self.is_unsynced.load(Ordering::Acquire) {
            self.flush()?;
        }
        let header = self.area.next_header(&writer.header, &self.inner);
        // In both places: if one of them is damaged later, the previous header must not count again.
        self.area.write_headers(self.medium(), header)?;
        self.flush_journal()?;
        writer.begin(header);
        Ok(())
    }

    /// Marks the journal as unused in the superblock, after all images were written home: it can no longer be
    /// emptied.
    fn give_up(&self, why: &io::Error) -> io::Result<()> {
        tracing::warn!("the journal cannot be emptied ({why}); the volume continues without it");
        self.change_superblock(|superblock| superblock.journal.flags |= JournalFlags::UNUSED)?;
        self.flush()?;
        self.is_unused.store(true, Ordering::Release);
        let mut stats = self.stats.lock();
        stats.failures += 1;
        stats.state = JournalState::Off;
        Ok(())
    }

    /// Changes the superblock as it is on the device, not as in memory: another program may have taken the
    /// volume over.
    fn change_superblock(&self, change: impl FnOnce(&mut Superblock)) -> io::Result<()> {
        let mut sector = vec![0; SUPERBLOCK_BYTES.max(self.geometry().sector_bytes as usize)];
        self.inner.control().drop_cached(0, sector.len() as u64);
        self.inner.read_at(0, &mut sector)?;
        let mut superblock = Superblock::decode(&sector, 0).map_err(io::Error::other)?;
        change(&mut superblock);
        sector[..SUPERBLOCK_BYTES].copy_from_slice(&superblock.encode());
        self.inner.write_at(0, &[IoSlice::new(&sector)])
    }

    /// How many of the images at the head of the list are side by side, and make one request.
    fn run_len(&self, images: &[(u64, Arc<[u8]>)]) -> usize {
        let block_bytes = self.area.block_bytes;
        let limit = (REQUEST_BYTES_MAX / block_bytes).max(1);
        let first = images[0].0;
        let expected = (0..).map(|index| first + index * block_bytes as u64);
        images.iter().zip(expected).take(limit).take_while(|((at, _), next)| at == next).count()
    }

    /// Makes everything on the journal's device durable.
    fn flush_journal(&self) -> io::Result<()> {
        match &self.medium {
            // A failure there does not affect the home device.
            Some(medium) => medium.sync(),
            None => self.flush(),
        }
    }

    /// Makes everything on the volume's device durable; the caller holds the writer.
    fn flush(&self) -> io::Result<()> {
        self.is_unsynced.store(false, Ordering::Release);
        let result = self.inner.sync();
        if result.is_err() {
            // Linux reports a lost write once; a later success does not mean that it was repeated.
            self.stats.lock().state = JournalState::Failed;
        }
        result
    }

    /// Whether these bytes overlap a block in the journal, or the superblock while the journal has any
    /// blocks.
    fn must_drain(&self, offset: u64, len: u64) -> bool {
        let live = self.live.read();
        let block_bytes = self.area.block_bytes as u64;
        let from = (offset + 1).saturating_sub(block_bytes);
        let is_superblock = offset < block_bytes && !live.is_empty();
        is_superblock || live.range(from..offset.saturating_add(len)).next().is_some()
    }

    /// Makes a change past the journal.
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
                let is_superblock = offset < self.area.block_bytes as u64;
                match is_superblock {
                    true => self.drain(&mut writer)?,
                    false => {
                        self.drain_for_writer(&mut writer, |stats| &mut stats.drains_overlap)?
                    }
                }
            }
        }
        let result = change();
        self.is_unsynced.store(true, Ordering::Release);
        result
    }

    /// Writes block 0, with the state of the journal in its superblock.
    fn write_superblock(&self, block: &[u8], mut superblock: Superblock) -> io::Result<()> {
        let writer = &mut *self.writer.lock();
        if !self.live.read().is_empty() {
            self.empty(writer)?;
        }
        // From this superblock on, the journal counts again, or is in use.
        if self.state() == JournalState::On
            && (self.is_unused.load(Ordering::Acquire) || !writer.has_begun)
            && let Err(error) = self.begin_era(writer)
        {
            tracing::warn!(
                "the journal cannot be written ({error}); the volume continues without it"
            );
            self.stats.lock().state = JournalState::Off;
        }
        let is_unused = self.state() != JournalState::On;
        superblock.journal.flags.set(JournalFlags::UNUSED, is_unused);
        Noted::from(writer.header).put(&mut superblock);
        let encoded = superblock.encode();
        let rest = IoSlice::new(&block[encoded.len()..]);
        let result = self.inner.write_at(0, &[IoSlice::new(&encoded), rest]);
        self.is_unsynced.store(true, Ordering::Release);
        self.is_unused.store(is_unused, Ordering::Release);
        if result.is_ok() {
            // A record waits until this is durable, as for every write that bypasses the journal.
            writer.is_noted = true;
            self.volume_blocks.store(superblock.blocks, Ordering::Release);
        }
        result
    }

    /// Whether these can be a record of this journal.
    fn fits(&self, blocks: &[(u64, &[u8])]) -> bool {
        let block_bytes = self.area.block_bytes;
        let volume_blocks = self.volume_blocks.load(Ordering::Acquire);
        let is_loggable = |(offset, image): &(u64, &[u8])| {
            image.len() == block_bytes
                && offset.is_multiple_of(block_bytes as u64)
                && self.area.is_home(offset / block_bytes as u64, volume_blocks)
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

    /// The gap before the next record, in blocks; 0 if another write has to be made durable first, since
    /// the head is then elsewhere.
    fn gap(&self, writer: &Writer) -> u32 {
        match writer.has_begun && !self.is_unsynced.load(Ordering::Acquire) {
            true => writer.gaps.next(),
            false => 0,
        }
    }

    /// Writes a record at a place, which may be a gap after the last record.
    fn write_record(
        &self,
        writer: &mut Writer,
        (at, is_behind): (u32, bool),
        blocks: &[(u64, &[u8])],
    ) -> io::Result<bool> {
        let mut flushes = 1;
        if self.is_unsynced.load(Ordering::Acquire) {
            self.flush()?;
            flushes += 1;
        }
        let began = self.elapsed();
        debug_assert!(writer.has_begun, "a record follows a header");
        debug_assert!(
            at + 1 + blocks.len() as u32 <= self.area.blocks,
            "a record leaves the journal"
        );
        let (head, checksum) = self.record(writer, blocks);
        let images = blocks.iter().map(|(_, image)| IoSlice::new(image));
        let slices: Vec<IoSlice<'_>> = std::iter::once(IoSlice::new(&head)).chain(images).collect();
        let written = self.medium().write_at(self.area.offset(at), &slices);
        // A failed sync of the volume's own device ends all writes; one of another device does not.
        let written = match self.medium.is_some() {
            true => written.and_then(|()| self.flush_journal()),
            false => written,
        };
        if let Err(error) = written {
            self.leave(writer, &error)?;
            return Ok(false);
        }
        if self.medium.is_none() {
            self.flush()?;
        }
        if is_behind && flushes == 1 {
            writer.gaps.took(self.elapsed().saturating_sub(began));
        }
        writer.space.take(at, 1 + blocks.len() as u32);
        writer.place =
            Place { sequence: writer.place.sequence + 1, previous: checksum, ..writer.place };
        let live_blocks = {
            let mut live = self.live.write();
            live.extend(blocks.iter().map(|(at, image)| (*at, Arc::from(*image))));
            live.len()
        };
        self.count_record(blocks.len(), live_blocks, flushes);
        if cfg!(debug_assertions) {
            self.check(writer);
        }
        Ok(true)
    }

    /// Continues without a journal that cannot be written: all of its images are also in memory.
    fn leave(&self, writer: &mut Writer, why: &io::Error) -> io::Result<()> {
        tracing::warn!("the journal cannot be written ({why}); the volume continues without it");
        // The next header invalidates the parts of the record that were written. This does not work on
        // another device than the volume's, which may have lost data: a successful write of a header proves
        // nothing there.
        if self.medium.is_some() {
            self.write_home()?;
            self.give_up(why)?;
            self.forget();
            return Ok(());
        }
        self.stats.lock().failures += 1;
        self.drain(writer)?;
        self.stats.lock().state = JournalState::Off;
        Ok(())
    }

    /// Counts a record of `images` images, after which `live_blocks` are live.
    fn count_record(&self, images: usize, live_blocks: usize, flushes: u64) {
        let bytes_of = |blocks: usize| (blocks * self.area.block_bytes) as u64;
        let mut stats = self.stats.lock();
        stats.records += 1;
        stats.written_bytes += bytes_of(1 + images);
        stats.flushes += flushes;
        stats.images += images as u64;
        // Each image that did not replace another one has a place of its own.
        let added = (bytes_of(live_blocks) - stats.live_bytes) / self.area.block_bytes as u64;
        stats.superseded_images += images as u64 - added;
        stats.live_bytes = bytes_of(live_blocks);
        stats.live_bytes_max = stats.live_bytes_max.max(stats.live_bytes);
    }
}

impl<D: BlockDevice> BlockDevice for JournaledDevice<D> {
    fn geometry(&self) -> Geometry {
        self.inner.geometry()
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<()> {
        let end = offset.saturating_add(buf.len() as u64);
        let from = (offset + 1).saturating_sub(self.area.block_bytes as u64);
        // Taken before the home device is read: a block that has left the journal by now is already there.
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
        if offset == 0 {
            let block = bufs.iter().flat_map(|buf| buf.iter().copied()).collect::<Vec<u8>>();
            if let Ok(superblock) = Superblock::decode(&block, 0) {
                return self.write_superblock(&block, superblock);
            }
        }
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

    fn elapsed(&self) -> Duration {
        self.medium().elapsed()
    }

    fn journal(&self) -> Option<&dyn Journal> {
        Some(self)
    }
}

impl<D: BlockDevice> Journal for JournaledDevice<D> {
    fn commit_bytes_max(&self) -> u64 {
        u64::from(self.area.images_max()) * self.area.block_bytes as u64
    }

    fn stop(&self) -> io::Result<()> {
        let writer = &mut *self.writer.lock();
        match self.state() {
            JournalState::On => {
                // A journal that is marked as unused is not written.
                if !self.is_unused.load(Ordering::Acquire) {
                    self.drain(writer)?;
                }
                self.stats.lock().state = JournalState::Off;
                Ok(())
            }
            JournalState::Off => Ok(()),
            JournalState::Failed => Err(after_failed_sync()),
        }
    }

    fn stats(&self) -> JournalStats {
        *self.stats.lock()
    }

    fn commit(&self, blocks: &[(u64, &[u8])]) -> io::Result<bool> {
        if !self.fits(blocks) {
            return Ok(false);
        }
        let began = self.elapsed();
        let writer = &mut *self.writer.lock();
        match self.state() {
            JournalState::On if self.is_unused.load(Ordering::Acquire) => return Ok(false),
            JournalState::On => {}
            JournalState::Off => return Ok(false),
            JournalState::Failed => return Err(after_failed_sync()),
        }
        let live_bytes = (self.live.read().len() + blocks.len()) * self.area.block_bytes;
        let place = |writer: &Writer| {
            let gap = self.gap(writer);
            let at = writer.space.place(gap, 1 + blocks.len() as u32)?;
            Some((at, writer.space.is_behind(at, gap)))
        };
        let mut at = place(writer).filter(|_| live_bytes <= LIVE_BYTES_MAX);
        if !writer.has_begun || at.is_none() {
            match at {
                None => self.drain_for_writer(writer, |stats| &mut stats.drains_full)?,
                Some(_) => self.drain(writer)?,
            }
            at = place(writer);
        }
        let Some(at) = at.filter(|_| self.state() == JournalState::On) else { return Ok(false) };
        let is_written = self.write_record(writer, at, blocks)?;
        if is_written {
            self.stats.lock().commits.add(self.elapsed().saturating_sub(began));
        }
        Ok(is_written)
    }
}

fn after_failed_sync() -> io::Error {
    io::Error::other("the journal is not written after a sync that failed")
}
