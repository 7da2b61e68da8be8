//! The common head of metadata blocks: a magic number and the checksum of the whole block.

use zerocopy::{FromBytes, Immutable, KnownLayout, Unaligned};

use super::Checksum;

/// Where the checksum is.
pub(super) const CHECKSUM_AT: usize = 4;

/// The header of a block of one kind and the bytes after it, if magic and checksum are right; otherwise the
/// fault. `not_one` is the fault of a block that is not of this kind.
pub(super) fn header<'a, H: FromBytes + Immutable + KnownLayout + Unaligned>(
    bytes: &'a [u8],
    magic: u32,
    not_one: &'static str,
    checksum: Checksum,
) -> Result<(&'a H, &'a [u8]), &'static str> {
    const { assert!(size_of::<H>() >= CHECKSUM_AT + 4, "a header has its magic and checksum") };
    let parts = H::ref_from_prefix(bytes).map_err(|_| "shorter than its header")?;
    if bytes[..CHECKSUM_AT] != magic.to_le_bytes() {
        return Err(not_one);
    }
    if !checksum.verify(bytes, CHECKSUM_AT) {
        return Err("checksum mismatch");
    }
    Ok(parts)
}
