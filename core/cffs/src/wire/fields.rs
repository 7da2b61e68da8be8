//! The fields of a body.

use super::{BadMessage, HEADER_BYTES, Removed, Result, TEXT_BYTES_MAX, WALK_BYTES_MAX};

/// The longest name of a file, and of an extended attribute.
const NAME_BYTES_MAX: usize = 255;
const PERMISSIONS: u32 = 0o7777;
const SET_ID: u32 = 0o6000;

pub fn message(kind: u32, parts: &[&[u8]]) -> Vec<u8> {
    let len: usize = parts.iter().map(|part| part.len()).sum();
    let mut message = Vec::with_capacity(HEADER_BYTES + len);
    message.extend_from_slice(&(len as u32).to_le_bytes());
    message.extend_from_slice(&kind.to_le_bytes());
    parts.iter().for_each(|part| message.extend_from_slice(part));
    message
}

/// The rest of a body.
pub struct Fields<'a>(pub &'a [u8]);

impl<'a> Fields<'a> {
    pub fn take(&mut self, len: usize) -> Result<&'a [u8]> {
        let (taken, rest) = self.0.split_at_checked(len).ok_or(BadMessage)?;
        self.0 = rest;
        Ok(taken)
    }

    pub fn array<const N: usize>(&mut self) -> Result<[u8; N]> {
        let (taken, rest) = self.0.split_first_chunk().ok_or(BadMessage)?;
        self.0 = rest;
        Ok(*taken)
    }

    pub fn u8(&mut self) -> Result<u8> {
        self.array().map(|[byte]| byte)
    }

    pub fn flag(&mut self) -> Result<bool> {
        match self.u8()? {
            0 => Ok(false),
            1 => Ok(true),
            _ => Err(BadMessage),
        }
    }

    pub fn u16(&mut self) -> Result<u16> {
        self.array().map(u16::from_le_bytes)
    }

    pub fn u32(&mut self) -> Result<u32> {
        self.array().map(u32::from_le_bytes)
    }

    pub fn u64(&mut self) -> Result<u64> {
        self.array().map(u64::from_le_bytes)
    }

    /// The lower 12 bits of a mode.
    pub fn permissions(&mut self) -> Result<u32> {
        let permissions = self.u32()?;
        if permissions & !PERMISSIONS == 0 { Ok(permissions) } else { Err(BadMessage) }
    }

    /// Those of a new file. The program sets the set-id bits when the file is complete and belongs to its
    /// owner: until then the bits would give the program's rights to the file that it copies.
    pub fn permissions_of_new(&mut self) -> Result<u32> {
        let permissions = self.permissions()?;
        if permissions & SET_ID == 0 { Ok(permissions) } else { Err(BadMessage) }
    }

    /// Bytes after their count.
    pub fn bytes(&mut self) -> Result<&'a [u8]> {
        let len = self.u16()?.into();
        self.take(len)
    }

    /// A name of a file in a directory.
    pub fn name(&mut self) -> Result<Vec<u8>> {
        let name = self.bytes()?;
        let is_name = (1..=NAME_BYTES_MAX).contains(&name.len())
            && !name.iter().any(|byte| [b'/', 0].contains(byte))
            && ![&b"."[..], b".."].contains(&name);
        if is_name { Ok(name.to_vec()) } else { Err(BadMessage) }
    }

    /// A path of files.
    pub fn path(&mut self) -> Result<Vec<u8>> {
        let path = self.bytes()?;
        let is_path = path.len() <= WALK_BYTES_MAX && !path.contains(&0);
        if is_path { Ok(path.to_vec()) } else { Err(BadMessage) }
    }

    /// A name of an extended attribute.
    pub fn xattr_name(&mut self) -> Result<Vec<u8>> {
        let name = self.bytes()?;
        let is_name = (1..=NAME_BYTES_MAX).contains(&name.len()) && !name.contains(&0);
        if is_name { Ok(name.to_vec()) } else { Err(BadMessage) }
    }

    pub fn removed(&mut self) -> Result<Removed> {
        Ok(Removed { files: self.u64()?, directories: self.u64()? })
    }

    /// The bytes that were not taken.
    pub fn rest(&mut self) -> &'a [u8] {
        std::mem::take(&mut self.0)
    }

    /// A text that ends the body.
    pub fn text(&mut self) -> Result<String> {
        let text = std::str::from_utf8(self.rest()).map_err(|_| BadMessage)?;
        if text.len() > TEXT_BYTES_MAX { Err(BadMessage) } else { Ok(text.to_owned()) }
    }
}
