//! The findings of a check, as plain data that each front end prints in its own way.

use std::collections::BTreeMap;
use std::fmt;
use std::ops::Range;

use serde::{Deserialize, Serialize};

use super::problems::Code;
use crate::format::superblock::Damage;
use crate::units::{BlockNo, CgIndex, Container, InodeNo};

/// Where a problem is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Place {
    /// The volume as a whole.
    Volume,
    /// A block.
    Block(BlockNo),
    /// A cylinder group.
    Cg(CgIndex),
    /// An inode.
    Inode(InodeNo),
    /// A sector of a directory, of the external inode table or of the system area.
    Sector(Container),
    /// An entry of a sector.
    Entry(Container, u16),
}

impl Place {
    /// The inode that has it: of a sector, its container; 0 where there is none.
    pub fn ino(&self) -> InodeNo {
        match self {
            Place::Volume | Place::Block(_) | Place::Cg(_) => InodeNo::default(),
            Place::Inode(ino) => *ino,
            Place::Sector(container) | Place::Entry(container, _) => container.file,
        }
    }
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Place::Volume => write!(f, "volume"),
            Place::Block(block) => write!(f, "block {block}"),
            Place::Cg(cg) => write!(f, "cylinder group {cg}"),
            Place::Inode(ino) => write!(f, "inode {ino}"),
            Place::Sector(container) => container.fmt(f),
            Place::Entry(container, slot) => write!(f, "{container} entry {slot}"),
        }
    }
}

/// One problem.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    /// Its kind.
    pub code: Code,
    /// Where it is.
    pub place: Place,
    /// The finding, in a sentence.
    pub message: String,
    /// Whether it was repaired.
    pub fixed: bool,
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}: {}", self.code.id(), self.place, self.message)
    }
}

/// The kind of a loss.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum LossKind {
    /// It no longer exists.
    File,
    /// It still exists, without some or all of its contents, or with contents that are in doubt.
    Contents,
    /// It still exists, without some of its extended attributes.
    Attributes,
    /// It is complete but has lost its name: it is in lost+found.
    Moved,
}

/// A file with a loss from damage.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Loss {
    /// The kind of the loss.
    pub kind: LossKind,
    /// Its path. For a file whose name is lost, the path of its directory, with a slash at its end; empty if
    /// that is unknown, too.
    pub path: Vec<u8>,
    /// The inode.
    pub ino: InodeNo,
}

impl fmt::Display for LossKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            LossKind::File => "lost",
            LossKind::Contents => "contents lost or in doubt",
            LossKind::Attributes => "attributes lost",
            LossKind::Moved => "moved to lost+found",
        })
    }
}

/// The extent of a fast check.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct FastReport {
    /// Sectors of the intent log.
    pub intent_log_sectors: u64,
    /// Directories whose sectors were read.
    pub directories: u64,
    /// Blocks of the external inode table.
    pub table_blocks: u64,
    /// Blocks of the locator table.
    pub locator_blocks: u64,
    /// Cylinder groups.
    pub groups: u64,
}

/// The result of a check.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// The problems in the order in which they were found.
    pub problems: Vec<Problem>,
    /// The volume was clean and the options did not request a check, so none was made.
    pub skipped: bool,
    /// The volume was not left clean: effects of a crash were corrected and are counted in `recovered`, not
    /// listed as problems.
    pub recovery: bool,
    /// Whether a crash ended the use of the volume and explains the counts in `recovered`. Otherwise they
    /// follow from damage.
    pub crashed: bool,
    /// The cost of the damage, now or after a repair: files that are gone, or that lost
    /// contents, attributes or names.
    pub losses: Vec<Loss>,
    /// The parts of [`CheckOptions::lost`](super::CheckOptions::lost) in which files have contents.
    pub lost_contents: Vec<Range<u64>>,
    /// Damage that was found while the volume was in use: the reason for a full check. If the check leaves
    /// the volume sound, it clears the record.
    pub damage_seen: Option<Damage>,
    /// Only what the intent log lists was checked: its extent.
    pub fast: Option<FastReport>,
    /// Why recovery had to check everything.
    pub full_because: Option<String>,
    /// Findings that a crash explains, counted by the problem that each would be otherwise.
    pub recovered: BTreeMap<Code, u64>,
    /// Whether anything was written to the device.
    pub changed: bool,
    /// Whether the volume is consistent now and marked so, or would be after a repair.
    pub consistent: bool,
    /// Inodes in use, the system's own not counted.
    pub inodes: u64,
    /// Directories among them.
    pub directories: u64,
    /// Names in all directories.
    pub names: u64,
    /// Fragments in use, the reserved blocks not counted.
    pub used_fragments: u64,
    /// Free fragments.
    pub free_fragments: u64,
    /// Bytes of a fragment.
    pub fragment_bytes: u32,
    /// The number of walks; more than one only after damage.
    pub rounds: u32,
    /// Requests to the device that read.
    pub read_requests: u64,
    /// Bytes read.
    pub read_bytes: u64,
    /// Sectors of the device that had to be checked, could not be read, and were not rewritten.
    pub unreadable_sectors: u64,
    /// Requests that wrote.
    pub write_requests: u64,
    /// Bytes written.
    pub write_bytes: u64,
}

impl Report {
    /// The exit status by the convention of fsck(8): 0 for a volume without problems, 1 if all were repaired,
    /// 4 if some were not, or a part that had to be checked cannot be read. An impossible check is an error
    /// instead (8).
    pub fn exit_code(&self) -> u8 {
        let is_left = self.problems.iter().any(|problem| !problem.fixed);
        if is_left || self.unreadable_sectors > 0 || !(self.consistent || self.skipped) {
            4
        } else {
            u8::from(!self.problems.is_empty())
        }
    }
}
