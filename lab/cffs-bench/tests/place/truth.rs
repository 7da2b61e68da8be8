//! Emulated disks for `place disk`, and the difference of its findings from their true properties.

use std::path::Path;

use anyhow::{Context, Result};
use cffs_bench::disk::profile::{DiskSpec, Spec};
use cffs_bench::disk::seek::SeekCurve;
use cffs_bench::disk::{Counters, Profile, Stroke};
use cffs_bench::serve::media::Media;
use cffs_bench::serve::server::{DiskServer, LoopDevice};
use cffs_place::disk::{Disk, Drive, FileDrive, Writable, measure};

/// The disks.
pub const DISKS: [Profile; 4] =
    [Profile::St31200, Profile::AtlasIi, Profile::Hdd7200, Profile::Hdd7200WriteThrough];

/// The maximum duration in seconds.
pub const SECONDS_MAX: f64 = 10.0;

/// The size of a volume that is the whole disk, on a smaller scale if that is larger.
pub fn size_of(profile: Profile) -> u64 {
    if profile == Profile::St31200 { 980 << 20 } else { 8 << 30 }
}

/// The quantity that a figure describes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Rotations per minute, within 1%.
    Turns,
    /// A seek in milliseconds, within 5%.
    Seek,
    /// The bandwidth of a zone in bytes per second, within 5%.
    Bandwidth,
    /// The beginning of a zone, as a fraction of the disk, within a sixteenth of the disk.
    Zone,
    /// The bytes that the drive reads ahead, within a factor of two.
    ReadAhead,
}

/// A figure that was found.
#[derive(Clone, Debug)]
pub struct Figure {
    /// The quantity.
    pub kind: Kind,
    /// The value that `place disk` found.
    pub found: f64,
    /// The true value.
    pub truth: f64,
}

impl Figure {
    /// The error: relative to the true value; for the beginning of a zone, as a fraction of the disk.
    pub fn off(&self) -> f64 {
        match self.kind {
            Kind::Zone => self.found - self.truth,
            _ => self.found / self.truth - 1.0,
        }
    }

    /// Whether the error is within its bound.
    pub fn is_met(&self) -> bool {
        let off = self.off();
        match self.kind {
            Kind::Turns => off.abs() <= 0.01,
            Kind::Seek | Kind::Bandwidth => off.abs() <= 0.05,
            Kind::Zone => off.abs() <= 1.0 / 16.0,
            Kind::ReadAhead => off <= 0.0 && off > -0.5 - 1e-9,
        }
    }
}

/// The true properties of a profile.
fn truth(profile: Profile) -> Option<DiskSpec> {
    match profile.spec() {
        Spec::Disk(disk) => Some(disk),
        Spec::Quota(_) | Spec::Flash(_) | Spec::None => None,
    }
}

/// The values found for a disk, with the true ones. Zones are compared as far as both have them.
pub fn figures(profile: Profile, disk: &Disk) -> Vec<Figure> {
    let Some(truth) = truth(profile) else { return Vec::new() };
    let mut figures = Vec::new();
    let mut add = |kind, found, truth| figures.push(Figure { kind, found, truth });
    add(Kind::Turns, disk.rpm.unwrap_or(0.0), truth.rpm);
    let (single, average, full) = (truth.seek_single_ms, truth.seek_average_ms, truth.seek_full_ms);
    let curve = SeekCurve::through(truth.cylinders, single, average, full);
    for seek in &disk.seeks {
        let distance = (seek.distance * f64::from(truth.cylinders)) as u32;
        add(Kind::Seek, seek.ms, curve.time(distance).as_secs() * 1e3);
    }
    let outermost = truth.geometry(None).streaming_rate();
    let sum: u32 = truth.zones.iter().sum();
    let mut begin = 0.0;
    for (zone, tracks) in disk.zones.iter().zip(truth.zones) {
        let rate = outermost * f64::from(*tracks) / f64::from(truth.zones[0]);
        add(Kind::Bandwidth, zone.bytes_per_second, rate);
        add(Kind::Zone, zone.first_byte as f64 / disk.size_bytes as f64, begin);
        // Zones have equally many cylinders.
        begin += f64::from(*tracks) / f64::from(sum);
    }
    let ahead = truth.buffer.read_ahead_sectors * 512;
    add(Kind::ReadAhead, disk.read_ahead_bytes as f64, ahead as f64);
    figures
}

/// Descriptions of the values that are out of their bounds.
pub fn faults(profile: Profile, disk: &Disk) -> Vec<String> {
    let missed = figures(profile, disk).into_iter().filter(|figure| !figure.is_met());
    let mut faults: Vec<String> = missed
        .map(|figure| {
            let Figure { kind, found, truth } = figure;
            format!("{}, {kind:?}: {found:.3}, in truth {truth:.3}", profile.name())
        })
        .collect();
    let zones = truth(profile).map_or(0, |truth| truth.zones.len());
    if disk.zones.len() != zones {
        faults.push(format!("{}, {zones} zones: {:?}", profile.name(), disk.zones));
    }
    if disk.rpm.is_some() && disk.seeks.len() != 4 {
        faults.push(format!("{}, seeks: {:?}", profile.name(), disk.seeks));
    }
    faults
}

/// A disk as a block device, in real time.
pub struct Served {
    device: LoopDevice,
    server: DiskServer,
    _scratch: tempfile::TempDir,
}

impl Served {
    /// A disk of this profile, with its data below `scratch`.
    pub fn start(profile: Profile, scratch: &Path) -> Result<Served> {
        let scratch = tempfile::tempdir_in(scratch)?;
        let at = scratch.path().join("served");
        std::fs::create_dir(&at)?;
        let media = Media::open(&scratch.path().join("backing"), size_of(profile))?;
        let server = DiskServer::start(profile, Stroke::Whole, media, &at)?;
        let device = LoopDevice::attach(server.file(), profile, server.request_bytes())?;
        Ok(Served { device, server, _scratch: scratch })
    }

    /// The path of the block device.
    pub fn path(&self) -> &Path {
        self.device.path()
    }

    /// The counters of the device.
    pub fn counters(&self) -> Counters {
        self.server.pacer().counters()
    }

    /// Runs `place disk`; returns its findings and the seconds that it took.
    pub fn measure(&self, writable: &Writable) -> Result<(Disk, f64)> {
        let path = self.path();
        let mut drive =
            FileDrive::open(path, writable).with_context(|| path.display().to_string())?;
        let disk = measure(&mut drive, writable, f64::INFINITY)?;
        Ok((disk, drive.now()))
    }

    /// Detaches the device, and ends the disk.
    pub fn stop(self) -> Result<()> {
        drop(self.device);
        self.server.stop()
    }
}
