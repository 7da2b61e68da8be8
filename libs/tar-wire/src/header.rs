//! One header: a block of 512 bytes (POSIX.1-1988 10.1.1; GNU tar's manual, "Basic Tar Format").

use crate::Error;

/// Headers and contents are padded to blocks of this size.
pub const BLOCK_BYTES: usize = 512;
/// The number of a sparse file's pieces in a header of GNU tar's own format.
const GNU_PIECES: usize = 4;
/// The number of pieces in each block that follows it.
const EXTENSION_PIECES: usize = 21;
/// The size of a piece: offset and length, each an octal number of 12 digits.
const PIECE_BYTES: usize = 24;

const CHECKSUM: std::ops::Range<usize> = 148..156;

/// A block with the valid checksum of a header.
pub struct Header([u8; BLOCK_BYTES]);

impl Header {
    /// Fails if the checksum is wrong. Old programs added signed bytes.
    pub fn new(block: [u8; BLOCK_BYTES]) -> Result<Header, Error> {
        let (mut unsigned, mut signed) = (0i128, 0i128);
        for (at, byte) in block.iter().enumerate() {
            let byte = if CHECKSUM.contains(&at) { b' ' } else { *byte };
            unsigned += i128::from(byte);
            signed += i128::from(byte as i8);
        }
        match number(&block[CHECKSUM]) {
            Some(sum) if sum == unsigned || sum == signed => Ok(Header(block)),
            _ => Err(Error::Checksum),
        }
    }

    /// The type of the entry.
    pub fn type_flag(&self) -> u8 {
        self.0[156]
    }

    /// The name, with its prefix.
    pub fn name(&self) -> Vec<u8> {
        let name = text(&self.0[..100]);
        // GNU tar uses the space of the prefix for other fields.
        match text(&self.0[345..500]) {
            prefix if self.is_posix() && !prefix.is_empty() => [prefix, name].join(&b'/'),
            _ => name.to_vec(),
        }
    }

    /// The target of a link.
    pub fn link(&self) -> Vec<u8> {
        text(&self.0[157..257]).to_vec()
    }

    /// The mode.
    pub fn mode(&self) -> Option<u32> {
        Some((number(&self.0[100..108])? & 0o7777) as u32)
    }

    /// The owner's number.
    pub fn uid(&self) -> Option<u32> {
        u32::try_from(number(&self.0[108..116])?).ok()
    }

    /// The group's number.
    pub fn gid(&self) -> Option<u32> {
        u32::try_from(number(&self.0[116..124])?).ok()
    }

    /// The size of the contents in the archive, in bytes.
    pub fn size(&self) -> Option<u64> {
        u64::try_from(number(&self.0[124..136])?).ok()
    }

    /// Seconds since 1970; negative before that.
    pub fn mtime(&self) -> Option<i64> {
        i64::try_from(number(&self.0[136..148])?).ok()
    }

    /// The numbers of a device, major and minor.
    pub fn device(&self) -> Option<(u32, u32)> {
        let part = |field| u32::try_from(number(field)?).ok();
        Some((part(&self.0[329..337])?, part(&self.0[337..345])?))
    }

    /// For a sparse file in GNU tar's own format: its size including holes, the first pieces, and whether a
    /// block with more pieces follows.
    pub fn gnu_pieces(&self) -> Option<(u64, Vec<u64>, bool)> {
        let size = u64::try_from(number(&self.0[483..495])?).ok()?;
        Some((size, pieces(&self.0[386..], GNU_PIECES)?, self.0[482] != 0))
    }

    fn is_posix(&self) -> bool {
        self.0[257..263] == *b"ustar\0"
    }
}

/// The pieces in a block after a sparse file's header, and whether another such block follows.
pub fn more_pieces(block: &[u8; BLOCK_BYTES]) -> Option<(Vec<u64>, bool)> {
    let has_more = block[EXTENSION_PIECES * PIECE_BYTES] != 0;
    Some((pieces(block, EXTENSION_PIECES)?, has_more))
}

/// Alternating offsets and lengths. A piece of zeros or blanks ends the list.
fn pieces(bytes: &[u8], count: usize) -> Option<Vec<u64>> {
    let mut numbers = Vec::new();
    for piece in bytes.chunks_exact(PIECE_BYTES).take(count) {
        let (offset, length) = piece.split_at(PIECE_BYTES / 2);
        if text(length).is_empty() {
            break;
        }
        numbers.push(u64::try_from(number(offset)?).ok()?);
        numbers.push(u64::try_from(number(length)?).ok()?);
    }
    Some(numbers)
}

/// The bytes before the first NUL.
fn text(field: &[u8]) -> &[u8] {
    field.split(|byte| *byte == 0).next().unwrap_or_default()
}

/// An octal number, or a binary one in two's complement if the first bit is set (GNU tar, star). Blanks mean
/// 0.
fn number(field: &[u8]) -> Option<i128> {
    let first = *field.first()?;
    if first & 0x80 != 0 {
        // The first bit marks a binary number; the second one is the sign.
        let start = i128::from(first & 0x7f) - if first & 0x40 != 0 { 0x80 } else { 0 };
        return Some(field[1..].iter().fold(start, |value, byte| value << 8 | i128::from(*byte)));
    }
    let digits = std::str::from_utf8(text(field)).ok()?.trim_matches(' ');
    if digits.is_empty() {
        return Some(0);
    }
    let is_octal = digits.bytes().all(|digit| matches!(digit, b'0'..=b'7'));
    is_octal.then(|| i128::from_str_radix(digits, 8).ok())?
}

#[cfg(test)]
mod tests;
