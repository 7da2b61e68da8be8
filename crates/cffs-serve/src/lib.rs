//! Front ends of C-FFS: each adapts a protocol to [`cffs::vfs::Volume`].
//!
//! They stand only on the facade. Requests of a protocol are translated here, and nothing is decided:
//! permissions are checked by the party that the protocol makes responsible (for FUSE, the kernel; for NFS,
//! [`access`]), semantics are the facade's, and errors become numbers through `cffs::vfs::errno`, or those
//! that NFS has in place of errno.

pub mod access;
pub mod describe;
pub mod fuse;
pub mod layout;
pub mod nfs;
pub mod served;
pub mod shared;
pub mod socket;
pub mod stopped;
pub mod unmounted;
