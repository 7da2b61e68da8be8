//! The system calls of a workload, over a small set of names.
//!
//! [`all`] is every call with every argument that makes a difference: the sequences of one and of two calls
//! are generated from it. A call that fails is part of the workload.

use std::ops::ControlFlow;

use cffs::check_in_use;
use cffs::format::superblock::ErrorsPolicy;
use cffs::units::InodeNo;
use cffs::vfs::{
    AllocateMode, Caller, Marks, NewFile, NewKind, RegroupOptions, RegroupProgress, RenameMode,
    Scattered, SetAttr, SetVolume, Volume, XattrMode,
};

use crate::random::Random;

/// A path of at most two names.
pub type Path = &'static str;

#[derive(Clone, Debug)]
pub enum Op {
    Make(Path),
    MakeDir(Path),
    MakeLink(Path, usize),
    MakeFifo(Path),
    /// Makes a file without a name, writes to it, and gives it one.
    Unnamed(Path),
    /// Makes this many files in a directory, each of this many bytes.
    Fill(Path, usize, usize),
    /// Removes the files that [`Op::Fill`] makes.
    Empty(Path, usize),
    Link(Path, Path),
    Unlink(Path),
    /// Removes the name of a file that stays in use.
    #[allow(dead_code, reason = "not tried on stores")]
    UnlinkInUse(Path),
    /// Gives the first of the files that lost their names one again.
    #[allow(dead_code, reason = "not tried on stores")]
    NameAgain(Path),
    RemoveDir(Path),
    Rename(Path, Path, RenameMode),
    Write(Path, u64, usize),
    Append(Path, usize),
    /// Copies the contents of a file to the beginning of another, which it makes if necessary.
    Copy(Path, Path),
    Truncate(Path, u64),
    Allocate(Path, u64, u64, AllocateMode),
    Chmod(Path),
    Chown(Path),
    SetXattr(Path, usize),
    RemoveXattr(Path),
    /// Looks a file up, which brings an inode back from the external table.
    Lookup(Path),
    Fsync(Path),
    Fdatasync(Path),
    Sync,
    /// Writes contents ahead of their epoch.
    WriteEarly,
    /// Marks the volume clean, as in an idle time.
    MarkClean,
    /// Moves all files that can be moved, whether they are scattered or not.
    Regroup,
    /// Discards all free space.
    Trim,
    /// Discards freed space, as the option `discard` does.
    Discard,
    /// Makes the volume larger by [`GAIN_BYTES`], if the device has room.
    Grow,
    /// Verifies all checksums.
    Scrub,
    /// Changes the label, the UUID and the error policy.
    Tune,
    /// Sets a mark, if there is none of its name.
    Mark,
    /// Checks the volume while it is in use.
    Check,
    /// Writes all derived state.
    Checkpoint,
}

/// The promise of a call that returned.
pub enum Promise {
    Nothing,
    File(InodeNo),
    Everything,
}

pub const XATTR: &[u8] = b"user.note";
/// The bytes that a volume gains when it grows.
pub const GAIN_BYTES: u64 = 256 << 10;
/// More inodes than any workload has.
const INODES_MAX: u64 = 1000;

fn new(kind: NewKind<'_>) -> NewFile<'_> {
    NewFile { kind, permissions: 0o755, uid: 0, gid: 0, times: None }
}

fn find_name(volume: &Volume, dir: InodeNo, name: &str) -> Option<InodeNo> {
    let attr = volume.lookup(dir, name.as_bytes()).ok()?;
    volume.release(attr.ino, 1);
    Some(attr.ino)
}

/// The directory of a path, and the last name.
fn split(volume: &Volume, path: Path) -> Option<(InodeNo, &'static [u8])> {
    match path.split_once('/') {
        None => Some((InodeNo::ROOT, path.as_bytes())),
        Some((dir, name)) => Some((find_name(volume, InodeNo::ROOT, dir)?, name.as_bytes())),
    }
}

/// The first of the few inodes of a workload that has no name.
fn nameless(volume: &Volume) -> Option<InodeNo> {
    let is_nameless = |ino| volume.attr(ino).is_ok_and(|attr| attr.nlink == 0);
    (InodeNo::FIRST_USER.0..INODES_MAX).map(InodeNo).find(|ino| is_nameless(*ino))
}

pub fn find(volume: &Volume, path: Path) -> Option<InodeNo> {
    let mut at = InodeNo::ROOT;
    for name in path.split('/') {
        at = find_name(volume, at, name)?;
    }
    Some(at)
}

/// Makes a file, and releases it.
pub fn make(volume: &Volume, dir: InodeNo, name: &[u8], kind: NewKind<'_>) -> Option<InodeNo> {
    let made = volume.make(&Caller::ROOT, dir, name, &new(kind)).ok()?;
    volume.release(made.ino, 1);
    Some(made.ino)
}

/// The name of the mark that a call sets.
pub fn mark_name(serial: u8) -> String {
    format!("mark-{serial}")
}

fn fill_name(number: usize) -> Vec<u8> {
    format!("one of many files, number {number}").into_bytes()
}

impl Op {
    /// Makes the call. `serial` distinguishes the bytes that different calls write.
    pub fn apply(&self, volume: &Volume, serial: u8) -> Promise {
        self.try_apply(volume, serial).unwrap_or(Promise::Nothing)
    }

    fn try_apply(&self, volume: &Volume, serial: u8) -> Option<Promise> {
        let make = |path: Path, kind| {
            let (dir, name) = split(volume, path)?;
            make(volume, dir, name, kind)
        };
        let bytes = |len| -> Vec<u8> { (0..len).map(|at| serial ^ (at / 512) as u8).collect() };
        match *self {
            Op::Make(path) => make(path, NewKind::Regular).map(drop)?,
            Op::MakeDir(path) => make(path, NewKind::Directory).map(drop)?,
            Op::MakeLink(path, len) => make(path, NewKind::Symlink(&vec![b'x'; len])).map(drop)?,
            Op::MakeFifo(path) => make(path, NewKind::Fifo).map(drop)?,
            Op::Unnamed(path) => {
                let (dir, name) = split(volume, path)?;
                let ino = volume.make_unnamed(&Caller::ROOT, dir, &new(NewKind::Regular)).ok()?.ino;
                volume.write(&Caller::ROOT, ino, 0, &bytes(3000)).ok()?;
                if volume.link(ino, dir, name).is_ok() {
                    volume.release(ino, 1);
                }
                volume.release(ino, 1);
            }
            Op::Fill(path, count, len) => {
                let dir = find(volume, path)?;
                for number in 0..count {
                    let made = volume
                        .make(&Caller::ROOT, dir, &fill_name(number), &new(NewKind::Regular))
                        .ok()?;
                    volume.write(&Caller::ROOT, made.ino, 0, &bytes(len)).ok()?;
                    volume.release(made.ino, 1);
                }
            }
            Op::Empty(path, count) => {
                let dir = find(volume, path)?;
                for number in 0..count {
                    volume.unlink(&Caller::ROOT, dir, &fill_name(number)).ok()?;
                }
            }
            Op::Link(from, to) => {
                let ino = find(volume, from)?;
                let (dir, name) = split(volume, to)?;
                volume.link(ino, dir, name).ok()?;
                volume.release(ino, 1);
            }
            Op::Unlink(path) => {
                let (dir, name) = split(volume, path)?;
                volume.unlink(&Caller::ROOT, dir, name).ok()?;
            }
            Op::UnlinkInUse(path) => {
                let (dir, name) = split(volume, path)?;
                let ino = volume.lookup(dir, name).ok()?.ino;
                volume.unlink(&Caller::ROOT, dir, name).ok()?;
                volume.attr(ino).expect("it is in use");
            }
            Op::NameAgain(path) => {
                let (dir, name) = split(volume, path)?;
                volume.link(nameless(volume).expect("one"), dir, name).expect("it gets a name");
            }
            Op::RemoveDir(path) => {
                let (dir, name) = split(volume, path)?;
                volume.remove_dir(&Caller::ROOT, dir, name).ok()?;
            }
            Op::Rename(from, to, mode) => {
                let ((from, name), (to, new)) = (split(volume, from)?, split(volume, to)?);
                volume.rename(&Caller::ROOT, from, name, to, new, mode).ok()?;
            }
            Op::Write(path, at, len) => {
                volume.write(&Caller::ROOT, find(volume, path)?, at, &bytes(len)).ok()?;
            }
            Op::Append(path, len) => {
                let ino = find(volume, path)?;
                let size = volume.attr(ino).ok()?.size;
                volume.write(&Caller::ROOT, ino, size, &bytes(len)).ok()?;
            }
            Op::Copy(from, to) => {
                let source = find(volume, from)?;
                let target = find(volume, to).or_else(|| make(to, NewKind::Regular))?;
                volume.copy(&Caller::ROOT, (source, 0), (target, 0), u64::MAX).ok()?;
            }
            Op::Truncate(path, size) => {
                set(volume, path, SetAttr { size: Some(size), ..SetAttr::default() })?;
            }
            Op::Allocate(path, at, len, mode) => {
                volume.allocate(&Caller::ROOT, find(volume, path)?, at, len, mode).ok()?;
            }
            Op::Chmod(path) => {
                let permissions = Some(0o600 + u32::from(serial % 8));
                set(volume, path, SetAttr { permissions, ..SetAttr::default() })?;
            }
            Op::Chown(path) => {
                let uid = Some(1000 + u32::from(serial));
                set(volume, path, SetAttr { uid, gid: uid, ..SetAttr::default() })?;
            }
            Op::SetXattr(path, len) => {
                let ino = find(volume, path)?;
                volume.set_xattr(&Caller::ROOT, ino, XATTR, &bytes(len), XattrMode::Any).ok()?;
            }
            Op::RemoveXattr(path) => volume.remove_xattr(find(volume, path)?, XATTR).ok()?,
            Op::Lookup(path) => {
                find(volume, path)?;
            }
            Op::Fsync(path) | Op::Fdatasync(path) => {
                let ino = find(volume, path)?;
                volume.sync_file(ino, matches!(self, Op::Fdatasync(_))).expect("fsync");
                return Some(Promise::File(ino));
            }
            Op::Sync => {
                volume.sync().expect("sync");
                return Some(Promise::Everything);
            }
            Op::WriteEarly => {
                volume.writer().background().write_early().expect("written");
            }
            Op::Regroup => {
                regroup(volume)?;
                return Some(Promise::Everything);
            }
            Op::MarkClean => {
                volume.writer().checkpoints().mark_clean().expect("checkpoint");
                return Some(Promise::Everything);
            }
            Op::Trim => {
                volume.admin().trim(0..u64::MAX, 0).expect("trimmed");
                return Some(Promise::Everything);
            }
            Op::Discard => {
                volume.writer().background().discard_freed().map(drop).expect("discarded")
            }
            Op::Grow => return grow(volume),
            Op::Scrub => {
                let found =
                    volume.admin().scrub(&mut |_| ControlFlow::Continue(())).expect("scrubbed");
                assert!(found.problems.is_empty(), "{:?}", found.problems);
            }
            Op::Tune => tune(volume, serial),
            Op::Mark => {
                Marks::of(volume).set(&mark_name(serial)).ok()?;
                return Some(Promise::Everything);
            }
            Op::Check => {
                let report = check_in_use(volume, true, &()).expect("checked");
                assert!(report.problems.is_empty(), "{:?}", report.problems);
                return Some(Promise::Everything);
            }
            Op::Checkpoint => {
                volume.writer().checkpoints().run().expect("checkpoint");
                return Some(Promise::Everything);
            }
        }
        Some(Promise::Nothing)
    }
}

/// Moves all files that can be moved.
pub fn regroup(volume: &Volume) -> Option<RegroupProgress> {
    let all = RegroupOptions { gain: 0, ..RegroupOptions::default() };
    let go_on = &mut |_: &RegroupProgress| ControlFlow::Continue(());
    volume.regroup(Scattered::Tree(InodeNo::ROOT), &all, go_on).ok()
}

/// Makes the volume larger, which writes all changes. Without space on the device, or if the last group would
/// be too short, the volume is unchanged.
fn grow(volume: &Volume) -> Option<Promise> {
    let superblock = volume.writer().superblock.get();
    let size_bytes = superblock.blocks * u64::from(superblock.block_bytes);
    let grown = volume.admin().grow(Some(size_bytes + GAIN_BYTES)).ok()?;
    (grown > size_bytes).then_some(Promise::Everything)
}

fn tune(volume: &Volume, serial: u8) {
    let errors = [ErrorsPolicy::Continue, ErrorsPolicy::RemountReadOnly];
    let changes = SetVolume {
        label: Some(vec![b'a' + serial % 26; 5]),
        uuid: Some([serial | 1; 16]),
        errors: Some(errors[usize::from(serial % 2)]),
        ..SetVolume::default()
    };
    volume.tune(&changes).expect("tuned");
}

fn set(volume: &Volume, path: Path, changes: SetAttr) -> Option<()> {
    volume.set_attr(&Caller::ROOT, find(volume, path)?, &changes).ok().map(drop)
}

/// The calls that make the initial state of every workload: tiny, small and large files, one with two names,
/// directories with and without entries, a symbolic link.
pub fn start() -> Vec<Op> {
    use Op::*;
    vec![
        MakeDir("d"),
        MakeDir("e"),
        MakeDir("d/s"),
        Make("d/f"),
        Write("d/f", 0, 300),
        Make("g"),
        Write("g", 0, 9000),
        Make("h"),
        Write("h", 0, 100),
        Link("h", "d/h"),
        Make("big"),
        Write("big", 0, 90_000),
        MakeLink("l", 20),
        Fill("d", 6, 200),
    ]
}

/// Every call, with every argument that makes a difference.
pub fn all() -> Vec<Op> {
    use AllocateMode::*;
    use Op::*;
    use RenameMode::*;
    let mut ops = vec![
        Make("n"),
        Make("d/n"),
        MakeDir("n"),
        MakeDir("d/n"),
        MakeLink("n", 30),
        MakeLink("d/n", 900),
        MakeFifo("e/n"),
        Unnamed("e/n"),
        Fill("e", 30, 400),
        Empty("d", 6),
        Link("d/f", "n"),
        Link("g", "e/n"),
        Link("h", "n"),
        Unlink("d/f"),
        Unlink("g"),
        Unlink("h"),
        Unlink("d/h"),
        Unlink("big"),
        Unlink("l"),
        Unlink("n"),
        RemoveDir("e"),
        RemoveDir("d/s"),
        Chmod("d/f"),
        Chown("g"),
        Chmod("d"),
        SetXattr("d/f", 40),
        SetXattr("g", 3000),
        SetXattr("d", 60),
        RemoveXattr("g"),
        Lookup("h"),
        Lookup("d/h"),
        Fsync("d/f"),
        Fsync("n"),
        Fsync("h"),
        Fdatasync("g"),
        Fdatasync("big"),
        Sync,
    ];
    let renames = [
        ("d/f", "n", Replace),
        ("d/f", "d/n", Replace),
        ("d/f", "g", Replace),
        ("g", "d/f", Replace),
        ("g", "h", Replace),
        ("h", "d/f", Replace),
        ("h", "e/n", Replace),
        ("n", "d/f", Replace),
        ("e", "d/s", Replace),
        ("e", "n", Replace),
        ("d", "e", Replace),
        ("d/s", "e/n", Replace),
        ("d", "e/n", Replace),
        ("g", "n", NoReplace),
        ("d/f", "g", Exchange),
        ("d", "e", Exchange),
        ("d/s", "g", Exchange),
        ("h", "big", Exchange),
    ];
    ops.extend(renames.map(|(from, to, mode)| Rename(from, to, mode)));
    for (path, len) in [("d/f", 300), ("g", 9000), ("h", 100), ("big", 90_000)] {
        ops.extend([
            Append(path, 50),
            Append(path, 6000),
            Write(path, len / 2 / 4096 * 4096, 4096),
            Truncate(path, len / 3),
            Truncate(path, len + 5000),
        ]);
    }
    ops.extend([
        Write("n", 0, 200),
        Write("n", 0, 5000),
        Write("big", 10_000, 50_000),
        Truncate("g", 0),
        Truncate("g", 200),
        Allocate("g", 4096, 4096, PunchHole),
        Allocate("big", 8192, 40_000, PunchHole),
        Allocate("d/f", 0, 20_000, Reserve),
        Allocate("g", 1000, 5000, ZeroRange { keep_size: true }),
        Allocate("big", 80_000, 30_000, ZeroRange { keep_size: false }),
        Allocate("g", 9000, 50_000, ReserveKeepSize),
        Copy("g", "n"),
        Copy("big", "d/n"),
        Copy("big", "g"),
        MarkClean,
        WriteEarly,
        Regroup,
        Make("d/f"),
        Make("g"),
        MakeLink("h", 900),
    ]);
    ops
}

/// Every operation on a volume in use that is not a call of a program, with its name.
pub const MAINTENANCE: [(&str, Op); 11] = [
    ("regroup", Op::Regroup),
    ("trim", Op::Trim),
    ("discard", Op::Discard),
    ("grow", Op::Grow),
    ("scrub", Op::Scrub),
    ("tune", Op::Tune),
    ("mark", Op::Mark),
    ("check", Op::Check),
    ("sync", Op::Sync),
    ("mark clean", Op::MarkClean),
    ("checkpoint", Op::Checkpoint),
];

/// Every call, and every operation on a volume in use.
pub fn all_with_maintenance() -> Vec<Op> {
    all().into_iter().chain(MAINTENANCE.map(|(_, op)| op)).collect()
}

/// A call for a long random workload.
pub fn random(ops: &[Op], random: &mut Random) -> Op {
    let names = ["n", "d/n", "e/n", "d/f", "g", "h", "d/h", "big", "l", "e/g", "d/g"];
    let dirs = ["d", "e", "d/s", "n", "e/s", "e/n"];
    let pick = |from: &[Path], random: &mut Random| from[random.below(from.len() as u64) as usize];
    let (one, two) = (pick(&names, random), pick(&names, random));
    let (dir, other_dir) = (pick(&dirs, random), pick(&dirs, random));
    let len = [0, 3, 300, 2000, 9000, 70_000][random.below(6) as usize];
    match random.below(21) {
        0..=3 => match ops[random.below(ops.len() as u64) as usize].clone() {
            Op::Rename(from, to, RenameMode::Exchange) => Op::Rename(from, to, RenameMode::Replace),
            op => op,
        },
        4 => Op::Make(one),
        5 => Op::Write(one, random.below(9000), len),
        6 => Op::Write(one, 0, len),
        7 => Op::Unlink(one),
        8..=10 => Op::Rename(one, two, RenameMode::Replace),
        11 => Op::Link(one, two),
        12 => Op::MakeDir(dir),
        13 => Op::Rename(dir, other_dir, RenameMode::Replace),
        14 => Op::RemoveDir(dir),
        15 | 16 => Op::Fsync(one),
        17 | 18 => Op::WriteEarly,
        19 => MAINTENANCE[random.below(MAINTENANCE.len() as u64) as usize].1.clone(),
        _ => Op::Truncate(one, random.below(12_000)),
    }
}
