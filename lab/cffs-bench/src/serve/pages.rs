//! The longest requests that FUSE and a loop device pass on.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::FileExt;

use rustix::fs::{FlockOperation, flock};

/// The longest request that the kernel sends to a disk by default, since Linux 6.17.
pub const DISK_REQUEST_BYTES: u32 = 4 << 20;

/// The file with the maximum number of pages in a request, for FUSE file systems that are mounted later.
const LIMIT: &str = "/proc/sys/fs/fuse/max_pages_limit";
/// The limit of kernels without that file.
const LIMIT_BUILT_IN: u32 = 256;
const PAGE_BYTES: u32 = 4096;

/// FUSE's limit, raised for mounting. Dropping this restores the limit; another program that raises it waits
/// until then. A mount keeps the limit that it was created with.
pub struct RaisedLimit {
    file: Option<File>,
    before: u32,
    pages: u32,
}

impl RaisedLimit {
    /// Raises the limit to requests of `bytes` bytes, or as far as the kernel allows.
    pub fn to(bytes: u32) -> RaisedLimit {
        let mut limit = RaisedLimit { file: None, before: current(), pages: current() };
        // Without the permission to raise it, requests are shorter.
        let _ = limit.raise(bytes / PAGE_BYTES);
        limit
    }

    fn raise(&mut self, pages: u32) -> io::Result<()> {
        let file = File::options().read(true).write(true).open(LIMIT)?;
        flock(&file, FlockOperation::LockExclusive)?;
        self.before = current();
        if self.before < pages {
            file.write_all_at(pages.to_string().as_bytes(), 0)?;
            self.file = Some(file);
        }
        self.pages = current().min(pages);
        Ok(())
    }

    /// The longest request of the current mount, in bytes.
    pub fn bytes(&self) -> u32 {
        self.pages * PAGE_BYTES
    }
}

impl Drop for RaisedLimit {
    fn drop(&mut self) {
        if let Some(file) = &self.file {
            let _ = file.write_all_at(self.before.to_string().as_bytes(), 0);
        }
    }
}

/// The current limit, in pages.
fn current() -> u32 {
    let text = fs::read_to_string(LIMIT).unwrap_or_default();
    text.trim().parse().unwrap_or(LIMIT_BUILT_IN)
}

#[cfg(test)]
mod tests;
