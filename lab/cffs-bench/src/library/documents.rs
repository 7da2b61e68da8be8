//! Documents whose parts are in many directories, in virtual time: the gains of a hint, of a list of the
//! files read, and of the volume's own observations.
//!
//! A page and its pictures are read together, but pictures are stored in directories by kind. USENIX'97 (6)
//! names hypertext as an example of knowledge that a program has and the name space does not show.

use std::ops::ControlFlow;
use std::sync::Arc;

use anyhow::Result;
use cffs::clock::TestClock;
use cffs::format::superblock::Policy;
use cffs::units::InodeNo;
use cffs::vfs::{Caller, NewKind, OpenOptions, RegroupOptions, Scattered, Volume, XattrMode};

use super::trees::{READ, read_all, walk};
use super::{Disk, LibraryPlan, find, make, phase, phase_with};
use crate::disk::Counters;
use crate::peer::Peer;
use crate::workload::Phase;
use crate::workload::contents::Contents;
use crate::workload::random::{LogNormal, Random};

/// Files of a document: the page and its pictures.
pub const PARTS: u64 = 11;
/// The number of directories over which the files are spread.
const DIRECTORIES: u64 = 20;
/// The size of the cache: smaller than the documents, so that a server cannot cache them all.
const CACHE_BYTES: u64 = 16 << 20;
const SIZE_MAX: usize = 1 << 20;
const HINT: &[u8] = b"user.cffs.key";

/// The number of documents that are created between two epochs.
const EPOCH_DOCUMENTS: u64 = 20;

/// The number of documents that are each read from cold caches.
const ALONE: u64 = 20;

/// The order in which the files of documents are created.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Made {
    /// Each document with all of its parts, one after the other.
    Whole,
    /// The pages of all documents in one epoch, then the first picture of each in the next, and so on.
    PartByPart,
}

/// How the volume knows which files belong to a document.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Known {
    /// It does not know.
    No,
    /// By a hint for each document.
    Hint,
    /// It was regrouped by a list of the files that a reader of all documents reads.
    List,
    /// It observed such a reader several times, and was regrouped by that.
    Use,
}

/// How often the observed reader reads all documents.
const ROUNDS: u64 = 4;

/// Creates documents on a volume with this policy, and regroups the volume as `known` says. Then measures
/// three ways to read the contents of documents: some, each from cold caches; `reads` in random order,
/// with a small cache; and every directory, with a cache of the default size.
pub fn measure(
    plan: &LibraryPlan,
    (peer, policy): (Peer, Policy),
    (made, known): (Made, Known),
    (documents, reads): (u64, u64),
) -> Result<Vec<Phase>> {
    let disk = plan.disk_with(peer, policy)?;
    make_documents(plan, &disk, made, known == Known::Hint, documents)?;
    if matches!(known, Known::List | Known::Use) {
        regroup_documents(plan, &disk, known, documents)?;
    }
    let mut random = Random::new(plan.seed ^ 2);
    let (mut alone, mut seconds) = (Counters::default(), 0.0);
    for _ in 0..ALONE {
        let read = read_documents(&disk, &[random.below(documents)])?;
        alone = alone.plus(&read.device.unwrap_or_default());
        seconds += read.seconds;
    }
    let chosen: Vec<u64> = (0..reads).map(|_| random.below(documents)).collect();
    let many = read_documents(&disk, &chosen)?;
    let (files, device) = (ALONE, Some(alone));
    let alone = Phase { name: String::from("alone"), files, seconds, device, ..many.clone() };
    let scan = phase(&disk, ("directories", DIRECTORIES, 0), |volume| {
        walk(volume, InodeNo::ROOT, true, true).map(drop)
    })?;
    Ok(vec![alone, many, scan])
}

fn make_documents(
    plan: &LibraryPlan,
    disk: &Disk,
    made: Made,
    hinted: bool,
    documents: u64,
) -> Result<()> {
    let contents = Contents::new(plan.seed, SIZE_MAX);
    let (sizes, mut random) = (LogNormal::sources(), Random::new(plan.seed));
    phase_with(disk, CACHE_BYTES, ("prepare", 0, 0), |volume| {
        for directory in 0..DIRECTORIES {
            make(volume, InodeNo::ROOT, &format!("d{directory:02}"), NewKind::Directory)?;
        }
        for number in 0..documents * PARTS {
            let (document, part, epoch) = match made {
                Made::Whole => (number / PARTS, number % PARTS, EPOCH_DOCUMENTS * PARTS),
                Made::PartByPart => (number % documents, number / documents, documents),
            };
            let hint = hinted.then(|| format!("document {document}"));
            let size = sizes.sample(&mut random) as usize;
            add(volume, &path(document, part), hint, contents.of(number, size))?;
            if number % epoch == epoch - 1 {
                volume.sync()?;
            }
        }
        Ok(())
    })?;
    Ok(())
}

/// Regroups documents by a list, or after observing a reader that reads all of them several times, each
/// time in another random order.
fn regroup_documents(plan: &LibraryPlan, disk: &Disk, known: Known, documents: u64) -> Result<()> {
    let observe = known == Known::Use;
    let options = OpenOptions { observe, cache_bytes: CACHE_BYTES, ..OpenOptions::default() };
    let volume = Volume::open(disk.clone(), Arc::new(TestClock::default()), options)?;
    let (mut random, mut buffer) = (Random::new(plan.seed ^ 3), vec![0; READ]);
    let mut order: Vec<u64> = (0..documents).collect();
    let mut files = Vec::new();
    for _ in 0..ROUNDS {
        random.shuffle(&mut order);
        files.clear();
        let parts = order.iter().flat_map(|document| (0..PARTS).map(move |part| (*document, part)));
        for at in parts.map(|(document, part)| path(document, part)) {
            let file = find(&volume, &at)?;
            read_all(&volume, file, &mut buffer)?;
            volume.release(file, 1);
            files.push(file);
        }
    }
    let (regroup, go_on) = (RegroupOptions::default(), &mut |_: &_| ControlFlow::Continue(()));
    let what = if observe { Scattered::Used } else { Scattered::Files(&files) };
    volume.regroup(what, &regroup, go_on)?;
    Ok(volume.close()?)
}

/// Reads the contents of documents one after the other, without counting the costs of finding them.
fn read_documents(disk: &Disk, documents: &[u64]) -> Result<Phase> {
    let (mut names, mut seconds) = (Counters::default(), 0.0);
    let mut all = phase_with(disk, CACHE_BYTES, ("many", documents.len() as u64, 0), |volume| {
        let mut buffer = vec![0; READ];
        for &document in documents {
            let (before, started) = (disk.counters(), disk.now());
            let found = (0..PARTS).map(|part| find(volume, &path(document, part)));
            let found: Vec<InodeNo> = found.collect::<Result<_>>()?;
            names = names.plus(&disk.counters().since(&before));
            seconds += disk.now().since(started).as_secs();
            for file in found {
                read_all(volume, file, &mut buffer)?;
                volume.release(file, 1);
            }
        }
        Ok(())
    })?;
    all.device = all.device.map(|all| all.since(&names));
    all.seconds -= seconds;
    Ok(all)
}

fn add(
    volume: &Volume,
    path: &(String, String),
    hint: Option<String>,
    contents: &[u8],
) -> Result<()> {
    let dir = volume.lookup(InodeNo::ROOT, path.0.as_bytes())?.ino;
    let file = make(volume, dir, &path.1, NewKind::Regular)?;
    if let Some(hint) = hint {
        volume.set_xattr(&Caller::ROOT, file, HINT, hint.as_bytes(), XattrMode::Create)?;
    }
    volume.write(&Caller::ROOT, file, 0, contents)?;
    volume.release(file, 1);
    volume.release(dir, 1);
    Ok(())
}

/// The path of a part of a document, in any of the directories.
fn path(document: u64, part: u64) -> (String, String) {
    let directory = Random::new(document * PARTS + part).below(DIRECTORIES);
    (format!("d{directory:02}"), format!("{document:05}-{part:02}"))
}
