//! The server's side of NFS version 3 on the wire, for any file system.
//!
//! ```text
//!   record (RFC 5531, 11) ─▶ rpc: caller and procedure ─▶ nfs, mount: the arguments
//!                                                          ◀─ the results, appended to the reply
//! ```
//!
//! Offers decoders of calls, which borrow from the message, and encoders of replies, which append to
//! it. It knows nothing of files, sockets or threads.
//!
//! Invariants: whatever a peer sends, a decoder returns a value or [`xdr::Malformed`]; it allocates
//! nothing by a length from the wire, but for the groups of a caller, of which there are at most
//! [`rpc::GROUPS_MAX`]. Section numbers are those of RFC 1813 unless another is named.

pub mod mount;
pub mod nfs;
pub mod record;
pub mod rpc;
pub mod xdr;
