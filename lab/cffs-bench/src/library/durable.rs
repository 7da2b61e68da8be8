//! Files that are made durable in virtual time: one is created in each of several directories, then one fsync
//! covers them all, as when threads call fsync at the same time.

use anyhow::Result;
use cffs::units::InodeNo;
use cffs::vfs::{Caller, NewKind, Volume};

use super::{LibraryPlan, make, phase};
use crate::peer::Peer;
use crate::workload::Phase;
use crate::workload::contents::Contents;

/// Creates `files` files of this size, one per directory at a time. Epochs before the measured ones give
/// each directory a place of its own.
pub fn measure(
    plan: &LibraryPlan,
    peer: Peer,
    files: u64,
    size: usize,
    directories: u64,
) -> Result<Phase> {
    let disk = plan.disk(peer)?;
    let contents = Contents::new(plan.seed, size);
    let round = |volume: &Volume, dirs: &[InodeNo], i: u64| -> Result<()> {
        let mut made = Vec::new();
        for dir in dirs {
            let file = make(volume, *dir, &format!("m{i:06}"), NewKind::Regular)?;
            volume.write(&Caller::ROOT, file, 0, contents.of(i, size))?;
            made.push(file);
        }
        for file in made {
            volume.sync_file(file, false)?;
            volume.release(file, 1);
        }
        Ok(())
    };
    let name = |i| format!("t{i:03}");
    phase(&disk, ("prepare", 0, 0), |volume| {
        let top = make(volume, InodeNo::ROOT, "top", NewKind::Directory)?;
        let dirs: Vec<InodeNo> = (0..directories)
            .map(|i| make(volume, top, &name(i), NewKind::Directory))
            .collect::<Result<_>>()?;
        (0..8).try_for_each(|i| round(volume, &dirs, i))
    })?;
    phase(&disk, ("write+fsync", files, files * size as u64), |volume| {
        let top = volume.lookup(InodeNo::ROOT, b"top")?.ino;
        let dirs: Vec<InodeNo> = (0..directories)
            .map(|i| Ok(volume.lookup(top, name(i).as_bytes())?.ino))
            .collect::<Result<_>>()?;
        (0..files / directories).try_for_each(|i| round(volume, &dirs, 8 + i))
    })
}
