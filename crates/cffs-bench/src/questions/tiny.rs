//! Files that fit into an inode: the tables and figures of the paper on extµ.

use anyhow::Result;

use super::{Findings, Plan, Repeats, Table, called, in_words};
use crate::disk::Profile;
use crate::peer::Peer;
use crate::report::table::figure;
use crate::workload::Phase;
use crate::workload::servers::Kind;

const VARIANTS: [Peer; 3] = [Peer::CffsPlain, Peer::CffsNoInline, Peer::Cffs];

/// The micro-benchmarks: tables 1 and 2.
pub fn operations(plan: &Plan) -> Result<Findings> {
    let header = ["operation", "", "requests per file", "ms per file"];
    let (mut tiny, mut parallel) = (Table::new(header, 2), Table::new(header, 2));
    let library = plan.library(Profile::Hdd7200, plan.pick(256 << 20, 64 << 20));
    let files = plan.pick(1_000, 100);
    let mut all: Vec<(Peer, Phase)> = Vec::new();
    for peer in VARIANTS {
        let phases = library.tiny(peer, files)?;
        phases.iter().for_each(|phase| tiny.row(cells(peer, phase)));
        all.extend(phases.into_iter().map(|phase| (peer, phase)));
        let phases = library.in_parallel(peer, files)?;
        phases.iter().for_each(|phase| parallel.row(cells(peer, phase)));
        all.extend(phases.into_iter().map(|phase| (peer, phase)));
    }
    let each = |of: Peer, name: &str| {
        let mut with = all.iter().filter(|(peer, phase)| *peer == of && phase.name == name);
        with.next().map_or(f64::NAN, |(_, phase)| phase.seconds)
    };
    let gain = |name| each(Peer::CffsNoInline, name) / each(Peer::Cffs, name);
    let over_plain = |name| each(Peer::CffsPlain, name) / each(Peer::Cffs, name);
    let (read, durable, grow) = (gain("read"), gain("write, durable"), gain("append 4 KiB"));
    let verdict = match (read > 1.05, durable > 1.05) {
        (true, true) => "Yes",
        (true, false) => "For reads",
        (false, true) => "For durable writes",
        _ => "No",
    };
    Ok(Findings {
        how: format!(
            "{files} files of 128 bytes in one directory: each operation is done to all of them, from cold \
             caches and until all is durable; in \"write, durable\" each one by itself. At last each grows \
             to more than an inode holds. Second table: {files} files of 1 KiB that are open and written \
             at the same time, then read. Disk: `hdd7200`."
        ),
        tables: vec![tiny.grouped(), parallel.grouped()],
        charts: Vec::new(),
        verdict: verdict.to_owned(),
        answer: format!(
            "With contents in the inodes, the disk reads tiny files {} times as fast as without, and makes \
             each one durable {} times as fast; beside the conventional layout it is {} and {} times. \
             Growing out of the inode takes {} times the time that files take which never were in it. Files \
             that are written in parallel are read {} times as fast as on the conventional layout: they lie \
             side by side, which extµ reaches by switching preallocation off for a file's first block.",
            figure(read),
            figure(durable),
            figure(over_plain("read")),
            figure(over_plain("write, durable")),
            figure(1.0 / grow),
            figure(in_parallel(&all)),
        ),
    })
}

/// How many times as fast as the conventional layout C-FFS reads what was written in parallel.
fn in_parallel(all: &[(Peer, Phase)]) -> f64 {
    let last = |of| {
        all.iter().rev().find(|(peer, _)| *peer == of).map_or(f64::NAN, |(_, phase)| phase.seconds)
    };
    last(Peer::CffsPlain) / last(Peer::Cffs)
}

fn cells(peer: Peer, phase: &Phase) -> [String; 4] {
    [
        phase.name.clone(),
        called(peer).to_owned(),
        figure(phase.requests_per_file().unwrap_or_default()),
        figure(phase.seconds * 1e3 / phase.files.max(1) as f64),
    ]
}

/// The servers: figure 5.
pub fn servers(plan: &Plan) -> Result<Findings> {
    let header =
        ["server", "", "requests per operation", "operations/s", "the same, all in the cache"];
    let mut table = Table::new(header, 2).repeats(Repeats::Nearly);
    let library = plan.library(Profile::Hdd7200, plan.pick(512 << 20, 64 << 20));
    let (files, requests) = (plan.pick(10_000, 500), plan.pick(500, 30));
    let mut rates = Vec::new();
    for (name, kind) in [("web server", Kind::Web), ("web proxy", Kind::Proxy)] {
        for size in [128, 16 << 10] {
            let contents = files * size as u64;
            for peer in VARIANTS {
                // A tenth of what the files take with their inodes, and all of it.
                let cache = (contents + files * 512) / 10;
                let served = |cache_bytes| {
                    library.server(peer, kind, (files, size), (requests, cache_bytes))
                };
                let (small, large) = (served(cache)?, served(cache * 40)?);
                table.row([
                    format!("{name}, {}", in_words(size as u64)),
                    called(peer).to_owned(),
                    figure(small.requests_per_file().unwrap_or_default()),
                    figure(small.files_per_sec()),
                    figure(large.files_per_sec()),
                ]);
                rates.push((kind, size, peer, small.files_per_sec(), large.files_per_sec()));
            }
        }
    }
    let gain = |kind: Kind, size: usize| {
        let of = |peer| rates.iter().find(|rate| (rate.0, rate.1, rate.2) == (kind, size, peer));
        let (ours, other) = (of(Peer::Cffs), of(Peer::CffsNoInline));
        ours.zip(other).map_or(f64::NAN, |(ours, other)| ours.3 / other.3)
    };
    let (tiny, usual) = (gain(Kind::Web, 128), gain(Kind::Web, 16 << 10));
    Ok(Findings {
        how: format!(
            "One client of a web server (ten random files are read, then a line goes to a log), and of a \
             proxy (a file is replaced, five are read, a line is logged), over {files} files of 128 bytes \
             and of 16 KiB; {requests} requests, from cold caches. The cache has room for a tenth of the \
             files with their inodes, then for all. Disk: `hdd7200`. `cffs-bench compare --workloads \
             web-tiny,web,proxy-tiny,proxy` runs a hundred clients on mounted file systems."
        ),
        tables: vec![table.grouped()],
        charts: Vec::new(),
        verdict: String::from(if tiny > 1.1 { "Yes" } else { "No" }),
        answer: format!(
            "With contents in the inodes, a web server of 128-byte files does {} times as many operations as \
             without; of files of 16 KiB, {} times. A proxy of 128-byte files does {} times as many. The \
             paper measured almost 2.5 for its web server of 128-byte files, and nothing where all is in \
             memory.",
            figure(tiny),
            figure(usual),
            figure(gain(Kind::Proxy, 128)),
        ),
    })
}
