//! Ioctls on open files, as the kernel forwards them.

use cffs::error::Error;
use cffs::format::inode::InodeFlags;
use cffs::units::InodeNo;
use cffs::vfs::Volume;
use fuse_ring::Errno;
use fuse_ring::protocol::{Context, Ioctl, UNKNOWN_ID};

use super::credentials;
use crate::served::control::Control;
use crate::served::fstrim::FstrimRange;

#[cfg(test)]
mod tests;

/// The ioctls of chattr(1) and lsattr(1): `FS_IOC_GETFLAGS` and so on. The numbers that the kernel forwards
/// have the size of a 64-bit `long`, but the data has four bytes.
const GET_FLAGS: u32 = 0x8008_6601;
const SET_FLAGS: u32 = 0x4008_6602;
/// `FS_COMPR_FL`, `FS_IMMUTABLE_FL`, `FS_APPEND_FL` and `FS_NOCOMP_FL`.
const FLAGS: Bits = &[
    (InodeFlags::COMPRESS, 0x4),
    (InodeFlags::IMMUTABLE, 0x10),
    (InodeFlags::APPEND_ONLY, 0x20),
    (InodeFlags::NO_COMPRESS, 0x400),
];
/// The same with `struct fsxattr`, whose other fields are zeros here, and which has no flags of compression.
const GET_EXTENDED_FLAGS: u32 = 0x801c_581f;
const SET_EXTENDED_FLAGS: u32 = 0x401c_5820;
const EXTENDED_BYTES: usize = 28;
const EXTENDED_FLAGS: Bits = &[(InodeFlags::IMMUTABLE, 0x8), (InodeFlags::APPEND_ONLY, 0x10)];

/// The bit of each flag in an ioctl.
type Bits = &'static [(InodeFlags, u32)];

/// The statx(2) attributes that this file system supports: `STATX_ATTR_COMPRESSED`, `STATX_ATTR_IMMUTABLE`
/// and `STATX_ATTR_APPEND`. Each reply contains them, though Linux 6.18 ignores them.
pub(super) const STATX_ATTRIBUTES: u64 = 0x34;

/// Those that a file has; their bits are the same as those of its flags.
pub(super) fn statx_attributes(flags: InodeFlags) -> u64 {
    u64::from(encode(flags, FLAGS)) & STATX_ATTRIBUTES
}

/// Carries out an ioctl, and returns how many bytes of the buffer it filled.
pub(super) fn carry_out(
    volume: &Volume,
    control: &Control,
    ino: InodeNo,
    ioctl: &Ioctl<'_>,
    cx: &Context<'_>,
    buf: &mut [u8],
) -> Result<usize, Errno> {
    match ioctl.command {
        FstrimRange::COMMAND => {
            let range = FstrimRange::from_bytes(ioctl.data).ok_or(Errno::INVAL)?;
            let superblock = volume.writer().superblock.get();
            if !range.has_a_block(superblock.blocks, superblock.block_bytes.into()) {
                return Err(Errno::INVAL);
            }
            let end = range.start.saturating_add(range.len);
            let uid = credentials::uid(cx);
            let trimmed = control.trim(volume, range.start..end, range.least, uid);
            answer(buf, &FstrimRange { len: trimmed.map_err(errno)?, ..range }.to_bytes())
        }
        GET_FLAGS => {
            let flags = volume.attr(ino).map_err(errno)?.flags;
            answer(buf, &encode(flags, FLAGS).to_ne_bytes())
        }
        GET_EXTENDED_FLAGS => {
            let flags = volume.attr(ino).map_err(errno)?.flags;
            let mut extended = [0; EXTENDED_BYTES];
            extended[..4].copy_from_slice(&encode(flags, EXTENDED_FLAGS).to_ne_bytes());
            answer(buf, &extended)
        }
        SET_FLAGS => {
            let flags = ioctl.data.try_into().map_err(|_| Errno::INVAL)?;
            set_flags(volume, ino, cx, u32::from_ne_bytes(flags), FLAGS)
        }
        SET_EXTENDED_FLAGS => {
            let (flags, rest) = ioctl.data.split_first_chunk().ok_or(Errno::INVAL)?;
            if rest.len() != EXTENDED_BYTES - 4 || rest.iter().any(|byte| *byte != 0) {
                return Err(Errno::OPNOTSUPP);
            }
            set_flags(volume, ino, cx, u32::from_ne_bytes(*flags), EXTENDED_FLAGS)
        }
        _ => Err(Errno::NOTTY),
    }
}

/// Whether an ioctl changes attributes of the file that the kernel may have cached: the flags, and with them
/// the change time.
pub(super) fn changes_attributes(command: u32) -> bool {
    matches!(command, SET_FLAGS | SET_EXTENDED_FLAGS)
}

fn answer(buf: &mut [u8], answer: &[u8]) -> Result<usize, Errno> {
    buf.get_mut(..answer.len()).ok_or(Errno::INVAL)?.copy_from_slice(answer);
    Ok(answer.len())
}

fn errno(error: Error) -> Errno {
    Errno::from_raw_os_error(cffs::vfs::errno(&error))
}

/// Flags of a file as bits of an ioctl.
fn encode(flags: InodeFlags, bits: Bits) -> u32 {
    bits.iter().filter(|(flag, _)| flags.contains(*flag)).map(|(_, bit)| bit).sum()
}

/// Sets the flags of a file for which the ioctl has bits. Only root may change the flags of protection; the
/// owner, and a caller with `CAP_FOWNER`, may change the others.
fn set_flags(
    volume: &Volume,
    ino: InodeNo,
    cx: &Context<'_>,
    given: u32,
    bits: Bits,
) -> Result<usize, Errno> {
    let attr = volume.attr(ino).map_err(errno)?;
    let mut flags = attr.flags;
    for (flag, bit) in bits {
        flags.set(*flag, given & bit != 0);
    }
    if given != encode(flags, bits) {
        return Err(Errno::OPNOTSUPP);
    }
    let is_root = credentials::uid(cx) == 0;
    // On a mount that allows id-mapped mounts, the request has no user. The kernel has checked the owner.
    let acts_as_owner =
        is_root || [UNKNOWN_ID, attr.uid].contains(&cx.uid) || credentials::acts_as_owner(cx);
    if !acts_as_owner || !is_root && (flags ^ attr.flags).intersects(InodeFlags::PROTECTION) {
        return Err(Errno::PERM);
    }
    volume.set_flags(ino, flags).map(|()| 0).map_err(errno)
}
