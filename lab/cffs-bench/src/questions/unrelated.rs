//! The bytes of other files that a volume in use reads.

#[cfg(test)]
mod tests;

use std::ops::Range;

use anyhow::{Context, Result};
use cffs::units::InodeNo;
use cffs::vfs::{OpenOptions, Volume};

use super::programs::{Way, segments_alone};
use super::{Plan, Table};
use crate::disk::{Profile, Run, SECTOR_SIZE};
use crate::library::trees::{self, READ, Tree, read_all, walk};
use crate::library::{Disk, find, phase, phase_after};
use crate::peer::Peer;
use crate::report::table::figure;

/// The fractions of the volumes that stay in use.
const FULL: [f64; 2] = [0.5, 0.9];
/// The longest file that is read alone, in bytes.
const SMALL_BYTES: u64 = 64 << 10;

const WAYS: [Way; 3] = [
    ("C-FFS without grouping", Peer::CffsNoGroups, |_| ()),
    ("C-FFS, segments alone", Peer::Cffs, segments_alone),
    ("C-FFS", Peer::Cffs, |_| ()),
];

/// Cold reads of single directories, and of single small files, on volumes that were filled and churned.
pub fn bytes(plan: &Plan) -> Result<Vec<Table>> {
    let header = [
        "full",
        "",
        "read",
        "requests",
        "ms",
        "KiB asked for",
        "KiB read",
        "other files",
        "names, inodes",
        "free",
    ];
    let mut table = Table::new(header, 3);
    let library = plan.library(Profile::Hdd7200, plan.pick(512 << 20, 64 << 20));
    let (directories, samples) = (plan.pick(1_000, 50), plan.pick(50, 10) as usize);
    for full in FULL {
        for (name, peer, tune) in WAYS {
            let tree = Tree::Aged { full, operations: plan.pick(20_000, 1_000) };
            let (disk, _) = trees::grown(&library, peer, tree, directories)?;
            let contents = Contents::of(&disk)?;
            let options = OpenOptions { tune, ..OpenOptions::default() };
            for (what, is_whole) in [("a directory", true), ("a file", false)] {
                let read = contents.sampled(&disk, options.clone(), samples, is_whole)?;
                let each = |sum: f64| figure(sum / read.reads.max(1) as f64);
                table.row([
                    format!("{:.0}%", full * 100.0),
                    name.to_owned(),
                    what.to_owned(),
                    each(read.requests as f64),
                    each(read.seconds * 1e3),
                    each(read.asked_bytes as f64 / 1024.0),
                    each(read.of.iter().sum::<u64>() as f64 / 1024.0),
                    each(read.of[Class::Other as usize] as f64 / 1024.0),
                    each(read.of[Class::Names as usize] as f64 / 1024.0),
                    each(read.of[Class::Free as usize] as f64 / 1024.0),
                ]);
            }
        }
    }
    Ok(vec![table.grouped()])
}

/// The kind of a byte of the device, for a reader of some files.
#[derive(Clone, Copy)]
enum Class {
    /// Contents of the files that were asked for.
    Asked,
    Other,
    /// The names of a directory, with their inodes.
    Names,
    /// Free, or of the volume's tables.
    Free,
}

/// Cold reads of some samples, in total.
#[derive(Default)]
struct Reads {
    reads: u64,
    requests: u64,
    seconds: f64,
    asked_bytes: u64,
    /// Bytes that were read, by [`Class`].
    of: [u64; 4],
}

/// A directory below the root, with its files.
struct Directory {
    name: String,
    /// Name, inode and size of each.
    files: Vec<(String, InodeNo, u64)>,
}

/// The directories of a volume, and the places of everything.
struct Contents {
    directories: Vec<Directory>,
    /// Bytes of the device, ascending, with the file that they belong to; `None` for names.
    places: Vec<(Range<u64>, Option<InodeNo>)>,
}

impl Contents {
    fn of(disk: &Disk) -> Result<Contents> {
        let mut contents = Contents { directories: Vec::new(), places: Vec::new() };
        phase(disk, ("survey", 0, 0), |volume| {
            contents.place(volume, InodeNo::ROOT, None)?;
            for (name, dir, _) in listed(volume, InodeNo::ROOT)? {
                contents.place(volume, dir, None)?;
                let files = listed(volume, dir)?;
                for (_, file, _) in &files {
                    contents.place(volume, *file, Some(*file))?;
                    volume.release(*file, 1);
                }
                volume.release(dir, 1);
                contents.directories.push(Directory { name, files });
            }
            Ok(())
        })?;
        contents.places.sort_unstable_by_key(|(place, _)| place.start);
        Ok(contents)
    }

    fn place(&mut self, volume: &Volume, ino: InodeNo, file: Option<InodeNo>) -> Result<()> {
        let places = volume.admin().places(ino)?;
        self.places.extend(places.into_iter().map(|place| (place, file)));
        Ok(())
    }

    /// Reads all files of some directories, or one small file of each, from cold caches every time.
    fn sampled(
        &self,
        disk: &Disk,
        options: OpenOptions,
        samples: usize,
        is_whole: bool,
    ) -> Result<Reads> {
        let mut total = Reads::default();
        let step = (self.directories.len() / samples).max(1);
        for directory in self.directories.iter().step_by(step) {
            let small = |(_, _, size): &&(String, InodeNo, u64)| *size <= SMALL_BYTES;
            let asked: Vec<_> = match is_whole {
                true => directory.files.iter().collect(),
                false => directory.files.iter().filter(small).take(1).collect(),
            };
            let Some((name, ..)) = asked.first() else { continue };
            let path = (directory.name.clone(), name.clone());
            let read = phase_after(
                disk,
                options.clone(),
                ("read", 1, 0),
                |_| Ok(()),
                |volume| {
                    disk.record_reads();
                    if is_whole {
                        let top = volume.lookup(InodeNo::ROOT, path.0.as_bytes())?.ino;
                        walk(volume, top, true, true)?;
                        volume.release(top, 1);
                    } else {
                        let file = find(volume, &path)?;
                        read_all(volume, file, &mut vec![0; READ])?;
                        volume.release(file, 1);
                    }
                    for run in disk.recorded_reads() {
                        total.requests += 1;
                        self.count(run, |file| asked.iter().any(|(_, asked, _)| *asked == file))
                            .iter()
                            .zip(&mut total.of)
                            .for_each(|(bytes, sum)| *sum += bytes);
                    }
                    Ok(())
                },
            );
            total.seconds += read.context("read a sample")?.seconds;
            total.reads += 1;
            total.asked_bytes += asked.iter().map(|(_, _, size)| size).sum::<u64>();
        }
        Ok(total)
    }

    /// The bytes of a run by [`Class`].
    fn count(&self, run: Run, is_asked: impl Fn(InodeNo) -> bool) -> [u64; 4] {
        let (mut at, end) = (run.first.0 * SECTOR_SIZE, run.end().0 * SECTOR_SIZE);
        let mut of = [0; 4];
        let from = self.places.partition_point(|(place, _)| place.end <= at);
        for (place, file) in self.places[from..].iter().take_while(|(place, _)| place.start < end) {
            let class = match file {
                None => Class::Names,
                Some(file) if is_asked(*file) => Class::Asked,
                Some(_) => Class::Other,
            };
            let (start, stop) = (place.start.max(at), place.end.min(end));
            of[Class::Free as usize] += start - at;
            of[class as usize] += stop - start;
            at = stop;
        }
        of[Class::Free as usize] += end - at;
        of
    }
}

/// The entries of a directory, each with a reference: name, inode and size.
fn listed(volume: &Volume, dir: InodeNo) -> Result<Vec<(String, InodeNo, u64)>> {
    let mut listed = Vec::new();
    volume.read_dir(dir, 0, true, &mut |entry| {
        let size = entry.attr.as_ref().map_or(0, |attr| attr.size);
        listed.push((String::from_utf8_lossy(entry.name).into_owned(), entry.ino, size));
        true
    })?;
    Ok(listed)
}
