//! Counters of a volume's operations and memory.

use std::sync::atomic::Ordering;

use super::OpenOptions;
use super::references::References;
use crate::device::{Journal, JournalStats};
use crate::epoch::EpochWriter;
use crate::inode::IntentLog;
use crate::memory::Kind;
use crate::namespace::Namespace;
use crate::padded::Counter;

/// The activity of a volume since it was opened, and its memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// Requested blocks that were in memory.
    pub cache_hits: u64,
    /// Requested blocks that were not in memory.
    pub cache_misses: u64,
    /// Read requests to the device.
    pub device_reads: u64,
    /// Bytes read from the device.
    pub device_read_bytes: u64,
    /// Write requests to the device.
    pub device_writes: u64,
    /// Bytes written to the device.
    pub device_written_bytes: u64,
    /// Barriers and syncs of the device.
    pub device_syncs: u64,
    /// Discards that were sent to the device.
    pub device_discards: u64,
    /// Bytes discarded.
    pub device_discarded_bytes: u64,
    /// Epochs that went to the device.
    pub epochs: u64,
    /// Epochs that a change waited for: its order needed them, or the space that they free.
    pub epochs_forced: u64,
    /// Writes of contents ahead of their epoch.
    pub early_writes: u64,
    /// Clusters that were written.
    pub clusters_written: u64,
    /// Bytes of contents that went into clusters, in whole fragments.
    pub compressed_bytes: u64,
    /// Bytes that these clusters take on the device.
    pub compressed_to_bytes: u64,
    /// Checkpoints that were reached while the volume was open.
    pub checkpoints: u64,
    /// Vnodes in memory.
    pub vnodes: u64,
    /// Bytes of changed pages in memory.
    pub dirty_bytes: u64,
    /// Calls: lookups of names.
    pub lookups: u64,
    /// Calls: files made.
    pub creates: u64,
    /// Calls: names removed.
    pub removes: u64,
    /// Calls: names changed.
    pub renames: u64,
    /// Calls: reads of contents.
    pub reads: u64,
    /// Calls: writes of contents.
    pub writes: u64,
    /// Calls: reads of directories.
    pub dir_reads: u64,
    /// Calls: fsync and the like.
    pub syncs: u64,
    /// The activity of the journal, if the volume has one.
    pub journal: Option<JournalStats>,
}

/// The memory of one kind of data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemoryUse {
    /// The kind.
    pub kind: Kind,
    /// Approximate memory in use, in bytes.
    pub bytes: u64,
    /// The limit; `None` if it follows from the volume or from the kernel. Inodes, attributes
    /// and extents share one limit.
    pub bytes_max: Option<u64>,
}

#[derive(Default)]
pub(super) struct Calls {
    pub lookups: Counter,
    pub creates: Counter,
    pub removes: Counter,
    pub renames: Counter,
    pub reads: Counter,
    pub writes: Counter,
    pub dir_reads: Counter,
    pub syncs: Counter,
}

impl Calls {
    /// The count of calls by users, and of those that changed files.
    pub(super) fn so_far(&self) -> (u64, u64) {
        let sum = |counters: &[&Counter]| counters.iter().map(|counter| counter.get()).sum::<u64>();
        let Calls { lookups, creates, removes, renames, reads, writes, dir_reads, syncs } = self;
        let changes = sum(&[creates, removes, renames, writes]);
        (changes + sum(&[lookups, reads, dir_reads, syncs]), changes)
    }
}

impl Stats {
    pub(super) fn of(writer: &EpochWriter, calls: &Calls) -> Stats {
        let EpochWriter { inodes, counts, .. } = writer;
        let cache = inodes.cache.stats();
        Stats {
            cache_hits: cache.hits,
            cache_misses: cache.misses,
            device_reads: cache.reads,
            device_read_bytes: cache.read_bytes,
            device_writes: cache.writes,
            device_written_bytes: cache.written_bytes,
            device_syncs: cache.syncs,
            device_discards: cache.discards,
            device_discarded_bytes: cache.discarded_bytes,
            epochs: counts.epochs.get(),
            epochs_forced: counts.epochs_forced.get(),
            early_writes: counts.early_writes.get(),
            clusters_written: counts.clusters.load(Ordering::Relaxed),
            compressed_bytes: counts.compressed_bytes.load(Ordering::Relaxed),
            compressed_to_bytes: counts.compressed_to_bytes.load(Ordering::Relaxed),
            checkpoints: counts.checkpoints.get(),
            vnodes: inodes.vnode_count() as u64,
            dirty_bytes: inodes.dirty_bytes(),
            lookups: calls.lookups.get(),
            creates: calls.creates.get(),
            removes: calls.removes.get(),
            renames: calls.renames.get(),
            reads: calls.reads.get(),
            writes: calls.writes.get(),
            dir_reads: calls.dir_reads.get(),
            syncs: calls.syncs.get(),
            journal: inodes.cache.device().journal().map(Journal::stats),
        }
    }
}

impl MemoryUse {
    /// That of each kind.
    pub(super) fn all(
        names: &Namespace,
        references: &References,
        options: &OpenOptions,
    ) -> Vec<MemoryUse> {
        let inodes = &names.inodes;
        let account = &inodes.memory;
        let cache_bytes = options.cache_bytes;
        Kind::ALL
            .into_iter()
            .map(|kind| {
                let charged = account.charged(kind);
                // Changed inodes, and those being written, cannot be evicted: they are bounded with the other
                // changes.
                let inodes_max = account.inode_bytes_max() + 2 * account.unwritten_bytes_max();
                let shared = (charged, Some(inodes_max));
                let (bytes, bytes_max) = match kind {
                    Kind::Inodes | Kind::Attributes | Kind::Extents => shared,
                    Kind::Pages => (charged, Some(account.unwritten_bytes_max())),
                    // Pages, and for some a copy from before the deferred changes.
                    Kind::InFlight => (charged, Some(2 * account.unwritten_bytes_max())),
                    Kind::Blocks => (inodes.cache.resident_bytes(), Some(cache_bytes)),
                    Kind::Names => {
                        let (bytes, bytes_max) = names.recent_bytes();
                        (bytes, Some(bytes_max))
                    }
                    Kind::References => (references.memory_bytes(), None),
                    Kind::Bitmaps => (inodes.alloc.bitmap_bytes(), None),
                    Kind::IntentLog => {
                        (inodes.intent_log.memory_bytes(), Some(IntentLog::memory_bytes_max()))
                    }
                };
                MemoryUse { kind, bytes, bytes_max }
            })
            .collect()
    }
}
