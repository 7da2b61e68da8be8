//! `cffs-bench place-disk`.

use std::path::PathBuf;
use std::sync::atomic::Ordering;

use anyhow::{Context, Result, bail};
use clap::Args;

use cffs_bench::disk::Profile;
use cffs_bench::place_disk::report::{Run, markdown};
use cffs_bench::place_disk::{DISKS, Served};
use cffs_place::disk::Writable;

use super::interrupt;

#[derive(Args)]
pub struct PlaceDiskArguments {
    /// The disks; the four with an arm if none is named.
    #[arg(long, value_enum, value_delimiter = ',')]
    profiles: Vec<Profile>,
    /// How often each is measured.
    #[arg(long, default_value_t = 10, value_parser = clap::value_parser!(u32).range(1..))]
    runs: u32,
    /// Where the disks' data goes; best on a tmpfs.
    #[arg(long, default_value = "/dev/shm")]
    scratch: PathBuf,
}

impl PlaceDiskArguments {
    pub fn run(self) -> Result<()> {
        if !rustix::process::geteuid().is_root() {
            bail!("it makes loop devices, which only root may do");
        }
        let interrupt = interrupt()?;
        let profiles = if self.profiles.is_empty() { DISKS.to_vec() } else { self.profiles };
        let mut runs = Vec::new();
        for profile in profiles {
            if !DISKS.contains(&profile) {
                bail!("{} is no disk with an arm", profile.name());
            }
            let served = Served::start(profile, &self.scratch)?;
            for run in 1..=self.runs {
                if interrupt.load(Ordering::Relaxed) {
                    break;
                }
                let measured = served.measure(&Writable::Disk);
                let (disk, seconds) = measured.with_context(|| profile.name())?;
                let run_of_it = Run { profile, disk, seconds };
                eprintln!(
                    "place-disk: {} {run} of {}: {seconds:.1} s, {} misses",
                    profile.name(),
                    self.runs,
                    run_of_it.faults().len()
                );
                runs.push(run_of_it);
            }
            served.stop()?;
        }
        print!("{}", markdown(&runs));
        let missed = runs.iter().filter(|run| !run.faults().is_empty()).count();
        if missed > 0 { bail!("{missed} of {} runs missed a bar", runs.len()) } else { Ok(()) }
    }
}
