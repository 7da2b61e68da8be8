//! The report of the study.

use std::fmt::Write as _;
use std::path::Path;

use anyhow::Result;
use serde::Serialize;

use super::{Layout, Plan, Replay, Study};
use crate::peer::Peer;
use crate::report::environment::Machine;
use crate::report::table::{figure, markdown_table};
use crate::report::write_files;

/// A finished study.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    machine: Machine,
    versions: [String; 2],
    profile: String,
    seed: u64,
    study: Study,
}

impl Report {
    pub fn new(plan: &Plan, study: Study) -> Report {
        Report {
            machine: Machine::here(),
            versions: [Peer::Cffs, Peer::Ext4].map(|peer| peer.version(&plan.cffs)),
            profile: plan.profile.name(),
            seed: plan.extent.seed,
            study,
        }
    }

    /// Writes `web-server.md` and `web-server.json` into a directory.
    pub fn write(&self, directory: &Path) -> Result<()> {
        write_files(directory, "web-server", self, self.markdown())
    }

    pub fn markdown(&self) -> String {
        let Study { site: (pages, files, bytes), log: (visits, reads), .. } = &self.study;
        let details = format!(
            "{}; {}. Emulated device: {}. Written by `make web-study`; seed {}. The site has {pages} pages \
             in {files} files, {} MB; {visits} visits read {reads} files.",
            self.versions[0],
            self.versions[1],
            self.profile,
            self.seed,
            bytes / 1_000_000
        );
        let mut out = self.machine.head("A web server's reads", &details);
        for (title, of) in COLUMNS {
            let _ = writeln!(out, "## {title}\n");
            out += &self.table(of);
            out += "\n";
        }
        out
    }

    fn memory(&self) -> Vec<u64> {
        let mut all: Vec<u64> =
            self.study.replays.iter().map(|replay| replay.memory_bytes).collect();
        all.sort_unstable();
        all.dedup();
        all
    }

    fn table(&self, of: fn(&Replay, f64) -> f64) -> String {
        let memory = self.memory();
        let visits = self.study.log.0 as f64;
        let header: Vec<String> =
            memory.iter().map(|bytes| format!("{} MiB", bytes >> 20)).collect();
        let header: Vec<&str> = [""].into_iter().chain(header.iter().map(String::as_str)).collect();
        let rows = Layout::ALL.into_iter().map(|layout| {
            let cell = |bytes: &u64| {
                let here = |it: &&Replay| it.layout == layout && it.memory_bytes == *bytes;
                let found = self.study.replays.iter().find(here);
                found.map_or(String::from("-"), |replay| figure(of(replay, visits)))
            };
            [String::from(layout.name())].into_iter().chain(memory.iter().map(cell)).collect()
        });
        markdown_table(&header, rows, 1)
    }
}

type Column = (&'static str, fn(&Replay, f64) -> f64);

const COLUMNS: [Column; 3] = [
    ("Requests of the disk for each visit", |it, visits| it.requests as f64 / visits),
    ("Milliseconds of the disk for each visit", |it, visits| it.busy_seconds * 1e3 / visits),
    ("Visits per second", |it, visits| visits / it.seconds),
];
