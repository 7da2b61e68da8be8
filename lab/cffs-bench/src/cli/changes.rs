//! `cffs-bench changes`.

use anyhow::{Context, Result};
use clap::Args;

use cffs_bench::disk::{Profile, Stroke};
use cffs_bench::library::LibraryPlan;
use cffs_bench::library::changes::changes;

/// Enough for a file of 1 KiB and its inode.
const BYTES_PER_FILE: u64 = 2 << 10;
const VOLUME_BYTES_MIN: u64 = 64 << 20;

#[derive(Args)]
#[command(after_help = "Example: cffs-bench changes --files 100000")]
pub struct ChangesArguments {
    /// Files on the volume. The data of a million takes 2 GiB of memory.
    #[arg(long, default_value_t = 1_000_000, value_parser = clap::value_parser!(u64).range(1..))]
    files: u64,
    /// Files that change after the mark.
    #[arg(long, default_value_t = 100)]
    changed: u64,
    /// The disk.
    #[arg(long, value_enum, default_value = "hdd7200")]
    profile: Profile,
    /// The seed of all random choices.
    #[arg(long, default_value_t = 1)]
    seed: u64,
}

impl ChangesArguments {
    pub fn run(self) -> Result<()> {
        let plan = LibraryPlan {
            profile: self.profile,
            stroke: Stroke::Whole,
            size: (self.files * BYTES_PER_FILE).max(VOLUME_BYTES_MIN).next_multiple_of(1 << 20),
            files: self.files,
            large_bytes: 0,
            journal_bytes: 0,
            each_durable: false,
            seed: self.seed,
        };
        println!("| | seconds | requests | MiB |\n| --- | ---: | ---: | ---: |");
        for phase in changes(&plan, self.changed)? {
            let device = phase.device.context("a disk counts requests")?;
            let mib = device.read_bytes as f64 / f64::from(1 << 20);
            println!("| {} | {:.3} | {} | {mib:.2} |", phase.name, phase.seconds, device.reads);
        }
        Ok(())
    }
}
