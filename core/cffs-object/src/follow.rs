//! Follows a volume that another program writes.
//!
//! ```text
//!   at slot n: GET n + 1 ── none ─────────────▶ nothing is new
//!                 └─ a record: GET n + 2 … none ─▶ the device after the last record
//! ```
//!
//! Objects never change, so their cached contents serve the next device, too. A record stays in its slot
//! until its contents are dead and an hour has passed, or until an immediate collection. An empty slot may
//! therefore have been collected since the last look. Only a listing shows that; it is requested once an
//! hour, and when an object is missing.

use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::chunks::Chunks;
use crate::device::LogDevice;
use crate::error::Error;
use crate::format::{Object, Record};
use crate::history::{self, AT_ONCE, History};
use crate::location::Location;
use crate::store::Store;

/// How often the log is listed even though the next slot is empty.
pub const LIST_EVERY: Duration = Duration::from_secs(3600);

/// Reads new records of a volume's log.
pub struct Follower {
    store: Arc<Store>,
    chunks: Arc<Chunks>,
    history: History,
    pub(crate) listed: Instant,
}

impl Follower {
    /// A follower that knows the current state of the volume.
    ///
    /// # Errors
    ///
    /// [`Error::NothingToFollow`]; errors of [`LogDevice::open`].
    pub fn open(location: &Location) -> Result<Follower, Error> {
        if let Some(name) = location.version() {
            return Err(Error::NothingToFollow { name: name.to_owned() });
        }
        let store = Arc::new(location.connect()?);
        let history = History::read(&store)?;
        let chunks = Arc::new(Chunks::new(Arc::clone(&store), &history.format));
        Ok(Follower { store, chunks, history, listed: Instant::now() })
    }

    /// Reads new records; returns whether the device has changed.
    ///
    /// # Errors
    ///
    /// Errors of the store; [`Error::Damaged`]. Devices that were opened before remain readable, and the next
    /// call tries again.
    pub fn read_on(&mut self) -> Result<bool, Error> {
        let is_lost = self.chunks.take_collected();
        let read = match is_lost || self.listed.elapsed() >= LIST_EVERY {
            true => self.reopen(is_lost),
            false => self.read_records(),
        };
        match read {
            Err(Error::Damaged { .. }) => self.reopen(true),
            read => read,
        }
    }

    /// A device with the state that was read last. It never changes.
    pub fn device(&self) -> LogDevice {
        LogDevice::to_read(Arc::clone(&self.store), Arc::clone(&self.chunks), self.history.clone())
    }

    /// Reads records one by one; returns whether they change anything. Many records are better found by a
    /// listing.
    fn read_records(&mut self) -> Result<bool, Error> {
        let mut is_changed = false;
        for _ in 0..AT_ONCE {
            let slot = self.history.slot + 1;
            let Some((record, checksum, bytes)) = history::find_record(&self.store, slot)? else {
                return Ok(is_changed);
            };
            is_changed |= self.changes(&record);
            let object = Object::record(slot, record.instance);
            self.history.apply(&self.store, slot, (record, checksum))?;
            self.chunks.keep_record(object, &bytes);
        }
        self.history.read_on(&self.store)?;
        self.listed = Instant::now();
        Ok(true)
    }

    /// Lists the log and reads the new part; starts from the newest map if records were collected.
    fn reopen(&mut self, is_lost: bool) -> Result<bool, Error> {
        let slot = self.history.slot;
        let listed = if is_lost { None } else { self.history.read_on(&self.store).ok() };
        if listed.is_none() {
            let history = History::read(&self.store)?;
            if history.slot > slot {
                self.history = history;
            }
        }
        self.listed = Instant::now();
        Ok(self.history.slot > slot)
    }

    fn changes(&self, record: &Record) -> bool {
        !record.extents.is_empty() || record.size_bytes != self.history.size_bytes
    }
}
