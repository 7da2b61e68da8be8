//! A file with a position.

use std::io::{self, SeekFrom};

use super::Node;
use crate::error::{Error, Result};
use crate::format::inode::FileType;
use crate::vfs;
use crate::vfs::types::SetAttr;
use crate::wire::READ_BYTES_MAX;

/// Bytes of a file that are read at once: others can change it in between.
const STEP_BYTES: usize = (1 << 20) + 1;
/// So much is read at once from a server: one request.
const STEP_BYTES_OF_SERVER: usize = READ_BYTES_MAX;

/// A regular file in use, with a position for [`io::Read`], [`io::Write`] and [`io::Seek`].
pub struct File {
    node: Node,
    position: u64,
}

impl File {
    /// The file of a handle.
    ///
    /// # Errors
    ///
    /// [`Error::IsDirectory`]; [`Error::Invalid`] for any other type than a regular file.
    pub fn of(node: Node) -> Result<File> {
        match node.file_type() {
            FileType::Regular => Ok(File { node, position: 0 }),
            FileType::Directory => Err(Error::IsDirectory),
            _ => Err(Error::Invalid("not a regular file")),
        }
    }

    /// The inode.
    pub fn node(&self) -> &Node {
        &self.node
    }

    /// Reads from `offset` on and returns the length: less than requested only at the end.
    ///
    /// # Errors
    ///
    /// [`Error::Io`] and [`Error::Corruption`].
    pub fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<usize> {
        self.node.read_at(offset, buf)
    }

    /// Writes all of `data` from `offset` on.
    ///
    /// # Errors
    ///
    /// [`Error::NoSpace`] and [`Error::TooLarge`], after which a part may be written.
    pub fn write_all_at(&self, offset: u64, data: &[u8]) -> Result<()> {
        self.node.write_all_at(offset, data)
    }

    /// Writes all of `data` at the end of the file and returns the offset after it. Data that others append
    /// or write meanwhile is not overwritten, and the data of this call stays in one piece; attached, each
    /// MiB of it does.
    ///
    /// # Errors
    ///
    /// [`Error::NoSpace`] and [`Error::TooLarge`], after which a part may be written.
    pub fn append_all(&self, data: &[u8]) -> Result<u64> {
        self.node.append_all(data)
    }

    /// Reads up to `len` bytes from `offset` on, and passes them to `take` piece by piece, in order, from
    /// memory. The file is locked meanwhile, so `take` must not call anything that may wait.
    ///
    /// # Errors
    ///
    /// [`Error::Io`] and [`Error::Corruption`].
    pub fn read_pieces_at(
        &self,
        offset: u64,
        len: usize,
        take: &mut dyn FnMut(&[u8]),
    ) -> Result<usize> {
        self.node.read_pieces_at(offset, len, take)
    }

    /// The whole contents.
    ///
    /// # Errors
    ///
    /// [`Error::Io`] and [`Error::Corruption`].
    pub fn contents(&self) -> Result<Vec<u8>> {
        let size = self.node.attr()?.size;
        let mut contents = Vec::with_capacity(size.min(STEP_BYTES as u64) as usize);
        self.read_pieces(&mut |piece| contents.extend_from_slice(piece))?;
        Ok(contents)
    }

    /// Reads the whole contents, and passes them to `take` piece by piece, in order, from memory. The file is
    /// locked meanwhile, so `take` must not call anything that may wait. Before an error it may have received
    /// damaged data.
    ///
    /// # Errors
    ///
    /// [`Error::Io`] and [`Error::Corruption`].
    pub fn read_pieces(&self, take: &mut dyn FnMut(&[u8])) -> Result<()> {
        // A short read has reached the end, so no other read is needed.
        let step = if self.node.is_attached() { STEP_BYTES_OF_SERVER } else { STEP_BYTES };
        let mut at = 0;
        loop {
            let read = self.node.read_pieces_at(at, step, take)?;
            at += read as u64;
            if read < step {
                return Ok(());
            }
        }
    }

    /// Truncates the file, or extends it with a hole.
    ///
    /// # Errors
    ///
    /// [`Error::TooLarge`]; [`Error::NoSpace`].
    pub fn set_len(&self, size: u64) -> Result<()> {
        self.node.set_attr(&SetAttr { size: Some(size), ..SetAttr::default() })
    }

    /// Makes contents and attributes durable.
    ///
    /// # Errors
    ///
    /// Any error of writing it; then it may be lost, and the volume is latched.
    pub fn sync(&self) -> Result<()> {
        self.node.sync_file()
    }
}

/// The error as one of the standard library, with the errno that the kernel would return.
fn to_io(error: Error) -> io::Error {
    let kind = io::Error::from_raw_os_error(vfs::errno(&error)).kind();
    io::Error::new(kind, error)
}

impl io::Read for File {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        let read = self.read_at(self.position, buf).map_err(to_io)?;
        self.position += read as u64;
        Ok(read)
    }
}

impl io::Write for File {
    fn write(&mut self, data: &[u8]) -> io::Result<usize> {
        let written = self.node.write_at(self.position, data).map_err(to_io)?;
        self.position += written as u64;
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl io::Seek for File {
    fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
        let (base, distance) = match to {
            SeekFrom::Start(offset) => (offset, 0),
            SeekFrom::Current(distance) => (self.position, distance),
            SeekFrom::End(distance) => (self.node.attr().map_err(to_io)?.size, distance),
        };
        let position = base.checked_add_signed(distance).ok_or(io::ErrorKind::InvalidInput)?;
        self.position = position;
        Ok(position)
    }
}
