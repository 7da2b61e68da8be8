//! Extended attributes, in the inode or in a block of their own (FORMAT: extended attributes).
//!
//! A list is a sequence of: length of the name (one byte), length of the value (two bytes), name,
//! value. A value of the longest length has a zero byte and the length of the name in their place. The
//! block is a run of fragments with a header before the list.

use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::Checksum;
use super::block::{self, CHECKSUM_AT};
use crate::error::Corruption;
use crate::units::{FragNo, InodeNo};

/// All attributes of an inode take at most this many bytes, encoded.
pub const XATTR_LIST_BYTES_MAX: usize = 256 << 10;
/// The longest value, in bytes: the kernel's own limit.
pub const XATTR_VALUE_BYTES_MAX: usize = 65536;

/// The bytes of the header of an attribute block.
pub const HEADER_BYTES: usize = 32;

const MAGIC: u32 = u32::from_le_bytes(*b"CFxa");

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct DiskHeader {
    magic: U32,
    checksum: U32,
    owner: U64,
    generation: U32,
    list_bytes: U32,
    start: U64,
}

const _: () = assert!(size_of::<DiskHeader>() == HEADER_BYTES);

/// The bytes of an attribute in an encoded list.
pub fn encoded_len(name: &[u8], value: &[u8]) -> usize {
    3 + name.len() + value.len()
}

/// Appends an attribute to an encoded list.
pub fn push(list: &mut Vec<u8>, name: &[u8], value: &[u8]) {
    if value.len() == XATTR_VALUE_BYTES_MAX {
        list.extend_from_slice(&[0, name.len() as u8]);
    } else {
        list.push(name.len() as u8);
        list.extend_from_slice(&(value.len() as u16).to_le_bytes());
    }
    list.extend_from_slice(name);
    list.extend_from_slice(value);
}

/// The attributes of an encoded list; `Err` if it is malformed.
pub fn iter(mut list: &[u8]) -> impl Iterator<Item = Result<(&[u8], &[u8]), &'static str>> {
    std::iter::from_fn(move || {
        if list.is_empty() {
            return None;
        }
        let Some((attribute, rest)) = split_first(list) else {
            list = &[];
            return Some(Err("the list of attributes does not add up"));
        };
        list = rest;
        Some(Ok(attribute))
    })
}

/// Whether a name can be one: not empty, and without a zero byte, which would end it.
pub fn is_name(name: &[u8]) -> bool {
    !name.is_empty() && !name.contains(&0)
}

type Split<'a> = ((&'a [u8], &'a [u8]), &'a [u8]);

fn split_first(list: &[u8]) -> Option<Split<'_>> {
    let (name_len, value_len, rest) = match *list {
        [0, name_len, ref rest @ ..] => (name_len, XATTR_VALUE_BYTES_MAX, rest),
        [name_len, low, high, ref rest @ ..] => {
            (name_len, u16::from_le_bytes([low, high]).into(), rest)
        }
        _ => return None,
    };
    let (name, rest) = rest.split_at_checked(name_len.into())?;
    let (value, rest) = rest.split_at_checked(value_len)?;
    (!name.is_empty()).then_some(((name, value), rest))
}

/// The bytes of an attribute block, padded to `bytes_total`, for the run that begins at `start`.
pub fn encode_block(
    list: &[u8],
    owner: InodeNo,
    generation: u32,
    start: FragNo,
    bytes_total: usize,
    checksum: Checksum,
) -> Vec<u8> {
    let mut bytes = vec![0; bytes_total];
    let header = DiskHeader {
        magic: MAGIC.into(),
        checksum: U32::ZERO,
        owner: owner.0.into(),
        generation: generation.into(),
        list_bytes: (list.len() as u32).into(),
        start: start.0.into(),
    };
    bytes[..HEADER_BYTES].copy_from_slice(header.as_bytes());
    bytes[HEADER_BYTES..HEADER_BYTES + list.len()].copy_from_slice(list);
    checksum.seal(&mut bytes, CHECKSUM_AT);
    bytes
}

/// The list in an attribute block that was read from `start`.
pub fn decode_block(
    bytes: &[u8],
    owner: InodeNo,
    generation: u32,
    start: FragNo,
    checksum: Checksum,
) -> Result<&[u8], Corruption> {
    let bad = |what| Corruption::XattrBlock { ino: owner, start, what };
    let (header, rest): (&DiskHeader, _) =
        block::header(bytes, MAGIC, "not an attribute block", checksum).map_err(bad)?;
    if header.owner.get() != owner.0 || header.generation.get() != generation {
        return Err(bad("it belongs to another inode"));
    }
    if header.start.get() != start.0 {
        return Err(bad("it was written for another place"));
    }
    rest.get(..header.list_bytes.get() as usize).ok_or_else(|| bad("the list does not fit"))
}
