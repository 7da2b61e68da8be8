//! Finds how long a turn of the platter takes.

use std::f64::consts::TAU;
use std::io;

use super::Drive;

/// The number of places to read: more than drives have buffer segments.
const SITES: u64 = 41;
/// How often each place is read.
const ROUNDS: u64 = 3;
/// The least distance between places, so that the read-ahead at one does not reach the next.
const APART_BYTES: u64 = 4 << 20;
/// The longest pause before a read, in seconds.
const PAUSE: f64 = 0.008;
/// The smallest disk that has room for this.
pub const LEAST_BYTES: u64 = SITES * APART_BYTES;
/// The shortest and the longest turn considered, in seconds: 24,000 and 2,400 turns per minute.
const SHORTEST: f64 = 0.0025;
const LONGEST: f64 = 0.025;
/// The relative step between the turns tried.
const STEP: f64 = 0.0004;
/// The score that whole turns must reach, of at most 1: chance gives less than half of this.
const EXPLAINED: f64 = 0.6;
/// The fraction of the best score that the right turn reaches at least.
const NEARLY: f64 = 0.8;
/// How far from a whole number of turns a difference may be, in turns, for each successive
/// estimate.
const WHOLE: [f64; 4] = [0.5, 0.25, 0.1, 0.1];

/// The result of reading the same places several times.
pub struct Found {
    /// The time of a turn in seconds, if there are turns.
    pub turn: Option<f64>,
    /// The mean time of a read.
    pub access: f64,
    /// The fraction of the times between reads of two places that differ by no whole number of turns.
    pub late: Option<f64>,
}

/// Reads places several times, after pauses.
pub fn measure(drive: &mut impl Drive) -> io::Result<Found> {
    // A part of the disk is enough, and seeks within it are shorter.
    let span = (drive.size_bytes() / 8).max(LEAST_BYTES).min(drive.size_bytes());
    let apart = span / SITES;
    let place = |site: u64| {
        // Distances vary: between regularly spaced places the platter would always wait equally
        // long, so that most pauses were not a turn apart, or all were.
        let further = (site as f64 * 0.569_840).fract() * apart as f64 / 4.0;
        drive.aligned(apart * (site * 29 % SITES) + further as u64)
    };
    let offsets: Vec<u64> = (0..SITES).map(place).collect();
    let mut between = vec![Vec::new(); offsets.len()];
    let (mut last, mut access, mut reads) = (drive.now(), 0.0, 0.0);
    for round in 0..ROUNDS {
        for (site, offset) in offsets.iter().enumerate() {
            // Pauses vary from round to round and have no common divisor.
            let pause = (site as f64 * 0.618_034 + round as f64 * 0.754_878).fract();
            drive.idle(pause * PAUSE);
            let before = drive.now();
            drive.read(*offset, drive.unit())?;
            let now = drive.now();
            (access, reads) = (access + now - before, reads + 1.0);
            if site > 0 {
                between[site].push(now - last);
            }
            last = now;
        }
    }
    let mut differences = Vec::new();
    for times in between {
        for (number, one) in times.iter().enumerate() {
            differences.extend(times[number + 1..].iter().map(|other| (one - other).abs()));
        }
    }
    let turn = turn(&differences);
    let late = turn.map(|turn| {
        let is_late = |difference: &&f64| {
            let turns = *difference / turn;
            (turns - turns.round()).abs() > WHOLE[WHOLE.len() - 1]
        };
        differences.iter().filter(is_late).count() as f64 / differences.len() as f64
    });
    Ok(Found { turn, access: access / reads, late })
}

/// The longest time of which nearly all differences are multiples.
fn turn(differences: &[f64]) -> Option<f64> {
    let explained = |turn: f64| {
        let sum: f64 = differences.iter().map(|difference| (TAU * difference / turn).cos()).sum();
        sum / differences.len() as f64
    };
    let steps = ((LONGEST / SHORTEST).ln() / STEP) as u32;
    let tried = (0..=steps).map(|step| SHORTEST * (STEP * f64::from(step)).exp());
    let scored: Vec<(f64, f64)> = tried.map(|turn| (turn, explained(turn))).collect();
    let best = scored.iter().map(|(_, score)| *score).fold(0.0, f64::max);
    if best < EXPLAINED {
        return None;
    }
    // A half or a third of the turn explains as much, and by chance some of the late reads as well.
    // So take the peak among the longest candidates that explain about as much.
    let mut at = scored.iter().rposition(|(_, score)| *score > NEARLY * best)?;
    while at > 0 && scored[at - 1].1 >= scored[at].1 {
        at -= 1;
    }
    let (rough, _) = scored[at];
    // Least squares over the resulting numbers of turns. As the estimate becomes exact, differences
    // that are not nearly whole are dropped: reads that other programs delayed show no turn.
    WHOLE.iter().try_fold(rough, |turn, within| {
        let counted =
            differences.iter().map(|difference| ((difference / turn).round(), difference));
        let whole =
            counted.filter(|(count, difference)| (*difference / turn - count).abs() <= *within);
        let (above, below) = whole.fold((0.0, 0.0), |(above, below), (count, difference)| {
            (above + count * difference, below + count * count)
        });
        (below > 0.0).then(|| above / below)
    })
}

#[cfg(test)]
mod tests;
