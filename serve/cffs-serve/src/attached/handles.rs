//! The files for which a program has handles. Each handle holds a reference to an inode.

use std::collections::HashMap;

use cffs::error::{Error, Result};
use cffs::format::inode::FileType;
use cffs::units::InodeNo;
use cffs::vfs::Volume;
use cffs::vfs::types::Attr;
use cffs::wire::{HANDLES_MAX, Handle};

/// A file with a handle.
#[derive(Clone, Copy, Debug)]
pub(super) struct Held {
    pub ino: InodeNo,
    pub file_type: FileType,
    /// Whether this program has made it. It may write to it whatever the mode is, as through a descriptor
    /// that open(2) with `O_CREAT` has returned.
    pub is_own: bool,
    /// Whether it has read the file, with permission. It may continue to read, as through a descriptor.
    pub is_read: bool,
}

/// The handles of a session. Dropping them releases the references.
pub(super) struct Handles<'a> {
    volume: &'a Volume,
    held: HashMap<Handle, Held>,
    /// The number of references by inode.
    references: HashMap<InodeNo, u64>,
}

impl<'a> Handles<'a> {
    pub fn new(volume: &'a Volume) -> Handles<'a> {
        Handles { volume, held: HashMap::new(), references: HashMap::new() }
    }

    /// Checks whether a handle can be given to a file, before the file is made.
    ///
    /// # Errors
    ///
    /// [`Error::InUse`] if there are too many.
    pub fn check_room(&self, handle: Handle) -> Result<()> {
        if self.held.len() < HANDLES_MAX || self.held.contains_key(&handle) {
            return Ok(());
        }
        let text = format!("a program that is attached has at most {HANDLES_MAX} files in use");
        Err(Error::InUse(text))
    }

    /// Gives a handle to a file, and takes over the caller's reference. A file that had the handle loses it.
    pub fn add(&mut self, handle: Handle, attr: &Attr, is_own: bool) {
        debug_assert!(self.check_room(handle).is_ok(), "the caller has checked it");
        self.forget(handle);
        let Attr { ino, file_type, .. } = *attr;
        *self.references.entry(ino).or_default() += 1;
        self.held.insert(handle, Held { ino, file_type, is_own, is_read: false });
    }

    /// The file with a handle.
    ///
    /// # Errors
    ///
    /// [`Error::Stale`] if none has it, for example because the call that was to give it has failed.
    pub fn get(&self, handle: Handle) -> Result<Held> {
        self.held.get(&handle).copied().ok_or(Error::Stale)
    }

    /// The directory with a handle.
    ///
    /// # Errors
    ///
    /// [`Error::Stale`]; [`Error::NotDirectory`].
    pub fn directory(&self, handle: Handle) -> Result<InodeNo> {
        match self.get(handle)? {
            Held { ino, file_type: FileType::Directory, .. } => Ok(ino),
            _ => Err(Error::NotDirectory),
        }
    }

    /// Notes that the program may read the file.
    pub fn note_read(&mut self, handle: Handle) {
        if let Some(held) = self.held.get_mut(&handle) {
            held.is_read = true;
        }
    }

    /// Takes the handle from the file that has it.
    pub fn forget(&mut self, handle: Handle) {
        let Some(Held { ino, .. }) = self.held.remove(&handle) else { return };
        if let Some(references) = self.references.get_mut(&ino) {
            *references -= 1;
            if *references == 0 {
                self.references.remove(&ino);
            }
        }
        self.volume.release(ino, 1);
    }

    /// Whether the kernel, or another session, may know an inode. The kernel has a reference on each inode
    /// that it knows, except for the root.
    pub fn is_known_to_others(&self, ino: InodeNo) -> bool {
        let own = self.references.get(&ino).copied().unwrap_or(0);
        ino == InodeNo::ROOT || self.volume.is_referenced(ino, own)
    }
}

impl Drop for Handles<'_> {
    fn drop(&mut self) {
        for held in self.held.values() {
            self.volume.release(held.ino, 1);
        }
    }
}
