//! The structures of the FUSE ABI, from `include/uapi/linux/fuse.h` 7.45.
//!
//! Both sides run on one machine, so numbers are in native byte order. Fields keep the kernel's
//! names, so that structures can be compared with the header line by line; the sizes are pinned
//! below. Only `protocol` and the transports use these types.

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// Declares wire structures: plain data, with sizes that the compiler checks.
macro_rules! wire {
    ($($(#[$meta:meta])* struct $name:ident: $size:literal { $($field:ident: $type:ty,)* })*) => {
        $(
            $(#[$meta])*
            #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
            #[derive(FromBytes, IntoBytes, Immutable, KnownLayout)]
            #[repr(C)]
            pub(crate) struct $name { $(pub(crate) $field: $type,)* }

            const _: () = assert!(size_of::<$name>() == $size);
        )*
    };
}

wire! {
    struct InHeader: 40 {
        len: u32, opcode: u32, unique: u64, nodeid: u64, uid: u32, gid: u32, pid: u32,
        total_extlen: u16, padding: u16,
    }
    struct OutHeader: 16 { len: u32, error: i32, unique: u64, }

    struct Attr: 88 {
        ino: u64, size: u64, blocks: u64, atime: u64, mtime: u64, ctime: u64,
        atimensec: u32, mtimensec: u32, ctimensec: u32, mode: u32, nlink: u32, uid: u32, gid: u32,
        rdev: u32, blksize: u32, flags: u32,
    }
    struct EntryOut: 128 {
        nodeid: u64, generation: u64, entry_valid: u64, attr_valid: u64,
        entry_valid_nsec: u32, attr_valid_nsec: u32, attr: Attr,
    }
    struct AttrOut: 104 { attr_valid: u64, attr_valid_nsec: u32, dummy: u32, attr: Attr, }

    struct StatxTime: 16 { tv_sec: i64, tv_nsec: u32, reserved: i32, }
    struct Statx: 256 {
        mask: u32, blksize: u32, attributes: u64, nlink: u32, uid: u32, gid: u32,
        mode: u16, spare0: u16, ino: u64, size: u64, blocks: u64, attributes_mask: u64,
        atime: StatxTime, btime: StatxTime, ctime: StatxTime, mtime: StatxTime,
        rdev_major: u32, rdev_minor: u32, dev_major: u32, dev_minor: u32, spare2: [u64; 14],
    }
    struct StatxIn: 24 {
        getattr_flags: u32, reserved: u32, fh: u64, sx_flags: u32, sx_mask: u32,
    }
    struct StatxOut: 288 {
        attr_valid: u64, attr_valid_nsec: u32, flags: u32, spare: [u64; 2], stat: Statx,
    }

    struct StatfsOut: 80 {
        blocks: u64, bfree: u64, bavail: u64, files: u64, ffree: u64,
        bsize: u32, namelen: u32, frsize: u32, padding: u32, spare: [u32; 6],
    }
    struct ForgetIn: 8 { nlookup: u64, }
    struct ForgetOne: 16 { nodeid: u64, nlookup: u64, }
    struct BatchForgetIn: 8 { count: u32, dummy: u32, }
    struct GetattrIn: 16 { getattr_flags: u32, dummy: u32, fh: u64, }
    struct SetattrIn: 88 {
        valid: u32, padding: u32, fh: u64, size: u64, lock_owner: u64,
        atime: u64, mtime: u64, ctime: u64, atimensec: u32, mtimensec: u32, ctimensec: u32,
        mode: u32, unused4: u32, uid: u32, gid: u32, unused5: u32,
    }
    struct MknodIn: 16 { mode: u32, rdev: u32, umask: u32, padding: u32, }
    struct MkdirIn: 8 { mode: u32, umask: u32, }
    struct RenameIn: 8 { newdir: u64, }
    struct Rename2In: 16 { newdir: u64, flags: u32, padding: u32, }
    struct LinkIn: 8 { oldnodeid: u64, }
    struct OpenIn: 8 { flags: u32, open_flags: u32, }
    struct CreateIn: 16 { flags: u32, mode: u32, umask: u32, open_flags: u32, }
    struct OpenOut: 16 { fh: u64, open_flags: u32, backing_id: i32, }
    struct ReleaseIn: 24 { fh: u64, flags: u32, release_flags: u32, lock_owner: u64, }
    struct FlushIn: 24 { fh: u64, unused: u32, padding: u32, lock_owner: u64, }
    struct ReadIn: 40 {
        fh: u64, offset: u64, size: u32, read_flags: u32, lock_owner: u64, flags: u32,
        padding: u32,
    }
    struct WriteIn: 40 {
        fh: u64, offset: u64, size: u32, write_flags: u32, lock_owner: u64, flags: u32,
        padding: u32,
    }
    struct WriteOut: 8 { size: u32, padding: u32, }
    struct FsyncIn: 16 { fh: u64, fsync_flags: u32, padding: u32, }
    struct SetxattrIn: 16 { size: u32, flags: u32, setxattr_flags: u32, padding: u32, }
    /// The beginning of `SETXATTR` if `SETXATTR_EXT` was not negotiated.
    struct SetxattrInCompat: 8 { size: u32, flags: u32, }
    struct GetxattrIn: 8 { size: u32, padding: u32, }
    struct GetxattrOut: 8 { size: u32, padding: u32, }
    struct LkIn: 48 {
        fh: u64, owner: u64, start: u64, end: u64, kind: u32, pid: u32, lk_flags: u32,
        padding: u32,
    }
    struct AccessIn: 8 { mask: u32, padding: u32, }
    /// The part of `fuse_init_in` that every kernel sends.
    struct InitIn: 16 { major: u32, minor: u32, max_readahead: u32, flags: u32, }
    struct InitOut: 64 {
        major: u32, minor: u32, max_readahead: u32, flags: u32,
        max_background: u16, congestion_threshold: u16, max_write: u32, time_gran: u32,
        max_pages: u16, map_alignment: u16, flags2: u32, max_stack_depth: u32,
        request_timeout: u16, unused: [u16; 11],
    }
    struct InterruptIn: 8 { unique: u64, }
    struct BmapIn: 16 { block: u64, blocksize: u32, padding: u32, }
    struct BmapOut: 8 { block: u64, }
    struct IoctlIn: 32 { fh: u64, flags: u32, cmd: u32, arg: u64, in_size: u32, out_size: u32, }
    struct IoctlOut: 16 { result: i32, flags: u32, in_iovs: u32, out_iovs: u32, }
    struct PollIn: 24 { fh: u64, kh: u64, flags: u32, events: u32, }
    struct FallocateIn: 32 { fh: u64, offset: u64, length: u64, mode: u32, padding: u32, }
    struct LseekIn: 24 { fh: u64, offset: u64, whence: u32, padding: u32, }
    struct LseekOut: 8 { offset: u64, }
    struct CopyFileRangeIn: 56 {
        fh_in: u64, off_in: u64, nodeid_out: u64, fh_out: u64, off_out: u64, len: u64, flags: u64,
    }
    struct CopyFileRangeOut: 8 { bytes_copied: u64, }
    struct SyncfsIn: 8 { padding: u64, }
    struct Dirent: 24 { ino: u64, off: u64, namelen: u32, kind: u32, }
    struct ExtHeader: 8 { size: u32, kind: u32, }

    struct NotifyInvalInodeOut: 24 { ino: u64, off: i64, len: i64, }
    struct NotifyInvalEntryOut: 16 { parent: u64, namelen: u32, flags: u32, }
    struct NotifyDeleteOut: 24 { parent: u64, child: u64, namelen: u32, padding: u32, }
    struct NotifyStoreOut: 24 { nodeid: u64, offset: u64, size: u32, padding: u32, }

    struct UringEntInOut: 32 {
        flags: u64, commit_id: u64, payload_sz: u32, padding: u32, reserved: u64,
    }
    /// The command area of a 128-byte submission queue entry.
    struct UringCmdReq: 24 { flags: u64, commit_id: u64, qid: u16, padding: [u8; 6], }
}

/// The header buffer of one ring entry: it contains the request's header, and then the reply's.
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub(crate) struct UringReqHeader {
    pub(crate) in_out: [u8; 128],
    pub(crate) op_in: [u8; 128],
    pub(crate) ring_ent_in_out: UringEntInOut,
}

const _: () = assert!(size_of::<UringReqHeader>() == 288);

pub(crate) const GETATTR_FH: u32 = 1 << 0;

pub(crate) const FATTR_MODE: u32 = 1 << 0;
pub(crate) const FATTR_UID: u32 = 1 << 1;
pub(crate) const FATTR_GID: u32 = 1 << 2;
pub(crate) const FATTR_SIZE: u32 = 1 << 3;
pub(crate) const FATTR_ATIME: u32 = 1 << 4;
pub(crate) const FATTR_MTIME: u32 = 1 << 5;
pub(crate) const FATTR_FH: u32 = 1 << 6;
pub(crate) const FATTR_ATIME_NOW: u32 = 1 << 7;
pub(crate) const FATTR_MTIME_NOW: u32 = 1 << 8;
pub(crate) const FATTR_LOCKOWNER: u32 = 1 << 9;
pub(crate) const FATTR_CTIME: u32 = 1 << 10;
pub(crate) const FATTR_KILL_SUIDGID: u32 = 1 << 11;

pub(crate) const READ_LOCKOWNER: u32 = 1 << 1;
pub(crate) const WRITE_CACHE: u32 = 1 << 0;
pub(crate) const WRITE_LOCKOWNER: u32 = 1 << 1;
pub(crate) const WRITE_KILL_SUIDGID: u32 = 1 << 2;
pub(crate) const OPEN_KILL_SUIDGID: u32 = 1 << 0;
pub(crate) const SETXATTR_ACL_KILL_SGID: u32 = 1 << 0;
pub(crate) const RELEASE_FLUSH: u32 = 1 << 0;
pub(crate) const RELEASE_FLOCK_UNLOCK: u32 = 1 << 1;
pub(crate) const FSYNC_FDATASYNC: u32 = 1 << 0;

pub(crate) const NOTIFY_INVAL_INODE: i32 = 2;
pub(crate) const NOTIFY_INVAL_ENTRY: i32 = 3;
pub(crate) const NOTIFY_STORE: i32 = 4;
pub(crate) const NOTIFY_DELETE: i32 = 6;
pub(crate) const INVAL_ENTRY_EXPIRE_ONLY: u32 = 1 << 0;

/// Extension types up to this one are lists of security contexts.
pub(crate) const EXT_MAX_NR_SECCTX: u32 = 31;
/// The extension type of supplementary groups.
pub(crate) const EXT_GROUPS: u32 = 32;
