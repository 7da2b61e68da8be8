//! How programs use small files: which they open together, and how much grouping helps.

use std::collections::VecDeque;
use std::ffi::OsString;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use anyhow::Result;

use super::{Findings, OF_THE_THESIS, Plan, Repeats, Table, called};
use crate::disk::Profile;
use crate::library::trees::Tree;
use crate::report::table::figure;
use crate::workload::Phase;

/// A small file, in bytes: one that a conventional file system reads with a request of its own.
const SMALL_BYTES: u64 = 64 << 10;
/// A file counts as read together with another of its directory if at most this many files were read
/// between.
const LATELY: usize = 16;

/// Programs of every day, for a shell.
const PROGRAMS: [(&str, &str); 4] = [
    (
        "compile a C file",
        "echo '#include <stdio.h>\n#include <stdlib.h>\n#include <string.h>\n\
      #include <pthread.h>\n#include <sys/socket.h>\n#include <netdb.h>' | cc -x c -c -o /dev/null -",
    ),
    (
        "start a Python program",
        "python3 -c 'import asyncio, email.message, http.client, json, unittest'",
    ),
    ("search the headers", "grep -rq nowhere-to-be-found /usr/include"),
    ("archive /etc", "tar -cf - /etc | cat >/dev/null"),
];

/// Traces real programs.
pub fn traced(plan: &Plan) -> Result<Findings> {
    let how = format!(
        "`place trace` records which files programs of this machine open, each the first time. Of those of \
         at most {} KiB: how many lie in the directory of the one opened before, and how many in that of one \
         of the {LATELY} before.",
        SMALL_BYTES >> 10
    );
    let header =
        ["", "files", "small", "beside the one before", "beside one of the last", "directories"];
    let mut table = Table::new(header, 1).repeats(Repeats::Here);
    let mut shares = Vec::new();
    let programs = &PROGRAMS[..plan.pick(PROGRAMS.len() as u64, 1) as usize];
    for (name, command) in programs {
        let opened = match opened_by(command) {
            Ok(opened) => opened,
            Err(error) => return Ok(Findings::not_measured(how, &error)),
        };
        let seen = Locality::of(&opened);
        table.row([
            (*name).to_owned(),
            opened.len().to_string(),
            seen.small.to_string(),
            percent(seen.beside_last, seen.small),
            percent(seen.beside_lately, seen.small),
            seen.directories.to_string(),
        ]);
        shares.push(seen.beside_lately as f64 / seen.small.max(1) as f64);
    }
    let (least, most) = shares.iter().fold((1.0_f64, 0.0_f64), |(l, m), s| (l.min(*s), m.max(*s)));
    let verdict = match least {
        share if share >= 0.7 => "Yes",
        share if share >= 0.5 => "Mostly",
        _ => "Not always",
    };
    Ok(Findings {
        how,
        tables: vec![table],
        charts: Vec::new(),
        verdict: verdict.to_owned(),
        answer: format!(
            "Of the small files that a program opens, {:.0}% to {:.0}% come after another of the same \
             directory, with fewer than {LATELY} files in between: the directory says most of what is read \
             together. The rest is what a program gathers from many places, such as libraries and modules; \
             hints and `cffs regroup --trace` are for that.",
            least * 100.0,
            most * 100.0,
        ),
    })
}

/// The files that a shell command opens, each once, with their sizes.
fn opened_by(command: &str) -> Result<Vec<(PathBuf, u64)>> {
    let silenced = format!("exec >/dev/null 2>&1; {command}");
    let words: Vec<OsString> = ["sh", "-c", silenced.as_str()].map(OsString::from).into();
    let mut opened = Vec::new();
    let note = |path: &Path| -> io::Result<()> {
        // What is gone by now, such as a temporary file, was hardly on a disk.
        if let Ok(metadata) = fs::metadata(path)
            && metadata.is_file()
        {
            opened.push((path.to_owned(), metadata.len()));
        }
        Ok(())
    };
    cffs_place::trace::trace(&words, note)?;
    Ok(opened)
}

/// Of the files that a program opened, how many have neighbours that it opened, too.
#[derive(Default)]
struct Locality {
    small: u64,
    beside_last: u64,
    beside_lately: u64,
    directories: usize,
}

impl Locality {
    fn of(opened: &[(PathBuf, u64)]) -> Locality {
        let mut seen = Locality::default();
        let mut lately: VecDeque<Option<&Path>> = VecDeque::new();
        let mut directories: Vec<Option<&Path>> = Vec::new();
        for (path, _) in opened.iter().filter(|(_, size)| *size <= SMALL_BYTES) {
            let directory = path.parent();
            seen.small += 1;
            seen.beside_last += u64::from(lately.back() == Some(&directory));
            seen.beside_lately += u64::from(lately.contains(&directory));
            lately.push_back(directory);
            if lately.len() > LATELY {
                lately.pop_front();
            }
            directories.push(directory);
        }
        directories.sort_unstable();
        directories.dedup();
        Locality { directories: directories.len(), ..seen }
    }
}

fn percent(part: u64, whole: u64) -> String {
    format!("{:.0}%", part as f64 * 100.0 / whole.max(1) as f64)
}

/// Reads and writes in the phases of the thesis's table 4.3: check out, compile, search.
const TABLE_4_3: [[&str; 3]; 3] = [
    ["9990 + 39700", "10000 + 29430", "6350 + 680"],
    ["8440 + 30700", "16200 + 35400", "8330 + 840"],
    ["8340 + 21400", "6580 + 20630", "2520 + 780"],
];

/// The programs of developers, on a new volume and on one that has been in use.
pub fn developers(plan: &Plan) -> Result<Findings> {
    let header =
        ["program", "", "seconds", "reads + writes", "in use: seconds", "reads + writes", "thesis"];
    let mut table = Table::new(header, 2).repeats(Repeats::Nearly);
    let library = plan.library(Profile::AtlasIi, plan.pick(512 << 20, 128 << 20));
    let churned = Tree::Aged { full: 0.5, operations: plan.pick(20_000, 500) };
    let files = plan.pick(5_955, 300);
    let (mut new, mut used) = (Vec::new(), Vec::new());
    for (peer, of_the_thesis) in OF_THE_THESIS.into_iter().zip(TABLE_4_3) {
        let on_new = library.programs(&library.disk(peer)?, files)?;
        let (disk, _) = library.grown(peer, churned, plan.pick(100, 20))?;
        let on_used = library.programs(&disk, files)?;
        for (i, (new, used)) in on_new.iter().zip(&on_used).enumerate() {
            table.row([
                new.name.clone(),
                called(peer).to_owned(),
                figure(new.seconds),
                requests(new),
                figure(used.seconds),
                requests(used),
                of_the_thesis.get(i).map_or("-", |cell| cell).to_owned(),
            ]);
        }
        new.push(on_new);
        used.push(on_used);
    }
    let helped = gains(&used).iter().filter(|gain| gain.1 > 1.1).count();
    let verdict = match helped {
        4 => "Yes",
        0 => "No",
        _ => "Yes, of some programs",
    };
    let said = |phases: &[Vec<Phase>]| -> String {
        let one = |(name, ungrouped, plain): &(String, f64, f64)| {
            format!("{name} {} and {}", figure(*ungrouped), figure(*plain))
        };
        gains(phases).iter().map(one).collect::<Vec<_>>().join(", ")
    };
    Ok(Findings {
        how: format!(
            "A tree of {files} files (log-normal sizes, median 4 KB, six in a directory) is checked out, \
             compiled (half of the files are sources, each is read with eight headers and has an object \
             written beside it), searched and removed; cold and durable each time. On a new volume, then on \
             one that was filled to 50% and churned. Disk: `atlas-ii`. The last column has the reads and \
             writes of table 4.3, of all partitions and of another tree. Seconds are the disk's alone; what \
             a compiler computes comes on top. `cffs-bench compare --workloads apps` runs real programs on \
             mounted file systems (docs/performance)."
        ),
        tables: vec![table.grouped()],
        charts: Vec::new(),
        verdict: verdict.to_owned(),
        answer: format!(
            "How many times as long as on C-FFS the disk takes without grouping, and on the conventional \
             layout: on the volume in use {}; on the new one {}.{}",
            said(&used),
            said(&new),
            search_on_a_new_volume(&new),
        ),
    })
}

/// By program, how many times as long as on C-FFS it takes without grouping and on the conventional layout.
fn gains(phases: &[Vec<Phase>]) -> Vec<(String, f64, f64)> {
    let [plain, ungrouped, ours] = phases else { return Vec::new() };
    let of = |((ours, ungrouped), plain): ((&Phase, &Phase), &Phase)| {
        (ours.name.clone(), ungrouped.seconds / ours.seconds, plain.seconds / ours.seconds)
    };
    ours.iter().zip(ungrouped).zip(plain).map(of).collect()
}

/// The thesis's search was slower with grouping, on an empty volume, "for unknown reasons".
fn search_on_a_new_volume(phases: &[Vec<Phase>]) -> String {
    let [_, ungrouped, ours] = phases else { return String::new() };
    let megabytes = |phase: &Phase| phase.device.unwrap_or_default().read_bytes as f64 / 1e6;
    let find = |of: &[Phase]| of.iter().find(|phase| phase.name == "search").cloned();
    let (Some(without), Some(with)) = (find(ungrouped), find(ours)) else { return String::new() };
    if with.seconds <= without.seconds {
        return String::from(" The thesis's search was slower with grouping; this one is not.");
    }
    let contents = ours.iter().map(|phase| phase.bytes).sum::<u64>() as f64 / 1e6;
    format!(
        " On the new volume, search is slower with grouping, as it was in the thesis, which did not know \
         why: fewer requests, but they read {} MB in place of {}, of a tree with {} MB of contents. On a \
         new volume there is room between the files of a directory, which is read with them.",
        figure(megabytes(&with)),
        figure(megabytes(&without)),
        figure(contents),
    )
}

fn requests(phase: &Phase) -> String {
    let device = phase.device.unwrap_or_default();
    format!("{} + {}", device.reads, device.writes)
}
