//! The POSIX facade: [`Volume`], which every front end calls.
//!
//! Offers the operations of a UNIX file system on an open volume, by inode number and name, from
//! any number of threads. Stands on all layers below. Errno is mapped here and only here
//! ([`errno()`]).
//!
//! Invariants: a change takes the gate for reading, an epoch's start and a change of two
//! directories take it for writing, a pure read does not take it; so an epoch starts between
//! changes, and no reader waits for a write to the device. After a failed write of metadata the
//! volume is latched: it serves reads and refuses changes.
//!
//! Permissions are the front end's to check. So is the lifetime of an inode: each function that
//! returns the [`Attr`] of a named file takes one reference on the inode, which keeps the inode
//! usable when its last name goes, until [`Volume::release`].
//!
//! # Errors
//!
//! Functions document the errors of their own by errno, which [`errno()`] gives for each [`Error`].
//! Beside these:
//!
//! | of | errno | when |
//! | --- | --- | --- |
//! | the device | that of the device, or `EIO` | a request to the device fails ([`Error::Io`]) |
//! | | `EUCLEAN` | what is read contradicts the format ([`Error::Corruption`]) |
//! | reading | those of the device | |
//! | | `ESTALE` | no file has the inode number, or the volume is closed ([`Error::Stale`]) |
//! | changes | those of reading | |
//! | | `EROFS` | the volume was opened read-only, or refuses changes since a write failed or damage was met ([`Error::ReadOnly`], [`Error::Latched`], [`Error::Damaged`]) |
//! | | `ENOSPC` | there is no space, after what earlier changes freed has been waited for ([`Error::NoSpace`]) |
//! | | `EAGAIN` | other threads keep making changes that have to be on the device before this one can be made ([`Error::EpochNeeded`]) |
//!
//! A change that fails has changed nothing, unless the function says otherwise.

#![warn(clippy::missing_errors_doc)]

mod acl;
mod attributes;
mod clean;
mod copy;
mod damage;
mod data;
mod discard;
mod early;
mod epoch;
pub mod errno;
mod explain;
mod freed;
mod fsync;
mod grow;
mod handover;
mod keys;
pub mod mark;
mod names;
mod placing;
mod prepare;
mod progress;
mod protect;
mod references;
mod regroup;
mod reserve;
mod scrub;
mod seal;
mod throttle;
mod tune;
pub mod types;
mod xattr;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;

pub use discard::Trimmed;
pub use errno::errno;
pub use explain::{Piece, Placement};
pub use handover::Handover;
pub use protect::Protection;
pub use regroup::{IdleRegrouping, RegroupOptions, RegroupProgress, Scattered};
pub use reserve::AsUser;
pub use scrub::ScrubProgress;
pub use tune::SetVolume;
pub use types::*;

use crate::alloc::Spender;
use crate::cache::BufferCache;
use crate::clock::Clock;
use crate::device::{BlockDevice, LogStats};
use crate::error::{Error, Result};
use crate::format::superblock::{Incompat, SUPERBLOCK_BYTES, State};
use crate::format::{Layout, Superblock};
pub use crate::inode::Fill as BusyLogFill;
use crate::inode::{Busy, Locked, Store, Vnode};
use crate::lock::{self, Rank};
use crate::log;
use crate::memory::{Kind, Memory};
use crate::namespace::Namespace;
use crate::readahead::ReadAhead;
use crate::trace::{OpKind, Operation, Recorder};
use crate::tuning::{self, Tuning};
use crate::units::{EpochNo, InodeNo};
use damage::DamageRecord;
use references::References;
use reserve::ReserveUsers;
use throttle::Throttle;

/// Names that are kept at hand, per MiB of cache.
const NAMES_PER_MIB: u64 = 256;

/// Epochs that one call waits for before it fails; it takes one or two without other threads.
const EPOCHS_FORCED_MAX: u32 = 64;

/// What a volume did since it was opened, and what it holds in memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// Blocks that were asked for and in memory.
    pub cache_hits: u64,
    /// Blocks that were asked for and not in memory.
    pub cache_misses: u64,
    /// Read requests to the device.
    pub device_reads: u64,
    /// Bytes read from the device.
    pub device_read_bytes: u64,
    /// Write requests to the device.
    pub device_writes: u64,
    /// Bytes written to the device.
    pub device_written_bytes: u64,
    /// Barriers and syncs of the device.
    pub device_syncs: u64,
    /// Discards that were sent to the device.
    pub device_discards: u64,
    /// Bytes discarded.
    pub device_discarded_bytes: u64,
    /// Epochs that went to the device.
    pub epochs: u64,
    /// Epochs that were ended early because the order of an operation needed it.
    pub epochs_forced: u64,
    /// Writes of contents ahead of their epoch.
    pub early_writes: u64,
    /// Clean points that were reached while the volume was open.
    pub clean_points: u64,
    /// Vnodes in memory.
    pub vnodes: u64,
    /// Bytes of changed pages in memory.
    pub dirty_bytes: u64,
    /// Calls: lookups of names.
    pub lookups: u64,
    /// Calls: files made.
    pub creates: u64,
    /// Calls: names removed.
    pub removes: u64,
    /// Calls: names changed.
    pub renames: u64,
    /// Calls: reads of contents.
    pub reads: u64,
    /// Calls: writes of contents.
    pub writes: u64,
    /// Calls: reads of directories.
    pub dir_reads: u64,
    /// Calls: fsync and the like.
    pub syncs: u64,
    /// What the stable log did, if the volume has one.
    pub log: Option<LogStats>,
}

/// What one kind of data takes in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemoryUse {
    /// What it is.
    pub kind: Kind,
    /// What it takes, in bytes, about.
    pub bytes: u64,
    /// What it takes at most; `None` if that follows from the volume or from the kernel. Inodes,
    /// attributes and extents have one limit together.
    pub bytes_max: Option<u64>,
}

#[derive(Default)]
struct Calls {
    lookups: AtomicU64,
    creates: AtomicU64,
    removes: AtomicU64,
    renames: AtomicU64,
    reads: AtomicU64,
    writes: AtomicU64,
    dir_reads: AtomicU64,
    syncs: AtomicU64,
    epochs: AtomicU64,
    epochs_forced: AtomicU64,
    early_writes: AtomicU64,
    clean_points: AtomicU64,
}

fn count(counter: &AtomicU64) {
    counter.fetch_add(1, Ordering::Relaxed);
}

/// An open volume.
pub struct Volume {
    names: Namespace,
    options: OpenOptions,
    superblock: Mutex<Superblock>,
    gate: lock::RwLock<()>,
    epochs: lock::Mutex<progress::Progress>,
    callers: fsync::Callers,
    throttle: Throttle,
    references: References,
    reserve: ReserveUsers,
    readahead: ReadAhead,
    /// Whether any file may be protected.
    protects: AtomicBool,
    latched: Mutex<Option<String>>,
    /// Whether the epoch that failed had changes in it.
    loses_changes: AtomicBool,
    /// The device has everything that was changed before.
    durable_until: Mutex<Instant>,
    damage: DamageRecord,
    refuses_changes: AtomicBool,
    closed: AtomicBool,
    calls: Calls,
}

/// Reads the superblock from the start of a device.
///
/// # Errors
///
/// [`Error::Unsupported`] if the device is too short for the volume, or for any;
/// [`Error::Corruption`] if there is no superblock, or one that contradicts the format;
/// [`Error::Io`] if the device cannot be read.
pub fn read_superblock(device: &dyn BlockDevice) -> Result<Superblock> {
    let geometry = device.geometry();
    let len = (geometry.sector_bytes as usize).max(SUPERBLOCK_BYTES);
    if geometry.size_bytes < len as u64 {
        let what = format!("{} bytes are no C-FFS volume: too few", geometry.size_bytes);
        return Err(Error::Unsupported(what));
    }
    let mut bytes = vec![0; len];
    device.read_at(0, &mut bytes)?;
    let superblock = Superblock::decode(&bytes, 0)?;
    let size = superblock.blocks * u64::from(superblock.block_bytes);
    if size > geometry.size_bytes {
        return Err(Error::Unsupported(format!(
            "the volume has {size} bytes, the device only {}: it was cut off; restore all of it",
            geometry.size_bytes
        )));
    }
    Ok(superblock)
}

impl Volume {
    /// Opens the volume on a device.
    ///
    /// For writing, the volume must have been left clean, or been recovered (see
    /// [`crate::open()`]); read-only, any volume is served as far as it can be read.
    ///
    /// # Errors
    ///
    /// [`Error::InUse`] if another process has it open for writing; [`Error::Unsupported`] if it
    /// has features that this program does not know, or, for writing, was not left clean; those of
    /// [`read_superblock`]; [`Error::Corruption`] if what leads to the root directory and to the
    /// tables is damaged.
    pub fn open(
        device: Arc<dyn BlockDevice>,
        clock: Arc<dyn Clock>,
        mut options: OpenOptions,
    ) -> Result<Volume> {
        let is_log_optional = options.read_only || options.stable == StableLog::None;
        let device = log::attach(device, is_log_optional)?;
        let mut superblock = match &options.host {
            Some(host) if !options.read_only => {
                mark::claim(&*device, &**host, clock.now(), options.take_over)?
            }
            _ => read_superblock(&*device)?,
        };
        if options.host.is_none() {
            superblock.holder = None;
        }
        if !options.read_only {
            superblock.check_writable()?;
            if superblock.state != State::Clean {
                let what = "the volume was not left clean; run cffs fsck on it";
                return Err(Error::Unsupported(what.into()));
            }
            if options.stable != StableLog::On {
                device.stop_log()?;
            }
        }
        // Each time the volume is opened, epochs count on from a new multiple of 2^32, so that
        // no number is used twice, whatever a crash lost.
        superblock.epoch = (superblock.epoch >> 32).wrapping_add(1) << 32;
        let layout = Layout::new(&superblock);
        options.recorder.set_log_area(log::area_bytes(&superblock));
        let reserve = superblock.reserve;
        let protects = superblock.incompat.contains(Incompat::PROTECTION);
        options.discard |= device.wants_discards();
        let tuning = Tuning::new(tuning::Device {
            break_even_bytes: options.break_even_bytes,
            request_bytes_max: device.longest_request(),
            cache_bytes: options.cache_bytes,
        });
        let groups = superblock.policy.groups();
        let cache =
            Arc::new(BufferCache::new(device, layout, tuning, groups, options.waiter.clone()));
        let memory = Arc::new(Memory::new(options.cache_bytes, options.dirty_bytes_max));
        let names_max = ((options.cache_bytes >> 20).max(1) * NAMES_PER_MIB) as usize;
        let store = Store::open(cache, &superblock, clock, memory)?;
        let done = EpochNo(store.epoch().0.saturating_sub(1));
        let throttle = Throttle::new(options.early_bytes);
        let volume = Volume {
            names: Namespace::new(store, names_max),
            refuses_changes: AtomicBool::new(options.read_only),
            damage: DamageRecord::new(&superblock, options.errors),
            options,
            superblock: Mutex::new(superblock),
            gate: lock::RwLock::new(Rank::Gate, ()),
            epochs: lock::Mutex::new(Rank::Epochs, progress::Progress::new(done)),
            callers: fsync::Callers::new(done, tuning.writing.group_commit_wait_max),
            throttle,
            references: References::default(),
            reserve: ReserveUsers::new(reserve),
            readahead: ReadAhead::new(&tuning),
            protects: AtomicBool::new(protects),
            latched: Mutex::new(None),
            loses_changes: AtomicBool::new(false),
            durable_until: Mutex::new(Instant::now()),
            closed: AtomicBool::new(false),
            calls: Calls::default(),
        };
        if !volume.options.read_only {
            volume.mark_mounted()?;
            let store = volume.store();
            store.alloc.fill_pool()?;
            store.cache.set_horizon(store.alloc.end_of_used()?);
        }
        Ok(volume)
    }

    /// Begins an operation on a file, for a recording of what operations cause.
    fn enter(&self, kind: OpKind, ino: InodeNo) -> Operation<'_> {
        self.options.recorder.enter(kind, ino)
    }

    /// Begins an operation on the volume.
    fn enter_volume(&self, kind: OpKind) -> Operation<'_> {
        self.enter(kind, InodeNo::ROOT)
    }

    /// What records operations and the requests that they cause.
    pub fn recorder(&self) -> &Recorder {
        &self.options.recorder
    }

    fn store(&self) -> &Store {
        &self.names.store
    }

    /// The superblock as of now.
    pub fn superblock(&self) -> Superblock {
        Superblock { damage: self.damage.get(), ..self.superblock.lock().clone() }
    }

    /// Why the volume refuses changes, if a failed write is the reason.
    pub fn latched(&self) -> Option<String> {
        self.latched.lock().clone()
    }

    /// If changes are lost because a write failed, how old the oldest of them may be: what was changed
    /// before that is on the device, and so is what an fsync made durable since. Until the volume is
    /// closed, what is lost can still be read.
    pub fn lost(&self) -> Option<Duration> {
        let is_over = self.latched.lock().is_some() || self.closed.load(Ordering::Acquire);
        let loses = self.loses_changes.load(Ordering::Acquire) || self.store().queue_len() > 0;
        (is_over && loses).then(|| self.durable_until.lock().elapsed())
    }

    /// What is being done to bring changes to the device, in words; `None` if nothing is.
    pub fn step(&self) -> Option<&'static str> {
        self.store().cache.step.get().map(|step| step.describe())
    }

    /// Has the volume refuse changes and write nothing more, as after a failed write: for a front end in
    /// which a call panicked, since what is in memory may be half changed.
    pub fn distrust(&self, why: &str) {
        self.latch(&Error::Latched(why.to_owned()));
    }

    fn latch(&self, error: &Error) {
        let mut latched = self.latched.lock();
        if latched.is_none() {
            tracing::error!("{error}; the volume is read-only from now on");
            *latched = Some(error.to_string());
        }
        drop(latched);
        if let Error::Corruption(corruption) = error {
            // The device works: it can still learn what ended the changes. If it does not, that is
            // said in the log.
            self.note_damage(corruption);
            let _ = self.save_damage();
        }
        self.refuses_changes.store(true, Ordering::Release);
        // Callers that wait for an epoch wait in vain.
        self.throttle.let_go();
        self.callers.give_up();
    }

    fn check_open(&self) -> Result<()> {
        if self.closed.load(Ordering::Acquire) { Err(Error::Stale) } else { Ok(()) }
    }

    fn check_writable(&self) -> Result<()> {
        self.check_open()?;
        if !self.refuses_changes.load(Ordering::Acquire) {
            return Ok(());
        }
        match &*self.latched.lock() {
            Some(why) => Err(Error::Latched(why.clone())),
            None => Err(Error::ReadOnly),
        }
    }

    fn vnode(&self, ino: InodeNo) -> Result<Arc<Vnode>> {
        self.check_open()?;
        if ino.is_system() && ino != InodeNo::ROOT {
            return Err(Error::Stale);
        }
        self.noted(self.store().get(ino))
    }

    /// Runs a change. If it finds no space, what earlier changes freed or promised is settled by an
    /// epoch, and the change is tried once more; so it is if its order needs that.
    fn change<T>(&self, change: impl Fn(&Namespace) -> Result<T>) -> Result<T> {
        self.check_changeable()?;
        let run = || {
            let _gate = self.gate.read();
            change(&self.names)
        };
        let result = self.noted(self.retry(run));
        self.after_change()?;
        result
    }

    /// Runs a change that must be the only one under way.
    fn change_alone<T>(&self, change: impl Fn(&Namespace) -> Result<T>) -> Result<T> {
        self.check_changeable()?;
        let run = || {
            let _gate = self.gate.write();
            change(&self.names)
        };
        let result = self.noted(self.retry(run));
        self.after_change()?;
        result
    }

    fn retry<T>(&self, run: impl Fn() -> Result<T>) -> Result<T> {
        let mut spent = false;
        // Other threads may bring about anew what an epoch settled, but not for ever.
        for _ in 0..EPOCHS_FORCED_MAX {
            match run() {
                Err(Error::EpochNeeded) => count(&self.calls.epochs_forced),
                Err(Error::NoSpace) if !spent && self.may_gain_space() => spent = true,
                other => return other,
            }
            self.commit()?;
        }
        Err(Error::EpochNeeded)
    }

    fn may_gain_space(&self) -> bool {
        self.store().queue_len() > 0 || self.store().alloc.has_freed()
    }

    /// The memory that changes take.
    fn changed_bytes(&self) -> u64 {
        self.store().memory.unwritten_bytes()
    }

    /// Runs a change of one inode.
    fn change_inode<T>(
        &self,
        ino: InodeNo,
        change: impl Fn(&Store, &mut Locked<'_>) -> Result<T>,
    ) -> Result<T> {
        self.change_inode_by(Spender::Privileged, ino, change)
    }

    /// The same for a caller from whom space may be kept.
    fn change_inode_by<T>(
        &self,
        spender: Spender,
        ino: InodeNo,
        change: impl Fn(&Store, &mut Locked<'_>) -> Result<T>,
    ) -> Result<T> {
        let vnode = self.vnode(ino)?;
        self.change(|names| change(&names.store, &mut Locked::by(&vnode, spender)))
    }

    /// What the volume did since it was opened.
    pub fn stats(&self) -> Stats {
        let cache = self.store().cache.stats();
        let get = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        Stats {
            cache_hits: cache.hits,
            cache_misses: cache.misses,
            device_reads: cache.reads,
            device_read_bytes: cache.read_bytes,
            device_writes: cache.writes,
            device_written_bytes: cache.written_bytes,
            device_syncs: cache.syncs,
            device_discards: cache.discards,
            device_discarded_bytes: cache.discarded_bytes,
            epochs: get(&self.calls.epochs),
            epochs_forced: get(&self.calls.epochs_forced),
            early_writes: get(&self.calls.early_writes),
            clean_points: get(&self.calls.clean_points),
            vnodes: self.store().vnode_count() as u64,
            dirty_bytes: self.store().dirty_bytes(),
            lookups: get(&self.calls.lookups),
            creates: get(&self.calls.creates),
            removes: get(&self.calls.removes),
            renames: get(&self.calls.renames),
            reads: get(&self.calls.reads),
            writes: get(&self.calls.writes),
            dir_reads: get(&self.calls.dir_reads),
            syncs: get(&self.calls.syncs),
            log: self.store().cache.device().log_stats(),
        }
    }

    /// How many calls there were that users make, and how many of them changed what lies where.
    fn calls_so_far(&self) -> (u64, u64) {
        let sum = |counters: &[&AtomicU64]| {
            counters.iter().map(|counter| counter.load(Ordering::Relaxed)).sum::<u64>()
        };
        let Calls { lookups, creates, removes, renames, reads, writes, dir_reads, syncs, .. } =
            &self.calls;
        let changes = sum(&[creates, removes, renames, writes]);
        (changes + sum(&[lookups, reads, dir_reads, syncs]), changes)
    }

    /// The size of the cache that the volume was opened with, in bytes.
    pub fn cache_bytes(&self) -> u64 {
        self.options.cache_bytes
    }

    /// What the volume takes in memory for its callers, by kind.
    pub fn memory(&self) -> Vec<MemoryUse> {
        let Namespace { store, .. } = &self.names;
        let account = &store.memory;
        let cache_bytes = self.options.cache_bytes;
        Kind::ALL
            .into_iter()
            .map(|kind| {
                let charged = account.charged(kind);
                // What is changed, or being written, cannot go: it is bounded with the other changes.
                let inodes_max = account.inode_bytes_max() + 2 * account.unwritten_bytes_max();
                let inodes = (charged, Some(inodes_max));
                let (bytes, bytes_max) = match kind {
                    Kind::Inodes | Kind::Attributes | Kind::Extents => inodes,
                    Kind::Pages => (charged, Some(account.unwritten_bytes_max())),
                    // Pages, and of some a copy as it was before the deferred changes.
                    Kind::InFlight => (charged, Some(2 * account.unwritten_bytes_max())),
                    Kind::Blocks => (store.cache.resident_bytes(), Some(cache_bytes)),
                    Kind::Names => {
                        let (bytes, bytes_max) = self.names.recent_bytes();
                        (bytes, Some(bytes_max))
                    }
                    Kind::References => (self.references.memory_bytes(), None),
                    Kind::Bitmaps => (store.alloc.bitmap_bytes(), None),
                    Kind::BusyLog => (store.busy.memory_bytes(), Some(Busy::memory_bytes_max())),
                };
                MemoryUse { kind, bytes, bytes_max }
            })
            .collect()
    }

    /// Sizes of the volume.
    pub fn stat_fs(&self) -> StatFs {
        let store = self.store();
        let space = store.alloc.space();
        let inodes = store.locator.inodes();
        // A file takes at least its entry: some 256 bytes of a sector.
        let per_fragment = u64::from((store.layout.fragment_bytes / 256).max(1));
        StatFs {
            fragment_bytes: store.layout.fragment_bytes,
            block_bytes: store.layout.block_bytes,
            fragments: space.total,
            free_fragments: space.free,
            available_fragments: space.available,
            inodes,
            free_inodes: space.available * per_fragment,
            name_bytes_max: crate::format::NAME_BYTES_MAX as u32,
        }
    }
}

#[cfg(test)]
mod tests;
