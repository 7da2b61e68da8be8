//! The FUSE protocol, version 7.31 to 7.45: bytes in, requests out; values in, bytes out.
//!
//! This layer does no I/O, keeps no state and allocates nothing. Its only dependency is `zerocopy`.
//!
//! - [`Frame`] splits a message into its parts, whose layout differs between `/dev/fuse` and a
//!   ring; [`Request::decode`] checks it and returns an [`Operation`].
//! - [`encode`] writes replies of fixed length; [`Listing`] and [`ListingPlus`] write directory
//!   listings.
//! - [`negotiate`] determines the answer to `INIT`.

mod decode;
pub mod encode;
mod extension;
mod flags;
mod frame;
pub(crate) mod init;
mod listing;
mod opcode;
mod request;
mod values;
pub(crate) mod wire;

#[cfg(test)]
mod tests;

pub use extension::{Extensions, SecurityContext};
pub use flags::{Features, OpenFlags};
pub use frame::{Dialect, Frame, Malformed};
pub use init::{Granted, InitRequest, MAJOR, MINOR, MINOR_MIN, Negotiation, Wishes, negotiate};
pub use listing::{Full, Listing, ListingPlus};
pub use opcode::Opcode;
pub use request::{
    Context, CopyFileRange, Create, Fallocate, Forgets, Ioctl, Open, Operation, Read, Release,
    Rename, Request, SetAttr, SetXattr, UNKNOWN_ID, Write,
};
pub use values::{
    Attr, AttrReply, Entry, FileHandle, LockOwner, NodeId, Opened, SetTime, Statfs, StatxReply,
    Timestamp, Unique, decode_device, encode_device,
};
