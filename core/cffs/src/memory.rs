//! The account of the memory that callers can cause a volume to use.
//!
//! Memory that grows with the calls is charged here, by [`Kind`]; so the total is bounded by the options,
//! whatever callers do, and `cffs stats` shows it. The account has two limits, each for all kinds:
//!
//! - Inodes in memory ([`Memory::inode_bytes`]) are a cache: beyond its part of `cache_bytes`, vnodes that
//!   equal the device and are not in use are evicted, with all that belongs to them.
//! - Unwritten changes ([`Memory::unwritten_bytes`]) cannot be evicted. Beyond half of their limit (nearly
//!   all of it, if much is read meanwhile) the background writes an epoch, and beyond the limit changes wait
//!   for one.
//!
//! Invariant: the charge of an object is released when it is dropped ([`Charge`]), so after the last one the
//! account is empty.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// The uses of memory. Those of the first group are charged; the others are tables that never grow beyond
/// their bounds, and are measured on request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
    /// Vnodes, with contents that are in the inode.
    Inodes,
    /// Extended attributes of vnodes.
    Attributes,
    /// Extents of files that have many.
    Extents,
    /// Changed pages that no epoch has taken.
    Pages,
    /// An epoch in flight: its pages, and the blocks that it encoded.
    InFlight,
    /// Clean blocks: the buffer cache.
    Blocks,
    /// Names that were found lately.
    Names,
    /// References of the front end, one for each inode that the kernel remembers.
    References,
    /// Free-space bitmaps of cylinder groups.
    Bitmaps,
    /// Records of changes since the last checkpoint.
    IntentLog,
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
        Kind::IntentLog,
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
            Kind::IntentLog => "intent_log",
        }
    }

    /// How many are charged.
    const CHARGED: usize = 5;
}

/// The additional memory for inodes, as a part of `cache_bytes`.
const INODES_CACHE_PART: u64 = 4;
/// The lower bound of the limit for inodes. Schedules are explored with inodes that come and go.
const INODE_BYTES_MIN: u64 = if cfg!(feature = "schedules") { 4 << 10 } else { 1 << 20 };
/// One file's extents count for at most this part of what changes may take: otherwise each change of a single
/// file with very many extents would request an epoch.
const EXTENTS_PART: u64 = 16;
/// About the bytes that a changed inode takes until it is written, with its share of a sector.
const CHANGED_INODE_BYTES: u64 = 2 << 10;

/// The memory of one vnode, in bytes.
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
    /// The part of the attributes and extents that belongs to inodes that differ from the device.
    unwritten: AtomicU64,
    /// Inodes that wait for an epoch.
    queued: AtomicU64,
    inode_bytes_max: u64,
    unwritten_bytes_max: u64,
}

impl Memory {
    /// An empty account for a volume with this much cache, and at most this many bytes of changes.
    pub fn new(cache_bytes: u64, unwritten_bytes_max: u64) -> Memory {
        Memory {
            charged: Default::default(),
            unwritten: AtomicU64::new(0),
            queued: AtomicU64::new(0),
            inode_bytes_max: (cache_bytes / INODES_CACHE_PART).max(INODE_BYTES_MIN),
            unwritten_bytes_max,
        }
    }

    /// The charge of a kind; 0 for one that is measured.
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

    /// Notes that this many inodes no longer wait.
    pub fn taken(&self, inodes: u64) {
        self.queued.fetch_sub(inodes, Ordering::Relaxed);
    }

    /// How many inodes wait for an epoch.
    pub fn queue_len(&self) -> u64 {
        self.queued.load(Ordering::Relaxed)
    }

    /// The memory of inodes.
    pub fn inode_bytes(&self) -> u64 {
        [Kind::Inodes, Kind::Attributes, Kind::Extents].map(|kind| self.charged(kind)).iter().sum()
    }

    /// The limit beyond which unused inodes are evicted.
    pub fn inode_bytes_max(&self) -> u64 {
        self.inode_bytes_max
    }

    /// The limit beyond which changes wait for an epoch.
    pub fn unwritten_bytes_max(&self) -> u64 {
        self.unwritten_bytes_max
    }

    /// The memory of changes that no epoch has taken over: the larger of pages and inodes, and the attributes
    /// and extents of inodes.
    pub fn unwritten_bytes(&self) -> u64 {
        let inodes = self.queue_len() * CHANGED_INODE_BYTES;
        self.charged(Kind::Pages).max(inodes) + self.unwritten.load(Ordering::Relaxed)
    }

    /// Whether changes take so much that an epoch should be written.
    pub fn is_filling(&self) -> bool {
        self.unwritten_bytes() > self.unwritten_bytes_max / 2
    }

    /// Whether changes take nearly their limit; the rest suffices until an epoch takes them over.
    pub fn is_nearly_full(&self) -> bool {
        self.unwritten_bytes() > self.unwritten_bytes_max / 8 * 7
    }

    /// Whether changes take all that they may.
    pub fn is_full(&self) -> bool {
        self.unwritten_bytes() > self.unwritten_bytes_max
    }

    /// The part of a weight that counts as unwritten.
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

/// The charge of one vnode, which is released with it.
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
