//! The devices that C-FFS is measured on, with the source of every figure.
//!
//! The figures of the papers' disks are those of Tables 1 and 2 in USENIX'97. Figures that the papers do
//! not give are assumptions, and marked as such: buffer sizes, head-switch times, overheads.

use serde::{Deserialize, Serialize};

use super::buffer::BufferSpec;
use super::flash::FlashSpec;
use super::geometry::{Geometry, Zone};
use super::mechanics::Mechanics;
use super::quota::QuotaSpec;
use super::seek::SeekCurve;
use super::{Nanos, SECTOR_SIZE};

/// A device that can be emulated.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, clap::ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Profile {
    /// Seagate ST31200, 1 GB, 5400 rpm: the disk of USENIX'97 (Table 2).
    St31200,
    /// Hewlett-Packard C3653a, 8.7 GB, 7200 rpm (USENIX'97, Table 1).
    HpC3653a,
    /// Seagate Barracuda, 9.1 GB, 7200 rpm (USENIX'97, Table 1).
    Barracuda,
    /// Quantum Atlas II, 9.1 GB, 7200 rpm (USENIX'97, Table 1); the thesis used its family.
    AtlasIi,
    /// A 7200 rpm disk of today that streams at 160 MB/s.
    Hdd7200,
    /// The same disk without a write cache: a flush takes no time, and each write waits for the medium.
    Hdd7200WriteThrough,
    /// A solid-state disk: 80 µs per read, 32 at a time, and 3 GB/s.
    Nvme,
    /// A network volume: 3,000 requests/s and 125 MB/s.
    Net3000,
    /// A small network volume: 500 requests/s and 40 MB/s.
    Net500,
    /// No delays, only counts.
    None,
}

/// How a volume that is smaller than the disk is placed on it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Stroke {
    /// The volume is the whole disk on a smaller scale: its ends are a full stroke apart, as those of a full
    /// disk.
    #[default]
    Whole,
    /// The volume is a partition at the outer edge of the disk: all seeks are short.
    Slice,
}

/// A disk with an arm.
#[derive(Clone, Debug)]
pub struct DiskSpec {
    /// Cylinders, over all zones.
    pub cylinders: u32,
    pub surfaces: u32,
    /// Sectors per track, from the outermost zone inwards; zones have equally many cylinders.
    pub zones: &'static [u32],
    /// Rotations per minute.
    pub rpm: f64,
    /// Seek to the next cylinder, in ms.
    pub seek_single_ms: f64,
    pub seek_average_ms: f64,
    pub seek_full_ms: f64,
    /// Extra settle time of a write after a movement, compared with a read, in ms.
    pub write_settle_ms: f64,
    /// Switch to another surface of the cylinder, in ms.
    pub head_switch_ms: f64,
    /// Processing of one command, in ms; overlaps with the preceding command in the queue.
    pub overhead_ms: f64,
    /// Bytes per second between buffer and host.
    pub bus_bytes_per_sec: f64,
    pub buffer: BufferSpec,
    /// Bytes of volatile write cache; zero for none.
    pub write_cache_bytes: u64,
    /// The number of commands among which the drive chooses.
    pub queue_depth: usize,
}

/// The kind of device that a profile describes.
#[derive(Clone, Debug)]
pub enum Spec {
    Disk(DiskSpec),
    Quota(QuotaSpec),
    Flash(FlashSpec),
    None,
}

/// The Atlas II, with the figures that the drives of Table 1 share.
const TABLE_1: DiskSpec = DiskSpec {
    cylinders: 5964,
    surfaces: 20,
    // Zones between the two ends of "108-180" are assumed to be equal steps.
    zones: &[180, 168, 156, 144, 132, 120, 108],
    rpm: 7200.0,
    seek_single_ms: 1.0,
    seek_average_ms: 7.9,
    seek_full_ms: 18.0,
    // Assumed, since the table has "N/A": a value between those of the two other drives.
    write_settle_ms: 1.0,
    head_switch_ms: 0.9,
    // Assumed for all three: a 20 MB/s bus, 1 MiB of buffer in eight segments.
    overhead_ms: 0.4,
    bus_bytes_per_sec: 20e6,
    buffer: buffer(8, 128 * KIB, 128 * KIB),
    write_cache_bytes: 0,
    queue_depth: 32,
};

/// The HP C3653a.
const HP_C3653A: DiskSpec = DiskSpec {
    cylinders: 5371,
    // Zones between the two ends of "124-173" are assumed, so that the capacity is the table's.
    zones: &[173, 171, 168, 164, 158, 148, 124],
    // Of "< 1 ms", the limit.
    seek_single_ms: 1.0,
    seek_average_ms: 8.7,
    seek_full_ms: 16.5,
    write_settle_ms: 0.8,
    head_switch_ms: 1.0,
    ..TABLE_1
};

/// The Seagate Barracuda.
const BARRACUDA: DiskSpec = DiskSpec {
    cylinders: 5333,
    // Zones between the two ends of "153-239" are assumed, so that the capacity is the table's.
    zones: &[239, 175, 158, 155, 154, 153, 153],
    seek_single_ms: 0.6,
    seek_average_ms: 8.0,
    seek_full_ms: 19.0,
    write_settle_ms: 1.5,
    // Assumed, since the table has "N/A".
    head_switch_ms: 0.6,
    ..TABLE_1
};

/// A drive for workstations. All figures are assumed.
const NVME: FlashSpec = FlashSpec {
    channels: 32,
    read_latency: Nanos(80_000),
    write_latency: Nanos(20_000),
    flush_latency: Nanos(500_000),
    bytes_per_sec: 3e9,
};

const KIB: u64 = 1024;
const MIB: u64 = 1024 * KIB;

impl Profile {
    /// The figures of this device.
    pub fn spec(self) -> Spec {
        match self {
            Profile::St31200 => Spec::Disk(DiskSpec {
                // Table 2. Of "9/10.5 ms" the first is for reads, the difference is write settling.
                cylinders: 2700,
                surfaces: 9,
                zones: &[84],
                rpm: 5400.0,
                seek_single_ms: 1.0,
                seek_average_ms: 9.0,
                seek_full_ms: 22.0,
                write_settle_ms: 1.5,
                // Assumed, since the table has "N/A": a switch takes about as long as a single-cylinder seek.
                head_switch_ms: 1.0,
                // Assumed: SCSI-2 of that time, 10 MB/s, 256 KiB of buffer in four segments.
                overhead_ms: 0.7,
                bus_bytes_per_sec: 10e6,
                buffer: buffer(4, 64 * KIB, 64 * KIB),
                write_cache_bytes: 0,
                queue_depth: 32,
            }),
            Profile::HpC3653a => Spec::Disk(HP_C3653A),
            Profile::Barracuda => Spec::Disk(BARRACUDA),
            Profile::AtlasIi => Spec::Disk(TABLE_1),
            Profile::Hdd7200 => Spec::Disk(DiskSpec {
                // All figures are assumed, as in data sheets of such drives. One zone, so that results do not
                // depend on the place of the volume. 2,928 sectors per track give 160 MB/s with head
                // switches; eight surfaces give 3 TB.
                cylinders: 250_000,
                surfaces: 8,
                zones: &[2928],
                rpm: 7200.0,
                seek_single_ms: 0.8,
                seek_average_ms: 8.5,
                seek_full_ms: 18.0,
                write_settle_ms: 1.0,
                head_switch_ms: 1.0,
                overhead_ms: 0.05,
                bus_bytes_per_sec: 600e6,
                buffer: buffer(32, 2 * MIB, MIB),
                write_cache_bytes: 32 * MIB,
                queue_depth: 32,
            }),
            Profile::Hdd7200WriteThrough => match Profile::Hdd7200.spec() {
                Spec::Disk(disk) => Spec::Disk(DiskSpec { write_cache_bytes: 0, ..disk }),
                other => other,
            },
            Profile::Nvme => Spec::Flash(NVME),
            Profile::Net3000 => Spec::Quota(QuotaSpec {
                requests_per_sec: 3000.0,
                bytes_per_sec: 125e6,
                // Assumed: large providers count up to 256 KiB as one request.
                request_bytes_max: 256 * KIB,
                latency: Nanos(700_000),
            }),
            Profile::Net500 => Spec::Quota(QuotaSpec {
                requests_per_sec: 500.0,
                bytes_per_sec: 40e6,
                request_bytes_max: 256 * KIB,
                latency: Nanos(1_500_000),
            }),
            Profile::None => Spec::None,
        }
    }

    /// The name on the command line and in reports.
    pub fn name(self) -> String {
        clap::ValueEnum::to_possible_value(&self)
            .map_or_else(String::new, |value| value.get_name().to_owned())
    }

    /// Bytes per second of a long sequential transfer: the limit that results are compared with.
    pub fn streaming_rate(self) -> Option<f64> {
        match self.spec() {
            Spec::Disk(disk) => Some(disk.geometry(None).streaming_rate()),
            Spec::Quota(quota) => Some(quota.bytes_per_sec),
            Spec::Flash(flash) => Some(flash.bytes_per_sec),
            Spec::None => None,
        }
    }

    /// Whether writes are acknowledged before they are on the medium.
    pub fn has_write_cache(self) -> bool {
        match self.spec() {
            Spec::Disk(disk) => disk.write_cache_bytes > 0,
            Spec::Flash(_) => true,
            Spec::Quota(_) | Spec::None => false,
        }
    }

    /// The unit in bytes that the device writes atomically, and in which it is addressed.
    pub fn sector_size(self) -> u32 {
        match self {
            Profile::St31200 | Profile::HpC3653a | Profile::Barracuda | Profile::AtlasIi => 512,
            _ => 4096,
        }
    }

    /// Whether the kernel should treat the device as a disk with an arm.
    pub fn is_rotational(self) -> bool {
        matches!(self.spec(), Spec::Disk(_))
    }
}

impl DiskSpec {
    /// The mechanics of a drive with a volume of `size` bytes.
    pub fn mechanics(&self, size: u64, stroke: Stroke) -> Mechanics {
        let shrunk = match stroke {
            Stroke::Whole => Some(size),
            Stroke::Slice => None,
        };
        let geometry = self.geometry(shrunk);
        assert!(size <= geometry.sectors() * SECTOR_SIZE, "the volume is larger than the disk");
        let full = self.cylinders;
        let curve =
            SeekCurve::through(full, self.seek_single_ms, self.seek_average_ms, self.seek_full_ms);
        let shown = self.cylinders_shown(shrunk);
        let curve = curve.scaled(f64::from(full - 1) / f64::from((shown - 1).max(1)));
        let ms = Nanos::from_ms;
        Mechanics::new(geometry, curve, ms(self.head_switch_ms), ms(self.write_settle_ms))
    }

    /// The layout of the whole drive, or of a drive that is shrunk to hold just `size` bytes.
    pub fn geometry(&self, size: Option<u64>) -> Geometry {
        let cylinders = self.cylinders_shown(size);
        let count = self.zones.len() as u32;
        let zones: Vec<Zone> = (0..count)
            .map(|i| Zone {
                // The zones differ by at most one cylinder, and together have all cylinders.
                cylinders: cylinders * (i + 1) / count - cylinders * i / count,
                sectors_per_track: self.zones[i as usize],
            })
            .collect();
        let rotation = Nanos::from_ms(60e3 / self.rpm);
        // Slightly more than the switch itself; otherwise rounding would cost a rotation per track.
        let margin = 1.02;
        let track_skew = Nanos::from_ms(self.head_switch_ms * margin);
        let cylinder_skew = Nanos::from_ms(self.seek_single_ms.max(self.head_switch_ms) * margin);
        Geometry::new(&zones, self.surfaces, rotation, track_skew, cylinder_skew)
    }

    fn cylinders_shown(&self, size: Option<u64>) -> u32 {
        let Some(size) = size else { return self.cylinders };
        let tracks: u64 = self.zones.iter().map(|&s| u64::from(s)).sum();
        let mean_cylinder =
            tracks * u64::from(self.surfaces) * SECTOR_SIZE / self.zones.len() as u64;
        let needed = size.div_ceil(mean_cylinder) as u32 + self.zones.len() as u32;
        needed.max(4).min(self.cylinders)
    }
}

const fn buffer(segments: usize, segment_bytes: u64, read_ahead_bytes: u64) -> BufferSpec {
    BufferSpec {
        segments,
        segment_sectors: segment_bytes / SECTOR_SIZE,
        read_ahead_sectors: read_ahead_bytes / SECTOR_SIZE,
    }
}
