//! A vnode: an inode in use.

use std::ops::{Deref, DerefMut};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};

use foldhash::HashSet;

use super::{Attributes, Content, ExtentMap, Inode, Membership, Unstamped};
use crate::alloc::Spender;
use crate::cache::Pages;
use crate::format::inode::LinkTag;
use crate::lock::{Rank, Rule, RwLock, WriteGuard};
use crate::memory::{Charge, Memory, Weight};
use crate::trace::Causes;
use crate::units::{Container, EpochNo, FragRun, InodeNo};

/// An inode in use; there is one for each inode at most.
///
/// The fields that every lookup touches come first, with the lock, in one cache line.
#[repr(C)]
pub struct Vnode {
    /// The inode's number.
    pub ino: InodeNo,
    queued: AtomicBool,
    /// The contents were read since the inode was. Outside of the lock, since every lookup checks it.
    seen: AtomicBool,
    /// The vnode was used since the table was last swept.
    pub(super) used: AtomicBool,
    /// The number of units of a large file, in succession, that compression did not make shorter.
    pub incompressible: AtomicU8,
    /// Everything else, under its lock.
    pub state: RwLock<VnodeState>,
}

/// Memory of a vnode by itself, with its place in the table.
const VNODE_BYTES: u64 = size_of::<Vnode>() as u64 + 32;
/// Memory of the hash of a leaving name.
const LEAVING_BYTES: u64 = 5;

/// The extent of a file's changes since its inode was last encoded.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum DirtyLevel {
    /// At most its times, and the entry count of a directory: recovery counts the entries, and derives the
    /// times of a directory from those of its files.
    Times,
    /// Only its contents, by writes. The file on the device stays consistent, however long the new contents
    /// stay in memory.
    Contents,
    /// Its names, its space or its attributes: other writes of the epoch may rely on it.
    Anything,
}

/// The state that the lock of a vnode protects. The fields that reads use are adjacent.
#[repr(C)]
pub struct VnodeState {
    /// Space promised to the file, so that write-back finds it.
    pub promised: Promised,
    /// The contents matched their checksum since the inode was read.
    pub verified: AtomicBool,
    /// The blocks of the file that changed.
    pub pages: Pages,
    /// The present state of the inode.
    pub inode: Inode,
    /// The present place of the inode; `None` if it has no name.
    pub container: Option<Container>,
    /// The place of the inode on the device once the epochs in flight are complete.
    pub durable: Option<Container>,
    /// How the inode differs from its record in the sector.
    pub changes: Changes,
    /// Its moves between sectors or names in the open epoch.
    pub motion: Motion,
    /// The state of its entries, if it is a directory.
    pub entries: DirState,
    /// Its quota, if the volume has any.
    pub quota: Membership,
    /// The last epoch that writes attributes or nodes of the extent tree of this inode to blocks of their
    /// own. Until it is on the device, only memory has these.
    pub(super) spilled: EpochNo,
    /// The memory that is charged for the vnode.
    charge: Charge,
}

/// How an inode in memory differs from its record in the sector.
#[derive(Debug)]
pub struct Changes {
    /// Whether it differs.
    pub dirty: bool,
    /// How much of it differs.
    pub level: DirtyLevel,
    /// The operations that changed it.
    pub causes: Causes,
    /// The device has a checksum of the contents in their present place: until the inode is written, changed
    /// pages go to new places, and no block is overwritten.
    pub moves: bool,
    /// Whether the attributes differ from those on the device.
    pub xattrs: bool,
}

/// Space that the allocator has promised or given to a file in advance, so that an epoch finds space for all
/// changes (see [`crate::alloc`]).
#[derive(Debug, Default)]
pub struct Promised {
    /// Fragments, to the file's changed pages.
    pub fragments: u64,
    /// Blocks, to the directory's new sectors.
    pub blocks: u64,
    /// The last page was changed in place, for lack of space: it must not grow without a promise.
    pub lacks_tail: bool,
    /// How many extents the map may have gained or lost since the inode was last encoded, or will
    /// when the changed pages are placed: at most.
    pub map_changes: u64,
    /// Blocks, to the extent tree and the attributes.
    pub spill_blocks: u64,
    /// Space taken in advance for the attributes, which the next epoch writes there.
    pub xattr_space: FragRun,
}

/// The moves of an inode between sectors or names, so that recovery can complete them.
#[derive(Debug, Default)]
pub struct Motion {
    /// Linktags of the open epoch.
    pub tags: Vec<LinkTag>,
    /// The last epoch in which the inode was given a further name.
    pub gained_name: Option<EpochNo>,
    /// The last epoch that removed, moved or reassigned one of its names while the device had the inode in
    /// the external table, or that removed its last name while the device had the inode.
    pub lost_name: Option<EpochNo>,
}

/// The state of a directory's entries.
#[derive(Debug, Default)]
pub struct DirState {
    /// See [`DirState::leave`]. Few directories have any, and most vnodes are not directories.
    leaving: Option<Box<HashSet<u32>>>,
    /// No sector before this one has room for an entry of usual size.
    pub room_from: u32,
    /// The length of the inline contents last written in the directory, for which the next new file
    /// leaves room.
    pub inline_len: u16,
}

impl DirState {
    /// Records the hash of a name that the open epoch removes from the device, or gives to another file.
    /// Until it is removed, no other file may have the name there, since the device could have it twice. A
    /// new file waits for a later phase of the epoch, all others for the next epoch.
    pub fn leave(&mut self, hash: u32) {
        self.leaving.get_or_insert_default().insert(hash);
    }

    /// Whether a name with this hash may be leaving.
    pub fn is_leaving(&self, hash: u32) -> bool {
        self.leaving.as_ref().is_some_and(|leaving| leaving.contains(&hash))
    }

    /// All names have left.
    pub fn have_left(&mut self) {
        self.leaving = None;
    }

    fn memory_bytes(&self) -> u64 {
        let bytes = |leaving: &HashSet<u32>| leaving.capacity() as u64 * LEAVING_BYTES;
        self.leaving.as_deref().map_or(0, bytes)
    }
}

impl Changes {
    /// No difference.
    fn none() -> Changes {
        Changes {
            dirty: false,
            level: DirtyLevel::Times,
            causes: Causes::default(),
            moves: false,
            xattrs: false,
        }
    }

    /// Records that it differs, up to this level.
    pub(super) fn note(&mut self, changed: DirtyLevel) {
        self.dirty = true;
        self.level = self.level.max(changed);
    }

    /// Records that the inode was written to its sector; its attributes are written before it.
    fn set_encoded(&mut self) {
        self.dirty = false;
        self.level = DirtyLevel::Times;
        self.moves = false;
        self.causes.clear();
    }
}

impl Promised {
    /// Whether space is promised to the file, or taken for it in advance.
    fn is_any(&self) -> bool {
        self.fragments + self.blocks + self.spill_blocks > 0 || self.xattr_space.len > 0
    }
}

impl VnodeState {
    /// Whether a device that has all epochs up to `done` has the attributes and extents outside of the inode.
    pub(super) fn is_on_device(&self, done: EpochNo) -> bool {
        self.spilled <= done || !Rule::SpilledStays.holds()
    }

    /// The inode is written in its sector, or is deleted with its last user.
    pub fn set_encoded(&mut self) {
        self.changes.set_encoded();
        // Without marks, nothing was stamped.
        self.inode.unstamped = Unstamped::Nothing;
        self.weigh();
    }

    /// Fails if the state contradicts itself. Debug builds check this each time a change releases the lock.
    fn check(&self) {
        let VnodeState { inode, pages, promised, .. } = self;
        let ino = inode.ino;
        if let Content::Inline(bytes) = &inode.content {
            assert_eq!(bytes.len() as u64, inode.size, "inode {ino} has the size of its contents");
            assert!(pages.is_empty(), "inode {ino} has contents inline or in pages");
        }
        let dirty = pages.dirty_count() as u64;
        let is_known = inode.content_checksum.is_none() || dirty == 0;
        assert!(is_known, "inode {ino} has changed pages and the checksum of others");
        assert!(dirty > 0 || promised.fragments == 0, "inode {ino} has promises without pages");
        assert!(promised.blocks <= dirty, "inode {ino} has more blocks promised than pages");
        // No epoch would withdraw them.
        let is_idle = !self.changes.dirty && pages.is_empty() && self.container.is_some();
        assert!(!is_idle || !promised.is_any(), "inode {ino} keeps {promised:?}");
        let is_container = inode.is_dir() || ino.is_system();
        assert!(is_container || self.entries.leaving.is_none(), "inode {ino} has no entries");
    }

    /// Charges the vnode to an account from now on.
    pub(super) fn open_account(&mut self, account: &Arc<Memory>) {
        self.charge.open(account);
        self.weigh();
    }

    /// Updates the account; returns whether the vnode takes more memory than before.
    pub(super) fn weigh(&mut self) -> bool {
        let inline = match &self.inode.content {
            Content::Inline(bytes) => bytes.capacity() as u64,
            Content::Map(_) => 0,
        };
        self.charge.set(Weight {
            inode: VNODE_BYTES + inline + self.entries.memory_bytes(),
            attributes: self.inode.known_attributes().map_or(0, Attributes::memory_bytes),
            extents: self.inode.map().map_or(0, ExtentMap::memory_bytes),
            is_changed: self.changes.dirty,
        })
    }
}

impl Vnode {
    /// A vnode for an inode that is in `container`; `durable` if the device has it there.
    pub fn new(inode: Inode, container: Option<Container>, durable: bool) -> Vnode {
        Vnode {
            ino: inode.ino,
            queued: AtomicBool::new(false),
            seen: AtomicBool::new(false),
            used: AtomicBool::new(false),
            incompressible: AtomicU8::new(0),
            state: RwLock::new(
                rank_of(&inode),
                VnodeState {
                    inode,
                    pages: Pages::default(),
                    container,
                    durable: container.filter(|_| durable),
                    changes: Changes::none(),
                    motion: Motion::default(),
                    promised: Promised::default(),
                    verified: AtomicBool::new(false),
                    entries: DirState::default(),
                    // A new inode is charged for its memory.
                    quota: Membership { charged: (!durable).then_some(0), ..Membership::default() },
                    spilled: EpochNo(0),
                    charge: Charge::default(),
                },
            ),
        }
    }

    /// Marks the vnode as queued for the next epoch; true if it was not before.
    pub(super) fn set_queued(&self) -> bool {
        !self.is_queued() && !self.queued.swap(true, Ordering::AcqRel)
    }

    /// Marks the vnode as no longer queued.
    pub(super) fn clear_queued(&self) {
        self.queued.store(false, Ordering::Release);
    }

    /// Whether this is the first call since the inode was read, for work that is done once, before the
    /// contents are first read.
    pub fn is_first_read(&self) -> bool {
        !self.seen.load(Ordering::Relaxed) && !self.seen.swap(true, Ordering::Relaxed)
    }

    /// Whether the vnode waits for the next epoch.
    pub fn is_queued(&self) -> bool {
        self.queued.load(Ordering::Acquire)
    }

    /// Whether forgetting the vnode loses nothing: it equals a device that has all epochs up to `done`, and
    /// has a name by which it is found again.
    pub(super) fn is_evictable(&self, done: EpochNo) -> bool {
        let Some(state) = self.state.try_read() else { return false };
        let equals_device = !state.changes.dirty
            && state.pages.is_empty()
            && state.is_on_device(done)
            && state.container.is_some();
        let goes = !self.is_queued() && equals_device;
        debug_assert!(!goes || state.motion.tags.is_empty(), "inode {}: a tag is lost", self.ino);
        debug_assert!(!goes || state.container == state.durable, "inode {} is not there", self.ino);
        goes
    }
}

impl Vnode {
    /// Drops the attributes from memory if a device that has all epochs up to `done` has them as they are.
    pub(super) fn forget_attributes(&self, done: EpochNo) {
        if let Some(mut state) = self.state.try_write() {
            state.forget_attributes(done);
            state.weigh();
        }
    }
}

/// The place of a vnode's lock in the order.
fn rank_of(inode: &Inode) -> Rank {
    match inode.ino {
        InodeNo::EXTERNAL => Rank::External,
        InodeNo::LOCATOR => Rank::Locator,
        InodeNo::SYSTEM => Rank::Directories,
        _ if inode.is_dir() => Rank::Directories,
        _ => Rank::Files,
    }
}

/// A vnode that is locked to be changed.
pub struct VnodeGuard<'a> {
    /// The vnode.
    pub vnode: &'a Arc<Vnode>,
    state: WriteGuard<'a, VnodeState>,
    /// The user for whom the file is changed.
    pub spender: Spender,
}

impl<'a> VnodeGuard<'a> {
    /// Waits for the lock.
    pub fn new(vnode: &'a Arc<Vnode>) -> VnodeGuard<'a> {
        VnodeGuard::by(vnode, Spender::Privileged)
    }

    /// Waits for the lock, for a change by a caller that may not use the reserve.
    pub fn by(vnode: &'a Arc<Vnode>, spender: Spender) -> VnodeGuard<'a> {
        VnodeGuard { vnode, state: vnode.state.write(), spender }
    }

    /// Waits for the locks of an inode and of its container, in their order: a directory comes before its
    /// files, the external table after them.
    pub fn with_holder(
        holder: &'a Arc<Vnode>,
        vnode: &'a Arc<Vnode>,
    ) -> (VnodeGuard<'a>, VnodeGuard<'a>) {
        if holder.ino == InodeNo::EXTERNAL || !Rule::DirectoryFirst.holds() {
            let file = VnodeGuard::new(vnode);
            return (VnodeGuard::new(holder), file);
        }
        (VnodeGuard::new(holder), VnodeGuard::new(vnode))
    }
}

impl VnodeGuard<'_> {
    /// Releases the lock for a moment, if a test breaks [`Rule::InodeHeld`].
    #[inline(always)]
    pub fn stay(&mut self) {
        #[cfg(feature = "schedules")]
        if !Rule::InodeHeld.holds() {
            self.state.bump();
        }
    }
}

impl Drop for VnodeGuard<'_> {
    fn drop(&mut self) {
        if cfg!(debug_assertions) && !std::thread::panicking() {
            self.state.check();
        }
    }
}

impl Deref for VnodeGuard<'_> {
    type Target = VnodeState;

    fn deref(&self) -> &VnodeState {
        &self.state
    }
}

impl DerefMut for VnodeGuard<'_> {
    fn deref_mut(&mut self) -> &mut VnodeState {
        &mut self.state
    }
}
