//! Where the contents of files go: each beside the files of its key, which for most is its directory.
//!
//! Called with the gate closed, by an epoch and by what is written ahead of one (`early`).

use std::cell::OnceCell;
use std::collections::hash_map::Entry;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use crate::alloc::URGENT;
use crate::cache::WriteSet;
use crate::error::Result;
use crate::format::extent::Extent;
use crate::format::inode::InodeFlags;
use crate::format::sector;
use crate::format::superblock::Policy;
use crate::inode::{Locked, Neighbours, Store, Vnode, VnodeState};
use crate::units::{EpochNo, FragRun, InodeNo, Key, SectorIndex};

/// The directories of which files were placed in the open epoch, and where the first of them lies.
pub(super) type Hints = BTreeMap<InodeNo, FragRun>;

/// In which order files are to lie: each directory before its files, directories and files in the order
/// in which they were made.
pub(super) type Rank = (u64, u8, InodeNo);

/// The rank of a file.
pub(super) fn rank(file: &VnodeState) -> Rank {
    (file.inode.placement_key().0, u8::from(!file.inode.is_dir()), file.inode.ino)
}

/// How many fragments the small files of each key give back that are placed together.
pub(super) type Rewritten = HashMap<Key, u64>;

/// What these files give back when they are placed, by key.
pub(super) fn rewritten<'a>(
    store: &Store,
    files: impl Iterator<Item = &'a Arc<Vnode>>,
) -> Rewritten {
    let mut rewritten = Rewritten::new();
    for vnode in files {
        let file = vnode.state.read();
        let is_small = file.inode.size <= store.small_bytes_max();
        let is_data = !file.inode.is_dir() && !vnode.ino.is_system();
        if let (true, true, Some(map)) =
            (is_small && is_data, file.pages.dirty_count() > 0, file.inode.map())
        {
            let fragments: u64 = map.iter().map(|extent| u64::from(extent.len)).sum();
            *rewritten.entry(file.inode.placement_key()).or_default() += fragments;
        }
    }
    rewritten
}

/// What is known of a key.
struct KeyState {
    grown: bool,
    parent: Option<Arc<Vnode>>,
    segments: OnceCell<Vec<u64>>,
}

/// Places files, one after the other.
pub(super) struct Placer<'a> {
    store: &'a Store,
    keys: HashMap<Key, KeyState>,
    hints: Hints,
    rewritten: Rewritten,
}

impl<'a> Placer<'a> {
    /// A placer that goes on where others in the same epoch ended, for files that give back what is
    /// `rewritten`.
    pub(super) fn new(store: &'a Store, hints: Hints, rewritten: Rewritten) -> Placer<'a> {
        Placer { store, keys: HashMap::new(), hints, rewritten }
    }

    /// The hints of all that was placed in the open epoch.
    pub(super) fn hints(&mut self) -> &mut Hints {
        &mut self.hints
    }

    /// Places changed pages of a file, all of them if it is small, and adds them to `writes`. Returns
    /// those that are in flight from now on. With `joins` it lies with what is urgent.
    pub(super) fn place(
        &mut self,
        file: &mut Locked<'_>,
        positions: Vec<u64>,
        joins: bool,
        writes: &mut WriteSet,
        epoch: EpochNo,
    ) -> Result<Vec<u64>> {
        let key = file.inode.placement_key();
        let known = match self.keys.entry(key) {
            Entry::Occupied(known) => known.into_mut(),
            Entry::Vacant(new) => {
                let rewritten = self.rewritten.get(&key).copied().unwrap_or(0);
                new.insert(key_state(self.store, file, rewritten))
            }
        };
        let segments = || {
            let find =
                || known.parent.as_ref().map_or(Vec::new(), |dir| segments_of(self.store, dir));
            known.segments.get_or_init(find).clone()
        };
        let neighbours = Neighbours {
            key: if joins { URGENT } else { key },
            grown: known.grown && !joins,
            segments: &segments,
        };
        let positions = self.store.place_file(file, positions, &neighbours, writes, epoch)?;
        if let (Some(parent), false) = (&known.parent, positions.is_empty()) {
            let first = file.inode.map().and_then(|map| map.iter().next());
            let run = first.map_or(FragRun::default(), |extent| extent.run());
            self.hints.entry(parent.ino).or_insert(run);
        }
        Ok(positions)
    }
}

/// A directory of which most is written anew is as good as a new one, and lies beside what is written
/// with it rather than where it was.
fn key_state(store: &Store, file: &Locked<'_>, rewritten: u64) -> KeyState {
    let by_parent = file.inode.key == Key(0) && store.features.policy == Policy::Directory;
    let parent = if by_parent { store.get(file.inode.parent).ok() } else { None };
    let segments = OnceCell::new();
    let grown = match &parent {
        Some(parent) if parent.state.read().inode.hint.len > 0 => {
            let has = || {
                let segments = segments.get_or_init(|| segments_of(store, parent));
                segments.len() as u64 * u64::from(store.layout.segment_fragments())
            };
            rewritten == 0 || rewritten * 2 < has()
        }
        Some(_) => false,
        None => file.inode.key != Key(0),
    };
    KeyState { grown, parent, segments }
}

/// The segments in which the files of a directory lie, from the directory's own sectors.
fn segments_of(store: &Store, dir: &Arc<Vnode>) -> Vec<u64> {
    let per_segment = u64::from(store.layout.segment_fragments());
    let small = store.small_bytes_max() * 4;
    let state = dir.state.read();
    let mut segments = BTreeSet::new();
    for index in (0..store.sector_count(&state)).map(SectorIndex) {
        let Ok(image) = store.sector(&state, index) else { continue };
        for entry in image.get().entries() {
            let sector::Body::Embedded(record) = entry.body else { continue };
            let inline = record.inode.inode_flags().contains(InodeFlags::INLINE);
            if inline || record.inode.size.get() > small {
                continue;
            }
            for extent in Extent::decode_list(record.data) {
                segments.insert(extent.start.0 / per_segment);
            }
        }
    }
    segments.into_iter().collect()
}
