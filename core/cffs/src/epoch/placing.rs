//! Places the contents of files, each near the files of its key. The key of most files is their directory.
//!
//! Runs with the gate closed, for an epoch and for writes ahead of one (`early`).

use std::cell::OnceCell;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::ControlFlow;
use std::sync::Arc;

use foldhash::HashMap;

use crate::alloc::Owner;
use crate::error::Result;
use crate::format::extent::Extent;
use crate::format::inode::InodeFlags;
use crate::format::sector::Body;
use crate::format::superblock::Policy;
use crate::inode::{
    Cluster, ExtentMap, InodeCache, Neighbours, Vnode, VnodeGuard, VnodeState, WriteBack,
};
use crate::namespace::scan;
use crate::units::{FileBlock, FragRun, InodeNo, Key};

/// The directories whose files were placed in the open epoch, each with the place of the first such file.
pub(crate) type Hints = BTreeMap<InodeNo, FragRun>;

/// The order of files on the device: a directory before its files, and directories and files in the order in
/// which they were made.
pub(crate) type Rank = (u64, u8, InodeNo);

/// The rank of a file.
pub(crate) fn rank(file: &VnodeState) -> Rank {
    (file.inode.placement_key().0, u8::from(!file.inode.is_dir()), file.inode.ino)
}

/// Puts files into the order of their places; `of` gives the rank of an item, and its vnode.
///
/// That is the order of their ranks, except that files with keys of their own follow the other files of
/// their directory, key by key, in the order in which the first file of each key was made. The keys are
/// hashes: in their order, the files of a directory with many keys would be in a random order.
pub(crate) fn put_in_order<T>(files: &mut [T], of: impl Fn(&T) -> (Rank, &Arc<Vnode>)) {
    let is_keyed = |rank: &Rank| Key(rank.0).is_own();
    let mut leads: HashMap<u64, Rank> = HashMap::default();
    for (rank, vnode) in files.iter().map(&of).filter(|(rank, _)| is_keyed(rank)) {
        let state = vnode.state.read();
        let dir = if state.inode.is_dir() { vnode.ino } else { state.inode.parent };
        let lead = (dir.0, 2, vnode.ino);
        leads.entry(rank.0).and_modify(|first| *first = lead.min(*first)).or_insert(lead);
    }
    let place = |file: &T| {
        let (rank, _) = of(file);
        (leads.get(&rank.0).copied().unwrap_or(rank), rank)
    };
    match leads.is_empty() {
        true => files.sort_by_key(|file| of(file).0),
        false => files.sort_by_cached_key(place),
    }
}

/// Per key: fragments that the small files placed together will free.
pub(crate) type Rewritten = HashMap<Key, u64>;

/// Per key: fragments that the small files placed in this epoch will free.
pub(crate) fn rewritten<'a>(
    inodes: &InodeCache,
    files: impl Iterator<Item = &'a Arc<Vnode>>,
) -> Rewritten {
    let mut rewritten = Rewritten::default();
    for vnode in files {
        let file = vnode.state.read();
        let is_small = file.inode.size <= inodes.layout.small_bytes_max();
        let is_data = !file.inode.is_dir() && !vnode.ino.is_system();
        if let (true, true, Some(map)) =
            (is_small && is_data, file.pages.dirty_count() > 0, file.inode.map())
        {
            // A cluster is free only when its last file leaves it.
            let own = map.iter().filter(|extent| extent.cluster.is_none());
            let fragments: u64 = own.map(|extent| u64::from(extent.len)).sum();
            *rewritten.entry(file.inode.placement_key()).or_default() += fragments;
        }
    }
    rewritten
}

/// The placement state of a key.
struct KeyState {
    grown: bool,
    parent: Option<Arc<Vnode>>,
    segments: OnceCell<Vec<u64>>,
}

impl KeyState {
    /// The state of the key of a file that has `own` as its own key and is in `parent`.
    ///
    /// A directory counts as new if most of its files are rewritten: these go near the other files that are
    /// written now, and not near their old places.
    fn find(inodes: &InodeCache, own: Option<Key>, parent: InodeNo, rewritten: u64) -> KeyState {
        let policy = inodes.policy();
        let by_parent = own.is_none() && policy.groups() && policy != Policy::Hint;
        let parent = if by_parent { inodes.get(parent).ok() } else { None };
        let grown = own.is_some_and(|key| inodes.alloc.key_sizes.has_filled(key));
        let mut state = KeyState { grown, parent, segments: OnceCell::new() };
        if let Some(parent) = &state.parent {
            let was_placed = parent.state.read().inode.hint.len > 0;
            let per_segment = u64::from(inodes.layout.segment_fragments());
            let has = || state.segments(inodes).len() as u64 * per_segment;
            state.grown = was_placed && (rewritten == 0 || rewritten * 2 < has());
        }
        state
    }

    /// The segments in which files of the key are.
    fn segments(&self, inodes: &InodeCache) -> &[u64] {
        let find = || self.parent.as_ref().map_or(Vec::new(), |dir| segments_of(inodes, dir));
        self.segments.get_or_init(find)
    }
}

/// Places files, one after the other.
pub(crate) struct Placer<'a> {
    inodes: &'a InodeCache,
    keys: HashMap<Key, KeyState>,
    hints: Hints,
    rewritten: Rewritten,
    asked: bool,
    /// The clusters that were placed.
    pub(crate) placed: PlacedClusters,
}

/// Counts of clusters that were placed.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct PlacedClusters {
    pub(crate) clusters: u64,
    /// Fragments of their contents.
    pub(crate) raw_fragments: u64,
    /// Fragments that they take on the device.
    pub(crate) stored_fragments: u64,
}

impl<'a> Placer<'a> {
    /// A placer that starts with the hints of earlier placers of the same epoch; `rewritten` says what its
    /// files free.
    pub(crate) fn new(inodes: &'a InodeCache, hints: Hints, rewritten: Rewritten) -> Placer<'a> {
        let (keys, placed) = (HashMap::default(), PlacedClusters::default());
        Placer { inodes, keys, hints, rewritten, asked: false, placed }
    }

    /// The same for an epoch of an fsync.
    pub(crate) fn asked(self, asked: bool) -> Placer<'a> {
        Placer { asked, ..self }
    }

    /// The hints of all files that were placed in the open epoch.
    pub(crate) fn hints(&mut self) -> &mut Hints {
        &mut self.hints
    }

    /// Places changed pages of a file, all of them if it is small, and adds them to the writes. Returns the
    /// pages that are in flight from now on. An urgent file goes near other urgent ones. The caller must not
    /// hold the file's lock.
    pub(crate) fn place(
        &mut self,
        vnode: &Arc<Vnode>,
        positions: Vec<FileBlock>,
        urgent: bool,
        write_back: &mut WriteBack<'_>,
    ) -> Result<Vec<FileBlock>> {
        if positions.is_empty() {
            return Ok(positions);
        }
        let neighbours = self.neighbours(vnode, urgent);
        let mut file = VnodeGuard::new(vnode);
        let before = mapped(&file);
        let positions = write_back.place_file(&mut file, positions, neighbours)?;
        if !positions.is_empty() {
            self.note_place(&file, before);
        }
        Ok(positions)
    }

    /// Places contents that were compressed together and have not changed since, and adds them to the writes.
    /// Returns the pages that are in flight from now on: none if the cluster would no longer save space, or
    /// no free run is long enough for it.
    pub(crate) fn place_cluster(
        &mut self,
        mut cluster: Cluster,
        write_back: &mut WriteBack<'_>,
    ) -> Result<Vec<(Arc<Vnode>, Vec<FileBlock>)>> {
        let layout = &self.inodes.layout;
        cluster.parts.retain(|part| {
            let file = part.vnode.state.read();
            debug_assert!(part.is_current(layout, &file), "only placing it changes it");
            part.checksum.is_none() || write_back.is_owned(&file)
        });
        let Some(first) = cluster.parts.first() else { return Ok(Vec::new()) };
        let neighbours = self.neighbours(&first.vnode, false);
        let Some(run) = write_back.place_cluster(&cluster, neighbours)? else {
            return Ok(Vec::new());
        };
        self.placed.clusters += 1;
        self.placed.raw_fragments +=
            cluster.parts.iter().map(|part| u64::from(part.len)).sum::<u64>();
        self.placed.stored_fragments += u64::from(run.len);
        let mut in_flight = Vec::new();
        for part in &cluster.parts {
            // `note_place` needs the state of each key.
            self.neighbours(&part.vnode, false);
            let mut file = VnodeGuard::new(&part.vnode);
            let before = mapped(&file);
            in_flight.push((part.vnode.clone(), write_back.place_part(&mut file, part, run)));
            self.note_place(&file, before);
        }
        Ok(in_flight)
    }

    /// The files near which a file is placed. It reads the directory, so the caller must not hold the file's
    /// lock.
    fn neighbours(&mut self, vnode: &Arc<Vnode>, urgent: bool) -> Neighbours {
        let (own, parent, key, fills_holes) = {
            let file = vnode.state.read();
            let inode = &file.inode;
            (
                inode.key,
                inode.parent,
                inode.placement_key(),
                self.inodes.space().may_fill_holes(&file),
            )
        };
        let rewritten = self.rewritten.get(&key).copied().unwrap_or(0);
        let find = || KeyState::find(self.inodes, own, parent, rewritten);
        let known = self.keys.entry(key).or_insert_with(find);
        let (owner, grown) = match urgent {
            true => (Owner::Urgent, false),
            false => (Owner::Key(key), known.grown),
        };
        let alloc = &self.inodes.alloc;
        if grown && fills_holes && !alloc.knows_home(owner) {
            alloc.note_home(owner, known.segments(self.inodes));
        }
        Neighbours { owner, grown, asked: self.asked }
    }

    /// Records the place of the first file of a directory, or the size of another key's files. The file took
    /// `before` fragments until now.
    fn note_place(&mut self, file: &VnodeGuard<'_>, before: u64) {
        self.inodes.space().count(file, before);
        let known = self.keys.get(&file.inode.placement_key());
        if let Some(parent) = known.and_then(|known| known.parent.as_ref()) {
            let first = file.inode.map().and_then(|map| map.iter().next());
            let run = first.map_or(FragRun::default(), |extent| extent.run());
            self.hints.entry(parent.ino).or_insert(run);
        }
    }
}

/// The fragments that the contents of a file take.
fn mapped(file: &VnodeState) -> u64 {
    file.inode.map().map_or(0, ExtentMap::mapped)
}

/// The segments in which the files of a directory are, from the directory's own sectors.
fn segments_of(inodes: &InodeCache, dir: &Arc<Vnode>) -> Vec<u64> {
    let per_segment = u64::from(inodes.layout.segment_fragments());
    let small = inodes.layout.small_bytes_max() * inodes.cache.tuning().placing.home_file_factor;
    let state = dir.state.read();
    let mut segments = BTreeSet::new();
    // If a sector cannot be read, the files after it are left out: they only guide the search.
    let _ = scan(inodes, &state, 0..u32::MAX, |_, entry| {
        if let Body::Embedded(record) = &entry.body
            && !record.inode.inode_flags().contains(InodeFlags::INLINE)
            && record.inode.size.get() <= small
        {
            let starts = Extent::decode_list(record.data).map(|extent| extent.start.0);
            segments.extend(starts.map(|start| start / per_segment));
        }
        ControlFlow::<()>::Continue(())
    });
    segments.into_iter().collect()
}

#[cfg(test)]
mod tests;
