//! The small files that programs open together, and the gain of grouping for programs.

use std::collections::VecDeque;
use std::ffi::OsString;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus};

use anyhow::{Context, Result};
use cffs::tuning::{Device, Tuning};

use super::{OF_THE_THESIS, Plan, Table, called, requests};
use crate::disk::Profile;
use crate::library::programs;
use crate::library::trees::{self, Tree};
use crate::peer::Peer;
use crate::report::table::figure;

/// The largest small file, in bytes: a conventional file system reads such a file with a request of its own.
const SMALL_BYTES: u64 = 64 << 10;
/// A file counts as read together with another of its directory if fewer than this many files were read
/// between.
const LATELY: usize = 16;

/// A program: its name, and shell commands for an empty directory: those that prepare it, and the one that is
/// traced. `$SOURCE` is the workspace of this crate.
type Program = (&'static str, &'static str, &'static str);

/// Common programs. All but the last two open the files that they need, and walk no tree.
const PROGRAMS: [Program; 10] = [
    (
        "compile a C file",
        "printf '#include <%s>\\n' stdio.h stdlib.h string.h pthread.h sys/socket.h netdb.h >unit.c",
        "cc -c unit.c",
    ),
    (
        "compile a C++ file",
        "printf '#include <%s>\\n' iostream map regex thread filesystem random >unit.cc",
        "c++ -c unit.cc",
    ),
    (
        "build a Rust package",
        "true",
        "cargo build --offline --locked --manifest-path $SOURCE/Cargo.toml --target-dir . -p fuse-ring",
    ),
    ("check out an older commit", "git clone -q $SOURCE clone", "git -C clone checkout -q HEAD~30"),
    (
        "start a Python program",
        "true",
        "python3 -c 'import asyncio, email.message, http.client, json, unittest'",
    ),
    ("start a JavaScript program", "true", "npm ls"),
    (
        "start an editor",
        "echo 'int main(void) { return 0; }' >main.c",
        "TERM=xterm vim -c 'syntax on' -c 'filetype plugin indent on' -c 'sleep 1' -c 'quit' main.c",
    ),
    ("read the pages of a site", "true", SURFER),
    ("search the headers", "true", "grep -rq nowhere-to-be-found /usr/include || test $? = 1"),
    ("archive /etc", "true", "tar -cf - /etc | cat >/dev/null"),
];

/// Reads pages of the documentation of Rust, a site of static files: each with its styles, scripts and
/// images, then a random one of its links; after twenty pages, the first one again.
const SURFER: &str = r##"python3 -c '
import os, random, re, subprocess
site = subprocess.check_output(["rustc", "--print", "sysroot"], text=True).strip() + "/share/doc/rust/html"
random.seed(1)
start = site + "/std/index.html"
page = start
for visit in range(400):
    text = open(page, encoding="utf-8", errors="replace").read()
    links = re.findall("(?:href|src)=\"([^\"#?:]+)\"", text)
    found = [os.path.normpath(os.path.join(os.path.dirname(page), link)) for link in links]
    for part in found:
        if part.endswith((".css", ".js", ".svg", ".png", ".woff2")) and os.path.isfile(part):
            open(part, "rb").read()
    pages = [link for link in found if link.endswith(".html") and os.path.isfile(link)]
    page = random.choice(pages) if pages and visit % 20 < 19 else start
'"##;

pub fn traced(plan: &Plan) -> Result<Vec<Table>> {
    let header = [
        "",
        "files",
        "small",
        "in the directory of the last one",
        "of one of the last 16",
        "directories",
    ];
    let mut table = Table::inexact(header, 1);
    for (name, prepare, command) in &PROGRAMS[..plan.pick(PROGRAMS.len() as u64, 1) as usize] {
        let opened = match opened_by(prepare, command).with_context(|| format!("trace: {name}"))? {
            Ok(opened) => opened,
            Err(status) => {
                eprintln!("{name} ended with {status}, and is not counted");
                continue;
            }
        };
        let seen = Locality::of(&opened);
        table.row([
            (*name).to_owned(),
            opened.len().to_string(),
            seen.small.to_string(),
            percent(seen.follows_directly, seen.small),
            percent(seen.follows_lately, seen.small),
            seen.directories.to_string(),
        ]);
    }
    Ok(vec![table])
}

/// The files that a shell command opens, each once, with their sizes; or how it failed.
fn opened_by(prepare: &str, command: &str) -> Result<Result<Vec<(PathBuf, u64)>, ExitStatus>> {
    // On most machines a file system on a device, unlike /tmp.
    let directory = tempfile::tempdir_in("/var/tmp")?;
    let source = concat!("SOURCE=", env!("CARGO_MANIFEST_DIR"), "/../..");
    let at = directory.path().display();
    let silenced =
        |command| format!("set -e; exec </dev/null >/dev/null 2>&1; cd {at}; {source}; {command}");
    let prepared = Command::new("sh").args(["-c", &silenced(prepare)]).status()?;
    if !prepared.success() {
        return Ok(Err(prepared));
    }
    let words: Vec<OsString> = ["sh", "-c", &silenced(command)].map(OsString::from).into();
    let mut opened = Vec::new();
    let note = |path: &Path| -> io::Result<()> {
        // A file that no longer exists, such as a temporary file, was rarely on a disk.
        if let Ok(metadata) = fs::metadata(path)
            && metadata.is_file()
        {
            opened.push((path.to_owned(), metadata.len()));
        }
        Ok(())
    };
    let (status, _) = cffs_place::trace::trace(&words, note)?;
    Ok(if status.success() { Ok(opened) } else { Err(status) })
}

/// The small files that a program opened: how many they are, how many of them follow files of the same
/// directory, and their number of directories.
#[derive(Default)]
struct Locality {
    small: u64,
    follows_directly: u64,
    follows_lately: u64,
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
            seen.follows_directly += u64::from(lately.back() == Some(&directory));
            seen.follows_lately += u64::from(lately.contains(&directory));
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

/// The programs of developers, on a new volume and on a used one.
pub fn developers(plan: &Plan) -> Result<Vec<Table>> {
    let header =
        ["program", "", "seconds", "reads + writes", "in use: seconds", "reads + writes", "thesis"];
    let mut table = Table::inexact(header, 2);
    let library = plan.library(Profile::AtlasIi, plan.pick(512 << 20, 128 << 20));
    let churned = Tree::Aged { full: 0.5, operations: plan.pick(20_000, 500) };
    let files = plan.pick(5_955, 300);
    for (peer, of_the_thesis) in OF_THE_THESIS.into_iter().zip(TABLE_4_3) {
        let on_new = programs::measure(&library, &library.disk(peer)?, files)?;
        let (disk, _) = trees::grown(&library, peer, churned, plan.pick(100, 20))?;
        let on_used = programs::measure(&library, &disk, files)?;
        for (i, (new, used)) in on_new.iter().zip(&on_used).enumerate() {
            table.row([
                new.name.clone(),
                called(peer),
                figure(new.seconds),
                requests(new),
                figure(used.seconds),
                requests(used),
                of_the_thesis.get(i).map_or("-", |cell| cell).to_owned(),
            ]);
        }
    }
    Ok(vec![table.grouped(), searches(plan)?])
}

/// A way to search: its name, the variant, and a change of its figures.
pub(super) type Way = (&'static str, Peer, fn(&mut Tuning));

/// Without grouping, with it, and with parts of read-ahead changed.
const SEARCHES: [Way; 7] = [
    ("C-FFS without grouping", Peer::CffsNoGroups, |_| ()),
    ("C-FFS", Peer::Cffs, |_| ()),
    ("gaps up to 64 KiB", Peer::Cffs, |tuning| tuning.reading.gap_bytes = 64 << 10),
    ("nothing of the next directories", Peer::Cffs, |tuning| tuning.reading.siblings_max = 0),
    ("no plans", Peer::Cffs, |tuning| tuning.reading.plan_bytes_max = 0),
    ("neither plans nor regions", Peer::Cffs, segments_alone),
    ("sizes from 128 KiB instead of 1 MiB", Peer::Cffs, |tuning| {
        tuning.reading =
            Tuning::new(Device { break_even_bytes: 128 << 10, ..tuning.device }).reading;
    }),
];

/// Reads nothing around a miss but its segment, as in the thesis.
pub(super) fn segments_alone(tuning: &mut Tuning) {
    tuning.reading.plan_bytes_max = 0;
    (tuning.reading.misses_before_first, tuning.reading.misses_before_next) = (1 << 30, 1 << 30);
}

/// Searches of a built tree with parts of read-ahead switched off.
fn searches(plan: &Plan) -> Result<Table> {
    let mut table = Table::inexact(["search", "seconds", "reads", "MB read", "MB in files"], 1);
    let library = plan.library(Profile::AtlasIi, plan.pick(512 << 20, 128 << 20));
    for (name, peer, tune) in SEARCHES {
        let phase = programs::search_tuned(&library, peer, plan.pick(5_955, 300), tune)?;
        let device = phase.device.unwrap_or_default();
        table.row([
            name.to_owned(),
            figure(phase.seconds),
            device.reads.to_string(),
            figure(device.read_bytes as f64 / 1e6),
            figure(phase.bytes as f64 / 1e6),
        ]);
    }
    Ok(table)
}
