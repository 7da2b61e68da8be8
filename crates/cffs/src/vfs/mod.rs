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
//! In addition:
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
mod admin;
mod attributes;
mod caller;
mod copy;
mod data;
mod durable;
pub mod errno;
mod handover;
mod keys;
mod names;
mod protect;
mod references;
mod regroup;
mod reserve;
mod stats;
pub mod types;
pub(crate) mod xattr;

use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

pub use crate::epoch::Trimmed;
pub use caller::{Caller, Condition, Groups};
pub use errno::errno;
pub use handover::Handover;
pub use protect::Protection;
pub use regroup::{IdleRegrouping, RegroupOptions, RegroupProgress, Scattered, Turns};
pub use stats::{MemoryUse, Stats};
pub use types::*;

pub use crate::admin::{Piece, Placement, ScrubProgress, SetVolume};
use crate::alloc::Spender;
use crate::cache::BufferCache;
use crate::clock::Clock;
use crate::device::{BlockDevice, Journal};
use crate::epoch::EpochWriter;
pub use crate::epoch::mark;
pub use crate::epoch::superblock::read_superblock;
use crate::error::{Error, Result};
use crate::format::Layout;
use crate::format::superblock::{Incompat, State};
pub use crate::inode::Fill as IntentLogFill;
use crate::inode::{InodeCache, Vnode, VnodeGuard};
use crate::journal;
use crate::memory::Memory;
use crate::namespace::Namespace;
use crate::readahead::ReadAhead;
use crate::trace::{OpKind, Operation, Recorder};
use crate::tuning::{self, Tuning};
use crate::units::InodeNo;
use references::References;
use reserve::ReserveUsers;
use stats::Calls;

/// Names that are kept at hand, per MiB of cache.
const NAMES_PER_MIB: u64 = 256;

/// How long a call that finds no space waits for the kernel to let go of files that were just removed,
/// and how often it looks.
const LETTING_GO_MAX: Duration = Duration::from_secs(1);
const LETTING_GO_POLL: Duration = Duration::from_millis(1);

/// An open volume.
pub struct Volume {
    names: Namespace,
    options: Arc<OpenOptions>,
    writer: EpochWriter,
    references: References,
    reserve: ReserveUsers,
    readahead: ReadAhead,
    /// Whether any file may be protected.
    protects: AtomicBool,
    calls: Calls,
    appends: data::Appends,
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
        let reserve = superblock.reserve;
        let protects = superblock.incompat.contains(Incompat::PROTECTION);
        let hints = device.hints();
        options.discard |= hints.wants_discards;
        let tuning = Tuning::new(tuning::Device {
            break_even_bytes: options.break_even_bytes,
            request_bytes_max: hints.request_bytes_max,
            parallel: hints.parallel,
            cache_bytes: options.cache_bytes,
        });
        let groups = superblock.policy.groups();
        let cache =
            Arc::new(BufferCache::new(device, layout, tuning, groups, options.waiter.clone()));
        let memory = Arc::new(Memory::new(options.cache_bytes, options.dirty_bytes_max));
        let names_max = ((options.cache_bytes >> 20).max(1) * NAMES_PER_MIB) as usize;
        let inodes = Arc::new(InodeCache::open(cache, &superblock, clock, memory)?);
        let options = Arc::new(options);
        let volume = Volume {
            names: Namespace::new(inodes.clone(), names_max),
            writer: EpochWriter::new(inodes, options.clone(), superblock),
            options,
            references: References::default(),
            appends: data::Appends::default(),
            reserve: ReserveUsers::new(reserve),
            readahead: ReadAhead::new(&tuning),
            protects: AtomicBool::new(protects),
            calls: Calls::default(),
        };
        if !volume.options.read_only {
            volume.writer.mark_mounted()?;
            let inodes = volume.inodes();
            inodes.alloc.fill_pool()?;
            inodes.cache.set_horizon(inodes.alloc.end_of_used()?);
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

    /// The recorder of operations and the requests that they cause.
    pub fn recorder(&self) -> &Recorder {
        &self.options.recorder
    }

    /// Writes the changes to the device.
    pub fn writer(&self) -> &EpochWriter {
        &self.writer
    }

    fn inodes(&self) -> &InodeCache {
        &self.names.inodes
    }

    fn vnode(&self, ino: InodeNo) -> Result<Arc<Vnode>> {
        self.writer.vnode(ino)
    }

    /// Runs a change ([`EpochWriter::change`]).
    fn change<T>(&self, change: impl Fn(&Namespace) -> Result<T>) -> Result<T> {
        let hope = || self.gains_space_by_removed_files();
        self.writer.change(|| change(&self.names), &hope)
    }

    /// Runs a change that must be the only one under way.
    fn change_alone<T>(&self, change: impl Fn(&Namespace) -> Result<T>) -> Result<T> {
        let hope = || self.gains_space_by_removed_files();
        self.writer.change_alone(|| change(&self.names), &hope)
    }

    /// Waits for the deletion of files that have just lost their last name. The kernel releases them by a
    /// message that may arrive after the call that removed them has returned, and after the next call. Even
    /// if none is left, another try is worthwhile, since they may only be waiting for their epoch.
    fn gains_space_by_removed_files(&self) -> bool {
        let begun = Instant::now();
        while begun.elapsed() < LETTING_GO_MAX && self.references.have_orphans_since(LETTING_GO_MAX)
        {
            self.options.waiter.about_to_wait();
            std::thread::sleep(LETTING_GO_POLL);
        }
        self.references.have_orphaned_since(2 * LETTING_GO_MAX)
    }

    /// The memory that changes take.
    fn changed_bytes(&self) -> u64 {
        self.inodes().memory.unwritten_bytes()
    }

    /// Runs a change of one inode.
    fn change_inode<T>(
        &self,
        ino: InodeNo,
        change: impl Fn(&InodeCache, &mut VnodeGuard<'_>) -> Result<T>,
    ) -> Result<T> {
        self.change_inode_by(Spender::Privileged, ino, change)
    }

    /// The same for a caller from whom space may be kept.
    fn change_inode_by<T>(
        &self,
        spender: Spender,
        ino: InodeNo,
        change: impl Fn(&InodeCache, &mut VnodeGuard<'_>) -> Result<T>,
    ) -> Result<T> {
        let vnode = self.vnode(ino)?;
        self.change_vnode_by(spender, &vnode, change)
    }

    /// The same for an inode in use.
    fn change_vnode_by<T>(
        &self,
        spender: Spender,
        vnode: &Arc<Vnode>,
        change: impl Fn(&InodeCache, &mut VnodeGuard<'_>) -> Result<T>,
    ) -> Result<T> {
        self.change(|names| {
            let mut file = VnodeGuard::by(vnode, spender);
            let changed = change(&names.inodes, &mut file);
            if changed.is_err() {
                names.inodes.space().withdraw_unused(&mut file);
            }
            changed
        })
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

#[cfg(test)]
mod tests;
