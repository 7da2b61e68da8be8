//! External data representation (RFC 4506): big-endian, in units of four bytes.

/// Why bytes are invalid.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Malformed {
    /// The message ends within a value.
    #[error("the message ends within a value")]
    Short,
    /// A string or an array is longer than its type allows.
    #[error("{len} items where at most {max} are allowed")]
    TooLong {
        /// The length that the message states.
        len: u32,
        /// The limit.
        max: u32,
    },
    /// A discriminant has no meaning.
    #[error("{0} is not a valid value here")]
    Discriminant(u32),
    /// Bytes follow the last value.
    #[error("{0} bytes follow the last value")]
    Trailing(usize),
}

/// The result of decoding.
pub type Result<T> = std::result::Result<T, Malformed>;

/// Decodes values from a message, one after another.
#[derive(Clone, Debug)]
pub struct Reader<'a> {
    rest: &'a [u8],
}

impl<'a> Reader<'a> {
    /// Starts at the beginning of a message.
    pub fn new(message: &'a [u8]) -> Reader<'a> {
        Reader { rest: message }
    }

    /// Bytes without a length, padded to a multiple of four. The padding is ignored, since some clients leave
    /// old data there.
    pub fn fixed(&mut self, len: usize) -> Result<&'a [u8]> {
        let padded = len.checked_next_multiple_of(4).ok_or(Malformed::Short)?;
        let (taken, rest) = self.rest.split_at_checked(padded).ok_or(Malformed::Short)?;
        self.rest = rest;
        Ok(&taken[..len])
    }

    /// As many bytes as the array has.
    pub fn array<const N: usize>(&mut self) -> Result<[u8; N]> {
        self.fixed(N)?.try_into().map_err(|_| Malformed::Short)
    }

    /// An unsigned integer.
    pub fn u32(&mut self) -> Result<u32> {
        self.array().map(u32::from_be_bytes)
    }

    /// An unsigned hyper integer.
    pub fn u64(&mut self) -> Result<u64> {
        self.array().map(u64::from_be_bytes)
    }

    /// A boolean.
    pub fn bool(&mut self) -> Result<bool> {
        match self.u32()? {
            0 => Ok(false),
            1 => Ok(true),
            other => Err(Malformed::Discriminant(other)),
        }
    }

    /// The length of a string or an array of at most `max` items.
    pub fn len(&mut self, max: u32) -> Result<u32> {
        let len = self.u32()?;
        if len <= max { Ok(len) } else { Err(Malformed::TooLong { len, max }) }
    }

    /// A string, or opaque data, of at most `max` bytes.
    pub fn opaque(&mut self, max: u32) -> Result<&'a [u8]> {
        let len = self.len(max)?;
        self.fixed(len as usize)
    }

    /// A value that may be absent.
    pub fn optional<T>(&mut self, value: impl FnOnce(&mut Self) -> Result<T>) -> Result<Option<T>> {
        if self.bool()? { value(self).map(Some) } else { Ok(None) }
    }

    /// The bytes that have not been decoded.
    pub fn rest(&self) -> &'a [u8] {
        self.rest
    }

    /// Fails if bytes are left.
    pub fn end(&self) -> Result<()> {
        if self.rest.is_empty() { Ok(()) } else { Err(Malformed::Trailing(self.rest.len())) }
    }
}

/// Appends values to a message.
#[derive(Clone, Debug, Default)]
pub struct Writer {
    bytes: Vec<u8>,
}

impl Writer {
    /// Appends to an existing beginning of a message.
    pub fn after(bytes: Vec<u8>) -> Writer {
        Writer { bytes }
    }

    /// The message up to now.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// The message.
    pub fn into_bytes(self) -> Vec<u8> {
        self.bytes
    }

    /// Truncates the message to `len` bytes.
    pub fn cut(&mut self, len: usize) {
        self.bytes.truncate(len);
    }

    /// An unsigned integer.
    pub fn u32(&mut self, value: u32) {
        self.bytes.extend_from_slice(&value.to_be_bytes());
    }

    /// An unsigned hyper integer.
    pub fn u64(&mut self, value: u64) {
        self.bytes.extend_from_slice(&value.to_be_bytes());
    }

    /// A boolean.
    pub fn bool(&mut self, value: bool) {
        self.u32(value.into());
    }

    /// Bytes without their length, padded.
    pub fn fixed(&mut self, bytes: &[u8]) {
        self.bytes.extend_from_slice(bytes);
        self.pad();
    }

    /// A string, or opaque data.
    pub fn opaque(&mut self, bytes: &[u8]) {
        self.u32(bytes.len() as u32);
        self.fixed(bytes);
    }

    /// Opaque data of at most `max` bytes, which `fill` writes in place; it returns their number, or an
    /// error, after which the message is unchanged.
    pub fn opaque_in_place<E>(
        &mut self,
        max: usize,
        fill: impl FnOnce(&mut [u8]) -> std::result::Result<usize, E>,
    ) -> std::result::Result<usize, E> {
        let at = self.bytes.len();
        self.u32(0);
        self.bytes.resize(at + 4 + max, 0);
        match fill(&mut self.bytes[at + 4..]) {
            Ok(len) => {
                let len = len.min(max);
                self.bytes[at..at + 4].copy_from_slice(&(len as u32).to_be_bytes());
                self.bytes.truncate(at + 4 + len);
                self.pad();
                Ok(len)
            }
            Err(error) => {
                self.bytes.truncate(at);
                Err(error)
            }
        }
    }

    /// A value that may be absent.
    pub fn optional<T>(&mut self, value: Option<T>, write: impl FnOnce(&mut Self, T)) {
        self.bool(value.is_some());
        if let Some(value) = value {
            write(self, value);
        }
    }

    /// Overwrites the data at offset `at`.
    pub fn replace(&mut self, at: usize, other: &Writer) {
        self.bytes[at..at + other.bytes.len()].copy_from_slice(&other.bytes);
    }

    fn pad(&mut self) {
        self.bytes.resize(self.bytes.len().next_multiple_of(4), 0);
    }
}
