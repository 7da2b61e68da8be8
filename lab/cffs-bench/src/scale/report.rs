//! The report on growth: the document and the verdicts.

use std::fmt::Write as _;
use std::path::Path;

use anyhow::Result;
use serde::Serialize;

use super::growth::{Costs, Curve, Measure, Sample, Verdict, curves};
use super::{Measured, Part, clients};
use crate::peer::Peer;
use crate::report::environment::Machine;
use crate::report::table::{figure, markdown_table, wrap};
use crate::report::write_files;

/// A finished measurement.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    pub machine: Machine,
    /// The version of C-FFS.
    pub version: String,
    /// How long it took, in seconds.
    pub seconds: f64,
    /// The cost of each step at each size.
    pub samples: Vec<Sample>,
    /// How each cost grows.
    pub curves: Vec<Curve>,
    /// The steps that could not be measured.
    pub failures: Vec<String>,
}

const PARTS: [Part; 4] = [Part::Clients, Part::Directory, Part::Tree, Part::Volume];

impl Part {
    fn title(self) -> &'static str {
        match self {
            Part::Clients => "Clients",
            Part::Directory => "Names in one directory",
            Part::Tree => "Files in a tree",
            Part::Volume => "Volumes that are 60% full",
        }
    }

    fn unit(self) -> &'static str {
        match self {
            Part::Clients => "clients",
            Part::Directory => "names",
            Part::Tree => "files",
            Part::Volume => "GiB",
        }
    }
}

impl Report {
    /// Computes the growth of each cost.
    pub fn new(measured: Measured, version: String, seconds: f64) -> Report {
        let curves = curves(&measured.samples);
        let Measured { samples, failures } = measured;
        Report { machine: Machine::here(), version, seconds, samples, curves, failures }
    }

    /// Writes `scale.md` and `scale.json` into a directory.
    pub fn write(&self, directory: &Path) -> Result<()> {
        write_files(directory, "scale", self, self.markdown())
    }

    pub fn markdown(&self) -> String {
        let seconds = figure(self.seconds);
        let details = format!("{}. Written by `make scale` in {seconds} seconds.", self.version);
        let mut out = self.machine.head("How costs grow", &details);
        self.verdicts(&mut out);
        for part in PARTS {
            if self.samples.iter().any(|sample| sample.part == part) {
                self.part(part, &mut out);
            }
        }
        if !self.failures.is_empty() {
            out += "## Not measured\n\n";
            for failure in &self.failures {
                out += &wrap(&format!("- {failure}"));
            }
        }
        out
    }

    /// Writes the steps that grow too fast, which matter most to readers.
    fn verdicts(&self, out: &mut String) {
        let faster: Vec<_> = self.judged().filter(|c| c.verdict() == Verdict::Faster).collect();
        let judged = self.judged().filter(|c| c.verdict() != Verdict::TooSmall).count();
        *out += &wrap(&match faster.len() {
            0 => format!("None of {judged} costs grows faster than n log n."),
            n => format!("{n} of {judged} costs grow faster than n log n:"),
        });
        *out += "\n";
        for curve in &faster {
            *out += &wrap(&format!(
                "- {}: {}, {} ({})",
                curve.part.title(),
                curve.step,
                curve.measure.name(),
                factors(curve)
            ));
        }
        if !faster.is_empty() {
            *out += "\n";
        }
    }

    fn part(&self, part: Part, out: &mut String) {
        let _ = write!(out, "## {}\n\n", part.title());
        let table = if part == Part::Clients { self.rates() } else { self.costs(part) };
        let _ = write!(out, "{table}\n{}\n", self.growth(part));
    }

    /// Operations per second of each peer.
    fn rates(&self) -> String {
        let mut header = vec!["clients"];
        header.extend(clients::PHASES);
        let rows = self.sizes(Part::Clients).into_iter().flat_map(|size| {
            clients::PEERS.map(|peer| {
                let rate = |phase: &&str| self.rate(phase, peer, size);
                let mut row = vec![format!("{size}, {peer}")];
                row.extend(clients::PHASES.iter().map(|p| rate(p).map_or("-".into(), figure)));
                row
            })
        });
        markdown_table(&header, rows, 1)
    }

    fn rate(&self, phase: &str, peer: Peer, size: u64) -> Option<f64> {
        let step = clients::step(phase, peer);
        let sample = self.samples.iter().find(|s| s.step == step && s.size == size)?;
        let each = sample.costs.get(&Measure::Seconds)?;
        Some(size as f64 * sample.work? as f64 / each)
    }

    fn costs(&self, part: Part) -> String {
        let of_part: Vec<_> = self.samples.iter().filter(|s| s.part == part).collect();
        let is_there = |m: &Measure| of_part.iter().any(|s| s.costs.contains_key(m));
        let measures: Vec<_> = Measure::ALL.into_iter().filter(is_there).collect();
        let mut header = vec!["", part.unit()];
        header.extend(measures.iter().map(|measure| measure.name()));
        header.push("CPU µs each");
        let rows = steps(&of_part).into_iter().flat_map(|step| {
            let of_step: Vec<_> = of_part.iter().filter(|s| s.step == step).collect();
            let rows = of_step.into_iter().enumerate().map(|(i, sample)| {
                let first = if i == 0 { step.to_owned() } else { String::new() };
                let mut row = vec![first, sample.size.to_string()];
                row.extend(measures.iter().map(|measure| cell(&sample.costs, *measure)));
                let cpu = sample.costs.get(&Measure::CpuSeconds);
                let each = cpu.map(|seconds| seconds * 1e6 / sample.size as f64);
                row.push(each.map_or("-".into(), figure));
                row
            });
            rows.collect::<Vec<_>>()
        });
        markdown_table(&header, rows, 1)
    }

    fn growth(&self, part: Part) -> String {
        let says = |curve: &&Curve| curve.part == part && curve.verdict() != Verdict::TooSmall;
        let rows = self.judged().filter(says).map(|curve| {
            vec![
                curve.step.clone(),
                curve.measure.name().to_owned(),
                factors(curve),
                String::from(match curve.verdict() {
                    Verdict::Faster => "FASTER",
                    _ => "within n log n",
                }),
            ]
        });
        markdown_table(&["", "cost", "growth", ""], rows, 4)
    }

    fn judged(&self) -> impl Iterator<Item = &Curve> {
        self.curves.iter().filter(|curve| curve.is_judged())
    }

    fn sizes(&self, part: Part) -> Vec<u64> {
        let of_part = self.samples.iter().filter(|s| s.part == part);
        let mut sizes: Vec<_> = of_part.map(|sample| sample.size).collect();
        sizes.sort_unstable();
        sizes.dedup();
        sizes
    }
}

fn steps<'a>(samples: &[&'a Sample]) -> Vec<&'a str> {
    let mut steps: Vec<&str> = Vec::new();
    for sample in samples {
        if !steps.contains(&sample.step.as_str()) {
            steps.push(&sample.step);
        }
    }
    steps
}

fn cell(costs: &Costs, measure: Measure) -> String {
    costs.get(&measure).map_or("-".into(), |cost| figure(cost / measure.unit()))
}

fn factors(curve: &Curve) -> String {
    let factor = |growth: &super::growth::Growth| match growth.verdict {
        Verdict::TooSmall => String::from("-"),
        _ => figure(growth.factor),
    };
    curve.growth.iter().map(factor).collect::<Vec<_>>().join(", ")
}
