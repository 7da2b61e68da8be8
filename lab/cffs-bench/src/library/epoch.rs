//! An epoch of training over a set that is larger than the cache, in virtual time: all files are read in
//! random order, in batches, each of which is read in device order.

use std::num::NonZeroUsize;
use std::sync::Arc;

use anyhow::Result;
use cffs::clock::TestClock;
use cffs::files::Files;
use cffs::units::InodeNo;
use cffs::vfs::{AtimeMode, Caller, NewKind, OpenOptions, Volume};

use super::{LibraryPlan, make, phase};
use crate::peer::Peer;
use crate::workload::Phase;
use crate::workload::contents::Contents;
use crate::workload::random::Random;

const DIRECTORIES: u64 = 100;

/// A set of files in a hundred directories, and how it is read.
#[derive(Clone, Copy, Debug)]
pub struct Epoch {
    pub files: u64,
    pub size: usize,
    pub cache_bytes: u64,
    /// The number of files in a batch, which is read in device order.
    pub batch: usize,
}

/// Creates the set, and reads each file once.
pub fn measure(plan: &LibraryPlan, peer: Peer, set: Epoch) -> Result<Phase> {
    let disk = plan.disk(peer)?;
    let contents = Contents::new(plan.seed, set.size);
    let names: Vec<(String, String)> =
        (0..set.files).map(|i| (format!("d{:03}", i % DIRECTORIES), format!("f{i:06}"))).collect();
    phase(&disk, ("make", set.files, 0), |volume| {
        for dir in 0..DIRECTORIES {
            let at = make(volume, InodeNo::ROOT, &format!("d{dir:03}"), NewKind::Directory)?;
            for i in (dir..set.files).step_by(DIRECTORIES as usize) {
                let file = make(volume, at, &names[i as usize].1, NewKind::Regular)?;
                volume.write(&Caller::ROOT, file, 0, contents.of(i, set.size))?;
                volume.release(file, 1);
            }
        }
        Ok(())
    })?;
    let mut order: Vec<u64> = (0..set.files).collect();
    Random::new(plan.seed).shuffle(&mut order);
    let options = OpenOptions {
        atime: AtimeMode::Never,
        cache_bytes: set.cache_bytes,
        read_only: true,
        ..OpenOptions::default()
    };
    let volume = Volume::open(disk.clone(), Arc::new(TestClock::default()), options)?;
    disk.power_cycle();
    let (before, started) = (disk.counters(), disk.now());
    let files = Files::new(Arc::new(volume));
    let path = |i: &u64| {
        let (dir, name) = &names[*i as usize];
        format!("/{dir}/{name}")
    };
    for batch in order.chunks(set.batch) {
        let paths: Vec<String> = batch.iter().map(path).collect();
        files.read_many(&paths, NonZeroUsize::MIN, |_, contents| {
            assert_eq!(contents.expect("read").len(), set.size)
        });
    }
    let seconds = disk.now().since(started).as_secs();
    let device = Some(disk.counters().since(&before));
    let bytes = set.files * set.size as u64;
    let name = "epoch".to_owned();
    Ok(Phase { name, files: set.files, bytes, seconds, device, ..Phase::default() })
}
