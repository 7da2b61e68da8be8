//! The programs of a developer on a source tree, in virtual time: check out, compile, search, clean, remove.
//!
//! Replays the programs of the thesis's table 4.3: their calls, without the computation between them.

use anyhow::{Context, Result};
use cffs::format::inode::FileType;
use cffs::tuning::Tuning;
use cffs::units::InodeNo;
use cffs::vfs::{Caller, NewKind, OpenOptions, Volume};

use super::trees::{READ, read_all, walk};
use super::{Disk, LibraryPlan, make, phase, phase_after};
use crate::peer::Peer;
use crate::workload::Phase;
use crate::workload::contents::Contents;
use crate::workload::random::{LogNormal, Random};

/// Files in a directory, on average, as in the tree of the thesis: 5,955 in 952 directories.
const FILES_EACH: u64 = 6;
/// Headers that a compiler reads for each source.
const HEADERS: u64 = 8;
/// The largest size of a source and of an object file, in bytes.
const SIZE_MAX: usize = 2 << 20;
const TOP: &str = "src";

/// A file of the tree, with the names of its ancestors.
struct SourceFile {
    path: Vec<String>,
    name: String,
    size: u64,
}

/// The sources that are compiled; the others are headers.
fn compiled(tree: &[SourceFile]) -> impl Iterator<Item = (usize, &SourceFile)> {
    tree.iter().enumerate().filter(|(i, _)| i.is_multiple_of(2))
}

fn search(disk: &Disk, options: OpenOptions, tree: &[SourceFile]) -> Result<Phase> {
    let files = (tree.len() + compiled(tree).count()) as u64;
    let mut bytes = 0;
    let mut phase = phase_after(
        disk,
        options,
        ("search", files, 0),
        |_| Ok(()),
        |volume| {
            let top = volume.lookup(InodeNo::ROOT, TOP.as_bytes())?.ino;
            bytes = walk(volume, top, true, true)?;
            volume.release(top, 1);
            Ok(())
        },
    )?;
    phase.bytes = bytes;
    Ok(phase)
}

/// The size of a source's object file.
fn object_bytes(source: &SourceFile) -> u64 {
    (source.size * 2).min(SIZE_MAX as u64)
}

/// Runs the programs over a tree of `files` files, on a volume that may have others.
pub fn measure(plan: &LibraryPlan, disk: &Disk, files: u64) -> Result<Vec<Phase>> {
    let tree = sources(plan, files);
    let mut phases = built(plan, disk, &tree)?;
    phases.push(search(disk, OpenOptions::default(), &tree)?);
    phases.push(phase(disk, ("clean", compiled(&tree).count() as u64, 0), |volume| {
        for (_, file) in compiled(&tree) {
            let dir = descend(volume, &file.path, false)?;
            volume.unlink(&Caller::ROOT, dir, format!("{}.o", file.name).as_bytes())?;
            volume.release(dir, 1);
        }
        Ok(())
    })?);
    phases.push(phase(disk, ("remove", files, 0), |volume| {
        remove(volume, InodeNo::ROOT, TOP.as_bytes())
    })?);
    Ok(phases)
}

/// Searches a built tree on a new volume, with changed figures.
pub fn search_tuned(
    plan: &LibraryPlan,
    peer: Peer,
    files: u64,
    tune: fn(&mut Tuning),
) -> Result<Phase> {
    let (disk, tree) = (plan.disk(peer)?, sources(plan, files));
    built(plan, &disk, &tree)?;
    search(&disk, OpenOptions { tune, ..OpenOptions::default() }, &tree)
}

/// Checks out and compiles a tree.
fn built(plan: &LibraryPlan, disk: &Disk, tree: &[SourceFile]) -> Result<Vec<Phase>> {
    let files = tree.len() as u64;
    let contents = Contents::new(plan.seed, SIZE_MAX);
    let mut random = Random::new(plan.seed ^ 1);
    let bytes = tree.iter().map(|file| file.size).sum();
    let mut phases = vec![phase(disk, ("check out", files, bytes), |volume| {
        make(volume, InodeNo::ROOT, TOP, NewKind::Directory)?;
        for (i, file) in (0..).zip(tree) {
            let dir = descend(volume, &file.path, true)?;
            write(volume, dir, &file.name, contents.of(i, file.size as usize))?;
            volume.release(dir, 1);
        }
        Ok(())
    })?];
    let (count, objects) =
        (compiled(tree).count() as u64, compiled(tree).map(|s| object_bytes(s.1)).sum());
    phases.push(phase(disk, ("compile", count, objects), |volume| {
        let mut buffer = vec![0; READ];
        for (i, file) in compiled(tree) {
            read_file(volume, file, &mut buffer)?;
            for _ in 0..HEADERS.min(files / 2) {
                let header = random.below(files / 2) as usize * 2 + 1;
                read_file(volume, &tree[header], &mut buffer)?;
            }
            let dir = descend(volume, &file.path, false)?;
            let object = contents.of(i as u64 + 1, object_bytes(file) as usize);
            write(volume, dir, &format!("{}.o", file.name), object)?;
            volume.release(dir, 1);
        }
        Ok(())
    })?);
    Ok(phases)
}

/// A tree in which a new directory is created, at a random place, after every few files.
fn sources(plan: &LibraryPlan, files: u64) -> Vec<SourceFile> {
    let (sizes, mut random) = (LogNormal::sources(), Random::new(plan.seed));
    let mut directories = vec![vec![TOP.to_owned()]];
    let file = |i: u64| {
        if i.is_multiple_of(FILES_EACH) {
            let mut path = directories[random.index(directories.len())].clone();
            path.push(format!("dir{i:05}"));
            directories.push(path);
        }
        let path = directories[directories.len() - 1].clone();
        SourceFile { path, name: format!("file{i:05}.c"), size: sizes.sample(&mut random) }
    };
    (0..files).map(file).collect()
}

/// Looks up a directory by its path, creating missing directories if `make_missing`; the caller must release
/// the reference.
fn descend(volume: &Volume, path: &[String], make_missing: bool) -> Result<InodeNo> {
    let mut dir = volume.lookup(InodeNo::ROOT, path[0].as_bytes())?.ino;
    for name in &path[1..] {
        let next = match volume.lookup(dir, name.as_bytes()) {
            Ok(found) => found.ino,
            Err(cffs::error::Error::NotFound) if make_missing => {
                make(volume, dir, name, NewKind::Directory)?
            }
            Err(error) => return Err(error).context(path.join("/")),
        };
        volume.release(dir, 1);
        dir = next;
    }
    Ok(dir)
}

fn write(volume: &Volume, dir: InodeNo, name: &str, contents: &[u8]) -> Result<()> {
    let file = make(volume, dir, name, NewKind::Regular)?;
    volume.write(&Caller::ROOT, file, 0, contents)?;
    volume.release(file, 1);
    Ok(())
}

fn read_file(volume: &Volume, file: &SourceFile, buffer: &mut [u8]) -> Result<()> {
    let dir = descend(volume, &file.path, false)?;
    let found = volume.lookup(dir, file.name.as_bytes())?.ino;
    read_all(volume, found, buffer)?;
    volume.release(found, 1);
    volume.release(dir, 1);
    Ok(())
}

/// Removes a directory with all that is in it, as `rm -rf` does.
fn remove(volume: &Volume, parent: InodeNo, name: &[u8]) -> Result<()> {
    let dir = volume.lookup(parent, name)?.ino;
    let mut entries = Vec::new();
    volume.read_dir(dir, 0, false, &mut |entry| {
        entries.push((entry.name.to_vec(), entry.file_type));
        true
    })?;
    for (name, file_type) in entries {
        match file_type {
            FileType::Directory => remove(volume, dir, &name)?,
            _ => volume.unlink(&Caller::ROOT, dir, &name)?,
        }
    }
    volume.release(dir, 1);
    Ok(volume.remove_dir(&Caller::ROOT, parent, name)?)
}
