//! The entries of an archive, one after the other.

use std::io::{self, Read};

use crate::Error;
use crate::header::{self, BLOCK_BYTES, Header};
use crate::pax::{self, Malformed, Record, Time};

#[cfg(test)]
mod tests;

/// The largest extended header, long name or map of a sparse file that is read into memory.
pub const EXTENSION_BYTES_MAX: u64 = 64 << 20;

/// The type of an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A regular file.
    Regular,
    /// A further name of a file.
    HardLink,
    /// A symbolic link.
    Symlink,
    /// A character device.
    CharDevice,
    /// A block device.
    BlockDevice,
    /// A directory.
    Directory,
    /// A pipe.
    Fifo,
    /// Anything else, by its letter.
    Other(u8),
}

/// A file in an archive.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// Its name.
    pub path: Vec<u8>,
    /// The target of a link.
    pub link: Vec<u8>,
    /// Its type.
    pub kind: Kind,
    /// The lower 12 bits of the mode.
    pub mode: u32,
    /// The owner's number.
    pub uid: u32,
    /// The group's number.
    pub gid: u32,
    /// The time of the last change of the contents.
    pub mtime: Time,
    /// The numbers of a device, major and minor.
    pub device: (u32, u32),
    /// The applicable pax records, those of global headers first.
    pub records: Vec<Record>,
    /// For a sparse file in GNU tar's own format: its size including holes, and alternating offsets and
    /// lengths of its contents.
    pub gnu_pieces: Option<(u64, Vec<u64>)>,
    /// An invalid value in the headers. The rest of the entry can be used.
    pub damage: Option<&'static str>,
}

impl Entry {
    /// The last record with a key, which applies. An empty one cancels earlier ones.
    pub fn record(&self, key: &[u8]) -> Option<&[u8]> {
        let (_, value) = self.records.iter().rfind(|(found, _)| found == key)?;
        Some(&**value).filter(|value| !value.is_empty())
    }
}

/// The headers that precede an entry and describe it.
#[derive(Default)]
struct Described {
    records: Vec<Record>,
    name: Option<Vec<u8>>,
    link: Option<Vec<u8>>,
    has_records: bool,
    is_damaged: bool,
}

/// An archive being read. Reading it returns the contents of the current entry.
pub struct Archive<R> {
    input: R,
    /// Unread bytes of the current entry's contents.
    contents: u64,
    /// Bytes between the contents and the next header.
    padding: u64,
    global: Vec<Record>,
}

impl<R: Read> Archive<R> {
    /// An archive of which nothing has been read.
    pub fn new(input: R) -> Archive<R> {
        Archive { input, contents: 0, padding: 0, global: Vec::new() }
    }

    /// Skips the rest of the current entry and returns the next one; `None` at the end.
    pub fn next_entry(&mut self) -> Result<Option<Entry>, Error> {
        let mut described = Described::default();
        let mut is_first = true;
        loop {
            self.skip()?;
            let header = match self.header()? {
                Some(header) => header,
                None if is_first => return Ok(None),
                None => return Err(Error::CutOff),
            };
            is_first = false;
            match header.type_flag() {
                b'x' | b'X' => {
                    described.has_records = true;
                    match pax::decode(&self.extension(&header)?) {
                        Ok(records) => described.records.extend(records),
                        Err(Malformed) => described.is_damaged = true,
                    }
                }
                b'g' => {
                    // A damaged one loses only a comment, or its absence is detected where it matters.
                    let records = pax::decode(&self.extension(&header)?).unwrap_or_default();
                    self.global.extend(records);
                    // A global header is no entry, so the archive may end here.
                    is_first = !described.is_used();
                }
                b'L' => described.name = Some(until_nul(self.extension(&header)?)),
                b'K' => described.link = Some(until_nul(self.extension(&header)?)),
                // The label of a GNU tar volume.
                b'V' => is_first = !described.is_used(),
                _ => return self.entry(&header, described).map(Some),
            }
        }
    }

    fn entry(&mut self, header: &Header, described: Described) -> Result<Entry, Error> {
        let mut records = self.global.clone();
        records.extend(described.records);
        let mut entry = Entry {
            path: described.name.unwrap_or_else(|| header.name()),
            link: described.link.unwrap_or_else(|| header.link()),
            kind: kind(header.type_flag()),
            mode: 0,
            uid: 0,
            gid: 0,
            mtime: Time::default(),
            device: (0, 0),
            records,
            gnu_pieces: None,
            damage: described.is_damaged.then_some("its extended header is damaged"),
        };
        entry.take_names();
        entry.take_numbers(header);
        if entry.kind == Kind::Regular && entry.path.ends_with(b"/") {
            // In v7 archives, a name with a final slash is a directory.
            entry.kind = Kind::Directory;
        }
        let size = match entry.record(b"size") {
            Some(value) => Some(pax::digits(value).ok_or(Error::Size)?),
            None => None,
        };
        let in_header = || header.size().ok_or(Error::Size);
        let size = match (entry.kind, header.type_flag()) {
            (Kind::Regular | Kind::Other(_), _) | (Kind::Directory, b'D') => match size {
                Some(size) => size,
                None => in_header()?,
            },
            // pax can store contents with each link; in other formats this is the size of the file.
            (Kind::HardLink, _) if described.has_records => size.unwrap_or(in_header()?),
            // The size of a directory is the size to which it may grow.
            _ => 0,
        };
        self.begin(size)?;
        if header.type_flag() == b'S' {
            entry.gnu_pieces = Some(self.gnu_pieces(header)?);
        }
        Ok(entry)
    }

    /// The map of a sparse file in GNU tar's own format. The entry's size does not include its further
    /// blocks.
    fn gnu_pieces(&mut self, header: &Header) -> Result<(u64, Vec<u64>), Error> {
        let (size, mut numbers, mut has_more) = header.gnu_pieces().ok_or(Error::Size)?;
        while has_more {
            let block = self.block()?.ok_or(Error::CutOff)?;
            let (more, follows) = header::more_pieces(&block).ok_or(Error::Size)?;
            numbers.extend(more);
            has_more = follows;
            if size_of_val(&*numbers) as u64 > EXTENSION_BYTES_MAX {
                return Err(Error::Size);
            }
        }
        Ok((size, numbers))
    }

    /// The contents of a header that describes another one.
    fn extension(&mut self, header: &Header) -> Result<Vec<u8>, Error> {
        let size = header.size().filter(|size| *size <= EXTENSION_BYTES_MAX).ok_or(Error::Size)?;
        self.begin(size)?;
        let mut bytes = Vec::new();
        Read::take(&mut *self, size).read_to_end(&mut bytes)?;
        if bytes.len() as u64 == size { Ok(bytes) } else { Err(Error::CutOff) }
    }

    fn begin(&mut self, size: u64) -> Result<(), Error> {
        let padded = size.checked_next_multiple_of(BLOCK_BYTES as u64).ok_or(Error::Size)?;
        (self.contents, self.padding) = (size, padded - size);
        Ok(())
    }

    fn skip(&mut self) -> Result<(), Error> {
        let left = self.contents.checked_add(self.padding).ok_or(Error::Size)?;
        let skipped = io::copy(&mut self.input.by_ref().take(left), &mut io::sink())?;
        (self.contents, self.padding) = (0, 0);
        if skipped == left { Ok(()) } else { Err(Error::CutOff) }
    }

    /// The next header; `None` at the end, which is a block of zeros or the end of the input.
    fn header(&mut self) -> Result<Option<Header>, Error> {
        match self.block()? {
            Some(block) if block.iter().any(|byte| *byte != 0) => Header::new(block).map(Some),
            _ => Ok(None),
        }
    }

    fn block(&mut self) -> Result<Option<[u8; BLOCK_BYTES]>, Error> {
        let mut block = [0; BLOCK_BYTES];
        let mut filled = 0;
        while filled < BLOCK_BYTES {
            match self.input.read(&mut block[filled..]) {
                Ok(0) if filled == 0 => return Ok(None),
                Ok(0) => return Err(Error::CutOff),
                Ok(read) => filled += read,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(Some(block))
    }
}

impl<R: Read> Read for Archive<R> {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        let wanted = usize::try_from(self.contents).unwrap_or(usize::MAX).min(buf.len());
        if wanted == 0 {
            return Ok(0);
        }
        let read = self.input.read(&mut buf[..wanted])?;
        if read == 0 {
            return Err(io::Error::new(io::ErrorKind::UnexpectedEof, Error::CutOff));
        }
        self.contents -= read as u64;
        Ok(read)
    }
}

impl Described {
    fn is_used(&self) -> bool {
        self.has_records || self.name.is_some() || self.link.is_some()
    }
}

impl Entry {
    fn take_names(&mut self) {
        if let Some(path) = self.record(b"path") {
            self.path = path.to_vec();
        }
        // This record has the file's name; the header has a substitute for readers without support for sparse
        // files.
        if let Some(path) = self.record(b"GNU.sparse.name") {
            self.path = path.to_vec();
        }
        if let Some(link) = self.record(b"linkpath") {
            self.link = link.to_vec();
        }
    }

    fn take_numbers(&mut self, header: &Header) {
        let id = |found: Option<&[u8]>, in_header: Option<u32>| match found {
            Some(value) => pax::digits(value),
            None => in_header,
        };
        let uid = id(self.record(b"uid"), header.uid());
        let gid = id(self.record(b"gid"), header.gid());
        let mtime = match self.record(b"mtime") {
            Some(value) => pax::time(value),
            None => header.mtime().map(|seconds| Time { seconds, nanoseconds: 0 }),
        };
        let device = match self.kind {
            Kind::CharDevice | Kind::BlockDevice => header.device(),
            _ => Some((0, 0)),
        };
        let fields = header.mode().zip(uid).zip(gid).zip(mtime).zip(device);
        match fields {
            Some(((((mode, uid), gid), mtime), device)) => {
                self.mode = mode;
                (self.uid, self.gid, self.mtime, self.device) = (uid, gid, mtime, device);
            }
            None => self.damage = self.damage.or(Some("a number in its header makes no sense")),
        }
    }
}

fn kind(type_flag: u8) -> Kind {
    match type_flag {
        // Contiguous files are regular files, and so are sparse ones.
        0 | b'0' | b'7' | b'S' => Kind::Regular,
        b'1' => Kind::HardLink,
        b'2' => Kind::Symlink,
        b'3' => Kind::CharDevice,
        b'4' => Kind::BlockDevice,
        // The latter with a list of its entries, from an incremental backup of GNU tar.
        b'5' | b'D' => Kind::Directory,
        b'6' => Kind::Fifo,
        other => Kind::Other(other),
    }
}

/// GNU tar ends long names with a NUL.
fn until_nul(bytes: Vec<u8>) -> Vec<u8> {
    bytes.split(|byte| *byte == 0).next().unwrap_or_default().to_vec()
}
