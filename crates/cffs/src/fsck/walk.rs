//! The findings of one round of the check. The next round starts with empty ones; state that
//! outlives a round is in [`Losses`](super::loss::Losses), [`Search`](super::search::Search) and the
//! checker.

use std::collections::{BTreeSet, HashSet};

use super::editor::Fix;
use super::inventory::Inventory;
use super::map;
use super::used::UsedMap;
use crate::format::Layout;
use crate::units::{Container, FragRun};

/// A sector and the slot of an entry in it.
pub(super) type EntryPlace = (Container, u16);

/// The findings of one round.
pub(super) struct Walk {
    pub inventory: Inventory,
    pub used: UsedMap,
    pub locator: map::MapCheck,
    pub locator_size: u64,
    /// Repairs of the truth, to be made at the end of the pass.
    pub fixes: Vec<Fix>,
    pub contested: Vec<FragRun>,
    pub sharers: Vec<map::Sharer>,
    pub pending_maps: Vec<map::PendingMap>,
    pub pending_attributes: Vec<map::PendingAttributes>,
    pub pending_contents: Vec<map::PendingContents>,
    /// Symbolic links whose targets are to be read.
    pub pending_targets: Vec<map::PendingContents>,
    /// Pairs of entries of one directory that have the same name.
    pub namesakes: Vec<(EntryPlace, EntryPlace)>,
    /// Entries that a repair removes.
    pub gone: HashSet<EntryPlace>,
    /// Sectors of containers that are intact, and others'.
    pub misfits: BTreeSet<Container>,
    pub epoch_max: u64,
    pub generation_max: u32,
    pub names: u64,
}

impl Walk {
    pub fn new(layout: Layout) -> Walk {
        Walk {
            inventory: Inventory::default(),
            used: UsedMap::new(layout),
            locator: map::MapCheck::default(),
            locator_size: 0,
            fixes: Vec::new(),
            contested: Vec::new(),
            sharers: Vec::new(),
            pending_maps: Vec::new(),
            pending_attributes: Vec::new(),
            pending_contents: Vec::new(),
            pending_targets: Vec::new(),
            namesakes: Vec::new(),
            gone: HashSet::new(),
            misfits: BTreeSet::new(),
            epoch_max: 0,
            generation_max: 0,
            names: 0,
        }
    }
}
