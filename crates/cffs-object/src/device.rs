//! A device whose bytes lie in a store.
//!
//! What is written is kept in memory until a sync commits it as one record, or until there is much of
//! it: then it goes ahead, into an object that only the record makes part of the volume.
//!
//! ```text
//!   write ─▶ pending ─▶ in flight ─▶ staged ─▶ committed
//!                           └── by a sync ─────────▲
//! ```
//!
//! A read looks in this order, the newest first. Invariant: each of the four is older than those to its
//! left, and only a holder of the writer's lock moves anything to the right.

use std::io::{self, IoSlice};
use std::mem::take;
use std::time::Duration;

use bytes::Bytes;
use cffs::device::{BlockDevice, Geometry};
use parking_lot::{Mutex, RwLock};
use quick_cache::Weighter;
use quick_cache::sync::Cache;
use uuid::Uuid;

use crate::commit::{self, Owner};
use crate::error::Error;
use crate::extents::{Extents, Source};
use crate::format::{self, Format, Kind, Object, Place, Record};
use crate::history::History;
use crate::location::Location;
use crate::store::{Requests, Store};

/// So much that is not committed is kept in memory; more goes ahead of its record.
const PENDING_BYTES_MAX: u64 = 8 << 20;
/// What is read at once: as much as a store sends in about the time that it takes to answer.
const CHUNK_BYTES: u64 = 1 << 20;
/// What is kept of what was read, in bytes.
const CACHE_BYTES: u64 = 64 << 20;
/// A map is written after so many records, or a later opening would have to read them all, if as much
/// was written since the last one as the map is long.
const RECORDS_PER_MAP: u64 = 64;
/// So many programs try to create one object at once when a volume is made.
const PROBES: usize = 16;

/// How a volume in a store is opened.
#[derive(Clone, Copy, Debug, Default)]
pub struct OpenOptions {
    /// Claim nothing, and refuse writes.
    pub read_only: bool,
    /// Claim the volume though its last writer has not released it. That writes no more then.
    pub take_over: bool,
    /// How long a request is repeated that fails; for ever by default, since a failed sync ends all writing.
    pub patience: Option<Duration>,
}

/// The device of a volume in a store.
pub struct LogDevice {
    store: Store,
    format: Format,
    patience: Option<Duration>,
    state: RwLock<State>,
    /// Held while something is sent. `None`: read-only.
    writer: Mutex<Option<Writer>>,
    chunks: Cache<(Object, u64), Bytes, ByLength>,
}

struct State {
    size_bytes: u64,
    /// Whether no record has that size yet.
    is_resized: bool,
    committed: Extents<Place>,
    staged: Extents<Place>,
    in_flight: Extents<Piece>,
    pending: Extents<Piece>,
    pending_bytes: u64,
}

/// Where the log goes on.
struct Writer {
    term: u64,
    /// The last slot that is taken.
    slot: u64,
    checksum: u32,
    /// How many objects of contents this term has.
    data_count: u64,
    records_since_map: u64,
    bytes_since_map: u64,
    /// Why nothing is written any more.
    failed: Option<String>,
}

/// Where bytes lie that no record has yet.
#[derive(Clone)]
enum Piece {
    Memory(Bytes),
    Zeros,
}

impl Source for Piece {
    fn skip(&self, bytes: u64) -> Piece {
        match self {
            Piece::Memory(all) => Piece::Memory(all.slice(bytes as usize..)),
            Piece::Zeros => Piece::Zeros,
        }
    }

    fn continues(&self, _: u64, next: &Piece) -> bool {
        matches!((self, next), (Piece::Zeros, Piece::Zeros))
    }
}

/// Where a read finds bytes: a place in the store, unless memory has them.
#[derive(Clone)]
struct Shown(Option<Place>);

impl Source for Shown {
    fn skip(&self, bytes: u64) -> Shown {
        Shown(self.0.map(|place| place.skip(bytes)))
    }

    fn continues(&self, len: u64, next: &Shown) -> bool {
        self.skip(len).0 == next.0
    }
}

#[derive(Clone)]
struct ByLength;

impl Weighter<(Object, u64), Bytes> for ByLength {
    fn weight(&self, _: &(Object, u64), chunk: &Bytes) -> u64 {
        chunk.len() as u64
    }
}

impl LogDevice {
    /// Makes an empty device of that size at a place where there is none, and claims it.
    ///
    /// # Errors
    ///
    /// [`Error::Exists`]; [`Error::NoConditionalPut`] if the store cannot keep two writers apart; those of
    /// the store.
    pub fn create(location: &Location, geometry: Geometry) -> Result<LogDevice, Error> {
        let store = location.connect()?;
        probe(&store)?;
        let format =
            Format { uuid: *Uuid::new_v4().as_bytes(), sector_bytes: geometry.sector_bytes };
        match store.create("format", format.encode()) {
            Err(Error::Store { source: object_store::Error::AlreadyExists { .. }, .. }) => {
                return Err(Error::Exists { prefix: store.prefix() });
            }
            created => created?,
        }
        let history = History::empty(format, geometry.size_bytes);
        Self::claim(store, history, OpenOptions::default())
    }

    /// Opens a device, and claims it unless it is only to be read.
    ///
    /// # Errors
    ///
    /// [`Error::NoVolume`]; [`Error::Claimed`]; [`Error::Damaged`]; those of the store.
    pub fn open(location: &Location, options: OpenOptions) -> Result<LogDevice, Error> {
        let store = location.connect()?;
        let history = History::read(&store)?;
        match options.read_only {
            true => Ok(Self::new(store, history, None, options.patience)),
            false => Self::claim(store, history, options),
        }
    }

    fn claim(store: Store, mut history: History, options: OpenOptions) -> Result<LogDevice, Error> {
        loop {
            if !history.is_released && !options.take_over {
                return Err(Error::Claimed { term: history.term });
            }
            let slot = history.slot + 1;
            let claim = Record {
                uuid: history.format.uuid,
                slot,
                term: slot,
                nonce: *Uuid::new_v4().as_bytes(),
                previous: history.checksum,
                kind: Kind::Claim,
                size_bytes: history.size_bytes,
                extents: Extents::default(),
            };
            let (bytes, checksum) = claim.encode();
            let patience = options.patience;
            match commit::settle(&store, slot, claim.nonce, &bytes.into(), patience)? {
                // Its writer was quicker. What it committed is part of what is claimed.
                Owner::Another => history.read_next(&store)?,
                Owner::Ours => {
                    let writer = Writer {
                        term: slot,
                        slot,
                        checksum,
                        data_count: 0,
                        records_since_map: history.records_since_map + 1,
                        bytes_since_map: 0,
                        failed: None,
                    };
                    return Ok(Self::new(store, history, Some(writer), patience));
                }
            }
        }
    }

    fn new(
        store: Store,
        history: History,
        writer: Option<Writer>,
        patience: Option<Duration>,
    ) -> LogDevice {
        let items = (CACHE_BYTES / CHUNK_BYTES) as usize;
        LogDevice {
            store,
            format: history.format,
            patience,
            state: RwLock::new(State {
                size_bytes: history.size_bytes,
                is_resized: false,
                committed: history.extents,
                staged: Extents::default(),
                in_flight: Extents::default(),
                pending: Extents::default(),
                pending_bytes: 0,
            }),
            writer: Mutex::new(writer),
            chunks: Cache::with_weighter(items, CACHE_BYTES, ByLength),
        }
    }

    /// How many requests the store was sent.
    pub fn requests(&self) -> Requests {
        self.store.requests()
    }

    /// Ends the term, so that another program may claim the volume without taking it over. What no sync
    /// has committed is given up. Later changes fail.
    ///
    /// # Errors
    ///
    /// Those of the store; then the next writer has to take the volume over, and nothing is lost.
    pub fn release(&self) -> Result<(), Error> {
        let mut held = self.writer.lock();
        let Some(mut writer) = held.take() else { return Ok(()) };
        if writer.failed.is_some() {
            return Ok(());
        }
        if writer.bytes_since_map > 0 || writer.records_since_map > RECORDS_PER_MAP {
            self.write_map(&mut writer)?;
        }
        self.append(&mut writer, Kind::Release, Extents::default(), Vec::new())
    }

    /// Puts a record into the next slot.
    fn append(
        &self,
        writer: &mut Writer,
        kind: Kind,
        extents: Extents<Place>,
        contents: Vec<u8>,
    ) -> Result<(), Error> {
        let slot = writer.slot + 1;
        let record = Record {
            uuid: self.format.uuid,
            slot,
            term: writer.term,
            nonce: *Uuid::new_v4().as_bytes(),
            previous: writer.checksum,
            kind,
            size_bytes: self.state.read().size_bytes,
            extents,
        };
        let (mut bytes, checksum) = record.encode();
        bytes.extend_from_slice(&contents);
        let len = bytes.len() as u64;
        match commit::settle(&self.store, slot, record.nonce, &bytes.into(), self.patience)? {
            Owner::Another => return Err(Error::Fenced { slot }),
            Owner::Ours => {}
        }
        writer.slot = slot;
        writer.checksum = checksum;
        writer.records_since_map += 1;
        if kind == Kind::Epoch {
            writer.bytes_since_map += len;
            let mut state = self.state.write();
            format::apply(&mut state.committed, &record.extents);
            state.staged = Extents::default();
            state.in_flight = Extents::default();
            state.is_resized &= state.size_bytes != record.size_bytes;
        }
        Ok(())
    }

    /// Writes where everything lies after the last record, and the hint that leads an opening there.
    fn write_map(&self, writer: &mut Writer) -> Result<(), Error> {
        let map = {
            let state = self.state.read();
            Record {
                uuid: self.format.uuid,
                slot: writer.slot,
                term: writer.term,
                nonce: [0; 16],
                previous: writer.checksum,
                kind: Kind::Epoch,
                size_bytes: state.size_bytes,
                extents: state.committed.clone(),
            }
        };
        let name = format::map_name(map.slot, map.term);
        commit::put(&self.store, &name, &map.encode().0.into(), self.patience)?;
        let hint = format::encode_hint(map.slot, map.term);
        commit::put(&self.store, "head", &hint.into(), self.patience)?;
        writer.records_since_map = 0;
        writer.bytes_since_map = 0;
        Ok(())
    }

    /// Does something as the writer; an error is the end of all writing.
    fn as_writer(&self, act: impl FnOnce(&mut Writer) -> Result<(), Error>) -> io::Result<()> {
        let mut held = self.writer.lock();
        let Some(writer) = held.as_mut() else { return Err(read_only()) };
        if let Some(why) = &writer.failed {
            return Err(io::Error::other(why.clone()));
        }
        act(writer).map_err(|error| {
            writer.failed = Some(error.to_string());
            error.into()
        })
    }

    fn commit(&self, writer: &mut Writer) -> Result<(), Error> {
        let (staged, pieces) = {
            let mut state = self.state.write();
            let state = &mut *state;
            state.pending_bytes = 0;
            state.in_flight = take(&mut state.pending);
            if state.in_flight.is_empty() && state.staged.is_empty() && !state.is_resized {
                return Ok(());
            }
            (state.staged.clone(), state.in_flight.clone())
        };
        let object = Object::Record(writer.slot + 1);
        let (counted, _) = placed(staged.clone(), &pieces, object, 0);
        let head = Record::head_bytes(counted.len()) as u64;
        let (extents, contents) = placed(staged, &pieces, object, head);
        self.append(writer, Kind::Epoch, extents, contents)?;
        let map_bytes = Record::head_bytes(self.state.read().committed.len()) as u64;
        if writer.records_since_map >= RECORDS_PER_MAP && writer.bytes_since_map >= map_bytes {
            self.write_map(writer)?;
        }
        Ok(())
    }

    /// Sends what is pending ahead of its record, unless another thread has.
    fn send_ahead(&self, writer: &mut Writer) -> Result<(), Error> {
        let pieces = {
            let mut state = self.state.write();
            let state = &mut *state;
            if state.pending_bytes < PENDING_BYTES_MAX {
                return Ok(());
            }
            state.pending_bytes = 0;
            state.in_flight = take(&mut state.pending);
            state.in_flight.clone()
        };
        let object = Object::Data(writer.term, writer.data_count);
        writer.data_count += 1;
        let (extents, contents) = placed(Extents::default(), &pieces, object, 0);
        writer.bytes_since_map += contents.len() as u64;
        commit::put(&self.store, &object.name(), &contents.into(), self.patience)?;
        let mut state = self.state.write();
        for (start, len, place) in extents.iter() {
            state.staged.insert(start, len, *place);
        }
        state.in_flight = Extents::default();
        Ok(())
    }

    fn put_pending(&self, offset: u64, len: u64, piece: Piece) -> io::Result<()> {
        let is_much = {
            let mut state = self.state.write();
            if matches!(piece, Piece::Memory(_)) {
                state.pending_bytes += len;
            }
            state.pending.insert(offset, len, piece);
            state.pending_bytes >= PENDING_BYTES_MAX
        };
        if is_much { self.as_writer(|writer| self.send_ahead(writer)) } else { Ok(()) }
    }

    /// Fills ranges of `buf`, which begins at `base` of the device, with bytes of objects.
    fn read_stored(
        &self,
        base: u64,
        wanted: &[(u64, u64, Object, u64)],
        buf: &mut [u8],
    ) -> io::Result<()> {
        let keys = |object: Object, at: u64, len: u64| {
            (at / CHUNK_BYTES..(at + len).div_ceil(CHUNK_BYTES)).map(move |chunk| (object, chunk))
        };
        let mut all: Vec<(Object, u64)> =
            wanted.iter().flat_map(|(_, len, object, at)| keys(*object, *at, *len)).collect();
        all.sort_unstable();
        all.dedup();
        let chunks = self.chunks(&all)?;
        for (start, len, object, at) in wanted {
            let mut done = 0;
            while done < *len {
                let from = at + done;
                let key = (*object, from / CHUNK_BYTES);
                let within = (from % CHUNK_BYTES) as usize;
                let size = (CHUNK_BYTES - from % CHUNK_BYTES).min(len - done) as usize;
                let found = all.binary_search(&key).ok().and_then(|index| chunks.get(index));
                let Some(bytes) = found.and_then(|chunk| chunk.get(within..within + size)) else {
                    let why = format!("it ends before byte {}", from + size as u64);
                    return Err(Error::Damaged { object: object.name(), why }.into());
                };
                let target = (start - base + done) as usize;
                buf[target..target + size].copy_from_slice(bytes);
                done += size as u64;
            }
        }
        Ok(())
    }

    /// Chunks of objects, those that are not at hand by requests at once.
    fn chunks(&self, keys: &[(Object, u64)]) -> io::Result<Vec<Bytes>> {
        let mut found: Vec<Option<Bytes>> = keys.iter().map(|key| self.chunks.get(key)).collect();
        let missing: Vec<usize> = (0..keys.len()).filter(|index| found[*index].is_none()).collect();
        let wanted: Vec<_> = missing
            .iter()
            .map(|index| {
                let (object, chunk) = keys[*index];
                (object.name(), chunk * CHUNK_BYTES..(chunk + 1) * CHUNK_BYTES)
            })
            .collect();
        if !wanted.is_empty() {
            for (index, bytes) in missing.into_iter().zip(self.store.get_many(&wanted)?) {
                let bytes = Bytes::from(bytes);
                self.chunks.insert(keys[index], bytes.clone());
                found[index] = Some(bytes);
            }
        }
        Ok(found.into_iter().flatten().collect())
    }
}

/// Whether two programs that create one object at once are kept apart, which a volume stands on.
fn probe(store: &Store) -> Result<(), Error> {
    let name = format!("probe/{}", Uuid::new_v4());
    let created = store.create_at_once(&name, PROBES)?;
    store.delete(&name)?;
    match created {
        1 => Ok(()),
        created => Err(Error::NoConditionalPut { created, tried: PROBES }),
    }
}

/// The pieces one after the other, and where they lie if the first is at `base` of the object.
fn placed(
    mut extents: Extents<Place>,
    pieces: &Extents<Piece>,
    object: Object,
    base: u64,
) -> (Extents<Place>, Vec<u8>) {
    let mut contents = Vec::new();
    for (start, len, piece) in pieces.iter() {
        match piece {
            Piece::Zeros => extents.insert(start, len, Place::Zeros),
            Piece::Memory(bytes) => {
                let at = base + contents.len() as u64;
                extents.insert(start, len, Place::Stored(object, at));
                contents.extend_from_slice(&bytes[..len as usize]);
            }
        }
    }
    (extents, contents)
}

fn read_only() -> io::Error {
    io::Error::new(
        io::ErrorKind::ReadOnlyFilesystem,
        "the volume is open to be read, or was released",
    )
}

impl BlockDevice for LogDevice {
    fn geometry(&self) -> Geometry {
        let size_bytes = self.state.read().size_bytes;
        Geometry { size_bytes, sector_bytes: self.format.sector_bytes }
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<()> {
        let len = buf.len() as u64;
        self.geometry().check(offset, len)?;
        let (older, newer) = {
            let state = self.state.read();
            let older = [&state.committed, &state.staged].map(|layer| layer.within(offset, len));
            let newer = [&state.in_flight, &state.pending].map(|layer| layer.within(offset, len));
            (older, newer)
        };
        let mut shown: Extents<Shown> = Extents::default();
        for (start, len, place) in older.into_iter().flatten() {
            shown.insert(start, len, Shown(Some(place)));
        }
        for (start, len, _) in newer.iter().flatten() {
            shown.insert(*start, *len, Shown(None));
        }
        buf.fill(0);
        let wanted: Vec<_> = shown
            .iter()
            .filter_map(|(start, len, place)| match place {
                Shown(Some(Place::Stored(object, at))) => Some((start, len, *object, *at)),
                _ => None,
            })
            .collect();
        self.read_stored(offset, &wanted, buf)?;
        for (start, len, piece) in newer.into_iter().flatten() {
            let target = &mut buf[(start - offset) as usize..(start - offset + len) as usize];
            match piece {
                Piece::Memory(bytes) => target.copy_from_slice(&bytes[..len as usize]),
                Piece::Zeros => target.fill(0),
            }
        }
        Ok(())
    }

    fn write_at(&self, offset: u64, bufs: &[IoSlice<'_>]) -> io::Result<()> {
        let data: Vec<u8> = bufs.iter().flat_map(|buf| buf.iter().copied()).collect();
        let len = data.len() as u64;
        self.geometry().check(offset, len)?;
        self.put_pending(offset, len, Piece::Memory(Bytes::from(data)))
    }

    /// Nothing: what is written between two syncs becomes part of the volume at once.
    fn barrier(&self) -> io::Result<()> {
        Ok(())
    }

    fn sync(&self) -> io::Result<()> {
        self.as_writer(|writer| self.commit(writer))
    }

    fn discard(&self, offset: u64, len: u64) -> io::Result<()> {
        self.geometry().check(offset, len)?;
        let has_any = {
            let state = self.state.read();
            let older = [&state.committed, &state.staged];
            let newer = [&state.in_flight, &state.pending];
            older.iter().any(|layer| !layer.within(offset, len).is_empty())
                || newer.iter().any(|layer| !layer.within(offset, len).is_empty())
        };
        if has_any { self.put_pending(offset, len, Piece::Zeros) } else { Ok(()) }
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
            tracing::warn!(%error, "the volume is not released; its next writer has to take it over");
        }
    }
}
