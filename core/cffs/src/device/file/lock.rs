//! Locks on ranges of a file, and the processes that hold them.
//!
//! The locks are those of open file descriptions (`F_OFD_SETLK`). They are on the inode, so that the path, a
//! link, a bind mount or another mount namespace makes no difference. A lock for writing takes a descriptor
//! that is open for writing: a user who may only read the file cannot lock it as a writer.

use std::cmp::Ordering;
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use nix::errno::Errno;
use nix::fcntl::{FcntlArg, fcntl};
use nix::libc;

use super::Access;

/// A range of a file in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Span {
    pub(super) start: u64,
    /// `None` for everything up to the end of the file, even if it grows.
    pub(super) len: Option<u64>,
}

impl Span {
    /// The whole of a file.
    pub(super) const ALL: Span = Span { start: 0, len: None };

    /// The part of this range that begins `start` bytes into it and has at most `len` bytes.
    pub(super) fn part(self, start: u64, len: Option<u64>) -> Span {
        let left = self.len.map(|all| all.saturating_sub(start));
        let len = match (left, len) {
            (Some(left), Some(len)) => Some(left.min(len)),
            (left, len) => left.or(len),
        };
        Span { start: self.start.saturating_add(start), len }
    }

    pub(super) fn overlaps(self, other: Span) -> bool {
        let end = |span: Span| span.len.map_or(u64::MAX, |len| span.start.saturating_add(len));
        self.start < end(other) && other.start < end(self)
    }

    /// In the kernel's form, in which the length 0 means up to the end of the file.
    fn lock(self, kind: libc::c_int) -> libc::flock {
        libc::flock {
            l_type: kind as libc::c_short,
            l_whence: libc::SEEK_SET as libc::c_short,
            l_start: self.start.min(i64::MAX as u64) as i64,
            l_len: self.len.unwrap_or(0).min(i64::MAX as u64) as i64,
            l_pid: 0,
        }
    }
}

/// How another program uses a file that it has locked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Use {
    Reads,
    Writes,
}

/// Locks a range until the file is closed, shared for reading and exclusively for writing. Does not wait: if
/// another lock conflicts, returns how its holder uses the file.
pub(super) fn lock(file: &File, span: Span, access: Access) -> io::Result<Option<Use>> {
    let kind = match access {
        Access::ReadOnly => libc::F_RDLCK,
        Access::ReadWrite => libc::F_WRLCK,
    };
    match fcntl(file, FcntlArg::F_OFD_SETLK(&span.lock(kind))) {
        Ok(_) => Ok(None),
        Err(Errno::EAGAIN | Errno::EACCES) if is_written(file, span)? => Ok(Some(Use::Writes)),
        Err(Errno::EAGAIN | Errno::EACCES) => Ok(Some(Use::Reads)),
        Err(errno) => Err(errno.into()),
    }
}

/// Releases all locks that this open file has in a range.
pub(super) fn unlock(file: &File, span: Span) -> io::Result<()> {
    fcntl(file, FcntlArg::F_OFD_SETLK(&span.lock(libc::F_UNLCK)))?;
    Ok(())
}

/// Whether another open file has a lock for writing in the range.
fn is_written(file: &File, span: Span) -> io::Result<bool> {
    let mut found = span.lock(libc::F_RDLCK);
    fcntl(file, FcntlArg::F_OFD_GETLK(&mut found))?;
    Ok(libc::c_int::from(found.l_type) != libc::F_UNLCK)
}

/// A process that has a device open.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Process {
    /// Its number, as this process sees it.
    pub pid: u32,
    /// The name of its program.
    pub name: String,
    /// The user that it runs as.
    pub uid: u32,
    /// Where its lock begins, compared with the device. Elsewhere, it has another volume open: after the
    /// beginning, one in a part of the device, and before it, one of which the device is a part.
    pub begins: Ordering,
}

impl Process {
    /// Whether it has another volume open, in a part of the device or around it.
    pub fn is_elsewhere(&self) -> bool {
        self.begins.is_ne()
    }
}

impl std::fmt::Display for Process {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "process {} ({}, user {})", self.pid, self.name, self.uid)
    }
}

/// The process that has a lock of this kind in a range of the file, if the system shows it: users see their
/// own processes, root sees all. Of several, one whose lock begins where the range does.
pub(super) fn holder(file: &File, span: Span, kind: Use) -> Option<Process> {
    let wanted = file.metadata().ok()?;
    let locked = |process: fs::DirEntry| {
        let locked = locked_by(&process.path(), &wanted, span, kind).unwrap_or_default();
        locked.into_iter().map(move |locked| (process.path(), locked))
    };
    let all = fs::read_dir("/proc").ok()?.flatten().flat_map(locked);
    let (process, locked) = all.min_by_key(|(_, locked)| locked.start != span.start)?;
    let pid = process.file_name()?.to_str()?.parse().ok()?;
    let name = fs::read(process.join("comm")).unwrap_or_default();
    let name = name.trim_ascii().escape_ascii().to_string();
    let uid = process.metadata().ok()?.uid();
    Some(Process { pid, name, uid, begins: locked.start.cmp(&span.start) })
}

/// The ranges that a process has locked, and that overlap this one.
fn locked_by(process: &Path, wanted: &fs::Metadata, span: Span, kind: Use) -> Option<Vec<Span>> {
    process.file_name()?.to_str()?.parse::<u32>().ok()?;
    let mut all = Vec::new();
    for descriptor in fs::read_dir(process.join("fd")).ok()?.flatten() {
        let info = process.join("fdinfo").join(descriptor.file_name());
        let Ok(info) = fs::read_to_string(info) else { continue };
        let locked = info.lines().filter_map(|line| locked_range(line, kind));
        let locked: Vec<Span> = locked.filter(|locked| locked.overlaps(span)).collect();
        // A file without such a lock is not accessed: its file system may not answer.
        let is_wanted = || {
            let open = fs::metadata(descriptor.path());
            open.is_ok_and(|open| (open.dev(), open.ino()) == (wanted.dev(), wanted.ino()))
        };
        if !locked.is_empty() && is_wanted() {
            all.extend(locked);
        }
    }
    Some(all)
}

/// A line is `lock:  1: OFDLCK ADVISORY  WRITE -1 fe:00:1234 0 EOF`, with the first and the last byte.
fn locked_range(line: &str, kind: Use) -> Option<Span> {
    let word = match kind {
        Use::Reads => "READ",
        Use::Writes => "WRITE",
    };
    let mut words = line.split_whitespace();
    let is_record_lock = |word: &str| matches!(word, "OFDLCK" | "POSIX");
    if words.next() != Some("lock:") || !words.any(is_record_lock) || !words.any(|it| it == word) {
        return None;
    }
    let start: u64 = words.nth(2)?.parse().ok()?;
    let last: Option<u64> = words.next()?.parse().ok();
    Some(Span { start, len: last.map(|last| last.saturating_sub(start).saturating_add(1)) })
}
