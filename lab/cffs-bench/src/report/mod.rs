//! Reports: medians, tables, bars and JSON. `docs/performance/README.md` explains the columns.
//!
//! All functions are pure except those that write files. Losses are shown like wins: ratios below and above
//! one are in the same column, and failed runs are listed.

pub mod bars;
pub mod environment;
pub mod summary;
pub mod table;

#[cfg(test)]
mod tests;

use std::fs;
use std::path::Path;

use anyhow::{Context, Result};
use serde::Serialize;

use crate::compare::Plan;
use crate::library::LibraryPlan;
use crate::peer::Transport;
use crate::results::{Failure, Results};
use environment::Environment;
use summary::{Row, Summary};

/// A finished comparison.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    pub environment: Environment,
    pub rows: Vec<Row>,
    pub bars: Vec<bars::Verdict>,
    /// Runs that failed.
    pub failures: Vec<Failure>,
}

impl Report {
    /// Computes the report from the results.
    pub fn new(plan: &Plan, results: &Results) -> Report {
        let summary = Summary::new(results, plan.profile.streaming_rate());
        // The goals apply to the faster transport; the report over the other one is separate.
        let bars = match plan.transport {
            Transport::Rings if plan.has_journal() => bars::judge_journal(plan.profile, &summary),
            Transport::Rings if plan.contents.is_some() => {
                bars::judge_compressed(plan.profile, &summary)
            }
            Transport::Rings => bars::judge(plan.profile, &summary),
            Transport::Dev => Vec::new(),
        };
        Report {
            environment: Environment::here(plan, results.request_kib),
            bars,
            rows: summary.rows,
            failures: results.failures.clone(),
        }
    }

    /// Computes the report of a run in virtual time.
    pub fn of_library(plan: &LibraryPlan, results: &Results) -> Report {
        let summary = Summary::new(results, plan.profile.streaming_rate());
        Report {
            environment: Environment::virtual_disk(plan),
            bars: bars::judge(plan.profile, &summary),
            rows: summary.rows,
            failures: results.failures.clone(),
        }
    }

    /// Writes JSON and Markdown into a directory, named after the profile.
    pub fn write(&self, directory: &Path) -> Result<()> {
        write_files(directory, &self.environment.name, self, table::markdown(self))
    }
}

/// Writes a report into a directory: its figures as JSON, and its text.
pub(crate) fn write_files(
    directory: &Path,
    stem: &str,
    figures: &impl Serialize,
    text: String,
) -> Result<()> {
    fs::create_dir_all(directory).with_context(|| format!("make {}", directory.display()))?;
    let json = serde_json::to_string_pretty(figures)? + "\n";
    let files = [(format!("{stem}.json"), json), (format!("{stem}.md"), text)];
    for (name, contents) in files {
        let path = directory.join(name);
        fs::write(&path, contents).with_context(|| format!("write {}", path.display()))?;
    }
    Ok(())
}
