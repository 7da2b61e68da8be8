//! Shared by the codecs: reading little-endian fields, and small objects with a checksum.

/// Encodes a small object: its magic, the checksum of the body, and the body.
pub fn with_checksum(magic: [u8; 8], body: &[u8]) -> Vec<u8> {
    [&magic[..], &crc32c::crc32c(body).to_le_bytes(), body].concat()
}

/// The body of a small object.
///
/// # Errors
///
/// The reason why the bytes are no such object.
pub fn checked(magic: [u8; 8], bytes: &[u8]) -> Result<&[u8], String> {
    let mut reader = Reader::new(bytes);
    if reader.array()? != magic {
        return Err("not the expected object, or a version that this program does not know".into());
    }
    let checksum = reader.u32()?;
    match crc32c::crc32c(reader.rest()) == checksum {
        true => Ok(reader.rest()),
        false => Err("its checksum is wrong".into()),
    }
}

/// The rest of the bytes to decode.
pub struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    /// Reads these bytes.
    pub fn new(bytes: &'a [u8]) -> Reader<'a> {
        Reader(bytes)
    }

    /// The bytes that are left.
    pub fn rest(&self) -> &'a [u8] {
        self.0
    }

    /// The next `len` bytes.
    pub fn bytes(&mut self, len: usize) -> Result<&'a [u8], String> {
        let (piece, rest) = self.0.split_at_checked(len).ok_or("it is cut off")?;
        self.0 = rest;
        Ok(piece)
    }

    /// The next `N` bytes.
    pub fn array<const N: usize>(&mut self) -> Result<[u8; N], String> {
        let (piece, rest) = self.0.split_first_chunk().ok_or("it is cut off")?;
        self.0 = rest;
        Ok(*piece)
    }

    /// The next number of 32 bits.
    pub fn u32(&mut self) -> Result<u32, String> {
        self.array().map(u32::from_le_bytes)
    }

    /// The next number of 64 bits.
    pub fn u64(&mut self) -> Result<u64, String> {
        self.array().map(u64::from_le_bytes)
    }
}
