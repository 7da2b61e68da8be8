//! The list of what changed since a mark, in virtual time, and a walk that compares times.

use std::collections::BTreeSet;
use std::ops::ControlFlow;

use anyhow::{Result, ensure};
use cffs::units::InodeNo;
use cffs::vfs::{Caller, Marks, NewKind};

use super::trees::walk;
use super::{LibraryPlan, find, make, phase};
use crate::peer::Peer;
use crate::workload::Phase;
use crate::workload::contents::Contents;
use crate::workload::random::Random;

const DIRECTORY_FILES: u64 = 100;
const FILE_BYTES: usize = 1024;
const MARK: &str = "m";

/// Makes the files of a plan, and changes some of them after a mark. Then lists the changes, and walks all
/// names and attributes as `find -newer` does, each with cold caches.
pub fn changes(plan: &LibraryPlan, changed: u64) -> Result<[Phase; 2]> {
    let disk = plan.disk(Peer::Cffs)?;
    let contents = Contents::new(plan.seed, FILE_BYTES);
    let path = |file: u64| (format!("d{:05}", file / DIRECTORY_FILES), format!("f{file:07}"));
    phase(&disk, ("prepare", 0, 0), |volume| {
        let mut dir = InodeNo::ROOT;
        for number in 0..plan.files {
            let (directory, name) = path(number);
            if number.is_multiple_of(DIRECTORY_FILES) {
                dir = make(volume, InodeNo::ROOT, &directory, NewKind::Directory)?;
            }
            let file = make(volume, dir, &name, NewKind::Regular)?;
            volume.write(&Caller::ROOT, file, 0, contents.of(number, FILE_BYTES))?;
            volume.release(file, 1);
        }
        Ok(())
    })?;
    let mut random = Random::new(plan.seed);
    let mut chosen = BTreeSet::new();
    while (chosen.len() as u64) < changed.min(plan.files) {
        chosen.insert(random.below(plan.files));
    }
    phase(&disk, ("change", changed, 0), |volume| {
        Marks::of(volume).set(MARK)?;
        for number in &chosen {
            let file = find(volume, &path(*number))?;
            volume.write(&Caller::ROOT, file, 0, contents.of(number + 1, FILE_BYTES))?;
            volume.release(file, 1);
        }
        Ok(())
    })?;
    let list = phase(&disk, ("list", changed, 0), |volume| {
        let mut listed = 0;
        Marks::of(volume).changes(InodeNo::ROOT, MARK, &mut |_| {
            listed += 1;
            ControlFlow::Continue(())
        })?;
        ensure!(listed == chosen.len(), "{listed} changes are listed");
        Ok(())
    })?;
    let walk = phase(&disk, ("walk", plan.files, 0), |volume| {
        walk(volume, InodeNo::ROOT, true, false).map(drop)
    })?;
    Ok([list, walk])
}
