//! Flag words of the protocol.

use bitflags::bitflags;

bitflags! {
    /// Features that kernel and server negotiate in `INIT` (`flags` in the low half, `flags2` in the
    /// high half).
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct Features: u64 {
        /// Several reads of one file may be in flight.
        const ASYNC_READ = 1 << 0;
        /// The server handles record locks. Never negotiated, see [`Features::SUPPORTED`].
        const POSIX_LOCKS = 1 << 1;
        /// `OPEN` and `CREATE` contain `O_TRUNC`, and the server truncates. Otherwise the kernel sends a
        /// `SETATTR` before the `OPEN`.
        const ATOMIC_O_TRUNC = 1 << 3;
        /// Lookups of `.` and `..` are answered, so that file handles remain valid after eviction
        /// (`open_by_handle_at`, the kernel's NFS server).
        const EXPORT_SUPPORT = 1 << 4;
        /// Writes may exceed a page.
        const BIG_WRITES = 1 << 5;
        /// The kernel leaves the umask to the server, which is needed for default ACLs.
        const DONT_MASK = 1 << 6;
        /// The server handles `flock` locks. Never negotiated.
        const FLOCK_LOCKS = 1 << 10;
        /// Cached data is dropped when a `GETATTR` returns another time or size.
        const AUTO_INVAL_DATA = 1 << 12;
        /// The kernel uses `READDIRPLUS`.
        const DO_READDIRPLUS = 1 << 13;
        /// The kernel uses `READDIRPLUS` only where its attributes are likely to be used.
        const READDIRPLUS_AUTO = 1 << 14;
        /// Direct I/O of `io_submit(2)` and io_uring is asynchronous. Such a write is not followed by the
        /// `FSYNC` that `O_DSYNC` requires, leaves pages in the cache that were read meanwhile, and fails
        /// with `EIO` where it should be short: unsuitable for files for which this matters, such as disk
        /// images.
        const ASYNC_DIO = 1 << 15;
        /// The kernel caches writes, and manages size and times of open files.
        const WRITEBACK_CACHE = 1 << 16;
        /// An `OPEN` answered with `ENOSYS` is never sent again.
        const NO_OPEN_SUPPORT = 1 << 17;
        /// Lookups and listings of one directory may run concurrently.
        const PARALLEL_DIROPS = 1 << 18;
        /// The server clears set-id bits and capabilities on write, chown and truncate.
        const HANDLE_KILLPRIV = 1 << 19;
        /// The kernel enforces POSIX ACLs, which it reads as xattrs. Implies `default_permissions`.
        const POSIX_ACL = 1 << 20;
        /// Reading the device after an abort yields `ECONNABORTED`.
        const ABORT_ERROR = 1 << 21;
        /// The reply to `INIT` says how many pages a request may have.
        const MAX_PAGES = 1 << 22;
        /// Targets of symbolic links are cached.
        const CACHE_SYMLINKS = 1 << 23;
        /// An `OPENDIR` answered with `ENOSYS` is never sent again.
        const NO_OPENDIR_SUPPORT = 1 << 24;
        /// Cached data is dropped only on the server's request.
        const EXPLICIT_INVAL_DATA = 1 << 25;
        /// As `HANDLE_KILLPRIV`, but the kernel sends a flag when it is needed.
        const HANDLE_KILLPRIV_V2 = 1 << 28;
        /// `SETXATTR` contains additional flags.
        const SETXATTR_EXT = 1 << 29;
        /// `INIT` contains the second flag word.
        const INIT_EXT = 1 << 30;
        /// Requests that create files contain security contexts.
        const SECURITY_CTX = 1 << 32;
        /// Requests that create files contain the group that the file inherits, if the caller is in it.
        const CREATE_SUPP_GROUP = 1 << 34;
        /// Entries can be expired as well as invalidated.
        const HAS_EXPIRE_ONLY = 1 << 35;
        /// Files open for direct I/O can be mapped shared.
        const DIRECT_IO_ALLOW_MMAP = 1 << 36;
        /// File handles must never be decoded.
        const NO_EXPORT_SUPPORT = 1 << 38;
        /// Parts of the tree may be mounted with mapped owners (id-mapped mounts, Linux 6.12); requires
        /// [`default_permissions`](crate::MountOptions::default_permissions). Then only requests that create
        /// files contain the caller's user and group, as mapped by that mount; all others contain
        /// [`UNKNOWN_ID`](super::UNKNOWN_ID).
        const ALLOW_IDMAP = 1 << 40;
        /// Requests may be delivered by io_uring. Set by the transport, not by the user.
        const OVER_IO_URING = 1 << 41;
        /// Bits unknown to this crate; the kernel offers some.
        const _ = !0;
    }
}

impl Features {
    /// The features that this crate supports; others are never requested, whatever the configuration.
    ///
    /// Locks are excluded on purpose. Unless a server claims them, the kernel handles `fcntl` and `flock`
    /// locks itself, correctly and without requests, and a blocking `SETLKW` would occupy one of the few
    /// threads for an unlimited time.
    pub const SUPPORTED: Features = Features::ASYNC_READ
        .union(Features::ATOMIC_O_TRUNC)
        .union(Features::EXPORT_SUPPORT)
        .union(Features::BIG_WRITES)
        .union(Features::DONT_MASK)
        .union(Features::AUTO_INVAL_DATA)
        .union(Features::DO_READDIRPLUS)
        .union(Features::READDIRPLUS_AUTO)
        .union(Features::ASYNC_DIO)
        .union(Features::WRITEBACK_CACHE)
        .union(Features::NO_OPEN_SUPPORT)
        .union(Features::PARALLEL_DIROPS)
        .union(Features::HANDLE_KILLPRIV)
        .union(Features::POSIX_ACL)
        .union(Features::ABORT_ERROR)
        .union(Features::MAX_PAGES)
        .union(Features::CACHE_SYMLINKS)
        .union(Features::NO_OPENDIR_SUPPORT)
        .union(Features::EXPLICIT_INVAL_DATA)
        .union(Features::HANDLE_KILLPRIV_V2)
        .union(Features::SETXATTR_EXT)
        .union(Features::INIT_EXT)
        .union(Features::SECURITY_CTX)
        .union(Features::CREATE_SUPP_GROUP)
        .union(Features::HAS_EXPIRE_ONLY)
        .union(Features::DIRECT_IO_ALLOW_MMAP)
        .union(Features::NO_EXPORT_SUPPORT)
        .union(Features::ALLOW_IDMAP)
        .union(Features::OVER_IO_URING);
}

bitflags! {
    /// Properties of an open file, in the reply to `OPEN`, `OPENDIR` and `CREATE`.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub struct OpenFlags: u32 {
        /// Reads and writes bypass the page cache.
        const DIRECT_IO = 1 << 0;
        /// Cached contents of the file stay valid.
        const KEEP_CACHE = 1 << 1;
        /// The file is not seekable.
        const NONSEEKABLE = 1 << 2;
        /// The listing of the directory may be cached.
        const CACHE_DIR = 1 << 3;
        /// The file has no position at all.
        const STREAM = 1 << 4;
        /// Closing need not write back cached data.
        const NOFLUSH = 1 << 5;
        /// Direct writes to the file may run concurrently.
        const PARALLEL_DIRECT_WRITES = 1 << 6;
    }
}
