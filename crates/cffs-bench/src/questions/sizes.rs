//! How large files are, what they take of a disk's time, and what configuration files would be.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Result, bail};

use super::{Findings, Plan, Repeats, Table, called, in_words};
use crate::disk::Profile;
use crate::library::trees::Tree;
use crate::peer::Peer;
use crate::report::curve::{Chart, Line};
use crate::report::table::figure;
use crate::workload::random::{LogNormal, Random};

/// The upper bounds of the size classes, in bytes.
const CLASSES: [u64; 8] = [128, 1 << 10, 4 << 10, 8 << 10, 64 << 10, 256 << 10, 1 << 20, u64::MAX];
/// A small file, by the measure of the first paper's figure 3.
const SMALL_BYTES: u64 = 8 << 10;
/// A value of an option that fits into the inode of extµ.
const OPTION_BYTES: u64 = 128;

/// Sizes on this machine, and the time that small ones take of a scan.
pub fn matter(plan: &Plan) -> Result<Findings> {
    let mut sets: Vec<(String, Vec<u64>)> = plan
        .trees
        .iter()
        .map(|tree| (format!("`{}`", tree.display()), sizes_below(tree)))
        .collect();
    let mut random = Random::new(plan.seed);
    let drawn = (0..100_000).map(|_| LogNormal::churn().sample(&mut random)).collect();
    sets.push((String::from("the model that ages volumes"), drawn));
    if let Some((name, _)) = sets.iter().find(|(_, sizes)| sizes.is_empty()) {
        bail!("{name} has no files to count: name other directories with --trees");
    }
    let mut table =
        Table::new(["", "files", "up to 1 KiB", "4 KiB", "8 KiB", "64 KiB", "their bytes"], 1);
    table.repeats = Repeats::Here;
    for (name, sizes) in &sets {
        let up_to = |limit| share(sizes, limit, |_| 1);
        let kib = |kib: u64| percent(up_to(kib << 10));
        let bytes = share(sizes, 64 << 10, |size| size);
        let count = sizes.len().to_string();
        table.row([name.clone(), count, kib(1), kib(4), kib(8), kib(64), percent(bytes)]);
    }
    let library = plan.library(Profile::Hdd7200, plan.pick(512 << 20, 128 << 20));
    let header =
        ["files of up to 8 KiB", "of the files", "of the bytes", "seconds", "of all others"];
    let mut time = Table::new(header, 1);
    let mut taken = Vec::new();
    for peer in [Peer::CffsPlain, Peer::Cffs] {
        let tree = Tree::Fresh { files: plan.pick(8_000, 400) };
        let (small, large) = library.by_size(peer, tree, plan.pick(80, 10), SMALL_BYTES)?;
        let of = |small: f64, large: f64| small / (small + large);
        let bytes = of(small.bytes as f64, large.bytes as f64);
        time.row([
            called(peer).to_owned(),
            percent(of(small.files as f64, large.files as f64)),
            percent(bytes),
            figure(small.seconds),
            figure(large.seconds),
        ]);
        taken.push((small.seconds, of(small.seconds, large.seconds), bytes));
    }
    let of_machine = &sets[0];
    let files = share(&of_machine.1, SMALL_BYTES, |_| 1);
    let bytes = share(&of_machine.1, SMALL_BYTES, |size| size);
    Ok(Findings {
        how: format!(
            "The sizes of all regular files below some directories of this machine, beside those of the \
             model by which volumes are aged here; \"their bytes\" are those of files of up to 64 KiB. Then \
             a tree of the model's sizes is read cold, once the files of up to {} and once the others. Disk: \
             `hdd7200`.",
            in_words(SMALL_BYTES)
        ),
        tables: vec![table, time],
        charts: vec![chart(&sets)],
        verdict: String::from(if files >= 0.5 { "Yes" } else { "Less than they did" }),
        answer: format!(
            "Of the files below {}, {} have at most 8 KiB, and these have {} of the bytes (the first paper \
             counted 79% of the files on its servers). In the model's tree, such files have {} of the \
             bytes, and reading them takes {} of the disk's time on the conventional layout: {} seconds. On \
             C-FFS it takes {}.",
            of_machine.0,
            percent(files),
            percent(bytes),
            percent(taken[0].2),
            percent(taken[0].1),
            figure(taken[0].0),
            figure(taken[1].0),
        ),
    })
}

fn chart(sets: &[(String, Vec<u64>)]) -> Chart {
    let line = |(name, sizes): &(String, Vec<u64>)| {
        let limits = CLASSES.iter().filter(|limit| **limit < u64::MAX);
        let points =
            limits.map(|limit| (*limit as f64 / 1024.0, share(sizes, *limit, |_| 1) * 100.0));
        // A logarithmic axis has no zero.
        let points = points.filter(|(_, share)| *share > 0.0).collect();
        Line { name: name.replace('`', ""), points }
    };
    Chart {
        name: String::from("small-files-matter"),
        title: String::from("Percent of the files that are not larger"),
        x_label: "KiB",
        lines: sets.iter().map(line).collect(),
    }
}

/// Configuration files, and what they would be if each option had one.
pub fn configuration(plan: &Plan) -> Result<Findings> {
    let mut options = Vec::new();
    let mut files = Vec::new();
    for path in files_below(&plan.configuration) {
        let Ok(text) = fs::read_to_string(&path) else { continue };
        files.push(text.len() as u64);
        options.extend(text.lines().filter_map(value_bytes));
    }
    if options.is_empty() {
        let directory = plan.configuration.display();
        bail!("{directory} has no file with options: name another directory with --configuration");
    }
    let mut table = Table::new(["", "number", "up to 128 bytes", "1 KiB", "4 KiB", "median"], 1);
    table.repeats = Repeats::Here;
    for (name, sizes) in [("text files", &mut files), ("values of options", &mut options)] {
        sizes.sort_unstable();
        let up_to = |limit| percent(share(sizes, limit, |_| 1));
        let median = sizes.get(sizes.len() / 2).copied().unwrap_or_default();
        let count = sizes.len().to_string();
        let (tiny, kib, block) = (up_to(OPTION_BYTES), up_to(1 << 10), up_to(4 << 10));
        table.row([name.to_owned(), count, tiny, kib, block, in_words(median)]);
    }
    let fit = share(&options, OPTION_BYTES, |_| 1);
    Ok(Findings {
        how: format!(
            "The text files below `{}` of this machine, and the values of lines of the form `name = value` \
             or `name: value` in them: what files would be if each option had one. What that costs and \
             gains is measured by `python3 python/uconfigparser/benchmark.py DIRECTORY` (time, warm) and \
             `python3 python/uconfigparser/cold.py BINARIES` (requests, cold, on ext4, XFS and C-FFS).",
            plan.configuration.display()
        ),
        tables: vec![table],
        charts: Vec::new(),
        verdict: String::from(if fit >= 0.87 { "Yes" } else { "Mostly" }),
        answer: format!(
            "{} of {} values have at most {OPTION_BYTES} bytes, so that an inode holds them; extµ found 87% \
             below 100 bytes in a registry. On C-FFS an inode holds more than that. \
             [uconfigparser](../python/uconfigparser/README.md) has the tables of figure 6: to read or set a \
             few options is faster, to read all of them from cold caches costs a request for each on ext4 \
             and XFS, and none more than an INI file on C-FFS.",
            percent(fit),
            options.len(),
        ),
    })
}

/// The length of an option's value, if the line is one.
fn value_bytes(line: &str) -> Option<u64> {
    let (name, value) = line.split_once(['=', ':'])?;
    let (name, value) = (name.trim(), value.trim());
    let is_name = |c: char| c.is_ascii_alphanumeric() || "._-".contains(c);
    let is_option = !name.is_empty() && name.chars().all(is_name) && !value.is_empty();
    is_option.then_some(value.len() as u64)
}

/// The share of the files up to a size in the whole, where each counts by `weight`.
fn share(sizes: &[u64], limit: u64, weight: impl Fn(u64) -> u64) -> f64 {
    let of =
        |sizes: &mut dyn Iterator<Item = &u64>| sizes.map(|size| weight(*size)).sum::<u64>() as f64;
    of(&mut sizes.iter().filter(|size| **size <= limit)) / of(&mut sizes.iter()).max(1.0)
}

fn percent(share: f64) -> String {
    format!("{}%", figure(share * 100.0))
}

fn sizes_below(top: &Path) -> Vec<u64> {
    let sizes = files_below(top).into_iter().filter_map(|path| fs::symlink_metadata(path).ok());
    sizes.map(|metadata| metadata.len()).filter(|size| *size > 0).collect()
}

/// The regular files below a directory, without directories that cannot be listed.
fn files_below(top: &Path) -> Vec<PathBuf> {
    let mut files = Vec::new();
    let mut pending = vec![top.to_owned()];
    while let Some(dir) = pending.pop() {
        for entry in fs::read_dir(&dir).into_iter().flatten().flatten() {
            match entry.file_type() {
                Ok(kind) if kind.is_dir() => pending.push(entry.path()),
                Ok(kind) if kind.is_file() => files.push(entry.path()),
                _ => {}
            }
        }
    }
    files
}
