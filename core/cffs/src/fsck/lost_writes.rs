//! Evidence that the device lost what it had acknowledged as durable.
//!
//! Offers [`find`], which a check and every opening ask first. A sound device has newer data only if the
//! older data was durable: the superblock of a checkpoint comes before the log that follows it, the mark "in
//! use" before the second epoch, and one epoch before the next. If the device has the later data without the
//! earlier, it dropped a write that it had acknowledged with a flush, or made it durable too late. Other
//! writes may be lost, too.
//!
//! It reads the system area and the first sector of both halves of the intent log. Recovery reads the rest
//! of the log, and finds what that shows ([`super::scope`], [`super::fast`]).

use super::disk::{Disk, Place};
use super::{Code, Problem};
use crate::format::intent_log::{self, Marks, Position, Record};
use crate::format::sector::{self, Sector};
use crate::format::superblock::{SUPERBLOCK_BYTES, State};
use crate::format::{Layout, Superblock};
use crate::units::{Container, InodeNo, SectorIndex};

/// The evidence of lost writes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LostWrites {
    /// The evidence in words.
    pub what: String,
    /// The newest generation that the intent log has; 0 if it is not newer than the superblock's.
    pub(super) generation: u64,
}

impl LostWrites {
    pub(super) fn problem(&self) -> Problem {
        let message = format!(
            "{}: the device lost data that it had acknowledged with a flush; the last synced changes may be \
             missing. Check the device, its cache and its controller before you trust it again",
            self.what
        );
        Problem { code: Code::WritesLost, place: super::Place::Volume, message, fixed: false }
    }
}

/// Searches for data that could not exist if the superblock were the newest durable one.
pub(super) fn find(disk: &mut Disk<'_>, superblock: &Superblock) -> Option<LostWrites> {
    if superblock.state == State::Damaged {
        return None;
    }
    let lost_writes = look(disk, superblock)?;
    // A process that has the volume open may have written both since.
    let again = disk.read(0, SUPERBLOCK_BYTES);
    let is_same =
        |now: Superblock| (now.generation, now.state) == (superblock.generation, superblock.state);
    Superblock::decode(&again, 0).ok().filter(|now| is_same(now.clone())).map(|_| lost_writes)
}

/// The newest generation in either half of the intent log, if it is newer than the superblock's: a copy of
/// the superblock can be older than both.
pub(super) fn newest_generation(disk: &mut Disk<'_>, superblock: &Superblock) -> u64 {
    let halves = disk.read_many(&halves(&Layout::new(superblock), superblock.generation));
    let found = halves.iter().filter_map(|log| first_sector(log, superblock));
    found.map(|(generation, _)| generation).fold(superblock.generation, u64::max)
}

/// The first sectors of the two halves of the intent log.
fn halves(layout: &Layout, generation: u64) -> [Place; 2] {
    [generation, generation.wrapping_add(1)].map(|generation| Place {
        offset: layout.block_offset(layout.intent_log_half(generation)),
        len: layout.sector_bytes as usize,
    })
}

fn look(disk: &mut Disk<'_>, superblock: &Superblock) -> Option<LostWrites> {
    let layout = Layout::new(superblock);
    let own = superblock.generation;
    let halves = halves(&layout, own);
    let system = Place {
        offset: layout.block_offset(layout.system_area()),
        len: layout.block_bytes as usize,
    };
    let found = disk.read_many(&[halves[0], halves[1], system]);
    let lost_writes = |what, generation| Some(LostWrites { what, generation });
    for log in &found[..2] {
        let Some((generation, marks)) = first_sector(log, superblock) else { continue };
        // A checkpoint may write a log of its own ahead of its superblock: one epoch's.
        let is_ahead = generation == own.wrapping_add(1) && !has_followed(&marks.records);
        if generation > own && !is_ahead {
            let what = format!(
                "the intent log has generation {generation}, but the superblock only {own}"
            );
            return lost_writes(what, generation);
        }
        if generation == own && superblock.state == State::Clean && has_followed(&marks.records) {
            let what = "several epochs are in the intent log, but the superblock says that the volume \
                        was not changed";
            return lost_writes(what.into(), generation);
        }
    }
    let newest = system_epoch(&found[2], superblock);
    if superblock.state == State::Clean && newest > superblock.epoch {
        let epoch = superblock.epoch;
        let what = format!(
            "the system area is of epoch {newest}, but the superblock says that the volume was not \
             changed after epoch {epoch}"
        );
        return lost_writes(what, 0);
    }
    None
}

/// Whether `records` of one sector are of two epochs: the later one began when all of the
/// earlier one was durable.
pub(super) fn has_followed(records: &[Record]) -> bool {
    let mut after = records.iter().skip_while(|record| **record != Record::End);
    after.nth(1).is_some()
}

/// The generation of the first sector of a half, and its records.
fn first_sector(bytes: &[u8], superblock: &Superblock) -> Option<(u64, Marks)> {
    let checksum = superblock.checksum();
    let Position { generation, .. } = intent_log::position_of(bytes, checksum)?;
    let mut first = Position { generation, ..Position::default() };
    intent_log::decode(bytes, &mut first, checksum).map(|marks| (generation, marks))
}

/// The newest epoch in the sectors of the system area that are intact.
fn system_epoch(block: &[u8], superblock: &Superblock) -> u64 {
    let images = block.chunks_exact(superblock.sector_bytes as usize);
    let intact = images.zip(0..).filter(|(image, index)| {
        let container = Container { file: InodeNo::SYSTEM, sector: SectorIndex(*index) };
        sector::verify(image, container, 0, superblock.checksum()).is_ok()
    });
    intact.map(|(image, _)| Sector::new(image).epoch().0).max().unwrap_or_default()
}
