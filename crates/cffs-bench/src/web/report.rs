//! The report of the study: the document and its chart.

use std::fmt::Write as _;
use std::fs;
use std::path::Path;

use anyhow::{Context, Result};
use serde::Serialize;

use super::{Layout, Plan, Replay, Study};
use crate::peer::Peer;
use crate::report::curve::{self, Chart, Line};
use crate::report::environment::Machine;
use crate::report::table::{figure, markdown_table, wrap};

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
    /// Of a study by a plan.
    pub fn new(plan: &Plan, study: Study) -> Report {
        Report {
            machine: Machine::here(),
            versions: [Peer::Cffs, Peer::Ext4].map(|peer| peer.version(&plan.cffs)),
            profile: plan.profile.name(),
            seed: plan.extent.seed,
            study,
        }
    }

    /// Writes `web-server.md`, `web-server.json` and `web-server.svg` into a directory.
    pub fn write(&self, directory: &Path) -> Result<()> {
        fs::create_dir_all(directory).with_context(|| format!("make {}", directory.display()))?;
        let write = |name: &str, contents: String| {
            let path = directory.join(name);
            fs::write(&path, contents).with_context(|| format!("write {}", path.display()))
        };
        write("web-server.svg", curve::draw(&self.chart())?)?;
        write("web-server.json", serde_json::to_string_pretty(self)? + "\n")?;
        write("web-server.md", self.markdown())
    }

    /// The document.
    pub fn markdown(&self) -> String {
        let mut out = String::from("# A web server's reads\n\n");
        let mut paragraph = |text: &str| {
            out += &wrap(text);
            out += "\n";
        };
        let Study { site: (pages, files, bytes), log: (visits, reads), .. } = &self.study;
        paragraph(&format!(
            "{}. {}; {}. Emulated device: {}. Written by `make web-study`; seed {}.",
            self.machine, self.versions[0], self.versions[1], self.profile, self.seed
        ));
        paragraph(&format!(
            "PLACE (section 4.1) replayed the log of a university's web server. This is a site and \
             a log from a seed: {pages} pages in {files} files, {} MB. A page is an HTML file and \
             one to seven images of its own, in another directory, with three icons that its \
             section has in common. The files were made in random order, as over years of additions \
             and edits. {visits} visits choose pages by Zipf's law with exponent 0.8; each reads \
             the page, then its images: {reads} files.",
            bytes / 1_000_000
        ));
        paragraph(
            "One reader, cat(1), opens and reads the files of the log one after the other, in a \
             control group whose limit holds for the kernel's caches as well. A C-FFS mount has \
             half of the memory for its cache, and the reader the other half. Caches are empty at \
             first. Files are packed and regrouped by the logs of the seven days before, which have \
             the same habits: what was read most often first, so that the files of a page follow \
             each other. `warm` reads them in advance, as much as fits in three quarters of the \
             memory, which the figures include.",
        );
        out += "![Milliseconds that the disk works for a visit](web-server.svg)\n\n";
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

    fn chart(&self) -> Chart {
        let visits = self.study.log.0 as f64;
        let line = |layout: Layout| {
            let here = self.study.replays.iter().filter(|replay| replay.layout == layout);
            let point =
                |it: &Replay| ((it.memory_bytes >> 20) as f64, it.busy_seconds * 1e3 / visits);
            Line { name: String::from(layout.name()), points: here.map(point).collect() }
        };
        Chart {
            name: String::from("web-server"),
            title: String::from("A web server: milliseconds of the disk for each visit"),
            x_label: "MiB of memory",
            lines: Layout::ALL
                .map(line)
                .into_iter()
                .filter(|line| !line.points.is_empty())
                .collect(),
        }
    }
}

type Column = (&'static str, fn(&Replay, f64) -> f64);

const COLUMNS: [Column; 3] = [
    ("Requests of the disk for each visit", |it, visits| it.requests as f64 / visits),
    ("Milliseconds of the disk for each visit", |it, visits| it.busy_seconds * 1e3 / visits),
    ("Visits per second", |it, visits| visits / it.seconds),
];
