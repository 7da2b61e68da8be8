//! A device in memory that takes memory only for written data.
//!
//! The contents are an [`Image`]: chunks that images share until one of them is written. So a
//! device of 16 TiB costs nothing, and a snapshot costs one pointer per chunk.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, IoSlice};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::RwLock;

use super::{BlockDevice, Geometry, total_len};

#[cfg(test)]
mod tests;

const CHUNK_BYTES: usize = 16 * 1024;

/// The contents of a device at one moment. Unwritten ranges read as zeros.
#[derive(Clone)]
pub struct Image {
    geometry: Geometry,
    chunks: BTreeMap<u64, Arc<[u8]>>,
}

impl Image {
    /// An image of zeros.
    pub fn zeroed(geometry: Geometry) -> Image {
        Image { geometry, chunks: BTreeMap::new() }
    }

    /// The size and sector of the device.
    pub fn geometry(&self) -> Geometry {
        self.geometry
    }

    /// Fills `buf` from `offset` on.
    pub fn read(&self, offset: u64, buf: &mut [u8]) -> io::Result<()> {
        self.geometry.check(offset, buf.len() as u64)?;
        let mut done = 0;
        while done < buf.len() {
            let (chunk, within, len) = piece(offset + done as u64, buf.len() - done);
            let target = &mut buf[done..done + len];
            match self.chunks.get(&chunk) {
                Some(bytes) => target.copy_from_slice(&bytes[within..within + len]),
                None => target.fill(0),
            }
            done += len;
        }
        Ok(())
    }

    /// Replaces the bytes from `offset` on by `data`.
    pub fn write(&mut self, offset: u64, data: &[u8]) -> io::Result<()> {
        self.geometry.check(offset, data.len() as u64)?;
        let mut done = 0;
        while done < data.len() {
            let (chunk, within, len) = piece(offset + done as u64, data.len() - done);
            let bytes = self.chunks.entry(chunk).or_insert_with(|| Arc::from([0; CHUNK_BYTES]));
            Arc::make_mut(bytes)[within..within + len].copy_from_slice(&data[done..done + len]);
            done += len;
        }
        Ok(())
    }

    /// Makes `len` bytes from `offset` on read as zeros, and frees their memory.
    pub fn zero(&mut self, offset: u64, len: u64) -> io::Result<()> {
        self.geometry.check(offset, len)?;
        let end = offset + len;
        let touched = offset / CHUNK_BYTES as u64..end.div_ceil(CHUNK_BYTES as u64);
        if touched.is_empty() {
            return Ok(());
        }
        let present: Vec<u64> = self.chunks.range(touched).map(|(chunk, _)| *chunk).collect();
        for chunk in present {
            let start = chunk * CHUNK_BYTES as u64;
            let from = offset.saturating_sub(start) as usize;
            let to = (end - start).min(CHUNK_BYTES as u64) as usize;
            if to - from == CHUNK_BYTES {
                self.chunks.remove(&chunk);
            } else if let Some(bytes) = self.chunks.get_mut(&chunk) {
                Arc::make_mut(bytes)[from..to].fill(0);
            }
        }
        Ok(())
    }

    /// The memory that the image's contents take, in bytes, counting shared chunks in full.
    pub fn resident_bytes(&self) -> u64 {
        (self.chunks.len() * CHUNK_BYTES) as u64
    }

    /// The image of a file's contents.
    pub fn load(path: &Path, sector_bytes: u32) -> io::Result<Image> {
        let file = File::open(path)?;
        let size_bytes = file.metadata()?.len();
        let mut image = Image::zeroed(Geometry { size_bytes, sector_bytes });
        let mut buf = vec![0; CHUNK_BYTES];
        let mut offset = 0;
        while offset < size_bytes {
            let len = (size_bytes - offset).min(CHUNK_BYTES as u64) as usize;
            file.read_exact_at(&mut buf[..len], offset)?;
            if buf[..len].iter().any(|byte| *byte != 0) {
                image.write(offset, &buf[..len])?;
            }
            offset += len as u64;
        }
        Ok(image)
    }

    /// Writes the image to a sparse file, which every tool for image files can then open.
    pub fn save(&self, path: &Path) -> io::Result<()> {
        let file = File::create(path)?;
        file.set_len(self.geometry.size_bytes)?;
        for (chunk, bytes) in &self.chunks {
            let start = chunk * CHUNK_BYTES as u64;
            let len = (self.geometry.size_bytes - start).min(CHUNK_BYTES as u64) as usize;
            file.write_all_at(&bytes[..len], start)?;
        }
        Ok(())
    }
}

/// Images are equal if every byte reads the same, no matter which chunks are present.
impl PartialEq for Image {
    fn eq(&self, other: &Image) -> bool {
        let covers = |a: &Image, b: &Image| {
            a.chunks.iter().all(|(chunk, bytes)| match b.chunks.get(chunk) {
                Some(theirs) => Arc::ptr_eq(bytes, theirs) || bytes == theirs,
                None => bytes.iter().all(|byte| *byte == 0),
            })
        };
        self.geometry == other.geometry && covers(self, other) && covers(other, self)
    }
}

impl Eq for Image {}

impl std::fmt::Debug for Image {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Image({:?}, {} bytes resident)", self.geometry, self.resident_bytes())
    }
}

/// The chunk of the byte at `offset`, the byte's place in it, and how many of `len` bytes it has.
fn piece(offset: u64, len: usize) -> (u64, usize, usize) {
    let within = (offset % CHUNK_BYTES as u64) as usize;
    (offset / CHUNK_BYTES as u64, within, len.min(CHUNK_BYTES - within))
}

/// A device whose contents are an [`Image`].
#[derive(Debug)]
pub struct MemoryDevice {
    geometry: Geometry,
    contents: RwLock<Image>,
    nonce: AtomicU64,
}

impl MemoryDevice {
    /// The default sector size, that of image files, in bytes.
    pub const SECTOR_BYTES: u32 = 4096;

    /// A device of `size_bytes` zeros.
    pub fn new(size_bytes: u64) -> MemoryDevice {
        MemoryDevice::with_geometry(Geometry { size_bytes, sector_bytes: Self::SECTOR_BYTES })
    }

    /// A device of zeros with a given sector.
    pub fn with_geometry(geometry: Geometry) -> MemoryDevice {
        MemoryDevice::from_image(Image::zeroed(geometry))
    }

    /// A device that starts with the contents of `image`.
    pub fn from_image(image: Image) -> MemoryDevice {
        let geometry = image.geometry;
        MemoryDevice { geometry, contents: RwLock::new(image), nonce: AtomicU64::new(0) }
    }

    /// The same device, whose [nonces](BlockDevice::nonce) are counted from this one on.
    pub fn with_nonces(self, first: u64) -> MemoryDevice {
        MemoryDevice { nonce: AtomicU64::new(first), ..self }
    }

    /// The contents at this moment.
    pub fn snapshot(&self) -> Image {
        self.contents.read().clone()
    }

    /// Replaces the contents by those of `image`, which must be of the same geometry.
    pub fn restore(&self, image: &Image) -> io::Result<()> {
        if image.geometry != self.geometry {
            return Err(io::Error::new(
                io::ErrorKind::InvalidInput,
                format!("an image of {:?} on a device of {:?}", image.geometry, self.geometry),
            ));
        }
        *self.contents.write() = image.clone();
        Ok(())
    }
}

impl BlockDevice for MemoryDevice {
    /// Repeatable: whether a number is new is up to the test.
    fn nonce(&self) -> u64 {
        self.nonce.fetch_add(1, Ordering::Relaxed)
    }

    fn geometry(&self) -> Geometry {
        self.geometry
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<()> {
        self.contents.read().read(offset, buf)
    }

    fn write_at(&self, mut offset: u64, bufs: &[IoSlice<'_>]) -> io::Result<()> {
        self.geometry.check(offset, total_len(bufs))?;
        let mut contents = self.contents.write();
        for buf in bufs {
            contents.write(offset, buf)?;
            offset += buf.len() as u64;
        }
        Ok(())
    }

    fn barrier(&self) -> io::Result<()> {
        Ok(())
    }

    fn sync(&self) -> io::Result<()> {
        Ok(())
    }

    fn discard(&self, offset: u64, len: u64) -> io::Result<()> {
        self.contents.write().zero(offset, len)
    }
}
