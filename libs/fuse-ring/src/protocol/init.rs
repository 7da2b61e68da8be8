//! The handshake of a session, in which kernel and server agree on features.
//!
//! The kernel sends its version, the features that it offers and its read-ahead. The server answers with the
//! features that it accepts and the maximum sizes of requests. [`negotiate`] only determines this answer; the
//! session sends it.

use zerocopy::{FromBytes, IntoBytes};

use super::{Dialect, Features, Malformed, wire};

/// The major version of the protocol.
pub const MAJOR: u32 = 7;
/// The newest minor version that this crate supports (Linux 6.18).
pub const MINOR: u32 = 45;
/// The oldest one (Linux 5.4). Older kernels use shorter structures, which are not supported.
pub const MINOR_MIN: u32 = 31;

/// The kernel's side of `INIT`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InitRequest {
    /// Its major version.
    pub major: u32,
    /// Its minor version.
    pub minor: u32,
    /// The read-ahead that it suggests, in bytes.
    pub max_readahead: u32,
    /// The features that it offers.
    pub offered: Features,
}

impl InitRequest {
    pub(super) fn decode(bytes: &[u8]) -> Result<InitRequest, Malformed> {
        let (base, rest) =
            wire::InitIn::read_from_prefix(bytes).map_err(|_| Malformed::Truncated("INIT"))?;
        let mut offered = Features::from_bits_retain(u64::from(base.flags));
        if offered.contains(Features::INIT_EXT)
            && let Ok((flags2, _)) = u32::read_from_prefix(rest)
        {
            offered |= Features::from_bits_retain(u64::from(flags2) << 32);
        }
        let wire::InitIn { major, minor, max_readahead, .. } = base;
        Ok(InitRequest { major, minor, max_readahead, offered })
    }
}

/// The features and limits that the server requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Wishes {
    /// The features to use if they are offered.
    pub features: Features,
    /// The longest write in bytes. The kernel reduces it to whole pages, and to `fs.fuse.max_pages_limit` (by
    /// default 1 MiB).
    pub max_write: u32,
    /// The longest read-ahead in bytes; the kernel's limit applies if it is lower.
    pub max_readahead: u32,
    /// The most background requests (read-ahead, write-back) in flight.
    pub max_background: u16,
    /// The number of background requests from which on the file system counts as congested.
    pub congestion_threshold: u16,
    /// The granularity of times in nanoseconds.
    pub time_granularity_ns: u32,
    /// Never open files: see [`Granted::elide_open`].
    pub elide_open: bool,
    /// Never open directories: see [`Granted::elide_opendir`].
    pub elide_opendir: bool,
}

impl Default for Wishes {
    fn default() -> Wishes {
        Wishes {
            features: Features::ASYNC_READ
                | Features::ATOMIC_O_TRUNC
                | Features::BIG_WRITES
                | Features::DO_READDIRPLUS
                | Features::READDIRPLUS_AUTO
                | Features::PARALLEL_DIROPS
                | Features::ABORT_ERROR
                | Features::MAX_PAGES
                | Features::CACHE_SYMLINKS
                | Features::SETXATTR_EXT
                | Features::HAS_EXPIRE_ONLY,
            max_write: 1 << 20,
            max_readahead: 1 << 20,
            max_background: 64,
            congestion_threshold: 48,
            time_granularity_ns: 1,
            elide_open: false,
            elide_opendir: false,
        }
    }
}

/// The negotiated features and limits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Granted {
    /// The minor version in force.
    pub minor: u32,
    /// The features in force.
    pub features: Features,
    /// The longest write, and the longest read, in bytes.
    pub max_write: u32,
    /// The longest read-ahead in bytes.
    pub max_readahead: u32,
    /// `OPEN` is answered with `ENOSYS`, after which the kernel opens and closes files without requests, and
    /// other requests contain the handle 0. Files created by `CREATE` are still opened by it, and released by
    /// kernels older than Linux 6.18. The kernel learns this from the answer to the first `OPEN`, which a
    /// session therefore causes itself, for a private node `u64::MAX`.
    pub elide_open: bool,
    /// The same for directories.
    pub elide_opendir: bool,
}

impl Granted {
    /// The encoding of requests from now on.
    pub fn dialect(&self) -> Dialect {
        Dialect { setxattr_ext: self.features.contains(Features::SETXATTR_EXT) }
    }

    /// The largest payload that a request or a reply may have, in bytes.
    ///
    /// The kernel's own limit, below which a ring's buffers must not be, is the maximum of
    /// `FUSE_MIN_READ_BUFFER`, the longest write, and the pages of a request. A write never has more pages
    /// than [`max_write`](Granted::max_write); the addition is room for an xattr of 64 KiB and its name.
    pub fn payload_len(&self) -> usize {
        (self.max_write as usize).max(PAYLOAD_LEN_MIN)
    }
}

/// Room for the longest xattr, for the longest symbolic link and for `FUSE_MIN_READ_BUFFER`.
const PAYLOAD_LEN_MIN: usize = 72 << 10;

/// The answer to an `INIT`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Negotiation {
    /// The session begins, with these features.
    Agreed(Granted),
    /// The kernel has a newer major version: answer with ours, and it will retry.
    Retry,
    /// The kernel is too old.
    Unsupported,
}

/// Determines the features and limits of the session.
pub fn negotiate(request: &InitRequest, wishes: &Wishes, page_size: u32) -> Negotiation {
    if request.major > MAJOR {
        return Negotiation::Retry;
    }
    if request.major < MAJOR || request.minor < MINOR_MIN {
        return Negotiation::Unsupported;
    }
    let offered = request.offered;
    // Without `MAX_PAGES`, a request has at most 32 pages, whatever the longest write.
    let mut wanted = wishes.features | Features::INIT_EXT | Features::MAX_PAGES;
    let elide_open = wishes.elide_open && offered.contains(Features::NO_OPEN_SUPPORT);
    let elide_opendir = wishes.elide_opendir && offered.contains(Features::NO_OPENDIR_SUPPORT);
    wanted.set(Features::NO_OPEN_SUPPORT, elide_open);
    wanted.set(Features::NO_OPENDIR_SUPPORT, elide_opendir);
    if elide_open {
        // With `ATOMIC_O_TRUNC`, the `OPEN` contains the truncation. If that is elided, the file is not
        // truncated, and `> file` keeps the old contents. Otherwise the kernel sends a `SETATTR`.
        wanted.remove(Features::ATOMIC_O_TRUNC);
    }
    let page_limit = if offered.contains(Features::MAX_PAGES) { u16::MAX.into() } else { 32 };
    let pages = wishes.max_write.div_ceil(page_size).clamp(1, page_limit);
    Negotiation::Agreed(Granted {
        minor: request.minor.min(MINOR),
        features: wanted & offered & Features::SUPPORTED,
        max_write: pages.saturating_mul(page_size),
        max_readahead: wishes.max_readahead.min(request.max_readahead),
        elide_open,
        elide_opendir,
    })
}

impl Granted {
    /// The body of the answer; the kernel truncates it to the length of its version.
    pub(crate) fn encode(&self, wishes: &Wishes, page_size: u32) -> [u8; 64] {
        let features = self.features.bits();
        let out = wire::InitOut {
            major: MAJOR,
            minor: self.minor,
            max_readahead: self.max_readahead,
            flags: features as u32,
            flags2: (features >> 32) as u32,
            max_background: wishes.max_background,
            congestion_threshold: wishes.congestion_threshold,
            max_write: self.max_write,
            time_gran: wishes.time_granularity_ns,
            max_pages: u16::try_from(self.max_write / page_size).unwrap_or(u16::MAX),
            ..wire::InitOut::default()
        };
        zerocopy::transmute!(out)
    }
}

/// The body of the answer to a kernel with a newer major version.
pub(crate) fn encode_retry() -> [u8; 64] {
    let mut body = [0; 64];
    let out = wire::InitOut { major: MAJOR, minor: MINOR, ..wire::InitOut::default() };
    body.copy_from_slice(out.as_bytes());
    body
}
