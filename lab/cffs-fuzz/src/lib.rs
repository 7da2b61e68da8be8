//! Fuzz targets: no data from the disk, the kernel, an NFS client or an attached program causes a panic, a
//! hang, or unbounded use of memory.
//!
//! A target is a function of bytes. It derives from them the data that a hostile peer might send, passes it
//! to the code under test, and panics if a promise is broken. Two drivers call the targets:
//! `tests/seeded.rs`, in every test run, with random bytes from a seed and for a few seconds each; and
//! `fuzz/`, by `make fuzz`, where libFuzzer searches for inputs that reach new code.
//!
//! A target that damages data corrects the checksums, since otherwise they would reveal all damage.

// No program outside the workspace uses this crate, so a comment only says what a name does not.
#![allow(missing_docs)]

mod attach;
mod codecs;
mod input;
mod journal;
mod nfs;
mod request;
mod sector;
mod tar;
mod volume;

/// A target; it panics at a fault.
pub type Target = fn(&[u8]);

/// Every target by its name.
pub const TARGETS: [(&str, Target); 17] = [
    ("superblock", codecs::superblock),
    ("cylinder_group", codecs::cylinder_group),
    ("extents", codecs::extents),
    ("attributes", codecs::attributes),
    ("quotas", codecs::quotas),
    ("locator", codecs::locator),
    ("index", codecs::index),
    ("inode", codecs::inode),
    ("sector", sector::sector),
    ("journal", journal::journal),
    ("request", request::request),
    ("nfs", nfs::nfs),
    ("tar", tar::tar),
    ("attach_frames", attach::attach_frames),
    ("walk", volume::walk),
    ("write", volume::write),
    ("repair", volume::repair),
];

/// The target of that name.
///
/// # Panics
/// If there is none.
pub fn target(name: &str) -> Target {
    let found = TARGETS.iter().find(|(known, _)| *known == name);
    found.unwrap_or_else(|| panic!("no target is called {name}")).1
}
