//! The account of the memory that callers can make a volume take.
//!
//! What grows with what callers do is charged here, by [`Kind`]; so the whole is bounded by the
//! options, whatever callers do, and `cffs stats` shows it. Two pressures follow from the account, each one
//! for all kinds:
//!
//! - What is known of inodes ([`Memory::inode_bytes`]) is a cache: beyond its part of `cache_bytes`
//!   the vnodes go that equal the device and are not in use, with all that hangs on them.
//! - What the device does not have yet ([`Memory::unwritten_bytes`]) cannot go. Beyond half of what it may
//!   take (nearly all, if much is read meanwhile) the background writes an epoch, and beyond all of it
//!   changes wait for one.
//!
//! Invariants: what an object is charged with goes off the account when it is dropped ([`Charge`]),
//! so that after the last one the account is empty.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// What memory is used for. Those of the first group are charged; the others are tables that never
/// grow beyond their bounds, and are measured when somebody asks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
    /// Vnodes, with contents that lie in the inode.
    Inodes,
    /// Extended attributes of vnodes.
    Attributes,
    /// Extents of files that have many.
    Extents,
    /// Changed pages that no epoch has taken.
    Pages,
    /// What is being written: pages in flight and what an epoch made beside them.
    InFlight,
    /// Clean blocks: the buffer cache.
    Blocks,
    /// Names that were found lately.
    Names,
    /// References of the front end, one for each inode that the kernel remembers.
    References,
    /// Free-space bitmaps of cylinder groups.
    Bitmaps,
    /// What changed since the last clean point.
    BusyLog,
}

impl Kind {
    /// All of them.
    pub const ALL: [Kind; 10] = [
        Kind::Inodes,
        Kind::Attributes,
        Kind::Extents,
        Kind::Pages,
        Kind::InFlight,
        Kind::Blocks,
        Kind::Names,
        Kind::References,
        Kind::Bitmaps,
        Kind::BusyLog,
    ];

    /// Its name, for people and programs.
    pub fn name(self) -> &'static str {
        match self {
            Kind::Inodes => "inodes",
            Kind::Attributes => "attributes",
            Kind::Extents => "extents",
            Kind::Pages => "pages",
            Kind::InFlight => "in_flight",
            Kind::Blocks => "blocks",
            Kind::Names => "names",
            Kind::References => "references",
            Kind::Bitmaps => "bitmaps",
            Kind::BusyLog => "busy_log",
        }
    }

    /// How many are charged.
    const CHARGED: usize = 5;
}

/// The part of `cache_bytes` that what is known of inodes may take besides.
const INODES_CACHE_PART: u64 = 4;
/// What it may take at least. Schedules are explored with inodes that come and go.
const INODE_BYTES_MIN: u64 = if cfg!(feature = "schedules") { 4 << 10 } else { 1 << 20 };
/// One file's extents count for at most this part of what changes may take: otherwise each change of
/// a single file with very many of them would ask for an epoch.
const EXTENTS_PART: u64 = 16;
/// What a changed inode takes until it is written, about, with its share of a sector.
const CHANGED_INODE_BYTES: u64 = 2 << 10;

/// What one vnode takes, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Weight {
    /// The vnode itself, with contents in the inode.
    pub inode: u64,
    /// Its extended attributes.
    pub attributes: u64,
    /// Its extents, if they are many.
    pub extents: u64,
    /// Whether it differs from the device.
    pub is_changed: bool,
}

/// The memory that a volume takes for its callers, in bytes.
#[derive(Debug)]
pub struct Memory {
    charged: [AtomicU64; Kind::CHARGED],
    /// What of the attributes and extents belongs to inodes that differ from the device.
    unwritten: AtomicU64,
    /// Inodes that wait for an epoch.
    queued: AtomicU64,
    inode_bytes_max: u64,
    unwritten_bytes_max: u64,
}

impl Memory {
    /// An empty account for a volume with so much cache, and changes of so many bytes at most.
    pub fn new(cache_bytes: u64, unwritten_bytes_max: u64) -> Memory {
        Memory {
            charged: Default::default(),
            unwritten: AtomicU64::new(0),
            queued: AtomicU64::new(0),
            inode_bytes_max: (cache_bytes / INODES_CACHE_PART).max(INODE_BYTES_MIN),
            unwritten_bytes_max,
        }
    }

    /// What a kind is charged with; 0 for one that is measured.
    pub fn charged(&self, kind: Kind) -> u64 {
        self.charged.get(kind as usize).map_or(0, |bytes| bytes.load(Ordering::Relaxed))
    }

    /// Charges more bytes of a kind.
    pub fn add(&self, kind: Kind, bytes: u64) {
        if let Some(charged) = self.charged.get(kind as usize) {
            charged.fetch_add(bytes, Ordering::Relaxed);
        }
    }

    /// Takes bytes of a kind off the account.
    pub fn sub(&self, kind: Kind, bytes: u64) {
        if let Some(charged) = self.charged.get(kind as usize) {
            let before = charged.fetch_sub(bytes, Ordering::Relaxed);
            debug_assert!(before >= bytes, "{bytes} bytes of {kind:?} were never charged");
        }
    }

    /// Notes that an inode waits for an epoch.
    pub fn queued(&self) {
        self.queued.fetch_add(1, Ordering::Relaxed);
    }

    /// Notes that so many inodes do not wait any more.
    pub fn taken(&self, inodes: u64) {
        self.queued.fetch_sub(inodes, Ordering::Relaxed);
    }

    /// How many inodes wait for an epoch.
    pub fn queue_len(&self) -> u64 {
        self.queued.load(Ordering::Relaxed)
    }

    /// What is known of inodes.
    pub fn inode_bytes(&self) -> u64 {
        [Kind::Inodes, Kind::Attributes, Kind::Extents].map(|kind| self.charged(kind)).iter().sum()
    }

    /// What it may take before what is not in use goes.
    pub fn inode_bytes_max(&self) -> u64 {
        self.inode_bytes_max
    }

    /// What changes may take before they wait for an epoch.
    pub fn unwritten_bytes_max(&self) -> u64 {
        self.unwritten_bytes_max
    }

    /// What changes take that no epoch has taken over: pages or inodes, of which the larger counts,
    /// and what hangs on inodes.
    pub fn unwritten_bytes(&self) -> u64 {
        let inodes = self.queue_len() * CHANGED_INODE_BYTES;
        self.charged(Kind::Pages).max(inodes) + self.unwritten.load(Ordering::Relaxed)
    }

    /// Whether changes take so much that an epoch should be written.
    pub fn is_filling(&self) -> bool {
        self.unwritten_bytes() > self.unwritten_bytes_max / 2
    }

    /// Whether changes take nearly all that they may: what comes until an epoch has taken them over fits.
    pub fn is_nearly_full(&self) -> bool {
        self.unwritten_bytes() > self.unwritten_bytes_max / 8 * 7
    }

    /// Whether changes take all that they may.
    pub fn is_full(&self) -> bool {
        self.unwritten_bytes() > self.unwritten_bytes_max
    }

    /// What a weight counts for among what waits for an epoch.
    fn unwritten_of(&self, weight: &Weight) -> u64 {
        let extents = weight.extents.min(self.unwritten_bytes_max / EXTENTS_PART);
        // So much each of them counts for already.
        let more = (weight.attributes + extents).saturating_sub(CHANGED_INODE_BYTES);
        if weight.is_changed { more } else { 0 }
    }

    /// Changes the account from one weight of a vnode to another.
    fn replace(&self, before: &Weight, after: &Weight) {
        let change = |counter: &AtomicU64, before: u64, after: u64| {
            if before != after {
                counter.fetch_add(after.wrapping_sub(before), Ordering::Relaxed);
            }
        };
        let of = |kind: Kind| &self.charged[kind as usize];
        change(of(Kind::Inodes), before.inode, after.inode);
        change(of(Kind::Attributes), before.attributes, after.attributes);
        change(of(Kind::Extents), before.extents, after.extents);
        change(&self.unwritten, self.unwritten_of(before), self.unwritten_of(after));
    }
}

/// What one vnode is charged with; it goes off the account with the vnode.
#[derive(Debug, Default)]
pub struct Charge {
    account: Option<Arc<Memory>>,
    weight: Weight,
}

impl Charge {
    /// Opens the account: until then nothing is charged.
    pub fn open(&mut self, account: &Arc<Memory>) {
        debug_assert!(self.account.is_none(), "a vnode has one account");
        (self.account, self.weight) = (Some(account.clone()), Weight::default());
    }

    /// Charges this weight instead of the one before; whether it grew.
    pub fn set(&mut self, weight: Weight) -> bool {
        let before = std::mem::replace(&mut self.weight, weight);
        match &self.account {
            Some(account) if before != weight => account.replace(&before, &weight),
            _ => return false,
        }
        let sum = |weight: &Weight| weight.inode + weight.attributes + weight.extents;
        sum(&weight) > sum(&before)
    }
}

impl Drop for Charge {
    fn drop(&mut self) {
        self.set(Weight::default());
    }
}

/// Bytes of a kind that are charged as long as this lives.
#[derive(Debug)]
pub struct Held {
    account: Arc<Memory>,
    kind: Kind,
    bytes: u64,
}

impl Held {
    /// Charges bytes.
    pub fn new(account: &Arc<Memory>, kind: Kind, bytes: u64) -> Held {
        account.add(kind, bytes);
        Held { account: account.clone(), kind, bytes }
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        self.account.sub(self.kind, self.bytes);
    }
}

#[cfg(test)]
mod tests;
