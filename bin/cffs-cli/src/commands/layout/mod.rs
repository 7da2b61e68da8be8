//! `cffs layout`: the layout of a tree, and the cost of a cold scan of it.

use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::{fs, iter};

use anyhow::{Context, bail};
use cffs::device::file::Access;
use cffs::files::layout::ClusterUse;
use cffs::files::{Files, layout};
use cffs_serve::layout::{DirectoryReport, LayoutReport};
use cffs_serve::served::control;
use clap::Args;
use comfy_table::Row;

use crate::output::{self, counted, say};
use crate::{image, names, size};

mod picture;
#[cfg(test)]
mod tests;

pub use picture::draw;

/// Show where a tree is stored, and what a cold scan of it reads
///
/// Prints for each directory in how many places its files are stored, how many of them are stored alone (at
/// least a segment away from the others), and the requests and bytes of a scan that lists and reads
/// everything below with nothing in memory. These are counted, not estimated: the code that plans all reads
/// simulates the scan, without reading the contents. The sums agree with those of a scan by the library. A
/// scan also reads the gaps between files if that takes less time than skipping them; the bytes that are
/// neither names nor contents are printed if they are more than half. Also prints how many pairs of
/// neighbours (files that follow each other on the device) share their key (mkfs --policy). For compressed
/// contents, prints their size, the size of their clusters, and how much in the clusters is dead or shared.
/// Regrouping frees the dead contents of clusters of which an eighth or more is dead. The server of a mounted
/// volume makes the report. It makes everything durable first, and calls that make changes durable wait
/// meanwhile.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  cffs layout mnt/src                          a directory of a mounted volume
  cffs layout tree.cffs                        an image, all of it
  cffs layout tree.cffs /src --svg src.svg     a part of it, as a picture
  cffs layout --json mnt | jq .requests        how many requests a cold scan takes")]
pub struct Layout {
    /// An image, a device, or a directory of a mounted volume. A mounted volume can be given by any of its
    /// names.
    #[arg(value_name = "IMAGE|DEVICE|DIR")]
    target: PathBuf,
    /// The directory in the volume, or below DIR; all of it if none is given.
    #[arg(value_name = "PATH")]
    path: Option<PathBuf>,
    /// Write a picture of the device to this file, with each directory in its own colour.
    #[arg(long, value_name = "FILE")]
    svg: Option<PathBuf>,
    /// Print JSON, with the device addresses of each directory.
    #[arg(long)]
    json: bool,
}

impl Layout {
    /// Computes the layout and prints it.
    pub fn run(self) -> anyhow::Result<ExitCode> {
        let report = self.look().with_context(|| self.target.display().to_string())?;
        if let Some(file) = &self.svg {
            let title = self.path.as_ref().unwrap_or(&self.target);
            let title = output::printable(title.as_os_str().as_encoded_bytes());
            let drawn = picture::draw(&report, &title);
            fs::write(file, drawn).with_context(|| file.display().to_string())?;
        }
        if self.json {
            output::json(&report)?;
        } else {
            print(&report)?;
        }
        Ok(ExitCode::SUCCESS)
    }

    fn look(&self) -> anyhow::Result<LayoutReport> {
        if let Some(mounted) = names::mounted(&self.target)? {
            return Ok(control::layout(&mounted.join(self.path.as_deref())?)?);
        }
        if self.target.is_dir() {
            bail!(control::AskError::NotMounted);
        }
        let device = Arc::new(image::open_device(&self.target, Access::ReadOnly)?);
        let files =
            Files::new(image::open_volume(&self.target, device.clone(), image::read_only())?);
        let path = self.path.as_ref().map_or(&b"/"[..], |path| path.as_os_str().as_encoded_bytes());
        let dir = files.node(path).with_context(|| output::printable(path))?.ino();
        drop(files);
        let report = LayoutReport::from(&layout::survey(device, dir)?);
        Ok(report)
    }
}

/// A line for each directory. The path comes last: paths are long in a deep tree, and a column would be
/// padded to the longest one.
fn lines(report: &LayoutReport) -> Vec<String> {
    let mut numbers = output::table();
    numbers.set_header(["files", "size", "places", "alone", "requests", "read"]);
    for dir in &report.directories {
        numbers.add_row(Row::from([
            dir.files.to_string(),
            size::show(dir.bytes),
            dir.places.to_string(),
            dir.scattered_files.to_string(),
            dir.requests.to_string(),
            size::show(dir.read_bytes),
        ]));
    }
    let path = |dir: &DirectoryReport| match &*dir.path {
        "" => String::from("."),
        path => output::printable(path.as_bytes()),
    };
    let paths = report.directories.iter().map(path);
    let paths = iter::once(String::from("directory")).chain(paths);
    output::lines(&mut numbers, 0).zip(paths).map(|(numbers, path)| numbers + &path).collect()
}

fn print(report: &LayoutReport) -> anyhow::Result<()> {
    for line in lines(report) {
        say!("{line}")?;
    }
    let sum = |of: fn(&DirectoryReport) -> u64| -> u64 { report.directories.iter().map(of).sum() };
    let (files, alone) = (sum(|dir| dir.files), sum(|dir| dir.scattered_files));
    say!(
        "\n{}, {} in {}, {alone} of them alone: a cold scan takes {} and reads {}{}",
        counted(report.directories.len() as u64, "directory"),
        counted(files, "file"),
        counted(sum(|dir| dir.places), "place"),
        counted(report.requests, "request"),
        size::show(report.read_bytes),
        surplus(report)
    )?;
    say!("{}", of_one_key(report.of_one_key, report.neighbours))?;
    compressed(&report.clusters).iter().try_for_each(|line| say!("{line}"))
}

/// How much of a scan is neither names nor contents, as the end of a sentence; empty if that is less than
/// half of it.
fn surplus(report: &LayoutReport) -> String {
    match report.surplus_bytes {
        surplus if surplus * 2 > report.read_bytes => {
            format!(", {} of that neither names nor contents", size::show(surplus))
        }
        _ => String::new(),
    }
}

/// The use of the clusters of a tree, as lines of text; none for a tree without clusters.
fn compressed(used: &ClusterUse) -> Vec<String> {
    let ClusterUse { clusters, incomplete, bytes, stored_bytes, dead_bytes, shared_bytes } = *used;
    let Some(ratio) = used.ratio() else { return Vec::new() };
    let [bytes, stored, dead, shared] =
        [bytes, stored_bytes, dead_bytes, shared_bytes].map(size::show);
    let clusters = counted(clusters, "cluster");
    let mut lines = vec![
        format!("{bytes} of contents are in {clusters} of {stored}: {ratio:.2} to 1"),
        format!("in the clusters, {dead} of contents are dead, and {shared} are shared"),
    ];
    if incomplete > 0 {
        let incomplete = counted(incomplete, "cluster");
        lines.push(format!("not counted: dead contents of {incomplete} that other files also use"));
    }
    lines
}

/// How many pairs of neighbours share their key, as text.
fn of_one_key(sharing: u64, pairs: u64) -> String {
    let share = if sharing == 1 { "shares" } else { "share" };
    format!("{sharing} of {} of neighbours {share} a key of placement", counted(pairs, "pair"))
}
