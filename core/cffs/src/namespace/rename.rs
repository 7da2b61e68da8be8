//! Renaming.
//!
//! The inode moves with the name. On the device the new entry is written first, with a linktag that names the
//! old place, and the old one is removed in the last phase: whichever part of the epoch survives, the file
//! has one name or the other. If the new name was another file's, its entry is replaced within its sector,
//! which is written atomically. Only if the new entry does not fit there, the replaced one is also removed in
//! the last phase.
//!
//! If possible, an entry keeps its position for readers of the directory: that of the old name within one
//! directory, or of the entry that it replaces.

use std::sync::Arc;

use super::dir::NewEntry;
use super::make::Loss;
use super::{Found, MayTake, Namespace};
use crate::error::{Corruption, Error, Result};
use crate::format::LINKS_MAX;
use crate::format::inode::{FileType, LinkTag, LinkTagKind};
use crate::format::sector::{self, Body};
use crate::inode::{EncodedInode, InodeCache, Vnode, VnodeGuard};
use crate::units::{Container, InodeNo};

/// The work that a rename leaves to its caller.
pub struct Renamed {
    /// The file that lost its name to the renamed one.
    pub replaced: Option<Arc<Vnode>>,
    /// Whether the old name was removed. It stays if both names belonged to one file.
    pub moved: bool,
}

/// The two ends of a rename.
pub struct Names<'a> {
    /// The directory that has the old name.
    pub from: &'a Arc<Vnode>,
    /// The old name.
    pub name: &'a [u8],
    /// The directory that is to have the new name.
    pub to: &'a Arc<Vnode>,
    /// The new name.
    pub new_name: &'a [u8],
}

/// The files of both names, as they were found. They stay right while no other change is made.
pub struct Ends {
    source: Found,
    source_vnode: Arc<Vnode>,
    target: Option<(Found, Arc<Vnode>)>,
}

impl Ends {
    /// The file that is to be renamed.
    pub fn source(&self) -> &Arc<Vnode> {
        &self.source_vnode
    }
}

/// A rename or an exchange of two names. No other change may be in progress.
pub struct Rename<'a> {
    namespace: &'a Namespace,
    inodes: &'a InodeCache,
    names: &'a Names<'a>,
    may: MayTake<'a>,
}

impl<'a> Rename<'a> {
    /// A rename under a condition on each file that loses a name.
    pub fn new(namespace: &'a Namespace, names: &'a Names<'a>, may: MayTake<'a>) -> Rename<'a> {
        Rename { namespace, inodes: &namespace.inodes, names, may }
    }

    fn ends(&self) -> Result<Ends> {
        let Rename { namespace, names, may, .. } = *self;
        namespace.hash(names.new_name)?;
        let (source, source_vnode) = {
            let from = names.from.state.read();
            namespace.check_dir(&from)?;
            let found = namespace.find(&from, names.name)?.ok_or(Error::NotFound)?;
            let vnode = namespace.vnode_of(&from, &found)?;
            may(&from, &vnode.state.read())?;
            (found, vnode)
        };
        let to = names.to.state.read();
        namespace.check_dir(&to)?;
        let target = match namespace.find(&to, names.new_name)? {
            Some(found) => {
                let vnode = namespace.vnode_of(&to, &found)?;
                may(&to, &vnode.state.read())?;
                Some((found, vnode))
            }
            None => None,
        };
        Ok(Ends { source, source_vnode, target })
    }

    /// Finds the files of both names. The new name must be free if it is not to be replaced.
    pub fn find(&self, no_replace: bool) -> Result<Ends> {
        match self.ends()? {
            Ends { target: Some(_), .. } if no_replace => Err(Error::Exists),
            ends => Ok(ends),
        }
    }

    /// Gives the file that was [found](Rename::find) a new name in place of its old one.
    pub fn run(&self, ends: Ends) -> Result<Renamed> {
        let Rename { namespace, names, .. } = *self;
        let Ends { source, source_vnode, target } = ends;
        let moves_dir = source.file_type == FileType::Directory;
        if moves_dir {
            self.check_not_below(names.to, source.ino)?;
        }
        self.namespace.check_names_settled(&source_vnode.state.read())?;
        // Recovery knows the former place of the inode on the device, but not which of two names in between
        // the inode took from another file.
        if is_moved(&source_vnode) {
            return Err(Error::EpochNeeded);
        }
        if let Some((found, vnode)) = &target {
            if found.ino == source.ino {
                return Ok(Renamed { replaced: None, moved: false });
            }
            self.namespace.check_names_settled(&vnode.state.read())?;
            match (moves_dir, found.file_type == FileType::Directory) {
                (true, false) => return Err(Error::NotDirectory),
                (false, true) => return Err(Error::IsDirectory),
                (true, true) => {
                    let dir = vnode.state.read();
                    namespace.check_can_go(&dir)?;
                    // The device could have both names, and the replaced directory could still have entries
                    // that it lost in this epoch.
                    if dir.changes.dirty {
                        return Err(Error::EpochNeeded);
                    }
                }
                // The device could lose the replaced name without having the one that the file got in this
                // epoch.
                _ if self.gained_name(vnode) => {
                    return Err(Error::EpochNeeded);
                }
                _ => {}
            }
        }
        let across = names.from.ino != names.to.ino;
        if moves_dir && across && names.to.state.read().inode.nlink >= LINKS_MAX {
            return Err(Error::TooManyLinks);
        }
        self.move_entry(&source, &source_vnode, target.as_ref())?;
        if moves_dir {
            self.inodes.note_concerns_unchanged();
        }
        let now = self.inodes.clock.now();
        for vnode in [names.from, names.to] {
            let mut dir = VnodeGuard::new(vnode);
            dir.inode.mtime = now;
            dir.inode.touch(now);
            debug_assert!(self.inodes.intent_log.has_noted(dir.inode.ino), "its sector is noted");
            if moves_dir && across {
                if vnode.ino == names.from.ino {
                    dir.inode.nlink = dir.inode.nlink.saturating_sub(1);
                } else {
                    dir.inode.nlink += 1;
                }
            }
            self.inodes.mark_dirty(&mut dir);
        }
        if let Some((found, vnode)) = &target {
            if found.file_type == FileType::Directory {
                let mut dir = VnodeGuard::new(names.to);
                dir.inode.nlink = dir.inode.nlink.saturating_sub(1);
            }
            let place = Container { file: names.to.ino, sector: found.sector };
            let now = self.inodes.clock.now();
            namespace.name_gone(&mut VnodeGuard::new(vnode), found, place, Loss::ToAnother, now)?;
        }
        Ok(Renamed { replaced: target.map(|(_, vnode)| vnode), moved: true })
    }

    /// Whether the file got an additional name in the open epoch.
    fn gained_name(&self, vnode: &Arc<Vnode>) -> bool {
        vnode.state.read().motion.gained_name == Some(self.inodes.epoch())
    }

    /// Fails if `dir` is the directory `ino` or is below it.
    ///
    /// Fails with [`Error::EpochNeeded`] if a directory above moved in this epoch: if the device
    /// got the move of `ino` without the one above, the two could be below each other there.
    fn check_not_below(&self, dir: &Arc<Vnode>, ino: InodeNo) -> Result<()> {
        let mut at = dir.clone();
        let mut steps = 0u32;
        let mut moved = false;
        loop {
            if at.ino == ino {
                return Err(Error::Invalid("a directory cannot move below itself"));
            }
            if at.ino == InodeNo::ROOT {
                return if moved { Err(Error::EpochNeeded) } else { Ok(()) };
            }
            let parent = {
                let state = at.state.read();
                moved |= state.durable.is_some() && state.durable != state.container;
                state.inode.parent
            };
            steps += 1;
            if steps > 1 << 20 {
                return Err(Corruption::Loop { ino: at.ino }.into());
            }
            at = self.inodes.get(parent)?;
        }
    }

    fn move_entry(
        &self,
        source: &Found,
        vnode: &Arc<Vnode>,
        target: Option<&(Found, Arc<Vnode>)>,
    ) -> Result<()> {
        let Rename { namespace, names, .. } = *self;
        let is_within = names.from.ino == names.to.ino && target.is_none();
        if is_within && self.rename_in_place(source, vnode)? {
            return Ok(());
        }
        let hash = namespace.hash(names.new_name)?;
        let old_place = Container { file: names.from.ino, sector: source.sector };
        let mut file = VnodeGuard::new(vnode);
        let durable = file.durable;
        let tags_before = file.motion.tags.clone();
        let encoded = match source.reference {
            Some(_) => {
                drop(file);
                None
            }
            None => {
                self.tag_replacing(&mut file, target);
                let tags = file.motion.tags.clone();
                // A directory comes before its files in the order of locks.
                drop(file);
                let encoded = self.moving_record(source, &tags)?;
                if encoded.record().len() > namespace.body_room(names.new_name) {
                    // A small sector with a long name has no room for the tags. The external table has room,
                    // from the next epoch on.
                    VnodeGuard::new(vnode).motion.tags = tags_before;
                    namespace.move_out(vnode, old_place)?;
                    return Err(Error::EpochNeeded);
                }
                Some(encoded)
            }
        };
        let body = body_of(source, encoded.as_ref())?;
        let file_type = source.file_type;
        let name = names.new_name;
        let entry = NewEntry { name, hash, file_type, body, slack: 0, may_wait: false };
        let sector = match self.put_new_entry(&entry, target) {
            Ok(sector) => sector,
            Err(error) => {
                VnodeGuard::new(vnode).motion.tags = tags_before;
                return Err(error);
            }
        };
        let new_place = Container { file: names.to.ino, sector };
        // The old entry may go at once if the device does not have it, or if it is in the sector
        // of the new one. The name of an external inode may be there, whichever epoch wrote it.
        let on_device = match source.reference {
            None => durable == Some(old_place),
            Some(_) => durable.is_some(),
        };
        let deferred = on_device && new_place != old_place;
        let mut from = VnodeGuard::new(names.from);
        namespace.remove_entry(&mut from, source.sector, source.slot, source.hash, deferred)?;
        if on_device {
            // If the name were given again in another sector, both files could have it on the device, and
            // recovery would remove it from the one without another name there.
            from.entries.leave(source.hash);
        }
        drop(from);
        let mut file = VnodeGuard::new(vnode);
        file.inode.renamed(names.to.ino, self.inodes.clock.now());
        if source.reference.is_some() {
            if deferred {
                namespace.tag(&mut file, LinkTagKind::Unlinked, old_place, u32::from(source.slot));
            }
            namespace.note_lost_name(&mut file);
            self.inodes.mark_dirty(&mut file);
            return Ok(());
        }
        namespace.moved(&mut file, new_place)
    }

    /// Tags an inode that moves to another sector, and takes the name of `target` there if it has one.
    fn tag_replacing(&self, file: &mut VnodeGuard<'_>, target: Option<&(Found, Arc<Vnode>)>) {
        self.namespace.tag_move(file);
        file.motion.tags.retain(|tag| tag.kind != LinkTagKind::Replaced);
        if let Some((target, _)) = target {
            let place = Container { file: self.names.to.ino, sector: target.sector };
            let count = file.inode.nlink;
            self.namespace.tag(file, LinkTagKind::Replaced, place, count);
        }
    }

    /// Gives an entry another name in the same directory without moving it, so that one sector changes
    /// and no tag is needed; false if the sector has no room for the name.
    fn rename_in_place(&self, source: &Found, vnode: &Arc<Vnode>) -> Result<bool> {
        let names = self.names;
        let hash = self.namespace.hash(names.new_name)?;
        let mut tags = vnode.state.read().motion.tags.clone();
        let encoded = match source.reference {
            Some(_) => None,
            None => {
                tags.retain(|tag| tag.kind != LinkTagKind::Replaced);
                Some(self.moving_record(source, &tags)?)
            }
        };
        let body = body_of(source, encoded.as_ref())?;
        let file_type = source.file_type;
        let name = names.new_name;
        let entry = NewEntry { name, hash, file_type, body, slack: 0, may_wait: false };
        let mut dir = VnodeGuard::new(names.from);
        if !self.namespace.rename_in_sector(&mut dir, source, &entry)? {
            return Ok(false);
        }
        let mut file = VnodeGuard::new(vnode);
        if file.durable.is_some() {
            // If the name were given again in another sector, both files could have it on the device.
            dir.entries.leave(source.hash);
        }
        if source.reference.is_some() {
            self.namespace.note_lost_name(&mut file);
        }
        file.motion.tags = tags;
        file.inode.renamed(names.from.ino, self.inodes.clock.now());
        self.inodes.mark_dirty(&mut file);
        Ok(true)
    }

    /// The record of an inode from its old sector, with these tags. The inode in memory may refer to data
    /// that the device does not have yet.
    fn moving_record(&self, source: &Found, tags: &[LinkTag]) -> Result<EncodedInode> {
        let from = self.names.from.state.read();
        let image = self.inodes.containers().sector(&from, source.sector)?;
        match image.get().find_inode(source.ino).map(|entry| entry.body) {
            Some(Body::Embedded(record)) => {
                let mut encoded = EncodedInode::from_record(&record);
                encoded.set_tags(tags);
                Ok(encoded)
            }
            _ => Err(Error::Stale),
        }
    }

    fn put_new_entry(
        &self,
        entry: &NewEntry<'_>,
        target: Option<&(Found, Arc<Vnode>)>,
    ) -> Result<crate::units::SectorIndex> {
        let (namespace, to) = (self.namespace, self.names.to);
        let Some((target, replaced)) = target else {
            return Ok(namespace.insert_entry(&mut VnodeGuard::new(to), entry)?.0);
        };
        let on_device = replaced.state.read().durable.is_some();
        let mut dir = VnodeGuard::new(to);
        // The replaced file may wait until the name is removed; the file that replaces it may not.
        if dir.entries.is_leaving(entry.hash) {
            return Err(Error::EpochNeeded);
        }
        let (free, old_len) = {
            let image = self.inodes.containers().sector(&dir, target.sector)?;
            (image.get().free_bytes(), image.get().entry_len(target.slot))
        };
        if entry.len() <= free + old_len {
            namespace.hide_entry(&mut dir, target.sector, target.slot, target.hash, false)?;
            let image = self.inodes.containers().sector_mut(&mut dir, target.sector)?;
            let NewEntry { hash, name, file_type, body, .. } = entry;
            sector::insert_at(image, target.slot, *hash, name, *file_type, body)
                .ok_or(Error::NoSpace)?;
            namespace.entry_added(&mut dir, entry.hash, target.sector)?;
            return Ok(target.sector);
        }
        let (sector, _) = namespace.insert_entry(&mut dir, entry)?;
        // An inode that the device does not have must not get there in the meantime, since the device does
        // not have its contents either.
        namespace.hide_entry(&mut dir, target.sector, target.slot, target.hash, on_device)?;
        Ok(sector)
    }

    /// Swaps the files of two names, and returns whether that changed anything: both may be those of one
    /// file. `None` if not both inodes are in the external table, where the device has them too: see
    /// [`Rename::prepare_exchange`].
    pub fn exchange(&self) -> Result<Option<bool>> {
        let Rename { namespace, names, .. } = *self;
        let Ends { source, source_vnode, target } = self.ends()?;
        let (target, target_vnode) = target.ok_or(Error::NotFound)?;
        if source.ino == target.ino {
            return Ok(Some(false));
        }
        self.check_exchange(&source, &target)?;
        let (Some(source_sector), Some(target_sector)) = (source.reference, target.reference)
        else {
            return Ok(None);
        };
        if ![&source_vnode, &target_vnode].into_iter().all(is_settled) {
            return Ok(None);
        }
        for vnode in [&source_vnode, &target_vnode] {
            self.namespace.check_names_settled(&vnode.state.read())?;
            // Recovery counts names to find out which of the two entries is missing.
            if self.gained_name(vnode) {
                return Err(Error::EpochNeeded);
            }
        }
        let now = self.inodes.clock.now();
        let ends = [
            (names.from, &source, &target, target_sector, &target_vnode),
            (names.to, &target, &source, source_sector, &source_vnode),
        ];
        let across = names.from.ino != names.to.ino;
        if [&source, &target].into_iter().any(|found| found.file_type == FileType::Directory) {
            self.inodes.note_concerns_unchanged();
        }
        for (dir_vnode, own, other, sector, vnode) in ends {
            let mut dir = VnodeGuard::new(dir_vnode);
            namespace.recent.forget(dir.inode.ino, own.hash);
            let image = self.inodes.containers().sector_mut(&mut dir, own.sector)?;
            let body = Body::Reference { ino: other.ino, sector };
            sector::replace(image, own.slot, &body);
            sector::set_file_type(image, own.slot, other.file_type);
            if across {
                debug_assert!(
                    self.inodes.intent_log.has_noted(dir.inode.ino),
                    "its sector is noted"
                );
                let is_dir = |found: &Found| u32::from(found.file_type == FileType::Directory);
                dir.inode.nlink = dir.inode.nlink + is_dir(other) - is_dir(own);
            }
            dir.inode.mtime = now;
            dir.inode.touch(now);
            let parent = dir.inode.ino;
            self.inodes.mark_dirty(&mut dir);
            drop(dir);
            let mut file = VnodeGuard::new(vnode);
            file.inode.renamed(parent, now);
            // The other sector may be lost: then this inode has no name, and takes its intended one.
            let place = Container { file: parent, sector: own.sector };
            self.namespace.tag(&mut file, LinkTagKind::Replaced, place, u32::from(own.slot));
            self.namespace.note_lost_name(&mut file);
            self.inodes.mark_dirty(&mut file);
        }
        Ok(Some(true))
    }

    fn check_exchange(&self, source: &Found, target: &Found) -> Result<()> {
        let names = self.names;
        if source.file_type == FileType::Directory {
            self.check_not_below(names.to, source.ino)?;
        }
        if target.file_type == FileType::Directory {
            self.check_not_below(names.from, target.ino)?;
        }
        Ok(())
    }

    /// Moves the inodes of both names to the external table, so that after an epoch the names can
    /// be swapped by writing two references. False if the device has them there already.
    pub fn prepare_exchange(&self) -> Result<bool> {
        let Ends { source, source_vnode, target } = self.ends()?;
        let (target, target_vnode) = target.ok_or(Error::NotFound)?;
        if source.ino == target.ino {
            return Ok(false);
        }
        self.check_exchange(&source, &target)?;
        let mut moved = false;
        for (vnode, found) in [(source_vnode, source), (target_vnode, target)] {
            let container = vnode.state.read().container;
            if let (None, Some(container)) = (found.reference, container) {
                self.namespace.move_out(&vnode, container)?;
            }
            moved |= !is_settled(&vnode);
        }
        Ok(moved)
    }
}

/// The body of an entry for the file of `source`, whose record is `encoded` if it is embedded.
fn body_of<'a>(source: &Found, encoded: Option<&'a EncodedInode>) -> Result<Body<'a>> {
    match (encoded, source.reference) {
        (Some(encoded), _) => Ok(Body::Embedded(encoded.record())),
        (None, Some(sector)) => Ok(Body::Reference { ino: source.ino, sector }),
        (None, None) => Err(Error::Stale),
    }
}

/// Whether the inode is on the device at another place than in memory.
fn is_moved(vnode: &Arc<Vnode>) -> bool {
    let file = vnode.state.read();
    file.durable.is_some() && file.durable != file.container
}

/// Whether the inode is on the device at the same place as in memory.
fn is_settled(vnode: &Arc<Vnode>) -> bool {
    let file = vnode.state.read();
    file.durable == file.container
}
