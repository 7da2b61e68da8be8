//! `cffs path`: the names of a file of which only the inode's number is known.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{DirEntryExt, MetadataExt};
use std::path::{Path as HostPath, PathBuf};
use std::process::ExitCode;

use anyhow::Context;
use cffs::error::Error;
use cffs::format::inode::FileType;
use cffs::units::InodeNo;
use cffs::vfs::types::Attr;
use clap::Args;
use serde_json::json;

use crate::output::{self, note, say};
use crate::{image, mounts};

/// Show the paths of inodes, by their numbers
///
/// Messages of the log, of fsck and of the kernel name inodes by number. This prints each name that such
/// an inode has, all hard links among them, one to a line: the number, a tab, the path. It reads the
/// directories of the volume until all names are found. Of a mounted volume it sees what the caller may
/// read, and the paths begin with the directory that was given. Ends with 1 if an inode has no path, or if
/// a directory could not be read and names may be missing.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  cffs path tree.cffs 4711
  cffs path /srv/tree 4711 4712      while it is mounted")]
pub struct Path {
    /// An image, a device, the URL of a volume in an object store, or the directory that a volume is mounted
    /// on.
    #[arg(value_name = "IMAGE|DEVICE|URL|DIR")]
    target: PathBuf,
    /// The numbers of the inodes.
    #[arg(value_name = "INODE", required = true, value_parser = clap::value_parser!(u64).range(1..))]
    inodes: Vec<u64>,
    /// Print one JSON object per inode; bytes of names that are no text become U+FFFD.
    #[arg(long)]
    json: bool,
}

/// What is looked for, and what was found of it.
struct Search {
    wanted: BTreeMap<u64, Names>,
    is_complete: bool,
}

#[derive(Default)]
struct Names {
    paths: Vec<Vec<u8>>,
    /// How many names the inode has, once that is known.
    links: Option<u64>,
}

impl Names {
    fn are_found(&self) -> bool {
        self.links.is_some_and(|links| self.paths.len() as u64 >= links)
    }
}

impl Path {
    /// Searches, and prints what was found.
    pub fn run(self) -> anyhow::Result<ExitCode> {
        let name = || self.target.display().to_string();
        let wanted = self.inodes.iter().map(|ino| (*ino, Names::default())).collect();
        let mut search = Search { wanted, is_complete: true };
        if self.target.is_dir() {
            search.in_mounted(&self.target).with_context(name)?;
        } else {
            match mounts::of_source(&self.target) {
                Some(mounted) => search.in_mounted(&mounted.directory).with_context(name)?,
                None => search.in_image(&self.target).with_context(name)?,
            }
        }
        self.print(&search)
    }

    fn print(&self, search: &Search) -> anyhow::Result<ExitCode> {
        let mut is_well = search.is_complete;
        for (ino, names) in &search.wanted {
            if self.json {
                let paths: Vec<_> =
                    names.paths.iter().map(|path| String::from_utf8_lossy(path)).collect();
                say!("{}", json!({ "inode": ino, "paths": paths }))?;
            } else {
                for path in &names.paths {
                    say!("{ino}\t{}", output::printable(path))?;
                }
            }
            if names.paths.is_empty() {
                is_well = false;
                note!("cffs path: {}: inode {ino} has no path", self.target.display());
            }
        }
        Ok(if is_well { ExitCode::SUCCESS } else { ExitCode::FAILURE })
    }
}

impl Search {
    fn is_over(&self) -> bool {
        self.wanted.values().all(Names::are_found)
    }

    /// Notes one name. `links` counts those that the inode has; a directory has one.
    fn add(&mut self, ino: u64, path: &[u8], links: impl FnOnce() -> Option<u64>) {
        if let Some(names) = self.wanted.get_mut(&ino) {
            names.paths.push(path.to_vec());
            names.links = names.links.or_else(links);
        }
    }

    fn missed(&mut self, why: &dyn std::fmt::Display) {
        self.is_complete = false;
        note!("cffs path: {why}");
    }

    fn in_image(&mut self, image: &HostPath) -> anyhow::Result<()> {
        let files = image::open_files(image, image::read_only())?;
        for (ino, names) in &mut self.wanted {
            names.links = match files.volume().find(InodeNo(*ino)) {
                Ok(attr) => Some(links(&attr)),
                // It is free.
                Err(Error::Stale | Error::NotFound) => Some(0),
                // A search may find names of what itself cannot be read.
                Err(_) => None,
            };
        }
        let mut walk = files.walk("/")?;
        while !self.is_over() {
            match walk.next() {
                Some(Ok(entry)) => {
                    self.add(entry.attr.ino.0, &entry.path, || Some(links(&entry.attr)));
                }
                Some(Err(error)) => self.missed(&error),
                None => break,
            }
        }
        Ok(())
    }

    /// Searches below a directory of a mounted volume, and no other file system that is mounted there.
    fn in_mounted(&mut self, directory: &HostPath) -> anyhow::Result<()> {
        let top = fs::metadata(directory)?;
        self.add(top.ino(), directory.as_os_str().as_bytes(), || Some(1));
        let mut pending = vec![directory.to_owned()];
        while let Some(directory) = pending.pop().filter(|_| !self.is_over()) {
            let listed =
                fs::read_dir(&directory).and_then(|entries| entries.collect::<Result<Vec<_>, _>>());
            let entries = match listed {
                Ok(entries) => entries,
                Err(error) => {
                    self.missed(&format!("{}: {error}", directory.display()));
                    continue;
                }
            };
            for entry in entries {
                let path = entry.path();
                let is_directory = entry.file_type().is_ok_and(|kind| kind.is_dir());
                // The listing has the number of what lies below another mount.
                self.add(entry.ino(), path.as_os_str().as_bytes(), || {
                    if is_directory {
                        Some(1)
                    } else {
                        path.symlink_metadata().ok().map(|m| m.nlink())
                    }
                });
                let is_here = || path.symlink_metadata().is_ok_and(|data| data.dev() == top.dev());
                if is_directory && is_here() {
                    pending.push(path);
                }
            }
        }
        Ok(())
    }
}

/// How many names an inode has.
fn links(attr: &Attr) -> u64 {
    if attr.file_type == FileType::Directory { 1 } else { attr.nlink.into() }
}
