//! Repairs as data: the walk notes them, and the editor makes them.

use super::records::OwnedRecord;
use crate::clock::Timestamp;
use crate::format::extent::Extent;
use crate::format::inode::{FileType, InodeFlags};
use crate::units::{Container, FragRun, InodeNo, SectorIndex};

/// An upper bound of the changes of a directory that a crashed epoch can contain.
const CHANGES_LOST_MAX: u64 = 1 << 32;

/// A repair. Another round follows repairs that the walk's inventory cannot reflect.
#[derive(Clone, Debug)]
pub(super) enum Fix {
    /// Sets fields of an inode.
    Patch(InodeNo, Patch),
    /// Removes an entry with its embedded inode.
    RemoveEntry { container: Container, slot: u16 },
    /// Makes an entry a name of an external inode.
    ToReference { container: Container, slot: u16, ino: InodeNo, sector: SectorIndex },
    /// Removes the index of a directory.
    DropIndex(InodeNo),
    /// Gives a file these extents, and only these. Another round.
    SetMap(InodeNo, Vec<Extent>),
    /// Cuts the target of a symbolic link to this many bytes. Another round.
    CutTarget(InodeNo, usize),
    /// Gives an inode a new attribute block with this list. Another round.
    SetAttributes(InodeNo, Vec<u8>),
    /// Makes a sector empty. Another round.
    ResetSector(Container),
    /// Rebuilds a sector from the valid entries of the old one. Another round.
    RebuildSector(Container),
    /// Fills the holes of a container with blocks, up to a size in bytes. Another round.
    FillHoles(InodeNo, u64),
    /// Removes an inode. Another round.
    Forget(InodeNo),
    /// Gives an inode a name in lost+found instead of its present one. Another round.
    Reconnect(InodeNo),
    /// Moves an embedded inode to the external table. Another round.
    Externalize(InodeNo),
    /// Gives a directory that was found without an inode a new one. Another round.
    Resurrect { ino: InodeNo, generation: u32, extents: Vec<Extent> },
    /// Restores a sector of the system area. Another round.
    RestoreSystem(u32),
    /// Makes an empty inode for a system file. Another round.
    RemakeSystem(InodeNo),
    /// Nothing but another round.
    Again,
}

impl Fix {
    /// Whether the external table may seem to lack inodes until this repair is made.
    pub fn restores_table(&self) -> bool {
        match self {
            Fix::RebuildSector(container) => container.file == InodeNo::EXTERNAL,
            Fix::SetMap(ino, _) => *ino == InodeNo::EXTERNAL,
            Fix::Patch(..)
            | Fix::RemoveEntry { .. }
            | Fix::ToReference { .. }
            | Fix::DropIndex(_)
            | Fix::CutTarget(..)
            | Fix::SetAttributes(..)
            | Fix::ResetSector(_)
            | Fix::FillHoles(..)
            | Fix::Forget(_)
            | Fix::Reconnect(_)
            | Fix::Externalize(_)
            | Fix::Resurrect { .. }
            | Fix::RestoreSystem(_)
            | Fix::RemakeSystem(_)
            | Fix::Again => false,
        }
    }

    pub fn needs_round(&self) -> bool {
        match self {
            Fix::Patch(..)
            | Fix::RemoveEntry { .. }
            | Fix::ToReference { .. }
            | Fix::DropIndex(_) => false,
            Fix::SetMap(..)
            | Fix::CutTarget(..)
            | Fix::SetAttributes(..)
            | Fix::ResetSector(_)
            | Fix::RebuildSector(_)
            | Fix::FillHoles(..)
            | Fix::Forget(_)
            | Fix::Reconnect(_)
            | Fix::Externalize(_)
            | Fix::Resurrect { .. }
            | Fix::RestoreSystem(_)
            | Fix::RemakeSystem(_)
            | Fix::Again => true,
        }
    }
}

/// Fields of an inode to be set.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Patch {
    pub nlink: Option<u32>,
    pub generation: Option<u32>,
    pub parent: Option<InodeNo>,
    pub fragments: Option<u64>,
    pub size: Option<u64>,
    /// The size, unless it is larger already.
    pub size_min: Option<u64>,
    /// A directory's count of entries.
    pub entries: Option<u32>,
    /// The time at or after which a directory was changed, which is later than its inode says.
    pub changed_by: Option<Timestamp>,
    pub clear_flags: InodeFlags,
    pub attributes: Option<Vec<u8>>,
    pub attribute_block: Option<FragRun>,
    pub drop_attribute_block: bool,
    pub drop_hint: bool,
}

impl Default for Patch {
    fn default() -> Patch {
        Patch {
            nlink: None,
            generation: None,
            parent: None,
            fragments: None,
            size: None,
            size_min: None,
            entries: None,
            changed_by: None,
            clear_flags: InodeFlags::empty(),
            attributes: None,
            attribute_block: None,
            drop_attribute_block: false,
            drop_hint: false,
        }
    }
}

impl Patch {
    pub fn apply(&self, record: &mut OwnedRecord, layout: &crate::format::Layout) {
        let dropped = self.drop_attribute_block.then(|| record.inode.attribute_run());
        let inode = &mut record.inode;
        let is_dir = inode.file_type() == Some(FileType::Directory);
        if let Some(nlink) = self.nlink {
            inode.nlink = nlink.into();
        }
        if let Some(generation) = self.generation {
            inode.generation = generation.into();
        }
        if let Some(parent) = self.parent {
            inode.parent = parent.0.into();
        }
        if let Some(fragments) = self.fragments {
            inode.fragments = fragments.into();
        }
        if let Some(size) = self.size {
            inode.size = size.into();
        }
        if let Some(size) = self.size_min {
            inode.size = inode.size.get().max(size).into();
        }
        if let Some(entries) = self.entries {
            inode.set_entries(entries, inode.buckets());
        }
        if let Some(time) = self.changed_by {
            if time > inode.ctime() {
                inode.set_changed(time);
            }
            // Past all values that were reported before the crash.
            inode.change = inode.change.get().wrapping_add(CHANGES_LOST_MAX).into();
        }
        inode.flags = (inode.flags.get() & !self.clear_flags.bits()).into();
        // Of a directory, the field is a count of marks.
        if self.clear_flags.contains(InodeFlags::CONTENT_CHECKSUM) && !is_dir {
            inode.content_checksum = 0.into();
        }
        if self.drop_hint {
            inode.hint_start = 0.into();
            inode.hint_len = 0.into();
        }
        if let Some(attributes) = &self.attributes {
            record.xattrs.clone_from(attributes);
        }
        if let Some(run) = self.attribute_block {
            inode.set_attribute_run(Some(run));
        }
        if let Some(Some(run)) = dropped {
            inode.set_attribute_run(None);
            if layout.is_allocatable(run.start, run.len) {
                inode.fragments = inode.fragments.get().saturating_sub(run.len.into()).into();
            }
        }
    }
}
