//! The notes of large directories: a directory with more than some bytes of sectors is noted block by block,
//! and its index bucket by bucket, so that recovery reads a few blocks of it.
//!
//! Invariants: the first note of a directory in a generation decides whether it is noted in parts, and
//! records its counts at the checkpoint. A directory that is noted as a whole stays so until the next
//! checkpoint. Notes of parts take at most a quarter of the log ([`PARTS_LOG_SHARE`]), and a few more per
//! directory.

use super::{IntentLog, State};
use crate::format::index;
use crate::format::intent_log::Record;
use crate::inode::VnodeState;
use crate::units::{FileBlock, InodeNo};

/// The blocks and buckets of a large directory that may have notes of their own: this part of its blocks, but
/// at least and at most these numbers. With more changes, the directory is noted as a whole: reading it costs
/// little more by then.
const PARTS: std::ops::RangeInclusive<u64> = 8..=256;
const PARTS_SHARE: u64 = 4;
/// The part of the log for such notes; directories that change later are noted as a whole.
const PARTS_LOG_SHARE: u32 = 4;
/// The most bytes of the records that a change adds.
const RECORDS_BYTES_MAX: u32 = 64;

/// How the changes of a directory are noted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Noted {
    /// All its blocks count as changed.
    Whole,
    /// Each changed block has a note, and each changed bucket of its index.
    InParts {
        /// The number of further blocks and buckets that may have notes.
        left: u32,
    },
}

/// A container before a change of it.
#[derive(Clone, Copy, Debug)]
pub struct Holder {
    pub(super) ino: InodeNo,
    pub(super) bytes: u64,
    pub(super) entries: u32,
    pub(super) subdirectories: u32,
    pub(super) buckets: u32,
}

impl Holder {
    /// The container as it is.
    pub fn of(file: &VnodeState) -> Holder {
        let inode = &file.inode;
        Holder {
            ino: inode.ino,
            bytes: inode.size,
            entries: inode.entry_count,
            subdirectories: inode.nlink.saturating_sub(2),
            buckets: inode.bucket_count,
        }
    }

    #[cfg(test)]
    pub(super) fn of_size(ino: InodeNo, bytes: u64) -> Holder {
        Holder { ino, bytes, entries: 0, subdirectories: 0, buckets: 0 }
    }
}

impl State {
    /// Adds a record of a part of a directory.
    pub(super) fn push_part(&mut self, record: Record) {
        self.parts_bytes += record.encoded_bytes() as u32;
        self.pending.push(record);
    }

    /// Notes a directory as a whole.
    fn note_whole(&mut self, ino: InodeNo) {
        if self.directories.insert(ino, Noted::Whole) != Some(Noted::Whole) {
            self.pending.push(Record::Directory(ino));
        }
    }
}

impl IntentLog {
    /// Whether a part of a directory that is about to change has a note of its own. Otherwise the directory
    /// is noted as a whole. The first note of a directory decides this, and has the counts of the
    /// checkpoint, which change after the sector that explains the change.
    pub(super) fn is_in_parts(&self, state: &mut State, holder: &Holder) -> bool {
        let dir = holder.ino;
        let has_room = state.parts_bytes < self.parts_bytes_max();
        if has_room && holder.bytes > self.large_dir_bytes && !state.directories.contains_key(&dir)
        {
            let share = holder.bytes / u64::from(self.layout.block_bytes) / PARTS_SHARE;
            let left = share.clamp(*PARTS.start(), *PARTS.end()) as u32;
            state.directories.insert(dir, Noted::InParts { left });
            let Holder { entries, subdirectories, buckets, .. } = *holder;
            state.push_part(Record::LargeDirectory { dir, entries, subdirectories, buckets });
        }
        match state.directories.get_mut(&dir) {
            Some(Noted::InParts { left }) if *left > 0 && has_room => {
                *left -= 1;
                true
            }
            _ => {
                state.note_whole(dir);
                false
            }
        }
    }

    /// The bytes of the log that may be taken for parts of directories.
    fn parts_bytes_max(&self) -> u32 {
        self.sectors_max() * self.layout.sector_bytes / PARTS_LOG_SHARE
    }

    /// Notes that a bucket of the index of a directory is about to change, or is new.
    pub fn bucket(&self, holder: &Holder, bucket: u32) {
        let mut state = self.state.lock();
        let dir = holder.ino;
        if !state.takes_notes() || state.directories.get(&dir) == Some(&Noted::Whole) {
            return;
        }
        let position = index::index_base(self.layout.block_bytes) + u64::from(bucket);
        if state.blocks.insert((dir, FileBlock(position))) && self.is_in_parts(&mut state, holder) {
            state.push_part(Record::Bucket { dir, bucket });
        }
    }

    /// Notes that the locator table has an entry for an inode without a name, whose name was in this block of
    /// a directory.
    pub fn nameless_entry(&self, ino: InodeNo, dir: InodeNo, position: FileBlock) {
        let mut state = self.state.lock();
        let is_directory = !dir.is_system() || dir == InodeNo::ROOT;
        let is_listed = state.directories.get(&dir) == Some(&Noted::Whole)
            || state.blocks.contains(&(dir, position));
        if !is_directory || is_listed || !state.takes_notes() {
            return;
        }
        if state.parts_bytes < self.parts_bytes_max() {
            state.push_part(Record::Nameless(ino));
        } else {
            state.note_whole(dir);
        }
    }

    /// Whether a change of this directory was noted, or no note would be of use.
    pub fn has_noted(&self, dir: InodeNo) -> bool {
        let mut state = self.state.lock();
        !state.takes_notes() || state.directories.contains_key(&dir)
    }

    /// Whether a change of this block was noted, or no note would be of use.
    pub fn has_block(&self, holder: &Holder, position: FileBlock) -> bool {
        let mut state = self.state.lock();
        holder.ino == InodeNo::SYSTEM
            || !state.takes_notes()
            || state.blocks.contains(&(holder.ino, position))
    }

    /// Whether a change of this bucket was noted, by itself or with the whole directory, or no note would be
    /// of use.
    pub fn has_bucket(&self, holder: &Holder, bucket: u32) -> bool {
        let mut state = self.state.lock();
        let position = index::index_base(self.layout.block_bytes) + u64::from(bucket);
        !state.takes_notes()
            || state.directories.get(&holder.ino) == Some(&Noted::Whole)
            || state.blocks.contains(&(holder.ino, FileBlock(position)))
    }

    /// Notes that the index of a directory is made or dropped: then the directory is noted as a whole.
    pub fn index(&self, dir: InodeNo) {
        let mut state = self.state.lock();
        if state.takes_notes() {
            state.note_whole(dir);
        }
    }

    /// The invariants of the notes of directories.
    pub(super) fn check_parts(&self, state: &State) {
        let most = self.parts_bytes_max() + RECORDS_BYTES_MAX;
        assert!(state.parts_bytes < most, "notes of parts of directories fill the log");
        let is_bounded = |noted: &Noted| match noted {
            Noted::Whole => true,
            Noted::InParts { left } => u64::from(*left) < *PARTS.end(),
        };
        assert!(state.directories.values().all(is_bounded), "a directory may have more notes");
    }
}
