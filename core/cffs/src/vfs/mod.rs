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
//! The front end checks permissions, and decides how long an inode lives: each function that returns the
//! [`Attr`] of a named file takes one reference on the inode, which keeps the inode usable without a name
//! until [`Volume::release`].
//!
//! # Errors
//!
//! Functions document their own errors by errno, which [`errno()`] gives for each [`Error`]. In addition:
//!
//! | of | errno | when |
//! | --- | --- | --- |
//! | the device | that of the device, or `EIO` | a request to the device fails ([`Error::Io`]) |
//! | | `EUCLEAN` | what is read contradicts the format ([`Error::Corruption`]) |
//! | reading | those of the device | |
//! | | `ESTALE` | no file has the inode number, or the volume is closed ([`Error::Stale`]) |
//! | changes | those of reading | |
//! | | `EROFS` | the volume was opened read-only, or refuses changes since a write failed or damage was found ([`Error::ReadOnly`], [`Error::Latched`], [`Error::Damaged`]) |
//! | | `ENOSPC` | no space is free, even after waiting for what earlier changes freed ([`Error::NoSpace`]) |
//! | | `EAGAIN` | other threads keep making changes that have to be on the device before this one can be made ([`Error::EpochNeeded`]) |
//!
//! A change that fails has changed nothing, unless the function says otherwise.

#![warn(clippy::missing_errors_doc)]

mod acl;
mod admin;
mod attributes;
mod caller;
mod copy;
mod data;
pub mod errno;
mod handover;
mod ids;
mod marks;
mod names;
mod new;
mod protect;
mod quota;
mod references;
mod regroup;
mod rename;
mod reserve;
mod stats;
pub mod types;
mod urgent;
mod used;
mod write;
pub(crate) mod xattr;

use std::ops::ControlFlow;
use std::sync::Arc;

pub use crate::epoch::{Background, Checkpoints, EpochWriter, Health, LiveSuperblock, Trimmed};
pub use acl::check_acl;
pub use admin::Admin;
pub use caller::{Caller, Condition, Groups};
pub use errno::errno;
pub use handover::Handover;
pub use marks::{Mark, Marks};
pub use names::make_with;
pub use quota::{Quota, Quotas};
pub use regroup::{IdleRegrouping, RegroupOptions, RegroupProgress, Scattered, Turns};
pub use stats::{MemoryUse, Stats};
pub use types::*;
pub use xattr::{copy_xattrs, follows_source, is_access_acl, own_xattr, set_own_xattr};

pub use crate::admin::{
    CHANGED_PATH_BYTES_MAX, Change, ClusterPlace, Piece, Placement, ScrubProgress, SetVolume,
};
use crate::admin::{Regrouper, Walk};
use crate::alloc::{Clusters, Spender};
use crate::cache::BufferCache;
use crate::clock::Clock;
use crate::device::{BlockDevice, Journal};
use crate::epoch::EndOfUse;
pub use crate::epoch::mark;
pub use crate::epoch::superblock::read_superblock;
use crate::error::{Error, Result};
use crate::format::superblock::{Incompat, State};
use crate::format::{Layout, Superblock};
pub use crate::inode::{Amount, Fill as IntentLogFill};
use crate::inode::{InodeCache, Vnode, VnodeGuard};
use crate::journal;
use crate::lock::{Mutex, MutexGuard, Rank, Rule};
use crate::memory::Memory;
use crate::namespace::Namespace;
use crate::readahead::ReadAhead;
use crate::trace::{OpKind, Recorder};
use crate::tuning::{self, Tuning};
use crate::units::InodeNo;
use protect::Protections;
use quota::{Accounts, Growth};
use references::References;
use reserve::ReserveUsers;
use stats::Calls;
use urgent::UrgentCompaction;
use used::Used;
use write::Appends;

/// Recently found names that are kept in memory, per MiB of cache.
const NAMES_PER_MIB: u64 = 256;

/// An open volume.
pub struct Volume {
    names: Namespace,
    options: Arc<OpenOptions>,
    writer: EpochWriter,
    references: References,
    reserve: ReserveUsers,
    readahead: ReadAhead,
    protections: Protections,
    accounts: Accounts,
    calls: Calls,
    appends: Appends,
    /// Held while a mark or a quota is set or removed.
    marking: Mutex<()>,
    urgent: UrgentCompaction,
    /// `None` if no reads are observed.
    used: Option<Used>,
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
    /// [`read_superblock`]; [`Error::Corruption`] if the inodes of the root directory or of the tables are
    /// damaged.
    pub fn open(
        device: Arc<dyn BlockDevice>,
        clock: Arc<dyn Clock>,
        mut options: OpenOptions,
    ) -> Result<Volume> {
        let is_journal_optional = options.read_only || options.journal == JournalMode::None;
        let device = journal::attach(device, is_journal_optional)?;
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
            if options.journal != JournalMode::On {
                device.journal().map_or(Ok(()), Journal::stop)?;
            }
        }
        // Each time the volume is opened, epochs count on from a new multiple of 2^32, so that
        // no number is used twice, whatever a crash lost.
        superblock.epoch = (superblock.epoch >> 32).wrapping_add(1) << 32;
        let layout = Layout::new(&superblock);
        options.recorder.set_journal_area(journal::area_bytes(&superblock));
        let (reserve, mounts) = (superblock.reserve, superblock.mounts);
        let is_clean = superblock.state == State::Clean;
        let protects = superblock.incompat.contains(Incompat::PROTECTION);
        let hints = device.hints();
        options.discard |= hints.wants_discards;
        let mut tuning = Tuning::new(tuning::Device {
            break_even_bytes: options.break_even_bytes,
            request_bytes_max: hints.request_bytes_max,
            parallel: hints.parallel,
            cache_bytes: options.cache_bytes,
        });
        tuning.writing.large_dir_bytes = options.large_dir_bytes;
        (options.tune)(&mut tuning);
        let groups = superblock.policy.groups();
        let cache =
            Arc::new(BufferCache::new(device, layout, tuning, groups, options.waiter.clone()));
        let memory = Arc::new(Memory::new(options.cache_bytes, options.dirty_bytes_max));
        let names_max = ((options.cache_bytes >> 20).max(1) * NAMES_PER_MIB) as usize;
        let inodes = Arc::new(InodeCache::open(cache, &superblock, clock, memory)?);
        let options = Arc::new(options);
        let observes = options.observe && groups;
        let volume = Volume {
            used: observes.then(|| Used::new(&inodes)),
            names: Namespace::new(inodes.clone(), names_max),
            writer: EpochWriter::new(inodes, options.clone(), superblock),
            options,
            references: References::default(),
            appends: Appends::default(),
            marking: Mutex::new(Rank::Marks, ()),
            reserve: ReserveUsers::new(reserve),
            readahead: ReadAhead::new(&tuning),
            protections: Protections::new(protects),
            accounts: Accounts::default(),
            calls: Calls::default(),
            urgent: UrgentCompaction::new(),
        };
        if !volume.options.read_only {
            volume.writer.superblock.mark_mounted()?;
            let inodes = volume.inodes();
            inodes.alloc.fill_pool()?;
            Clusters::of(&inodes.alloc).reserve_compaction_run()?;
            inodes.cache.set_horizon(inodes.alloc.end_of_used()?);
        }
        Quotas::of(&volume).load(mounts, is_clean)?;
        Ok(volume)
    }

    /// The recorder of operations and the requests that they cause.
    pub fn recorder(&self) -> &Recorder {
        &self.options.recorder
    }

    /// Writes the changes to the device.
    pub fn writer(&self) -> &EpochWriter {
        &self.writer
    }

    pub(crate) fn inodes(&self) -> &InodeCache {
        &self.names.inodes
    }

    /// Runs a change ([`EpochWriter::change`]).
    fn change<T>(&self, change: impl Fn(&Namespace) -> Result<T>) -> Result<T> {
        quota::retry(self, || {
            urgent::with_hopes(self, |hopes| self.writer.change(|| change(&self.names), hopes))
        })
    }

    /// Runs a change that must be the only one under way.
    fn change_alone<T>(&self, change: impl Fn(&Namespace) -> Result<T>) -> Result<T> {
        quota::retry(self, || {
            let change = || change(&self.names);
            urgent::with_hopes(self, |hopes| self.writer.change_alone(change, hopes))
        })
    }

    /// Runs a change of one inode for a caller of this kind.
    fn change_inode<T>(
        &self,
        spender: Spender,
        ino: InodeNo,
        change: impl Fn(&InodeCache, &mut VnodeGuard<'_>) -> Result<T>,
    ) -> Result<T> {
        self.change_vnode(spender, &self.writer.vnode(ino)?, change)
    }

    /// The same for an inode in use.
    fn change_vnode<T>(
        &self,
        spender: Spender,
        vnode: &Arc<Vnode>,
        change: impl Fn(&InodeCache, &mut VnodeGuard<'_>) -> Result<T>,
    ) -> Result<T> {
        quota::change_contents(self, spender, vnode, |_| Ok(Growth::Unknown), change)
    }

    /// Whether the caller may use the last part of the space.
    pub fn has_reserve(&self, caller: &Caller<'_>) -> bool {
        self.reserve.has(caller)
    }

    /// The administration of the volume.
    pub fn admin(&self) -> Admin<'_> {
        Admin { writer: &self.writer }
    }

    /// Changes properties of the volume, durably, while it is used, and returns its new superblock.
    ///
    /// # Errors
    ///
    /// [`Unsupported`] if a value cannot be; nothing is changed then. [`Io`] if the device failed: the volume
    /// keeps its properties and is [latched](Health::latched).
    ///
    /// [`Unsupported`]: crate::error::Error::Unsupported
    /// [`Io`]: crate::error::Error::Io
    pub fn tune(&self, changes: &SetVolume) -> Result<Superblock> {
        let _op = self.writer.enter(OpKind::Maintenance, InodeNo::ROOT);
        let follow = |next: &Superblock| {
            self.inodes().alloc.set_reserve(next.reserve.fragments);
            self.inodes().set_policy(next.policy);
            self.reserve.set(next.reserve);
        };
        self.writer.rewrite_superblock(|superblock| changes.apply(superblock), follow)
    }

    /// Moves scattered files together, or only counts the files that it would move. After each directory and
    /// each moved unit, and before each file that is read to be moved or that has a key of its own, `watch`
    /// gets the progress and can end it: a unit of which only some files were read stays as it is.
    ///
    /// Large files, which have long runs of their own, stay where they are, and so do files that are being
    /// written. Files of a tree with keys of their own are moved with those of their key.
    ///
    /// # Errors
    ///
    /// `EROFS` if the volume refuses changes; `EINVAL` if it was made without grouping of files, or for
    /// [`Scattered::Used`] if it was not opened with [`observe`](OpenOptions::observe); `ENOTDIR` for a tree
    /// that begins at a file; those of [changes](super#errors). A damaged file is not an error: it stays, and
    /// is counted. Nor is a lack of space.
    pub fn regroup(
        &self,
        what: Scattered<'_>,
        options: &RegroupOptions,
        watch: &mut dyn FnMut(&RegroupProgress) -> ControlFlow<()>,
    ) -> Result<RegroupProgress> {
        let regrouper = Regrouper::new(&self.readahead, &self.writer);
        match what {
            Scattered::Tree(dir) => regrouper.run_trees(&mut Walk::over(dir), options, watch),
            Scattered::Files(files) => regrouper.run_files(files, options, watch),
            Scattered::Used => {
                let unobserved = Error::Invalid("the volume is mounted without regroup=use");
                let chains = self.used.as_ref().ok_or(unobserved)?.chains();
                regrouper.run_chains(&chains, options, watch)
            }
        }
    }

    /// Makes all changes before the call durable.
    ///
    /// # Errors
    ///
    /// `EROFS` if an earlier write failed; `ESTALE` once the volume is closed; those of the
    /// [device](super#errors), which latch the volume: the changes are not durable, and reads see them until
    /// the volume is closed.
    pub fn sync(&self) -> Result<()> {
        let _op = self.writer.enter(OpKind::Sync, InodeNo::ROOT);
        self.calls.syncs.count();
        self.writer.health.check_open()?;
        if self.options.read_only { Ok(()) } else { self.writer.commit() }
    }

    /// Makes one file durable, with its names and those of the directories above them. `data_only` leaves out
    /// everything that is not needed to read the contents: if only times were changed, nothing is written.
    /// Writes nothing either if the device already has everything.
    ///
    /// # Errors
    ///
    /// As of [`sync`](Volume::sync); `ESTALE` also if the inode does not exist.
    ///
    /// ```
    /// # use std::sync::Arc;
    /// # use cffs::error::{Error, Result};
    /// # use cffs::units::InodeNo;
    /// # use cffs::vfs::{Caller, NewFile, NewKind, RenameMode};
    /// # let device = Arc::new(cffs::device::MemoryDevice::new(16 << 20));
    /// # cffs::mkfs::make(&device, &Default::default())?;
    /// # let volume = cffs::open(device, Arc::new(cffs::clock::SystemClock), Default::default())?;
    /// # let new = NewFile { kind: NewKind::Regular, permissions: 0o644, uid: 0, gid: 0, times: None };
    /// # let me = &Caller::ROOT;
    /// let file = volume.make(me, InodeNo::ROOT, b"f", &new)?.ino;
    /// volume.write(me, file, 0, b"kept")?;
    /// volume.sync_file(file, false)?;
    /// volume.close()?;
    /// assert!(matches!(volume.sync(), Err(Error::Stale)));
    /// # Ok::<(), Error>(())
    /// ```
    pub fn sync_file(&self, ino: InodeNo, data_only: bool) -> Result<()> {
        self.sync_files(&[ino], data_only)
    }

    /// Makes several files durable together, as [`sync_file`](Volume::sync_file) does each: one epoch serves
    /// all of them.
    ///
    /// # Errors
    ///
    /// As of [`sync_file`](Volume::sync_file).
    pub fn sync_files(&self, files: &[InodeNo], data_only: bool) -> Result<()> {
        let _op = self.writer.enter(OpKind::Sync, files.first().copied().unwrap_or(InodeNo::ROOT));
        self.calls.syncs.count();
        let vnodes = files.iter().map(|ino| self.writer.vnode(*ino)).collect::<Result<Vec<_>>>()?;
        if self.options.read_only {
            return Ok(());
        }
        self.writer.sync_files(&vnodes, data_only)
    }

    /// Closes the volume: makes everything durable, writes all derived state, marks the volume as clean and
    /// releases the device. Later calls fail.
    ///
    /// # Errors
    ///
    /// `EROFS` if an earlier write failed or another program has taken the volume over; those of
    /// the [device](super#errors). Then changes since the last sync may be lost, and the
    /// next opening recovers the volume. A second call succeeds.
    pub fn close(&self) -> Result<()> {
        close_and(self, |device| device.give_back())
    }

    /// The activity of the volume since it was opened.
    pub fn stats(&self) -> Stats {
        Stats::of(&self.writer, &self.calls)
    }

    /// The memory that the volume uses for its callers, by kind.
    pub fn memory(&self) -> Vec<MemoryUse> {
        MemoryUse::all(&self.names, &self.references, &self.options)
    }

    /// Sizes of the volume.
    pub fn stat_fs(&self) -> StatFs {
        let inodes = self.inodes();
        let space = inodes.alloc.space();
        let layout = &inodes.layout;
        // A file takes at least its entry: some 256 bytes of a sector.
        let per_fragment = u64::from((layout.fragment_bytes / 256).max(1));
        StatFs {
            fragment_bytes: layout.fragment_bytes,
            block_bytes: layout.block_bytes,
            fragments: space.total,
            free_fragments: space.free,
            available_fragments: space.available,
            inodes: inodes.locator.inodes(),
            free_inodes: space.available * per_fragment,
            name_bytes_max: crate::format::NAME_BYTES_MAX as u32,
        }
    }
}

/// Closes the volume, and then calls `end`.
fn close_and(volume: &Volume, end: EndOfUse) -> Result<()> {
    let _op = volume.writer.enter(OpKind::Maintenance, InodeNo::ROOT);
    if !volume.writer.checkpoints().begin_close()? {
        return Ok(());
    }
    // A file that cannot be deleted keeps the volume from being clean, but everything else is written.
    let deleted: Vec<_> = volume.references.end().iter().map(|ino| volume.delete(*ino)).collect();
    let save = || Quotas::of(volume).save_for_next();
    let save: Option<&dyn Fn()> = if volume.accounts.are_any() { Some(&save) } else { None };
    volume.writer.checkpoints().finish_close(deleted.into_iter().collect(), save, end)
}

/// Waits until no other thread sets or removes a mark or a quota.
fn marking_turn(volume: &Volume) -> Option<MutexGuard<'_, ()>> {
    Rule::MarksInTurn.holds().then(|| volume.marking.lock())
}

#[cfg(test)]
mod tests;
