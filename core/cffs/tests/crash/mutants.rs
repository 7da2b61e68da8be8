//! Faults of the device that the explorer must detect: writes out of order, and missing phases, linktags, or
//! records of the intent log. The file system itself is unchanged.

use std::collections::HashMap;

use cffs::device::Geometry;
use cffs::format::Checksum;
use cffs::format::inode::{LINK_TAG_BYTES, LinkTagKind};
use cffs::format::intent_log::{self, Position, Record};
use cffs::format::sector::{self, Body, Sector};
use cffs::format::superblock::{SUPERBLOCK_BYTES, Superblock};
use cffs::units::InodeNo;

use crate::record::{Disk, Event};
use cffs_testing::crash::case::{BLOCK_BYTES, UUID};

/// The offset in a linktag of its epoch and of the container of the other sector (FORMAT: inode).
const TAG_EPOCH_AND_FILE: std::ops::Range<usize> = 0..16;
/// The offset of its kind.
const TAG_KIND: std::ops::Range<usize> = 24..28;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mutant {
    /// No call waits for the disk: a sync is only a barrier.
    NoSync,
    /// No call waits for this disk, of a volume whose journal is on another disk.
    NoSyncOf(Disk),
    /// Bitmaps and the superblock that declares them valid are in flight together.
    NoSyncBeforeSuperblock,
    /// The barrier of this number after a sync orders nothing.
    NoBarrier(usize),
    /// The phase of this number after a sync is not written.
    NoPhase(usize),
    /// The phase of this number after a sync is written after the next one.
    Late(usize),
    /// A sector is written at once with its deferred changes, not first without them.
    NoDeferral,
    /// Linktags of this kind are blank, in the external table or elsewhere.
    NoTag { kind: LinkTagKind, external: bool },
    /// The intent log is blank.
    NoLog,
    /// The intent log is in flight together with the changes that it lists.
    LateLog,
    /// Every other block of the first phase's contents is in flight together with the metadata that refers to
    /// it.
    LateHalf,
    /// The intent log has no records of this kind.
    NoRecord(Kind),
    /// The intent log has one reference too few for each cluster.
    LowCount,
    /// Each sector of the intent log is marked as the end of an epoch's records.
    EarlyEnd,
    /// Space that an epoch frees is discarded before the epoch is on the device.
    EarlyDiscard,
    /// Inodes have no count of marks for their own changes, or for those below them.
    NoStamp { below: bool },
    /// Superblocks have one mark less.
    LowMarks,
    /// Recovery does not note that counts of marks may be too low.
    NotWalked,
    /// The records of an epoch in one sector of the intent log are in another order, which is harmless.
    Reordered,
}

/// The subject of a record of the intent log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Directory,
    Table,
    External,
    Reference,
    Locator,
    Group,
    Freed,
    Cluster,
    Referrer,
    Settling,
    End,
    LargeDirectory,
    DirectoryBlock,
    Bucket,
    Nameless,
}

impl Kind {
    fn of(record: &Record) -> Kind {
        match record {
            Record::Directory(_) => Kind::Directory,
            Record::Table { .. } => Kind::Table,
            Record::External { .. } => Kind::External,
            Record::Reference { .. } => Kind::Reference,
            Record::Locator { .. } => Kind::Locator,
            Record::Group { .. } => Kind::Group,
            Record::Freed(_) => Kind::Freed,
            Record::Cluster { .. } => Kind::Cluster,
            Record::Referrer { .. } => Kind::Referrer,
            Record::Settling => Kind::Settling,
            Record::End => Kind::End,
            Record::LargeDirectory { .. } => Kind::LargeDirectory,
            Record::DirectoryBlock { .. } => Kind::DirectoryBlock,
            Record::Bucket { .. } => Kind::Bucket,
            Record::Nameless(_) => Kind::Nameless,
        }
    }
}

/// Leaves out each part of an epoch on which a promise depends. The tag *replaced* in directories is not
/// among them: the tag of the move in the same sector suffices, and nothing is promised for a file that was
/// never on the device.
pub const ALL: [Mutant; 31] = [
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
    Mutant::NoLog,
    Mutant::LateLog,
    Mutant::LateHalf,
    Mutant::NoRecord(Kind::Directory),
    Mutant::NoRecord(Kind::Table),
    Mutant::NoRecord(Kind::External),
    Mutant::NoRecord(Kind::Reference),
    Mutant::NoRecord(Kind::Locator),
    Mutant::NoRecord(Kind::Group),
    Mutant::NoRecord(Kind::Freed),
    Mutant::NoRecord(Kind::Settling),
    Mutant::NoRecord(Kind::End),
    Mutant::EarlyEnd,
    Mutant::EarlyDiscard,
];

/// Leaves out what the list of changes since a mark depends on.
pub const OF_MARKS: [Mutant; 4] = [
    Mutant::NoStamp { below: false },
    Mutant::NoStamp { below: true },
    Mutant::LowMarks,
    Mutant::NotWalked,
];

/// Mutants that break what regrouping depends on: old places are kept until the new ones are durable, all
/// contents are written before references to them, and recovery learns of freed and allocated space.
pub const OF_MOVING: [Mutant; 7] = [
    Mutant::NoBarrier(0),
    Mutant::NoPhase(0),
    Mutant::Late(0),
    Mutant::LateHalf,
    Mutant::NoRecord(Kind::Group),
    Mutant::NoRecord(Kind::Freed),
    Mutant::EarlyDiscard,
];

/// Mutants that break what clusters depend on: they are written before anything refers to them, their space
/// is not used again before the last reference has left the device, and recovery learns of changed
/// references.
pub const OF_CLUSTERS: [Mutant; 8] = [
    Mutant::NoBarrier(0),
    Mutant::NoPhase(0),
    Mutant::Late(0),
    Mutant::NoRecord(Kind::Cluster),
    Mutant::NoRecord(Kind::Referrer),
    Mutant::NoRecord(Kind::Group),
    Mutant::NoRecord(Kind::Freed),
    Mutant::EarlyDiscard,
];

/// Mutants that break recovery's counts of references, on which copies that share clusters depend.
pub const OF_SHARING: [Mutant; 3] =
    [Mutant::NoRecord(Kind::Cluster), Mutant::NoRecord(Kind::Referrer), Mutant::LowCount];

/// Mutants that break recovery of large directories: it reads and corrects nothing but the listed parts.
pub const OF_LARGE_DIRECTORIES: [Mutant; 6] = [
    Mutant::NoRecord(Kind::LargeDirectory),
    Mutant::NoRecord(Kind::DirectoryBlock),
    Mutant::NoRecord(Kind::Bucket),
    Mutant::NoRecord(Kind::Nameless),
    Mutant::NoRecord(Kind::Settling),
    Mutant::LateLog,
];

impl Mutant {
    /// Changes the written bytes of a request. `chain` maps the original checksum of each changed sector of
    /// the intent log to its new one.
    pub fn change(self, data: &mut [u8], geometry: Geometry, chain: &mut HashMap<u32, u32>) {
        let checksum = Checksum::new(&UUID);
        for image in data.chunks_exact_mut(geometry.sector_bytes as usize) {
            match self {
                Mutant::NoTag { kind, external } => untag(image, kind, external, checksum),
                Mutant::NoStamp { below } => unstamp(image, below, checksum),
                Mutant::LowMarks => {
                    if let Ok(mut superblock) = Superblock::decode(image, 0) {
                        superblock.marks = superblock.marks.saturating_sub(1);
                        image[..SUPERBLOCK_BYTES].copy_from_slice(&superblock.encode());
                    }
                }
                Mutant::NoLog if intent_log::position_of(image, checksum).is_some() => {
                    image.fill(0)
                }
                Mutant::NoRecord(_) | Mutant::LowCount | Mutant::EarlyEnd | Mutant::Reordered => {
                    self.untell(image, checksum, chain);
                }
                _ => {}
            }
        }
    }

    /// Changes the records in a sector, if it is one of the intent log.
    fn untell(self, image: &mut [u8], checksum: Checksum, chain: &mut HashMap<u32, u32>) {
        let Some(position) = intent_log::position_of(image, checksum) else { return };
        let mut after = position;
        let mut marks = intent_log::decode(image, &mut after, checksum).expect("one of the log");
        let previous = chain.get(&position.previous).copied().unwrap_or(position.previous);
        intent_log::init(image, Position { previous, ..position });
        if self == Mutant::Reordered {
            let epochs = marks.records.split_mut(|record| *record == Record::End);
            epochs.for_each(<[Record]>::reverse);
        }
        for mut record in marks.records {
            if let (Mutant::LowCount, Record::Cluster { references, .. }) = (self, &mut record) {
                *references = references.saturating_sub(1);
            }
            if self != Mutant::NoRecord(Kind::of(&record)) {
                assert!(intent_log::append(image, &record), "there was room before");
            }
        }
        if self == Mutant::EarlyEnd {
            intent_log::append(image, &Record::End);
        }
        if marks.incomplete {
            intent_log::set_incomplete(image);
        }
        chain.insert(after.previous, intent_log::seal(image, checksum));
    }

    /// Changes the order of writes from one sync to the next.
    pub fn reorder(self, events: Vec<Event>) -> Vec<Event> {
        let is_discard = |event: &Event| matches!(event, Event::Discard { .. });
        let (discards, rest): (Vec<Event>, Vec<Event>) =
            events.into_iter().partition(|event| self == Mutant::EarlyDiscard && is_discard(event));
        let events = [discards, rest].concat();
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
                // A single write is the superblock, or a change of one phase.
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
                Mutant::LateLog => delay(&mut phases, |_, block| is_log(block)),
                Mutant::LateHalf => delay(&mut phases, |at, block| {
                    at / BLOCK_BYTES as u64 % 2 == 1 && !is_log(block)
                }),
                _ => {}
            }
            phases.concat()
        });
        epochs.flatten().collect()
    }
}

/// Blanks the counts of marks in a sector.
fn unstamp(image: &mut [u8], below: bool, checksum: Checksum) {
    if sector::identify(image, checksum).is_none() {
        return;
    }
    let epoch = Sector::new(image).epoch();
    sector::edit_inodes(image, |inode| match below {
        true => inode.below = [0; 3],
        false => inode.changed = [0; 3],
    });
    sector::seal(image, epoch, checksum);
}

/// Blanks the linktags of a kind in a sector.
fn untag(image: &mut [u8], kind: LinkTagKind, external: bool, checksum: Checksum) {
    let Some((container, _)) = sector::identify(image, checksum) else { return };
    if external == (container.file == InodeNo::EXTERNAL) {
        let epoch = Sector::new(image).epoch();
        for at in tags(image, kind) {
            image[at..][TAG_EPOCH_AND_FILE].fill(0);
        }
        sector::seal(image, epoch, checksum);
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

/// The written bytes, block by block.
fn blocks(offset: u64, data: &[u8]) -> impl Iterator<Item = (u64, &[u8])> {
    (offset..).step_by(BLOCK_BYTES).zip(data.chunks(BLOCK_BYTES))
}

/// Whether a block has sectors of the intent log.
fn is_log(block: &[u8]) -> bool {
    let checksum = Checksum::new(&UUID);
    [512, BLOCK_BYTES].into_iter().any(|sector_bytes| {
        let first = block.get(..sector_bytes);
        first.is_some_and(|first| intent_log::position_of(first, checksum).is_some())
    })
}

/// Writes such blocks of the first phase in the second instead.
fn delay(phases: &mut [Vec<Event>], is_late: impl Fn(u64, &[u8]) -> bool) {
    let mut delayed = Vec::new();
    let mut kept = Vec::new();
    for event in phases[0].drain(..) {
        let Event::Write { offset, data } = event else {
            kept.push(event);
            continue;
        };
        for (offset, block) in blocks(offset, &data) {
            let event = Event::Write { offset, data: block.to_vec() };
            if is_late(offset, block) { delayed.push(event) } else { kept.push(event) }
        }
    }
    phases[0] = kept;
    phases[1].splice(0..0, delayed);
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
            for (at, piece) in blocks(offset, &data) {
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
