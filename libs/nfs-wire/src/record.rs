//! Records on a stream (RFC 5531, 11): sequences of fragments, each preceded by its length.

use std::io::{self, Read};

/// The bit that marks the last fragment of a record.
const LAST: u32 = 1 << 31;
/// How many bytes are allocated for a record before more of it has arrived.
const STEP_BYTES: usize = 64 << 10;

/// The limits of a record.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// The most bytes, in all fragments together.
    pub bytes_max: usize,
    /// The most fragments.
    pub fragments_max: usize,
}

/// Why a stream cannot be read further.
#[derive(Debug, thiserror::Error)]
pub enum RecordError {
    /// The stream failed, or ended within a record.
    #[error("reading a record: {0}")]
    Io(#[from] io::Error),
    /// A record exceeds the limit of bytes.
    #[error("a record of {0} bytes or more")]
    TooLong(usize),
    /// A record exceeds the limit of fragments.
    #[error("a record of more than {0} fragments")]
    TooManyFragments(usize),
}

/// Reads a record whose first fragment has this header. Memory is allocated as bytes arrive, not as a header
/// announces them.
///
/// # Errors
///
/// [`RecordError`]; the beginning of the next record is then unknown, and the stream must be closed.
pub fn read(
    stream: &mut impl Read,
    first: [u8; 4],
    limits: Limits,
) -> Result<Vec<u8>, RecordError> {
    let mut record = Vec::new();
    let mut header = u32::from_be_bytes(first);
    for _ in 0..limits.fragments_max {
        let len = (header & !LAST) as usize;
        let end = record.len() + len;
        if end > limits.bytes_max {
            return Err(RecordError::TooLong(end));
        }
        while record.len() < end {
            let at = record.len();
            record.resize(end.min(at + STEP_BYTES), 0);
            stream.read_exact(&mut record[at..])?;
        }
        if header & LAST != 0 {
            return Ok(record);
        }
        let mut next = [0; 4];
        stream.read_exact(&mut next)?;
        header = u32::from_be_bytes(next);
    }
    Err(RecordError::TooManyFragments(limits.fragments_max))
}

/// The space before a record for its header.
pub const HEADER_BYTES: usize = 4;

/// Turns a message that is preceded by [`HEADER_BYTES`] into a record with one fragment.
pub fn finish(message: &mut [u8]) {
    if let Some((header, body)) = message.split_first_chunk_mut::<HEADER_BYTES>() {
        *header = (LAST | body.len() as u32).to_be_bytes();
    }
}

#[cfg(test)]
mod tests;
