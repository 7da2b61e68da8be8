//! The journal: an epoch is durable after one write in one place (FORMAT: the journal;
//! decision 008).
//!
//! Offers [`JournaledDevice`], which writes blocks in different places atomically. It writes them into the
//! journal first, and to their own places, *home*, later: it *drains* the journal when that is full, and when
//! one of the rules below requires it. Until then reads get them from memory. [`attach`] puts it over a
//! volume with a journal, [`erase`] empties a journal. The journal is on the volume itself or on another
//! device, which the home device [names](BlockDevice::journal_device). Stands on `device` and `format`.
//!
//! ```text
//!   journal:   header │ header again │ gap │ record 0 of its era │ gap │ record 1 │ remains of earlier eras
//!   drain: images go home ─ sync ─ next header, in both places ─ sync: the journal is empty ─ superblock
//! ```
//!
//! With these rules, a volume can be read with the journal's images over it after any crash:
//!
//! 1. While a block has an image in the journal, only draining writes it at home; any other
//!    write there drains first.
//! 2. Before a record is written, everything written past the journal is durable.
//! 3. The journal is emptied only when its images are durable at home.
//! 4. Block 0, the superblock, is in no record, and writing it drains first, so a clean volume has an empty
//!    journal.
//! 5. After a new header, the superblock records it: durably before the next header and, if the journal is on
//!    another device, before the first record. A header names the one before it. So an older copy of the
//!    journal, or of the volume, is detected.
//! 6. Each opening begins an era before it marks the volume as in use. So the journal of a copy of the volume
//!    that was used as often is detected.
//!
//! A journal that can no longer be emptied is given up: before anything else is written at home, the
//! superblock says that nothing in it counts. It says the same while a volume is used without its journal.
//! Records are written again once that mark is removed.

use std::io::{self, IoSlice};
use std::ops::Range;
use std::sync::Arc;

use self::area::{Area, Noted};
use crate::device::BlockDevice;
use crate::error::{Corruption, Error, Result};
use crate::format::Superblock;
use crate::format::journal::{HEADER_BLOCKS, Header};
use crate::format::superblock::{Incompat, JournalFlags, SUPERBLOCK_BYTES, State};

mod area;
mod device;
mod gaps;
mod load;
mod space;
mod writer;

#[cfg(test)]
mod tests;

pub use device::JournaledDevice;

/// The longest request, for reading the journal and for writing images that are side by side at home. Between
/// two requests a disk turns once.
const REQUEST_BYTES_MAX: usize = 4 << 20;

/// Whether the volume has a journal.
pub fn has_journal(superblock: &Superblock) -> bool {
    superblock.incompat.contains(Incompat::JOURNAL)
}

/// Where the journal of a volume is on its device, in bytes; nowhere, if it has none there.
pub fn area_bytes(superblock: &Superblock) -> Range<u64> {
    if !has_journal(superblock) || is_external(superblock) {
        return 0..0;
    }
    let area = Area::of(superblock);
    area.offset(0)..area.offset(area.blocks)
}

/// Whether the volume has a journal that is on another device.
pub fn is_external(superblock: &Superblock) -> bool {
    has_journal(superblock) && superblock.journal.flags.contains(JournalFlags::EXTERNAL)
}

/// Whether the volume can be read without its journal, since the journal is empty.
pub fn is_empty(superblock: &Superblock) -> bool {
    superblock.state == State::Clean || superblock.journal.flags.contains(JournalFlags::UNUSED)
}

/// Takes over the header that the superblock in block 0 records, if that is newer.
pub fn renew_note(device: &dyn BlockDevice, superblock: &mut Superblock) {
    let (_, noted) = load::own_state(device);
    if noted.sequence > superblock.journal.sequence {
        noted.put(superblock);
    }
}

/// Empties the journal of a volume, whatever it contains, with the header after the one that the superblock
/// records. Writes all of its blocks, so that the file system below allocates those of an image once and for
/// all.
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
    // If the header were written before the zeros, old records could be found with it.
    device.sync()?;
    let noted = area.header(Noted::of(superblock));
    area.write_headers(device, area.next_header(&noted, device))?;
    device.sync()
}

/// The other device that has the journal of the volume on this one. It must be the one that the superblock
/// names, and at least as long as the journal.
///
/// # Errors
///
/// [`Error::Unsupported`] if it is missing, another's, or too short; those of the device.
pub fn medium(
    device: &dyn BlockDevice,
    superblock: &Superblock,
) -> Result<Option<Arc<dyn BlockDevice>>> {
    if !is_external(superblock) {
        return Ok(None);
    }
    let uuid = uuid::Uuid::from_bytes(superblock.journal.uuid);
    let Some(medium) = device.journal_device() else {
        return refuse(format!(
            "its journal is on another device, which was not found: journal {uuid}"
        ));
    };
    let area = Area::of(superblock);
    let (len, needed) = (medium.geometry().size_bytes, area.offset(area.blocks));
    if len < needed {
        return refuse(format!(
            "the device of its journal has {len} bytes, the journal {needed}: it was cut off"
        ));
    }
    let mut found = Vec::new();
    for at in 0..HEADER_BLOCKS {
        let mut block = vec![0; area.block_bytes];
        // If one cannot be read, the other is used.
        if medium.read_at(area.offset(at), &mut block).is_ok() {
            found.extend(Header::journal_uuid(&block));
        }
    }
    match found.first() {
        _ if found.contains(&superblock.journal.uuid) => Ok(Some(medium)),
        Some(other) => refuse(format!(
            "the device that was named has the journal of another volume: journal {}, and not {uuid}",
            uuid::Uuid::from_bytes(*other)
        )),
        None => refuse(format!("the device that was named has no journal; it should be {uuid}")),
    }
}

/// How a command is told where the journal is.
const NAME_IT: &str = "name the right device: mount and serve take -o journal-device=DEVICE, fsck takes \
    --journal-device DEVICE, and every command finds IMAGE.journal, which may be a symbolic link to it";

/// An error with the reason and the remedy.
fn refuse<T>(why: String) -> Result<T> {
    Err(Error::Unsupported(format!(
        "{why}; {NAME_IT}. If that is lost: a volume that was left clean can be mounted with -o \
         journal=none, any other loses the changes that only the journal has, with cffs fsck -y \
         --without-journal; cffs tune --journal none takes the journal away"
    )))
}

/// A message about a damaged journal of a volume in use, and the possible loss.
pub fn stake(doubt: &Corruption) -> String {
    format!(
        "{doubt}; the volume was not left clean, so changes that were reported as durable may have been \
         only in the journal"
    )
}

/// The error for a volume in use whose journal is lost in whole or in part.
pub fn lost(doubt: &Corruption) -> Error {
    Error::Unsupported(format!(
        "{}. Restore the journal, if you can, or {NAME_IT}. To give up those changes and repair the rest, \
         run cffs fsck -y --without-journal",
        stake(doubt)
    ))
}

/// The device with the volume's journal over it, if the volume has one and the device lacks it. Returns the
/// device as it is if its superblock cannot be used, which its next reader reports, and, with `is_optional`,
/// if the journal is empty and its device is missing or damaged.
///
/// # Errors
///
/// Those of the device and of [`medium`]; [`Corruption::JournalHeader`] of an empty journal; [`lost`] of any
/// other.
pub fn attach(device: Arc<dyn BlockDevice>, is_optional: bool) -> Result<Arc<dyn BlockDevice>> {
    if device.journal().is_some() {
        return Ok(device);
    }
    let mut bytes = [0; SUPERBLOCK_BYTES];
    if device.geometry().size_bytes < bytes.len() as u64 {
        return Ok(device);
    }
    device.read_at(0, &mut bytes)?;
    let superblock = match Superblock::decode(&bytes, 0) {
        Ok(superblock) if has_journal(&superblock) => superblock,
        _ => return Ok(device),
    };
    let is_optional = is_optional && is_external(&superblock) && is_empty(&superblock);
    let medium = match medium(&*device, &superblock) {
        Err(_) if is_optional => return Ok(device),
        medium => medium?,
    };
    match JournaledDevice::open_with(Arc::clone(&device), medium, &superblock) {
        (journaled, None) => Ok(Arc::new(journaled)),
        (_, Some(_)) if is_optional => Ok(device),
        (_, Some(doubt)) if is_empty(&superblock) => Err(doubt.into()),
        (_, Some(doubt)) => Err(lost(&doubt)),
    }
}
