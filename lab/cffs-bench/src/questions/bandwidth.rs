//! The relation between the size of a file and the bandwidth at which it is read and written.

use anyhow::{Context, Result};
use cffs::format::superblock::Policy;
use cffs::tuning::BREAK_EVEN_BYTES;
use cffs::vfs::OpenOptions;

use super::{OF_THE_THESIS, Plan, Table, called, in_words, requests};
use crate::disk::Profile;
use crate::library::Disk;
use crate::library::trees::{self, Tree};
use crate::peer::Peer;
use crate::report::table::figure;
use crate::workload::Phase;

/// The fraction of the volume that stays in use, for the second table.
const FULL: f64 = 0.7;

/// Reads the same bytes in files of one size, of several sizes, and in one large file.
pub fn by_size(plan: &Plan) -> Result<Vec<Table>> {
    let bytes = plan.pick(64 << 20, 2 << 20);
    let header = ["size", "", "MB/s in order", "MB/s shuffled", "requests per file"];
    let mut table = Table::new(header, 2);
    for peer in OF_THE_THESIS {
        let mut library = plan.library(Profile::Hdd7200, plan.pick(512 << 20, 64 << 20));
        library.large_bytes = bytes;
        let large = library.large_file(peer)?;
        for size in (0..).map(|i| 1024 << (2 * i)).take_while(|size| size * 8 <= bytes) {
            let phases = library.small_file(peer, bytes / size, size as usize)?;
            let (ordered, shuffled) = (find(&phases, "read")?, find(&phases, "read shuffled")?);
            table.row([
                in_words(size),
                called(peer),
                figure(ordered.megabytes_per_sec()),
                figure(shuffled.megabytes_per_sec()),
                figure(ordered.requests_per_file().unwrap_or_default()),
            ]);
        }
        let rate = figure(find(&large, "read")?.megabytes_per_sec());
        let name = format!("one of {}", in_words(bytes));
        table.row([name, called(peer), rate, String::from("-"), String::from("-")]);
    }
    Ok(vec![table.grouped()])
}

/// The phases of the small-file benchmark that the papers have.
const PHASES: [&str; 4] = ["create", "read", "overwrite", "remove"];

/// Files per second in the four phases of the thesis's table 4.2: create, read, overwrite, remove. The thesis
/// has no scattered layout.
const TABLE_4_2: [(Peer, Option<[f64; 4]>); 4] = [
    (Peer::CffsPlain, None),
    (Peer::CffsFirstFit, Some([65.2, 480.0, 251.0, 76.0])),
    (Peer::CffsNoGroups, Some([403.0, 629.0, 282.0, 115.0])),
    (Peer::Cffs, Some([392.0, 680.0, 301.0, 116.0])),
];

/// The small-file benchmark of the thesis, on a new volume and on a used one.
pub fn small_files(plan: &Plan) -> Result<Vec<Table>> {
    let header = ["phase", "", "seconds", "reads + writes", "files/s", "thesis: files/s"];
    let [a, b, c, d, e, _] = header;
    let (mut fresh, mut aged) = (Table::new(header, 2), Table::new([a, b, c, d, e], 2));
    let library = plan.library(Profile::AtlasIi, plan.pick(512 << 20, 64 << 20));
    let churned = Tree::Aged { full: FULL, operations: plan.pick(20_000, 1_000) };
    for (peer, of_the_thesis) in TABLE_4_2 {
        let (disk, _) = trees::grown(&library, peer, churned, plan.pick(100, 20))?;
        let on_new = library.small_file(peer, plan.pick(1000, 200), 4096)?;
        let on_used = library.small_file_on(&disk, plan.pick(1000, 200), 4096)?;
        for (i, name) in PHASES.into_iter().enumerate() {
            let thesis = of_the_thesis.map_or_else(|| String::from("-"), |rates| figure(rates[i]));
            let [phase, variant, seconds, requests, rate] = cells(peer, find(&on_new, name)?);
            fresh.row([phase, variant, seconds, requests, rate, thesis]);
            aged.row(cells(peer, find(&on_used, name)?));
        }
    }
    Ok(vec![fresh.grouped(), aged.grouped()])
}

/// The small-file benchmark, with every change made durable by itself.
pub fn each_durable(plan: &Plan) -> Result<Vec<Table>> {
    let header = ["phase", "", "files/s", "requests per 1000 files"];
    let mut table = Table::new(header, 2);
    let mut library = plan.library(Profile::St31200, plan.pick(512 << 20, 64 << 20));
    library.each_durable = true;
    for peer in [Peer::Cffs, Peer::CffsNoEmbed, Peer::CffsNoGroups, Peer::CffsPlain] {
        let phases = library.small_file(peer, plan.pick(10_000, 200), 1024)?;
        for name in PHASES {
            let phase = find(&phases, name)?;
            table.row([
                name.to_owned(),
                called(peer),
                figure(phase.files_per_sec()),
                figure(phase.requests_per_file().unwrap_or_default() * 1000.0),
            ]);
        }
    }
    Ok(vec![table.grouped()])
}

/// The four configurations of figure 6: what makes the volume, its policy, and the name. Files that are not
/// grouped are scattered, whether their inodes are embedded or not.
const TECHNIQUES: [(Peer, Policy, &str); 4] = [
    (Peer::CffsPlain, Policy::Scattered, "neither"),
    (Peer::CffsNoInline, Policy::Scattered, "embedding alone"),
    (Peer::CffsNoEmbed, Policy::Directory, "grouping alone"),
    (Peer::CffsNoInline, Policy::Directory, "both"),
];

/// The small-file benchmark with each technique alone, with both and with neither.
pub fn each_technique(plan: &Plan) -> Result<Vec<Table>> {
    let header = ["phase", "", "files/s", "reads + writes", "requests per 1000 files"];
    let mut table = Table::new(header, 2);
    let library = plan.library(Profile::St31200, plan.pick(512 << 20, 64 << 20));
    for (peer, policy, name) in TECHNIQUES {
        let disk = library.disk_with(peer, policy)?;
        let phases = library.small_file_on(&disk, plan.pick(10_000, 200), 1024)?;
        for phase in PHASES {
            let phase = find(&phases, phase)?;
            table.row([
                phase.name.clone(),
                name.to_owned(),
                figure(phase.files_per_sec()),
                requests(phase),
                figure(phase.requests_per_file().unwrap_or_default() * 1000.0),
            ]);
        }
    }
    Ok(vec![table.grouped()])
}

/// A variant on an aged volume: its name, whether the volume is regrouped after aging, and the bytes that
/// the disk streams in the time of a seek, as the volume knows them.
type Aged = (&'static str, Peer, bool, u64);

/// On the disk of the paper, with the sizes of a current disk and with those of this one.
const AGED: [Aged; 4] = [
    ("conventional", Peer::CffsPlain, false, BREAK_EVEN_BYTES),
    ("C-FFS", Peer::Cffs, false, BREAK_EVEN_BYTES),
    ("C-FFS, regrouped", Peer::Cffs, true, BREAK_EVEN_BYTES),
    ("C-FFS, sizes from 64 KiB", Peer::Cffs, false, 64 << 10),
];

/// The small-file benchmark on a new volume and after 100,000 creates and deletes, on the disk of the paper
/// and on a current one.
pub fn small_files_aged(plan: &Plan) -> Result<Vec<Table>> {
    let of_the_paper = after_aging(plan, Profile::St31200, &AGED)?;
    Ok(vec![of_the_paper, after_aging(plan, Profile::Hdd7200, &AGED[..2])?])
}

fn after_aging(plan: &Plan, profile: Profile, variants: &[Aged]) -> Result<Table> {
    let header =
        ["phase", "", "new: files/s", "50% full", "70% full", "90% full", "MB read at 0%, 70%"];
    let mut table = Table::new(header, 2);
    let library = plan.library(profile, plan.pick(512 << 20, 64 << 20));
    let files = plan.pick(10_000, 200);
    for &(variant, peer, is_regrouped, break_even_bytes) in variants {
        let options = OpenOptions { break_even_bytes, ..OpenOptions::default() };
        let benchmark = |disk: &Disk| library.small_file_opened(disk, &options, files, 1024);
        let mut columns = vec![benchmark(&library.disk(peer)?)?];
        for full in [0.5, 0.7, 0.9] {
            let churned = Tree::Aged { full, operations: plan.pick(100_000, 500) };
            let (disk, _) = trees::grown(&library, peer, churned, 100)?;
            if is_regrouped {
                trees::regroup(&disk)?;
            }
            columns.push(benchmark(&disk)?);
        }
        for name in PHASES {
            let mut row = vec![name.to_owned(), variant.to_owned()];
            let phases: Vec<&Phase> =
                columns.iter().map(|phases| find(phases, name)).collect::<Result<_>>()?;
            row.extend(phases.iter().map(|phase| figure(phase.files_per_sec())));
            let read =
                |phase: &Phase| figure(phase.device.unwrap_or_default().read_bytes as f64 / 1e6);
            row.push(format!("{}, {}", read(phases[0]), read(phases[2])));
            table.rows.push(row);
        }
    }
    Ok(table.grouped())
}

/// MB/s in the three phases of the thesis's table 4.1: write, read, overwrite.
const TABLE_4_1: [(Peer, Option<[f64; 3]>); 4] = [
    (Peer::CffsPlain, None),
    (Peer::CffsFirstFit, Some([6.10, 5.74, 6.23])),
    (Peer::CffsNoGroups, Some([6.27, 5.91, 6.30])),
    (Peer::Cffs, Some([6.26, 5.93, 6.31])),
];

/// The large-file benchmark of the thesis.
pub fn large_file(plan: &Plan) -> Result<Vec<Table>> {
    let mut table =
        Table::new(["phase", "", "seconds", "MB/s", "reads + writes", "thesis: MB/s"], 2);
    let mut library = plan.library(Profile::AtlasIi, plan.pick(512 << 20, 64 << 20));
    library.large_bytes = plan.pick(64 << 20, 8 << 20);
    for (peer, of_the_thesis) in TABLE_4_1 {
        let phases = library.large_file(peer)?;
        for (i, phase) in phases.iter().enumerate() {
            table.row([
                phase.name.clone(),
                called(peer),
                figure(phase.seconds),
                figure(phase.megabytes_per_sec()),
                requests(phase),
                of_the_thesis.map_or_else(|| String::from("-"), |rates| figure(rates[i])),
            ]);
        }
    }
    Ok(vec![table.grouped()])
}

fn cells(peer: Peer, phase: &Phase) -> [String; 5] {
    [
        phase.name.clone(),
        called(peer),
        figure(phase.seconds),
        requests(phase),
        figure(phase.files_per_sec()),
    ]
}

fn find<'a>(phases: &'a [Phase], name: &str) -> Result<&'a Phase> {
    phases.iter().find(|phase| phase.name == name).with_context(|| format!("no phase {name}"))
}
