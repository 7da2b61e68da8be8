//! Files that fit into an inode: the tables and figures of the paper on extµ.

use anyhow::Result;

use super::{Plan, Table, called, in_words};
use crate::disk::Profile;
use crate::library::tiny::{Kind, in_parallel, one_at_a_time, server};
use crate::peer::Peer;
use crate::report::table::figure;
use crate::workload::Phase;

const VARIANTS: [Peer; 3] = [Peer::CffsPlain, Peer::CffsNoInline, Peer::Cffs];

/// The micro-benchmarks: tables 1 and 2.
pub fn operations(plan: &Plan) -> Result<Vec<Table>> {
    let header = ["operation", "", "requests per file", "ms per file"];
    let (mut tiny, mut parallel) = (Table::new(header, 2), Table::new(header, 2));
    let library = plan.library(Profile::Hdd7200, plan.pick(256 << 20, 64 << 20));
    let files = plan.pick(1_000, 100);
    for peer in VARIANTS {
        one_at_a_time(&library, peer, files)?.iter().for_each(|phase| tiny.row(cells(peer, phase)));
        in_parallel(&library, peer, files)?
            .iter()
            .for_each(|phase| parallel.row(cells(peer, phase)));
    }
    Ok(vec![tiny.grouped(), parallel.grouped()])
}

fn cells(peer: Peer, phase: &Phase) -> [String; 4] {
    [
        phase.name.clone(),
        called(peer),
        figure(phase.requests_per_file().unwrap_or_default()),
        figure(phase.seconds * 1e3 / phase.files.max(1) as f64),
    ]
}

/// A cache for all files of a server, also where each takes a block.
const ALL_FIT_BYTES: u64 = 1 << 30;

/// The servers: figure 5. A server of the first column of rates has a cache for a tenth of the files with
/// their inodes, those of the others for all of them; for the last one, all have been read before.
pub fn servers(plan: &Plan) -> Result<Vec<Table>> {
    let header =
        ["server", "", "requests per operation", "operations/s", "all fit", "all were read"];
    let mut table = Table::inexact(header, 2);
    let library = plan.library(Profile::Hdd7200, plan.pick(512 << 20, 64 << 20));
    let (files, requests) = (plan.pick(10_000, 500), plan.pick(500, 30));
    for (name, kind) in [("web server", Kind::Web), ("web proxy", Kind::Proxy)] {
        for size in [128, 16 << 10] {
            let cache = (files * size as u64 + files * 512) / 10;
            for peer in VARIANTS {
                let served = |cache_bytes, is_warm| {
                    server(&library, peer, kind, (files, size), (requests, cache_bytes), is_warm)
                };
                let (small, large) = (served(cache, false)?, served(ALL_FIT_BYTES, false)?);
                let warm = served(ALL_FIT_BYTES, true)?;
                table.row([
                    format!("{name}, {}", in_words(size as u64)),
                    called(peer),
                    figure(small.requests_per_file().unwrap_or_default()),
                    figure(small.files_per_sec()),
                    figure(large.files_per_sec()),
                    figure(warm.files_per_sec()),
                ]);
            }
        }
    }
    Ok(vec![table.grouped()])
}
