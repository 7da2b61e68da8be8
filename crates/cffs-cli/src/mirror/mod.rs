//! A volume that is made the same as a tree, by what differs alone.
//!
//! A file counts as the same if it is of the same type, size and time of change; owner and mode are set where
//! they differ. What the tree does not have is removed. A file gets its time when all of it is there, so one
//! that was interrupted is copied again.
//!
//! One thread does that: it is for trees of which little has changed. An empty volume is filled by
//! [`cffs::files::import`].

use std::collections::HashMap;
use std::time::Duration;

use cffs::clock::Timestamp;
use cffs::error::Error;
use cffs::files::{CopyCause, DirItem, Files};
use cffs::format::inode::FileType;
use cffs::vfs::types::{Attr, NewFile, NewKind, SetAttr, SetTime};

mod directory;
mod image;

pub use directory::Directory;
pub use image::Image;

/// How often the volume gets a chance to write what is due.
const BACKGROUND_INTERVAL: Duration = Duration::from_secs(1);

/// Extended attributes: names and values.
pub type Xattrs = Vec<(Vec<u8>, Vec<u8>)>;

/// A tree to copy from.
pub trait Source {
    /// The directory at which it begins.
    fn root(&self) -> Result<Item, CopyCause>;
    /// What is in a directory.
    fn list(&self, dir: &[u8]) -> Result<Vec<Item>, CopyCause>;
    /// Where a symbolic link leads.
    fn link_target(&self, path: &[u8]) -> Result<Vec<u8>, CopyCause>;
    /// Extended attributes.
    fn xattrs(&self, path: &[u8]) -> Result<Xattrs, CopyCause>;
    /// Copies a file that is no directory, with all that belongs to it; how many bytes that was.
    fn copy(&self, path: &[u8], item: &Item, files: &Files, to: &[u8]) -> Result<u64, CopyCause>;
}

/// A file of a tree.
#[derive(Clone, Debug)]
pub struct Item {
    /// Its name.
    pub name: Vec<u8>,
    /// Its type.
    pub file_type: FileType,
    /// Bytes of its contents.
    pub size: u64,
    /// When they were changed.
    pub mtime: Timestamp,
    /// The lower 12 bits of the mode.
    pub permissions: u32,
    /// Owner.
    pub uid: u32,
    /// Owning group.
    pub gid: u32,
    /// How many names it has.
    pub nlink: u64,
    /// What its names have in common.
    pub identity: (u64, u64),
    /// The number of a device, `major << 32 | minor`.
    pub device: u64,
}

/// What was done, in files of all types.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Done {
    /// Copied.
    pub copied: u64,
    /// Their contents in bytes.
    pub bytes: u64,
    /// There already.
    pub same: u64,
    /// Removed.
    pub removed: u64,
    /// Not copied, or not removed.
    pub failures: u64,
}

/// Makes a volume the same as a tree.
pub struct Mirror<'a> {
    files: &'a Files,
    source: &'a dyn Source,
    /// Called for each file, with why it failed if it did.
    watch: &'a dyn Fn(&[u8], Option<&CopyCause>),
    /// Where the files with several names came to.
    links: HashMap<(u64, u64), Vec<u8>>,
    done: Done,
}

impl<'a> Mirror<'a> {
    /// Nothing is done yet.
    pub fn new(
        files: &'a Files,
        source: &'a dyn Source,
        watch: &'a dyn Fn(&[u8], Option<&CopyCause>),
    ) -> Mirror<'a> {
        Mirror { files, source, watch, links: HashMap::new(), done: Done::default() }
    }

    /// Does it. A file that cannot be read is a failure, and what the volume has of it stays.
    ///
    /// # Errors
    ///
    /// The volume accepts no changes, or has no space left.
    pub fn run(mut self) -> Result<Done, CopyCause> {
        let files = self.files;
        let root = self.source.root()?;
        files.volume().with_background(BACKGROUND_INTERVAL, drop, || {
            self.directory(b"/", &root)?;
            Ok(self.done)
        })
    }

    fn directory(&mut self, path: &[u8], dir: &Item) -> Result<(), CopyCause> {
        let Some(items) = self.tried(path, self.source.list(path))? else { return Ok(()) };
        let mut there: HashMap<Vec<u8>, Attr> =
            self.files.read_dir(path)?.into_iter().map(|item| (item.name, item.attr)).collect();
        let wanted: Vec<_> = items
            .into_iter()
            .map(|item| {
                let there = there.remove(&item.name);
                (item, there)
            })
            .collect();
        for (name, attr) in there {
            self.remove(&below(path, &name), &attr)?;
        }
        for (item, there) in &wanted {
            let path = below(path, &item.name);
            let entered = self.entry(&path, item, there.as_ref());
            self.tried(&path, entered)?;
        }
        // Changing the entries changed the directory's times, so its own come last.
        let attributes = self.source.xattrs(path).and_then(|xattrs| {
            let ino = self.files.stat_itself(path)?.ino;
            self.files.volume().copy_xattrs(ino, &xattrs)?;
            Ok(self.set_attributes(path, dir)?)
        });
        self.tried(path, attributes).map(drop)
    }

    /// Makes one name what it is to be; `there` is what it is.
    fn entry(&mut self, path: &[u8], item: &Item, there: Option<&Attr>) -> Result<(), CopyCause> {
        let there = match there {
            Some(attr) if attr.file_type != item.file_type => {
                self.remove(path, attr)?;
                None
            }
            there => there,
        };
        if item.file_type == FileType::Directory {
            if there.is_none() {
                make(self.files, path, item, NewKind::Directory)?;
                self.copied(path, 0);
            } else {
                self.same(path);
            }
            return self.directory(path, item);
        }
        if item.nlink > 1 {
            if let Some(first) = self.links.get(&item.identity).cloned() {
                return self.link(&first, path, there);
            }
            self.links.insert(item.identity, path.to_vec());
        }
        if let Some(attr) = there {
            if self.is_same(path, item, attr)? {
                self.set_attributes(path, item)?;
                self.same(path);
                return Ok(());
            }
            self.files.remove_file(path)?;
        }
        let bytes = self.source.copy(path, item, self.files, path)?;
        self.copied(path, bytes);
        Ok(())
    }

    /// A further name of a file that is there.
    fn link(&mut self, first: &[u8], path: &[u8], there: Option<&Attr>) -> Result<(), CopyCause> {
        if let Some(attr) = there {
            if attr.ino == self.files.stat_itself(first)?.ino {
                self.same(path);
                return Ok(());
            }
            self.files.remove_file(path)?;
        }
        self.files.hard_link(first, path)?;
        self.copied(path, 0);
        Ok(())
    }

    fn is_same(&self, path: &[u8], item: &Item, there: &Attr) -> Result<bool, CopyCause> {
        Ok(match item.file_type {
            FileType::Regular => (item.size, item.mtime) == (there.size, there.mtime),
            FileType::Symlink => self.source.link_target(path)? == self.files.read_link(path)?,
            _ => item.device == there.device,
        })
    }

    /// Sets owner, mode and time where they differ.
    fn set_attributes(&self, path: &[u8], item: &Item) -> Result<(), Error> {
        let there = self.files.stat_itself(path)?;
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
            // A change of owner takes set-id bits away.
            changes.permissions = Some(item.permissions);
        }
        if changes != SetAttr::default() {
            self.files.volume().set_attr(there.ino, &changes)?;
        }
        Ok(())
    }

    fn remove(&mut self, path: &[u8], attr: &Attr) -> Result<(), CopyCause> {
        if attr.file_type == FileType::Directory {
            for DirItem { name, attr } in self.files.read_dir(path)? {
                self.remove(&below(path, &name), &attr)?;
            }
            self.files.remove_dir(path)?;
        } else {
            self.files.remove_file(path)?;
        }
        self.done.removed += 1;
        Ok(())
    }

    fn copied(&mut self, path: &[u8], bytes: u64) {
        self.done.copied += 1;
        self.done.bytes += bytes;
        (self.watch)(path, None);
    }

    fn same(&mut self, path: &[u8]) {
        self.done.same += 1;
        (self.watch)(path, None);
    }

    /// What came of an attempt. A failure of the tree is one file's; one of the volume ends all.
    fn tried<T>(
        &mut self,
        path: &[u8],
        outcome: Result<T, CopyCause>,
    ) -> Result<Option<T>, CopyCause> {
        match outcome {
            Ok(done) => Ok(Some(done)),
            Err(cause @ CopyCause::Host(_)) => {
                self.done.failures += 1;
                (self.watch)(path, Some(&cause));
                Ok(None)
            }
            Err(cause) => Err(cause),
        }
    }
}

/// A path one name longer.
pub fn below(dir: &[u8], name: &[u8]) -> Vec<u8> {
    let mut path = dir.to_vec();
    if !path.ends_with(b"/") {
        path.push(b'/');
    }
    path.extend_from_slice(name);
    path
}

/// Makes a file, and returns its inode.
fn make(files: &Files, path: &[u8], item: &Item, kind: NewKind<'_>) -> Result<Attr, Error> {
    let at = path.iter().rposition(|byte| *byte == b'/').unwrap_or(0);
    let (dir, name) = (&path[..at.max(1)], &path[at + 1..]);
    let dir = files.stat_itself(dir)?.ino;
    let (permissions, uid, gid) = (item.permissions, item.uid, item.gid);
    let made =
        files.volume().make(dir, name, &NewFile { kind, permissions, umask: 0, uid, gid })?;
    files.volume().release(made.ino, 1);
    Ok(made)
}
