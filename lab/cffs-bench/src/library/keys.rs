//! Files of several owners, processes and minutes, in virtual time: the gains of the policies' keys.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};

use anyhow::Result;
use cffs::clock::{Clock, Timestamp};
use cffs::files::layout::{Layout, survey};
use cffs::format::superblock::Policy;
use cffs::units::InodeNo;
use cffs::vfs::{Caller, NewFile, NewKind, OpenOptions, Volume};

use super::trees::{READ, read_all};
use super::{Disk, LibraryPlan, find, make, phase};
use crate::peer::Peer;
use crate::workload::Phase;
use crate::workload::contents::Contents;
use crate::workload::random::{LogNormal, Random};

/// Properties that files can share: directory, owner, minute of creation, process.
pub const COMMON: [&str; 4] = ["directory", "owner", "time", "process"];
/// The number of values of each property.
pub const VALUES: u64 = 8;
/// The number of files that are created between two epochs.
const EPOCH: u64 = 40;
const SIZE_MAX: usize = 1 << 20;

/// A file, with its values of these properties.
#[derive(Clone, Copy)]
struct Made {
    number: u64,
    values: [u64; 4],
}

impl Made {
    fn path(self) -> (String, String) {
        (format!("d{}", self.values[0]), format!("f{:05}", self.number))
    }
}

/// A clock that the test sets.
#[derive(Default)]
struct Hands(AtomicI64);

impl Clock for Hands {
    fn now(&self) -> Timestamp {
        Timestamp { seconds: self.0.load(Ordering::Relaxed), nanoseconds: 0 }
    }
}

/// Creates files on a volume with this policy, analyses their layout, and reads those of one directory,
/// one owner, one minute and one process from cold caches.
pub fn measure(plan: &LibraryPlan, policy: Policy, files: u64) -> Result<(Layout, Vec<Phase>)> {
    let disk = plan.disk_with(Peer::Cffs, policy)?;
    let made = make_keyed(plan, &disk, files)?;
    let layout = survey(disk.clone(), InodeNo::ROOT)?;
    let phases = (0..COMMON.len()).map(|common| {
        // The minute in the middle; no other value is special.
        let of_it = |file: &&Made| file.values[common] == VALUES / 2;
        let read: Vec<Made> = made.iter().filter(of_it).copied().collect();
        phase(&disk, (COMMON[common], read.len() as u64, 0), |volume| {
            let mut buffer = vec![0; READ];
            for file in read {
                let found = find(volume, &file.path())?;
                read_all(volume, found, &mut buffer)?;
                volume.release(found, 1);
            }
            Ok(())
        })
    });
    Ok((layout, phases.collect::<Result<_>>()?))
}

fn make_keyed(plan: &LibraryPlan, disk: &Disk, files: u64) -> Result<Vec<Made>> {
    let clock = Arc::new(Hands::default());
    let volume = Volume::open(disk.clone(), clock.clone(), OpenOptions::default())?;
    let contents = Contents::new(plan.seed, SIZE_MAX);
    let (sizes, mut random) = (LogNormal::sources(), Random::new(plan.seed));
    let dirs: Vec<InodeNo> = (0..VALUES)
        .map(|i| make(&volume, InodeNo::ROOT, &format!("d{i}"), NewKind::Directory))
        .collect::<Result<_>>()?;
    let mut made = Vec::new();
    for number in 0..files {
        let minute = number * VALUES / files;
        clock.0.store(minute as i64 * 60, Ordering::Relaxed);
        let mut any = || random.below(VALUES);
        let file = Made { number, values: [any(), any(), minute, any()] };
        let (uid, size) = (1000 + file.values[1] as u32, sizes.sample(&mut random) as usize);
        let kind = NewKind::Regular;
        let new = NewFile { kind, permissions: 0o644, uid, gid: uid, times: None };
        let caller = Caller { process: 5000 + file.values[3] as u32, ..Caller::ROOT };
        let dir = dirs[file.values[0] as usize];
        let ino = volume.make(&caller, dir, file.path().1.as_bytes(), &new)?.ino;
        volume.write(&caller, ino, 0, contents.of(number, size))?;
        volume.release(ino, 1);
        made.push(file);
        if number % EPOCH == EPOCH - 1 {
            volume.sync()?;
        }
    }
    volume.close()?;
    Ok(made)
}
