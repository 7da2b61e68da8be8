//! How much is read, placed and written at once, and when: all in one place.
//!
//! Nearly all of it follows from one property of the device: how much it streams in the time in which it
//! gets from one place to another ([`Device::break_even_bytes`]). Less than that is hardly cheaper than
//! that much; a gap of that length is as well read as skipped; what lies in pieces of that length is read
//! at half the speed of the device at least, wherever they lie. Sizes are multiples of it. What is not a
//! size (how many misses, how many neighbours) is the same for every device.
//!
//! Each figure says where it was measured: a number is a decision record in `docs/decisions/`, and
//! *judged* means that no measurement decided between it and its half or its double.
//!
//! Stands on nothing. Does not cover what belongs to the format (`format`), to one lock or table
//! (next to it), or to the user ([`OpenOptions`](crate::vfs::OpenOptions)).

use std::time::Duration;

#[cfg(test)]
mod tests;

/// Bytes that a current disk streams in the time of a seek and half a turn: 7200 turns per minute,
/// 160 MB/s (decision 006, which also shows that disks of the 1990s lose by their own, smaller
/// figure).
pub const BREAK_EVEN_BYTES: u64 = 1 << 20;

/// New contents at which they are written ahead of their epoch: so much that some of it comes in long
/// pieces (002).
pub const EARLY_BYTES: u64 = 4 * BREAK_EVEN_BYTES;

/// New contents of one file that an fsync of another takes along: it costs about a seek (002).
pub const FSYNC_LEAVES_BYTES: u64 = BREAK_EVEN_BYTES;

/// The requests of a stream that are under way at once, where the device answers as many (013).
const STREAM_REQUESTS_MAX: u64 = 4;

/// The properties of the device from which the figures are derived.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Device {
    /// Bytes that the device streams in the time of an access elsewhere.
    pub break_even_bytes: u64,
    /// The longest request that it takes whole, if it has a limit.
    pub request_bytes_max: Option<u64>,
    /// How many reads it answers at once, as long as it takes for one.
    pub parallel: u32,
    /// The memory for what is on the device too.
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
    /// The longest read request, unless the device takes less. Four times the break-even: a longer one
    /// saves less than a fifth of an access (judged).
    pub request_bytes: u64,
    /// The first request of a run for which a reader waits, and how much of a run is taken over before
    /// it can be used (judged).
    pub request_bytes_first: u64,
    /// How long a thread takes at most from taking a run to asking the device for it, if it is not held
    /// up: the second of two adjacent runs is asked for that much later (006).
    pub head_start: Duration,
    /// Runs in flight at most: what exceeds that is not prefetched (judged).
    pub runs_max: usize,

    /// The longest read-ahead window of a sequential reader: a request, since longer windows save nothing
    /// where one is answered after the other (judged), and several where the device answers them at once
    /// (013).
    pub window_bytes_max: u64,
    /// Sequential readers that are followed at once (judged).
    pub cursors_max: usize,
    /// The first part of a prefetched run of which any block is enough for the next window to be
    /// prefetched: a reader may pass over some (judged).
    pub marked_bytes: u64,

    /// Misses at random in a region of this length, together, read the region (006).
    pub region_bytes: u64,
    /// Misses in a region before the one that reads it: the first region (006).
    pub misses_before_first: usize,
    /// The same for those that follow (006).
    pub misses_before_next: usize,
    /// Misses that are remembered (006).
    pub misses_max: usize,
    /// Regions that were read and are remembered (judged).
    pub regions_max: usize,
    /// A region that was read is forgotten when as many times the cache's bytes were read since (006).
    pub region_caches: u64,

    /// The longest plan of what a directory lists next (judged).
    pub plan_bytes_max: u64,
    /// The first plan of directories in a directory, whose sectors lie side by side; more if these lie in
    /// several places (004, 006).
    pub tree_bytes_first: u64,
    /// How many times as long as the last one a plan of files is (judged).
    pub plan_growth: u64,
    /// The same for directories: only their sectors are read, which are little but may lie in many
    /// places, so the fewer sweeps, the better (006).
    pub tree_growth: u64,
    /// A larger file has a window of its own, for which its reader waits with the rest of the directory
    /// (004).
    pub planned_file_bytes_max: u64,
    /// The longest gap that is read rather than skipped: it passes under the head in any case, up to a
    /// whole turn (006).
    pub gap_bytes: u64,
    /// The regions around the files of a batch that are read whole, where all of the volume has room in the
    /// cache, as a multiple of such a gap (007).
    pub batch_region_gaps: u64,
    /// Files that a reader in order may pass over (judged).
    pub passed_max: usize,
    /// A reader whose window is as long as this is left to it (judged).
    pub window_bytes_sufficient: u64,
    /// Sectors that a plan looks at (judged).
    pub plan_sectors_max: u32,
    /// Directories that a plan of one takes along (006).
    pub siblings_max: usize,
    /// A longer piece of theirs is worth a seek of its own (006).
    pub sibling_bytes_max: u64,
    /// Sectors of the parent that are searched for them (judged).
    pub parent_sectors_max: u32,
    /// Sectors of a directory that are searched for extent trees when it is listed (judged).
    pub listed_sectors_max: u32,

    /// The part of the cache that one window, region or order may fill: others stream too (judged).
    pub window_cache_part: u64,
    /// The part of the cache that a plan may fill, gaps included (judged).
    pub plan_cache_part: u64,
    /// The part of the cache for blocks that were used more than once: the rest holds what was
    /// prefetched until it is used (006).
    pub hot_cache_part: f64,
}

/// Where files are placed.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Placing {
    /// A larger file lies apart from the others of its directory (004).
    pub medium_bytes_max: u64,
    /// Pieces, about, in which such a file may come (004).
    pub medium_pieces_max: u32,
    /// The first reservation of a key: while a directory grows from a few files to many, each one is one
    /// place more to which a reader has to go (006).
    pub reservation_bytes_first: u64,
    /// The longest one (judged).
    pub reservation_bytes_max: u64,
    /// How many times as long as the last one a reservation is (judged).
    pub reservation_growth: u32,
    /// The part of what is free that all reservations of files hold at most, in eighths (004).
    pub reserved_eighths: u64,
    /// Reservations, and keys with known home extents, that are kept at once (judged).
    pub reservations_max: usize,
    /// Home extents of a key that are remembered (judged).
    pub home_runs_max: usize,

    /// The longest reservation of sectors, of one directory or of all (004).
    pub sectors_bytes_max: u64,
    /// The first reservation of sectors of one directory: what is not used of it yet is read with the
    /// others' sectors (004).
    pub sectors_bytes_first: u64,
    /// Later ones are this part of what the directory has (004).
    pub sectors_part: u64,
    /// Cylinder groups that have a zone in common (004).
    pub zone_groups: u32,
    /// The part of their groups that a zone is. Names and inodes take a hundredth where files are of the
    /// usual sizes, and a fourteenth where all have 4 KiB (004).
    pub zone_part: u64,
    /// The zone's parts of which the second is for urgent files (002).
    pub urgent_zone_parts: u32,
    /// A reservation of urgent files (002).
    pub urgent_bytes: u64,
    /// The part of a segment from which on small files of a directory are not urgent where a journal takes
    /// them (004).
    pub journaled_part: u64,
    /// With less than this part of the space free, nothing is set aside for sectors (judged).
    pub short_part: u64,
    /// Zones that files took from are theirs again when this part of the space is free (judged).
    pub zones_open_part: u64,

    /// Blocks set aside for metadata: this part of the volume's (judged).
    pub pool_part: u64,
    /// Bounds of the metadata pool, in blocks: minimum and maximum (judged).
    pub pool_blocks: (u64, u64),
    /// A file of up to this many times the small ones counts to the home extents of its directory (judged).
    pub home_file_factor: u64,
}

/// How much is written, and when.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Writing {
    /// Adjacent blocks that are written at once, about: several requests of a device, so that it has the
    /// next when it is done with one (judged).
    pub run_bytes: u64,
    /// Contents are written ahead of their epoch in pieces of this length (002).
    pub piece_bytes: u64,
    /// Keys take turns if a larger part of them than this has small files both among the older ones and
    /// among the younger ones: then all wait for the epoch (002).
    pub turns_part: usize,
    /// If more than this part of the bytes to write was read meanwhile, the device would go back and
    /// forth: all of it waits for the epoch (002).
    pub reads_part: u64,
    /// Changed pages of derived state that stay in memory at most, while the rest is written (judged).
    pub derived_bytes_max: u64,
    /// The longest that the leader of a group commit waits for others: as long as ext4's journal does
    /// (002).
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

    /// The figures for a disk of today without a limit on requests, and a cache of this size.
    pub fn for_cache(cache_bytes: u64) -> Tuning {
        let (break_even_bytes, request_bytes_max, parallel) = (BREAK_EVEN_BYTES, None, 1);
        Tuning::new(Device { break_even_bytes, request_bytes_max, parallel, cache_bytes })
    }

    /// The blocks that the cache holds.
    pub fn cache_blocks(&self, block_bytes: u32) -> u64 {
        (self.device.cache_bytes / u64::from(block_bytes)).max(16)
    }

    /// The longest run in blocks that the device is asked for at once. The kernel cuts what is longer than
    /// a disk takes, and sends the pieces in any order. So it is what the disk takes, or if that is
    /// little, as many times that as come to the first request of a run.
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

    /// How many whole segments of the volume this many bytes are; one at least.
    pub fn segments(bytes: u64, segment_bytes: u32) -> u32 {
        u32::try_from(bytes / u64::from(segment_bytes)).unwrap_or(u32::MAX).max(1)
    }
}

impl Writing {
    fn new(access: u64) -> Writing {
        Writing {
            run_bytes: 8 * access,
            piece_bytes: access,
            turns_part: 4,
            reads_part: 2,
            derived_bytes_max: 16 * access,
            group_commit_wait_max: Duration::from_millis(15),
            background_wait_max: Duration::from_secs(10),
        }
    }
}
