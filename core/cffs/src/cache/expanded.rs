//! Expanded clusters: the second identity of contents that are compressed on the device.
//!
//! The cache keeps blocks as the device has them, and expands a cluster when a file in it is read. The
//! expanded bytes of the last clusters stay, because the other files in them are likely to be read next.

use std::sync::Arc;

use quick_cache::Weighter;

use crate::format::cluster::CLUSTER_BYTES_MAX;
use crate::units::FragNo;

/// The part of the cache that expanded clusters may have.
const CACHE_PART: u64 = 8;
/// One cluster always finds room.
const BYTES_MIN: u64 = CLUSTER_BYTES_MAX as u64;

#[derive(Clone)]
struct ByBytes;

impl Weighter<FragNo, Arc<Vec<u8>>> for ByBytes {
    fn weight(&self, _: &FragNo, raw: &Arc<Vec<u8>>) -> u64 {
        raw.len() as u64
    }
}

type Map = quick_cache::sync::Cache<FragNo, Arc<Vec<u8>>, ByBytes>;

/// Expanded clusters, by the first fragment of each.
pub struct Expanded(Map);

impl Expanded {
    /// Divides a cache of this many bytes: blocks, and expanded clusters if the volume may have any.
    pub(super) fn divide(cache_bytes: u64, has_clusters: bool) -> (u64, Expanded) {
        let bytes = match has_clusters {
            true => (cache_bytes / CACHE_PART).max(BYTES_MIN),
            false => 0,
        };
        let expanded = Map::with_weighter((bytes >> 16) as usize, bytes, ByBytes);
        (cache_bytes.saturating_sub(bytes), Expanded(expanded))
    }

    /// The cluster that begins at this fragment, if it is in memory.
    pub fn get(&self, start: FragNo) -> Option<Arc<Vec<u8>>> {
        self.0.get(&start)
    }

    /// Keeps a cluster. The caller holds the lock of a file that refers to it, so the cluster is not freed
    /// meanwhile.
    pub fn keep(&self, start: FragNo, raw: Arc<Vec<u8>>) {
        self.0.insert(start, raw);
    }

    /// The number of expanded clusters of 64 KiB that fit.
    pub fn clusters_max(&self) -> usize {
        (self.0.capacity() >> 16) as usize
    }

    /// Forgets the cluster that began here: another one takes its place.
    pub fn forget(&self, start: FragNo) {
        self.0.remove(&start);
    }

    /// Memory of the expanded contents, in bytes.
    pub(super) fn memory_bytes(&self) -> u64 {
        self.0.weight()
    }
}
