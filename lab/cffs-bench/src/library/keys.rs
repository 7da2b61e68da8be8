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

/// Creates files in a few directories, alternately or one directory after the other, with an epoch after
/// every few files. Then reads them from cold caches: all in the order in which they were created, all
/// directory by directory, and those of one directory.
pub fn in_two_orders(
    plan: &LibraryPlan,
    policy: Policy,
    files: u64,
    alternately: bool,
) -> Result<Vec<Phase>> {
    let disk = plan.disk_with(Peer::Cffs, policy)?;
    let contents = Contents::new(plan.seed, SIZE_MAX);
    let (sizes, mut random) = (LogNormal::sources(), Random::new(plan.seed));
    let made: Vec<((String, String), u64)> = (0..files)
        .map(|i| {
            let dir = if alternately { i % VALUES } else { i * VALUES / files };
            ((format!("d{dir}"), format!("f{i:05}")), sizes.sample(&mut random))
        })
        .collect();
    let bytes = made.iter().map(|(_, size)| size).sum();
    let mut phases = vec![phase(&disk, ("create", files, bytes), |volume| {
        for dir in 0..VALUES {
            volume.release(make(volume, InodeNo::ROOT, &format!("d{dir}"), NewKind::Directory)?, 1);
        }
        for (i, ((dir, name), size)) in (0..).zip(&made) {
            let dir = volume.lookup(InodeNo::ROOT, dir.as_bytes())?.ino;
            let file = make(volume, dir, name, NewKind::Regular)?;
            volume.write(&Caller::ROOT, file, 0, contents.of(i, *size as usize))?;
            volume.release(file, 1);
            volume.release(dir, 1);
            if i % EPOCH == EPOCH - 1 {
                volume.sync()?;
            }
        }
        Ok(())
    })?];
    let as_made: Vec<_> = made.iter().map(|(path, _)| path).collect();
    let mut by_directory = as_made.clone();
    by_directory.sort();
    let one = by_directory.iter().filter(|path| path.0 == "d4").copied().collect();
    let orders =
        [("read as made", as_made), ("read by directory", by_directory), ("read one", one)];
    for (name, order) in orders {
        phases.push(phase(&disk, (name, order.len() as u64, 0), |volume| {
            let mut buffer = vec![0; READ];
            for path in order {
                let file = find(volume, path)?;
                read_all(volume, file, &mut buffer)?;
                volume.release(file, 1);
            }
            Ok(())
        })?);
    }
    Ok(phases)
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
