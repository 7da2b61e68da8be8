//! Reading a journal: its valid header, and the images in the records of its era.
//!
//! Records may be anywhere after the headers, so all of the journal is read once, in the order of the device,
//! and the numbers of the records give their order.

use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;

use super::REQUEST_BYTES_MAX;
use super::area::{Area, Images, Noted};
use crate::device::BlockDevice;
use crate::error::Corruption;
use crate::format::Superblock;
use crate::format::journal::{HEADER_BLOCKS, Header, Place, Record, image_checksum};
use crate::format::superblock::{SUPERBLOCK_BYTES, State};
use crate::units::BlockNo;

/// The contents of a journal.
#[derive(Default)]
pub(super) struct Loaded {
    pub header: Option<Header>,
    /// How many records it has.
    pub records: u64,
    /// The newest image of each block.
    pub images: Images,
    /// Damage: images after it are left out.
    pub doubt: Option<Corruption>,
}

/// Reads the journal; only its header, if its records do not count.
///
/// An incomplete record ends it: it was being written when the program or the host stopped, and was never
/// reported as durable. But if a later record exists, the incomplete one was durable when the later one was
/// begun, and has been damaged since.
pub(super) fn load(device: &dyn BlockDevice, area: &Area, has_records: bool) -> Loaded {
    let mut window = Window { device, area, first: 0, bytes: Vec::new(), singly_before: 0 };
    let headers = [0, 1].map(|block| window.header(block));
    let Some(header) = headers.into_iter().flatten().max_by_key(|header| header.sequence) else {
        let doubt = Some(Corruption::JournalHeader { block: BlockNo(area.start) });
        return Loaded { doubt, ..Loaded::default() };
    };
    let mut loaded = Loaded { header: Some(header), ..Loaded::default() };
    if !has_records {
        return loaded;
    }
    let mut scan = Scan::of(&mut window, header.era, u64::MAX);
    let (records, end) = scan.chain();
    if scan.records.values().any(|found| found.is_whole && found.place.sequence >= records) {
        // This is rare, so only the newest images are kept.
        scan = Scan::of(&mut window, header.era, records);
    }
    // Parts of the next record may exist, if the system crashed while it was written.
    if scan.is_cut_off || scan.records.keys().any(|sequence| *sequence > records) {
        let block = BlockNo(area.start + u64::from(end));
        loaded.doubt = Some(Corruption::JournalRecord { block });
    }
    loaded.records = records;
    loaded.images = scan.images.into_iter().map(|(at, (_, image))| (at, image)).collect();
    loaded
}

/// Whether the volume is clean by its own superblock, and the header recorded there; copies of the superblock
/// do not have these.
pub(super) fn own_state(device: &dyn BlockDevice) -> (bool, Noted) {
    let mut sector = vec![0; SUPERBLOCK_BYTES.max(device.geometry().sector_bytes as usize)];
    match device.read_at(0, &mut sector).map(|()| Superblock::decode(&sector, 0)) {
        Ok(Ok(superblock)) => (superblock.state == State::Clean, Noted::of(&superblock)),
        _ => (false, Noted::default()),
    }
}

impl Loaded {
    /// Drops the journal if it and the volume are not from the same time, or from different copies of a
    /// volume.
    ///
    /// The superblock records each header when that is durable, and before the next header is written. The
    /// journal of this volume therefore has the recorded header or the next one, which names the era of the
    /// recorded one. On another device, a record waits until the superblock is durable, so the next header
    /// has no records.
    pub fn drop_if_not_of(&mut self, noted: Noted, is_external: bool) {
        let Some(header) = self.header else { return };
        let (sequence, Noted { sequence: number, era }) = (header.sequence, noted);
        let foreign = |found| Corruption::JournalForeign { found, noted: era };
        let doubt = match sequence.checked_sub(number) {
            _ if number == 0 => return,
            Some(0) if header.era == era => return,
            Some(0) => foreign(header.era),
            Some(1) if header.previous != era => foreign(header.previous),
            Some(1) if !is_external || self.records == 0 => return,
            Some(_) => Corruption::JournalNewer { sequence, noted: number },
            None => Corruption::JournalOlder { sequence, noted: number },
        };
        *self = Loaded { doubt: Some(doubt), ..Loaded::default() };
    }
}

/// The first block of a record, as it was found.
struct Found {
    place: Place,
    checksum: u32,
    /// Whether all of its images are intact.
    is_whole: bool,
    /// The block after it.
    end: u32,
}

/// The records of an era.
struct Scan {
    records: BTreeMap<u64, Found>,
    /// The newest image of each block, with the number of its record.
    images: BTreeMap<u64, (u64, Arc<[u8]>)>,
    /// Whether a block, perhaps of a record, could not be read.
    is_cut_off: bool,
}

impl Scan {
    /// Reads all of the journal, and keeps the images of records before the one with this number.
    fn of(window: &mut Window<'_>, era: u64, limit: u64) -> Scan {
        let mut scan =
            Scan { records: BTreeMap::new(), images: BTreeMap::new(), is_cut_off: false };
        let area = window.area;
        let mut at = HEADER_BLOCKS;
        while at < area.blocks {
            let record = match window.block(at) {
                Ok(block) => Record::decode(block, area.checksum),
                Err(_) => {
                    scan.is_cut_off = true;
                    None
                }
            };
            at = match record {
                Some((record, checksum)) if record.place.era == era => {
                    scan.take(window, at, &record, checksum, limit)
                }
                _ => at + 1,
            };
        }
        scan
    }

    /// Adds a record; returns the block after the known ones.
    fn take(
        &mut self,
        window: &mut Window<'_>,
        at: u32,
        record: &Record,
        checksum: u32,
        limit: u64,
    ) -> u32 {
        let images = window.images(at, record);
        let is_whole = images.is_some();
        let place = record.place;
        let end = at + 1 + record.entries.len() as u32;
        debug_assert!(!is_whole || end <= window.area.blocks, "a record ends after the journal");
        self.records.insert(place.sequence, Found { place, checksum, is_whole, end });
        if place.sequence < limit {
            for (home, image) in images.into_iter().flatten() {
                let newest = self.images.entry(home).or_insert((place.sequence, image.clone()));
                if newest.0 <= place.sequence {
                    *newest = (place.sequence, image);
                }
            }
        }
        if is_whole { end } else { at + 1 }
    }

    /// How many records follow each other from the first on, and the block after the last of them.
    fn chain(&self) -> (u64, u32) {
        let (mut records, mut end, mut previous) = (0, HEADER_BLOCKS, 0);
        while let Some(found) = self.records.get(&records)
            && found.is_whole
            && found.place.previous == previous
        {
            (previous, end) = (found.checksum, found.end);
            records += 1;
        }
        (records, end)
    }
}

/// Blocks of the journal, many of which are read at once.
struct Window<'a> {
    device: &'a dyn BlockDevice,
    area: &'a Area,
    /// Blocks from `first` on.
    bytes: Vec<u8>,
    first: u32,
    /// Blocks before this one are read one by one: not all of them can be read.
    singly_before: u32,
}

impl Window<'_> {
    /// A block of the journal.
    fn block(&mut self, at: u32) -> io::Result<&[u8]> {
        let block_bytes = self.area.block_bytes;
        let held = (self.bytes.len() / block_bytes) as u32;
        if !(self.first..self.first + held).contains(&at) {
            let many = ((REQUEST_BYTES_MAX / block_bytes) as u32).min(self.area.blocks - at);
            let blocks = if at < self.singly_before { 1 } else { many.max(1) };
            let read = self.read(at, blocks);
            if read.is_err() && blocks > 1 {
                self.singly_before = at + blocks;
                return self.block(at);
            }
            (self.bytes, self.first) = (read?, at);
        }
        let start = (at - self.first) as usize * block_bytes;
        Ok(&self.bytes[start..start + block_bytes])
    }

    fn read(&self, at: u32, blocks: u32) -> io::Result<Vec<u8>> {
        let mut bytes = vec![0; blocks as usize * self.area.block_bytes];
        self.device.read_at(self.area.offset(at), &mut bytes)?;
        Ok(bytes)
    }

    fn header(&mut self, at: u32) -> Option<Header> {
        let area = self.area;
        let is_own = |header: &Header| header.blocks == area.blocks && header.uuid == area.uuid;
        Header::decode(self.block(at).ok()?, area.checksum).filter(is_own)
    }

    /// The images of a record whose first block is here; none if one of them is incomplete.
    fn images(&mut self, at: u32, record: &Record) -> Option<Vec<(u64, Arc<[u8]>)>> {
        let area = self.area;
        if at as usize + record.entries.len() >= area.blocks as usize {
            return None;
        }
        let images = (at + 1..).zip(&record.entries).map(|(at, entry)| {
            let image = self.block(at).ok()?;
            let is_right = area.is_home(entry.block.0, area.volume_blocks)
                && image_checksum(image) == entry.checksum;
            is_right.then(|| (entry.block.0 * area.block_bytes as u64, Arc::from(image)))
        });
        images.collect()
    }
}
