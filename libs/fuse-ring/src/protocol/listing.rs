//! Replies to `READDIR` and `READDIRPLUS`, built in place.

use zerocopy::IntoBytes;

use super::{Entry, encode, wire};

/// A listing under construction, in the buffer that the kernel will read.
///
/// Add entries until one is refused or the directory ends. Each entry has a cookie: the `offset`
/// with which the kernel requests the entries after it. An empty listing means the end.
#[derive(Debug)]
pub struct Listing<'b> {
    buf: &'b mut [u8],
    len: usize,
}

/// A listing in which each entry also contains the answer to a lookup of its name.
///
/// An added entry counts as a lookup of its node; a refused one does not.
#[derive(Debug)]
pub struct ListingPlus<'b>(Listing<'b>);

/// The listing is full; the kernel will request the rest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Full;

impl<'b> Listing<'b> {
    /// An empty listing with at most the buffer's length.
    pub fn new(buf: &'b mut [u8]) -> Listing<'b> {
        Listing { buf, len: 0 }
    }

    /// Adds an entry. The `mode` contains its type, as `st_mode` does; permissions are ignored.
    pub fn push(&mut self, ino: u64, mode: u32, cookie: u64, name: &[u8]) -> Result<(), Full> {
        self.put(&[], ino, mode, cookie, name)
    }

    /// The number of bytes written.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether nothing has been written.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The number of bytes left.
    pub fn room(&self) -> usize {
        self.buf.len() - self.len
    }

    /// An entry consists of its prefix, a [`wire::Dirent`] and the name, padded with zeros to 8
    /// bytes.
    fn put(
        &mut self,
        prefix: &[u8],
        ino: u64,
        mode: u32,
        cookie: u64,
        name: &[u8],
    ) -> Result<(), Full> {
        let len = prefix.len() + size_of::<wire::Dirent>() + name.len();
        let padded_len = len.next_multiple_of(8);
        if padded_len > self.room() {
            return Err(Full);
        }
        let Ok(namelen) = u32::try_from(name.len()) else { return Err(Full) };
        let dirent = wire::Dirent { ino, off: cookie, namelen, kind: (mode & 0o170_000) >> 12 };
        let mut at = self.len;
        for part in [prefix, dirent.as_bytes(), name, &[0; 8][..padded_len - len]] {
            self.buf[at..at + part.len()].copy_from_slice(part);
            at += part.len();
        }
        self.len = at;
        Ok(())
    }
}

impl<'b> ListingPlus<'b> {
    /// An empty listing with at most the buffer's length.
    pub fn new(buf: &'b mut [u8]) -> ListingPlus<'b> {
        ListingPlus(Listing::new(buf))
    }

    /// Adds an entry, whose node the kernel references until it forgets it.
    pub fn push(&mut self, entry: &Entry, cookie: u64, name: &[u8]) -> Result<(), Full> {
        let Entry { attr, .. } = entry;
        self.0.put(&encode::entry_bytes(entry), attr.ino, attr.mode, cookie, name)
    }

    /// Adds an entry without a lookup: `.` and `..`, and names whose inode is unreadable.
    pub fn push_name(&mut self, ino: u64, mode: u32, cookie: u64, name: &[u8]) -> Result<(), Full> {
        self.0.put(&[0; size_of::<wire::EntryOut>()], ino, mode, cookie, name)
    }

    /// The number of bytes written.
    pub fn len(&self) -> usize {
        self.0.len
    }

    /// Whether nothing has been written.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The number of bytes left.
    pub fn room(&self) -> usize {
        self.0.room()
    }
}
