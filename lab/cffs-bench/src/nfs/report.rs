//! The results of a comparison of servers: medians, bars, and the document.

use std::fmt::Write as _;
use std::path::Path;

use anyhow::Result;
use serde::Serialize;

use super::client::IN_FLIGHT;
use super::server::Contender;
use super::workload;
use crate::disk::Profile;
use crate::report::environment::Machine;
use crate::report::table::{figure, markdown_table};
use crate::report::write_files;
use crate::workload::Phase;
use crate::workload::catalog::Scale;

/// A phase of one run.
#[derive(Clone, Debug)]
pub struct Cell {
    pub profile: Profile,
    /// The position of the phase in the run.
    pub order: usize,
    pub contender: Contender,
    pub phase: Phase,
}

/// The summary of all repetitions of a phase.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Row {
    pub profile: Profile,
    pub phase: String,
    pub contender: Contender,
    /// Operations per second: the median.
    pub operations_per_sec: f64,
    /// The slowest and the fastest repetition.
    pub range: (f64, f64),
    pub requests_per_operation: f64,
    pub flushes_per_operation: f64,
}

/// A figure with a goal.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Bar {
    /// The quantity that the bar limits.
    pub name: String,
    /// The goal: a minimum, or a maximum if `is_most`.
    pub goal: f64,
    pub measured: f64,
    /// Whether less is better.
    pub is_most: bool,
}

impl Bar {
    /// Whether the goal is reached.
    pub fn is_met(&self) -> bool {
        if self.is_most { self.measured <= self.goal } else { self.measured >= self.goal }
    }
}

/// A finished comparison.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    /// Full or quick.
    pub scale: Scale,
    /// The number of runs of each server on each disk.
    pub repetitions: u32,
    pub machine: Machine,
    pub versions: Vec<String>,
    /// A row for each phase of each server.
    pub rows: Vec<Row>,
    /// The goals, with measured values.
    pub bars: Vec<Bar>,
}

/// The goal of operations per second over those of nfs-ganesha.
const GOAL: f64 = 1.5;
/// The maximum of a disk's flushes per COMMIT, with several in progress.
const FLUSHES_PER_COMMIT_MAX: f64 = 3.0 / IN_FLIGHT as f64;

impl Report {
    /// Computes medians and bars from the runs.
    pub fn new(scale: Scale, repetitions: u32, versions: Vec<String>, cells: &[Cell]) -> Report {
        let rows = rows(cells);
        let bars = bars(&rows);
        Report { scale, repetitions, machine: Machine::here(), versions, rows, bars }
    }

    /// Writes `nfs.md` and `nfs.json` into a directory, or `nfs-quick.*`.
    pub fn write(&self, directory: &Path) -> Result<()> {
        let stem = if self.scale == Scale::Quick { "nfs-quick" } else { "nfs" };
        write_files(directory, stem, self, self.markdown())
    }

    pub fn markdown(&self) -> String {
        let details = format!(
            "{}. Medians of {}; in brackets the slowest and the fastest. Written by `make bench-nfs`.",
            self.versions.join("; "),
            self.repetitions,
        );
        let mut out = self.machine.head("NFS servers side by side", &details);
        let mut profiles: Vec<_> = self.rows.iter().map(|row| row.profile).collect();
        profiles.dedup();
        for profile in profiles {
            let _ = write!(out, "## {}\n\n{}\n", title(profile), self.table(profile));
        }
        let _ = write!(out, "## Bars\n\n{}\n", self.bars_table());
        out
    }

    fn table(&self, profile: Profile) -> String {
        let header = ["phase", "server", "operations/s", "", "requests/op", "flushes/op"];
        let mut last = None;
        let rows = self.rows.iter().filter(|row| row.profile == profile).map(|row| {
            let is_new = last.replace(&row.phase) != Some(&row.phase);
            vec![
                if is_new { row.phase.clone() } else { String::new() },
                row.contender.to_string(),
                figure(row.operations_per_sec),
                format!("({} to {})", figure(row.range.0), figure(row.range.1)),
                figure(row.requests_per_operation),
                figure(row.flushes_per_operation),
            ]
        });
        markdown_table(&header, rows, 2)
    }

    fn bars_table(&self) -> String {
        let rows = self.bars.iter().map(|bar| {
            let bound = if bar.is_most { "≤" } else { "≥" };
            vec![
                bar.name.clone(),
                format!("{bound} {}", figure(bar.goal)),
                figure(bar.measured),
                String::from(if bar.is_met() { "met" } else { "MISSED" }),
            ]
        });
        markdown_table(&["", "goal", "measured", ""], rows, 1)
    }
}

fn title(profile: Profile) -> &'static str {
    match profile {
        Profile::None => "A disk without delays and without a write cache",
        Profile::Hdd7200 => "A disk of 7200 rpm with a write cache",
        _ => "Another disk",
    }
}

/// The summaries of the phases, by disk, phase and server.
fn rows(cells: &[Cell]) -> Vec<Row> {
    let mut rows = Vec::new();
    let mut keys: Vec<_> =
        cells.iter().map(|cell| (cell.profile as usize, cell.order, cell.contender)).collect();
    keys.sort_unstable();
    keys.dedup();
    for key in keys {
        let is_of = |cell: &&Cell| (cell.profile as usize, cell.order, cell.contender) == key;
        let of_row: Vec<_> = cells.iter().filter(is_of).collect();
        let Some(first) = of_row.first() else { continue };
        let mut rates: Vec<_> = of_row.iter().map(|cell| cell.phase.files_per_sec()).collect();
        rates.sort_by(f64::total_cmp);
        let operations: u64 = of_row.iter().map(|cell| cell.phase.files).sum();
        let per_operation = |count: fn(&crate::disk::Counters) -> u64| {
            let counted: u64 =
                of_row.iter().filter_map(|c| c.phase.device.as_ref()).map(count).sum();
            counted as f64 / operations as f64
        };
        rows.push(Row {
            profile: first.profile,
            phase: first.phase.name.clone(),
            contender: first.contender,
            operations_per_sec: rates[rates.len() / 2],
            range: (rates[0], rates[rates.len() - 1]),
            requests_per_operation: per_operation(crate::disk::Counters::requests),
            flushes_per_operation: per_operation(|counters| counters.flushes),
        });
    }
    rows
}

fn bars(rows: &[Row]) -> Vec<Bar> {
    let mut bars = Vec::new();
    for row in rows.iter().filter(|row| row.contender == Contender::Cffs) {
        let has_goal = [
            workload::CREATE,
            workload::READ_COLD,
            workload::READ,
            workload::LIST_COLD,
            workload::LIST,
        ]
        .contains(&&*row.phase);
        let on = format!("{} on {:?}", row.phase, row.profile);
        let same = |other: &&Row| other.profile == row.profile && other.phase == row.phase;
        let others = rows.iter().filter(same).filter(|other| other.contender != Contender::Cffs);
        if has_goal {
            bars.extend(others.map(|other| Bar {
                name: format!("{on}, × {}", other.contender),
                goal: GOAL,
                measured: row.operations_per_sec / other.operations_per_sec,
                is_most: false,
            }));
        } else if row.phase == workload::COMMIT && row.profile.has_write_cache() {
            bars.push(Bar {
                name: format!("{on}, flushes for each"),
                goal: FLUSHES_PER_COMMIT_MAX,
                measured: row.flushes_per_operation,
                is_most: true,
            });
        }
    }
    bars
}
