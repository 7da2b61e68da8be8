//! The relation between the size of a file and the bandwidth at which it is read and written.

use anyhow::{Context, Result};

use super::{Findings, OF_THE_THESIS, Plan, Table, called, in_words};
use crate::disk::Profile;
use crate::library::trees::Tree;
use crate::peer::Peer;
use crate::report::curve::{Chart, Line};
use crate::report::table::figure;
use crate::workload::Phase;

/// How full the volume of the second half of table 4.2 is, and is kept.
const FULL: f64 = 0.7;

/// The rate at which files of one size are read, compared with a large file.
struct Rate {
    peer: Peer,
    size: u64,
    /// MB/s in the order of their names, over those of a large file.
    in_order: f64,
    /// The same in random order.
    shuffled: f64,
}

/// Reads the same bytes in files of several sizes.
fn rates(plan: &Plan, bytes: u64, table: &mut Table) -> Result<(Vec<Rate>, Vec<Line>)> {
    let sizes = (0..).map(|i| 1024 << (2 * i)).take_while(|size| size * 8 <= bytes);
    let sizes: Vec<u64> = sizes.collect();
    let (mut rates, mut lines) = (Vec::new(), Vec::new());
    for peer in OF_THE_THESIS {
        let mut library = plan.library(Profile::Hdd7200, plan.pick(512 << 20, 64 << 20));
        library.large_bytes = bytes;
        let large = find(&library.large_file(peer)?, "read")?.megabytes_per_sec();
        let mut line = Line { name: called(peer).to_owned(), points: Vec::new() };
        for &size in &sizes {
            let phases = library.small_file(peer, bytes / size, size as usize)?;
            let (ordered, shuffled) = (find(&phases, "read")?, find(&phases, "read shuffled")?);
            let (in_order, shuffled) = (ordered.megabytes_per_sec(), shuffled.megabytes_per_sec());
            table.row([
                in_words(size),
                called(peer).to_owned(),
                figure(in_order),
                figure(shuffled),
                figure(ordered.requests_per_file().unwrap_or_default()),
            ]);
            line.points.push((size as f64 / 1024.0, in_order));
            rates.push(Rate { peer, size, in_order: in_order / large, shuffled: shuffled / large });
        }
        let name = format!("one of {}", in_words(bytes));
        table.row([
            name,
            called(peer).to_owned(),
            figure(large),
            String::from("-"),
            String::from("-"),
        ]);
        line.points.push((bytes as f64 / 1024.0, large));
        lines.push(line);
    }
    Ok((rates, lines))
}

/// Whether small files are read more slowly than a large one, and from which size on they are not.
pub fn by_size(plan: &Plan) -> Result<Findings> {
    let bytes = plan.pick(64 << 20, 2 << 20);
    let header = ["size", "", "MB/s in order", "MB/s shuffled", "requests per file"];
    let mut table = Table::new(header, 2);
    let (rates, charted) = rates(plan, bytes, &mut table)?;
    let of = |peer: Peer, size: u64| {
        rates
            .iter()
            .find(|rate| rate.peer == peer && rate.size == size)
            .context("a size that was measured")
    };
    let (plain, ours) = (of(Peer::CffsPlain, 4096)?, of(Peer::Cffs, 4096)?);
    let half = |peer: Peer| {
        let reached = rates.iter().find(|rate| rate.peer == peer && rate.in_order >= 0.5);
        reached.map_or_else(
            || String::from("at no size below that"),
            |rate| format!("from {} upwards", in_words(rate.size)),
        )
    };
    let is_slower = |share: f64| share < 0.5;
    let verdict = match (is_slower(plain.in_order), is_slower(ours.in_order)) {
        (true, false) => "Yes, but not on C-FFS",
        (true, true) => "Yes, everywhere",
        _ => "No",
    };
    let answer = format!(
        "In the order of their names, files of 4 KiB are read at {}% of the bandwidth of a large file on \
         the conventional layout, and at {}% on C-FFS; in random order at {}% and {}%. Half of the large \
         file's bandwidth is reached {} on the conventional layout, {} without grouping, and {} on C-FFS. \
         The disk is the same, and so are the bytes: what differs is how often it has to go elsewhere.",
        figure(plain.in_order * 100.0),
        figure(ours.in_order * 100.0),
        figure(plain.shuffled * 100.0),
        figure(ours.shuffled * 100.0),
        half(Peer::CffsPlain),
        half(Peer::CffsNoGroups),
        half(Peer::Cffs),
    );
    Ok(Findings {
        how: format!(
            "{} of contents are written as files of one size, 100 in a directory, and read from cold caches \
             in the order of their names, then in random order; and as one large file. Disk: `hdd7200`.",
            in_words(bytes)
        ),
        tables: vec![table.grouped()],
        charts: vec![Chart {
            name: String::from("small-files-slower"),
            title: String::from("MB/s when files of one size are read in the order of their names"),
            x_label: "KiB in a file",
            lines: charted,
        }],
        verdict: verdict.to_owned(),
        answer,
    })
}

/// Files per second in the four phases of the thesis's table 4.2: create, read, overwrite, remove.
const TABLE_4_2: [[f64; 4]; 3] =
    [[65.2, 480.0, 251.0, 76.0], [403.0, 629.0, 282.0, 115.0], [392.0, 680.0, 301.0, 116.0]];

/// The small-file benchmark of the thesis, on a new volume and on one that has been in use.
pub fn small_files(plan: &Plan) -> Result<Findings> {
    let header = ["phase", "", "seconds", "reads + writes", "files/s", "thesis: files/s"];
    let [a, b, c, d, e, _] = header;
    let (mut fresh, mut aged) = (Table::new(header, 2), Table::new([a, b, c, d, e], 2));
    let library = plan.library(Profile::AtlasIi, plan.pick(512 << 20, 64 << 20));
    let churned = Tree::Aged { full: FULL, operations: plan.pick(20_000, 1_000) };
    let (mut read, mut rates) = (Vec::new(), Vec::new());
    for (peer, of_the_thesis) in OF_THE_THESIS.into_iter().zip(TABLE_4_2) {
        let (disk, _) = library.grown(peer, churned, plan.pick(100, 20))?;
        let on_new = library.small_file(peer, plan.pick(1000, 200), 4096)?;
        let on_used = library.small_file_on(&disk, plan.pick(1000, 200), 4096)?;
        let names = ["create", "read", "overwrite", "remove"];
        for (name, thesis) in names.into_iter().zip(of_the_thesis) {
            let (new, used) = (find(&on_new, name)?, find(&on_used, name)?);
            let [phase, called, seconds, requests, rate] = cells(name, peer, new);
            fresh.row([phase, called, seconds, requests, rate, figure(thesis)]);
            aged.row(cells(name, peer, used));
            rates.push((peer, name, used.files_per_sec()));
        }
        let rate = |phases| Ok::<_, anyhow::Error>(find(phases, "read")?.files_per_sec());
        read.push((rate(&on_new)?, rate(&on_used)?));
    }
    let [plain, ungrouped, ours] = read[..] else { unreachable!("three variants") };
    let gain = |of: f64, over: f64| figure(of / over);
    let without = |name| rates.iter().find(|r| r.0 == Peer::CffsNoGroups && r.1 == name);
    let gains = rates
        .iter()
        .filter(|r| r.0 == Peer::Cffs)
        .filter_map(|r| Some((r.1, r.2 / without(r.1)?.2)));
    let least = gains.min_by(|a, b| a.1.total_cmp(&b.1)).context("phases")?;
    let verdict = match (ours.0 > ungrouped.0 * 1.1, ours.1 > ungrouped.1 * 1.1) {
        (_, true) => "Yes",
        (true, false) => "Only on a new volume",
        _ => "No",
    };
    Ok(Findings {
        how: format!(
            "The thesis's benchmark: files of 4 KiB in directories of 100, created, read, overwritten \
             and removed, cold and durable each time. First on a new volume, as in table 4.2; then on one \
             that was filled to {:.0}% and churned. Disk: `atlas-ii`, of the thesis's family. Seconds are \
             the disk's alone: the thesis's have the processor's in them.",
            FULL * 100.0
        ),
        tables: vec![fresh.grouped(), aged.grouped()],
        charts: Vec::new(),
        verdict: verdict.to_owned(),
        answer: format!(
            "On a new volume, grouping has files read {} times as fast as without it, and C-FFS as a whole \
             {} times as fast as the conventional layout. On the volume in use it is {} and {} times; there \
             grouping gains least in the phase \"{}\", which has {} times the speed that it has without. The \
             thesis found 1.08 and 1.42 on an empty volume, and expected more of a volume in use; its FFS \
             was new as well, while the conventional layout here is that of a volume in use from the \
             beginning.",
            gain(ours.0, ungrouped.0),
            gain(ours.0, plain.0),
            gain(ours.1, ungrouped.1),
            gain(ours.1, plain.1),
            least.0,
            figure(least.1),
        ),
    })
}

/// MB/s in the three phases of the thesis's table 4.1: write, read, overwrite.
const TABLE_4_1: [[f64; 3]; 3] = [[6.10, 5.74, 6.23], [6.27, 5.91, 6.30], [6.26, 5.93, 6.31]];

/// The large-file benchmark of the thesis.
pub fn large_file(plan: &Plan) -> Result<Findings> {
    let mut table =
        Table::new(["phase", "", "seconds", "MB/s", "reads + writes", "thesis: MB/s"], 2);
    let mut library = plan.library(Profile::AtlasIi, plan.pick(512 << 20, 64 << 20));
    library.large_bytes = plan.pick(64 << 20, 8 << 20);
    let limit = library.profile.streaming_rate().context("a disk that streams")? / 1e6;
    let mut rates = Vec::new();
    for (peer, of_the_thesis) in OF_THE_THESIS.into_iter().zip(TABLE_4_1) {
        let phases = library.large_file(peer)?;
        for (phase, thesis) in phases.iter().zip(of_the_thesis) {
            let rate = phase.megabytes_per_sec();
            table.row([
                phase.name.clone(),
                called(peer).to_owned(),
                figure(phase.seconds),
                figure(rate),
                requests(phase),
                figure(thesis),
            ]);
            rates.push((peer, phase.name.clone(), rate));
        }
    }
    let worst = |than: Peer| {
        let ours = rates.iter().filter(|rate| rate.0 == Peer::Cffs);
        let ratios = ours.filter_map(|mine| {
            let other = rates.iter().find(|rate| rate.0 == than && rate.1 == mine.1)?;
            Some(mine.2 / other.2)
        });
        ratios.fold(f64::INFINITY, f64::min)
    };
    let (ungrouped, plain) = (worst(Peer::CffsNoGroups), worst(Peer::CffsPlain));
    let slowest = rates.iter().filter(|r| r.0 == Peer::Cffs).map(|r| r.2).fold(limit, f64::min);
    let (verdict, beside) = match ungrouped.min(plain) >= 0.98 {
        true => ("No", "The thesis found no difference either."),
        false => ("Yes", "The thesis found no difference."),
    };
    Ok(Findings {
        how: format!(
            "A file of {} is written, read and overwritten in pieces of 1 MiB, cold and durable each time. \
             Disk: `atlas-ii`, which streams at {} MB/s.",
            in_words(library.large_bytes),
            figure(limit)
        ),
        tables: vec![table.grouped()],
        charts: Vec::new(),
        verdict: verdict.to_owned(),
        answer: format!(
            "In its slowest phase beside the others, C-FFS has {}% of the bandwidth that it has without \
             grouping, and {}% of that of the conventional layout. Its slowest phase reaches {}% of what \
             the disk streams. {beside}",
            figure(ungrouped * 100.0),
            figure(plain * 100.0),
            figure(slowest / limit * 100.0),
        ),
    })
}

fn cells(name: &str, peer: Peer, phase: &Phase) -> [String; 5] {
    [
        name.to_owned(),
        called(peer).to_owned(),
        figure(phase.seconds),
        requests(phase),
        figure(phase.files_per_sec()),
    ]
}

fn requests(phase: &Phase) -> String {
    let device = phase.device.unwrap_or_default();
    format!("{} + {}", device.reads, device.writes)
}

fn find<'a>(phases: &'a [Phase], name: &str) -> Result<&'a Phase> {
    phases.iter().find(|phase| phase.name == name).with_context(|| format!("no phase {name}"))
}
