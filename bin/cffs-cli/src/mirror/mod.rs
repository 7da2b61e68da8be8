//! Makes a volume equal to a tree by copying the differences.
//!
//! A file counts as equal if it has the same type, size and modification time; owner and mode are set if they
//! differ. Files that are not in the tree are removed. A file gets its time when it is complete, so a file
//! whose copy was interrupted is copied again.
//!
//! With a list of what changed since the volume was equal, only the directories on the way to listed files
//! are compared, and listed files are copied.
//!
//! One thread walks both trees from directory to directory, by names, so the work does not depend on their
//! depth. This is meant for trees with few changes; an empty volume is filled by [`cffs::files::import`].

use std::collections::{HashMap, HashSet};
use std::time::Duration;
use std::vec;

use cffs::clock::Timestamp;
use cffs::error::Error;
use cffs::files::{CopyCause, Files, Node, without_acl};
use cffs::format::inode::FileType;
use cffs::units::InodeNo;
use cffs::vfs::Caller;
use cffs::vfs::types::{Attr, NewFile, NewKind, SetAttr, SetTime};

use crate::tree::join;

mod directory;
mod image;
mod listed;
#[cfg(test)]
pub(crate) mod tests;

pub use directory::Directory;
pub use image::Image;
pub use listed::Listed;

/// How often due changes are written in the background.
const BACKGROUND_INTERVAL: Duration = Duration::from_secs(1);

/// Extended attributes: names and values.
pub type Xattrs = Vec<(Vec<u8>, Vec<u8>)>;

/// A tree to copy from, with a current directory.
pub trait Source {
    /// Changes to the top directory, and returns it.
    fn root(&mut self) -> Result<Item, CopyCause>;
    /// The entries of the current directory.
    fn list(&self) -> Result<Vec<Item>, CopyCause>;
    /// Changes to a subdirectory of the current one.
    fn enter(&mut self, name: &[u8]) -> Result<(), CopyCause>;
    /// Changes to the parent of the current one.
    fn leave(&mut self) -> Result<(), CopyCause>;
    /// The target of a symbolic link in the current directory.
    fn link_target(&self, name: &[u8]) -> Result<Vec<u8>, CopyCause>;
    /// The extended attributes of the current directory.
    fn xattrs(&self) -> Result<Xattrs, CopyCause>;
    /// Whether a file in the current directory has an access ACL.
    fn has_acl(&self, name: &[u8]) -> Result<bool, CopyCause>;
    /// Copies a non-directory of the current directory, with its attributes, to a directory of the volume;
    /// returns the number of bytes copied. If an attribute is refused, the error is
    /// [`CopyCause::Attribute`], and the copy has all others.
    fn copy(&self, item: &Item, files: &Files, to: &Node) -> Result<u64, CopyCause>;
}

/// A file of a tree.
#[derive(Clone, Debug)]
pub struct Item {
    pub name: Vec<u8>,
    pub file_type: FileType,
    /// The size of its contents in bytes.
    pub size: u64,
    /// The time of their last change.
    pub mtime: Timestamp,
    /// The lower 12 bits of the mode.
    pub permissions: u32,
    pub uid: u32,
    /// Owning group.
    pub gid: u32,
    /// The number of its names.
    pub nlink: u64,
    /// Identifies the file, independent of its name.
    pub identity: (u64, u64),
    /// The number of a device, `major << 32 | minor`.
    pub device: u64,
}

/// Counts of files of all types.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Done {
    pub copied: u64,
    /// Their contents in bytes.
    pub bytes: u64,
    pub same: u64,
    pub removed: u64,
    /// Not copied, or not removed.
    pub failures: u64,
}

/// Makes a volume equal to a tree.
pub struct Mirror<'a> {
    files: &'a Files,
    source: &'a mut dyn Source,
    /// Called for each file, with the reason if it failed.
    watch: &'a dyn Fn(&[u8], Option<&CopyCause>),
    /// The path of the current file, for `watch`.
    path: Vec<u8>,
    /// The copies of files with several names, and the number of names not met yet, by source identity.
    links: HashMap<(u64, u64), (Node, u64)>,
    /// The changes of the tree; all of it is compared if they are not known.
    listed: Option<Listed>,
    /// The paths of failures, which a second walk meets again.
    failed: HashSet<Vec<u8>>,
    done: Done,
}

/// A directory in progress.
struct Level {
    item: Item,
    /// The directory of the volume.
    to: Node,
    /// The remaining entries, each with the volume's file of that name.
    left: vec::IntoIter<(Item, Option<Attr>)>,
}

impl<'a> Mirror<'a> {
    /// Prepares the work.
    pub fn new(
        files: &'a Files,
        source: &'a mut dyn Source,
        watch: &'a dyn Fn(&[u8], Option<&CopyCause>),
    ) -> Mirror<'a> {
        let (links, failed, done) = Default::default();
        Mirror { files, source, watch, path: b"/".to_vec(), links, listed: None, failed, done }
    }

    /// Compares only listed files, and the directories above them.
    pub fn since(mut self, listed: Option<Listed>) -> Mirror<'a> {
        self.listed = listed;
        self
    }

    /// Does the work. An unreadable file counts as a failure, and the volume keeps its file of that name.
    ///
    /// # Errors
    ///
    /// The volume accepts no changes, or has no space left; the tree was changed meanwhile, so that the walk
    /// cannot continue.
    pub fn run(mut self) -> Result<Done, CopyCause> {
        let files = self.files;
        files.volume().writer().background().run_during(BACKGROUND_INTERVAL, drop, || {
            self.walk()?;
            // A file that got a name in a renamed directory keeps its other names, which are not listed.
            if self.listed.take().is_some() && self.links.values().any(|(_, left)| *left > 0) {
                // This walk meets all names; those that were copied before are unchanged now.
                let copied = self.done.copied;
                self.done.same = 0;
                self.walk()?;
                self.done.same = self.done.same.saturating_sub(copied);
            }
            self.done.failures = self.failed.len() as u64;
            Ok(self.done)
        })
    }

    fn walk(&mut self) -> Result<(), CopyCause> {
        let root = self.source.root()?;
        let files = self.files;
        let mut levels = Vec::from_iter(self.begin(root, Node::root(files.volume()))?);
        while let Some(level) = levels.last_mut() {
            let Some((item, there)) = level.left.next() else {
                self.finish(level)?;
                self.leave(&level.item)?;
                levels.pop();
                continue;
            };
            self.go_below(&item.name);
            let entered = match self.entry(&level.to, &item, there.as_ref()) {
                Ok(Some(to)) => self.source.enter(&item.name).map(|()| Some(to)),
                made => made,
            };
            let below = match self.tried(entered)?.flatten() {
                Some(to) => self.begin(item, to)?,
                None => {
                    self.go_up(&item.name);
                    None
                }
            };
            levels.extend(below);
        }
        Ok(())
    }

    /// Lists the current directory, and removes entries that only the volume has. `None` if it cannot be
    /// read.
    fn begin(&mut self, item: Item, to: Node) -> Result<Option<Level>, CopyCause> {
        let listed = self.source.list();
        let Some(items) = self.tried(listed)? else {
            self.leave(&item)?;
            return Ok(None);
        };
        let mut there: HashMap<Vec<u8>, Attr> =
            to.entries()?.into_iter().map(|item| (item.name, item.attr)).collect();
        let mut wanted: Vec<_> = items
            .into_iter()
            .map(|item| {
                let there = there.remove(&item.name);
                (item, there)
            })
            .collect();
        for (name, attr) in there {
            self.remove(&to, &name, &attr)?;
        }
        wanted.retain(|(item, there)| self.is_compared(item, there.as_ref()));
        Ok(Some(Level { item, to, left: wanted.into_iter() }))
    }

    /// Whether an entry of the current directory may differ from the volume's file of that name.
    fn is_compared(&self, item: &Item, there: Option<&Attr>) -> bool {
        let Some(listed) = &self.listed else { return true };
        there.is_none_or(|there| there.file_type != item.file_type)
            || listed.leads_to(&join(&self.path, &item.name))
    }

    /// Sets the attributes of the current directory, after changes to its entries have changed its times.
    fn finish(&mut self, level: &Level) -> Result<(), CopyCause> {
        let attributes = self.source.xattrs().and_then(|xattrs| {
            let mut item = level.item.clone();
            let wanted: Xattrs =
                xattrs.into_iter().filter(|(name, _)| level.to.copies_xattr(name, true)).collect();
            let (permissions, outcome) = level.to.copy_xattrs(&wanted, item.permissions);
            item.permissions = permissions;
            self.set_attributes(level.to.ino(), &item)?;
            outcome
        });
        self.tried(attributes).map(drop)
    }

    /// Leaves the current directory, unless it is the top.
    fn leave(&mut self, dir: &Item) -> Result<(), CopyCause> {
        if !dir.name.is_empty() {
            self.source.leave()?;
            self.go_up(&dir.name);
        }
        Ok(())
    }

    /// Appends a name to the path.
    fn go_below(&mut self, name: &[u8]) {
        if !self.path.ends_with(b"/") {
            self.path.push(b'/');
        }
        self.path.extend_from_slice(name);
    }

    /// Removes the last name from the path.
    fn go_up(&mut self, name: &[u8]) {
        let slash = self.path.len() - name.len() - 1;
        self.path.truncate(slash.max(1));
    }

    /// Makes one name equal to the tree's; `there` is the volume's file of that name. Returns a directory to
    /// descend into.
    fn entry(
        &mut self,
        to: &Node,
        item: &Item,
        there: Option<&Attr>,
    ) -> Result<Option<Node>, CopyCause> {
        let there = match there {
            Some(attr) if attr.file_type != item.file_type => {
                self.remove(to, &item.name, attr)?;
                None
            }
            there => there,
        };
        if item.file_type == FileType::Directory {
            if there.is_some() {
                self.same();
                return Ok(Some(to.lookup(&item.name)?));
            }
            let made = make(to, item, NewKind::Directory)?;
            self.copied(0);
            return Ok(Some(made));
        }
        if item.nlink > 1
            && let Some((first, left)) = self.links.get_mut(&item.identity)
        {
            let first = first.try_clone()?;
            *left = left.saturating_sub(1);
            return self.link(&first, to, &item.name, there).map(|()| None);
        }
        match there {
            Some(attr) if self.is_same(to, item, attr)? => {
                self.set_attributes(attr.ino, item)?;
                self.same();
            }
            there => {
                if there.is_some() {
                    self.files.volume().unlink(&Caller::ROOT, to.ino(), &item.name)?;
                }
                let copied = self.source.copy(item, self.files, to);
                if let Err(CopyCause::Attribute { .. }) = &copied {
                    self.remember(to, item)?;
                }
                self.copied(copied?);
            }
        }
        self.remember(to, item)?;
        Ok(None)
    }

    /// Remembers the copy of a file with several names.
    fn remember(&mut self, to: &Node, item: &Item) -> Result<(), CopyCause> {
        if item.nlink > 1 {
            self.links.insert(item.identity, (to.lookup(&item.name)?, item.nlink - 1));
        }
        Ok(())
    }

    /// Adds a name to a file of the volume.
    fn link(
        &mut self,
        first: &Node,
        to: &Node,
        name: &[u8],
        there: Option<&Attr>,
    ) -> Result<(), CopyCause> {
        if let Some(attr) = there {
            if attr.ino == first.ino() {
                self.same();
                return Ok(());
            }
            self.files.volume().unlink(&Caller::ROOT, to.ino(), name)?;
        }
        to.link(first, name)?;
        self.copied(0);
        Ok(())
    }

    fn is_same(&self, to: &Node, item: &Item, there: &Attr) -> Result<bool, CopyCause> {
        if self.listed.as_ref().is_some_and(|listed| listed.has(&self.path)) {
            return Ok(false);
        }
        // The copy may lack the ACL, which was refused. Then the mode of its source would grant too much.
        let may_lack_acl = there.permissions != item.permissions
            && there.permissions == without_acl(item.permissions);
        if item.file_type != FileType::Symlink && may_lack_acl && self.source.has_acl(&item.name)? {
            return Ok(false);
        }
        Ok(match item.file_type {
            FileType::Regular => (item.size, item.mtime) == (there.size, there.mtime),
            FileType::Symlink => {
                let link = to.lookup(&item.name)?;
                self.source.link_target(&item.name)? == self.files.volume().read_link(link.ino())?
            }
            _ => item.device == there.device,
        })
    }

    /// Sets owner, mode and time if they differ.
    fn set_attributes(&self, ino: InodeNo, item: &Item) -> Result<(), Error> {
        let there = self.files.volume().attr(ino)?;
        let is_symlink = item.file_type == FileType::Symlink;
        let wanted = |new: u32, old: u32| (new != old).then_some(new);
        let mut changes = SetAttr {
            permissions: wanted(item.permissions, there.permissions).filter(|_| !is_symlink),
            uid: wanted(item.uid, there.uid),
            gid: wanted(item.gid, there.gid),
            mtime: (item.mtime != there.mtime).then_some(SetTime::To(item.mtime)),
            ..SetAttr::default()
        };
        if changes.uid.or(changes.gid).is_some() && !is_symlink {
            // A change of owner clears set-id bits.
            changes.permissions = Some(item.permissions);
        }
        if changes != SetAttr::default() {
            self.files.volume().set_attr(&Caller::ROOT, ino, &changes)?;
        }
        Ok(())
    }

    /// Removes a name from a directory, and everything below it.
    fn remove(&mut self, from: &Node, name: &[u8], attr: &Attr) -> Result<(), CopyCause> {
        self.done.removed += from.remove_all(name, attr.file_type)?;
        Ok(())
    }

    fn copied(&mut self, bytes: u64) {
        self.done.copied += 1;
        self.done.bytes += bytes;
        (self.watch)(&self.path, None);
    }

    fn same(&mut self) {
        self.done.same += 1;
        (self.watch)(&self.path, None);
    }

    /// Handles a result: a failure of the tree, or of an extended attribute, concerns one
    /// file; one of the volume ends the work.
    fn tried<T>(&mut self, outcome: Result<T, CopyCause>) -> Result<Option<T>, CopyCause> {
        match outcome {
            Ok(done) => Ok(Some(done)),
            Err(cause @ (CopyCause::Host(_) | CopyCause::Attribute { .. }))
                if !is_final_of_volume(&cause) =>
            {
                if self.failed.insert(self.path.clone()) {
                    (self.watch)(&self.path, Some(&cause));
                }
                Ok(None)
            }
            Err(cause) => Err(cause),
        }
    }
}

/// Whether the volume refuses every other change, too. A full disk of the source is no reason to end.
fn is_final_of_volume(cause: &CopyCause) -> bool {
    matches!(cause.innermost(), CopyCause::Volume(_)) && cause.is_final()
}

/// Creates a file in a directory of the volume.
fn make(to: &Node, item: &Item, kind: NewKind<'_>) -> Result<Node, Error> {
    let (permissions, uid, gid) = (item.permissions, item.uid, item.gid);
    to.make(&item.name, &NewFile { kind, permissions, uid, gid, times: None })
}
