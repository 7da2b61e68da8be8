//! The work of a schedule's threads. All choices depend on the seed.

use std::collections::btree_map::Entry;
use std::ops::ControlFlow;

use cffs::error::Error;
use cffs::lock::schedule::random;
use cffs::units::InodeNo;
use cffs::vfs::{
    AllocateMode, Caller, NewFile, NewKind, RegroupOptions, RenameMode, Scattered, SetAttr, Volume,
    XattrMode,
};

use crate::files::{File, Files, allow_races, is_uniform};

const NAMES: u64 = 6;
/// The number of names in shared directories: few, so that threads meet.
const SHARED_NAMES: u64 = 3;
const CHANGES: u64 = 14;
const CARES: u64 = 8;
/// Attributes that fit next to an inode, into a part of a block, or into several blocks.
const ATTRIBUTE_BYTES: [usize; 4] = [20, 900, 5000, 9000];
/// Contents that fit into the inode, into a part of a block, or into several blocks.
const CONTENT_BYTES: [usize; 5] = [0, 30, 700, 5000, 13_000];
/// The size of files that several threads overwrite as a whole.
const SHARED_BYTES: usize = 9000;

pub fn new(kind: NewKind<'_>) -> NewFile<'_> {
    NewFile { kind, permissions: 0o644, uid: 0, gid: 0, times: None }
}

fn pick<T: Copy>(from: &[T]) -> T {
    from[random(from.len() as u64) as usize]
}

fn name() -> Vec<u8> {
    name_of(random(NAMES))
}

/// Some names are long, so that an entry does not fit in the place of the previous one.
fn name_of(number: u64) -> Vec<u8> {
    format!("{number}{}", "x".repeat(number as usize % 3 * 60)).into_bytes()
}

/// The work of the threads.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Work {
    Plain,
    /// Also copy files and move them together, so that clusters are shared and compacted.
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

/// Changes of a thread in its own directory, whose state it knows completely, and in shared ones.
pub fn change(work: Work, volume: &Volume, own: InodeNo, shared: [InodeNo; 2], files: &mut Files) {
    for step in 0..CHANGES {
        if random(3) == 0 {
            change_shared(work, volume, shared);
        } else {
            change_own(work, volume, own, files, step as u8);
        }
        if random(2) == 0 {
            look_at_own(volume, own, files);
        }
    }
}

fn change_own(work: Work, volume: &Volume, own: InodeNo, files: &mut Files, fill: u8) {
    let name = name();
    let Some(ino) = files.names.get(&name).copied() else {
        let made =
            volume.make(&Caller::ROOT, own, &name, &new(NewKind::Regular)).expect("made").ino;
        volume.release(made, 1);
        files.names.insert(name, made);
        files.files.insert(made, File::default());
        return change_file(volume, made, files, fill);
    };
    match work.random(8, 3) {
        0 => {
            volume.unlink(&Caller::ROOT, own, &name).expect("unlinked");
            files.unlink(&name);
        }
        1 => {
            let other = self::name();
            volume
                .rename(&Caller::ROOT, own, &name, own, &other, RenameMode::Replace)
                .expect("renamed");
            if files.names.get(&other) != Some(&ino) {
                files.unlink(&other);
                files.names.remove(&name);
                files.names.insert(other, ino);
            }
        }
        2 => {
            let other = self::name();
            if let Entry::Vacant(place) = files.names.entry(other) {
                volume.link(ino, own, place.key()).expect("linked");
                volume.release(ino, 1);
                place.insert(ino);
            }
        }
        3 => volume.sync_file(ino, random(2) == 0).expect("synced"),
        8.. => copy_own(volume, own, files, ino),
        _ => change_file(volume, ino, files, fill),
    }
}

/// Copies a file of a thread to the beginning of another, or of a new one.
fn copy_own(volume: &Volume, own: InodeNo, files: &mut Files, source: InodeNo) {
    let other = self::name();
    let target = files.names.get(&other).copied().unwrap_or_else(|| {
        let new = new(NewKind::Regular);
        let made = volume.make(&Caller::ROOT, own, &other, &new).expect("made").ino;
        volume.release(made, 1);
        files.names.insert(other, made);
        files.files.insert(made, File::default());
        made
    });
    if target == source {
        return;
    }
    let bytes = files.files[&source].bytes.clone();
    let copied = volume.copy(&Caller::ROOT, (source, 0), (target, 0), u64::MAX).expect("copied");
    assert_eq!(copied, bytes.len() as u64, "a copy of a part");
    let file = files.files.get_mut(&target).expect("each name has a file");
    file.bytes.resize(file.bytes.len().max(bytes.len()), 0);
    file.bytes[..bytes.len()].copy_from_slice(&bytes);
}

fn change_file(volume: &Volume, ino: InodeNo, files: &mut Files, fill: u8) {
    let file = files.files.get_mut(&ino).expect("each name has a file");
    let attribute = format!("user.{}", random(2)).into_bytes();
    match random(6) {
        0 | 1 => {
            let value = vec![fill; pick(&ATTRIBUTE_BYTES)];
            volume.set_xattr(&Caller::ROOT, ino, &attribute, &value, XattrMode::Any).expect("set");
            file.attributes.insert(attribute, value);
        }
        2 => {
            let known = file.attributes.remove(&attribute);
            assert_eq!(volume.remove_xattr(ino, &attribute).is_ok(), known.is_some());
        }
        3 => {
            let size = pick(&CONTENT_BYTES);
            let changes = SetAttr { size: Some(size as u64), ..SetAttr::default() };
            volume.set_attr(&Caller::ROOT, ino, &changes).expect("cut off");
            file.bytes.resize(size, 0);
        }
        4 if file.bytes.len() > 4096 => {
            volume.allocate(&Caller::ROOT, ino, 0, 4096, AllocateMode::PunchHole).expect("punched");
            file.bytes[..4096].fill(0);
        }
        _ => {
            let at = random(file.bytes.len() as u64 + 1) as usize;
            let piece = vec![fill + 1; pick(&CONTENT_BYTES)];
            volume.write(&Caller::ROOT, ino, at as u64, &piece).expect("written");
            file.bytes.resize(file.bytes.len().max(at + piece.len()), 0);
            file.bytes[at..at + piece.len()].copy_from_slice(&piece);
        }
    }
}

fn look_at_own(volume: &Volume, own: InodeNo, files: &Files) {
    if random(4) == 0 {
        assert!(Files::of(volume, own) == *files, "a directory is not as its thread left it");
        return;
    }
    let name = name();
    let found = volume.lookup(own, &name);
    let Some(ino) = files.names.get(&name) else {
        return assert!(allow_races(found).is_none(), "a name that is gone is found");
    };
    assert_eq!(found.expect("found").ino, *ino);
    volume.release(*ino, 1);
    assert!(File::of(volume, *ino) == files.files[ino], "a file is not as its thread left it");
}

/// Changes where another thread may be faster. Each file there is overwritten as a whole with one byte value.
fn change_shared(work: Work, volume: &Volume, dirs: [InodeNo; 2]) {
    let (shared, other_dir) = (pick(&dirs), pick(&dirs));
    let name = || name_of(random(SHARED_NAMES));
    let (name, other) = (name(), name());
    let fill = random(200) as u8 + 1;
    let done = match work.random(10, 3) {
        0 | 1 => volume.make(&Caller::ROOT, shared, &name, &new(NewKind::Regular)).map(|made| {
            allow_races(volume.write(&Caller::ROOT, made.ino, 0, &[fill; SHARED_BYTES]));
            volume.release(made.ino, 1);
        }),
        2 => volume.unlink(&Caller::ROOT, shared, &name),
        3 | 4 => {
            let mode = pick(&[RenameMode::Replace, RenameMode::Exchange]);
            let renamed = volume.rename(&Caller::ROOT, shared, &name, other_dir, &other, mode);
            // A file that was found stays valid while its name is changed.
            assert!(!matches!(renamed, Err(Error::Stale)), "a file that was found is gone");
            renamed.map(drop)
        }
        5 => volume.lookup(shared, &name).and_then(|found| {
            let linked = volume.link(found.ino, other_dir, &other);
            let linked = linked.map(|linked| volume.release(linked.ino, 1));
            volume.release(found.ino, 1);
            linked
        }),
        6 => volume.lookup(shared, &name).map(|found| {
            let value = vec![fill; pick(&ATTRIBUTE_BYTES)];
            allow_races(volume.set_xattr(
                &Caller::ROOT,
                found.ino,
                b"user.shared",
                &value,
                XattrMode::Any,
            ));
            allow_races(volume.write(&Caller::ROOT, found.ino, 0, &[fill; SHARED_BYTES]));
            volume.release(found.ino, 1);
        }),
        7 => look_at_shared(volume, shared),
        10.. => copy_shared(volume, (shared, &name), (other_dir, &other)),
        _ => volume.lookup(shared, &name).map(|found| volume.release(found.ino, 1)),
    };
    allow_races(done);
}

/// Copies a shared file to another one. Both are read and written as a whole.
fn copy_shared(
    volume: &Volume,
    from: (InodeNo, &[u8]),
    to: (InodeNo, &[u8]),
) -> cffs::error::Result<()> {
    let source = volume.lookup(from.0, from.1)?.ino;
    if let Some(target) = allow_races(volume.lookup(to.0, to.1)) {
        if target.ino != source {
            let (source, target) = ((source, 0), (target.ino, 0));
            allow_races(volume.copy(&Caller::ROOT, source, target, u64::MAX));
        }
        volume.release(target.ino, 1);
    }
    volume.release(source, 1);
    Ok(())
}

fn look_at_shared(volume: &Volume, shared: InodeNo) -> cffs::error::Result<()> {
    let mut seen = Vec::new();
    volume.read_dir(shared, 0, true, &mut |entry| {
        seen.push(entry.ino);
        true
    })?;
    for ino in seen {
        let mut bytes = [0; SHARED_BYTES + 1];
        if let Some(len) = allow_races(volume.read(ino, 0, &mut bytes)) {
            assert!(len == 0 || len == SHARED_BYTES, "{len} bytes of a file that is written whole");
            assert!(is_uniform(&bytes[..len]), "contents of two writes");
        }
        if let Some(value) = allow_races(volume.xattr(ino, b"user.shared")) {
            assert!(is_uniform(&value), "an attribute of two calls");
        }
        volume.release(ino, 1);
    }
    Ok(())
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

/// A thread that makes changes durable, in each possible way.
pub fn take_care(work: Work, volume: &Volume) {
    for _ in 0..CARES {
        match work.random(8, 2) {
            0 | 1 => volume.sync().expect("synced"),
            2 => volume.writer().checkpoint().expect("written"),
            3 => drop(volume.writer().mark_clean().expect("written")),
            4 => drop(volume.writer().write_early().expect("written")),
            5 => {
                let scrubbed =
                    volume.admin().scrub(&mut |_| ControlFlow::Continue(())).expect("scrubbed");
                assert_eq!(scrubbed.problems, Vec::<String>::new(), "a scrub finds damage");
            }
            8.. => {
                let all = RegroupOptions { gain: 0, ..RegroupOptions::default() };
                let tree = Scattered::Tree(InodeNo::ROOT);
                volume.regroup(tree, &all, &mut |_| ControlFlow::Continue(())).expect("regrouped");
            }
            _ => volume.writer().background().expect("in the background"),
        }
    }
}
