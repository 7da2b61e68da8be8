//! The places of sectors: zones, cylinders, tracks, and the skew between them.
//!
//! Sectors are numbered along a track, then over the tracks of a cylinder, then inwards over the
//! cylinders. Each track starts a little later on the platter than the one before it, so that its
//! first sector arrives just after the head has switched: without skew, every sequential transfer
//! would lose a rotation per track.

use super::{Nanos, SECTOR_SIZE, Sector};

/// Consecutive cylinders whose tracks hold the same number of sectors.
#[derive(Clone, Copy, Debug)]
pub struct Zone {
    pub cylinders: u32,
    pub sectors_per_track: u32,
}

/// A cylinder and one of its surfaces.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Track {
    /// The cylinder, counted from the outermost.
    pub cylinder: u32,
    /// The surface, counted from the first.
    pub surface: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    pub track: Track,
    pub index: u32,
    pub sectors_per_track: u32,
    /// The phase of the rotation, in time, at which the sector begins to pass under the head.
    pub phase: Nanos,
}

/// The layout of a whole drive.
#[derive(Clone, Debug)]
pub struct Geometry {
    zones: Vec<ZoneStart>,
    surfaces: u32,
    rotation: Nanos,
    track_skew: Nanos,
    cylinder_skew: Nanos,
    sectors: u64,
}

#[derive(Clone, Copy, Debug)]
struct ZoneStart {
    zone: Zone,
    first_cylinder: u32,
    first_sector: u64,
}

impl Geometry {
    /// A drive with these zones, outermost first. A skew is the delay, in time, with which a track starts
    /// after the previous one: one skew for the next track of a cylinder, one for the first track of the next
    /// cylinder.
    pub fn new(
        zones: &[Zone],
        surfaces: u32,
        rotation: Nanos,
        track_skew: Nanos,
        cylinder_skew: Nanos,
    ) -> Geometry {
        let (mut starts, mut first_cylinder, mut first_sector) = (Vec::new(), 0, 0);
        for &zone in zones {
            starts.push(ZoneStart { zone, first_cylinder, first_sector });
            first_cylinder += zone.cylinders;
            first_sector +=
                u64::from(zone.cylinders) * u64::from(surfaces) * u64::from(zone.sectors_per_track);
        }
        Geometry {
            zones: starts,
            surfaces,
            rotation,
            track_skew,
            cylinder_skew,
            sectors: first_sector,
        }
    }

    pub fn sectors(&self) -> u64 {
        self.sectors
    }

    pub fn rotation(&self) -> Nanos {
        self.rotation
    }

    /// Finds a sector. A sector beyond the end of the drive counts as on its last cylinder.
    pub fn place(&self, sector: Sector) -> Place {
        let at = sector.0.min(self.sectors - 1);
        let start = self.zones[self.zones.partition_point(|z| z.first_sector <= at) - 1];
        let sectors_per_track = start.zone.sectors_per_track;
        let (tracks, index) = {
            let within = at - start.first_sector;
            (within / u64::from(sectors_per_track), within % u64::from(sectors_per_track))
        };
        let surfaces = u64::from(self.surfaces);
        let cylinder = start.first_cylinder + (tracks / surfaces) as u32;
        let surface = (tracks % surfaces) as u32;
        let index = index as u32;
        let skew = u64::from(cylinder) * (surfaces - 1) * self.track_skew.0
            + u64::from(surface) * self.track_skew.0
            + u64::from(cylinder) * self.cylinder_skew.0;
        let along = self.pass(u64::from(index), sectors_per_track);
        let phase = Nanos((skew + along.0) % self.rotation.0);
        Place { track: Track { cylinder, surface }, index, sectors_per_track, phase }
    }

    pub fn first_sector(&self, track: Track) -> Sector {
        let after = self.zones.partition_point(|z| z.first_cylinder <= track.cylinder);
        let start = self.zones[after - 1];
        let tracks = u64::from(track.cylinder - start.first_cylinder) * u64::from(self.surfaces)
            + u64::from(track.surface);
        Sector(start.first_sector + tracks * u64::from(start.zone.sectors_per_track))
    }

    /// The time in which `sectors` of one track pass under the head.
    pub fn pass(&self, sectors: u64, sectors_per_track: u32) -> Nanos {
        Nanos(self.rotation.0 * sectors / u64::from(sectors_per_track))
    }

    /// The wait, from `now`, until the platter reaches `phase`.
    pub fn wait_for(&self, phase: Nanos, now: Nanos) -> Nanos {
        let current = now.0 % self.rotation.0;
        Nanos((phase.0 + self.rotation.0 - current) % self.rotation.0)
    }

    /// Bytes per second of a long sequential transfer in the outermost zone, switches included.
    pub fn streaming_rate(&self) -> f64 {
        let zone = self.zones[0].zone;
        let surfaces = f64::from(self.surfaces);
        let bytes = surfaces * f64::from(zone.sectors_per_track) * SECTOR_SIZE as f64;
        let time = surfaces * self.rotation.as_secs()
            + (surfaces - 1.0) * self.track_skew.as_secs()
            + self.cylinder_skew.as_secs();
        bytes / time
    }
}
