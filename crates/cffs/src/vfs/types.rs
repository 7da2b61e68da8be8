//! What the facade takes and gives: attributes, changes of them, new files, directory entries.

use std::sync::Arc;
use std::time::Duration;

use super::Protection;
use crate::clock::Timestamp;
use crate::format::inode::FileType;
pub use crate::format::superblock::ErrorsPolicy;
use crate::host::Host;
use crate::trace::Recorder;
use crate::tuning::{BREAK_EVEN_BYTES, EARLY_BYTES, FSYNC_LEAVES_BYTES};
use crate::units::InodeNo;
use crate::waiter::{InPlace, Waiter};

/// The attributes of a file, as `stat` shows them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Attr {
    /// The inode's number.
    pub ino: InodeNo,
    /// Distinguishes this file from earlier ones of the same number.
    pub generation: u32,
    /// The file's type.
    pub file_type: FileType,
    /// Permissions with set-user-ID, set-group-ID and sticky bit: the lower 12 bits of the mode.
    pub permissions: u32,
    /// Count of names; of a directory, 2 and the count of its subdirectories.
    pub nlink: u32,
    /// Owner.
    pub uid: u32,
    /// Owning group.
    pub gid: u32,
    /// The number of a device, `major << 32 | minor`; 0 for other files.
    pub device: u64,
    /// Bytes of the contents.
    pub size: u64,
    /// Bytes of the volume that the file occupies.
    pub allocated_bytes: u64,
    /// Last access.
    pub atime: Timestamp,
    /// Last change of the contents.
    pub mtime: Timestamp,
    /// Last change of the inode.
    pub ctime: Timestamp,
    /// Creation.
    pub btime: Timestamp,
    /// Counts changes of the file.
    pub change: u64,
    /// What is kept from changing about it.
    pub protection: Protection,
}

impl Attr {
    /// Type and permissions in one, as `st_mode` has them.
    pub fn mode(&self) -> u32 {
        self.file_type.mode_bits() | self.permissions
    }
}

/// A time to set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SetTime {
    /// The time at which the call is served.
    Now,
    /// This time.
    To(Timestamp),
}

/// Which attributes to change; `None` leaves one as it is. The change time is always set.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SetAttr {
    /// The lower 12 bits of the mode.
    pub permissions: Option<u32>,
    /// Owner.
    pub uid: Option<u32>,
    /// Owning group.
    pub gid: Option<u32>,
    /// Truncates or extends a regular file, in bytes.
    pub size: Option<u64>,
    /// Last access.
    pub atime: Option<SetTime>,
    /// Last change of the contents.
    pub mtime: Option<SetTime>,
    /// Last change of the inode, if not now.
    pub ctime: Option<Timestamp>,
    /// Clears set-id bits as a write or a change of owner does by somebody without privileges.
    pub clear_privileges: Option<Unprivileged>,
}

/// Somebody without the privilege to change a file that has set-id bits and leave them on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unprivileged {
    /// A member of the file's group: clears set-user-ID, and set-group-ID if the group may execute.
    Member,
    /// Anybody else: clears both.
    Stranger,
}

/// What a new file is to be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NewKind<'a> {
    /// An empty regular file.
    Regular,
    /// An empty directory.
    Directory,
    /// A symbolic link to this target.
    Symlink(&'a [u8]),
    /// A pipe with a name.
    Fifo,
    /// A socket.
    Socket,
    /// A character device, `major << 32 | minor`.
    CharDevice(u64),
    /// A block device, `major << 32 | minor`.
    BlockDevice(u64),
}

/// A file to make: its kind and its maker.
///
/// The directory's set-group-ID bit and default ACL are honoured: the ACL takes the place of the
/// umask if there is one.
#[derive(Clone, Copy, Debug)]
pub struct NewFile<'a> {
    /// What it is to be.
    pub kind: NewKind<'a>,
    /// The lower 12 bits of the mode that the caller asked for, before the umask.
    pub permissions: u32,
    /// The caller's umask; 0 if it was applied already.
    pub umask: u32,
    /// Owner.
    pub uid: u32,
    /// Group, unless the directory hands down its own.
    pub gid: u32,
}

/// What a rename does with the new name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RenameMode {
    /// Replaces what had the name.
    Replace,
    /// Fails if the name exists.
    NoReplace,
    /// Gives each of the two names the other's file.
    Exchange,
    /// As `Replace`, and leaves a whiteout (character device 0, 0) behind, for overlay file systems.
    Whiteout {
        /// Fails if the new name exists.
        no_replace: bool,
    },
}

/// How `allocate` changes a range of a regular file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AllocateMode {
    /// Reserves space; the file grows if the range ends after it.
    Reserve,
    /// Reserves space; the size stays.
    ReserveKeepSize,
    /// Frees the range, which reads as zeros from then on; the size stays.
    PunchHole,
    /// Makes the range read as zeros, with space reserved.
    ZeroRange {
        /// Whether the size stays if the range ends after it.
        keep_size: bool,
    },
}

/// What `seek` looks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SeekFor {
    /// The next byte that has data.
    Data,
    /// The next byte that has none; the end of the file counts.
    Hole,
}

/// Whether setting an extended attribute may create or replace it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum XattrMode {
    /// Creates or replaces.
    Any,
    /// Fails if it exists.
    Create,
    /// Fails if it does not exist.
    Replace,
}

/// An entry that `read_dir` visits.
#[derive(Clone, Copy, Debug)]
pub struct DirEntry<'a> {
    /// The name.
    pub name: &'a [u8],
    /// The inode.
    pub ino: InodeNo,
    /// Its type.
    pub file_type: FileType,
    /// Reading goes on after this entry with this cookie. It stays valid while the entry exists,
    /// also after the volume was closed and opened again.
    pub cookie: u64,
    /// The attributes, where they were asked for.
    pub attr: Option<Attr>,
}

/// Chooses the entries that `read_dir_plus` visits with their attributes.
pub type Plus<'a> = &'a dyn Fn(&DirEntry<'_>) -> bool;

/// Sizes of the volume, as `statvfs` shows them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StatFs {
    /// The unit of allocation in bytes.
    pub fragment_bytes: u32,
    /// The preferred size of a request in bytes.
    pub block_bytes: u32,
    /// Fragments that files can have in all.
    pub fragments: u64,
    /// Free fragments.
    pub free_fragments: u64,
    /// Free fragments that files can have; the rest is for the file system's own structures.
    pub available_fragments: u64,
    /// Inodes in use.
    pub inodes: u64,
    /// Inodes that could still be made.
    pub free_inodes: u64,
    /// The longest name in bytes.
    pub name_bytes_max: u32,
}

/// When a read sets the access time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum AtimeMode {
    /// If it is before the last change, or more than a day old.
    #[default]
    Relative,
    /// Always.
    Strict,
    /// Never.
    Never,
}

/// Whether a read counts as an access, which may set the access time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// It does: the volume's [`AtimeMode`] decides.
    Noted,
    /// It does not, as with `O_NOATIME`.
    Unnoted,
}

impl AtimeMode {
    /// The mount option that asks for it.
    pub fn name(self) -> &'static str {
        match self {
            AtimeMode::Relative => "relatime",
            AtimeMode::Strict => "strictatime",
            AtimeMode::Never => "noatime",
        }
    }
}

/// What becomes of the stable log of a volume that is opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum StableLog {
    /// Epochs go through it.
    #[default]
    On,
    /// It is made empty, and each epoch takes its phases.
    Off,
    /// The same, and if it lies on another device, that need not be there: the volume is opened without
    /// it if there is nothing in it.
    None,
}

/// How a volume is opened.
#[derive(Clone, Debug)]
pub struct OpenOptions {
    /// No change is accepted and nothing is written to the device.
    pub read_only: bool,
    /// The bytes of the cache for what is on the device too.
    pub cache_bytes: u64,
    /// The bytes of changes in memory at which an epoch goes to the device at once.
    pub dirty_bytes_max: u64,
    /// The bytes of new contents of files at which the background begins to write them, ahead of
    /// their epoch; [`u64::MAX`] for never.
    pub early_bytes: u64,
    /// An fsync of one file leaves what others have of new contents in memory for the next epoch, if
    /// they have more bytes of them than this; [`u64::MAX`] for never.
    pub fsync_leaves_bytes: u64,
    /// What the device streams in the time of an access elsewhere, in bytes: what is read, placed and
    /// written at once is a multiple of it ([`Tuning`](crate::tuning::Tuning)).
    pub break_even_bytes: u64,
    /// How long changes stay in memory before the background epoch.
    pub epoch_interval: Duration,
    /// How long nothing is changed before the background writes what is derived and marks the volume
    /// as clean; [`Duration::MAX`] for never.
    pub clean_after: Duration,
    /// How long a volume that is changed all the time goes without a clean point, at which all that
    /// is derived is written, so that a crash leaves little to recover.
    pub clean_every: Duration,
    /// The most time that these clean points may take, in percent.
    pub clean_share_percent: u32,
    /// When a read sets the access time.
    pub atime: AtimeMode,
    /// Every change is durable before its call returns.
    pub sync: bool,
    /// What epochs have freed is discarded, once they are on the device.
    pub discard: bool,
    /// What becomes of the stable log, if the volume has one.
    pub stable: StableLog,
    /// What happens when damage is met; by default what the superblock says, and else it goes on.
    pub errors: ErrorsPolicy,
    /// Which process this is: while the volume is open for writing, a mark on it says so, and one of
    /// another process keeps it from being opened. `None` for no mark, and none is looked for.
    pub host: Option<Arc<dyn Host>>,
    /// Opens the volume for writing though another process has it, or may have it.
    pub take_over: bool,
    /// Learns when a thread that called is about to wait.
    pub waiter: Arc<dyn Waiter>,
    /// Records operations, and the requests that they cause of a
    /// [`RecordedDevice`](crate::trace::RecordedDevice) of the same recorder.
    pub recorder: Arc<Recorder>,
}

impl Default for OpenOptions {
    fn default() -> OpenOptions {
        OpenOptions {
            read_only: false,
            cache_bytes: 256 << 20,
            dirty_bytes_max: 64 << 20,
            early_bytes: EARLY_BYTES,
            fsync_leaves_bytes: FSYNC_LEAVES_BYTES,
            break_even_bytes: BREAK_EVEN_BYTES,
            epoch_interval: Duration::from_secs(5),
            clean_after: Duration::from_secs(10),
            clean_every: Duration::from_secs(30),
            clean_share_percent: 10,
            atime: AtimeMode::default(),
            sync: false,
            discard: false,
            stable: StableLog::On,
            errors: ErrorsPolicy::Default,
            host: None,
            take_over: false,
            waiter: Arc::new(InPlace),
            recorder: Arc::default(),
        }
    }
}
