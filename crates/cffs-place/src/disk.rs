//! What a disk can do, found by reading it (PLACE, section 4.1, calls this FAST).
//!
//! Only times of requests are looked at, so it works through any driver. A disk cannot be asked for its
//! geometry; but whatever is between two reads, the platter turns on, so what differs from one time to the
//! next is a whole number of turns. Four measurements stand on that, in this order:
//!
//! - *rotation*: the same places are read in the same order, with pauses that differ. The times between two
//!   of them differ by whole turns.
//! - *bandwidth*: some turns of sequential reads at each of some places; places alike are a zone.
//! - *seeks*: many reads at one distance. They wait for the platter for anything up to a turn, so that half a
//!   turn, the transfer, and what a command takes by itself are taken off what lies in their middle.
//! - *read-ahead*: after a pause, what the drive has read on of its own accord comes at once.
//!
//! A pause, or reading many other places, keeps the drive's buffer from answering where the platter is to.

mod drive;
mod rotation;
mod seeks;

use std::io;

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
/// Writes that show whether a cache takes them.
const WRITES: u64 = 12;

/// What was found.
#[derive(Debug, Serialize)]
pub struct Disk {
    /// How long it is, in bytes.
    pub size_bytes: u64,
    /// What a read takes that the drive's buffer answers, in milliseconds.
    pub command_ms: f64,
    /// What a read of a place far from the last takes on average, in milliseconds.
    pub access_ms: f64,
    /// A turn of the platter, in milliseconds; none where no turn was found.
    pub rotation_ms: Option<f64>,
    /// Turns in a minute.
    pub rpm: Option<f64>,
    /// What the arm takes over some distances; nothing without rotation.
    pub seeks: Vec<Seek>,
    /// Where it reads how fast, from its first byte to its last.
    pub zones: Vec<Zone>,
    /// How far it reads on by itself, in bytes, within a factor of two; 0 for not at all.
    pub read_ahead_bytes: u64,
    /// Whether a write is acknowledged before it is on the platter, if that was tried.
    pub write_cache: Option<bool>,
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

/// Measures a disk, which nobody else should use meanwhile. `try_writes` writes back what it reads in some
/// places, to see how long that takes.
///
/// # Errors
///
/// Those of the drive; [`io::ErrorKind::InvalidInput`] for one that is too small.
pub fn measure(drive: &mut impl Drive, try_writes: bool) -> io::Result<Disk> {
    if drive.size_bytes() < rotation::LEAST_BYTES {
        let least = rotation::LEAST_BYTES >> 20;
        let why = format!("a disk of less than {least} MiB cannot be told from its buffer");
        return Err(io::Error::new(io::ErrorKind::InvalidInput, why));
    }
    let (rotation, access) = rotation::measure(drive)?;
    let command = command(drive)?;
    let zones = zones(drive, rotation)?;
    let seeks = match rotation {
        Some(turn) => seeks::measure(drive, &zones, turn, command)?,
        None => Vec::new(),
    };
    let read_ahead_bytes = read_ahead(drive, rotation, command)?;
    let write_cache =
        if try_writes { Some(caches_writes(drive, rotation, command)?) } else { None };
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

/// What a read takes that the drive's buffer answers: of what it has just read.
fn command(drive: &mut impl Drive) -> io::Result<f64> {
    let (unit, offset) = (drive.unit(), drive.aligned(drive.size_bytes() / 2));
    drive.read(offset, unit)?;
    let times = (0..15).map(|_| timed(drive, offset, unit)).collect::<io::Result<_>>()?;
    Ok(median(times))
}

/// The bandwidth at places over the whole disk, those alike put together.
fn zones(drive: &mut impl Drive, rotation: Option<f64>) -> io::Result<Vec<Zone>> {
    let (size, span) = (drive.size_bytes(), rotation.map_or(WITHOUT_TURNS, |turn| TURNS * turn));
    let mut zones: Vec<(Zone, u64)> = Vec::new();
    for place in 0..PLACES {
        let (first_byte, end_byte) = (size / PLACES * place, size / PLACES * (place + 1));
        // In the middle, so that where zones end is as likely too early as too late.
        let middle = first_byte / 2 + end_byte / 2;
        let mut bytes_per_second = bandwidth(drive, middle, end_byte, span)?;
        let before = zones.last().map_or(0.0, |(zone, _)| zone.bytes_per_second);
        if bytes_per_second < before && !is_alike(before, bytes_per_second) {
            // What else the system does can only have slowed it down. The drive's buffer has the first ones.
            let further = middle / 2 + end_byte / 2;
            bytes_per_second = bandwidth(drive, further, end_byte, span)?.max(bytes_per_second);
        }
        match zones.last_mut() {
            Some((zone, places)) if is_alike(zone.bytes_per_second, bytes_per_second) => {
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
    let (begun, mut bytes) = (drive.now(), 0);
    while drive.now() - begun < seconds && at + 2 * (CHUNK as u64) < end_byte {
        at += CHUNK as u64;
        drive.read(at, CHUNK)?;
        bytes += CHUNK;
    }
    Ok(bytes as f64 / (drive.now() - begun).max(f64::MIN_POSITIVE))
}

fn is_alike(one: f64, other: f64) -> bool {
    (one - other).abs() < ALIKE * one
}

/// How far the drive has read on after it was given time: the longest distance at which a read comes at once.
fn read_ahead(drive: &mut impl Drive, rotation: Option<f64>, command: f64) -> io::Result<u64> {
    let Some(turn) = rotation else { return Ok(0) };
    let size = drive.size_bytes();
    let (mut found, mut distance, mut place) = (0, 16 << 10, 0);
    while distance < size / 64 {
        let mut is_there = false;
        // What else the system does can make one read late.
        for _ in 0..3 {
            // Each time a place of its own, that was not read before.
            place += 11;
            let at = drive.aligned(size / 37 * (place % 36) + size / 80);
            is_there |= is_read_ahead(drive, at, distance, turn, command)?;
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

/// Whether the drive has read so far on after sequential reads at a place.
fn is_read_ahead(
    drive: &mut impl Drive,
    at: u64,
    distance: u64,
    turn: f64,
    command: f64,
) -> io::Result<bool> {
    for chunk in 0..3 {
        drive.read(at + chunk * CHUNK as u64, CHUNK)?;
    }
    drive.idle(16.0 * turn);
    let unit = drive.unit();
    let last = drive.aligned(at + 3 * CHUNK as u64 + distance - unit as u64);
    Ok(timed(drive, last, unit)? < command + turn / 20.0)
}

/// Whether writes come back before the platter can have turned to them. What is written is what was read from
/// there just before, so that the place has passed under the head.
fn caches_writes(drive: &mut impl Drive, rotation: Option<f64>, command: f64) -> io::Result<bool> {
    let (unit, size) = (drive.unit(), drive.size_bytes());
    let mut times = Vec::new();
    for place in 0..WRITES {
        let at = drive.aligned(size / WRITES * place + size / 29);
        let contents = drive.read(at, unit)?;
        let before = drive.now();
        drive.write(at, &contents)?;
        times.push(drive.now() - before);
    }
    Ok(median(times) < rotation.map_or(f64::MAX, |turn| command + turn / 2.0))
}
