//! Tiny files in virtual time: the micro-benchmarks and servers of the paper on extµ.

use anyhow::Result;
use cffs::units::InodeNo;
use cffs::vfs::{Caller, NewKind, OpenOptions, SetAttr, Volume};

use super::trees::walk;
use super::{LibraryPlan, find, make, phase, phase_after};
use crate::peer::Peer;
use crate::workload::Phase;
use crate::workload::contents::Contents;
use crate::workload::random::Random;

/// Bytes that each call of the micro-benchmark reads or writes: the contents of a file that fits into an
/// inode of 256 bytes.
pub const TINY: usize = 128;
/// Size of a file that has grown out of its inode, in bytes.
pub const GROWN: usize = 4096;
/// A server, after Filebench (extµ §6.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A client reads ten files, then appends a line to the log.
    Web,
    /// A client reads five files for each file that it replaces.
    Proxy,
}

/// Bytes that a request to a server adds to its log.
const LOG_LINE: usize = 512;

/// Opens each of `files` tiny files, and reads or writes it: table 1 of the paper.
pub fn one_at_a_time(plan: &LibraryPlan, peer: Peer, files: u64) -> Result<Vec<Phase>> {
    let disk = plan.disk(peer)?;
    let contents = Contents::new(plan.seed, GROWN);
    let names: Vec<_> = (0..files).map(|i| (String::from("tiny"), format!("t{i:05}"))).collect();
    let each = |volume: &Volume, work: &dyn Fn(u64, InodeNo) -> Result<()>| {
        (0..).zip(&names).try_for_each(|(i, name)| {
            let file = find(volume, name)?;
            work(i, file)?;
            volume.release(file, 1);
            Ok(())
        })
    };
    let mut phases = vec![phase(&disk, ("create", files, 0), |volume| {
        let dir = make(volume, InodeNo::ROOT, "tiny", NewKind::Directory)?;
        for (i, (_, name)) in (0..).zip(&names) {
            let file = make(volume, dir, name, NewKind::Regular)?;
            volume.write(&Caller::ROOT, file, 0, contents.of(i, TINY))?;
            volume.release(file, 1);
        }
        Ok(())
    })?];
    for name in ["read", "truncate, write", "write, durable", "append 128 bytes", "append 4 KiB"] {
        phases.push(phase(&disk, (name, files, 0), |volume| {
            each(volume, &|i, file| {
                let new = contents.of(i + 1, TINY);
                match name {
                    "read" => drop(volume.read(file, 0, &mut [0; TINY])?),
                    "truncate, write" => {
                        let empty = SetAttr { size: Some(0), ..SetAttr::default() };
                        volume.set_attr(&Caller::ROOT, file, &empty)?;
                        volume.write(&Caller::ROOT, file, 0, new)?;
                    }
                    "write, durable" => {
                        volume.write(&Caller::ROOT, file, 0, new)?;
                        volume.sync_file(file, false)?;
                    }
                    "append 128 bytes" => {
                        volume.write(&Caller::ROOT, file, TINY as u64, new)?;
                    }
                    _ => {
                        let data = contents.of(i, GROWN);
                        volume.write(&Caller::ROOT, file, 2 * TINY as u64, data)?;
                    }
                }
                Ok(())
            })
        })?);
    }
    Ok(phases)
}

/// Makes files of 1 KiB in parallel, and reads them: table 2 of the paper.
pub fn in_parallel(plan: &LibraryPlan, peer: Peer, files: u64) -> Result<Vec<Phase>> {
    const SIZE: usize = 1024;
    let disk = plan.disk(peer)?;
    let contents = Contents::new(plan.seed, SIZE);
    let names: Vec<_> = (0..files).map(|i| (String::from("p"), format!("p{i:05}"))).collect();
    let create = phase(&disk, ("create", files, files * SIZE as u64), |volume| {
        let dir = make(volume, InodeNo::ROOT, "p", NewKind::Directory)?;
        let open: Vec<InodeNo> = names
            .iter()
            .map(|(_, name)| make(volume, dir, name, NewKind::Regular))
            .collect::<Result<_>>()?;
        // All files are open at once, and get their halves in turn.
        for half in 0..2 {
            for (i, file) in (0..).zip(&open) {
                let offset = half * SIZE / 2;
                volume.write(
                    &Caller::ROOT,
                    *file,
                    offset as u64,
                    &contents.of(i, SIZE)[offset..][..SIZE / 2],
                )?;
            }
        }
        open.iter().for_each(|file| volume.release(*file, 1));
        Ok(())
    })?;
    let read = phase(&disk, ("read", files, files * SIZE as u64), |volume| {
        for name in &names {
            let file = find(volume, name)?;
            volume.read(file, 0, &mut [0; SIZE])?;
            volume.release(file, 1);
        }
        Ok(())
    })?;
    Ok(vec![create, read])
}

/// A server with one client and a cache of this size: figure 5 of the paper. If `is_warm`, all files are
/// read before.
pub fn server(
    plan: &LibraryPlan,
    peer: Peer,
    kind: Kind,
    (files, size): (u64, usize),
    (requests, cache_bytes): (u64, u64),
    is_warm: bool,
) -> Result<Phase> {
    let disk = plan.disk(peer)?;
    let contents = Contents::new(plan.seed, size.max(LOG_LINE));
    let name = |i: u64| (format!("s{:03}", i / 100), format!("p{i:06}"));
    phase(&disk, ("prepare", 0, 0), |volume| {
        make(volume, InodeNo::ROOT, "log", NewKind::Regular)?;
        let mut dir = InodeNo::ROOT;
        for i in 0..files {
            let (dir_name, file_name) = name(i);
            if i % 100 == 0 {
                dir = make(volume, InodeNo::ROOT, &dir_name, NewKind::Directory)?;
            }
            let file = make(volume, dir, &file_name, NewKind::Regular)?;
            volume.write(&Caller::ROOT, file, 0, contents.of(i, size))?;
            volume.release(file, 1);
        }
        Ok(())
    })?;
    let reads = if kind == Kind::Web { 10 } else { 5 };
    let operations = requests * (reads + u64::from(kind != Kind::Web));
    let mut random = Random::new(plan.seed);
    let mut buffer = vec![0; size];
    let warm = |volume: &Volume| {
        if is_warm {
            walk(volume, InodeNo::ROOT, true, true)?;
        }
        Ok(())
    };
    let options = OpenOptions { cache_bytes, ..OpenOptions::default() };
    phase_after(&disk, options, ("serve", operations, 0), warm, |volume| {
        let log = volume.lookup(InodeNo::ROOT, b"log")?.ino;
        for request in 0..requests {
            if kind != Kind::Web {
                let (dir_name, file_name) = name(random.below(files));
                let dir = volume.lookup(InodeNo::ROOT, dir_name.as_bytes())?.ino;
                volume.unlink(&Caller::ROOT, dir, file_name.as_bytes())?;
                let file = make(volume, dir, &file_name, NewKind::Regular)?;
                volume.write(&Caller::ROOT, file, 0, contents.of(request, size))?;
                volume.release(file, 1);
                volume.release(dir, 1);
            }
            for _ in 0..reads {
                let file = find(volume, &name(random.below(files)))?;
                volume.read(file, 0, &mut buffer)?;
                volume.release(file, 1);
            }
            volume.write(
                &Caller::ROOT,
                log,
                request * LOG_LINE as u64,
                contents.of(request, LOG_LINE),
            )?;
        }
        Ok(())
    })
}
