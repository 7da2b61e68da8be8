//! Reading a log: which header counts, and what the records of its era have.

use std::io;
use std::sync::Arc;

use super::area::{Area, Images};
use crate::device::BlockDevice;
use crate::error::Corruption;
use crate::format::log::{Entry, HEADER_BLOCKS, Header, Place, Record, image_checksum};
use crate::units::BlockNo;

/// What a log has.
#[derive(Default)]
pub(super) struct Loaded {
    pub header: Option<Header>,
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
    let headers = (0..HEADER_BLOCKS).map(|block| header_at(device, area, block));
    let Some(header) = headers.flatten().max_by_key(|header| header.sequence) else {
        let doubt = Some(Corruption::LogHeader { block: BlockNo(area.start) });
        return Loaded { doubt, ..Loaded::default() };
    };
    let mut loaded = Loaded { header: Some(header), ..Loaded::default() };
    let mut place = Place { era: header.era, sequence: 0, previous: 0 };
    let mut at = HEADER_BLOCKS;
    // What cannot be read may have been a record.
    let is_cut_off = loop {
        match record_at(device, area, at, place) {
            Ok(Some((record, checksum, images))) => {
                at += 1 + record.entries.len() as u32;
                place = Place { sequence: place.sequence + 1, previous: checksum, ..place };
                loaded.images.extend(images);
            }
            Ok(None) => break is_followed(device, area, at, place),
            Err(_) => break true,
        }
    };
    if is_cut_off {
        let block = BlockNo(area.start + u64::from(at));
        loaded.doubt = Some(Corruption::LogRecord { block });
    }
    loaded
}

/// Blocks of the log; none after its end.
fn read(
    device: &dyn BlockDevice,
    area: &Area,
    at: u32,
    blocks: u32,
) -> io::Result<Option<Vec<u8>>> {
    if at.saturating_add(blocks) > area.blocks {
        return Ok(None);
    }
    let mut bytes = vec![0; blocks as usize * area.block_bytes];
    device.read_at(area.offset(at), &mut bytes)?;
    Ok(Some(bytes))
}

fn header_at(device: &dyn BlockDevice, area: &Area, at: u32) -> Option<Header> {
    let block = read(device, area, at, 1).ok()??;
    let is_own = |header: &Header| header.blocks == area.blocks && header.uuid == area.uuid;
    Header::decode(&block, area.checksum).filter(is_own)
}

/// The record that belongs at a place, with its checksum and its images, if all of it is whole.
fn record_at(
    device: &dyn BlockDevice,
    area: &Area,
    at: u32,
    place: Place,
) -> io::Result<Option<(Record, u32, Images)>> {
    let Some(block) = read(device, area, at, 1)? else { return Ok(None) };
    let Some((record, checksum)) = Record::decode(&block, area.checksum) else { return Ok(None) };
    let is_home = |entry: &Entry| area.is_home(entry.block.0, area.volume_blocks);
    let is_next = record.place == place && record.entries.iter().all(is_home);
    if !is_next {
        return Ok(None);
    }
    let bytes = read(device, area, at + 1, record.entries.len() as u32)?;
    let images = bytes.and_then(|bytes| images_of(area, &record, &bytes));
    Ok(images.map(|images| (record, checksum, images)))
}

/// The images of a record by their places, if all of them are whole.
fn images_of(area: &Area, record: &Record, bytes: &[u8]) -> Option<Images> {
    let images = bytes.chunks_exact(area.block_bytes).zip(&record.entries);
    images
        .map(|(image, entry)| {
            let home = entry.block.0 * area.block_bytes as u64;
            (image_checksum(image) == entry.checksum).then(|| (home, Arc::from(image)))
        })
        .collect()
}

/// Whether a record lies behind a place that comes after the one which should be there.
fn is_followed(device: &dyn BlockDevice, area: &Area, at: u32, place: Place) -> bool {
    let end = area.blocks.min(at.saturating_add(2 + area.images_max()));
    (at.saturating_add(1)..end).any(|at| {
        let block = read(device, area, at, 1).ok().flatten();
        let record = block.and_then(|block| Record::decode(&block, area.checksum));
        record.is_some_and(|(record, _)| {
            record.place.era == place.era && record.place.sequence > place.sequence
        })
    })
}
