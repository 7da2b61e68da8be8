//! Front ends of C-FFS: each adapts a protocol to [`cffs::vfs::Volume`].
//!
//! They use only the facade. They translate requests of a protocol and decide nothing: permissions are
//! checked by the party that the protocol makes responsible (for FUSE the kernel, for NFS and attached
//! programs [`access`]), the facade determines semantics, and errors become numbers through
//! `cffs::vfs::errno`, or NFS status codes.

// No program outside the workspace uses this crate, so a comment only says what a name does not.
#![allow(missing_docs)]

pub mod access;
pub mod attached;
pub mod describe;
pub mod fuse;
pub mod layout;
pub mod nfs;
pub mod served;
pub mod shared;
pub mod socket;
pub mod stopped;
pub mod unmounted;
