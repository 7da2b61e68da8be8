//! Whether small files lie together: after years of use, and on the file systems of today.

use anyhow::{Context, Result};
use cffs::files::layout::survey;
use cffs::units::InodeNo;

use super::{Findings, OF_THE_THESIS, Plan, Table, called};
use crate::disk::Profile;
use crate::library::trees::{Tree, walk_cold};
use crate::peer::Peer;
use crate::report::curve::{Chart, Line};
use crate::report::table::figure;

/// How full the volumes are, and are kept.
const FULL: [f64; 4] = [0.3, 0.5, 0.7, 0.9];

/// What a cold scan takes of volumes that were filled and churned.
pub fn aged(plan: &Plan) -> Result<Findings> {
    let header = [
        "full",
        "",
        "files",
        "scattered",
        "of one directory",
        "requests per file",
        "MB/s of a scan",
    ];
    let mut table = Table::new(header, 2);
    let library = plan.library(Profile::Hdd7200, plan.pick(512 << 20, 64 << 20));
    let operations = plan.pick(20_000, 1_000);
    let mut lines = Vec::new();
    for peer in OF_THE_THESIS {
        let mut line = Line { name: called(peer).to_owned(), points: Vec::new() };
        for full in FULL {
            let tree = Tree::Aged { full, operations };
            let (disk, files) = library.grown(peer, tree, plan.pick(100, 20))?;
            let scan = walk_cold(&disk, files, 0)?.pop().context("a scan")?;
            let layout = survey(disk, InodeNo::ROOT)?;
            let scattered: u64 = layout.directories.iter().map(|dir| dir.scattered_files).sum();
            let together = layout.of_one_key as f64 / layout.neighbours.max(1) as f64;
            let requests = scan.requests_per_file().context("requests were counted")?;
            table.row([
                format!("{:.0}%", full * 100.0),
                called(peer).to_owned(),
                files.to_string(),
                scattered.to_string(),
                format!("{:.0}%", together * 100.0),
                figure(requests),
                figure(scan.megabytes_per_sec()),
            ]);
            line.points.push((full * 100.0, requests));
        }
        lines.push(line);
    }
    let last = |peer: Peer| {
        let line = lines.iter().find(|line| line.name == called(peer));
        let (first, last) =
            line.and_then(|line| Some((line.points.first()?.1, line.points.last()?.1)))?;
        Some((last, last / first))
    };
    let [plain, ungrouped, ours] = OF_THE_THESIS.map(|peer| last(peer).unwrap_or_default());
    let verdict = if ours.0 * 5.0 <= plain.0 { "Yes" } else { "Not enough" };
    Ok(Findings {
        how: format!(
            "A volume is filled to a fraction with files of log-normal sizes (median 5 KB, mean 28 KB) in \
             random directories, then {operations} files are created and removed at that level, as the aging \
             program of USENIX'97 does. `cffs layout` says which files lie alone, and how many of the \
             files that follow each other on the disk are of one directory. Then all are read, cold. Disk: \
             `hdd7200`."
        ),
        tables: vec![table.grouped()],
        charts: vec![Chart {
            name: String::from("groups-aged"),
            title: String::from("Requests per file of a cold scan, by how full the volume is kept"),
            x_label: "percent full",
            lines,
        }],
        verdict: verdict.to_owned(),
        answer: format!(
            "On a volume that is kept {:.0}% full, a cold scan takes {} requests per file on C-FFS, {} \
             without grouping, and {} on the conventional layout: {} times as many as on C-FFS. From {:.0}% \
             to {:.0}% full, requests per file become {} times as many on C-FFS, and {} times on the \
             conventional layout. What is scattered nevertheless, `cffs regroup` mends.",
            FULL[3] * 100.0,
            figure(ours.0),
            figure(ungrouped.0),
            figure(plain.0),
            figure(plain.0 / ours.0),
            FULL[0] * 100.0,
            FULL[3] * 100.0,
            figure(ours.1),
            figure(plain.1),
        ),
    })
}
