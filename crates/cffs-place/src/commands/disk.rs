//! `place disk`: what a disk can do.

use std::fs;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context, Result};
use cffs_place::disk::{self, Disk, FileDrive};
use clap::Args;

mod picture;

/// Find out what a disk can do by reading it
///
/// How long a turn of the platter and some seeks take, how fast each zone is read, and how far the drive
/// reads ahead; in ten seconds, during which nobody else should use it. It only reads, past the system's
/// caches. A part of a disk, such as a partition, has the seeks of that part.
///
/// Whether the drive acknowledges writes before they are on the platter is tried with --try-writes alone,
/// which writes back what it has read in twelve places of a device that is not in use.
#[derive(Debug, Args)]
#[command(name = "disk", after_help = EXAMPLES)]
pub struct MeasureDisk {
    /// The block device, or a file that stands for one.
    device: PathBuf,
    /// Try writes as well.
    #[arg(long)]
    try_writes: bool,
    /// Draw bandwidth and seeks.
    #[arg(long, value_name = "FILE")]
    svg: Option<PathBuf>,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

const EXAMPLES: &str = "\
Examples:
  place disk /dev/sdb
  place disk --svg disk.svg --json /dev/sdb | jq .rpm";

impl MeasureDisk {
    /// Measures and prints.
    pub fn run(self) -> Result<ExitCode> {
        let name = || self.device.display().to_string();
        let mut drive = FileDrive::open(&self.device, self.try_writes)
            .map_err(|error| advised(error, self.try_writes))
            .with_context(name)?;
        let found = disk::measure(&mut drive, self.try_writes).with_context(name)?;
        if let Some(file) = &self.svg {
            fs::write(file, picture::of(&found)).with_context(|| file.display().to_string())?;
        }
        match self.json {
            true => println!("{}", serde_json::to_string_pretty(&found)?),
            false => print(&found),
        }
        Ok(ExitCode::SUCCESS)
    }
}

/// An error of opening, with what to do.
fn advised(error: std::io::Error, to_write: bool) -> anyhow::Error {
    let advice = match error.raw_os_error() {
        Some(code) if code == rustix::io::Errno::BUSY.raw_os_error() && to_write => {
            "it is in use; unmount it, or leave --try-writes out"
        }
        Some(code) if code == rustix::io::Errno::INVAL.raw_os_error() => {
            "it cannot be read past the system's caches (O_DIRECT)"
        }
        _ => return error.into(),
    };
    anyhow::Error::from(error).context(advice)
}

fn print(disk: &Disk) {
    let megabytes = |bytes: u64| bytes as f64 / 1e6;
    match (disk.rotation_ms, disk.rpm) {
        (Some(turn), Some(rpm)) => println!("rotation   {turn:.2} ms, {rpm:.0} turns a minute"),
        _ => println!("rotation   none found: no disk with an arm, or a cache that answers for it"),
    }
    for (number, seek) in disk.seeks.iter().enumerate() {
        let name = if number == 0 { "seeks" } else { "" };
        println!("{name:<10} {:.2} ms over {:.1}% of the disk", seek.ms, 100.0 * seek.distance);
    }
    for (number, zone) in disk.zones.iter().enumerate() {
        let name = if number == 0 { "bandwidth" } else { "" };
        let (rate, first) = (zone.bytes_per_second / 1e6, megabytes(zone.first_byte));
        println!("{name:<10} {rate:.1} MB/s from {first:.0} to {:.0} MB", megabytes(zone.end_byte));
    }
    println!(
        "access     {:.2} ms on average, {:.2} ms from the buffer",
        disk.access_ms, disk.command_ms
    );
    if disk.rotation_ms.is_some() {
        match disk.read_ahead_bytes {
            0 => println!("read-ahead none"),
            bytes => println!("read-ahead {} to {} KiB", bytes >> 10, bytes >> 9),
        }
    }
    match disk.write_cache {
        Some(true) => println!("writes     acknowledged before they are on the platter"),
        Some(false) => println!("writes     acknowledged when they are on the platter"),
        None => println!("writes     not tried (--try-writes)"),
    }
}
