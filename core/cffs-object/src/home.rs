//! The directory of a volume that is stored in a directory.
//!
//! While its volume is open, a directory can be moved, or its file system unmounted. The client makes missing
//! directories, so it would write the next record to a new one. Requests are therefore made only while the
//! directory is the one that was opened.
//!
//! A descriptor of the directory would keep its file system from being unmounted, so none is held. The
//! numbers of a directory identify it, with the time at which it was made, since a file system uses numbers
//! again. On some file systems (sshfs, CIFS), or after a new mount, they change: then the contents decide.

use std::fs::{self, Metadata};
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;
use std::time::SystemTime;

use parking_lot::Mutex;

use crate::format::IDENTITY;
use crate::identity::Encoded;
use crate::vault::Owner;

/// The directory of a volume.
pub struct Home {
    directory: PathBuf,
    opened: Mutex<Option<Opened>>,
}

/// Why a directory is not the opened one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Gone {
    /// Its path.
    pub directory: String,
    /// The UUIDs of the opened volume and of another one that the directory has now.
    pub replaced: Option<(Owner, Owner)>,
}

/// The directory that was opened.
struct Opened {
    identity: Identity,
    volume: Owner,
    /// The last record that this program has put there.
    last: Option<String>,
}

/// The identity of a directory.
#[derive(PartialEq, Eq)]
struct Identity {
    device: u64,
    inode: u64,
    /// `None` if the file system does not record it.
    made: Option<SystemTime>,
}

impl Identity {
    fn of(there: &Metadata) -> Identity {
        Identity { device: there.dev(), inode: there.ino(), made: there.created().ok() }
    }
}

impl Home {
    /// A directory without a volume, or with one that is not open.
    pub fn new(directory: PathBuf) -> Home {
        Home { directory, opened: Mutex::new(None) }
    }

    /// Remembers the directory as that of this volume.
    pub fn opened(&self, volume: Owner) {
        let mut opened = self.opened.lock();
        if opened.is_none()
            && let Ok(there) = fs::metadata(&self.directory)
        {
            *opened = Some(Opened { identity: Identity::of(&there), volume, last: None });
        }
    }

    /// Records the newest record in the directory.
    pub fn has_record(&self, name: &str) {
        if let Some(opened) = &mut *self.opened.lock() {
            opened.last = Some(name.to_owned());
        }
    }

    /// Fails if the directory is not the opened one. A directory with other numbers is accepted if it has the
    /// volume with the last record; from then on, only that one is.
    ///
    /// # Errors
    ///
    /// The reason.
    pub fn check(&self) -> Result<(), Gone> {
        let mut opened = self.opened.lock();
        let Some(opened) = opened.as_mut() else { return Ok(()) };
        let there = fs::metadata(&self.directory).map(|there| Identity::of(&there));
        if there.as_ref().is_ok_and(|there| *there == opened.identity) {
            return Ok(());
        }
        let volume = self.volume();
        let has_last =
            || opened.last.as_ref().is_none_or(|last| self.directory.join(last).exists());
        match there {
            Ok(there) if volume == Some(opened.volume) && has_last() => {
                opened.identity = there;
                Ok(())
            }
            _ => {
                let other = volume.filter(|volume| *volume != opened.volume);
                let replaced = other.map(|other| (opened.volume, other));
                Err(Gone { directory: self.directory.display().to_string(), replaced })
            }
        }
    }

    /// The volume in the directory.
    fn volume(&self) -> Option<Owner> {
        let bytes = fs::read(self.directory.join(IDENTITY)).ok()?;
        Encoded::decode(&bytes).ok().map(|there| there.uuid())
    }
}
