//! The server's side of NFS version 3 on the wire, for any file system.
//!
//! ```text
//!   record (RFC 5531, 11) ─▶ rpc: caller and procedure ─▶ nfs, mount: the arguments
//!                                                          ◀─ the results, appended to the reply
//! ```
//!
//! Offers decoders of calls, which borrow from the message, and encoders of replies, which append to it. It
//! is independent of files, sockets and threads.
//!
//! Invariants: whatever a peer sends, a decoder returns a value or [`xdr::Malformed`]; it never allocates
//! memory according to a length from the wire, except for the groups of a caller, which are at most
//! [`rpc::GROUPS_MAX`]. Section numbers are those of RFC 1813 unless another RFC is named.

pub mod mount;
pub mod nfs;
pub mod record;
pub mod rpc;
pub mod xdr;
