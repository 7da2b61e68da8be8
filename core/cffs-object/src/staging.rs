//! Records that wait on a local disk until they are in the store (decision 014).
//!
//! ```text
//!   DIR/lock            held by the one program that uses the directory
//!   DIR/claim           magic, checksum of the rest, UUID, term: the last claim that was made with it
//!   DIR/<slot>          a record as it is sent, and its checksum, 4 bytes
//!   DIR/rejected/<slot>-<nonce>
//!                       such a record, if another program's record has its slot
//! ```
//!
//! Invariants:
//!
//! - A file with a correct checksum is sent unchanged or rejected, and removed only when it is in the store.
//! - Within a term, the records in the store precede the waiting ones, without a gap.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, Write};
use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};

use bytes::Bytes;
use parking_lot::Mutex;
use rustix::fs::FlockOperation;
use uuid::Uuid;

use crate::error::Error;
use crate::format;
use crate::local::{self, private_directory};
use crate::vault::{self, Instance, Vault};

const REJECTED: &str = "rejected";
const CHECKSUM_BYTES: usize = 4;

/// A directory in which records wait.
#[derive(Debug)]
pub struct Staging {
    directory: PathBuf,
    /// The slots of the valid waiting records, and the length of each.
    waiting: Mutex<BTreeMap<u64, u64>>,
    /// Seals the records of an encrypted volume.
    vault: OnceLock<Arc<Vault>>,
    lock: File,
}

/// The records that wait in a directory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Backlog {
    /// The number of records, one for each sync.
    pub records: u64,
    /// Their bytes.
    pub bytes: u64,
}

impl Staging {
    /// The directory, created if it does not exist, for the exclusive use of this program.
    ///
    /// # Errors
    ///
    /// [`Error::Staging`] if other users may enter it, or another program uses it.
    pub fn open(directory: &Path) -> Result<Staging, Error> {
        Self::open_with(directory, None)
    }

    /// The same, with the lock that the last program has handed over ([`Staging::lock`]).
    ///
    /// # Errors
    ///
    /// Those of [`Staging::open`].
    pub fn open_with(directory: &Path, lock: Option<OwnedFd>) -> Result<Staging, Error> {
        let wrong = |why: String| Error::Staging { directory: shown(directory), why };
        private_directory(directory).map_err(wrong)?;
        let mut options = File::options();
        options.write(true).create(true).truncate(false);
        let lock = match lock {
            Some(lock) => File::from(lock),
            None => {
                options.open(directory.join("lock")).map_err(|error| wrong(error.to_string()))?
            }
        };
        rustix::fs::flock(&lock, FlockOperation::NonBlockingLockExclusive).map_err(|_| {
            wrong(String::from("another program uses it; each mount needs a directory of its own"))
        })?;
        let (directory, waiting) = (directory.to_owned(), Mutex::default());
        Ok(Staging { directory, waiting, vault: OnceLock::new(), lock })
    }

    /// The lock of the directory, which the next program needs while this one ends.
    pub fn lock(&self) -> BorrowedFd<'_> {
        self.lock.as_fd()
    }

    /// Checks that the next program could use the directory.
    ///
    /// # Errors
    ///
    /// [`Error::Staging`].
    pub fn check(&self) -> Result<(), Error> {
        private_directory(&self.directory).map_err(|why| self.wrong(why))?;
        let check = || {
            let new = self.directory.join("claim.new");
            let mut file = File::create(&new)?;
            file.write_all(&format::encode_staging_claim(&[0; 16], 0))?;
            local::sync(&file)?;
            fs::remove_file(new)
        };
        check().map_err(self.failed())
    }

    /// Seals and opens the records with this vault.
    pub fn seal_with(&self, vault: Arc<Vault>) {
        let _ = self.vault.set(vault);
    }

    /// The records that this program has staged and that are not in the store yet.
    pub fn backlog(&self) -> Backlog {
        let waiting = self.waiting.lock();
        Backlog { records: waiting.len() as u64, bytes: waiting.values().sum() }
    }

    /// Whether the last claim of a volume was made with this directory. Then the program that made it has
    /// ended, since it held the lock.
    pub fn has_claimed(&self, uuid: &[u8; 16], term: u64) -> bool {
        let bytes = fs::read(self.directory.join("claim")).unwrap_or_default();
        bytes == format::encode_staging_claim(uuid, term)
    }

    /// Records a claim, before anything is staged.
    ///
    /// # Errors
    ///
    /// Errors of the disk.
    pub fn note_claim(&self, uuid: &[u8; 16], term: u64) -> Result<(), Error> {
        let note = || {
            let new = self.directory.join("claim.new");
            let mut file = File::create(&new)?;
            file.write_all(&format::encode_staging_claim(uuid, term))?;
            local::sync(&file)?;
            fs::rename(new, self.directory.join("claim"))?;
            self.sync_directory()
        };
        note().map_err(self.failed())
    }

    /// Makes a record durable in this directory.
    ///
    /// # Errors
    ///
    /// Errors of the disk; then the record is not staged.
    pub fn put(&self, slot: u64, record: &[u8]) -> io::Result<()> {
        let sealed =
            self.vault.get().map(|vault| vault.seal(&name_of(slot), Instance::Named, record));
        let bytes = sealed.as_deref().unwrap_or(record);
        let write = || {
            let mut file = File::create(self.path(slot))?;
            file.write_all(bytes)?;
            file.write_all(&crc32c::crc32c(bytes).to_le_bytes())?;
            local::sync(&file)?;
            self.sync_directory()
        };
        let written = write();
        match &written {
            Ok(()) => {
                let before = self.waiting.lock().insert(slot, bytes.len() as u64);
                assert!(before.is_none(), "a slot has one record, and is staged once");
            }
            Err(_) => self.remove(slot),
        }
        written
    }

    /// The waiting record of a slot, as it will be sent; `None` if it is incomplete.
    pub fn load(&self, slot: u64) -> io::Result<Option<Bytes>> {
        let mut bytes = fs::read(self.path(slot))?;
        let Some(len) = bytes.len().checked_sub(CHECKSUM_BYTES) else { return Ok(None) };
        let is_whole = crc32c::crc32c(&bytes[..len]).to_le_bytes() == bytes[len..];
        bytes.truncate(len);
        match is_whole {
            true => self.opened(slot, &(0..u64::MAX), bytes).map(Some),
            false => Ok(None),
        }
    }

    /// Reads up to `len` bytes of a waiting record; `None` if it no longer waits.
    ///
    /// # Errors
    ///
    /// Errors of the disk, which has the only copy of these bytes.
    pub fn read(&self, slot: u64, at: u64, len: u64) -> io::Result<Option<Bytes>> {
        if !self.waiting.lock().contains_key(&slot) {
            return Ok(None);
        }
        let wanted = at..at + len;
        let there = match self.vault.get() {
            Some(_) => vault::sealed_range(&wanted, Instance::Named),
            None => wanted.clone(),
        };
        let read = || -> io::Result<Bytes> {
            let file = File::open(self.path(slot))?;
            let end = file.metadata()?.len().saturating_sub(CHECKSUM_BYTES as u64).min(there.end);
            let mut bytes = vec![0; end.saturating_sub(there.start) as usize];
            file.read_exact_at(&mut bytes, there.start)?;
            self.opened(slot, &wanted, bytes)
        };
        match read() {
            // It was sent meanwhile.
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            bytes => bytes.map(Some),
        }
    }

    /// The requested part of a record, from the bytes of its file that contain it.
    fn opened(&self, slot: u64, wanted: &Range<u64>, bytes: Vec<u8>) -> io::Result<Bytes> {
        let Some(vault) = self.vault.get() else { return Ok(bytes.into()) };
        let opened = vault.open(&vault.owner(), (&name_of(slot), Instance::Named), wanted, &bytes);
        opened.map_err(|_| {
            let why = format!(
                "the volume's key does not open the record for slot {slot}: the record belongs to another \
                 volume, or was changed"
            );
            io::Error::new(io::ErrorKind::InvalidData, why)
        })
    }

    /// Removes a record that is in the store. If the machine stops before the removal is durable, the next
    /// opening finds the record in the store.
    pub fn remove(&self, slot: u64) {
        self.waiting.lock().remove(&slot);
        if let Err(error) = fs::remove_file(self.path(slot))
            && error.kind() != io::ErrorKind::NotFound
        {
            tracing::warn!(%error, slot, "cannot remove a sent record from the staging directory");
        }
    }

    /// Moves records to `rejected`, since another program's record has the slot of the first; returns the
    /// error.
    pub fn reject(&self, slots: &[u64], slot: u64) -> Error {
        let aside = self.directory.join(REJECTED);
        let set_aside = || {
            fs::create_dir_all(&aside)?;
            for slot in slots {
                let name = format!("{slot:020}-{}", Uuid::new_v4());
                fs::rename(self.path(*slot), aside.join(name))?;
                self.waiting.lock().remove(slot);
            }
            local::sync(&File::open(&aside)?)?;
            self.sync_directory()
        };
        match set_aside() {
            Ok(()) => Error::Rejected { directory: shown(&aside), records: slots.len(), slot },
            Err(error) => self.failed()(error),
        }
    }

    /// Moves records to `rejected`, since the first is damaged; returns the error.
    pub fn damaged(&self, slots: &[u64], slot: u64) -> Error {
        match self.reject(slots, slot) {
            Error::Rejected { directory, records, .. } => self.wrong(format!(
                "the record for slot {slot} is damaged, so it and those after it, {records} in all, are not \
                 part of the volume, though their syncs were acknowledged; they are kept in {directory}"
            )),
            error => error,
        }
    }

    /// Converts the disk's answer to an error of this directory.
    pub fn failed(&self) -> impl Fn(io::Error) -> Error + '_ {
        |error| self.wrong(error.to_string())
    }

    /// An error of this directory, with a reason.
    pub fn wrong(&self, why: impl Into<String>) -> Error {
        Error::Staging { directory: self.shown(), why: why.into() }
    }

    /// The directory's name, for messages.
    pub fn shown(&self) -> String {
        shown(&self.directory)
    }

    /// The slots of the staged records, in order.
    ///
    /// # Errors
    ///
    /// Errors of the disk.
    pub fn slots(&self) -> io::Result<Vec<u64>> {
        let mut slots = Vec::new();
        for entry in fs::read_dir(&self.directory)? {
            let name = entry?.file_name();
            let slot =
                name.to_str().filter(|name| name.len() == 20).and_then(|name| name.parse().ok());
            slots.extend::<Option<u64>>(slot);
        }
        slots.sort_unstable();
        Ok(slots)
    }

    fn path(&self, slot: u64) -> PathBuf {
        self.directory.join(format!("{slot:020}"))
    }

    fn sync_directory(&self) -> io::Result<()> {
        local::sync(&File::open(&self.directory)?)
    }
}

/// The name under which a record is sealed here.
fn name_of(slot: u64) -> String {
    format!("staged/{slot}")
}

fn shown(directory: &Path) -> String {
    directory.display().to_string()
}
