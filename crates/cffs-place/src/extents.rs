//! Where the contents of a file lie.

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

/// A piece of a file in one run on the device; all in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Extent {
    /// Where it begins in the file.
    pub logical: u64,
    /// Where it begins on the device. On btrfs an address that the file system maps to devices.
    pub physical: u64,
    /// How long it is.
    pub length: u64,
    /// How it is kept.
    pub kind: Kind,
    /// Whether other files, snapshots or clones refer to it too.
    pub is_shared: bool,
}

/// How the bytes of an extent are kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// In blocks of their own.
    Plain,
    /// In the file system's metadata, beside the inode.
    Inline,
    /// Set aside and not written: it reads as zeros without a request.
    Unwritten,
    /// Compressed, encrypted, or without a place yet.
    Opaque,
}

impl Extent {
    /// Where it ends on the device.
    pub fn physical_end(&self) -> u64 {
        self.physical + self.length
    }
}

/// The extents of a file, in the order of the file; adjacent ones are one. With `sync`, contents that
/// have no place yet get one first.
pub fn of(file: &File, sync: bool) -> io::Result<Vec<Extent>> {
    let mut extents: Vec<Extent> = Vec::new();
    let mut start = 0;
    loop {
        let batch = sys::fiemap(file, start, sync && start == 0)?;
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
        // A file system that gets no further would be asked for ever.
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
