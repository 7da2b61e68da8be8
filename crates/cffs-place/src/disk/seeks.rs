//! What the arm takes over some distances.

use std::io;

use serde::Serialize;

use super::{Drive, Zone, timed};

/// Distances, as parts of the disk's cylinders, and how many reads show what each takes: a long seek is known
/// well enough by fewer.
const DISTANCES: [(f64, u32); 4] = [(1.0 / 8.0, 130), (1.0 / 3.0, 70), (2.0 / 3.0, 40), (0.98, 40)];

/// How much of the disk the places lie in at either end.
const STRETCH: f64 = 1.0 / 64.0;

/// A seek.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Seek {
    /// How far, as a part of all cylinders.
    pub distance: f64,
    /// How long it takes to read, in milliseconds.
    pub ms: f64,
}

/// Seeks over each of the distances.
pub fn measure(
    drive: &mut impl Drive,
    zones: &[Zone],
    turn: f64,
    command: f64,
) -> io::Result<Vec<Seek>> {
    let unit = drive.unit();
    let cylinders = Cylinders::of(zones);
    let transfer = unit as f64 / zones.first().map_or(f64::MAX, |zone| zone.bytes_per_second);
    let mut seeks = Vec::new();
    let mut random: u64 = 1;
    for (distance, reads) in DISTANCES {
        // To and fro between two stretches, at places of them that were not read before.
        let stretch = (distance / 8.0).min(STRETCH).min(1.0 - distance);
        // Each with how much further it was.
        let mut samples: Vec<(f64, f64)> = Vec::new();
        // Where the arm is; the first read comes from anywhere.
        let mut arm = None;
        for number in 0..reads {
            let begin = if number % 2 == 0 { 0.0 } else { distance };
            // A multiplicative generator (Lehmer): what is regular could keep step with the platter.
            random = random * 48_271 % 0x7fff_ffff;
            let at = begin + stretch * random as f64 / f64::from(0x7fff_ffff);
            let took = timed(drive, drive.aligned(cylinders.offset(at)), unit)?;
            // Some place may be in the drive's buffer by chance; then the arm has not moved.
            if took < command + turn / 20.0 {
                continue;
            }
            if let Some(before) = arm.replace(at) {
                let further: f64 = f64::abs((at - before) / distance) - 1.0;
                // After a place in the buffer, the arm is at this end already.
                if further.abs() < 0.5 {
                    samples.push((took, further));
                }
            }
        }
        // Seeks of accelerating arms grow by the root of the distance (Ruemmler and Wilkes 1994), so that a
        // first estimate corrects for what was a little nearer or further.
        let rough = middle(samples.iter().map(|(took, _)| *took), turn);
        let exact = |(took, further): &(f64, f64)| took - rough * further / 2.0;
        let seek = middle(samples.iter().map(exact), turn) - transfer - command;
        seeks.push(Seek { distance, ms: seek.max(0.0) * 1e3 });
    }
    Ok(seeks)
}

/// What is left of the times without the wait for the platter: one waits as likely as another for any part
/// of a turn, so in their middle they wait for half of one.
fn middle(times: impl Iterator<Item = f64>, turn: f64) -> f64 {
    let (shortest, longest) = times.fold((f64::MAX, 0.0_f64), |(shortest, longest), time| {
        (time.min(shortest), time.max(longest))
    });
    (shortest + longest - turn) / 2.0
}

/// Where cylinders lie: a faster zone has more bytes on each.
struct Cylinders<'a> {
    zones: &'a [Zone],
    all: f64,
}

impl Cylinders<'_> {
    fn of(zones: &[Zone]) -> Cylinders<'_> {
        Cylinders { zones, all: zones.iter().map(cylinders_of).sum() }
    }

    /// The first byte of a cylinder, given as a part of all.
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

/// How many cylinders a zone has, in a unit that is the same for all.
fn cylinders_of(zone: &Zone) -> f64 {
    (zone.end_byte - zone.first_byte) as f64 / zone.bytes_per_second
}
