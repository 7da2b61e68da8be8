//! A cache of chunks of objects, in a directory of a local disk.
//!
//! ```text
//!   DIR/CACHEDIR.TAG          marks the directory as a cache, for this program and for backups
//!   DIR/lock                  held while a file is added; 16 bytes: bytes used, and their complement
//!   DIR/adding                the file that is being added
//!   DIR/<UUID>/<source>-<number>-<chunk>
//! ```
//!
//! Objects never change, so a name is a key and files never become stale. The disk is not trusted: each file
//! has its key and a checksum, and a torn or damaged file counts as a miss, as does any error.
//!
//! Invariant: the count of bytes used rises before a file is added, under the lock. The count is therefore an
//! upper bound, even if a process crashes while adding. Each program recounts before its first addition,
//! since after a crash the files may be newer than the count.

use std::ffi::OsStr;
use std::fs::{self, File, Permissions};
use std::io::{self, Write};
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, SystemTime};

use parking_lot::Mutex;
use rustix::fs::FlockOperation;
use uuid::Uuid;

use crate::error::Error;
use crate::format::{CHUNK_BYTES, Object};
use crate::local::private_directory;
use crate::vault::{Instance, sealed_len};

/// The smallest cache has room for a few chunks.
pub const SIZE_BYTES_MIN: u64 = 16 << 20;

const TAG: &str = "CACHEDIR.TAG";
const TAG_TEXT: &str =
    "Signature: 8a477f597d28d172789f06886806bc55\n# Chunks of volumes in object stores.\n";
const MAGIC: [u8; 8] = *b"CFFSCHK2";
/// Magic, checksum of the rest, UUID, source and number of the object, chunk.
const HEAD_BYTES: usize = 8 + 4 + 16 + 8 + 8 + 8;
/// The unit in which file systems allocate space.
const BLOCK_BYTES: u64 = 4096;
/// The number of attempts to take a lock that another program holds, a millisecond apart. After that, the
/// chunk is not cached.
const LOCK_TRIES: usize = 20;
/// The share of the cache that is freed when it is full.
const SHARE_FREED: u64 = 10;

/// A chunk of an object.
pub type Key = (Object, u64);

/// A directory of chunks. The least recently used ones are removed when it is full.
#[derive(Debug)]
pub struct DiskCache {
    directory: PathBuf,
    size_bytes: u64,
    adding: Mutex<Adding>,
    is_failing: AtomicBool,
}

#[derive(Debug)]
struct Adding {
    lock: File,
    is_counted: bool,
}

impl DiskCache {
    /// A cache of `size_bytes` bytes in this directory, which is created if it does not exist.
    ///
    /// # Errors
    ///
    /// [`Error::Cache`] if other users may enter the directory, or if it is not a directory.
    pub fn open(directory: &Path, size_bytes: u64) -> Result<DiskCache, Error> {
        let wrong = |why: String| Error::Cache { directory: directory.display().to_string(), why };
        let failed = |error: io::Error| wrong(error.to_string());
        if size_bytes < SIZE_BYTES_MIN {
            return Err(wrong(format!("{size_bytes} bytes are too few; the minimum is 16M")));
        }
        private_directory(directory).map_err(wrong)?;
        let tag = directory.join(TAG);
        if !tag.exists() {
            if fs::read_dir(directory).map_err(failed)?.next().is_some() {
                let why =
                    "it has other files but no CACHEDIR.TAG; name an empty or a new directory";
                return Err(wrong(why.into()));
            }
            fs::write(&tag, TAG_TEXT).map_err(failed)?;
        }
        let mut options = File::options();
        options.read(true).write(true).create(true).truncate(false);
        let lock = options.open(directory.join("lock")).map_err(failed)?;
        Ok(DiskCache {
            directory: directory.to_owned(),
            size_bytes,
            adding: Mutex::new(Adding { lock, is_counted: false }),
            is_failing: AtomicBool::new(false),
        })
    }

    /// Checks that the next program could use the directory.
    ///
    /// # Errors
    ///
    /// Those of [`DiskCache::open`].
    pub fn check(&self) -> Result<(), Error> {
        Self::open(&self.directory, self.size_bytes).map(drop)
    }

    /// Whether the chunk has a file.
    pub fn has(&self, volume: &[u8; 16], key: Key) -> bool {
        self.path(volume, key).exists()
    }

    /// A cached chunk that passes its checks.
    pub fn get(&self, volume: &[u8; 16], key: Key) -> Option<Vec<u8>> {
        let path = self.path(volume, key);
        let file = File::open(&path).ok()?;
        match read_chunk(&file, volume, key) {
            Ok(bytes) => {
                // The time only affects the order of eviction.
                let _ = file.set_modified(SystemTime::now());
                Some(bytes)
            }
            Err(why) => {
                tracing::warn!(file = %path.display(), %why, "a cached chunk is read from the store again");
                self.forget(volume, key);
                None
            }
        }
    }

    /// Removes a chunk.
    pub fn forget(&self, volume: &[u8; 16], key: Key) {
        let _ = fs::remove_file(self.path(volume, key));
    }

    /// Caches a chunk if possible; returns the bytes it takes on the disk, 0 if it is not cached.
    pub fn put(&self, volume: &[u8; 16], key: Key, chunk: &[u8]) -> u64 {
        match self.add(volume, key, chunk) {
            Ok(bytes) => {
                self.is_failing.store(false, Ordering::Relaxed);
                bytes
            }
            Err(error) => {
                if !self.is_failing.swap(true, Ordering::Relaxed) {
                    let directory = self.directory.display();
                    tracing::warn!(%directory, %error, "nothing is added to the cache until this is fixed");
                }
                0
            }
        }
    }

    fn add(&self, volume: &[u8; 16], key: Key, chunk: &[u8]) -> io::Result<u64> {
        let mut adding = self.adding.lock();
        let Adding { lock, is_counted } = &mut *adding;
        let Some(_held) = Held::take(lock)? else { return Ok(0) };
        let path = self.path(volume, key);
        if path.exists() {
            return Ok(0);
        }
        let bytes = room_of(HEAD_BYTES as u64 + chunk.len() as u64);
        let known = if *is_counted { read_used(lock) } else { None };
        let mut used = match known {
            Some(used) => used,
            None => self.keep_at_most(self.size_bytes)?,
        };
        if used + bytes > self.size_bytes {
            used = self.keep_at_most((self.size_bytes - self.size_bytes / SHARE_FREED) - bytes)?;
        }
        assert!(used + bytes <= self.size_bytes, "the cache has room for the chunk");
        write_used(lock, used + bytes)?;
        *is_counted = true;
        let temporary = self.directory.join("adding");
        let added = (|| {
            fs::create_dir_all(path.parent().unwrap_or(&self.directory))?;
            let mut file = File::create(&temporary)?;
            file.set_permissions(Permissions::from_mode(0o600))?;
            file.write_all(&encode(volume, key, chunk))?;
            file.set_modified(SystemTime::now())?;
            fs::rename(&temporary, &path)
        })();
        if added.is_err() {
            let _ = fs::remove_file(&temporary);
        }
        added.map(|()| bytes)
    }

    /// Removes the least recently used files until at most `bytes_max` bytes are left, and returns the bytes
    /// that are left. Also removes the file of an interrupted addition.
    fn keep_at_most(&self, bytes_max: u64) -> io::Result<u64> {
        match fs::remove_file(self.directory.join("adding")) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        let mut files = Vec::new();
        for volume in fs::read_dir(&self.directory)? {
            let volume = volume?;
            let is_volume =
                volume.file_name().to_str().is_some_and(|name| Uuid::try_parse(name).is_ok());
            if !is_volume || !volume.file_type()?.is_dir() {
                continue;
            }
            for file in fs::read_dir(volume.path())? {
                let file = file?;
                let there = match file.metadata() {
                    Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
                    there => there?,
                };
                if there.is_file() && is_name(&file.file_name()) {
                    let used = (there.mtime(), there.mtime_nsec());
                    files.push((used, room_of(there.size()), file.path()));
                }
            }
        }
        files.sort_unstable();
        let mut used: u64 = files.iter().map(|(_, bytes, _)| bytes).sum();
        for (_, bytes, path) in files {
            if used <= bytes_max {
                break;
            }
            match fs::remove_file(path) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
                _ => used -= bytes,
            }
        }
        Ok(used)
    }

    fn path(&self, volume: &[u8; 16], (object, chunk): Key) -> PathBuf {
        let (source, number) = object.key();
        let volume = Uuid::from_bytes(*volume).to_string();
        self.directory.join(volume).join(format!("{source:016x}-{number:016x}-{chunk:08x}"))
    }
}

/// The lock of the directory, which keeps other programs from adding.
struct Held<'a>(&'a File);

impl Held<'_> {
    /// Takes it, unless another program holds it.
    fn take(lock: &File) -> io::Result<Option<Held<'_>>> {
        for _ in 0..LOCK_TRIES {
            match rustix::fs::flock(lock, FlockOperation::NonBlockingLockExclusive) {
                Ok(()) => return Ok(Some(Held(lock))),
                Err(error) if error == rustix::io::Errno::WOULDBLOCK => {
                    thread::sleep(Duration::from_millis(1));
                }
                Err(error) => return Err(error.into()),
            }
        }
        Ok(None)
    }
}

impl Drop for Held<'_> {
    fn drop(&mut self) {
        let _ = rustix::fs::flock(self.0, FlockOperation::Unlock);
    }
}

fn room_of(bytes: u64) -> u64 {
    bytes.next_multiple_of(BLOCK_BYTES)
}

/// Whether a file has a name of this module, so that it may be removed.
fn is_name(name: &OsStr) -> bool {
    let parts: Vec<&str> = name.to_str().unwrap_or_default().split('-').collect();
    let is_hex = |part: &&str| part.bytes().all(|byte| byte.is_ascii_hexdigit());
    parts.len() == 3 && parts.iter().all(is_hex) && parts.concat().len() >= 40
}

fn read_used(lock: &File) -> Option<u64> {
    let mut bytes = [0; 16];
    lock.read_exact_at(&mut bytes, 0).ok()?;
    let both = u128::from_le_bytes(bytes);
    let (used, complement) = (both as u64, (both >> 64) as u64);
    (used == !complement).then_some(used)
}

fn write_used(lock: &File, used: u64) -> io::Result<()> {
    let both = u128::from(used) | u128::from(!used) << 64;
    lock.write_all_at(&both.to_le_bytes(), 0)
}

fn encode(volume: &[u8; 16], (object, chunk): Key, bytes: &[u8]) -> Vec<u8> {
    let (source, number) = object.key();
    let mut file = Vec::with_capacity(HEAD_BYTES + bytes.len());
    file.extend_from_slice(&MAGIC);
    file.extend_from_slice(&[0; 4]);
    file.extend_from_slice(volume);
    file.extend_from_slice(&source.to_le_bytes());
    file.extend_from_slice(&number.to_le_bytes());
    file.extend_from_slice(&chunk.to_le_bytes());
    file.extend_from_slice(bytes);
    let checksum = crc32c::crc32c(&file[12..]);
    file[8..12].copy_from_slice(&checksum.to_le_bytes());
    file
}

/// The contents of a file, which must be those of this chunk; otherwise an error says what is wrong.
fn read_chunk(file: &File, volume: &[u8; 16], key: Key) -> Result<Vec<u8>, String> {
    let len = file.metadata().map_err(|error| error.to_string())?.len();
    if len <= HEAD_BYTES as u64
        || len > HEAD_BYTES as u64 + sealed_len(CHUNK_BYTES, Instance::Named)
    {
        return Err(format!("it has {len} bytes"));
    }
    let mut bytes = vec![0; len as usize];
    file.read_exact_at(&mut bytes, 0).map_err(|error| error.to_string())?;
    let contents = bytes.split_off(HEAD_BYTES);
    if bytes[..8] != MAGIC || bytes[12..] != encode(volume, key, &[])[12..] {
        return Err(String::from("it holds another chunk than its name says"));
    }
    let checksum = crc32c::crc32c_append(crc32c::crc32c(&bytes[12..]), &contents);
    if bytes[8..12] != checksum.to_le_bytes() {
        return Err(String::from("its checksum is wrong"));
    }
    Ok(contents)
}
