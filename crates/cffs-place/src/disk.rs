//! The properties of a disk, found by timing reads (PLACE, section 4.1, calls this FAST).
//!
//! Only times of requests are looked at, so it works through any driver. A disk cannot be asked for
//! its geometry; but whatever is between two reads, the platter turns on, so what differs from one
//! time to the next is a whole number of turns. Four measurements stand on that, in this order:
//!
//! - *rotation*: the same places are read in the same order, with pauses that differ. The times
//!   between two of them differ by whole turns.
//! - *bandwidth*: some turns of sequential reads at each of some places; places alike are a zone.
//! - *seeks*: many reads at one distance. They wait for the platter for anything up to a turn, so
//!   that half a turn, the transfer, and what a command takes by itself are taken off what lies in
//!   their middle.
//! - *read-ahead*: after a pause, what the drive has read on of its own accord comes at once.
//!
//! A pause, or reading many other places, keeps the drive's buffer from answering in place of the
//! platter. Other programs delay some requests, so no result depends on a single one.

mod drive;
mod rotation;
mod seeks;

use std::io;
use std::ops::Range;

use serde::Serialize;

pub use drive::{Drive, FileDrive};
use seeks::Seek;

/// Places at which the bandwidth is measured.
const PLACES: u64 = 16;
/// Bandwidths that differ by less than this part are of one zone.
const ALIKE: f64 = 0.04;
/// Turns that sequential reads take at each place.
const TURNS: f64 = 6.0;
/// How a disk without rotation is read instead, in seconds.
const WITHOUT_TURNS: f64 = 0.05;
/// Sequential reads are as long as this, in bytes.
const CHUNK: usize = 64 << 10;
/// Moments of these are enough to show a bandwidth.
const MOMENTS: usize = 128;
/// Writes that show whether a cache takes them.
const WRITES: u64 = 12;

/// Where writes may be tried. They write back what was read there just before.
#[derive(Clone, Debug)]
pub enum Writable {
    /// Nowhere.
    Nothing,
    /// On the whole disk, which must not be in use.
    Disk,
    /// Only this byte range, which must be unused; the rest of the disk may be in use.
    Bytes(Range<u64>),
}

/// The measured properties of a disk.
#[derive(Debug, Serialize)]
pub struct Disk {
    /// How long it is, in bytes.
    pub size_bytes: u64,
    /// Time of a read that the drive's buffer answers, in milliseconds.
    pub command_ms: f64,
    /// Average time of a read of a place far from the last one, in milliseconds.
    pub access_ms: f64,
    /// A turn of the platter, in milliseconds; none where no turn was found.
    pub rotation_ms: Option<f64>,
    /// Turns in a minute.
    pub rpm: Option<f64>,
    /// Seek times over some distances; empty without rotation.
    pub seeks: Vec<Seek>,
    /// Where it reads how fast, from its first byte to its last.
    pub zones: Vec<Zone>,
    /// How far it reads on by itself, in bytes, within a factor of two; 0 for not at all.
    pub read_ahead_bytes: u64,
    /// Whether a write is acknowledged before it is on the platter, if that was tried and there is
    /// one.
    pub write_cache: Option<bool>,
    /// Whether the kernel takes it for one that does, and flushes it.
    pub write_cache_flushed: Option<bool>,
}

/// A part of a disk that is read at one bandwidth.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Zone {
    /// Where it begins, in bytes, to a sixteenth of the disk.
    pub first_byte: u64,
    /// Where it ends.
    pub end_byte: u64,
    /// How many bytes are read from it in a second.
    pub bytes_per_second: f64,
}

/// Measures a disk, which must not be used by other programs meanwhile. If it is writable, this also
/// measures how long writes take.
///
/// # Errors
///
/// Those of the drive; [`io::ErrorKind::InvalidInput`] for one that is too small, and for bytes
/// that it does not have.
pub fn measure(drive: &mut impl Drive, writable: &Writable) -> io::Result<Disk> {
    let invalid = |why: String| Err(io::Error::new(io::ErrorKind::InvalidInput, why));
    if drive.size_bytes() < rotation::LEAST_BYTES {
        let least = rotation::LEAST_BYTES >> 20;
        return invalid(format!("a disk of less than {least} MiB cannot be told from its buffer"));
    }
    let writable = match writable {
        Writable::Nothing => None,
        Writable::Disk => Some(0..drive.size_bytes()),
        Writable::Bytes(bytes) => Some(bytes.clone()),
    };
    if let Some(bytes) = &writable {
        let (unit, size) = (drive.unit(), drive.size_bytes());
        if bytes.end > size || units(bytes, unit).is_empty() {
            let Range { start, end } = bytes;
            return invalid(format!("from byte {start} to {end} is no unit of {unit} of the disk"));
        }
    }
    let (rotation, access) = rotation::measure(drive)?;
    let command = command(drive)?;
    let zones = zones(drive, rotation)?;
    let seeks = match rotation {
        Some(turn) => seeks::measure(drive, &zones, turn, command)?,
        None => Vec::new(),
    };
    let slowest = zones.iter().map(|zone| zone.bytes_per_second).fold(f64::MAX, f64::min);
    let read_ahead_bytes = match rotation {
        Some(turn) => read_ahead(drive, turn, command, slowest)?,
        None => 0,
    };
    let write_cache = match (writable, rotation) {
        (Some(bytes), Some(turn)) => Some(caches_writes(drive, &bytes, turn, command)?),
        _ => None,
    };
    Ok(Disk {
        size_bytes: drive.size_bytes(),
        command_ms: command * 1e3,
        access_ms: access * 1e3,
        rotation_ms: rotation.map(|turn| turn * 1e3),
        rpm: rotation.map(|turn| 60.0 / turn),
        seeks,
        zones,
        read_ahead_bytes,
        write_cache,
        write_cache_flushed: drive.is_flushed(),
    })
}

/// The time of one read.
fn timed(drive: &mut impl Drive, offset: u64, bytes: usize) -> io::Result<f64> {
    let before = drive.now();
    drive.read(offset, bytes)?;
    Ok(drive.now() - before)
}

fn median(mut times: Vec<f64>) -> f64 {
    times.sort_by(f64::total_cmp);
    times.get(times.len() / 2).copied().unwrap_or(0.0)
}

/// The time of a read that the drive's buffer answers: of data that it has just read.
fn command(drive: &mut impl Drive) -> io::Result<f64> {
    let (unit, offset) = (drive.unit(), drive.aligned(drive.size_bytes() / 2));
    drive.read(offset, unit)?;
    let times = (0..15).map(|_| timed(drive, offset, unit)).collect::<io::Result<_>>()?;
    Ok(median(times))
}

/// The bandwidth at places over the whole disk, those alike put together.
fn zones(drive: &mut impl Drive, rotation: Option<f64>) -> io::Result<Vec<Zone>> {
    let (size, span) = (drive.size_bytes(), rotation.map_or(WITHOUT_TURNS, |turn| TURNS * turn));
    let bounds = |place: u64| (size / PLACES * place, size / PLACES * (place + 1));
    let mut rates = Vec::new();
    for place in 0..PLACES {
        let (first, end) = bounds(place);
        // In the middle, so that where zones end is as likely too early as too late.
        rates.push(bandwidth(drive, first / 2 + end / 2, end, span)?);
    }
    for place in 0..PLACES {
        let (first, end) = bounds(place);
        let place = place as usize;
        if neighbours(&rates, place).all(|other| is_within(other, rates[place], ALIKE / 2.0)) {
            continue;
        }
        // It is another zone, or some requests were late. The drive's buffer has its first bytes.
        let mut seen = vec![rates[place]];
        for part in [0.6, 0.65, 0.7, 0.75, 0.8, 0.85] {
            let further = first + ((end - first) as f64 * part) as u64;
            seen.push(bandwidth(drive, further, end, span)?);
            rates[place] = likely(&seen).unwrap_or_else(|| median(seen.clone()));
            let is_of_a_zone = |other| is_within(other, rates[place], ALIKE / 2.0);
            if likely(&seen).is_some() && neighbours(&rates, place).any(is_of_a_zone) {
                break;
            }
        }
    }
    let mut zones: Vec<(Zone, u64)> = Vec::new();
    for (place, bytes_per_second) in (0..PLACES).zip(rates) {
        let (first_byte, end_byte) = bounds(place);
        match zones.last_mut() {
            Some((zone, places)) if is_within(zone.bytes_per_second, bytes_per_second, ALIKE) => {
                let sum = zone.bytes_per_second * *places as f64 + bytes_per_second;
                *places += 1;
                *zone = Zone { end_byte, bytes_per_second: sum / *places as f64, ..*zone };
            }
            _ => zones.push((Zone { first_byte, end_byte, bytes_per_second }, 1)),
        }
    }
    if let Some((last, _)) = zones.last_mut() {
        last.end_byte = size;
    }
    Ok(zones.into_iter().map(|(zone, _)| zone).collect())
}

/// The rates of the neighbours of a place.
fn neighbours(rates: &[f64], place: usize) -> impl Iterator<Item = f64> {
    let places = [place.checked_sub(1), Some(place + 1)].into_iter().flatten();
    places.filter_map(|other| rates.get(other).copied())
}

/// The fastest time that was seen twice: a turn that is lost to a late request may be lost twice.
fn likely(seen: &[f64]) -> Option<f64> {
    let mut seen = seen.to_vec();
    seen.sort_by(f64::total_cmp);
    let mut pairs = seen.windows(2).rev();
    let twice = pairs.find(|pair| is_within(pair[0], pair[1], ALIKE / 2.0))?;
    Some((twice[0] + twice[1]) / 2.0)
}

/// Bytes per second of sequential reads within a part, for some seconds.
fn bandwidth(
    drive: &mut impl Drive,
    first_byte: u64,
    end_byte: u64,
    seconds: f64,
) -> io::Result<f64> {
    let mut at = drive.aligned(first_byte);
    // The first read brings the arm there.
    drive.read(at, CHUNK)?;
    let begun = drive.now();
    let mut moments = vec![begun];
    while drive.now() - begun < seconds && at + 2 * (CHUNK as u64) < end_byte {
        at += CHUNK as u64;
        drive.read(at, CHUNK)?;
        moments.push(drive.now());
    }
    Ok(CHUNK as f64 / step(&moments).max(f64::MIN_POSITIVE))
}

/// The time from one moment to the next: the median of what any two show that are at least half of
/// all apart (Theil and Sen, without the short spans that switches between tracks fall into or
/// not). The first and the last alone would be wrong in either direction: while the first read is
/// late, the drive reads on.
fn step(moments: &[f64]) -> f64 {
    let each = moments.len().div_ceil(MOMENTS);
    let some: Vec<f64> = moments.iter().step_by(each).copied().collect();
    let mut steps = Vec::new();
    for span in (some.len() / 2).max(1)..some.len() {
        let ends = some.iter().zip(&some[span..]);
        steps.extend(ends.map(|(before, after)| (after - before) / (span * each) as f64));
    }
    median(steps)
}

fn is_within(one: f64, other: f64, part: f64) -> bool {
    (one - other).abs() < part * one
}

/// How far the drive has read on after it was given time: the longest distance at which a read
/// comes at once.
fn read_ahead(drive: &mut impl Drive, turn: f64, command: f64, slowest: f64) -> io::Result<u64> {
    let size = drive.size_bytes();
    let (mut found, mut distance, mut place) = (0, 16 << 10, 0);
    while distance < size / 64 {
        // Twice the time that it takes, after it has found its place.
        let pause = 2.0 * (turn + distance as f64 / slowest);
        let mut is_there = false;
        // One read may be late.
        for _ in 0..3 {
            // Each time a place of its own, that was not read before.
            place += 11;
            let at = drive.aligned(size / 37 * (place % 36) + size / 80);
            is_there |= is_read_ahead(drive, at, distance, pause, command + turn / 20.0)?;
            if is_there {
                break;
            }
        }
        if !is_there {
            break;
        }
        (found, distance) = (distance, distance * 2);
    }
    Ok(found)
}

/// Whether the drive has read so far on, a pause after sequential reads at a place.
fn is_read_ahead(
    drive: &mut impl Drive,
    at: u64,
    distance: u64,
    pause: f64,
    at_once: f64,
) -> io::Result<bool> {
    for chunk in 0..3 {
        drive.read(at + chunk * CHUNK as u64, CHUNK)?;
    }
    drive.idle(pause);
    let unit = drive.unit();
    let last = drive.aligned(at + 3 * CHUNK as u64 + distance - unit as u64);
    Ok(timed(drive, last, unit)? < at_once)
}

/// Whether writes come back before the platter can have turned to them: the second one of the same
/// unit, which has passed under the head just before, if the first is on the platter.
fn caches_writes(
    drive: &mut impl Drive,
    bytes: &Range<u64>,
    turn: f64,
    command: f64,
) -> io::Result<bool> {
    let (unit, units) = (drive.unit(), units(bytes, drive.unit()));
    let mut times = Vec::new();
    for write in 0..WRITES {
        let at = (units.start + (units.end - units.start) * write / WRITES) * unit as u64;
        let contents = drive.read(at, unit)?;
        drive.write(at, &contents)?;
        let before = drive.now();
        drive.write(at, &contents)?;
        times.push(drive.now() - before);
    }
    Ok(median(times) < command + turn / 2.0)
}

/// The units that lie within a range of bytes.
fn units(bytes: &Range<u64>, unit: usize) -> Range<u64> {
    bytes.start.div_ceil(unit as u64)..bytes.end / unit as u64
}

#[cfg(test)]
mod tests;
