//! Directories of a local disk that contain data of files.

use std::fs::{self, DirBuilder, File};
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::Path;

/// Makes a file or a directory durable. Tests record its inode number.
///
/// # Errors
///
/// Errors of the disk.
pub fn sync(file: &File) -> io::Result<()> {
    file.sync_all()?;
    #[cfg(test)]
    synced::note(file.metadata()?.ino());
    Ok(())
}

/// Creates a directory that only this user may enter, or checks that the existing one is private.
///
/// # Errors
///
/// The reason why the directory cannot be used.
pub fn private_directory(directory: &Path) -> Result<(), String> {
    match DirBuilder::new().mode(0o700).create(directory) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error.to_string()),
        _ => {}
    }
    let there = fs::metadata(directory).map_err(|error| error.to_string())?;
    if !there.is_dir() {
        return Err(String::from("it is not a directory; name an existing or a new directory"));
    }
    if there.uid() != rustix::process::geteuid().as_raw() {
        return Err(format!("it belongs to user {}; name a directory of your own", there.uid()));
    }
    if there.mode() & 0o077 != 0 {
        return Err(format!(
            "other users may enter it (mode {:03o}), and it will hold contents of all files; chmod 700 \
             it, or name a new directory",
            there.mode() & 0o777
        ));
    }
    Ok(())
}

/// The inodes that this thread has made durable.
#[cfg(test)]
pub mod synced {
    use std::cell::RefCell;

    thread_local! {
        static INODES: RefCell<Vec<u64>> = const { RefCell::new(Vec::new()) };
    }

    pub fn note(inode: u64) {
        INODES.with_borrow_mut(|inodes| inodes.push(inode));
    }

    /// The inode numbers since the last call, in order.
    pub fn take() -> Vec<u64> {
        INODES.take()
    }
}
