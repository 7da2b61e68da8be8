//! `make place-disk`: a table of several runs of `place disk` on each disk, through the kernel.

use std::fmt::Write;
use std::path::Path;

use cffs_bench::disk::Profile;
use cffs_place::disk::{Disk, Writable};

use crate::trees::turn;
use crate::truth::{DISKS, Kind, SECONDS_MAX, Served, faults, figures};

/// In real time, ten seconds for each run, on an idle machine.
#[test]
fn every_figure_is_near_the_truth() {
    let Ok(runs) = std::env::var("CFFS_PLACE_DISK_RUNS") else {
        eprintln!("not run: make place-disk sets CFFS_PLACE_DISK_RUNS");
        return;
    };
    let each: u32 = runs.parse().expect("a number of runs");
    let _turn = turn();
    let mut runs = Vec::new();
    for profile in DISKS {
        let served = Served::start(profile, Path::new("/dev/shm")).expect("a disk, as root");
        for number in 1..=each {
            let (disk, seconds) = served.measure(&Writable::Disk).expect("measured");
            let run = Run { profile, disk, seconds };
            let (name, misses) = (profile.name(), run.faults().len());
            eprintln!("{name}, {number} of {each}: {seconds:.1} s, {misses} misses");
            runs.push(run);
        }
        served.stop().expect("stopped");
    }
    println!("{}", markdown(&runs));
    assert!(runs.iter().all(|run| run.faults().is_empty()), "a run missed a bar");
}

/// One run on a disk.
struct Run {
    /// The disk.
    profile: Profile,
    /// The findings about the disk.
    disk: Disk,
    /// The duration of the run in seconds.
    seconds: f64,
}

impl Run {
    /// The faults of the findings: figures, write cache, time.
    fn faults(&self) -> Vec<String> {
        let mut faults = faults(self.profile, &self.disk);
        let name = self.profile.name();
        let caches = [self.disk.write_cache, self.disk.write_cache_flushed];
        if caches != [Some(self.profile.has_write_cache()); 2] {
            faults.push(format!("{name}, write cache, tried and as the kernel has it: {caches:?}"));
        }
        if self.seconds > SECONDS_MAX {
            faults.push(format!("{name}: {:.1} s", self.seconds));
        }
        faults
    }

    /// The largest error of one kind of figure.
    fn off(&self, kind: Kind) -> f64 {
        let figures = figures(self.profile, &self.disk);
        furthest(figures.iter().filter(|figure| figure.kind == kind).map(|figure| figure.off()))
    }
}

fn furthest(off: impl Iterator<Item = f64>) -> f64 {
    off.fold(0.0, |most: f64, off| if off.abs() > most.abs() { off } else { most })
}

/// The largest errors of all runs on each disk, as Markdown, followed by the figures that missed their bars.
fn markdown(runs: &[Run]) -> String {
    let mut out = String::from(
        "| disk | runs | turns | seeks | bandwidth | where zones begin, of the disk | all within bounds | \
         seconds |\n| --- | --- | --- | --- | --- | --- | --- | --- |\n",
    );
    let mut profiles: Vec<Profile> = runs.iter().map(|run| run.profile).collect();
    profiles.dedup();
    for profile in profiles {
        let of_it: Vec<&Run> = runs.iter().filter(|run| run.profile == profile).collect();
        let worst =
            |kind| format!("{:+.2}%", 100.0 * furthest(of_it.iter().map(|run| run.off(kind))));
        let kinds = [Kind::Turns, Kind::Seek, Kind::Bandwidth, Kind::Zone].map(worst).join(" | ");
        let good = of_it.iter().filter(|run| run.faults().is_empty()).count();
        let seconds = of_it.iter().map(|run| run.seconds).fold(0.0, f64::max);
        let (name, all) = (profile.name(), of_it.len());
        let _ = writeln!(out, "| {name} | {all} | {kinds} | {good} of {all} | {seconds:.1} |");
    }
    let faults: Vec<String> = runs.iter().flat_map(Run::faults).collect();
    if !faults.is_empty() {
        let _ = writeln!(out, "\n- {}", faults.join("\n- "));
    }
    out
}
