//! The places of a file's contents.

use std::fs::File;
use std::io;

use crate::sys;

const LAST: u32 = 0x1;
const UNKNOWN: u32 = 0x2;
const DELALLOC: u32 = 0x4;
const ENCODED: u32 = 0x8;
const NOT_ALIGNED: u32 = 0x100;
const INLINE: u32 = 0x200;
const TAIL: u32 = 0x400;
const UNWRITTEN: u32 = 0x800;
const SHARED: u32 = 0x2000;

/// A run of a file that is contiguous on the device; all in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Extent {
    /// Its offset in the file.
    pub logical: u64,
    /// Its offset on the device; on btrfs a logical address, which the file system maps to devices.
    pub physical: u64,
    pub length: u64,
    pub kind: Kind,
    /// Whether other files, snapshots or clones refer to it too.
    pub is_shared: bool,
}

/// How the bytes of an extent are stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// In data blocks.
    Plain,
    /// In the file system's metadata, together with the inode.
    Inline,
    /// Allocated but not written: reads as zeros without a request.
    Unwritten,
    /// Compressed, encrypted, or not yet allocated.
    Opaque,
}

impl Extent {
    pub fn physical_end(&self) -> u64 {
        self.physical + self.length
    }
}

/// The extents of a file, in file order; adjacent ones are joined. With `sync`, contents without blocks are
/// written back first.
pub fn of(file: &File, sync: bool) -> io::Result<Vec<Extent>> {
    from(file, 0, sync)
}

/// The extents of a file from an offset on; the first one may begin before it.
pub fn from(file: &File, offset: u64, sync: bool) -> io::Result<Vec<Extent>> {
    let mut extents: Vec<Extent> = Vec::new();
    let mut start = offset;
    loop {
        let batch = sys::fiemap(file, start, sync && start == offset)?;
        for raw in &batch {
            add(
                &mut extents,
                Extent {
                    logical: raw.logical,
                    physical: raw.physical,
                    length: raw.length,
                    kind: kind(raw.flags),
                    is_shared: raw.flags & SHARED != 0,
                },
            );
        }
        let Some(last) = batch.last() else { return Ok(extents) };
        let next = last.logical.saturating_add(last.length);
        // Otherwise this would loop forever on a file system that makes no progress.
        if last.flags & LAST != 0 || next <= start {
            return Ok(extents);
        }
        start = next;
    }
}

fn kind(flags: u32) -> Kind {
    if flags & (INLINE | TAIL) != 0 {
        Kind::Inline
    } else if flags & UNWRITTEN != 0 {
        Kind::Unwritten
    } else if flags & (UNKNOWN | DELALLOC | ENCODED | NOT_ALIGNED) != 0 {
        Kind::Opaque
    } else {
        Kind::Plain
    }
}

fn add(extents: &mut Vec<Extent>, next: Extent) {
    if let Some(last) = extents.last_mut() {
        let goes_on = last.logical + last.length == next.logical
            && last.physical_end() == next.physical
            && (last.kind, last.is_shared) == (next.kind, next.is_shared);
        if goes_on && next.kind == Kind::Plain {
            last.length += next.length;
            return;
        }
    }
    extents.push(next);
}
