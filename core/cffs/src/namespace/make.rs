//! Making files, adding names to them, and removing names.

use std::sync::Arc;

use super::dir::NewEntry;
use super::{Found, MayTake, Namespace};
use crate::clock::Timestamp;
use crate::error::{Error, Result};
use crate::format::LINKS_MAX;
use crate::format::inode::{FileType, LinkTag, LinkTagKind};
use crate::format::sector::{self, Body};
use crate::inode::{
    Attributes, Content, DirtyLevel, EncodedInode, Inode, Vnode, VnodeGuard, VnodeState,
    body_bytes_max,
};
use crate::units::{Container, InodeNo, SectorIndex};

/// How a file loses a name.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Loss {
    /// The entry is removed: a tag records this, so that recovery can complete it.
    Removed,
    /// Another file takes the name: without that file's entry, the name must stay.
    ToAnother,
}

impl Namespace {
    /// Makes a file: `build` gets its number, its generation and the directory's inode.
    pub fn create(
        &self,
        parent: &Arc<Vnode>,
        name: &[u8],
        may_add: &dyn Fn(&VnodeState) -> Result<()>,
        build: impl FnOnce(InodeNo, u32, &Inode) -> Inode,
    ) -> Result<Arc<Vnode>> {
        let hash = self.hash(name)?;
        let mut dir = VnodeGuard::new(parent);
        self.check_dir(&dir)?;
        may_add(&dir)?;
        if self.find_hashed(&dir, hash, name)?.is_some() {
            return Err(Error::Exists);
        }
        let vnode = self.begin(&mut dir, build)?;
        if let Err(error) = self.enter(&mut dir, name, hash, &vnode) {
            self.give_up(&vnode)?;
            return Err(error);
        }
        self.recent.note(dir.inode.ino, hash, name, vnode.ino);
        Ok(self.inodes.insert(vnode))
    }

    /// Makes a file without a name.
    pub fn create_unnamed(
        &self,
        parent: &Arc<Vnode>,
        build: impl FnOnce(InodeNo, u32, &Inode) -> Inode,
    ) -> Result<Arc<Vnode>> {
        let mut dir = VnodeGuard::new(parent);
        self.check_dir(&dir)?;
        let build =
            |ino, generation, parent: &Inode| Inode { nlink: 0, ..build(ino, generation, parent) };
        Ok(self.inodes.insert(self.begin(&mut dir, build)?))
    }

    /// Makes an inode with a number and space for its attributes. Nothing refers to it yet.
    pub(super) fn begin(
        &self,
        dir: &mut VnodeGuard<'_>,
        build: impl FnOnce(InodeNo, u32, &Inode) -> Inode,
    ) -> Result<Arc<Vnode>> {
        // A new file may inherit some.
        self.inodes.load_attributes(dir)?;
        let (ino, generation) = self.inodes.locator_table().allocate()?;
        let vnode = self.inodes.vnode(build(ino, generation, &dir.inode), None, false);
        if let Err(error) = self.promise_inherited(&vnode) {
            self.give_up(&vnode)?;
            return Err(error);
        }
        Ok(vnode)
    }

    /// Frees the number and the space of an inode to which nothing refers.
    pub(super) fn give_up(&self, vnode: &Arc<Vnode>) -> Result<()> {
        let mut file = VnodeGuard::new(vnode);
        self.inodes.space().withdraw_unused(&mut file);
        self.inodes.locator_table().free(file.inode.ino, file.inode.generation)
    }

    /// Promises space for the attributes that a new file inherited.
    fn promise_inherited(&self, vnode: &Arc<Vnode>) -> Result<()> {
        let mut file = VnodeGuard::new(vnode);
        let bytes = file.inode.known_attributes().map_or(0, Attributes::encoded_len);
        if bytes == 0 {
            return Ok(());
        }
        self.inodes.space().take_xattr_space(&mut file, bytes)
    }

    /// Gives a file without a name its first one.
    pub(super) fn enter(
        &self,
        dir: &mut VnodeGuard<'_>,
        name: &[u8],
        hash: u32,
        vnode: &Arc<Vnode>,
    ) -> Result<()> {
        let mut file = VnodeGuard::new(vnode);
        let file_type = file.inode.file_type;
        let subdir = file.inode.is_dir();
        if subdir && dir.inode.nlink >= LINKS_MAX {
            return Err(Error::TooManyLinks);
        }
        let may_wait = !subdir;
        let encoded = self.encode_new(&file);
        let container = if self.inodes.features.embed {
            let body = Body::Embedded(encoded.record());
            let slack =
                if file_type == FileType::Regular { dir.entries.inline_len.into() } else { 0 };
            let entry = NewEntry { name, hash, file_type, body, slack, may_wait };
            let (sector, _) = self.insert_entry(dir, &entry)?;
            Container { file: dir.inode.ino, sector }
        } else {
            let place = self.insert_external(&encoded, file_type)?;
            let body = Body::Reference { ino: file.inode.ino, sector: place.sector };
            let entry = NewEntry { name, hash, file_type, body, slack: 0, may_wait };
            if let Err(error) = self.insert_entry(dir, &entry) {
                self.remove_external(file.inode.ino, place, false)?;
                return Err(error);
            }
            place
        };
        self.inodes.locator_table().set(file.inode.ino, file.inode.generation, container)?;
        file.container = Some(container);
        self.inodes.intent_log.named(&file);
        self.inodes.mark_dirty(&mut file);
        if subdir {
            debug_assert!(self.inodes.intent_log.has_noted(dir.inode.ino), "its sector is noted");
            dir.inode.nlink += 1;
        }
        let now = self.inodes.clock.now();
        self.names_changed(dir, file_type, now);
        Ok(())
    }

    /// The first record of a new inode. Large parts are left to the epoch, which finds a
    /// place for it.
    pub(super) fn encode_new(&self, file: &VnodeGuard<'_>) -> EncodedInode {
        let room = self.inodes.layout.sector_bytes as usize / 8;
        let known = file.inode.known_attributes();
        let is_embedded = known.is_some_and(|known| known.encoded_len() <= room);
        file.inode.encode(is_embedded, &[], self.inodes.layout.block_fragments())
    }

    pub(super) fn insert_external(
        &self,
        encoded: &EncodedInode,
        file_type: FileType,
    ) -> Result<Container> {
        let mut table = VnodeGuard::new(self.inodes.system(InodeNo::EXTERNAL)?);
        let slack = sector::promised_bytes(encoded.record().link_tags());
        let body = Body::Embedded(encoded.record());
        let entry = NewEntry { name: b"", hash: 0, file_type, body, slack, may_wait: false };
        let (sector, _) = self.insert_entry(&mut table, &entry)?;
        Ok(Container { file: InodeNo::EXTERNAL, sector })
    }

    pub(super) fn remove_external(
        &self,
        ino: InodeNo,
        place: Container,
        deferred: bool,
    ) -> Result<()> {
        let mut table = VnodeGuard::new(self.inodes.system(InodeNo::EXTERNAL)?);
        let slot = self.slot_of(&table, place.sector, ino)?;
        self.remove_entry(&mut table, place.sector, slot, 0, deferred)
    }

    pub(super) fn slot_of(
        &self,
        file: &VnodeGuard<'_>,
        sector: SectorIndex,
        ino: InodeNo,
    ) -> Result<u16> {
        let image = self.inodes.containers().sector(file, sector)?;
        let slot = image.get().find_inode(ino).map(|entry| entry.slot);
        slot.ok_or(Error::Stale)
    }

    /// The longest target of a symbolic link that is in the inode.
    pub fn symlink_inline_max(&self) -> usize {
        let inode = crate::format::inode::DISK_INODE_BYTES;
        body_bytes_max(&self.inodes.layout).saturating_sub(inode)
    }

    /// Removes a name of a file that is not a directory. Returns the file; the caller deletes it if it has no
    /// name left and is unused.
    pub fn unlink(&self, parent: &Arc<Vnode>, name: &[u8], may: MayTake<'_>) -> Result<Arc<Vnode>> {
        let mut dir = VnodeGuard::new(parent);
        self.check_dir(&dir)?;
        let found = self.find(&dir, name)?.ok_or(Error::NotFound)?;
        let vnode = self.vnode_of(&dir, &found)?;
        let mut file = VnodeGuard::new(&vnode);
        may(&dir, &file)?;
        if found.file_type == FileType::Directory {
            return Err(Error::IsDirectory);
        }
        self.check_names_settled(&file)?;
        self.drop_name(&mut dir, &found, &mut file)?;
        drop(file);
        Ok(vnode)
    }

    /// Removes an empty directory.
    pub fn remove_dir(
        &self,
        parent: &Arc<Vnode>,
        name: &[u8],
        may: MayTake<'_>,
    ) -> Result<Arc<Vnode>> {
        let mut dir = VnodeGuard::new(parent);
        self.check_dir(&dir)?;
        let found = self.find(&dir, name)?.ok_or(Error::NotFound)?;
        let vnode = self.vnode_of(&dir, &found)?;
        let mut file = VnodeGuard::new(&vnode);
        may(&dir, &file)?;
        if found.file_type != FileType::Directory {
            return Err(Error::NotDirectory);
        }
        self.check_can_go(&file)?;
        self.check_names_settled(&file)?;
        self.drop_name(&mut dir, &found, &mut file)?;
        drop(file);
        Ok(vnode)
    }

    fn drop_name(
        &self,
        dir: &mut VnodeGuard<'_>,
        found: &Found,
        file: &mut VnodeGuard<'_>,
    ) -> Result<()> {
        let deferred = found.reference.is_some() && file.durable.is_some();
        self.remove_entry(dir, found.sector, found.slot, found.hash, deferred)?;
        let place = Container { file: dir.inode.ino, sector: found.sector };
        let now = self.inodes.clock.now();
        self.name_gone(file, found, place, Loss::Removed, now)?;
        if file.inode.is_dir() {
            debug_assert!(self.inodes.intent_log.has_noted(dir.inode.ino), "its sector is noted");
            dir.inode.nlink = dir.inode.nlink.saturating_sub(1);
        }
        self.names_changed(dir, found.file_type, now);
        Ok(())
    }

    /// Records in a directory that a name of a file of this type was added or removed.
    fn names_changed(&self, dir: &mut VnodeGuard<'_>, file_type: FileType, now: Timestamp) {
        dir.inode.mtime = now;
        dir.inode.touch(now);
        let is_subdir = file_type == FileType::Directory;
        let changed = if is_subdir { DirtyLevel::Anything } else { DirtyLevel::Times };
        self.inodes.mark_changed(dir, changed);
    }

    /// Records at a file that its name at `place` was removed.
    pub(super) fn name_gone(
        &self,
        file: &mut VnodeGuard<'_>,
        found: &Found,
        place: Container,
        loss: Loss,
        now: Timestamp,
    ) -> Result<()> {
        file.inode.touch(now);
        file.inode.nlink = if file.inode.is_dir() { 0 } else { file.inode.nlink.saturating_sub(1) };
        if file.inode.nlink > 0 {
            self.note_lost_name(file);
            if loss == Loss::Removed && file.durable.is_some() {
                self.tag(file, LinkTagKind::Unlinked, place, u32::from(found.slot));
            }
            self.inodes.mark_dirty(file);
            return Ok(());
        }
        if found.reference.is_some()
            && let Some(place) = file.container
        {
            let deferred = file.durable.is_some();
            self.remove_external(file.inode.ino, place, deferred)?;
        }
        self.inodes.intent_log.nameless(file);
        self.inodes.locator_table().note_nameless(file.inode.ino)?;
        file.container = None;
        // No record is left that could have the tags.
        file.motion.tags.clear();
        if file.durable.is_some() {
            file.motion.lost_name = Some(self.inodes.epoch());
        }
        // No sector has the inode, but its attributes are written to the device, so that they need not stay
        // in memory.
        file.changes.dirty = file.changes.xattrs;
        self.inodes.weigh(file);
        Ok(())
    }

    /// Fails if the file lost or exchanged a name in the open epoch, and is in the external table on the
    /// device: recovery completes one such change of a file, not several. Also fails if it lost its last
    /// name, wherever it is on the device: with another name the device could have it twice, or not at all.
    pub(super) fn check_names_settled(&self, file: &VnodeState) -> Result<()> {
        if file.motion.lost_name == Some(self.inodes.epoch()) {
            Err(Error::EpochNeeded)
        } else {
            Ok(())
        }
    }

    /// Records that a name of the file is changing, if recovery needs to know which.
    pub(super) fn note_lost_name(&self, file: &mut VnodeGuard<'_>) {
        if file.durable.is_some_and(|place| place.file == InodeNo::EXTERNAL) {
            file.motion.lost_name = Some(self.inodes.epoch());
        }
    }

    /// Adds a linktag of the open epoch.
    pub(super) fn tag(
        &self,
        file: &mut VnodeGuard<'_>,
        kind: LinkTagKind,
        place: Container,
        count: u32,
    ) {
        let tag = LinkTag { epoch: self.inodes.epoch(), kind, place, count };
        file.motion.tags.push(tag);
    }

    /// Gives a file another name, if `may_give` permits it for the directory and the file. No other change
    /// may be in progress.
    pub fn link(
        &self,
        vnode: &Arc<Vnode>,
        parent: &Arc<Vnode>,
        name: &[u8],
        may_give: MayTake<'_>,
    ) -> Result<()> {
        let hash = self.hash(name)?;
        {
            let dir = parent.state.read();
            self.check_dir(&dir)?;
            if self.find_hashed(&dir, hash, name)?.is_some() {
                return Err(Error::Exists);
            }
        }
        // After a crash, the new name must not be taken for the changing one.
        self.check_names_settled(&vnode.state.read())?;
        let (nlink, container) = {
            let file = vnode.state.read();
            if file.inode.is_dir() {
                return Err(Error::NotPermitted);
            }
            if file.inode.nlink >= LINKS_MAX {
                return Err(Error::TooManyLinks);
            }
            (file.inode.nlink, file.container)
        };
        let Some(container) = container else {
            if nlink > 0 {
                return Err(Error::Stale);
            }
            let mut dir = VnodeGuard::new(parent);
            let parent_ino = dir.inode.ino;
            {
                let mut file = VnodeGuard::new(vnode);
                may_give(&dir, &file)?;
                // An earlier epoch removed its last name, if it had one, with the inode.
                file.durable = None;
                file.inode.nlink = 1;
                file.inode.parent = parent_ino;
                file.inode.touch(self.inodes.clock.now());
            }
            let entered = self.enter(&mut dir, name, hash, vnode);
            if entered.is_err() {
                VnodeGuard::new(vnode).inode.nlink = 0;
            }
            return entered;
        };
        let place = match container.file {
            InodeNo::EXTERNAL => container,
            _ => self.move_out(vnode, container)?,
        };
        let mut dir = VnodeGuard::new(parent);
        let mut file = VnodeGuard::new(vnode);
        may_give(&dir, &file)?;
        let file_type = file.inode.file_type;
        let body = Body::Reference { ino: file.inode.ino, sector: place.sector };
        let entry = NewEntry { name, hash, file_type, body, slack: 0, may_wait: false };
        self.insert_entry(&mut dir, &entry)?;
        file.inode.nlink += 1;
        let now = self.inodes.clock.now();
        file.inode.touch(now);
        file.motion.gained_name = Some(self.inodes.epoch());
        self.inodes.mark_dirty(&mut file);
        self.names_changed(&mut dir, file_type, now);
        Ok(())
    }

    /// Moves an inode from its directory to the external table and leaves a reference.
    pub(super) fn move_out(&self, vnode: &Arc<Vnode>, from: Container) -> Result<Container> {
        let dir_vnode = self.inodes.get(from.file)?;
        let mut dir = VnodeGuard::new(&dir_vnode);
        let mut file = VnodeGuard::new(vnode);
        // The device has it under a name that is about to go, or has another file under the name that
        // it took: recovery could not distinguish these from a name that the inode is to keep.
        if file.durable.is_some_and(|durable| durable != from) || !file.motion.tags.is_empty() {
            return Err(Error::EpochNeeded);
        }
        let ino = file.inode.ino;
        let (slot, mut encoded) = {
            let image = self.inodes.containers().sector(&dir, from.sector)?;
            let entry = image.get().find_inode(ino).ok_or(Error::Stale)?;
            let Body::Embedded(record) = entry.body else { return Err(Error::Stale) };
            (entry.slot, EncodedInode::from_record(&record))
        };
        self.tag_move(&mut file);
        encoded.set_tags(&file.motion.tags);
        let place = match self.insert_external(&encoded, file.inode.file_type) {
            Ok(place) => place,
            Err(error) => {
                // The inode did not move: with the tag it would wait for an epoch that writes it.
                file.motion.tags.clear();
                return Err(error);
            }
        };
        let image = self.inodes.containers().sector_mut(&mut dir, from.sector)?;
        if file.durable == Some(from) {
            sector::defer_reference(image, slot, place.sector);
        } else {
            sector::replace(image, slot, &Body::Reference { ino, sector: place.sector });
        }
        self.moved(&mut file, place)?;
        Ok(place)
    }

    /// Tags an inode that is about to move with the place where the device has it.
    pub(super) fn tag_move(&self, file: &mut VnodeGuard<'_>) {
        file.motion.tags.retain(|tag| tag.kind != LinkTagKind::MovedFrom);
        if let Some(durable) = file.durable {
            let count = file.inode.nlink;
            self.tag(file, LinkTagKind::MovedFrom, durable, count);
        }
    }

    /// The longest body of an entry with this name. More than an inode may take permanently: linktags are
    /// removed after an epoch, before the name can change again.
    pub(super) fn body_room(&self, name: &[u8]) -> usize {
        let fixed = sector::SECTOR_HEADER_BYTES + sector::entry_bytes(name.len(), 0);
        (self.inodes.layout.sector_bytes as usize).saturating_sub(fixed)
    }

    pub(super) fn moved(&self, file: &mut VnodeGuard<'_>, to: Container) -> Result<()> {
        file.container = Some(to);
        self.inodes.locator_table().set(file.inode.ino, file.inode.generation, to)?;
        self.inodes.mark_dirty(file);
        Ok(())
    }

    /// Brings an inode back from the external table to its only name, if the sector has room.
    pub fn return_to_directory(&self, parent: &Arc<Vnode>, name: &[u8]) -> Result<()> {
        let mut dir = VnodeGuard::new(parent);
        let Some(found) = self.find(&dir, name)? else { return Ok(()) };
        if found.reference.is_none() {
            return Ok(());
        }
        let vnode = self.vnode_of(&dir, &found)?;
        let mut file = VnodeGuard::new(&vnode);
        let Some(place) = file.container.filter(|place| place.file == InodeNo::EXTERNAL) else {
            return Ok(());
        };
        if file.inode.nlink != 1 && !file.inode.is_dir() {
            return Ok(());
        }
        let table = self.inodes.system(InodeNo::EXTERNAL)?;
        let mut encoded = {
            let state = table.state.read();
            let image = self.inodes.containers().sector(&state, place.sector)?;
            match image.get().find_inode(found.ino).map(|entry| entry.body) {
                Some(Body::Embedded(record)) => EncodedInode::from_record(&record),
                _ => return Err(Error::Stale),
            }
        };
        let tags_before = file.motion.tags.clone();
        self.tag_move(&mut file);
        encoded.set_tags(&file.motion.tags);
        let fits = encoded.record().len() <= self.body_room(name);
        let image = self.inodes.containers().sector_mut(&mut dir, found.sector)?;
        if !fits || !sector::replace(image, found.slot, &Body::Embedded(encoded.record())) {
            file.motion.tags = tags_before;
            return Ok(());
        }
        let deferred = file.durable == Some(place);
        self.remove_external(found.ino, place, deferred)?;
        file.inode.parent = dir.inode.ino;
        self.moved(&mut file, Container { file: dir.inode.ino, sector: found.sector })
    }

    /// Puts the current contents of a tiny file, which are inline, into its sector; false if they
    /// do not fit there. The caller holds the directory or the table, and the file.
    pub fn put_inline(
        &self,
        container: &mut VnodeGuard<'_>,
        file: &mut VnodeGuard<'_>,
        contents: Vec<u8>,
    ) -> Result<bool> {
        let Some(place) = file.container else { return Ok(false) };
        let slot = self.slot_of(container, place.sector, file.inode.ino)?;
        let contents_len = contents.len();
        let old_size = std::mem::replace(&mut file.inode.size, contents_len as u64);
        let old = std::mem::replace(&mut file.inode.content, Content::Inline(contents));
        // Attributes that are in a block of their own stay there.
        let is_embedded = file.inode.xattr_block.len == 0;
        let fragments = self.inodes.layout.block_fragments();
        let encoded = file.inode.encode(is_embedded, &file.motion.tags, fragments);
        let len = encoded.record().len();
        let mut fits = len <= body_bytes_max(&self.inodes.layout);
        if place.file == InodeNo::EXTERNAL {
            let promised = sector::promised_bytes(encoded.record().link_tags());
            let image = self.inodes.containers().sector(container, place.sector)?;
            fits &= sector::entry_bytes(0, len) + promised <= image.get().entry_room(slot);
        }
        let image = self.inodes.containers().sector_mut(container, place.sector)?;
        if fits && sector::replace(image, slot, &Body::Embedded(encoded.record())) {
            container.entries.inline_len = contents_len as u16;
            self.inodes.mark_dirty(file);
            return Ok(true);
        }
        file.inode.size = old_size;
        file.inode.content = old;
        Ok(false)
    }
}
