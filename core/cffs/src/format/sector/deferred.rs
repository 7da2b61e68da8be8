//! Deferred changes of sectors.
//!
//! An image in memory may differ from the one on the device by *deferred changes* (DESIGN:
//! epochs), which wait for a later phase of an epoch:
//!
//! ```text
//!            defer_removal                        defer_reference
//!   present ───────────────▶ leaving     embedded ───────────────▶ becoming a reference
//!                              │ settle                              │ settle
//!                              ▼                                     ▼
//!                             gone                               reference
//!
//!        defer_appearance              settle
//!   new ──────────────────▶ appearing ────────▶ present
//! ```
//!
//! [`Sector::entries`] does not return a leaving entry, and returns one that becomes a reference as a
//! reference. An entry appears after all leaving ones have left, since one of them may have its name.
//! [`before_deferred`] makes the image for the phases before, [`before_appearing`] the one without the
//! leaving entries, [`settle`] the last one.

use zerocopy::little_endian::U16;

use super::{
    APPEARING, BECOMING_REFERENCE, BECOMING_SECTOR_AT, EMBEDDED, LEAVING, REFERENCE,
    REFERENCE_BYTES, Sector, body_start, entry_mut, header_mut, locate, remove, resize,
};
use crate::units::SectorIndex;

/// Hides an entry now and removes it in the last phase of the epoch.
pub fn defer_removal(image: &mut [u8], slot: u16) {
    if let Some((at, _)) = locate(image, slot) {
        let flags = &mut entry_mut(image, at).flags;
        let first = *flags == 0;
        *flags |= LEAVING;
        if first {
            header_mut(image).deferred += 1;
        }
    }
}

/// Shows an embedded inode as a reference to `sector` of the external table from now on, and makes it one in
/// the last phase of the epoch. A reference is not changed.
pub fn defer_reference(image: &mut [u8], slot: u16, sector: SectorIndex) {
    if let Some((at, _)) = locate(image, slot)
        && entry_mut(image, at).kind == EMBEDDED
    {
        let flags = &mut entry_mut(image, at).flags;
        let first = *flags == 0;
        *flags |= BECOMING_REFERENCE;
        let body = body_start(image, at);
        image[body + BECOMING_SECTOR_AT..][..4].copy_from_slice(&sector.0.to_le_bytes());
        if first {
            header_mut(image).deferred += 1;
        }
    }
}

/// Makes a new entry appear on the device in the last phase of the epoch.
pub fn defer_appearance(image: &mut [u8], slot: u16) {
    if let Some((at, _)) = locate(image, slot) {
        let flags = &mut entry_mut(image, at).flags;
        let first = *flags == 0;
        *flags |= APPEARING;
        if first {
            header_mut(image).deferred += 1;
        }
    }
}

/// Carries out the deferred changes in a copy of the image, but for entries that appear.
pub fn before_appearing(image: &mut [u8]) {
    remove_appearing(image);
    settle(image);
}

fn remove_appearing(image: &mut [u8]) {
    let appearing = |raw: &super::RawEntry<'_>| raw.header.flags & APPEARING != 0;
    let slots: Vec<u16> =
        Sector::new(image).raw().filter(appearing).map(|raw| raw.header.slot.get()).collect();
    slots.into_iter().for_each(|slot| remove(image, slot));
}

/// Undoes the deferred changes in a copy of the image, which the earlier phases write.
pub fn before_deferred(image: &mut [u8]) {
    remove_appearing(image);
    for (at, flags) in deferred_entries(image) {
        if flags & BECOMING_REFERENCE != 0 {
            let body = body_start(image, at);
            image[body + BECOMING_SECTOR_AT..][..4].fill(0);
        }
        entry_mut(image, at).flags = 0;
    }
    header_mut(image).deferred = U16::ZERO;
}

/// Carries out the deferred changes, for the last phase of the epoch.
pub fn settle(image: &mut [u8]) {
    // From the last entry to the first, so that the positions of the remaining ones stay valid.
    for (at, flags) in deferred_entries(image).into_iter().rev() {
        let len = usize::from(entry_mut(image, at).len.get());
        if flags & LEAVING != 0 {
            resize(image, at + len, len, 0);
            header_mut(image).count -= 1;
            continue;
        }
        if flags & BECOMING_REFERENCE == 0 {
            entry_mut(image, at).flags = 0;
            continue;
        }
        let body = body_start(image, at);
        let mut reference = [0; REFERENCE_BYTES];
        reference[..8].copy_from_slice(&image[body..body + 8]);
        reference[8..].copy_from_slice(&image[body + BECOMING_SECTOR_AT..][..4]);
        resize(image, at + len, at + len - body, REFERENCE_BYTES);
        image[body..body + REFERENCE_BYTES].copy_from_slice(&reference);
        let entry_len = (body - at + REFERENCE_BYTES) as u16;
        let entry = entry_mut(image, at);
        entry.len = entry_len.into();
        entry.kind = REFERENCE;
        entry.flags = 0;
    }
    header_mut(image).deferred = U16::ZERO;
}

fn deferred_entries(image: &[u8]) -> Vec<(usize, u8)> {
    let raw = Sector::new(image).raw();
    raw.filter(|raw| raw.header.flags != 0).map(|raw| (raw.at, raw.header.flags)).collect()
}
