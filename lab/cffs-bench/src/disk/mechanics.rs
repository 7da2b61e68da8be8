//! Arm and platter: the time to reach a run of sectors and to pass over it.
//!
//! The only state is the track under the head. The rotation needs no state: the platter's phase is device
//! time modulo the time of a rotation.

use super::geometry::{Geometry, Track};
use super::seek::SeekCurve;
use super::{Nanos, Run, Sector};

/// The time of one transfer between platter and buffer, divided as in the papers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Access {
    /// Moving the arm, or switching heads, and settling.
    pub seek: Nanos,
    /// Waiting for the platter to rotate to the first sector.
    pub rotation: Nanos,
    /// Passing over the run, including switches between its tracks.
    pub transfer: Nanos,
    /// Whether the arm had to move to another cylinder.
    pub moved: bool,
}

impl Access {
    pub fn total(&self) -> Nanos {
        self.seek + self.rotation + self.transfer
    }
}

/// The moving parts of a drive.
#[derive(Clone, Debug)]
pub struct Mechanics {
    geometry: Geometry,
    seek: SeekCurve,
    head_switch: Nanos,
    write_settle: Nanos,
    head: Track,
}

impl Mechanics {
    /// A drive at rest over its first track. After a movement, a write settles `write_settle` longer than a
    /// read.
    pub fn new(
        geometry: Geometry,
        seek: SeekCurve,
        head_switch: Nanos,
        write_settle: Nanos,
    ) -> Mechanics {
        Mechanics { geometry, seek, head_switch, write_settle, head: Track::default() }
    }

    /// The layout under the head.
    pub fn geometry(&self) -> &Geometry {
        &self.geometry
    }

    /// The time that a transfer of `run` would take, starting at `now`.
    pub fn plan(&self, run: Run, write: bool, now: Nanos) -> Access {
        let (seek, moved) = self.reposition(self.head, run.first, write);
        let arrived = now + seek;
        let rotation = self.geometry.wait_for(self.geometry.place(run.first).phase, arrived);
        let begun = arrived + rotation;
        let transfer = self.sweep(run, begun).since(begun);
        Access { seek, rotation, transfer, moved }
    }

    /// The part of [`Mechanics::plan`] that a scheduler can influence: seek and rotation.
    pub fn positioning(&self, first: Sector, write: bool, now: Nanos) -> Nanos {
        let (seek, _) = self.reposition(self.head, first, write);
        seek + self.geometry.wait_for(self.geometry.place(first).phase, now + seek)
    }

    /// The first sector of the track under the head.
    pub fn head_sector(&self) -> Sector {
        self.geometry.first_sector(self.head)
    }

    /// Moves the head to the place where a transfer of `run` ends.
    pub fn finish_at(&mut self, run: Run) {
        self.head = self.geometry.place(Sector(run.end().0.saturating_sub(1))).track;
    }

    /// The time when the head has passed over `run`, if it was before its first sector at `begun`.
    pub fn sweep(&self, run: Run, begun: Nanos) -> Nanos {
        let (mut at, mut first, mut left) = (begun, run.first, run.sectors);
        loop {
            let place = self.geometry.place(first);
            let on_track = left.min(u64::from(place.sectors_per_track - place.index));
            at += self.geometry.pass(on_track, place.sectors_per_track);
            left -= on_track;
            first = Sector(first.0 + on_track);
            if left == 0 {
                return at;
            }
            at += self.reposition(place.track, first, false).0;
            at += self.geometry.wait_for(self.geometry.place(first).phase, at);
        }
    }

    /// The number of sectors from `first` on that the head has passed over by `now`, if it was before `first`
    /// at `begun`; at most `limit`.
    pub fn passed(&self, first: Sector, begun: Nanos, now: Nanos, limit: u64) -> u64 {
        let (mut at, mut passed) = (begun, 0);
        while passed < limit {
            let place = self.geometry.place(Sector(first.0 + passed));
            let on_track = (limit - passed).min(u64::from(place.sectors_per_track - place.index));
            let track_done = at + self.geometry.pass(on_track, place.sectors_per_track);
            if track_done > now {
                let each = self.geometry.rotation().0;
                let seen = now.since(at).0 * u64::from(place.sectors_per_track) / each;
                return passed + seen.min(on_track);
            }
            passed += on_track;
            at = track_done;
            let next = Sector(first.0 + passed);
            at += self.reposition(place.track, next, false).0;
            at += self.geometry.wait_for(self.geometry.place(next).phase, at);
        }
        limit
    }

    fn reposition(&self, from: Track, to: Sector, write: bool) -> (Nanos, bool) {
        let to = self.geometry.place(to).track;
        let settle = if write { self.write_settle } else { Nanos::ZERO };
        if to.cylinder != from.cylinder {
            (self.seek.time(to.cylinder.abs_diff(from.cylinder)) + settle, true)
        } else if to.surface != from.surface {
            (self.head_switch, false)
        } else {
            (Nanos::ZERO, false)
        }
    }
}
