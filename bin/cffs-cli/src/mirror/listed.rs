//! The changes of a tree, as `cffs changes` lists them.

use std::collections::HashSet;

use cffs::vfs::CHANGED_PATH_BYTES_MAX;

/// Paths of listed files, each beginning with a slash.
#[derive(Default)]
pub struct Listed {
    files: HashSet<Vec<u8>>,
    /// The directories above them.
    above: HashSet<Vec<u8>>,
}

impl Listed {
    /// Adds a file by its path below the top.
    pub fn add(&mut self, path: &[u8]) {
        let path = [b"/", path].concat();
        let slashes = path.iter().enumerate().rev().filter(|(_, byte)| **byte == b'/');
        for above in slashes.map(|(at, _)| &path[..at]) {
            // If it is known, so are those above it.
            if !self.above.insert(above.to_vec()) {
                break;
            }
        }
        self.files.insert(path);
    }

    /// Whether a file is listed. A file whose path is too long counts as listed, since the path of a
    /// directory above it may stand for everything below.
    pub fn has(&self, path: &[u8]) -> bool {
        path.len() > CHANGED_PATH_BYTES_MAX || self.files.contains(path)
    }

    /// Whether a file is listed, or something below it.
    pub fn leads_to(&self, path: &[u8]) -> bool {
        self.has(path) || self.above.contains(path)
    }
}
