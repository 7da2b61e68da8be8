//! `cffs fsck`, `fsck.cffs`: checks a volume and repairs it.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Mutex;

use anyhow::Context;
use cffs::device::file::Access;
use cffs::fsck::{self, CheckOptions, Phase, Progress, Repair, Report};
use clap::Args;
use indicatif::ProgressBar;
use serde_json::json;

use crate::{image, output, progress, size};

/// Check a volume and repair it
///
/// Without -p or -y nothing is changed. Ends with 0 if there is no problem, 1 if all were
/// repaired, 4 if some were not, 8 if the check could not be made, 16 for wrong usage. Each kind
/// of problem has a code, explained in docs/FSCK.md.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  cffs fsck -n tree.cffs       look, change nothing
  cffs fsck -p tree.cffs       repair what a crash leaves behind; pass over a clean volume
  cffs fsck -f -y tree.cffs    check in any case, repair everything
  cffs fsck --salvage -n DEV   the last resort: see what a search of the whole device finds")]
pub struct Fsck {
    /// The image or the device.
    #[arg(value_name = "IMAGE|DEVICE")]
    target: PathBuf,
    /// Change nothing.
    #[arg(short, group = "repair")]
    no: bool,
    /// Repair what a crash leaves behind; with other damage, nothing.
    #[arg(short, visible_short_alias = 'a', group = "repair")]
    preen: bool,
    /// Repair everything.
    #[arg(short, group = "repair")]
    yes: bool,
    /// Check also a volume that was left clean.
    #[arg(short, long)]
    force: bool,
    /// Read the contents of small files, too, and check their checksums.
    #[arg(long)]
    contents: bool,
    /// Search the whole device for directories that nothing leads to; deleted ones are found, too.
    #[arg(long, conflicts_with = "preen")]
    salvage: bool,
    /// Show progress with --json, too. Nothing is shown where standard error is no terminal.
    #[arg(long)]
    progress: bool,
    /// Accepted, for fsck(8): progress shows by itself.
    #[arg(short = 'C', value_name = "FD", hide = true)]
    progress_to: Option<i32>,
    /// How many threads read.
    #[arg(short = 'j', long, default_value_t = 4)]
    threads: usize,
    /// Print the report as JSON.
    #[arg(long)]
    json: bool,
    /// Accepted, for fsck(8).
    #[arg(short, hide = true)]
    verbose: bool,
    /// Accepted, for fsck(8).
    #[arg(short = 'T', hide = true)]
    title: bool,
    /// Accepted, for fsck(8).
    #[arg(short = 'M', hide = true)]
    mounted: bool,
}

impl Fsck {
    /// Checks, and tells what was found.
    pub fn run(self) -> anyhow::Result<ExitCode> {
        let repair = match (self.preen, self.yes) {
            (true, _) => Repair::Preen,
            (_, true) => Repair::Yes,
            _ => Repair::No,
        };
        let access = if repair == Repair::No { Access::ReadOnly } else { Access::ReadWrite };
        let device = image::open_device(&self.target, access)?;
        let options = CheckOptions {
            repair,
            force: self.force || self.salvage || repair == Repair::No,
            contents: self.contents,
            salvage: self.salvage,
            threads: self.threads.max(1),
        };
        let bars = Bars::new(self.json && !self.progress && self.progress_to.is_none());
        let report = fsck::check(&device, &options, &bars);
        bars.finish();
        let report = report.with_context(|| self.target.display().to_string())?;
        if self.json {
            output::json(&as_json(&report))?;
        } else {
            self.tell(&report);
        }
        Ok(ExitCode::from(report.exit_code()))
    }

    fn tell(&self, report: &Report) {
        let name = self.target.display();
        for problem in &report.problems {
            let outcome = if problem.fixed { " (repaired)" } else { "" };
            println!("{name}: {problem}{outcome}");
        }
        for (code, count) in &report.recovered {
            println!("{name}: recovered after a crash: {} ({count})", code.id());
        }
        if report.skipped {
            println!("{name}: clean, not checked");
            return;
        }
        let used = report.used_fragments * u64::from(report.fragment_bytes);
        let all =
            (report.used_fragments + report.free_fragments) * u64::from(report.fragment_bytes);
        println!(
            "{name}: {} inodes, {} directories, {} of {} in use; {} requests, {} read",
            report.inodes,
            report.directories,
            size::show(used),
            size::show(all),
            report.read_requests,
            size::show(report.read_bytes)
        );
        let left = report.problems.iter().filter(|problem| !problem.fixed).count();
        match (report.problems.len(), left) {
            (0, _) if report.consistent => println!("{name}: clean"),
            (0, _) => println!("{name}: was not left clean; cffs fsck -p {name} completes it"),
            (all, 0) => println!("{name}: {all} problems, all repaired"),
            (all, left) => println!(
                "{name}: {all} problems, {left} not repaired; cffs fsck -y {name} repairs them"
            ),
        }
    }
}

fn as_json(report: &Report) -> serde_json::Value {
    let problems: Vec<_> = report
        .problems
        .iter()
        .map(|problem| {
            json!({
                "code": problem.code.id(),
                "place": problem.place.to_string(),
                "message": problem.message,
                "fixed": problem.fixed,
            })
        })
        .collect();
    let recovered: BTreeMap<_, _> =
        report.recovered.iter().map(|(code, count)| (code.id(), count)).collect();
    json!({
        "problems": problems,
        "recovered": recovered,
        "skipped": report.skipped,
        "recovery": report.recovery,
        "changed": report.changed,
        "consistent": report.consistent,
        "inodes": report.inodes,
        "directories": report.directories,
        "names": report.names,
        "used_fragments": report.used_fragments,
        "free_fragments": report.free_fragments,
        "fragment_bytes": report.fragment_bytes,
        "rounds": report.rounds,
        "read_requests": report.read_requests,
        "read_bytes": report.read_bytes,
        "unreadable_sectors": report.unreadable_sectors,
        "write_requests": report.write_requests,
        "write_bytes": report.write_bytes,
    })
}

/// One bar for each phase.
struct Bars {
    quiet: bool,
    current: Mutex<Option<(Phase, ProgressBar)>>,
}

impl Bars {
    fn new(quiet: bool) -> Bars {
        Bars { quiet, current: Mutex::new(None) }
    }

    fn finish(&self) {
        if let Ok(mut current) = self.current.lock()
            && let Some((_, bar)) = current.take()
        {
            bar.finish_and_clear();
        }
    }
}

impl Progress for Bars {
    fn report(&self, phase: Phase, done: u64, total: u64) {
        let Ok(mut current) = self.current.lock() else { return };
        if !matches!(&*current, Some((at, _)) if *at == phase) {
            if let Some((_, bar)) = current.take() {
                bar.finish_and_clear();
            }
            let (label, unit) = match phase {
                Phase::Walk => ("pass 1: names and inodes", "inodes"),
                Phase::Contents => ("contents of small files", "files"),
                Phase::Search => ("search for lost directories", "cylinder groups"),
                Phase::Links => ("pass 2: link counts", "inodes"),
                Phase::Locator => ("pass 3: locator table", "blocks"),
                Phase::Bitmaps => ("pass 4: free space", "cylinder groups"),
            };
            *current = Some((phase, progress::counter(label, Some(total), unit, self.quiet)));
        }
        if let Some((_, bar)) = &*current {
            bar.set_length(total.max(done));
            bar.set_position(done);
        }
    }
}
