//! Reading a log: which header counts, and what the records of its era have.

use std::io;
use std::sync::Arc;

use super::area::{Area, Images};
use crate::device::BlockDevice;
use crate::error::Corruption;
use crate::format::log::{Entry, HEADER_BLOCKS, Header, Place, Record, image_checksum};
use crate::units::BlockNo;

/// Blocks that are read at once.
const WINDOW_BLOCKS: u32 = 64;

/// What a log has.
#[derive(Default)]
pub(super) struct Loaded {
    pub header: Option<Header>,
    /// Whether both places have the header, and no record follows it.
    pub is_untouched: bool,
    /// The newest image of each block.
    pub images: Images,
    /// Damage: what comes after it is not among the images.
    pub doubt: Option<Corruption>,
}

/// Reads the log.
///
/// A record that is not whole ends it: it was being written when the program or the host stopped, and
/// nothing has reported it as durable. Unless a later one is there: that was begun only when the
/// one before it was durable, which then has been damaged since.
pub(super) fn load(device: &dyn BlockDevice, area: &Area) -> Loaded {
    let mut scan = Scan { device, area, first: 0, window: Vec::new() };
    let headers = [0, 1].map(|block| scan.header_at(block));
    let newest = headers.into_iter().flatten().max_by_key(|header| header.sequence);
    let Some(header) = newest else {
        let doubt = Some(Corruption::LogHeader { block: BlockNo(area.start) });
        return Loaded { doubt, ..Loaded::default() };
    };
    let mut loaded = Loaded { header: Some(header), ..Loaded::default() };
    let mut place = Place { era: header.era, sequence: 0, previous: 0 };
    let mut at = HEADER_BLOCKS;
    let is_cut_off = loop {
        match scan.record_from(at, place) {
            Ok(Some(found)) => {
                at = found.end;
                place = Place { sequence: place.sequence + 1, previous: found.checksum, ..place };
                loaded.images.extend(found.images);
            }
            Ok(None) => break scan.is_followed(at, place),
            // What cannot be read may have been a record.
            Err(_) => break true,
        }
    };
    if is_cut_off {
        let block = BlockNo(area.start + u64::from(at));
        loaded.doubt = Some(Corruption::LogRecord { block });
    }
    loaded.is_untouched = headers == [newest; 2] && at == HEADER_BLOCKS && !is_cut_off;
    loaded
}

/// A record that is whole.
struct Found {
    checksum: u32,
    images: Images,
    /// The block behind it.
    end: u32,
}

/// Reads a log from its start on, many blocks at once.
struct Scan<'a> {
    device: &'a dyn BlockDevice,
    area: &'a Area,
    /// Blocks from `first` on.
    window: Vec<u8>,
    first: u32,
}

impl Scan<'_> {
    /// A block of the log; none after its end.
    fn block(&mut self, at: u32) -> io::Result<Option<&[u8]>> {
        let block_bytes = self.area.block_bytes;
        let held = (self.window.len() / block_bytes) as u32;
        if at >= self.area.blocks {
            return Ok(None);
        }
        if !(self.first..self.first + held).contains(&at) {
            // One of them that cannot be read need not be one that is wanted.
            let window = self.blocks(at, WINDOW_BLOCKS.min(self.area.blocks - at));
            self.window = window.or_else(|_| self.blocks(at, 1))?;
            self.first = at;
        }
        let start = (at - self.first) as usize * block_bytes;
        Ok(self.window.get(start..start + block_bytes))
    }

    fn blocks(&self, at: u32, blocks: u32) -> io::Result<Vec<u8>> {
        let mut bytes = vec![0; blocks as usize * self.area.block_bytes];
        self.device.read_at(self.area.offset(at), &mut bytes)?;
        Ok(bytes)
    }

    fn header_at(&mut self, at: u32) -> Option<Header> {
        let area = self.area;
        let is_own = |header: &Header| header.blocks == area.blocks && header.uuid == area.uuid;
        Header::decode(self.block(at).ok()??, area.checksum).filter(is_own)
    }

    /// The record that belongs at a place, if it begins here or behind a gap, and all of it is whole.
    fn record_from(&mut self, at: u32, place: Place) -> io::Result<Option<Found>> {
        let mut unreadable = None;
        for at in at..=at.saturating_add(self.area.gap_max) {
            match self.record_at(at, place) {
                Ok(None) => {}
                Err(error) => unreadable = Some(error),
                found => return found,
            }
        }
        unreadable.map_or(Ok(None), Err)
    }

    fn record_at(&mut self, at: u32, place: Place) -> io::Result<Option<Found>> {
        let area = self.area;
        let Some(block) = self.block(at)? else { return Ok(None) };
        let Some((record, checksum)) = Record::decode(block, area.checksum) else {
            return Ok(None);
        };
        let is_home = |entry: &Entry| area.is_home(entry.block.0, area.volume_blocks);
        let is_next = record.place == place && record.entries.iter().all(is_home);
        if !is_next {
            return Ok(None);
        }
        let mut images = Images::new();
        for (image, entry) in (at + 1..).zip(&record.entries) {
            match self.block(image)? {
                Some(image) if image_checksum(image) == entry.checksum => {
                    images.insert(entry.block.0 * area.block_bytes as u64, Arc::from(image));
                }
                _ => return Ok(None),
            }
        }
        Ok(Some(Found { checksum, images, end: at + 1 + record.entries.len() as u32 }))
    }

    /// Whether a record lies behind a place that comes after the one which should be there: behind a gap,
    /// the longest record and another gap at most.
    fn is_followed(&mut self, at: u32, place: Place) -> bool {
        let Area { gap_max, checksum, .. } = *self.area;
        let end = at.saturating_add(2 + self.area.images_max() + 2 * gap_max);
        (at..end.min(self.area.blocks)).any(|at| {
            let block = self.block(at).ok().flatten();
            let record = block.and_then(|block| Record::decode(block, checksum));
            record.is_some_and(|(record, _)| {
                record.place.era == place.era && record.place.sequence > place.sequence
            })
        })
    }
}
