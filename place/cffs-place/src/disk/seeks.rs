//! Seek times over some distances.

use std::io;

use serde::Serialize;

use super::{Drive, Zone, timed};

/// Distances, as fractions of the disk's cylinders.
pub const DISTANCES: [f64; 4] = [1.0 / 8.0, 1.0 / 3.0, 2.0 / 3.0, 0.98];
/// Places read at each distance: more than drives have buffer segments, so that a repeated read
/// comes from the platter again.
const PLACES: usize = 36;
/// How many of them are read a second time.
const AGAIN: usize = 16;
/// The maximum time, in turns, by which the arm then arrives before or after the place.
const NEAR: f64 = 0.1;

/// How much longer than a turn the times of reads at one distance may span.
const SPAN: f64 = 1.02;

/// The fraction of the disk, at either end, in which the places are.
const STRETCH: f64 = 1.0 / 64.0;

#[derive(Clone, Copy, Debug, Serialize)]
pub struct Seek {
    /// The distance, as a fraction of all cylinders.
    pub distance: f64,
    /// The time of the seek, in milliseconds.
    pub ms: f64,
}

/// Seeks over each of the distances.
///
/// The times of reads at one distance span a turn, and the bounds of that span give the seek time.
/// The rotational position of a place is known once it was read after another. So some places are
/// read again, after pauses chosen such that the arm arrives just before or just after the place:
/// this shows both bounds as exactly as many more reads would. Distances for which there is no time are left
/// out.
pub fn measure(
    drive: &mut impl Drive,
    zones: &[Zone],
    turn: f64,
    command: f64,
    deadline: f64,
) -> io::Result<Vec<Seek>> {
    let unit = drive.unit();
    let cylinders = Cylinders::of(zones);
    let transfer = unit as f64 / zones.first().map_or(f64::MAX, |zone| zone.bytes_per_second);
    let mut seeks = Vec::new();
    let mut random: u64 = 1;
    for distance in DISTANCES {
        if drive.now() > deadline {
            break;
        }
        // Back and forth between two parts of the disk.
        let stretch = (distance / 8.0).min(STRETCH).min(1.0 - distance);
        let place = |number: usize| {
            // A multiplicative generator (Lehmer): regular distances could be in step with the
            // platter.
            random = random * 48_271 % 0x7fff_ffff;
            let begin = if number.is_multiple_of(2) { 0.0 } else { distance };
            begin + stretch * random as f64 / f64::from(0x7fff_ffff)
        };
        let places: Vec<f64> = (0..PLACES).map(place).collect();
        let mut arm = Arm { at: None, distance, buffered: command + turn / 20.0 };
        let mut samples = Vec::new();
        for at in &places {
            samples.push(arm.read(drive, *at, cylinders.offset(*at))?);
        }
        let rough = middle(samples.iter().flatten().map(|sample| sample.took), turn);
        for (number, at) in places[..AGAIN].iter().enumerate() {
            if let Some(first) = &samples[number] {
                let early = (2 * number + 1) as f64 / AGAIN as f64 - 1.0;
                let waited = first.over_the_distance(rough) - rough;
                drive.idle((waited - early * NEAR * turn).rem_euclid(turn));
            }
            samples.push(arm.read(drive, *at, cylinders.offset(*at))?);
        }
        let times = samples.iter().flatten().map(|sample| sample.over_the_distance(rough));
        let seek = middle(times, turn) - transfer - command;
        seeks.push(Seek { distance, ms: seek.max(0.0) * 1e3 });
    }
    Ok(seeks)
}

/// A read after a movement of the arm.
struct Sample {
    took: f64,
    /// How much longer than the nominal distance the movement was, as a fraction of it.
    further: f64,
}

impl Sample {
    /// The time for the nominal distance. Seeks of accelerating arms grow with the square root of
    /// the distance (Ruemmler and Wilkes 1994), so a rough estimate suffices to correct for reads
    /// that were a little nearer or further.
    fn over_the_distance(&self, rough: f64) -> f64 {
        self.took - rough * self.further / 2.0
    }
}

/// The position of the arm, once it is known.
struct Arm {
    at: Option<f64>,
    distance: f64,
    /// Reads that take less time than this come from the drive's buffer.
    buffered: f64,
}

impl Arm {
    /// Reads at a place, given as a fraction of all cylinders; nothing if the arm did not come from
    /// the other end.
    fn read(&mut self, drive: &mut impl Drive, at: f64, offset: u64) -> io::Result<Option<Sample>> {
        let took = timed(drive, drive.aligned(offset), drive.unit())?;
        if took < self.buffered {
            return Ok(None);
        }
        let Some(before) = self.at.replace(at) else { return Ok(None) };
        let further = f64::abs((at - before) / self.distance) - 1.0;
        // If the previous place was in the buffer, the arm was at this end already.
        Ok((further.abs() < 0.5).then_some(Sample { took, further }))
    }
}

/// The time without the wait for the platter. Every wait up to a turn is equally likely, so the
/// middle of the times contains half a turn. Other programs can only delay reads, so the span of
/// one turn that contains the most reads counts.
fn middle(times: impl Iterator<Item = f64>, turn: f64) -> f64 {
    let mut times: Vec<f64> = times.collect();
    times.sort_by(f64::total_cmp);
    let end = |first: usize| times.partition_point(|time| *time <= times[first] + SPAN * turn);
    // Of several such spans, the one with the shortest times.
    let Some(first) = (0..times.len()).rev().max_by_key(|first| end(*first) - first) else {
        return 0.0;
    };
    let (shortest, longest) = (times[first], times[end(first) - 1]);
    (shortest + longest - turn) / 2.0
}

/// The cylinders of a disk: those of a faster zone have more bytes.
struct Cylinders<'a> {
    zones: &'a [Zone],
    all: f64,
}

impl Cylinders<'_> {
    fn of(zones: &[Zone]) -> Cylinders<'_> {
        Cylinders { zones, all: zones.iter().map(cylinders_of).sum() }
    }

    /// The first byte of a cylinder, given as a fraction of all.
    fn offset(&self, part: f64) -> u64 {
        let mut left = part.clamp(0.0, 1.0) * self.all;
        for zone in self.zones {
            let here = cylinders_of(zone);
            if left < here {
                let bytes = (zone.end_byte - zone.first_byte) as f64;
                return zone.first_byte + (bytes * left / here) as u64;
            }
            left -= here;
        }
        self.zones.last().map_or(0, |zone| zone.end_byte)
    }
}

/// The number of cylinders of a zone, in a unit that is the same for all zones.
fn cylinders_of(zone: &Zone) -> f64 {
    (zone.end_byte - zone.first_byte) as f64 / zone.bytes_per_second
}

#[cfg(test)]
mod tests;
