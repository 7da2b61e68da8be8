//! NFS, version 3 (RFC 1813): types, calls and replies.

mod call;
pub mod reply;

pub use call::{Access, Call, DirEntry, How, NewNode, SetAttributes, SetTime, Stability};

use crate::xdr::Writer;

/// The program's number.
pub const PROGRAM: u32 = 100_003;
/// Its version.
pub const VERSION: u32 = 3;
/// The longest handle of a file.
pub const HANDLE_BYTES_MAX: u32 = 64;
/// The longest name that is decoded; no file system has longer ones.
pub const NAME_BYTES_MAX: u32 = 4096;
/// The longest target of a symbolic link that is decoded.
pub const PATH_BYTES_MAX: u32 = 8192;

/// The status of a reply (2.6).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "the names are those of the standard and of errno")]
pub enum Status {
    Ok = 0,
    Perm = 1,
    NoEnt = 2,
    Io = 5,
    NxIo = 6,
    Access = 13,
    Exist = 17,
    XDev = 18,
    NotDir = 20,
    IsDir = 21,
    Inval = 22,
    FBig = 27,
    NoSpc = 28,
    RoFs = 30,
    MLink = 31,
    NameTooLong = 63,
    NotEmpty = 66,
    DQuot = 69,
    Stale = 70,
    BadHandle = 10001,
    NotSync = 10002,
    BadCookie = 10003,
    NotSupp = 10004,
    TooSmall = 10005,
    ServerFault = 10006,
    BadType = 10007,
    Jukebox = 10008,
}

/// A file's type.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "the names are those of the standard")]
pub enum FileType {
    Regular = 1,
    Directory = 2,
    BlockDevice = 3,
    CharDevice = 4,
    Symlink = 5,
    Socket = 6,
    Fifo = 7,
}

/// A time: seconds since 1970 and nanoseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Time {
    /// Seconds since 1970; earlier times, and those after 2106, cannot be expressed.
    pub seconds: u32,
    /// Nanoseconds past the second.
    pub nanoseconds: u32,
}

/// The attributes of a file (`fattr3`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Attributes {
    /// Its type.
    pub file_type: FileType,
    /// The lower 12 bits of the mode.
    pub mode: u32,
    /// The number of its names.
    pub nlink: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Bytes of the contents.
    pub size: u64,
    /// Bytes on the disk.
    pub used: u64,
    /// Major and minor number of a device.
    pub device: (u32, u32),
    /// The number of the file system.
    pub fsid: u64,
    /// The number of the file in its file system.
    pub fileid: u64,
    /// Last access.
    pub atime: Time,
    /// Last change of the contents.
    pub mtime: Time,
    /// Last change of the attributes.
    pub ctime: Time,
}

/// The encoded length of [`Attributes`].
pub const ATTRIBUTES_BYTES: usize = 84;

impl Attributes {
    /// Appends the encoded attributes.
    pub fn encode(&self, w: &mut Writer) {
        let numbers = [self.file_type as u32, self.mode, self.nlink, self.uid, self.gid];
        numbers.into_iter().for_each(|number| w.u32(number));
        w.u64(self.size);
        w.u64(self.used);
        w.u32(self.device.0);
        w.u32(self.device.1);
        w.u64(self.fsid);
        w.u64(self.fileid);
        [self.atime, self.mtime, self.ctime].into_iter().for_each(|time| time.encode(w));
    }
}

impl Time {
    fn encode(self, w: &mut Writer) {
        w.u32(self.seconds);
        w.u32(self.nanoseconds);
    }
}

/// Attributes by which a client checks whether its cache is still valid (`wcc_data`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Wcc {
    /// Attributes before the call, if only the call has changed them.
    pub before: Option<Before>,
    /// Attributes after the call.
    pub after: Option<Attributes>,
}

/// The attributes before a call, as far as the protocol has them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Before {
    /// Bytes of the contents.
    pub size: u64,
    /// Last change of the contents.
    pub mtime: Time,
    /// Last change of the attributes.
    pub ctime: Time,
}

impl Wcc {
    fn encode(&self, w: &mut Writer) {
        w.optional(self.before, |w, before| {
            w.u64(before.size);
            before.mtime.encode(w);
            before.ctime.encode(w);
        });
        post_op(w, self.after.as_ref());
    }
}

fn post_op(w: &mut Writer, attributes: Option<&Attributes>) {
    w.optional(attributes, |w, attributes| attributes.encode(w));
}

#[cfg(test)]
mod tests;
