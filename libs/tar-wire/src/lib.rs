//! Tar archives as a stream, in the formats of v7, POSIX (ustar and pax), GNU tar and bsdtar.
//!
//! ```text
//!   blocks of 512 bytes ─▶ header: one block ─▶ archive: long names and pax records merged into an entry
//!                                                pax: the records    acl: SCHILY.acl.* as text
//! ```
//!
//! Offers a reader of archives, and encoders of the pax records that a writer needs. It is independent of the
//! file system into which an archive is unpacked: names and link targets are the bytes in the archive.
//!
//! Invariants: an archive is not trusted. A reader returns an entry or an [`Error`]; it uses at most
//! [`archive::EXTENSION_BYTES_MAX`] of memory for the description of one entry, and never reads past the size
//! that the entry's own records state, so that all readers of an archive see the same entries.

pub mod acl;
pub mod archive;
mod header;
pub mod pax;

pub use archive::{Archive, Entry, Kind};
pub use pax::Time;

/// Why an archive cannot be read further.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The archive's source failed.
    #[error(transparent)]
    Io(#[from] std::io::Error),
    /// The checksum of a header is wrong.
    #[error("this is not a tar archive, or it is damaged here: the checksum of a header is wrong")]
    Checksum,
    /// The archive ends within an entry or before the entry that an extended header describes.
    #[error("the archive ends too early")]
    CutOff,
    /// A size is invalid, or the size of an extended header exceeds the limit.
    #[error("the size of an entry makes no sense")]
    Size,
}
