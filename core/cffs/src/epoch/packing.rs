//! Packing: neighbouring contents are compressed into clusters (decision 024).
//!
//! The sizes of clusters must be known before their places are chosen, and compressing much takes too long
//! while the gate is closed. So a writer that writes contents ahead of an epoch first takes the pages of the
//! files, in the order of their future places, and compresses them. With the gate closed it compares: pages
//! that were added or changed in the meantime wait until it compresses again. Only a limited part of the
//! contents is compressed with the gate closed (`epoch/prepare.rs`).

use std::sync::atomic::{AtomicU8, AtomicUsize, Ordering};
use std::thread;

use foldhash::{HashMap, HashSet};

use super::Counts;
use super::chosen::Chosen;
use super::placing::PlacedClusters;
use crate::format::LiveLayout;
use crate::format::checksum;
use crate::format::cluster::Compressor;
use crate::format::inode::FileType;
use crate::format::superblock::Compression;
use crate::inode::{Cluster, ClusterPart as Part, InodeCache};
use crate::lock::{self, Mutex, Rank, Rule};
use crate::units::{FileBlock, InodeNo, Key};

/// A cluster must save at least this part of the fragments of its contents.
const SAVED_PART: u32 = 8;
/// How many pages of a cluster a sample has, and how many bytes of each.
const SAMPLE_PAGES: usize = 4;
const SAMPLE_PAGE_BYTES: usize = 1 << 10;
/// After this many units of a large file in succession that did not become shorter, one unit of
/// `TRIED_PERIOD` is tried, until one becomes shorter.
const TRIES: u8 = 16;
const TRIED_PERIOD: u64 = 8;

/// Collects contents, in their order, until a cluster is full.
struct Packer<'a> {
    inodes: &'a InodeCache,
    fragments_max: u32,
    filled: u32,
    key: Option<Key>,
    open: Vec<Part>,
    full: Vec<Vec<Part>>,
    /// Keys whose files have no place on the device yet, and those that have.
    new_keys: HashMap<Key, bool>,
}

/// Compressed contents.
pub(crate) struct Packed(Vec<Cluster>);

impl Packed {
    /// Compresses the chosen contents as far as possible. `None` if the volume's setting is off and none of
    /// the files has the flag COMPRESS.
    pub(crate) fn new(
        inodes: &InodeCache,
        compression: Compression,
        chosen: &[Chosen],
    ) -> Option<Packed> {
        let is_wanted = |file: &Chosen| compression.applies_to(file.vnode.state.read().inode.flags);
        if compression == Compression::Off && !chosen.iter().any(is_wanted) {
            return None;
        }
        let wanted = chosen.iter().filter(|file| is_wanted(file));
        let packed = Packed(pack(inodes, compression.level(), wanted));
        Rule::ClustersCompared.linger();
        Some(packed)
    }

    /// The clusters of the chosen contents, if the gate has been closed since they were compressed.
    pub(crate) fn unchanged(self, chosen: &[Chosen]) -> Waiting {
        Waiting::new(self.0, chosen)
    }

    /// Removes the pages from `chosen` that were added or changed after the contents of `before` were
    /// compressed: they wait for the next call, because they are likely to change again. A small file is kept
    /// whole or removed, because it has one checksum. Returns the clusters with the unchanged contents of the
    /// files that are left.
    pub(crate) fn limit(
        mut self,
        layout: &LiveLayout,
        before: Vec<Chosen>,
        chosen: &mut Vec<Chosen>,
    ) -> Waiting {
        let mut compressed: HashMap<InodeNo, Vec<FileBlock>> =
            before.into_iter().map(|file| (file.vnode.ino, file.positions)).collect();
        // In reverse order, so that the pages that are left do not move again and again.
        for cluster in self.0.iter_mut().rev() {
            for index in (0..cluster.parts.len()).rev() {
                let part = &cluster.parts[index];
                if part.is_current(layout, &part.vnode.state.read()) {
                    continue;
                }
                if let Some(known) = compressed.get_mut(&part.vnode.ino) {
                    let index = |end| known.partition_point(|position| *position < end);
                    let changed = index(part.first)..index(part.end());
                    known.drain(changed);
                }
                cluster.parts.remove(index);
            }
        }
        chosen.retain_mut(|file| {
            let Some(known) = compressed.get(&file.vnode.ino) else { return false };
            let is_small = file.vnode.state.read().inode.size <= layout.small_bytes_max();
            let is_known = |position: &FileBlock| known.binary_search(position).is_ok();
            match is_small {
                true => file.positions.iter().all(is_known),
                false => {
                    file.positions.retain(is_known);
                    !file.positions.is_empty()
                }
            }
        });
        Waiting::new(self.0, chosen)
    }
}

fn pack<'a>(
    inodes: &InodeCache,
    level: i32,
    wanted: impl Iterator<Item = &'a Chosen>,
) -> Vec<Cluster> {
    if !inodes.features.groups || !inodes.features.content_checksum {
        return Vec::new();
    }
    let fragment_bytes = u64::from(inodes.layout.fragment_bytes);
    let mut packer = Packer {
        inodes,
        fragments_max: (inodes.cache.tuning().writing.cluster_bytes / fragment_bytes) as u32,
        filled: 0,
        key: None,
        open: Vec::new(),
        full: Vec::new(),
        new_keys: Default::default(),
    };
    wanted.for_each(|file| packer.add(file));
    packer.close();
    compress(inodes, level, packer.full)
}

impl Packer<'_> {
    fn add(&mut self, chosen: &Chosen) {
        let layout = &self.inodes.layout;
        let vnode = &chosen.vnode;
        let file = vnode.state.read();
        if file.inode.file_type != FileType::Regular || chosen.positions.is_empty() {
            return;
        }
        let key = file.inode.placement_key();
        let size = file.inode.size;
        let is_small = size <= layout.small_bytes_max();
        let blocks = layout.file_block_from(size).0;
        if is_small && size > u64::from(self.fragments_max) * u64::from(layout.fragment_bytes) {
            // Segments are longer than clusters: a small file has one checksum, and stays in one piece.
            return;
        }
        if is_small && chosen.positions.len() as u64 == blocks {
            if let Some(part) = Part::new(layout, vnode, &file, 0..blocks, true) {
                drop(file);
                self.push(key, part);
            }
        } else if !is_small {
            let piece = u64::from(self.fragments_max / layout.block_fragments());
            let is_hopeful = vnode.incompressible.load(Ordering::Relaxed) < TRIES;
            let parts: Vec<Part> = chosen
                .positions
                .chunk_by(|one, next| one.0 / piece == next.0 / piece)
                .filter(|part| is_hopeful || (part[0].0 / piece).is_multiple_of(TRIED_PERIOD))
                .map(|part| part[0].0..part[part.len() - 1].0 + 1)
                // The file may have become shorter.
                .filter(|part| part.end <= blocks)
                .filter_map(|part| Part::new(layout, vnode, &file, part, false))
                .collect();
            drop(file);
            parts.into_iter().for_each(|part| self.push(key, part));
        }
    }

    fn push(&mut self, key: Key, part: Part) {
        let fits = self.filled + part.len <= self.fragments_max;
        // Files of several directories share a cluster only while all of them are being made: they are next
        // to each other, and are read together.
        let belongs = self.key.is_none_or(|last| last == key)
            || self.key.is_some_and(|last| self.is_new(last) && self.is_new(key));
        if !fits || !belongs {
            self.close();
        }
        self.key = Some(key);
        self.open.push(Part { offset: self.filled, ..part });
        self.filled += self.open.last().map_or(0, |part| part.len);
    }

    fn is_new(&mut self, key: Key) -> bool {
        let inodes = self.inodes;
        let has_no_place = || match key.is_own() {
            true => !inodes.alloc.key_sizes.has_filled(key),
            false => {
                let dir = inodes.peek(InodeNo(key.0));
                dir.is_some_and(|dir| dir.state.read().inode.hint.len == 0)
            }
        };
        *self.new_keys.entry(key).or_insert_with(has_no_place)
    }

    fn close(&mut self) {
        let parts = std::mem::take(&mut self.open);
        if !parts.is_empty() {
            self.full.push(parts);
        }
        self.filled = 0;
        self.key = None;
    }
}

/// Compresses each group of parts, on all processors. Those that do not save enough are left out.
fn compress(inodes: &InodeCache, level: i32, groups: Vec<Vec<Part>>) -> Vec<Cluster> {
    let next = AtomicUsize::new(0);
    let groups: Vec<Mutex<Option<Vec<Part>>>> =
        groups.into_iter().map(|parts| Mutex::new(Rank::Leaf, Some(parts))).collect();
    let work = || {
        let mut clusters = Vec::new();
        let Ok(mut compressor) = Compressor::new(level) else { return clusters };
        loop {
            let index = next.fetch_add(1, Ordering::Relaxed);
            let Some(group) = groups.get(index) else { return clusters };
            let Some(parts) = group.lock().take() else { continue };
            let file = parts[0].vnode.clone();
            let is_of_large = parts[0].checksum.is_none();
            let cluster = encode(inodes, &mut compressor, parts);
            if is_of_large {
                note_result(&file.incompressible, cluster.is_some());
            }
            clusters.extend(cluster.map(|cluster| (index, cluster)));
        }
    };
    let threads = lock::processors().min(groups.len());
    let mut clusters = thread::scope(|scope| {
        let workers: Vec<_> = (1..threads).map(|_| scope.spawn(work)).collect();
        let mut clusters = work();
        for worker in workers {
            // If a worker panics, its contents are written as they are.
            clusters.extend(worker.join().unwrap_or_default());
        }
        clusters
    });
    // The pieces of a large file are placed in the order of the file.
    clusters.sort_unstable_by_key(|(index, _)| *index);
    clusters.into_iter().map(|(_, cluster)| cluster).collect()
}

/// Counts units in succession that did not become shorter. Concurrent results may be lost.
fn note_result(incompressible: &AtomicU8, is_shorter: bool) {
    let count = match is_shorter {
        true => 0,
        false => incompressible.load(Ordering::Relaxed).saturating_add(1),
    };
    incompressible.store(count, Ordering::Relaxed);
}

fn encode(
    inodes: &InodeCache,
    compressor: &mut Compressor,
    mut parts: Vec<Part>,
) -> Option<Cluster> {
    let layout = &inodes.layout;
    let fragment_bytes = layout.fragment_bytes as usize;
    let fragments: u32 = parts.iter().map(|part| part.len).sum();
    let stored_max = fragments - fragments.div_ceil(SAVED_PART);
    if stored_max < layout.block_fragments() {
        return None;
    }
    let pages: Vec<&[u8]> =
        parts.iter().flat_map(|part| &part.pages).map(|page| &page[..]).collect();
    if sample(&pages).is_some_and(|sample| !compressor.shortens(&sample)) {
        return None;
    }
    let mut raw = Vec::with_capacity(fragments as usize * fragment_bytes);
    for part in &mut parts {
        let begin = raw.len();
        part.pages.iter().for_each(|page| raw.extend_from_slice(page));
        raw.truncate(begin + part.len as usize * fragment_bytes);
        if let Some(sum) = &mut part.checksum {
            *sum = checksum::contents(0, &raw[begin..begin + part.size as usize]);
        }
    }
    let stored_max = stored_max as usize * fragment_bytes;
    let stored = compressor.encode(&raw, stored_max, inodes.checksum)?;
    Some(Cluster { parts, stored })
}

/// The beginnings of some pages, evenly distributed; `None` if there are few pages. If the codec does not
/// shorten them, the contents are assumed to be incompressible: media files and archives then cost little
/// time. Repetitions that span more than the sample are missed.
fn sample(pages: &[&[u8]]) -> Option<Vec<u8>> {
    let page = |index: usize| &pages[index * pages.len() / SAMPLE_PAGES][..SAMPLE_PAGE_BYTES];
    (pages.len() >= SAMPLE_PAGES).then(|| (0..SAMPLE_PAGES).flat_map(page).copied().collect())
}

/// The clusters that have contents of each file, until they are placed.
#[derive(Default)]
pub(crate) struct Waiting {
    clusters: Vec<Option<Cluster>>,
    of_file: HashMap<InodeNo, Vec<usize>>,
}

impl Waiting {
    /// The clusters all of whose files are among the chosen ones; parts of other files are left out.
    fn new(clusters: Vec<Cluster>, chosen: &[Chosen]) -> Waiting {
        let chosen: HashSet<InodeNo> = chosen.iter().map(|file| file.vnode.ino).collect();
        let mut of_file: HashMap<InodeNo, Vec<usize>> = Default::default();
        let mut waiting = Vec::new();
        for mut cluster in clusters {
            cluster.parts.retain(|part| chosen.contains(&part.vnode.ino));
            for part in &cluster.parts {
                of_file.entry(part.vnode.ino).or_default().push(waiting.len());
            }
            waiting.push(Some(cluster));
        }
        Waiting { clusters: waiting, of_file }
    }

    /// Takes those that have contents of this file and were not taken before.
    pub(crate) fn take(&mut self, ino: InodeNo) -> Vec<Cluster> {
        let indices = self.of_file.remove(&ino).unwrap_or_default();
        indices.into_iter().filter_map(|index| self.clusters[index].take()).collect()
    }
}

impl Counts {
    /// Counts clusters that were placed.
    pub(super) fn note_clusters(&self, placed: PlacedClusters, fragment_bytes: u32) {
        let bytes = |fragments: u64| fragments * u64::from(fragment_bytes);
        self.clusters.fetch_add(placed.clusters, Ordering::Relaxed);
        self.compressed_bytes.fetch_add(bytes(placed.raw_fragments), Ordering::Relaxed);
        self.compressed_to_bytes.fetch_add(bytes(placed.stored_fragments), Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests;
