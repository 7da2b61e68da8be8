//! Measures the figures that documents quote again, and compares them with the documents or writes them
//! there.
//!
//! ```text
//!   questions, library ──► tables with names ──► the lines after `<!-- exact: NAME -->` in README and docs
//! ```
//!
//! Only tables in virtual time are quoted like this: the same program prints them on every machine.

mod document;

#[cfg(test)]
mod tests;

use std::path::Path;
use std::thread;

use anyhow::{Context, Result, ensure};
use clap::ValueEnum;
use parking_lot::Mutex;

use crate::disk::Profile;
use crate::library::LibraryPlan;
use crate::peer::Peer;
use crate::questions::{Plan, Question, Table};
use crate::report::bars;
use crate::report::summary::{Row, Summary};
use crate::report::table::figure;
use crate::workload::catalog::Workload;
use document::Document;

/// The disks whose library benchmark is published.
const LIBRARY: [Profile; 3] = [Profile::St31200, Profile::AtlasIi, Profile::Hdd7200];

/// A part of the program that prints tables.
#[derive(Clone, Copy, Debug)]
enum Source {
    Question(Question),
    Library(Profile),
}

impl Source {
    fn all() -> impl Iterator<Item = Source> {
        let questions =
            Question::value_variants().iter().map(|&question| Source::Question(question));
        questions.filter(|source| source.is_exact()).chain(LIBRARY.map(Source::Library))
    }

    /// Whether the part prints tables that repeat exactly.
    fn is_exact(self) -> bool {
        match self {
            Source::Library(_) => true,
            Source::Question(question) => matches!(
                question,
                Question::SmallFilesMatter
                    | Question::SmallFilesSlower
                    | Question::UnrelatedBytes
                    | Question::SmallFileBandwidth
                    | Question::ServiceTime
                    | Question::Holes
                    | Question::EachDurable
                    | Question::EachTechnique
                    | Question::SmallFilesAged
                    | Question::TimesPredicted
                    | Question::LargeFileBandwidth
                    | Question::RecoveryUnderLoad
                    | Question::Keys
                    | Question::LogOrder
                    | Question::TinyFiles
            ),
        }
    }

    /// The tables that repeat exactly, with their names.
    fn tables(self, plan: &Plan) -> Result<Vec<(String, Table)>> {
        match self {
            Source::Question(question) => {
                let tables = question.ask(plan)?.into_iter().filter(|table| table.is_exact);
                let name = question.name();
                Ok((1..).map(|i| format!("{name}-{i}")).zip(tables).collect())
            }
            Source::Library(profile) => library(plan, profile),
        }
    }
}

/// The library benchmark on a disk: a table for each workload, and one with the ratios that README has.
fn library(plan: &Plan, profile: Profile) -> Result<Vec<(String, Table)>> {
    let plan = LibraryPlan { files: 10_000, ..plan.library(profile, 512 << 20) };
    let summary = Summary::new(&plan.run()?, profile.streaming_rate());
    let stem = format!("library-{}", profile.name());
    let mut tables = vec![(format!("{stem}-ratios"), ratios(&summary)?)];
    for workload in [Workload::Small1k, Workload::Thesis, Workload::LargeFile] {
        let header =
            ["phase", "", "files/s", "MB/s", "requests per 1000 files", "seconds", "of limit"];
        let mut table = Table::new(header, 2);
        for row in summary.rows.iter().filter(|row| row.workload == workload) {
            let limit = row.ratio_to_limit.map(|part| format!("{}%", figure(part * 100.0)));
            table.row([
                row.phase.clone(),
                row.peer.to_string(),
                figure(row.files_per_sec),
                figure(row.megabytes_per_sec),
                figure(row.requests_per_file.unwrap_or_default() * 1000.0),
                figure(row.seconds),
                limit.unwrap_or_else(|| String::from("-")),
            ]);
        }
        tables.push((format!("{stem}-{}", workload.name()), table.grouped()));
    }
    let mut goals = Table::new(["", "goal", "measured", ""], 1);
    for verdict in bars::judge(profile, &summary) {
        let met = if verdict.met { "met" } else { "missed" };
        goals.row([verdict.bar, figure(verdict.goal), figure(verdict.measured), met.to_owned()]);
    }
    if !goals.rows.is_empty() {
        tables.push((format!("{stem}-goals"), goals));
    }
    Ok(tables)
}

/// C-FFS next to the conventional layout, with files of 1 KiB.
fn ratios(summary: &Summary) -> Result<Table> {
    let mut table = Table::new(["", "conventional", "C-FFS", "requests per 1000 files"], 1);
    for phase in ["create", "read", "overwrite"] {
        let of = |peer| summary.find(Workload::Small1k, phase, peer).context("a phase is missing");
        let (plain, ours) = (of(Peer::CffsPlain)?, of(Peer::Cffs)?);
        let rate = |row: &Row| format!("{} files/s", figure(row.files_per_sec));
        let requests = |row: &Row| figure(row.requests_per_file.unwrap_or_default() * 1000.0);
        table.row([
            phase.to_owned(),
            rate(plain),
            rate(ours),
            format!("{} → {}", requests(plain), requests(ours)),
        ]);
    }
    Ok(table)
}

/// Measures all tables, several at a time.
fn measure(plan: &Plan) -> Result<Vec<(String, Table)>> {
    let sources: Vec<Source> = Source::all().collect();
    let (waiting, done) = (Mutex::new(sources.into_iter()), Mutex::new(Vec::new()));
    let worker = || {
        loop {
            let Some(source) = waiting.lock().next() else { return Ok(()) };
            let tables = source.tables(plan).with_context(|| format!("measure {source:?}"))?;
            done.lock().extend(tables);
        }
    };
    let workers = thread::available_parallelism().map_or(1, usize::from);
    let results: Result<Vec<()>> = thread::scope(|scope| {
        let handles: Vec<_> = (0..workers).map(|_| scope.spawn(worker)).collect();
        handles.into_iter().map(|handle| handle.join().expect("no panic")).collect()
    });
    results?;
    Ok(done.into_inner())
}

/// The documents below `root` that quote tables.
fn documents(root: &Path) -> Result<Vec<Document>> {
    let mut documents = Vec::new();
    let mut waiting = vec![root.join("docs"), root.join("README.md")];
    while let Some(path) = waiting.pop() {
        if path.is_dir() {
            for entry in path.read_dir().with_context(|| format!("list {}", path.display()))? {
                waiting.push(entry?.path());
            }
        } else if path.extension().is_some_and(|extension| extension == "md") {
            documents.push(Document::read(path)?);
        }
    }
    Ok(documents)
}

/// Measures every table and compares it with the documents below `root`, or replaces it there.
pub fn run(root: &Path, write: bool) -> Result<()> {
    let mut documents = documents(root)?;
    // The sizes of this machine's files are not exact figures, so few files are counted.
    let tables = measure(&Plan { trees: vec![root.join("docs")], ..Plan::default() })?;
    let mut faults = Vec::new();
    for (name, table) in &tables {
        let mut quoted = false;
        for document in &mut documents {
            quoted |= document.quotes(name);
            if write {
                document.replace(name, &table.to_string());
            } else if let Some(line) = document.differs(name, &table.to_string()) {
                faults.push(format!("{}:{line}: another table {name} is printed", document.path()));
            }
        }
        if !quoted {
            faults.push(format!("no document has a line `{}`", document::marker(name)));
        }
    }
    for document in &documents {
        let unknown =
            document.names().filter(|name| !tables.iter().any(|(known, _)| known == name));
        faults.extend(unknown.map(|name| format!("{}: no table is named {name}", document.path())));
        if write {
            document.save()?;
        }
    }
    ensure!(
        faults.is_empty(),
        "{}\n`cffs-bench figures --write` replaces the tables; then check the text around them",
        faults.join("\n")
    );
    Ok(())
}
