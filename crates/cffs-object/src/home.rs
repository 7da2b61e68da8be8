//! The directory of a volume that is stored in one.
//!
//! Nothing keeps a directory where it is while its volume is open: it can be moved, or its file system
//! unmounted. The client makes missing directories, so it would write the next record to a new one. Requests
//! are therefore made only while the directory is the one that was opened.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;
use std::sync::OnceLock;

use crate::format::IDENTITY;
use crate::identity::Encoded;
use crate::vault::Owner;

/// The directory of a volume.
pub struct Home {
    directory: PathBuf,
    opened: OnceLock<Identity>,
}

/// The identity of a directory.
struct Identity {
    device: u64,
    inode: u64,
    volume: Owner,
}

impl Home {
    /// A directory that has no volume yet, or one that is not opened.
    pub fn new(directory: PathBuf) -> Home {
        Home { directory, opened: OnceLock::new() }
    }

    /// Remembers the directory as that of this volume.
    pub fn opened(&self, volume: Owner) {
        if let Ok(there) = fs::metadata(&self.directory) {
            let (device, inode) = (there.dev(), there.ino());
            let _ = self.opened.set(Identity { device, inode, volume });
        }
    }

    /// The path of the directory, if that is not the one that was opened. A file system that was mounted
    /// again may have another device number.
    pub fn is_gone(&self) -> Option<String> {
        let opened = self.opened.get()?;
        let is_it = fs::metadata(&self.directory).is_ok_and(|there| {
            there.ino() == opened.inode
                && (there.dev() == opened.device || self.has_volume(&opened.volume))
        });
        (!is_it).then(|| self.directory.display().to_string())
    }

    fn has_volume(&self, volume: &Owner) -> bool {
        let bytes = fs::read(self.directory.join(IDENTITY));
        let there = bytes.ok().and_then(|bytes| Encoded::decode(&bytes).ok());
        there.is_some_and(|there| there.uuid() == *volume)
    }
}
