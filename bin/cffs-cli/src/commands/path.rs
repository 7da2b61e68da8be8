//! `cffs path`: the names of a file, given its inode number.

use std::collections::BTreeMap;
use std::ffi::{CStr, CString};
use std::fs;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path as HostPath, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, ensure};
use cffs::error::Error;
use cffs::format::inode::FileType;
use cffs::units::InodeNo;
use cffs::vfs::types::Attr;
use clap::Args;
use rustix::fs::{AtFlags, Dir, FileType as HostType, Mode, OFlags, statat};
use serde_json::json;

use crate::output::{self, note, say};
use crate::{image, names};

/// Show the paths of inodes, by their numbers
///
/// Messages of the log, of fsck and of the kernel name inodes by number. This command prints each name of
/// these inodes, including hard links, one per line: the number, a tab, the path. It reads the directories of
/// the volume until all names are found. On a mounted volume, it reads only what the caller may read, and the
/// paths begin with the given directory. Exits with 1 if an inode has no path, or if a directory could not be
/// read and names may be missing.
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
    /// Print one JSON object per inode; bytes of names that are not UTF-8 become U+FFFD.
    #[arg(long)]
    json: bool,
}

/// The inodes to find, and the names found so far.
struct Search {
    wanted: BTreeMap<u64, Names>,
    is_complete: bool,
}

#[derive(Default)]
struct Names {
    paths: Vec<Vec<u8>>,
    /// The number of the inode's names, once it is known.
    links: Option<u64>,
}

impl Names {
    fn are_found(&self) -> bool {
        self.links.is_some_and(|links| self.paths.len() as u64 >= links)
    }
}

impl Path {
    /// Searches, and prints the paths.
    pub fn run(self) -> anyhow::Result<ExitCode> {
        let name = || self.target.display().to_string();
        let wanted = self.inodes.iter().map(|ino| (*ino, Names::default())).collect();
        let mut search = Search { wanted, is_complete: true };
        match names::mounted(&self.target)? {
            Some(mounted) => search.in_mounted(&mounted.path).with_context(name)?,
            None if self.target.is_dir() => search.in_mounted(&self.target).with_context(name)?,
            None => search.in_image(&self.target).with_context(name)?,
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

    /// Adds one name. `links` returns the number of the inode's names; a directory has one.
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
                // The inode is free.
                Err(Error::Stale | Error::NotFound) => Some(0),
                // A search may find names of an unreadable inode.
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

    /// Searches below a directory of a mounted volume, without other file systems mounted there. Each name is
    /// looked up in its directory, since the whole path may exceed the kernel's limit.
    fn in_mounted(&mut self, directory: &HostPath) -> anyhow::Result<()> {
        let top = fs::metadata(directory)?;
        let mut path = directory.as_os_str().as_bytes().to_vec();
        self.add(top.ino(), &path, || Some(1));
        let mut here =
            rustix::fs::open(directory, OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?;
        let mut levels = vec![self.level(&here, (top.dev(), top.ino()), &mut path)];
        while let Some(level) = levels.last_mut().filter(|_| !self.is_over()) {
            path.truncate(level.path_len);
            let identity = level.identity;
            if let Some(name) = level.directories.pop() {
                push(&mut path, &name);
                let flags = OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
                let entered = rustix::fs::openat(&here, &name, flags, Mode::empty())
                    .and_then(|dir| Ok((identity_of(&dir)?, dir)));
                match entered {
                    Ok((found, dir)) if found.0 == top.dev() => {
                        levels.push(self.level(&dir, found, &mut path));
                        here = dir;
                    }
                    Ok(_) => {}
                    Err(error) => self.missed(&format!("{}: {error}", shown(&path))),
                }
                continue;
            }
            levels.pop();
            let Some(above) = levels.last() else { break };
            here = rustix::fs::openat(
                &here,
                c"..",
                OFlags::DIRECTORY | OFlags::CLOEXEC,
                Mode::empty(),
            )?;
            ensure!(
                identity_of(&here)? == above.identity,
                "{}: the directory with inode {} was moved meanwhile; try again",
                shown(&path),
                identity.1
            );
        }
        Ok(())
    }

    /// Adds the names in a directory, and returns its subdirectories.
    fn level(&mut self, dir: &OwnedFd, identity: (u64, u64), path: &mut Vec<u8>) -> Level {
        let mut level = Level { path_len: path.len(), identity, directories: Vec::new() };
        if let Err(error) = self.note_names(dir, path, &mut level.directories) {
            path.truncate(level.path_len);
            self.missed(&format!("{}: {error}", shown(path)));
        }
        path.truncate(level.path_len);
        level
    }

    fn note_names(
        &mut self,
        dir: &OwnedFd,
        path: &mut Vec<u8>,
        directories: &mut Vec<CString>,
    ) -> rustix::io::Result<()> {
        let path_len = path.len();
        for entry in Dir::read_from(dir)? {
            let entry = entry?;
            let name = entry.file_name();
            if matches!(name.to_bytes(), b"." | b"..") {
                continue;
            }
            let is_directory = entry.file_type() == HostType::Directory;
            let links = || match is_directory {
                true => Some(1),
                false => statat(dir, name, AtFlags::SYMLINK_NOFOLLOW).ok().map(|s| s.st_nlink),
            };
            // The listing contains the number of the directory hidden below another mount.
            path.truncate(path_len);
            push(path, name);
            self.add(entry.ino(), path, links);
            if is_directory {
                directories.push(name.to_owned());
            }
        }
        Ok(())
    }
}

/// An ancestor of the open directory.
struct Level {
    path_len: usize,
    /// Its device and number.
    identity: (u64, u64),
    /// Its subdirectories that have not been searched yet.
    directories: Vec<CString>,
}

fn identity_of(dir: &OwnedFd) -> rustix::io::Result<(u64, u64)> {
    let status = rustix::fs::fstat(dir)?;
    Ok((status.st_dev, status.st_ino))
}

fn push(path: &mut Vec<u8>, name: &CStr) {
    if !path.ends_with(b"/") {
        path.push(b'/');
    }
    path.extend_from_slice(name.to_bytes());
}

fn shown(path: &[u8]) -> String {
    output::printable(path)
}

/// The number of an inode's names.
fn links(attr: &Attr) -> u64 {
    if attr.file_type == FileType::Directory { 1 } else { attr.nlink.into() }
}
