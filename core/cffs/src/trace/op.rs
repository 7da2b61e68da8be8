//! Operations, by number, and their shares of requests.

use std::num::NonZeroU64;

/// The kind of an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum OpKind {
    /// An operation that was in progress when the recording began, or a thread of the volume itself.
    Volume = 1,
    /// A name or an inode is looked up.
    Lookup,
    /// A file is made, of whatever type.
    Create,
    /// A further name is given.
    Link,
    /// A name is removed.
    Remove,
    /// A name is changed.
    Rename,
    /// A directory is listed.
    List,
    /// Contents are read.
    Read,
    /// Contents are written, allocated or copied.
    Write,
    /// Attributes are read.
    Stat,
    /// Attributes are changed.
    SetAttributes,
    /// An extended attribute is read or changed.
    Xattr,
    /// Changes are made durable.
    Sync,
    /// References are released, and files without a name perhaps deleted.
    Release,
    /// An epoch, a checkpoint, or contents ahead of an epoch, by the volume's background.
    Background,
    /// Scattered files are moved together.
    Regroup,
    /// Administration: the volume is closed, grown, tuned, trimmed or checked.
    Maintenance,
}

impl OpKind {
    /// All of them, in the order of their numbers.
    pub const ALL: [OpKind; 17] = [
        OpKind::Volume,
        OpKind::Lookup,
        OpKind::Create,
        OpKind::Link,
        OpKind::Remove,
        OpKind::Rename,
        OpKind::List,
        OpKind::Read,
        OpKind::Write,
        OpKind::Stat,
        OpKind::SetAttributes,
        OpKind::Xattr,
        OpKind::Sync,
        OpKind::Release,
        OpKind::Background,
        OpKind::Regroup,
        OpKind::Maintenance,
    ];

    fn from_number(number: u8) -> Option<OpKind> {
        OpKind::ALL.get(usize::from(number).checked_sub(1)?).copied()
    }

    /// Its printed name.
    pub fn name(self) -> &'static str {
        match self {
            OpKind::Volume => "volume",
            OpKind::Lookup => "lookup",
            OpKind::Create => "create",
            OpKind::Link => "link",
            OpKind::Remove => "remove",
            OpKind::Rename => "rename",
            OpKind::List => "list",
            OpKind::Read => "read",
            OpKind::Write => "write",
            OpKind::Stat => "stat",
            OpKind::SetAttributes => "setattr",
            OpKind::Xattr => "xattr",
            OpKind::Sync => "sync",
            OpKind::Release => "release",
            OpKind::Background => "background",
            OpKind::Regroup => "regroup",
            OpKind::Maintenance => "maintenance",
        }
    }
}

/// The bits of an [`OpId`] below its process and its kind.
const SEQUENCE_BITS: u32 = 36;
/// Linux gives no process a number of more bits.
const PROCESS_BITS: u32 = 22;

/// The number of an operation, unique in a recording. It contains the kind of the operation and the process
/// that called, so that shares are summed up without a table of all operations.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct OpId(NonZeroU64);

impl OpId {
    /// No known operation.
    pub const VOLUME: OpId = OpId::new(OpKind::Volume, 0, 0);

    /// The number of an operation of a process; 0 is no process.
    pub const fn new(kind: OpKind, process: u32, sequence: u64) -> OpId {
        let process = process as u64 & ((1 << PROCESS_BITS) - 1);
        let sequence = sequence & ((1 << SEQUENCE_BITS) - 1);
        let kind = (kind as u64) << (SEQUENCE_BITS + PROCESS_BITS);
        match NonZeroU64::new(kind | process << SEQUENCE_BITS | sequence) {
            Some(bits) => OpId(bits),
            None => panic!("no kind has the number 0"),
        }
    }

    /// All of it as one number.
    pub fn bits(self) -> u64 {
        self.0.get()
    }

    /// The kind of the operation.
    pub fn kind(self) -> OpKind {
        let number = (self.bits() >> (SEQUENCE_BITS + PROCESS_BITS)) as u8;
        OpKind::from_number(number).unwrap_or(OpKind::Volume)
    }

    /// The thread that called, by the kernel's number of it; 0 if no process called.
    pub fn process(self) -> u32 {
        (self.bits() >> SEQUENCE_BITS) as u32 & ((1 << PROCESS_BITS) - 1)
    }
}

/// The way by which operations led to a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Way {
    /// The operation made it and waited for it.
    Direct,
    /// It was read ahead by another thread.
    ReadAhead,
    /// It wrote blocks of an epoch to their places.
    WriteBack,
    /// It wrote blocks of an epoch as a record of the journal.
    Journal,
    /// It brought blocks from the journal to their places.
    Drain,
}

impl Way {
    /// Its printed name.
    pub fn name(self) -> &'static str {
        match self {
            Way::Direct => "direct",
            Way::ReadAhead => "read-ahead",
            Way::WriteBack => "write-back",
            Way::Journal => "journal",
            Way::Drain => "drain",
        }
    }
}

/// The shares of a request add up to this.
pub const WHOLE: u32 = 1 << 30;

/// An operation's share of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Share {
    /// The operation.
    pub op: OpId,
    /// Its part of [`WHOLE`].
    pub part: u32,
}
