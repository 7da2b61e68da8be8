//! From measurements to what people read: medians, the table, the bars, JSON and charts.
//!
//! Everything here is pure but for writing the files. Losses are shown as plainly as wins: a ratio
//! below one has the same place as one above it, and a run that failed is listed.

pub mod bars;
pub mod chart;
pub mod curve;
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
    /// Where and how it was measured.
    pub environment: Environment,
    /// A row for each cell.
    pub rows: Vec<Row>,
    /// The bars that apply.
    pub bars: Vec<bars::Verdict>,
    /// Runs that failed.
    pub failures: Vec<Failure>,
}

impl Report {
    /// Draws conclusions.
    pub fn new(plan: &Plan, results: &Results) -> Report {
        let summary = Summary::new(results, plan.profile.streaming_rate());
        // The goals apply to the faster transport; the report over the other one is separate.
        let bars = match plan.transport {
            Transport::Rings if plan.has_log() => bars::judge_log(plan.profile, &summary),
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

    /// Draws conclusions from a run in virtual time.
    pub fn of_library(plan: &LibraryPlan, results: &Results) -> Report {
        let summary = Summary::new(results, plan.profile.streaming_rate());
        Report {
            environment: Environment::virtual_disk(plan),
            bars: bars::judge(plan.profile, &summary),
            rows: summary.rows,
            failures: results.failures.clone(),
        }
    }

    /// Writes JSON, Markdown and charts into a directory, named after the profile.
    pub fn write(&self, directory: &Path) -> Result<()> {
        fs::create_dir_all(directory).with_context(|| format!("make {}", directory.display()))?;
        let stem = &self.environment.name;
        let write = |name: String, contents: String| {
            let path = directory.join(name);
            fs::write(&path, contents).with_context(|| format!("write {}", path.display()))
        };
        write(format!("{stem}.json"), serde_json::to_string_pretty(self)? + "\n")?;
        write(format!("{stem}.md"), table::markdown(self))?;
        for (workload, svg) in chart::draw(&self.rows)? {
            write(format!("{stem}-{workload}.svg"), svg)?;
        }
        Ok(())
    }
}
