//! Ioctls on open files, as the kernel forwards them.

use cffs::error::Error;
use cffs::units::InodeNo;
use cffs::vfs::{Protection, Volume};
use fuse_ring::Errno;
use fuse_ring::protocol::Ioctl;

use crate::served::fstrim::FstrimRange;

#[cfg(test)]
mod tests;

/// The ioctls of chattr(1) and lsattr(1): `FS_IOC_GETFLAGS` and so on. The numbers that the kernel forwards
/// have the size of a 64-bit `long`, but the data has four bytes.
const GET_FLAGS: u32 = 0x8008_6601;
const SET_FLAGS: u32 = 0x4008_6602;
const IMMUTABLE_FLAG: u32 = 0x10;
const APPEND_FLAG: u32 = 0x20;
/// The same with `struct fsxattr`, whose other fields are zeros here.
const GET_EXTENDED_FLAGS: u32 = 0x801c_581f;
const SET_EXTENDED_FLAGS: u32 = 0x401c_5820;
const EXTENDED_BYTES: usize = 28;
const IMMUTABLE_EXTENDED: u32 = 0x8;
const APPEND_EXTENDED: u32 = 0x10;

/// The statx(2) attributes that this file system supports: `STATX_ATTR_IMMUTABLE` and `STATX_ATTR_APPEND`.
/// Each reply contains them, though Linux 6.18 ignores them.
pub(super) const STATX_ATTRIBUTES: u64 = (IMMUTABLE_FLAG | APPEND_FLAG) as u64;

/// Those that a file has; their bits are the same as those of its flags.
pub(super) fn statx_attributes(protection: Protection) -> u64 {
    u64::from(flags_of(protection, IMMUTABLE_FLAG, APPEND_FLAG))
}

/// Carries out an ioctl, and returns how many bytes of the buffer it filled. `is_owner`: whether root asks,
/// or the user who mounted the volume. Only root may change a file's protection.
pub(super) fn carry_out(
    volume: &Volume,
    ino: InodeNo,
    ioctl: &Ioctl<'_>,
    is_root: bool,
    is_owner: bool,
    buf: &mut [u8],
) -> Result<usize, Errno> {
    match ioctl.command {
        FstrimRange::COMMAND if !is_owner => Err(Errno::PERM),
        FstrimRange::COMMAND => {
            let range = FstrimRange::from_bytes(ioctl.data).ok_or(Errno::INVAL)?;
            let superblock = volume.writer().superblock();
            if !range.has_a_block(superblock.blocks, superblock.block_bytes.into()) {
                return Err(Errno::INVAL);
            }
            let end = range.start.saturating_add(range.len);
            let trimmed = volume.admin().trim(range.start..end, range.least).map_err(errno)?;
            tracing::info!(bytes = trimmed.bytes, requests = trimmed.requests, "trimmed");
            answer(buf, &FstrimRange { len: trimmed.bytes, ..range }.to_bytes())
        }
        GET_FLAGS => {
            let protection = volume.attr(ino).map_err(errno)?.protection;
            answer(buf, &flags_of(protection, IMMUTABLE_FLAG, APPEND_FLAG).to_ne_bytes())
        }
        GET_EXTENDED_FLAGS => {
            let protection = volume.attr(ino).map_err(errno)?.protection;
            let mut extended = [0; EXTENDED_BYTES];
            let flags = flags_of(protection, IMMUTABLE_EXTENDED, APPEND_EXTENDED);
            extended[..4].copy_from_slice(&flags.to_ne_bytes());
            answer(buf, &extended)
        }
        SET_FLAGS | SET_EXTENDED_FLAGS if !is_root => Err(Errno::PERM),
        SET_FLAGS => {
            let flags = ioctl.data.try_into().map_err(|_| Errno::INVAL)?;
            let flags = u32::from_ne_bytes(flags);
            protect(volume, ino, flags, IMMUTABLE_FLAG, APPEND_FLAG)
        }
        SET_EXTENDED_FLAGS => {
            let (flags, rest) = ioctl.data.split_first_chunk().ok_or(Errno::INVAL)?;
            if rest.len() != EXTENDED_BYTES - 4 || rest.iter().any(|byte| *byte != 0) {
                return Err(Errno::OPNOTSUPP);
            }
            let flags = u32::from_ne_bytes(*flags);
            protect(volume, ino, flags, IMMUTABLE_EXTENDED, APPEND_EXTENDED)
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

/// The flags of a file, given the bits for each.
fn flags_of(protection: Protection, immutable: u32, append_only: u32) -> u32 {
    let bit = |is_on: bool, bit| if is_on { bit } else { 0 };
    bit(protection.immutable, immutable) | bit(protection.append_only, append_only)
}

/// Sets the flags of a file if all of them are supported.
fn protect(
    volume: &Volume,
    ino: InodeNo,
    flags: u32,
    immutable: u32,
    append_only: u32,
) -> Result<usize, Errno> {
    if flags & !(immutable | append_only) != 0 {
        return Err(Errno::OPNOTSUPP);
    }
    let protection =
        Protection { immutable: flags & immutable != 0, append_only: flags & append_only != 0 };
    volume.protect(ino, protection).map(|()| 0).map_err(errno)
}
