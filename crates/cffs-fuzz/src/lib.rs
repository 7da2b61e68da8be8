//! Fuzz targets: whatever the disk, the kernel, an NFS client or an attached program says, nothing panics,
//! hangs, or takes memory without bound.
//!
//! A target is a function of bytes. It makes of them what a hostile disk or kernel might send, hands
//! that to the code that must stand it, and panics if a promise is broken. Two drivers call them:
//! `tests/seeded.rs`, in every test run, with random bytes from a seed and for a few seconds each;
//! and `fuzz/`, by `make fuzz`, where libFuzzer looks for inputs that reach new code.
//!
//! Checksums are made right wherever a target damages something, since otherwise no damage would ever
//! get past them.

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

/// A target: it returns if all is well.
pub type Target = fn(&[u8]);

/// Every target by its name.
pub const TARGETS: [(&str, Target); 16] = [
    ("superblock", codecs::superblock),
    ("cylinder_group", codecs::cylinder_group),
    ("extents", codecs::extents),
    ("attributes", codecs::attributes),
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
/// If there is none: the driver asks for what it knows.
pub fn target(name: &str) -> Target {
    let found = TARGETS.iter().find(|(known, _)| *known == name);
    found.unwrap_or_else(|| panic!("no target is called {name}")).1
}
