//! The operation codes.

use super::wire;

/// Declares the codes once: name, number, and the fixed-size argument that follows the header.
macro_rules! opcodes {
    ($($(#[$meta:meta])* $name:ident = $number:literal, $argument:ty;)*) => {
        /// The kind of a request.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[allow(missing_docs, reason = "the names are those of `enum fuse_opcode`")]
        #[repr(u32)]
        pub enum Opcode { $($(#[$meta])* $name = $number,)* }

        impl Opcode {
            /// Every code that this crate decodes.
            pub const ALL: &[Opcode] = &[$(Opcode::$name,)*];

            /// The code with this number.
            pub fn from_number(number: u32) -> Option<Opcode> {
                match number {
                    $($number => Some(Opcode::$name),)*
                    _ => None,
                }
            }

            /// The size of the argument before the names and the data.
            ///
            /// On `/dev/fuse` it is contiguous with them; on a ring it is in another buffer. This
            /// size makes both forms equal.
            pub(crate) fn argument_len(self, setxattr_ext: bool) -> usize {
                match self {
                    Opcode::SetXattr if !setxattr_ext => size_of::<wire::SetxattrInCompat>(),
                    $(Opcode::$name => size_of::<$argument>(),)*
                }
            }
        }
    };
}

opcodes! {
    Lookup = 1, ();
    Forget = 2, wire::ForgetIn;
    GetAttr = 3, wire::GetattrIn;
    SetAttr = 4, wire::SetattrIn;
    ReadLink = 5, ();
    Symlink = 6, ();
    MkNod = 8, wire::MknodIn;
    MkDir = 9, wire::MkdirIn;
    Unlink = 10, ();
    RmDir = 11, ();
    Rename = 12, wire::RenameIn;
    Link = 13, wire::LinkIn;
    Open = 14, wire::OpenIn;
    Read = 15, wire::ReadIn;
    Write = 16, wire::WriteIn;
    StatFs = 17, ();
    Release = 18, wire::ReleaseIn;
    Fsync = 20, wire::FsyncIn;
    SetXattr = 21, wire::SetxattrIn;
    GetXattr = 22, wire::GetxattrIn;
    ListXattr = 23, wire::GetxattrIn;
    RemoveXattr = 24, ();
    Flush = 25, wire::FlushIn;
    /// Its argument has grown over time, so all of it counts as payload.
    Init = 26, ();
    OpenDir = 27, wire::OpenIn;
    ReadDir = 28, wire::ReadIn;
    ReleaseDir = 29, wire::ReleaseIn;
    FsyncDir = 30, wire::FsyncIn;
    GetLk = 31, wire::LkIn;
    SetLk = 32, wire::LkIn;
    SetLkW = 33, wire::LkIn;
    Access = 34, wire::AccessIn;
    Create = 35, wire::CreateIn;
    Interrupt = 36, wire::InterruptIn;
    Bmap = 37, wire::BmapIn;
    Destroy = 38, ();
    Ioctl = 39, wire::IoctlIn;
    Poll = 40, wire::PollIn;
    BatchForget = 42, wire::BatchForgetIn;
    Fallocate = 43, wire::FallocateIn;
    ReadDirPlus = 44, wire::ReadIn;
    Rename2 = 45, wire::Rename2In;
    Lseek = 46, wire::LseekIn;
    CopyFileRange = 47, wire::CopyFileRangeIn;
    SyncFs = 50, wire::SyncfsIn;
    TmpFile = 51, wire::CreateIn;
    Statx = 52, wire::StatxIn;
    CopyFileRange64 = 53, wire::CopyFileRangeIn;
}
