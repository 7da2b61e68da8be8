//! Handing an open volume over: closing it while a front end continues to use its files, since a volume is
//! opened on the same device right after, say by a newer version of the server.
//!
//! ```text
//!   close_for_successor                                open, succeed
//!   files without a name get one in DIRECTORY;   ───▶  the references are taken again, and the
//!   the volume is closed, clean                        names in DIRECTORY go
//! ```
//!
//! An inode without a name exists in memory alone, hence the names. If no successor comes, they stay:
//! the next handover removes them, and so may any user with the permission to.

use super::{Caller, NewFile, NewKind, SetAttr, SetTime, Volume, XattrMode};
use crate::error::{Error, Result};
use crate::trace::OpKind;
use crate::units::InodeNo;

#[cfg(test)]
mod tests;

/// The directory, in the root, in which files without a name have one between two servers.
const DIRECTORY: &[u8] = b".cffs-handover";
/// The attribute that this directory has, so that no user's own is taken for it.
const MARK: &[u8] = b"trusted.cffs.handover";

/// The open files of a volume when it was closed for a successor.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Handover {
    /// The inodes with references on them, and how many.
    pub references: Vec<(InodeNo, u64)>,
    /// Whether some of them have no name but the one that the handover gave them.
    pub has_nameless: bool,
}

impl Volume {
    /// Closes the volume as [`close`](Volume::close) does, but keeps the files without a name that
    /// are in use. Nothing else may be under way.
    ///
    /// A directory that was removed while it was in use is not kept: it is empty, and calls on it
    /// fail from then on with [`Error::Stale`].
    ///
    /// # Errors
    ///
    /// [`Error::Latched`] if an earlier write failed: the changes in memory would be lost.
    /// [`Error::Exists`] if the root has an entry of the name `.cffs-handover` that no handover made.
    /// Others as of `close`. Unless the error is from closing, the volume stays open.
    pub fn close_for_successor(&self) -> Result<Handover> {
        let _op = self.enter_volume(OpKind::Maintenance);
        if let Some(why) = self.latched() {
            return Err(Error::Latched(why));
        }
        let references = self.references.all();
        let nameless = self.references.orphans();
        let has_nameless = !nameless.is_empty();
        if has_nameless {
            let directory = self.handover_directory()?;
            nameless.iter().try_for_each(|ino| self.name_for_successor(directory, *ino))?;
        }
        self.close()?;
        Ok(Handover { references, has_nameless })
    }

    /// Takes over the files that were in use when the volume was closed for this one.
    ///
    /// # Errors
    ///
    /// Those of removing names. The references are taken in any case.
    pub fn succeed(&self, handover: &Handover) -> Result<()> {
        for (ino, count) in &handover.references {
            self.references.take_many(*ino, *count);
        }
        if !handover.has_nameless {
            return Ok(());
        }
        let root = self.find(InodeNo::ROOT)?;
        let directory = self.lookup(InodeNo::ROOT, DIRECTORY)?.ino;
        let removed = self.empty(directory).and_then(|()| {
            self.remove_dir(&Caller::ROOT, InodeNo::ROOT, DIRECTORY)?;
            // The root looks as it did before.
            let mtime = Some(SetTime::To(root.mtime));
            self.set_attr(&Caller::ROOT, InodeNo::ROOT, &SetAttr { mtime, ..SetAttr::default() })
                .map(drop)
        });
        self.release(directory, 1);
        removed
    }

    /// An empty directory for names, made if it is not there.
    fn handover_directory(&self) -> Result<InodeNo> {
        let made = match self.lookup(InodeNo::ROOT, DIRECTORY) {
            Ok(found) => {
                self.release(found.ino, 1);
                if self.xattr(found.ino, MARK).is_err() {
                    return Err(Error::Exists);
                }
                self.empty(found.ino)?;
                return Ok(found.ino);
            }
            Err(Error::NotFound) => {
                let new = NewFile {
                    kind: NewKind::Directory,
                    permissions: 0o700,
                    uid: 0,
                    gid: 0,
                    times: None,
                };
                let mtime = Some(SetTime::To(self.attr(InodeNo::ROOT)?.mtime));
                let made = self.make(&Caller::ROOT, InodeNo::ROOT, DIRECTORY, &new)?;
                self.set_attr(
                    &Caller::ROOT,
                    InodeNo::ROOT,
                    &SetAttr { mtime, ..SetAttr::default() },
                )?;
                made
            }
            Err(error) => return Err(error),
        };
        self.release(made.ino, 1);
        self.set_xattr(&Caller::ROOT, made.ino, MARK, b"1", XattrMode::Create)?;
        Ok(made.ino)
    }

    /// Gives a file a name. A directory can have none that is not its place in the tree.
    fn name_for_successor(&self, directory: InodeNo, ino: InodeNo) -> Result<()> {
        match self.link(ino, directory, ino.to_string().as_bytes()) {
            Ok(_) => {
                self.release(ino, 1);
                Ok(())
            }
            Err(Error::NotPermitted) => Ok(()),
            Err(error) => Err(error),
        }
    }

    /// Removes all names from a directory of files.
    fn empty(&self, directory: InodeNo) -> Result<()> {
        let mut names: Vec<Vec<u8>> = Vec::new();
        self.read_dir(directory, 0, false, &mut |entry| {
            names.push(entry.name.to_vec());
            true
        })?;
        names.iter().try_for_each(|name| self.unlink(&Caller::ROOT, directory, name))
    }
}
