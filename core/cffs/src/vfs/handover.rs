//! Handing an open volume over: it is closed while a front end continues to use its files, and opened again
//! right after, for example by a newer version of the server.
//!
//! ```text
//!   Handover::close                                    open, Handover::succeed
//!   files without a name get one in DIRECTORY;   ───▶  the references are taken again, and the
//!   the volume is closed, clean                        names in DIRECTORY go
//! ```
//!
//! An inode without a name exists only in memory, so it gets a name. If no successor opens the volume, the
//! names stay until the next handover or a user with permission removes them.

use super::xattr::{own_xattr, set_own_xattr};
use super::{Caller, NewFile, NewKind, SetAttr, SetTime, Volume, XattrMode};
use crate::error::{Error, Result};
use crate::trace::OpKind;
use crate::units::InodeNo;

#[cfg(test)]
mod tests;

/// The directory, in the root, with names for files without a name between two servers.
const DIRECTORY: &[u8] = b".cffs-handover";
/// The attribute of this directory, which distinguishes it from a user's directory of that name.
const MARK: &[u8] = b"trusted.cffs.handover";

/// The open files of a volume when it was closed for a successor.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Handover {
    /// The inodes with references on them, and how many.
    pub references: Vec<(InodeNo, u64)>,
    /// Whether some of them have no name but the one that the handover gave them.
    pub has_nameless: bool,
}

impl Handover {
    /// Checks that the volume can be handed over, and syncs it, so that closing it takes little time.
    ///
    /// # Errors
    ///
    /// The reason why it cannot, in words.
    pub fn prepare(volume: &Volume) -> std::result::Result<(), String> {
        volume.writer.inodes.cache.device().control().check_handover()?;
        match volume.sync() {
            Ok(()) | Err(Error::ReadOnly) => Ok(()),
            Err(error) => Err(error.to_string()),
        }
    }

    /// Closes the volume as [`close`](Volume::close) does, but keeps the files without a name that are in
    /// use, and exclusive access to the device. No other call may be in progress.
    ///
    /// A directory that was removed while it was in use is not kept: it is empty, and calls on it
    /// fail from then on with [`Error::Stale`].
    ///
    /// # Errors
    ///
    /// [`Error::Latched`] if an earlier write failed: the changes in memory would be lost.
    /// [`Error::Exists`] if the root has an entry of the name `.cffs-handover` that no handover made.
    /// Others as of `close`. Unless the error is from closing, the volume stays open.
    pub fn close(volume: &Volume) -> Result<Handover> {
        let _op = volume.writer.enter(OpKind::Maintenance, InodeNo::ROOT);
        if let Some(why) = volume.writer.health.latched() {
            return Err(Error::Latched(why));
        }
        let references = volume.references.all();
        let nameless = volume.references.orphans();
        let has_nameless = !nameless.is_empty();
        if has_nameless {
            let directory = make_directory(volume)?;
            nameless.iter().try_for_each(|ino| name_for_successor(volume, directory, *ino))?;
        }
        super::close_and(volume, |device| device.hand_over())?;
        Ok(Handover { references, has_nameless })
    }

    /// Takes over the files that were in use when the volume was closed for this one.
    ///
    /// # Errors
    ///
    /// Those of removing names. The references are taken in any case.
    pub fn succeed(&self, volume: &Volume) -> Result<()> {
        for (ino, count) in &self.references {
            volume.references.take_many(*ino, *count);
        }
        if !self.has_nameless {
            return Ok(());
        }
        let root = volume.find(InodeNo::ROOT)?;
        let directory = volume.lookup(InodeNo::ROOT, DIRECTORY)?.ino;
        let removed = empty(volume, directory).and_then(|()| {
            volume.remove_dir(&Caller::ROOT, InodeNo::ROOT, DIRECTORY)?;
            // The root looks as it did before.
            let mtime = Some(SetTime::To(root.mtime));
            volume
                .set_attr(&Caller::ROOT, InodeNo::ROOT, &SetAttr { mtime, ..SetAttr::default() })
                .map(drop)
        });
        volume.release(directory, 1);
        removed
    }
}

/// An empty directory for names, made if it is not there.
fn make_directory(volume: &Volume) -> Result<InodeNo> {
    let made = match volume.lookup(InodeNo::ROOT, DIRECTORY) {
        Ok(found) => {
            volume.release(found.ino, 1);
            if own_xattr(volume, found.ino, MARK).is_err() {
                return Err(Error::Exists);
            }
            empty(volume, found.ino)?;
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
            let mtime = Some(SetTime::To(volume.attr(InodeNo::ROOT)?.mtime));
            let made = volume.make(&Caller::ROOT, InodeNo::ROOT, DIRECTORY, &new)?;
            volume.set_attr(
                &Caller::ROOT,
                InodeNo::ROOT,
                &SetAttr { mtime, ..SetAttr::default() },
            )?;
            made
        }
        Err(error) => return Err(error),
    };
    volume.release(made.ino, 1);
    set_own_xattr(volume, made.ino, MARK, b"1", XattrMode::Create)?;
    Ok(made.ino)
}

/// Gives a file a name. A directory gets none, since its name would be its place in the tree.
fn name_for_successor(volume: &Volume, directory: InodeNo, ino: InodeNo) -> Result<()> {
    match volume.link(ino, directory, ino.to_string().as_bytes()) {
        Ok(_) => {
            volume.release(ino, 1);
            Ok(())
        }
        Err(Error::NotPermitted) => Ok(()),
        Err(error) => Err(error),
    }
}

/// Removes all names from a directory of files.
fn empty(volume: &Volume, directory: InodeNo) -> Result<()> {
    let mut names: Vec<Vec<u8>> = Vec::new();
    volume.read_dir(directory, 0, false, &mut |entry| {
        names.push(entry.name.to_vec());
        true
    })?;
    names.iter().try_for_each(|name| volume.unlink(&Caller::ROOT, directory, name))
}
