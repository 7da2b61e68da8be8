//! `place disk`: measures a disk.

use std::ops::Range;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context, Result};
use cffs_place::disk::{self, Disk, FileDrive, Writable};
use clap::Args;
use rustix::io::Errno;

use super::size;
use crate::output::{self, say};

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
#[derive(Debug, Args)]
#[command(name = "disk", after_help = EXAMPLES)]
pub struct MeasureDisk {
    /// The block device, or a file that stands for one.
    device: PathBuf,
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
        let mut drive = FileDrive::open(&self.device, &writable)
            .map_err(|error| advised(error, &writable))
            .with_context(name)?;
        let found = disk::measure(&mut drive, &writable).with_context(name)?;
        match self.json {
            true => output::json(&found)?,
            false => print(&found)?,
        }
        Ok(ExitCode::SUCCESS)
    }
}

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
        (Some(turn), Some(rpm)) => say!("rotation   {turn:.2} ms, {rpm:.0} turns a minute"),
        _ => say!("rotation   none found: no disk with an arm, or a cache that answers for it"),
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
            0 => say!("read-ahead none"),
            bytes => say!("read-ahead {} to {} KiB", bytes >> 10, bytes >> 9),
        }?;
    }
    say!("writes     {}", writes(disk))
}

/// The state of the write cache, by measurement and according to the kernel.
fn writes(disk: &Disk) -> String {
    let place = |cached: bool| match cached {
        true => "acknowledged before they are on the platter",
        false => "acknowledged when they are on the platter",
    };
    let untried = match disk.rotation_ms {
        Some(_) => "not tried (--try-writes)",
        None => "no turn shows when they are on a platter",
    };
    match (disk.write_cache, disk.write_cache_flushed) {
        (None, None) => String::from(untried),
        (None, Some(said)) => format!("{}, says the kernel; {untried}", place(said)),
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
        Err(String::from("its end is not behind its first byte"))
    } else {
        Ok(bytes)
    }
}
