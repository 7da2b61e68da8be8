//! The directories that the intent log lists: whole, or the changed parts of a large one.

use std::collections::{BTreeMap, BTreeSet};

use crate::format::LINKS_MAX;
use crate::format::intent_log::Record;
use crate::units::InodeNo;

/// The extent to which a directory may have changed.
#[derive(Clone, Debug)]
pub(super) enum Listed {
    /// Anywhere.
    Whole,
    /// In these parts.
    InParts(Parts),
}

/// The parts of a large directory that may have changed.
#[derive(Clone, Debug)]
pub(super) struct Parts {
    /// The names, and the directories among them, at the checkpoint.
    counts: (u32, u32),
    /// The buckets of its index at the checkpoint.
    pub buckets: u32,
    /// The blocks that changed, with the names, and the directories among them, that were there.
    pub blocks: BTreeMap<u32, (u16, u16)>,
    /// The buckets that changed or were added.
    pub changed_buckets: BTreeSet<u32>,
}

impl Parts {
    /// The names, and the directories among them, in blocks that did not change. `None` if the records of the
    /// directory contradict each other, or no directory has such counts.
    pub fn unchanged(&self) -> Option<(u32, u32)> {
        let all = Some(self.counts).filter(|(_, subdirs)| *subdirs < LINKS_MAX)?;
        let rest = self.blocks.values().try_fold(all, |(entries, subdirs), (names, dirs)| {
            let rest =
                (entries.checked_sub((*names).into())?, subdirs.checked_sub((*dirs).into())?);
            (dirs <= names).then_some(rest)
        });
        rest.filter(|(entries, subdirs)| subdirs <= entries)
    }
}

/// The directories that the log lists.
#[derive(Clone, Debug, Default)]
pub(super) struct ListedDirectories {
    all: BTreeMap<InodeNo, Listed>,
    /// A part is listed, and its directory is not.
    lacks_directory: bool,
}

impl ListedDirectories {
    /// Adds a record. Where a directory is listed whole, its parts do not matter.
    pub fn add(&mut self, record: &Record) {
        match *record {
            Record::Directory(ino) => {
                self.all.insert(ino, Listed::Whole);
            }
            Record::LargeDirectory { dir, entries, subdirectories, buckets } => {
                self.all.entry(dir).or_insert(Listed::InParts(Parts {
                    counts: (entries, subdirectories),
                    buckets,
                    blocks: BTreeMap::new(),
                    changed_buckets: BTreeSet::new(),
                }));
            }
            Record::DirectoryBlock { dir, position, names, subdirectories } => {
                self.change(dir, |parts| {
                    parts.blocks.entry(position).or_insert((names, subdirectories));
                });
            }
            Record::Bucket { dir, bucket } => {
                self.change(dir, |parts| {
                    parts.changed_buckets.insert(bucket);
                });
            }
            _ => {}
        }
    }

    fn change(&mut self, dir: InodeNo, change: impl FnOnce(&mut Parts)) {
        match self.all.get_mut(&dir) {
            Some(Listed::InParts(parts)) => change(parts),
            Some(Listed::Whole) => {}
            None => self.lacks_directory = true,
        }
    }

    /// Whether the records explain each other.
    pub fn is_consistent(&self) -> bool {
        !self.lacks_directory && self.parts().all(|(_, parts)| parts.unchanged().is_some())
    }

    pub fn contains(&self, dir: InodeNo) -> bool {
        self.all.contains_key(&dir)
    }

    /// All of them.
    pub fn iter(&self) -> impl Iterator<Item = InodeNo> {
        self.all.keys().copied()
    }

    /// Whether this block of a directory may have changed.
    pub fn contains_block(&self, dir: InodeNo, block: u32) -> bool {
        match self.all.get(&dir) {
            Some(Listed::Whole) => true,
            Some(Listed::InParts(parts)) => parts.blocks.contains_key(&block),
            None => false,
        }
    }

    /// The changed parts of a directory that is not listed whole.
    pub fn parts_of(&self, dir: InodeNo) -> Option<&Parts> {
        match self.all.get(&dir) {
            Some(Listed::InParts(parts)) => Some(parts),
            Some(Listed::Whole) | None => None,
        }
    }

    /// The directories of which only parts changed.
    pub fn parts(&self) -> impl Iterator<Item = (InodeNo, &Parts)> {
        self.all.keys().filter_map(|dir| Some((*dir, self.parts_of(*dir)?)))
    }
}
