//! What is taken out of the device, to see whether the explorer notices: the order of writes, whole
//! phases, and the linktags in what is written. The file system itself knows nothing of this.

use cffs::device::Geometry;
use cffs::format::Checksum;
use cffs::format::inode::{LINK_TAG_BYTES, LinkTagKind};
use cffs::format::sector::{self, Body, Sector};
use cffs::units::InodeNo;

use crate::case::{BLOCK_BYTES, UUID};
use crate::record::Event;

/// Where a linktag tells its epoch and the container of the other sector (FORMAT: linktag).
const TAG_EPOCH_AND_FILE: std::ops::Range<usize> = 0..16;
/// Where it tells its kind.
const TAG_KIND: std::ops::Range<usize> = 24..28;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mutant {
    /// Nothing waits for the disk: a sync is no more than a barrier.
    NoSync,
    /// Bitmaps and the superblock that calls them right are in motion together.
    NoSyncBeforeSuperblock,
    /// The barrier of this number after a sync orders nothing.
    NoBarrier(usize),
    /// The phase of this number after a sync is not written.
    NoPhase(usize),
    /// The phase of this number after a sync is written after the next one.
    Late(usize),
    /// A sector is not written without its deferred changes first, but at once with them.
    NoDeferral,
    /// Linktags of this kind tell nothing, in the external table or elsewhere.
    NoTag { kind: LinkTagKind, external: bool },
}

/// Every part of an epoch that keeps a promise. Not among them is the tag *replaced* in directories:
/// the tag of the move beside it decides already, and a file that never was on the device has no
/// promise.
pub const ALL: [Mutant; 17] = [
    Mutant::NoSync,
    Mutant::NoSyncBeforeSuperblock,
    Mutant::NoBarrier(0),
    Mutant::NoBarrier(1),
    Mutant::NoBarrier(2),
    Mutant::NoPhase(0),
    Mutant::NoPhase(1),
    Mutant::NoPhase(2),
    Mutant::NoPhase(3),
    Mutant::Late(0),
    Mutant::Late(1),
    Mutant::Late(2),
    Mutant::NoDeferral,
    Mutant::NoTag { kind: LinkTagKind::MovedFrom, external: false },
    Mutant::NoTag { kind: LinkTagKind::MovedFrom, external: true },
    Mutant::NoTag { kind: LinkTagKind::Unlinked, external: true },
    Mutant::NoTag { kind: LinkTagKind::Replaced, external: true },
];

impl Mutant {
    /// Changes what a request writes.
    pub fn change(self, data: &mut [u8], geometry: Geometry) {
        let Mutant::NoTag { kind, external } = self else { return };
        let checksum = Checksum::new(&UUID);
        for image in data.chunks_exact_mut(geometry.sector_bytes as usize) {
            let Some((container, _)) = sector::identify(image, checksum) else { continue };
            if external == (container.file == InodeNo::EXTERNAL) {
                let epoch = Sector::new(image).epoch();
                for at in tags(image, kind) {
                    image[at..][TAG_EPOCH_AND_FILE].fill(0);
                }
                sector::seal(image, epoch, checksum);
            }
        }
    }

    /// Changes the order of what was written, from one sync to the next.
    pub fn reorder(self, events: Vec<Event>) -> Vec<Event> {
        let is_sync = |event: &Event| matches!(event, Event::Sync);
        let is_superblock = |event: &Event| matches!(event, Event::Write { offset: 0, .. });
        let skipped = |at: usize| {
            self == Mutant::NoSyncBeforeSuperblock
                && is_sync(&events[at])
                && events.get(at + 1).is_some_and(is_superblock)
        };
        let events: Vec<Event> =
            (0..events.len()).filter(|at| !skipped(*at)).map(|at| events[at].clone()).collect();
        let epochs = events.split_inclusive(is_sync).map(|epoch| {
            let is_barrier = |event: &Event| matches!(event, Event::Barrier);
            let mut phases: Vec<Vec<Event>> =
                epoch.split_inclusive(is_barrier).map(<[Event]>::to_vec).collect();
            match self {
                // What is written by itself is the superblock, or a change of one phase.
                _ if phases.len() < 2 => {}
                Mutant::NoPhase(number) if number < phases.len() => {
                    phases[number].retain(|event| !matches!(event, Event::Write { .. }));
                }
                Mutant::Late(number) if number + 1 < phases.len() => {
                    let end = phases[number].pop();
                    let next_end = phases[number + 1].pop();
                    phases.swap(number, number + 1);
                    phases[number].extend(end);
                    phases[number + 1].extend(next_end);
                }
                Mutant::NoDeferral => skip_what_comes_again(&mut phases),
                _ => {}
            }
            phases.concat()
        });
        epochs.flatten().collect()
    }
}

/// The offsets of the linktags of a kind in a sector.
fn tags(image: &[u8], kind: LinkTagKind) -> Vec<usize> {
    let records = Sector::new(image).entries().filter_map(|entry| match entry.body {
        Body::Embedded(record) => Some(record.tags),
        Body::Reference { .. } => None,
    });
    let tags = records.flat_map(|tags| tags.chunks_exact(LINK_TAG_BYTES));
    tags.filter(|tag| tag[TAG_KIND] == (kind as u32).to_le_bytes())
        .map(|tag| tag.as_ptr() as usize - image.as_ptr() as usize)
        .collect()
}

/// Leaves out the writes of blocks that a later phase writes again.
fn skip_what_comes_again(phases: &mut [Vec<Event>]) {
    let mut later = std::collections::BTreeSet::new();
    for phase in phases.iter_mut().rev() {
        let mut kept = Vec::new();
        let mut here = Vec::new();
        for event in phase.drain(..) {
            let Event::Write { offset, data } = event else {
                kept.push(event);
                continue;
            };
            for (at, piece) in (offset..).step_by(BLOCK_BYTES).zip(data.chunks(BLOCK_BYTES)) {
                here.push(at);
                if !later.contains(&at) {
                    kept.push(Event::Write { offset: at, data: piece.to_vec() });
                }
            }
        }
        later.extend(here);
        *phase = kept;
    }
}
