//! The properties of a disk, found by timing reads (PLACE, section 4.1, calls this FAST).
//!
//! Only the times of requests are used, so this works with any driver. A disk does not report its geometry;
//! but the platter turns whatever happens between two reads, so the times between reads of the same place
//! differ by whole turns. Four measurements use this, in this order:
//!
//! - *rotation*: reads the same places in the same order, with varying pauses. The times between two of them
//!   differ by whole turns.
//! - *bandwidth*: times several turns of sequential reads at some places; neighbours with similar bandwidths
//!   form a zone.
//! - *seeks*: times many reads at one distance. Each waits up to a turn for the platter, so the seek time is
//!   the middle of the times, less half a turn, the transfer and the command overhead.
//! - *read-ahead*: after a pause, reads of data that the drive has read ahead return at once.
//!
//! Pauses, and reads of many other places, keep the drive's buffer from answering instead of the platter.
//! Other programs delay some requests, so no result depends on a single one.

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
/// The same if the time is limited.
const PLACES_MIN: u64 = 2;
/// Places whose bandwidths differ by less than this fraction belong to one zone.
const ALIKE: f64 = 0.04;
/// The duration of sequential reads at each place, in turns.
const TURNS: f64 = 6.0;
/// The same duration for a disk without rotation, in seconds.
const WITHOUT_TURNS: f64 = 0.05;
/// The length of a sequential read, in bytes.
const CHUNK: usize = 64 << 10;
/// Completion times of this many reads are enough to show a bandwidth.
const MOMENTS: usize = 128;
/// The number of writes that show whether the drive caches them.
const WRITES: u64 = 12;

/// Where writes may be tried. They write back the data just read from there.
#[derive(Clone, Debug)]
pub enum Writable {
    Nothing,
    /// On the whole disk, which must not be in use.
    Disk,
    /// Only this byte range, which must be unused; the rest of the disk may be in use.
    Bytes(Range<u64>),
}

/// The measured properties of a disk.
#[derive(Debug, Serialize)]
pub struct Disk {
    pub size_bytes: u64,
    /// Time of a read served from the drive's buffer, in milliseconds.
    pub command_ms: f64,
    /// Average time of a read far from the previous one, in milliseconds.
    pub access_ms: f64,
    /// A turn of the platter, in milliseconds; none if no turn was found.
    pub rotation_ms: Option<f64>,
    /// Turns per minute.
    pub rpm: Option<f64>,
    /// Seek times over some distances; empty without rotation.
    pub seeks: Vec<Seek>,
    /// Bandwidth by zone, from the first byte to the last.
    pub zones: Vec<Zone>,
    /// The drive's read-ahead in bytes, within a factor of two; 0 for none.
    pub read_ahead_bytes: u64,
    /// Whether the drive acknowledges a write before it is on the platter; `None` if this was not tried or no
    /// turn was found.
    pub write_cache: Option<bool>,
    /// Whether the kernel assumes a write cache, and flushes it.
    pub write_cache_flushed: Option<bool>,
    /// The fraction of times between reads that were no whole turns, because other programs delayed them.
    pub late: Option<f64>,
    /// The measurements that were omitted for lack of time.
    pub omitted: Vec<&'static str>,
}

/// A part of a disk with one bandwidth.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Zone {
    /// The first byte, to a sixteenth of the disk.
    pub first_byte: u64,
    pub end_byte: u64,
    /// The bandwidth of sequential reads.
    pub bytes_per_second: f64,
}

/// Measures a disk, which no other program should use meanwhile. If writes are allowed, this also measures
/// how long they take. After this many seconds, it begins no further measurement; the most important come
/// first.
///
/// # Errors
///
/// Errors of the drive; [`io::ErrorKind::InvalidInput`] for a disk that is too small, and for a byte range
/// outside it.
pub fn measure(drive: &mut impl Drive, writable: &Writable, seconds: f64) -> io::Result<Disk> {
    let invalid = |why: String| Err(io::Error::new(io::ErrorKind::InvalidInput, why));
    if drive.size_bytes() < rotation::LEAST_BYTES {
        let least = rotation::LEAST_BYTES >> 20;
        return invalid(format!(
            "a disk of less than {least} MiB cannot be distinguished from its buffer"
        ));
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
            return invalid(format!("bytes {start} to {end} are not a unit of {unit} of the disk"));
        }
    }
    let deadline = drive.now() + seconds;
    let mut omitted = Vec::new();
    let rotation::Found { turn: rotation, access, late } = rotation::measure(drive)?;
    let command = command(drive)?;
    let zones = zones(drive, rotation, access, deadline)?;
    let seeks = match rotation {
        Some(turn) => seeks::measure(drive, &zones, turn, command, deadline)?,
        None => Vec::new(),
    };
    if rotation.is_some() && seeks.len() < seeks::DISTANCES.len() {
        omitted.push("seeks");
    }
    let mut has_time = |drive: &dyn Drive, what| {
        let has_time = drive.now() < deadline;
        omitted.extend((!has_time).then_some(what));
        has_time
    };
    let slowest = zones.iter().map(|zone| zone.bytes_per_second).fold(f64::MAX, f64::min);
    let read_ahead_bytes = match rotation {
        Some(turn) if has_time(drive, "read-ahead") => read_ahead(drive, turn, command, slowest)?,
        _ => 0,
    };
    let write_cache = match (writable, rotation) {
        (Some(bytes), Some(turn)) if has_time(drive, "writes") => {
            Some(caches_writes(drive, &bytes, turn, command)?)
        }
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
        late,
        omitted,
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

/// The time of a read served from the drive's buffer: of data that was just read.
fn command(drive: &mut impl Drive) -> io::Result<f64> {
    let (unit, offset) = (drive.unit(), drive.aligned(drive.size_bytes() / 2));
    drive.read(offset, unit)?;
    let times = (0..15).map(|_| timed(drive, offset, unit)).collect::<io::Result<_>>()?;
    Ok(median(times))
}

/// The bandwidth at places over the whole disk, with similar neighbours joined; at fewer places if there is
/// little time.
fn zones(
    drive: &mut impl Drive,
    rotation: Option<f64>,
    access: f64,
    deadline: f64,
) -> io::Result<Vec<Zone>> {
    let (size, span) = (drive.size_bytes(), rotation.map_or(WITHOUT_TURNS, |turn| TURNS * turn));
    // Seeks take about as long; most places are measured once.
    let affordable = (deadline - drive.now()).max(0.0) / 2.0 / (span + access);
    let places = (affordable as u64).clamp(PLACES_MIN, PLACES);
    let bounds = |place: u64| (size / places * place, size / places * (place + 1));
    let mut rates = Vec::new();
    for place in 0..places {
        let (first, end) = bounds(place);
        // In the middle of each part, so that the error of a zone's end has no bias.
        rates.push(bandwidth(drive, first / 2 + end / 2, end, span)?);
    }
    for place in 0..places {
        let (first, end) = bounds(place);
        let place = place as usize;
        if drive.now() > deadline {
            break;
        }
        if neighbours(&rates, place).all(|other| is_within(other, rates[place], ALIKE / 2.0)) {
            continue;
        }
        // Either this is another zone, or some requests were late. The drive's buffer has the first bytes.
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
    for (place, bytes_per_second) in (0..places).zip(rates) {
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

fn neighbours(rates: &[f64], place: usize) -> impl Iterator<Item = f64> {
    let places = [place.checked_sub(1), Some(place + 1)].into_iter().flatten();
    places.filter_map(|other| rates.get(other).copied())
}

/// The highest bandwidth that was measured twice: the same turn may be lost to late requests twice.
fn likely(seen: &[f64]) -> Option<f64> {
    let mut seen = seen.to_vec();
    seen.sort_by(f64::total_cmp);
    let mut pairs = seen.windows(2).rev();
    let twice = pairs.find(|pair| is_within(pair[0], pair[1], ALIKE / 2.0))?;
    Some((twice[0] + twice[1]) / 2.0)
}

/// Bytes per second of sequential reads within a part, measured for some seconds.
fn bandwidth(
    drive: &mut impl Drive,
    first_byte: u64,
    end_byte: u64,
    seconds: f64,
) -> io::Result<f64> {
    let mut at = drive.aligned(first_byte);
    // The first read moves the arm there.
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

/// The time from one read to the next: the median over all pairs that are at least half of the whole series
/// apart (Theil and Sen; shorter spans contain a switch of tracks or not). The first and last read alone
/// would be wrong in either direction: while the first read is late, the drive reads ahead.
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

/// How far the drive has read ahead after a pause: the longest distance at which a read returns at once.
fn read_ahead(drive: &mut impl Drive, turn: f64, command: f64, slowest: f64) -> io::Result<u64> {
    let size = drive.size_bytes();
    let (mut found, mut distance, mut place) = (0, 16 << 10, 0);
    while distance < size / 64 {
        // Twice the time that the drive needs, including the search for its place.
        let pause = 2.0 * (turn + distance as f64 / slowest);
        let mut is_there = false;
        // One of the reads may be late.
        for _ in 0..3 {
            // A new place each time, which no read has touched before.
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

/// Whether the drive has read ahead this far, a pause after sequential reads at a place.
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

/// Whether writes complete sooner than the platter can turn to them. If the first write of a unit is on the
/// platter, the unit has just passed under the head, and a second write must wait for a turn.
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

/// The units within a range of bytes.
fn units(bytes: &Range<u64>, unit: usize) -> Range<u64> {
    bytes.start.div_ceil(unit as u64)..bytes.end / unit as u64
}

#[cfg(test)]
mod tests;
