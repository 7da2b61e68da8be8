//! `place disk`: measures a disk.

use std::fs;
use std::ops::Range;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context, Result, bail};
use cffs_place::disk::{self, Disk, FileDrive, Writable};
use clap::Args;
use rustix::io::Errno;

use super::size;
use crate::output::{self, note, say};

#[cfg(test)]
mod tests;

/// Find out what a disk can do by reading it
///
/// Measures the rotation, some seeks, the bandwidth of each zone, and the drive's read-ahead, in ten seconds,
/// during which no other program should use the disk. It only reads, bypassing the system's caches. A part of
/// a disk, such as a partition, has the seeks of that part.
///
/// Whether the drive acknowledges writes before they are on the platter is what the kernel assumes, unless
/// test writes are allowed (--try-writes). These write back what was just read from the same place: in twelve
/// places of a device that is not in use, or of a byte range that you name and that is unused meanwhile.
///
/// If you may not read the device, name a directory: then a temporary file of 256 MiB there is measured,
/// which stands for the part of the disk where it is.
#[derive(Debug, Args)]
#[command(name = "disk", after_help = EXAMPLES)]
pub struct MeasureDisk {
    /// The block device, a file that stands for one, or a directory.
    device: PathBuf,
    /// Begin no measurement after this many seconds. The rotation, which takes about two, comes first; then
    /// the bandwidth, at fewer places if there is little time, seeks, read-ahead and writes.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    seconds: Option<u32>,
    /// Try writes as well, on the whole device or between these bytes (units K, M, G, T).
    #[arg(long, value_name = "FIRST..END", num_args = 0..=1, require_equals = true)]
    #[arg(value_parser = bytes)]
    try_writes: Option<Option<Range<u64>>>,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

const EXAMPLES: &str = "\
Examples:
  place disk /dev/sdb
  place disk --try-writes /dev/sdb            # not in use
  place disk --try-writes=1G..2G /dev/sdb     # this part is not in use
  place disk --seconds 4 ~                    # without root, in a temporary file
  place disk --json /dev/sdb | jq .rpm";

impl MeasureDisk {
    /// Measures and prints.
    pub fn run(self) -> Result<ExitCode> {
        let name = || self.device.display().to_string();
        let writable = match self.try_writes {
            None => Writable::Nothing,
            Some(None) => Writable::Disk,
            Some(Some(bytes)) => Writable::Bytes(bytes),
        };
        let is_directory = self.device.is_dir();
        if is_directory && !matches!(writable, Writable::Nothing) {
            bail!("{}: a directory is not a device; writes are tried on devices only", name());
        }
        let mut drive = match is_directory {
            true => FileDrive::in_directory(&self.device),
            false => FileDrive::open(&self.device, &writable),
        }
        .map_err(|error| advised(error, &writable))
        .with_context(name)?;
        let seconds = self.seconds.map_or(f64::INFINITY, f64::from);
        let found = disk::measure(&mut drive, &writable, seconds).with_context(name)?;
        if is_directory && let Some((first, end, pieces)) = drive.part() {
            note!(
                "place: {}: measured in {pieces} pieces from {} to {} MB of the device: seeks are those \
                 within them",
                name(),
                first / 1_000_000,
                end / 1_000_000
            );
        }
        if let Some(why) = noise(&found, &fs::read_to_string("/proc/loadavg").unwrap_or_default()) {
            note!("place: {}: {why}; measure again when the machine is idle", name());
        }
        match self.json {
            true => output::json(&found)?,
            false => print(&found)?,
        }
        Ok(ExitCode::SUCCESS)
    }
}

/// Why the figures may be wrong: other programs were running, or delayed many reads.
fn noise(found: &Disk, load: &str) -> Option<String> {
    let running: f64 = load.split(' ').next()?.parse().ok()?;
    match found.late {
        Some(late) if late > LATE_MAX => {
            Some(format!("{:.0}% of the reads were late", late * 100.0))
        }
        _ if running > RUNNING_MAX => {
            Some(format!("{running} programs were running on average in the last minute"))
        }
        _ => None,
    }
}

/// More late reads than this make the figures doubtful; as do more programs running than this.
const LATE_MAX: f64 = 0.1;
const RUNNING_MAX: f64 = 0.5;

/// An error from opening the disk, with advice.
fn advised(error: std::io::Error, writable: &Writable) -> anyhow::Error {
    let advice = match (error.raw_os_error().map(Errno::from_raw_os_error), writable) {
        (Some(Errno::BUSY), Writable::Disk) => {
            "it is in use; unmount it, or name bytes of it that are not: --try-writes=FIRST..END"
        }
        (Some(Errno::INVAL), _) => "it cannot be read past the system's caches (O_DIRECT)",
        _ => return error.into(),
    };
    anyhow::Error::from(error).context(advice)
}

fn print(disk: &Disk) -> Result<()> {
    let megabytes = |bytes: u64| bytes as f64 / 1e6;
    match (disk.rotation_ms, disk.rpm) {
        (Some(turn), Some(rpm)) => say!("rotation   {turn:.2} ms, {rpm:.0} rpm"),
        _ => say!("rotation   not found: the device does not rotate, or a cache hides it"),
    }?;
    for (number, seek) in disk.seeks.iter().enumerate() {
        let name = if number == 0 { "seeks" } else { "" };
        say!("{name:<10} {:.2} ms over {:.1}% of the disk", seek.ms, 100.0 * seek.distance)?;
    }
    for (number, zone) in disk.zones.iter().enumerate() {
        let name = if number == 0 { "bandwidth" } else { "" };
        let (rate, first) = (zone.bytes_per_second / 1e6, megabytes(zone.first_byte));
        say!("{name:<10} {rate:.1} MB/s from {first:.0} to {:.0} MB", megabytes(zone.end_byte))?;
    }
    say!(
        "access     {:.2} ms on average, {:.2} ms from the buffer",
        disk.access_ms,
        disk.command_ms
    )?;
    if disk.rotation_ms.is_some() {
        match disk.read_ahead_bytes {
            0 if disk.omitted.contains(&"read-ahead") => Ok(()),
            0 => say!("read-ahead none"),
            bytes => say!("read-ahead {} to {} KiB", bytes >> 10, bytes >> 9),
        }?;
    }
    say!("writes     {}", writes(disk))?;
    match disk.omitted.as_slice() {
        [] => Ok(()),
        omitted => say!("omitted    no time for: {}", omitted.join(", ")),
    }
}

/// The state of the write cache, by measurement and according to the kernel.
fn writes(disk: &Disk) -> String {
    let place = |cached: bool| match cached {
        true => "acknowledged before they are on the platter",
        false => "acknowledged when they are on the platter",
    };
    let untried = match disk.rotation_ms {
        Some(_) => "not tried (--try-writes)",
        None => "the time on the platter cannot be measured without rotation",
    };
    match (disk.write_cache, disk.write_cache_flushed) {
        (None, None) => String::from(untried),
        (None, Some(said)) => format!("{} according to the kernel; {untried}", place(said)),
        (Some(true), Some(false)) => format!(
            "{}, but the kernel does not flush them: write \"write back\" to its queue/write_cache, \
             or a power cut loses synced data",
            place(true)
        ),
        (Some(found), _) => String::from(place(found)),
    }
}

/// A range of bytes.
fn bytes(text: &str) -> Result<Range<u64>, String> {
    let (first, end) = text.split_once("..").ok_or("give the first byte and the end: 1G..2G")?;
    let bytes = size(first)?..size(end)?;
    if bytes.is_empty() {
        Err(String::from("its end is not after its first byte"))
    } else {
        Ok(bytes)
    }
}
