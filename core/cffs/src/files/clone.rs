//! Clones of trees: a tree is copied within its volume, and its files share clusters with their sources
//! ([`Volume::copy`]).
//!
//! Directories and files are made in the order of their source, each directory with all its entries before
//! its subdirectories are filled. The first failure ends the clone, and the files that it made stay.

use std::collections::HashMap;
use std::ops::ControlFlow;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::copy::without_privileges;
use super::{DirItem, Node};
use crate::error::{Corruption, Error, Result};
use crate::format::inode::FileType;
use crate::units::InodeNo;
use crate::vfs::types::{Attr, NewFile, NewKind, SetAttr, SetTime};
use crate::vfs::{Caller, Volume, copy_xattrs};

const ACL: &[u8] = b"system.posix_acl_access";
/// The longest path below the source. It also limits the memory of the directories that wait to be filled.
const PATH_BYTES_MAX: usize = 4096;
/// A directory has at most this many above it, unless damage made them a loop.
const PARENTS_MAX: u32 = 1 << 20;
const SET_USER_ID: u32 = 0o4000;
const SET_GROUP_ID: u32 = 0o2000;

/// A use of a file or a directory for which a clone needs permission.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Need {
    /// To read a file.
    Read,
    /// To list a directory and look up its names.
    List,
    /// To make a name in a directory.
    Change,
}

/// Decides whether the caller has a permission on a file with these attributes and this access ACL.
pub type May<'a> = dyn Fn(&Attr, Option<&[u8]>, Need) -> bool + 'a;

/// The files that a clone has made, counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Cloned {
    /// Directories.
    pub directories: u64,
    /// Regular files.
    pub files: u64,
    /// Symbolic links.
    pub symlinks: u64,
    /// Second and further names of files.
    pub hard_links: u64,
    /// Pipes, sockets and devices.
    pub special: u64,
    /// Sizes of the regular files.
    pub bytes: u64,
}

/// A step of a clone.
#[derive(Clone, Copy, Debug)]
pub enum CloneStep<'a> {
    /// A file, still without contents, or a name of a file was made: its directory, name and inode.
    Entry(InodeNo, &'a [u8], InodeNo),
    /// Contents or attributes of a file changed, or attributes of a directory.
    Changed(InodeNo),
}

/// Watches the steps of a clone, and may end it.
pub type CloneWatch<'a> = dyn FnMut(CloneStep<'_>, &Cloned) -> ControlFlow<()> + 'a;

/// Why a tree was not cloned, or not all of it.
#[derive(Debug, thiserror::Error)]
pub enum CloneError {
    /// A file could not be copied.
    #[error("{}{}{error}", path.escape_ascii(), if path.is_empty() { "" } else { ": " })]
    Failed {
        /// Its path below the source.
        path: Vec<u8>,
        /// The reason.
        error: Error,
    },
    /// The [watch](CloneWatch) ended it.
    #[error("the clone was ended before it was complete")]
    Ended,
}

/// A directory whose entries are still to be cloned.
struct Task {
    path: Vec<u8>,
    source: Node,
    target: Node,
}

/// One clone.
struct Clone<'a> {
    volume: &'a Arc<Volume>,
    caller: &'a Caller<'a>,
    may: &'a May<'a>,
    watch: &'a mut CloneWatch<'a>,
    /// The copy of each file with several names, by the number and the generation of the file.
    first_names: HashMap<(InodeNo, u32), Node>,
    /// The copy of the source itself.
    top: Option<InodeNo>,
    cloned: Cloned,
}

/// Clones the tree at `source` for a caller, whose permissions `may` decides; the copy gets a name in `dir`.
/// Changed files are written first, since only durable contents are shared. Unless the caller is root, it
/// owns the copy, which then has no attributes of `security.` and `trusted.`.
///
/// # Errors
///
/// [`Error::Exists`] if the name exists; [`Error::Invalid`] if `dir` is in the tree;
/// [`Error::AccessDenied`] if the caller may not make names in `dir`, and for a file that it may not read;
/// [`Error::NotPermitted`] for a device if it is not root; [`Error::NameTooLong`] if a path below the source
/// is longer than 4096 bytes; [`Error::Stale`] for a file that was removed meanwhile. The files that were
/// made before the failure stay.
pub fn clone_tree<'a>(
    caller: &'a Caller<'a>,
    may: &'a May<'a>,
    source: &Node,
    dir: &'a Node,
    name: &[u8],
    watch: &'a mut CloneWatch<'a>,
) -> Result<Cloned, CloneError> {
    let failed = |error| CloneError::Failed { path: Vec::new(), error };
    let mut clone = Clone {
        volume: dir.volume().map_err(failed)?,
        caller,
        may,
        watch,
        first_names: HashMap::new(),
        top: None,
        cloned: Cloned::default(),
    };
    clone.check(source, dir).map_err(failed)?;
    dir.volume().and_then(|volume| volume.sync()).map_err(failed)?;
    clone.run(source, dir, name)?;
    Ok(clone.cloned)
}

impl Clone<'_> {
    fn check(&self, source: &Node, dir: &Node) -> Result<()> {
        self.check_may(&dir.attr()?, Need::Change)?;
        let mut above = dir.ino();
        for _ in 0..PARENTS_MAX {
            if above == source.ino() {
                return Err(Error::Invalid("a tree cannot be cloned into itself"));
            }
            if above == InodeNo::ROOT {
                return Ok(());
            }
            above = self.volume.parent(above)?;
        }
        Err(Corruption::Loop { ino: above }.into())
    }

    fn check_may(&self, attr: &Attr, need: Need) -> Result<()> {
        let acl = match self.volume.xattr(attr.ino, ACL) {
            Ok(acl) => Some(acl),
            Err(Error::NoAttribute) => None,
            Err(error) => return Err(error),
        };
        if (self.may)(attr, acl.as_deref(), need) { Ok(()) } else { Err(Error::AccessDenied) }
    }

    fn run(&mut self, source: &Node, dir: &Node, name: &[u8]) -> Result<(), CloneError> {
        let mut tasks = Vec::new();
        let failed = |error| CloneError::Failed { path: Vec::new(), error };
        let attr = source.attr().map_err(failed)?;
        tasks.extend(self.entry(&[], &attr, dir, name)?);
        // Depth first, so that few directories wait.
        while let Some(task) = tasks.pop() {
            let failed = |error| CloneError::Failed { path: task.path.clone(), error };
            let mut found = Vec::new();
            // It may have changed since its copy was made.
            let attr = task.source.attr().map_err(failed)?;
            self.check_may(&attr, Need::List).map_err(failed)?;
            for DirItem { name, attr } in task.source.entries().map_err(failed)? {
                // The copy may have been moved into its source.
                if Some(attr.ino) != self.top {
                    let separator = if task.path.is_empty() { &b""[..] } else { b"/" };
                    let path = [&task.path, separator, &name].concat();
                    if path.len() > PATH_BYTES_MAX {
                        return Err(failed(Error::NameTooLong));
                    }
                    found.extend(self.entry(&path, &attr, &task.target, &name)?);
                }
            }
            // Making the entries changes the times of the directory, so these are set last.
            let attr = task.source.attr().map_err(failed)?;
            let set = self.attributes(&attr, &task.target).map_err(failed);
            let told = self.step(CloneStep::Changed(task.target.ino()));
            set.and(told)?;
            tasks.extend(found.into_iter().rev());
        }
        Ok(())
    }

    /// Clones one file that was listed. Only makes a directory, and returns it to be filled.
    fn entry(
        &mut self,
        path: &[u8],
        listed: &Attr,
        dir: &Node,
        name: &[u8],
    ) -> Result<Option<Task>, CloneError> {
        let failed = |error| CloneError::Failed { path: path.to_vec(), error };
        let source = dir.find(listed.ino).map_err(failed)?;
        // The file may have changed since it was listed, and its number may be that of another one.
        let attr = &source.attr().map_err(failed)?;
        if (attr.generation, attr.file_type) != (listed.generation, listed.file_type) {
            return Err(failed(Error::Stale));
        }
        let is_dir = attr.file_type == FileType::Directory;
        let identity = (attr.ino, attr.generation);
        if let Some(first) = self.first_names.get(&identity) {
            let ino = dir.link(first, name).map_err(failed)?.ino();
            self.cloned.hard_links += 1;
            let named = self.step(CloneStep::Entry(dir.ino(), name, ino));
            self.step(CloneStep::Changed(ino)).and(named)?;
            return Ok(None);
        }
        let target = self.make(attr, dir, name).map_err(failed)?;
        self.top.get_or_insert(target.ino());
        // The file stays after a failure, so the watch has to know it before.
        self.step(CloneStep::Entry(dir.ino(), name, target.ino()))?;
        let mut filled = Ok(());
        if attr.file_type == FileType::Regular {
            filled = self.contents(path, attr, &target);
        }
        if !is_dir {
            filled = filled.and_then(|()| self.attributes(attr, &target).map_err(failed));
        }
        if filled.is_ok() {
            self.count(attr.file_type);
        }
        let told = if is_dir { Ok(()) } else { self.step(CloneStep::Changed(target.ino())) };
        filled.and(told)?;
        if is_dir {
            return Ok(Some(Task { path: path.to_vec(), source, target }));
        }
        if attr.nlink > 1 {
            self.first_names.insert(identity, target);
        }
        Ok(None)
    }

    /// Makes the copy of a file, which only the caller may use until it is complete.
    fn make(&self, attr: &Attr, dir: &Node, name: &[u8]) -> Result<Node> {
        let target;
        let is_root = self.caller.uid == 0;
        let kind = match attr.file_type {
            FileType::Regular => {
                self.check_may(attr, Need::Read)?;
                NewKind::Regular
            }
            FileType::Directory => {
                self.check_may(attr, Need::List)?;
                NewKind::Directory
            }
            FileType::Symlink => {
                target = self.volume.read_link(attr.ino)?;
                NewKind::Symlink(&target)
            }
            FileType::Fifo => NewKind::Fifo,
            FileType::Socket => NewKind::Socket,
            FileType::CharDevice if is_root => NewKind::CharDevice(attr.device),
            FileType::BlockDevice if is_root => NewKind::BlockDevice(attr.device),
            FileType::CharDevice | FileType::BlockDevice => return Err(Error::NotPermitted),
        };
        let Caller { uid, gid, .. } = *self.caller;
        let new = NewFile { kind, permissions: 0o700, uid, gid, times: None };
        let made = self.volume.make(self.caller, dir.ino(), name, &new)?;
        Ok(Node::adopt(self.volume, &made))
    }

    fn contents(&mut self, path: &[u8], attr: &Attr, target: &Node) -> Result<(), CloneError> {
        let failed = |error| CloneError::Failed { path: path.to_vec(), error };
        let mut at = 0;
        loop {
            let copied =
                self.volume.copy(self.caller, (attr.ino, at), (target.ino(), at), u64::MAX);
            match copied.map_err(failed)? {
                0 => break,
                bytes => at += bytes,
            }
            self.step(CloneStep::Changed(target.ino()))?;
        }
        self.cloned.bytes += at;
        Ok(())
    }

    /// Gives the copy the attributes of its source: all for root, and for others those that they may set.
    fn attributes(&self, attr: &Attr, target: &Node) -> Result<()> {
        let is_root = self.caller.uid == 0;
        let may_set =
            |name: &[u8]| is_root || name.starts_with(b"user.") || name.starts_with(b"system.");
        let mut xattrs = Vec::new();
        for name in self.volume.xattr_names(attr.ino)? {
            if may_set(&name) {
                match self.volume.xattr(attr.ino, &name) {
                    Ok(value) => xattrs.push((name, value)),
                    Err(Error::NoAttribute) => {}
                    Err(error) => return Err(error),
                }
            }
        }
        copy_xattrs(self.volume, self.caller, target.ino(), &xattrs)?;
        let uid = if is_root { attr.uid } else { self.caller.uid };
        let keeps_group = is_root || self.caller.may_act_for(attr.gid);
        let keeps = |is_kept: bool, bit: u32| if is_kept { attr.permissions & bit } else { 0 };
        let set_id = keeps(uid == attr.uid, SET_USER_ID) | keeps(keeps_group, SET_GROUP_ID);
        let is_symlink = attr.file_type == FileType::Symlink;
        let permissions = without_privileges(attr.permissions) | set_id;
        let changes = SetAttr {
            permissions: (!is_symlink).then_some(permissions),
            uid: Some(uid),
            // Otherwise it stays that of a new file.
            gid: keeps_group.then_some(attr.gid),
            atime: Some(SetTime::To(attr.atime)),
            mtime: Some(SetTime::To(attr.mtime)),
            ..SetAttr::default()
        };
        self.volume.set_attr(self.caller, target.ino(), &changes).map(drop)
    }

    fn count(&mut self, kind: FileType) {
        let count = match kind {
            FileType::Directory => &mut self.cloned.directories,
            FileType::Regular => &mut self.cloned.files,
            FileType::Symlink => &mut self.cloned.symlinks,
            _ => &mut self.cloned.special,
        };
        *count += 1;
    }

    fn step(&mut self, step: CloneStep<'_>) -> Result<(), CloneError> {
        match (self.watch)(step, &self.cloned) {
            ControlFlow::Continue(()) => Ok(()),
            ControlFlow::Break(()) => Err(CloneError::Ended),
        }
    }
}
