//! The work of a schedule's threads. All choices depend on the seed.

use std::ops::ControlFlow;

use cffs::error::Error;
use cffs::lock::schedule::random;
use cffs::units::InodeNo;
use cffs::vfs::{Amount, NewFile, NewKind, Quotas, RegroupOptions, Scattered, Volume};

use crate::files::{Files, allow_races};
use crate::volumes::{DEVICE_BYTES_MAX, Start};

pub mod own;
pub mod shared;

const NAMES: u64 = 6;
const CARES: u64 = 8;
/// Attributes that fit next to an inode, into a part of a block, or into several blocks.
const ATTRIBUTE_BYTES: [usize; 4] = [20, 900, 5000, 9000];
/// The bytes that a volume gains when it grows.
const GROW_BYTES: u64 = 1 << 20;

pub fn new(kind: NewKind<'_>) -> NewFile<'_> {
    NewFile { kind, permissions: 0o644, uid: 0, gid: 0, times: None }
}

fn pick<T: Copy>(from: &[T]) -> T {
    from[random(from.len() as u64) as usize]
}

fn name() -> Vec<u8> {
    name_of(random(NAMES))
}

/// Some names are longer, so that an entry does not fit in the place of the previous one. The longest ones
/// are too long for the table of recent names.
fn name_of(number: u64) -> Vec<u8> {
    format!("{number}{}", "x".repeat(number as usize % 3 * 30)).into_bytes()
}

/// The work of the threads.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Work {
    Plain,
    /// More copies, and files are moved together, so that clusters are shared and compacted.
    WithClusters,
}

impl Work {
    /// A number below `limit`, or with clusters below `limit + more`.
    fn random(self, limit: u64, more: u64) -> u64 {
        match self {
            Work::Plain => random(limit),
            Work::WithClusters => random(limit + more),
        }
    }
}

/// When no thread makes changes, lookups agree with listings.
pub fn compare_names(volume: &Volume, dir: InodeNo) {
    let listed = Files::of(volume, dir).names;
    for name in (0..NAMES).map(name_of) {
        let found = volume.lookup(dir, &name).ok().map(|found| found.ino);
        found.iter().for_each(|ino| volume.release(*ino, 1));
        assert_eq!(found, listed.get(&name).copied(), "a lookup and a listing differ");
    }
}

/// A thread that makes changes durable in each possible way, and does other work for the whole volume.
/// A shared directory is given a quota.
pub fn take_care(work: Work, volume: &Volume, start: &Start) {
    for _ in 0..CARES {
        match work.random(12, 3) {
            0 | 1 => volume.sync().expect("synced"),
            2 => volume.writer().checkpoints().run().expect("written"),
            3 => drop(volume.writer().checkpoints().mark_clean().expect("written")),
            4 => drop(volume.writer().background().write_early().expect("written")),
            5 => {
                let scrubbed =
                    volume.admin().scrub(&mut |_| ControlFlow::Continue(())).expect("scrubbed");
                assert_eq!(scrubbed.problems, Vec::<String>::new(), "a scrub finds damage");
            }
            6 => drop(volume.admin().trim(0..u64::MAX, 0).expect("trimmed")),
            7 => drop(volume.writer().background().discard_freed().expect("discarded")),
            8 if !start.is_full => {
                let superblock = volume.writer().superblock.get();
                let size_bytes = superblock.blocks * u64::from(superblock.block_bytes);
                let grown_bytes = (size_bytes + GROW_BYTES).min(DEVICE_BYTES_MAX);
                allow_races(volume.admin().grow(Some(grown_bytes)));
            }
            9 => limit(volume, start.shared[1]),
            12.. => {
                let all = RegroupOptions { gain: 0, ..RegroupOptions::default() };
                let tree = Scattered::Tree(InodeNo::ROOT);
                volume.regroup(tree, &all, &mut |_| ControlFlow::Continue(())).expect("regrouped");
            }
            _ => volume.writer().background().run_once().expect("in the background"),
        }
    }
}

/// Changes the quota of a directory. A quota of bytes could end a write that is made as a whole.
fn limit(volume: &Volume, dir: InodeNo) {
    let quotas = Quotas::of(volume);
    let limited = match random(3) {
        0 => quotas.remove(dir),
        1 => quotas.set(dir, Amount { files: 3, ..Amount::UNLIMITED }).map(drop),
        _ => quotas.set(dir, Amount::UNLIMITED).map(drop),
    };
    match limited {
        // A file has a name in another directory.
        Err(Error::Unsupported(_)) => {}
        limited => drop(allow_races(limited)),
    }
}
