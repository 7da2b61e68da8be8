//! A device whose bytes are in a store.
//!
//! Written bytes stay in memory until a sync commits them as one record. Large amounts are sent ahead into an
//! object, which becomes part of the volume only with the record.

use std::collections::{BTreeMap, HashSet};
use std::io::{self, IoSlice};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use bytes::Bytes;
use cffs::clock::Timestamp;
use cffs::device::{BlockDevice, Control, Excluded, Geometry, Hints, Patient};
use cffs::format::superblock::Holder;
use cffs::host::{Host, Standing, SystemHost};
use cffs::vfs::read_superblock;
use parking_lot::{Mutex, RwLock};
use uuid::Uuid;

use crate::chunks::{Chunks, Wanted};
use crate::collect::Swept;
use crate::commit;
use crate::error::Error;
use crate::format::{self, Place};
use crate::history::History;
use crate::home::Gone;
use crate::identity::Format;
use crate::location::Location;
use crate::requests::{Counter, Requests};
use crate::state::{Piece, State};
use crate::store::{PARALLEL, Store};
use crate::succession::Term;
use crate::unlock;
use crate::upload;
use crate::vault::Vault;
use crate::verify::{self, Unusable};
use crate::writer::{self, Claimed, OpenOptions, Writer};

mod handover;
mod lost;

/// How long commands that make or change a volume repeat a failing request.
pub const COMMAND_PATIENCE: Duration = Duration::from_secs(60);
/// The number of concurrent requests to create one object when a volume is made.
const PROBES: usize = 16;

/// The device of a volume in a store.
pub struct LogDevice {
    store: Arc<Store>,
    chunks: Arc<Chunks>,
    sector_bytes: u32,
    state: Arc<RwLock<State>>,
    /// The writer, if this program writes the volume.
    writing: Option<OpenOptions>,
    /// Its name, if it is a version, whose objects no program deletes.
    version: Option<String>,
    /// See [`OpenOptions::without_objects`].
    without_objects: bool,
    /// The missing and damaged objects that reads found, and their faults.
    met: Mutex<BTreeMap<String, String>>,
    /// The term of the writer that was handed over.
    handed_over: OnceLock<Term>,
    /// Held during all sending.
    writer: Mutex<Role>,
}

/// Whether the device may write, only read, or follow a writer.
enum Role {
    /// Read.
    Reader,
    /// Write.
    Writer(Box<Writer>),
    /// Read, with the reason why it can no longer write.
    Failed(io::ErrorKind, String),
}

impl LogDevice {
    /// Makes an empty device of this size at an unused place, and claims it. It is encrypted if the location
    /// has a secret. Its writes fail after an outage of a minute ([`COMMAND_PATIENCE`]). Its first sync
    /// completes the volume; until then, other programs cannot open it, and another call begins again. The
    /// writer that was making it is then fenced.
    ///
    /// # Errors
    ///
    /// [`Error::Exists`]; [`Error::NoConditionalPut`] if the store cannot keep two writers apart; errors of
    /// the store.
    pub fn create(location: &Location, geometry: Geometry) -> Result<LogDevice, Error> {
        let store = location.connect()?;
        probe(&store)?;
        let uuid = *Uuid::new_v4().as_bytes();
        let origins = Vec::new();
        let format = Format { uuid, sector_bytes: geometry.sector_bytes, origins };
        let key = store.secret().is_some().then(Vault::new_key);
        let (store, history) = match unlock::create(&store, &format, key) {
            Err(exists @ Error::Exists { .. }) => {
                // The vault of the store has the new key.
                let store = location.connect()?;
                let history = begun(&store, geometry)?.ok_or(exists)?;
                (store, history)
            }
            created => created.map(|()| (store, History::empty(format, geometry.size_bytes)))?,
        };
        let options = OpenOptions { patience: Some(COMMAND_PATIENCE), ..OpenOptions::default() };
        let exists = Error::Exists { url: store.url() };
        let claimed = match writer::claim(&store, history, &options) {
            Err(Error::Claimed { .. }) => return Err(exists),
            claimed => claimed?,
        };
        let is_unmade = claimed.is_unmade();
        let device = Self::to_write(store, geometry.sector_bytes, claimed, options)?;
        // Another program may have completed it meanwhile.
        if is_unmade { Ok(device) } else { device.release().and(Err(exists)) }
    }

    /// Opens a device, and claims it unless it is opened for reading. A version can only be read.
    ///
    /// # Errors
    ///
    /// [`Error::NoVolume`]; [`Error::Unmade`]; [`Error::NoVersion`]; [`Error::Claimed`]; [`Error::Damaged`];
    /// errors of the store.
    /// With a staging directory, [`Error::Staging`] and [`Error::Rejected`].
    pub fn open(location: &Location, options: OpenOptions) -> Result<LogDevice, Error> {
        let Some(_) = options.succeeds else { return Self::open_once(location, options) };
        // The users of the volume wait for this.
        commit::again(location.counter(), "opening for a handover", options.patience, || {
            Self::open_once(location, options).map_err(|error| {
                match (error, location.directory()) {
                    // It may have been moved, or its file system unmounted.
                    (Error::NoVolume { .. }, Some(directory)) => Error::Gone(Gone {
                        directory: directory.display().to_string(),
                        replaced: None,
                    }),
                    (error, _) => error,
                }
            })
        })
    }

    fn open_once(location: &Location, options: OpenOptions) -> Result<LogDevice, Error> {
        let store = location.connect()?;
        if let Some(staging) = store.staging().filter(|_| !options.read_only) {
            upload::send_rest(staging, &store, options.patience)?;
        }
        let history = match location.version() {
            Some(name) if options.read_only => History::of_snapshot(&store, name)?,
            Some(name) => return Err(Error::VersionIsFixed { name: name.to_owned() }),
            None if options.read_only => History::read(&store)?,
            None if options.succeeds.is_some() => History::read_to_end(&store)?,
            None => History::read_to_claim(&store)?,
        };
        let sector_bytes = history.format.sector_bytes;
        if !options.read_only {
            return match writer::claim(&store, history, &options) {
                Err(Error::Claimed { term, is_staging, .. }) => {
                    Err(claimed(term, Arc::new(store), is_staging))
                }
                claimed => Self::to_write(store, sector_bytes, claimed?, options),
            };
        }
        let store = Arc::new(store);
        let chunks = Arc::new(Chunks::new(Arc::clone(&store), &history.format));
        let mut device = Self::to_read(store, chunks, history);
        device.version = location.version().map(str::to_owned);
        device.without_objects = options.without_objects;
        Ok(device)
    }

    /// The device with the state of a history.
    pub(crate) fn to_read(store: Arc<Store>, chunks: Arc<Chunks>, history: History) -> LogDevice {
        let sector_bytes = history.format.sector_bytes;
        let state = Arc::new(RwLock::new(State::new(history)));
        let writer = Mutex::new(Role::Reader);
        LogDevice {
            store,
            chunks,
            sector_bytes,
            state,
            writing: None,
            version: None,
            without_objects: false,
            met: Mutex::default(),
            handed_over: OnceLock::new(),
            writer,
        }
    }

    fn to_write(
        store: Store,
        sector_bytes: u32,
        claimed: Claimed,
        options: OpenOptions,
    ) -> Result<LogDevice, Error> {
        let store = Arc::new(store);
        let chunks = Arc::new(Chunks::new(Arc::clone(&store), claimed.format()));
        let (writer, state) =
            claimed.into_writer(Arc::clone(&store), Arc::clone(&chunks), options)?;
        let writer = Mutex::new(Role::Writer(Box::new(writer)));
        Ok(LogDevice {
            store,
            chunks,
            sector_bytes,
            state,
            writing: Some(options),
            version: None,
            without_objects: options.without_objects,
            met: Mutex::default(),
            handed_over: OnceLock::new(),
            writer,
        })
    }

    /// The number of requests sent to the store.
    pub fn requests(&self) -> Requests {
        self.store.counter().requests()
    }

    /// The counter of the device's requests, which outlives it.
    pub fn counter(&self) -> Counter {
        self.store.counter().clone()
    }

    /// The UUID of the volume's objects, which a clone does not share.
    pub fn uuid(&self) -> [u8; 16] {
        self.chunks.volume()
    }

    /// Whether the volume is encrypted.
    pub fn is_encrypted(&self) -> bool {
        self.store.vault().is_some()
    }

    /// The number of extents of the map: ranges of the device that are contiguous in an object.
    pub fn extent_count(&self) -> usize {
        self.state.read().committed.len()
    }

    /// Ends the term, so that another program may claim the volume without taking it over. Uncommitted
    /// changes are dropped. Later changes fail.
    ///
    /// # Errors
    ///
    /// Errors of the store; then the next writer has to take the volume over, and nothing is lost.
    pub fn release(&self) -> Result<(), Error> {
        match std::mem::replace(&mut *self.writer.lock(), Role::Reader) {
            Role::Writer(writer) => {
                // Changed bytes would be copied to a new object, and restoring the old one would not help.
                let may_compact = self.met.lock().is_empty();
                writer.release(may_compact)
            }
            Role::Reader | Role::Failed(..) => Ok(()),
        }
    }

    /// Commits, and deletes all objects that neither a kept version nor later openings need. Programs that
    /// have an older state open may find parts of it unreadable.
    ///
    /// # Errors
    ///
    /// Errors of the store.
    pub fn collect(&self) -> io::Result<Swept> {
        self.as_writer(Writer::collect)
    }

    /// Verifies that all objects of the volume are in the store and long enough, without reading them. If
    /// `read` is given, also reads each as a whole, and passes the bytes of each to it; only this detects
    /// changes of an encrypted object; of an unencrypted object, only the head has a checksum.
    ///
    /// # Errors
    ///
    /// Errors of the store. Missing and damaged objects are no error.
    pub fn verify(&self, read: Option<&mut dyn FnMut(u64)>) -> Result<Vec<Unusable>, Error> {
        self.verify_those(&|_| true, read)
    }

    /// Verifies the objects that reads found missing or damaged, and reads each as a whole.
    ///
    /// # Errors
    ///
    /// Errors of the store. Missing and damaged objects are no error.
    pub fn verify_met(&self) -> Result<Vec<Unusable>, Error> {
        let met = self.met.lock().clone();
        self.verify_those(&|path| met.contains_key(path), Some(&mut |_| {}))
    }

    fn verify_those(
        &self,
        is_wanted: &dyn Fn(&str) -> bool,
        read: Option<&mut dyn FnMut(u64)>,
    ) -> Result<Vec<Unusable>, Error> {
        let extents = self.state.read().committed.clone();
        let mut found = verify::verify(&self.store, &self.chunks, &extents, is_wanted, read)?;
        if !found.is_empty() && !self.is_alone() {
            // A writer may have collected objects that its newest state does not use.
            let used = self.used_by_newest()?;
            found.retain(|unusable| used.contains(&unusable.object));
        }
        Ok(found)
    }

    /// The missing and damaged objects that reads found, with their faults.
    pub fn met(&self) -> Vec<(String, String)> {
        self.met.lock().clone().into_iter().collect()
    }

    /// Drops all changes that no sync has committed.
    ///
    /// # Errors
    ///
    /// Errors of the store.
    pub fn drop_changes(&self) -> io::Result<()> {
        self.as_writer(Writer::drop_changes)
    }

    /// Keeps at most this many bytes in memory until a sync.
    #[cfg(test)]
    pub(crate) fn keep_at_most(&self, pending_bytes_max: u64) {
        self.state.write().pending_bytes_max = pending_bytes_max;
    }

    /// Runs a function as the writer. An error ends all writing.
    fn as_writer<T>(&self, act: impl FnOnce(&mut Writer) -> Result<T, Error>) -> io::Result<T> {
        let mut role = self.writer.lock();
        match &mut *role {
            Role::Reader => Err(read_only()),
            Role::Failed(kind, why) => Err(io::Error::new(*kind, why.clone())),
            Role::Writer(writer) => act(writer).map_err(|error| {
                let error = error.of_device();
                *role = Role::Failed(error.kind(), error.to_string());
                error
            }),
        }
    }

    /// Reads bytes of objects. Reads for an epoch have the patience of a commit.
    fn fetch(&self, wanted: &[Wanted], buf: &mut [u8]) -> io::Result<()> {
        let read = match self.writing.filter(|_| Patient::is_begun()) {
            Some(OpenOptions { patience, .. }) => {
                commit::again(self.store.counter(), "read for an epoch", patience, || {
                    self.chunks.read(wanted, buf)
                })
            }
            None => self.chunks.read(wanted, buf),
        };
        read.map_err(|error| self.failed(error))
    }

    /// The error of a read. An object that is missing was collected, unless the volume has data in it.
    fn failed(&self, error: Error) -> io::Error {
        let error = match error {
            Error::Collected { object, .. } if self.is_used(&object) => {
                Error::Damaged { object, why: String::from(verify::MISSING) }
            }
            error => error,
        };
        if let Error::Damaged { object, why } = &error {
            self.met.lock().insert(object.clone(), why.clone());
            if self.without_objects {
                return io::Error::other(error);
            }
        }
        error.of_device()
    }

    /// Whether the newest state of the volume, or the version, has data in an object.
    fn is_used(&self, object: &str) -> bool {
        self.is_alone()
            || self.met.lock().contains_key(object)
            || self.used_by_newest().is_ok_and(|used| used.contains(object))
    }

    /// Whether no other program deletes objects of this state: only the writer of a volume collects it.
    fn is_alone(&self) -> bool {
        self.writing.is_some() || self.version.is_some()
    }

    /// The paths of the objects that the newest state of the volume uses.
    fn used_by_newest(&self) -> Result<HashSet<String>, Error> {
        let newest = History::read(&self.store)?;
        let objects = newest.extents.iter().filter_map(|(_, _, place)| match place {
            Place::Stored(object, _) => Some(*object),
            Place::Zeros => None,
        });
        let objects: HashSet<_> = objects.collect();
        let path = |object| Ok(self.chunks.address(object)?.path.to_string());
        objects.into_iter().map(path).collect()
    }

    fn put_pending(&self, offset: u64, len: u64, piece: Piece) -> io::Result<()> {
        let is_much = self.state.write().put(offset, len, piece);
        if is_much { self.as_writer(Writer::send_ahead) } else { Ok(()) }
    }
}

/// The history of a volume that is not made yet, ready to be claimed; `None` for any other volume.
fn begun(store: &Store, geometry: Geometry) -> Result<Option<History>, Error> {
    let there = match History::read_unmade(store) {
        Ok(there) if there.is_unmade() && there.format.sector_bytes == geometry.sector_bytes => {
            there
        }
        Err(error @ Error::Store { .. }) => return Err(error),
        _ => return Ok(None),
    };
    if there.is_log_lost(store)? {
        return Ok(None);
    }
    Ok(Some(History { size_bytes: geometry.size_bytes, is_released: true, ..there }))
}

/// The error of a volume that its last writer has not released, with that program if the superblock names it.
pub(crate) fn claimed(term: u64, store: Arc<Store>, is_staging: bool) -> Error {
    let holder = History::read(&store).ok().and_then(|history| holder_of(store, history));
    let has_ended =
        holder.as_ref().is_some_and(|holder| SystemHost.standing(holder) == Standing::Gone);
    Error::Claimed { term, by: holder.map(|holder| in_words(&holder)), has_ended, is_staging }
}

/// The program that has a volume open for writing, as a sentence.
fn in_words(holder: &Holder) -> String {
    let since = Timestamp { seconds: holder.started.cast_signed(), nanoseconds: 0 };
    let (pid, name) = (holder.pid, holder.name.escape_ascii());
    match SystemHost.standing(holder) {
        Standing::Gone => format!(
            "process {pid} of this host had the volume open for writing since {since} UTC, and ended without \
             closing it"
        ),
        Standing::Foreign => format!(
            "the volume is open for writing on host {name} (process {pid}, since {since} UTC), or that host \
             crashed without closing it"
        ),
        _ => format!(
            "the volume is open for writing on this host (process {pid}, since {since} UTC)"
        ),
    }
}

/// The program that has a volume open for writing, by the mark in the superblock of this state, if it has
/// one.
pub(crate) fn holder_of(store: Arc<Store>, history: History) -> Option<Holder> {
    let chunks = Arc::new(Chunks::new(Arc::clone(&store), &history.format));
    read_superblock(&LogDevice::to_read(store, chunks, history)).ok()?.holder
}

/// Whether the store lets only one of two concurrent creations of an object succeed, as volumes require.
fn probe(store: &Store) -> Result<(), Error> {
    let name = format!("{}{}", format::PROBES, Uuid::new_v4());
    let created = store.create_at_once(&name, PROBES)?;
    store.delete(&[name])?;
    match created {
        // The successful request may have been repeated, and found its own object.
        0 | 1 => Ok(()),
        created => Err(Error::NoConditionalPut { created, tried: PROBES }),
    }
}

fn read_only() -> io::Error {
    io::Error::new(
        io::ErrorKind::ReadOnlyFilesystem,
        "the volume is open read-only, or was released",
    )
}

impl BlockDevice for LogDevice {
    fn geometry(&self) -> Geometry {
        let size_bytes = self.state.read().size_bytes;
        Geometry { size_bytes, sector_bytes: self.sector_bytes }
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<()> {
        let len = buf.len() as u64;
        self.geometry().check(offset, len)?;
        let view = self.state.read().view(offset, len);
        buf.fill(0);
        self.fetch(&view.stored, buf)?;
        for (start, len, piece) in view.newer {
            let target = &mut buf[(start - offset) as usize..(start - offset + len) as usize];
            match piece {
                Piece::Memory(bytes) => target.copy_from_slice(&bytes[..len as usize]),
                Piece::Zeros => target.fill(0),
            }
        }
        Ok(())
    }

    fn write_at(&self, offset: u64, bufs: &[IoSlice<'_>]) -> io::Result<()> {
        let mut data = Vec::with_capacity(bufs.iter().map(|buf| buf.len()).sum());
        bufs.iter().for_each(|buf| data.extend_from_slice(buf));
        let len = data.len() as u64;
        self.geometry().check(offset, len)?;
        self.put_pending(offset, len, Piece::Memory(Bytes::from(data)))
    }

    /// Does nothing: the writes between two syncs are committed together.
    fn barrier(&self) -> io::Result<()> {
        Ok(())
    }

    fn sync(&self) -> io::Result<()> {
        self.as_writer(Writer::commit)
    }

    fn discard(&self, offset: u64, len: u64) -> io::Result<()> {
        self.geometry().check(offset, len)?;
        let has_any = self.state.read().has_any(offset, len);
        if has_any { self.put_pending(offset, len, Piece::Zeros) } else { Ok(()) }
    }

    fn hints(&self) -> Hints {
        // The log has one writer, and a reader sees one state.
        let excludes = Excluded::All;
        Hints { wants_discards: true, parallel: PARALLEL as u32, excludes, ..Hints::default() }
    }

    fn control(&self) -> &dyn Control {
        self
    }
}

impl Control for LogDevice {
    fn give_back(&self) -> io::Result<()> {
        self.release().map_err(Error::of_device)
    }

    fn check_handover(&self) -> Result<(), String> {
        self.check_for_next()
    }

    fn hand_over(&self) -> io::Result<()> {
        self.give_to_next()
    }

    /// Names the objects that have the bytes. Zeros and uncommitted bytes are in no object.
    fn contradicted(&self, offset: u64, len: u64, what: &str) -> io::Result<()> {
        let view = self.state.read().view(offset, len);
        let mut outcome = Ok(());
        for Wanted { object, .. } in view.stored {
            let object = self.chunks.address(object).map_err(Error::of_device)?.path.to_string();
            let why = format!("it was changed ({what})");
            self.met.lock().entry(object.clone()).or_insert_with(|| why.clone());
            if !self.without_objects {
                outcome = outcome.and(Err(Error::Damaged { object, why }.of_device()));
            }
        }
        outcome
    }

    fn grow(&self, size_bytes: u64) -> io::Result<()> {
        let mut state = self.state.write();
        if size_bytes > state.size_bytes {
            state.size_bytes = size_bytes;
            state.is_resized = true;
        }
        Ok(())
    }
}

impl Drop for LogDevice {
    fn drop(&mut self) {
        if let Err(error) = self.release() {
            tracing::warn!(%error, "the volume was not released; its next writer must take it over");
        }
    }
}
