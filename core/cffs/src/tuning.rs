//! The figures by which the layers decide how much to read, place and write at once, and when.
//!
//! Nearly all of them follow from one property of the device: the bytes that it streams in the time of one
//! seek ([`Device::break_even_bytes`]). Reading less than that saves little; a gap of that length costs as
//! much to skip as to read; and data in pieces of that length is read at half of the device's speed or
//! faster, wherever the pieces are. Sizes are multiples of it. Figures that are not sizes (numbers of misses
//! or neighbours) are the same for every device.
//!
//! Each figure says where it was measured: a number is a decision record in `docs/decisions/`, and
//! *judged* means that no measurement decided between it and its half or its double.
//!
//! Stands on nothing. Figures of the format are in `format`, those of one lock or table next to it, and those
//! that users choose in [`OpenOptions`](crate::vfs::OpenOptions).

use std::time::Duration;

#[cfg(test)]
mod tests;

/// Bytes that a current disk streams in the time of a seek and half a turn: 7200 turns per minute, 160 MB/s
/// (decision 006, which also shows that disks of the 1990s are slower with their own, smaller figure).
pub const BREAK_EVEN_BYTES: u64 = 1 << 20;

/// The amount of new contents that is written ahead of its epoch: enough for some of it to be in long pieces
/// (002).
pub const EARLY_BYTES: u64 = 4 * BREAK_EVEN_BYTES;

/// The new contents of a file that an fsync of another file still writes: this costs about a seek (002).
pub const FSYNC_LEAVES_BYTES: u64 = BREAK_EVEN_BYTES;

/// The bytes of sectors up to which a directory is scanned and recovered as a whole: what a disk streams in
/// a fraction of a seek (judged).
pub const LARGE_DIR_BYTES: u64 = 64 << 10;

/// The most concurrent requests of one stream, on a device that answers several at once (013).
const STREAM_REQUESTS_MAX: u64 = 4;

/// The properties of the device from which the figures are derived.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Device {
    /// Bytes that the device streams in the time of one seek.
    pub break_even_bytes: u64,
    /// The longest request that the device accepts, if it has a limit.
    pub request_bytes_max: Option<u64>,
    /// The number of reads that it answers concurrently, in the time of one.
    pub parallel: u32,
    /// The size of the buffer cache, which holds clean blocks.
    pub cache_bytes: u64,
}

impl Device {
    /// Whether the device has no arm: requests need no order, and their delays overlap.
    pub fn is_parallel(&self) -> bool {
        self.parallel > 1
    }
}

/// All figures.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Tuning {
    /// The properties from which they are derived.
    pub device: Device,
    /// Figures of reads.
    pub reading: Reading,
    /// Where files are placed.
    pub placing: Placing,
    /// Figures of writes.
    pub writing: Writing,
}

/// How much is read, and when.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Reading {
    /// The longest read request, unless the device accepts less. Four times the break-even: a longer one
    /// saves less than a fifth of a seek (judged).
    pub request_bytes: u64,
    /// The first request of a run that a reader waits for, and the part of a run that must have arrived
    /// before it can be used (judged).
    pub request_bytes_first: u64,
    /// The delay of the second of two adjacent runs. A thread takes at most this long from taking a run to
    /// sending its request, unless it is held up (006).
    pub head_start: Duration,
    /// The most runs in flight; beyond that nothing is prefetched (judged).
    pub runs_max: usize,

    /// The longest read-ahead window of a sequential reader: one request on a device that answers one after
    /// the other, since longer windows save nothing there (judged); several on a device that answers them
    /// concurrently (013).
    pub window_bytes_max: u64,
    /// Sequential readers that are followed at once (judged).
    pub cursors_max: usize,
    /// Length of the first part of a prefetched run. Reading any block of it starts the next window, since a
    /// reader may skip some blocks (judged).
    pub marked_bytes: u64,

    /// The length of a region: enough random misses in one region make the cache read all of it (006).
    pub region_bytes: u64,
    /// Misses in a region before it is read, for the first region (006).
    pub misses_before_first: usize,
    /// The same for later regions (006).
    pub misses_before_next: usize,
    /// Misses that are remembered (006).
    pub misses_max: usize,
    /// Regions that were read and are remembered (judged).
    pub regions_max: usize,
    /// A region is forgotten when this many times the cache's size has been read since (006).
    pub region_caches: u64,

    /// The longest plan of files and directories that are listed next (judged).
    pub plan_bytes_max: u64,
    /// The first plan of subdirectories, whose sectors are adjacent; more if the sectors are in several
    /// places (004, 006).
    pub tree_bytes_first: u64,
    /// The growth factor from one plan of files to the next (judged).
    pub plan_growth: u64,
    /// The same for plans of directories. Only their sectors are read, which are small but may be in many
    /// places, so fewer sweeps are better (006).
    pub tree_growth: u64,
    /// Larger files are not part of a plan: they have a read-ahead window of their own (004).
    pub planned_file_bytes_max: u64,
    /// The longest gap that is read rather than skipped, since it passes under the head in any case: up to a
    /// whole turn (006).
    pub gap_bytes: u64,
    /// The length of the regions around the files of a batch that are read whole if the volume fits in the
    /// cache, as a multiple of `gap_bytes` (007).
    pub batch_region_gaps: u64,
    /// Files that a reader in directory order may skip (judged).
    pub passed_max: usize,
    /// A reader with a window of this length needs no plan (judged).
    pub window_bytes_sufficient: u64,
    /// The most sectors that a plan examines (judged).
    pub plan_sectors_max: u32,
    /// The most sibling directories that a plan of one directory includes (006).
    pub siblings_max: usize,
    /// Siblings' pieces up to this length are included; a longer one is worth a seek of its own (006).
    pub sibling_bytes_max: u64,
    /// Sectors of the parent that are searched for siblings (judged).
    pub parent_sectors_max: u32,
    /// Sectors of a directory that are searched for extent trees when it is listed (judged).
    pub listed_sectors_max: u32,

    /// The part of the cache that one window, region or order may fill, since there are other streams
    /// (judged).
    pub window_cache_part: u64,
    /// The part of the cache that a plan may fill, gaps included (judged).
    pub plan_cache_part: u64,
    /// The part of the cache for blocks that were used more than once. The rest holds prefetched blocks until
    /// they are used (006).
    pub hot_cache_part: f64,
}

/// Where files are placed.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Placing {
    /// Larger files are placed apart from the others of their directory (004).
    pub medium_bytes_max: u64,
    /// Roughly the most pieces of such a file (004).
    pub medium_pieces_max: u32,
    /// The first reservation of a directory, and of the shared one. While a directory grows from a few files
    /// to many, each further reservation costs its readers one more seek (006).
    pub reservation_bytes_first: u64,
    /// The longest reservation (judged).
    pub reservation_bytes_max: u64,
    /// The growth factor from one reservation to the next (judged).
    pub reservation_growth: u32,
    /// The most free space that file reservations may hold together, in eighths (004).
    pub reserved_eighths: u64,
    /// The most reservations, and the most keys with known home extents (judged).
    pub reservations_max: usize,
    /// The most keys of files' own whose sizes are known (judged).
    pub key_sizes_max: usize,
    /// The most home extents that are remembered per key (judged).
    pub home_runs_max: usize,

    /// The longest reservation of sectors, for one directory or a shared one (004).
    pub sectors_bytes_max: u64,
    /// The first reservation of sectors of one directory. Its unused part is read along with the sectors of
    /// other directories (004).
    pub sectors_bytes_first: u64,
    /// Later ones are this part of the directory's size (004).
    pub sectors_part: u64,
    /// The number of cylinder groups that share a zone (004).
    pub zone_groups: u32,
    /// The part of its groups that a zone takes up. Names and inodes need a hundredth with files of the usual
    /// sizes, and a fourteenth if all have 4 KiB (004).
    pub zone_part: u64,
    /// The number of parts of a zone; the second part is for urgent files (002).
    pub urgent_zone_parts: u32,
    /// The length of a reservation for urgent files (002).
    pub urgent_bytes: u64,
    /// With a journal, small files of a directory that fill at least this part of a segment are not urgent
    /// (004).
    pub journaled_part: u64,
    /// With less than this part of the space free, nothing is set aside for sectors (judged).
    pub short_part: u64,
    /// Zones whose space was given to files are reserved for sectors again when this part of the space is
    /// free (judged).
    pub zones_open_part: u64,

    /// The metadata pool: this part of the volume's blocks (judged).
    pub pool_part: u64,
    /// Bounds of the metadata pool, in blocks: minimum and maximum (judged).
    pub pool_blocks: (u64, u64),
    /// A file of up to this many times the small ones counts to the home extents of its directory (judged).
    pub home_file_factor: u64,
}

/// How much is written, and when.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Writing {
    /// Roughly the most adjacent blocks that are written at once: several device requests, so that the device
    /// always has a next one (judged).
    pub run_bytes: u64,
    /// The length of the pieces in which contents are written ahead of their epoch (002).
    pub piece_bytes: u64,
    /// Contents that are compressed together, in bytes (024).
    pub cluster_bytes: u64,
    /// Keys take turns if more than this part of them has small files both among the older and the younger
    /// changes; then all contents wait for the epoch (002).
    pub turns_part: usize,
    /// If callers read more than this part of the bytes to write meanwhile, the device would seek back and
    /// forth, so all contents wait for the epoch (002).
    pub reads_part: u64,
    /// The most changed pages of derived state that stay in memory; the rest is written (judged).
    pub derived_bytes_max: u64,
    /// Directories with more bytes of sectors have an index, and the intent log lists their changes by block
    /// (judged).
    pub large_dir_bytes: u64,
    /// The longest time for which the leader of a group commit waits for others, as in ext4's journal (002).
    pub group_commit_wait_max: Duration,
    /// How long a thread waits for the background before it writes the epoch itself (judged).
    pub background_wait_max: Duration,
}

impl Tuning {
    /// The figures for a device.
    pub fn new(device: Device) -> Tuning {
        let access = device.break_even_bytes.max(1);
        Tuning {
            device,
            reading: Reading::new(access, device.parallel),
            placing: Placing::new(access),
            writing: Writing::new(access),
        }
    }

    /// The figures for a current disk without a limit on requests, and a cache of this size.
    pub fn for_cache(cache_bytes: u64) -> Tuning {
        let (break_even_bytes, request_bytes_max, parallel) = (BREAK_EVEN_BYTES, None, 1);
        Tuning::new(Device { break_even_bytes, request_bytes_max, parallel, cache_bytes })
    }

    /// The blocks that the cache holds.
    pub fn cache_blocks(&self, block_bytes: u32) -> u64 {
        (self.device.cache_bytes / u64::from(block_bytes)).max(16)
    }

    /// The longest request in blocks. The kernel splits requests longer than the disk accepts and sends the
    /// pieces in any order. So this is the disk's limit, or if that is small, the largest multiple of it
    /// within the first request of a run.
    pub fn request_blocks(&self, block_bytes: u32) -> u64 {
        let blocks = |bytes: u64| bytes / u64::from(block_bytes);
        let first = blocks(self.reading.request_bytes_first).max(1);
        let longest = blocks(self.reading.request_bytes).max(first);
        match self.device.request_bytes_max.map(blocks) {
            Some(0) => first,
            Some(little) if little < first => first / little * little,
            most => {
                let part = self.cache_blocks(block_bytes) / self.reading.window_cache_part;
                most.unwrap_or(longest).min(part.clamp(first, longest))
            }
        }
    }

    /// The bytes that a plan may read at most.
    pub fn plan_bytes_max(&self) -> u64 {
        self.reading.plan_bytes_max.min(self.plan_room())
    }

    /// The bytes that a plan may bring into the cache, gaps included.
    pub fn plan_room(&self) -> u64 {
        self.device.cache_bytes / self.reading.plan_cache_part
    }
}

impl Reading {
    fn new(access: u64, parallel: u32) -> Reading {
        let request_bytes = 4 * access;
        Reading {
            request_bytes,
            request_bytes_first: access,
            head_start: Duration::from_micros(200),
            runs_max: 1024,

            window_bytes_max: request_bytes * u64::from(parallel).clamp(1, STREAM_REQUESTS_MAX),
            cursors_max: 16,
            marked_bytes: access / 4,

            region_bytes: 4 * access,
            misses_before_first: 2,
            misses_before_next: 1,
            misses_max: 32,
            regions_max: 256,
            region_caches: 4,

            plan_bytes_max: 16 * access,
            tree_bytes_first: access,
            plan_growth: 2,
            tree_growth: 16,
            planned_file_bytes_max: 4 * access,
            gap_bytes: access,
            batch_region_gaps: 2,
            passed_max: 4,
            window_bytes_sufficient: access / 4,
            plan_sectors_max: 64,
            siblings_max: 8,
            sibling_bytes_max: 2 * access,
            parent_sectors_max: 8,
            listed_sectors_max: 1024,

            window_cache_part: 16,
            plan_cache_part: 8,
            hot_cache_part: 0.5,
        }
    }
}

impl Placing {
    fn new(access: u64) -> Placing {
        Placing {
            medium_bytes_max: 2 * access,
            medium_pieces_max: 4,
            reservation_bytes_first: access,
            reservation_bytes_max: 8 * access,
            reservation_growth: 16,
            reserved_eighths: 7,
            reservations_max: 2048,
            key_sizes_max: 16 << 10,
            home_runs_max: 64,

            sectors_bytes_max: access,
            sectors_bytes_first: access / 32,
            sectors_part: 4,
            zone_groups: 16,
            zone_part: 32,
            urgent_zone_parts: 4,
            urgent_bytes: access,
            journaled_part: 4,
            short_part: 16,
            zones_open_part: 8,

            pool_part: 64,
            pool_blocks: (8, 512),
            home_file_factor: 4,
        }
    }

    /// The number of whole segments in this many bytes; at least one.
    pub fn segments(bytes: u64, segment_bytes: u32) -> u32 {
        u32::try_from(bytes / u64::from(segment_bytes)).unwrap_or(u32::MAX).max(1)
    }
}

impl Writing {
    fn new(access: u64) -> Writing {
        Writing {
            run_bytes: 8 * access,
            piece_bytes: access,
            cluster_bytes: 64 << 10,
            turns_part: 4,
            reads_part: 2,
            derived_bytes_max: 16 * access,
            large_dir_bytes: LARGE_DIR_BYTES,
            group_commit_wait_max: Duration::from_millis(15),
            background_wait_max: Duration::from_secs(10),
        }
    }
}
