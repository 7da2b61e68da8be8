//! Reads the log of a volume: the places of all bytes after its last record.

use bytes::Bytes;

use crate::error::Error;
use crate::extents::Extents;
use crate::format::{self, IDENTITY, Kind, Place, REQUEST_BYTES, Record};
use crate::identity::Format;
use crate::store::Store;
use crate::unlock;

/// The length of the first read of a record: most heads are shorter.
const FIRST_BYTES: u64 = 16 << 10;
/// The number of records that are requested concurrently.
pub const AT_ONCE: usize = 16;

/// The state of a volume after a record.
#[derive(Clone)]
pub struct History {
    /// The volume's identity.
    pub format: Format,
    /// The slot of the last record; 0 without one.
    pub slot: u64,
    /// Its checksum.
    pub checksum: u32,
    /// The slot of the last claim.
    pub term: u64,
    /// Whether the last record is a release, or there is none.
    pub is_released: bool,
    /// Whether the last writer has a staging directory.
    pub is_staging: bool,
    /// The device's size.
    pub size_bytes: u64,
    /// The number of records after the newest map.
    pub records_since_map: u64,
    /// The places of all bytes.
    pub extents: Extents<Place>,
}

impl History {
    /// The history of a volume whose log is empty.
    pub fn empty(format: Format, size_bytes: u64) -> History {
        History {
            format,
            slot: 0,
            checksum: 0,
            term: 0,
            is_released: true,
            is_staging: false,
            size_bytes,
            records_since_map: 0,
            extents: Extents::default(),
        }
    }

    /// Reads the state in the store: from a map, if one exists, and then record by record.
    ///
    /// A hint may be old and its objects collected. So an inconsistency is an error only if there is no newer
    /// map: nothing that the newest map or its successors need has been collected.
    pub fn read(store: &Store) -> Result<History, Error> {
        Self::read_unmade(store)?.if_made(store)
    }

    /// The same, with records that a listing may lack.
    pub fn read_to_end(store: &Store) -> Result<History, Error> {
        let mut history = Self::read(store)?;
        loop {
            let next = history.slot + 1;
            let Some((record, checksum, _)) = find_record(store, next)? else { return Ok(history) };
            history.apply(store, next, (record, checksum))?;
        }
    }

    /// Like [`read`](History::read); also reads a volume that is not made yet.
    pub fn read_unmade(store: &Store) -> Result<History, Error> {
        let format = unlock::read(store)?;
        let start = Self::from_hint(store, &format)?;
        Self::read_from(store, format, start)
    }

    fn read_from(store: &Store, format: Format, start: Option<History>) -> Result<History, Error> {
        let mut start = match start {
            Some(history) => history,
            None => match Self::from_newest_map(store, &format)? {
                Some(history) => history,
                None if format.origins.is_empty() => Self::empty(format.clone(), 0),
                None => {
                    let why = "the clone was not completed; cffs destroy --force removes its \
                               objects, then clone again";
                    return Err(store.damaged("format")(why.into()));
                }
            },
        };
        loop {
            let slot = start.slot;
            let error = match start.read_on(store) {
                Ok(()) => return Ok(start),
                Err(error) => error,
            };
            match Self::from_newest_map(store, &format)? {
                Some(newer) if newer.slot > slot => start = newer,
                _ => return Err(error),
            }
        }
    }

    /// Reads the state for a program that is about to claim the volume. If the hint names a map after a
    /// release, no record is read: the claim detects later records.
    pub fn read_to_claim(store: &Store) -> Result<History, Error> {
        let format = unlock::read(store)?;
        let history = match Self::from_hint(store, &format)? {
            Some(history) if history.is_released => history,
            start => Self::read_from(store, format, start)?,
        };
        history.if_made(store)
    }

    /// Whether no record has contents yet. A program is making the volume, or was interrupted: the first
    /// record with contents completes it.
    pub fn is_unmade(&self) -> bool {
        self.format.origins.is_empty() && self.extents.is_empty()
    }

    /// Whether a history without contents is that of a volume whose log is lost. A volume with contents has
    /// these, even if its log is lost. Data may be sent ahead of the first record with contents, but only
    /// after a claim.
    pub fn is_log_lost(&self, store: &Store) -> Result<bool, Error> {
        let has_claim = self.slot > 0;
        let folders = ["map", "snapshots"].into_iter().chain((!has_claim).then_some("data"));
        for folder in folders {
            if !store.list_after(folder, folder)?.is_empty() {
                return Ok(true);
            }
        }
        Ok(false)
    }

    fn if_made(self, store: &Store) -> Result<History, Error> {
        if !self.is_unmade() {
            return Ok(self);
        }
        if self.is_log_lost(store)? {
            // Another program may have completed it meanwhile.
            let newer = Self::read_unmade(store)?;
            if !newer.is_unmade() {
                return Ok(newer);
            }
            if newer.slot == self.slot {
                return Err(store.damaged("log")("the log is lost; restore it from a copy".into()));
            }
        }
        let object = store.address(IDENTITY).path.to_string();
        Err(Error::Unmade { object, url: store.url() })
    }

    /// The history of a kept version.
    pub fn of_snapshot(store: &Store, name: &str) -> Result<History, Error> {
        let format = unlock::read(store)?;
        let object = format::snapshot_name(name);
        let bytes = store.get(&object, None).map_err(|error| match error.is_not_found() {
            true => Error::NoVersion { url: store.url(), name: name.to_owned() },
            false => error,
        })?;
        Self::from_map(&format, &bytes).map_err(store.damaged(&object))
    }

    /// The history up to the map that the hint names; that map never becomes stale.
    fn from_hint(store: &Store, format: &Format) -> Result<Option<History>, Error> {
        let hint = match store.get("head", None) {
            Err(error) if error.is_not_found() => return Ok(None),
            // A damaged hint is as good as none.
            Err(Error::Damaged { .. }) => return Ok(None),
            bytes => format::decode_hint(&bytes?),
        };
        let Some((slot, term)) = hint else { return Ok(None) };
        let map = match store.get(&format::map_name(slot, term), None) {
            Err(error) if error.is_not_found() => return Ok(None),
            Err(Error::Damaged { .. }) => return Ok(None),
            bytes => Self::from_map(format, &bytes?),
        };
        Ok(map.ok().filter(|map| (map.slot, map.term) == (slot, term)))
    }

    /// The history up to the newest map.
    fn from_newest_map(store: &Store, format: &Format) -> Result<Option<History>, Error> {
        for name in store.list_after("map", "map")?.iter().rev() {
            match store.get(name, None) {
                Err(error) if error.is_not_found() => {}
                Err(Error::Damaged { why, .. }) => cannot_be_used(name, &why),
                Err(error) => return Err(error),
                Ok(bytes) => match Self::from_map(format, &bytes) {
                    Ok(history) => return Ok(Some(history)),
                    Err(why) => cannot_be_used(name, &why),
                },
            }
        }
        Ok(None)
    }

    fn from_map(format: &Format, bytes: &[u8]) -> Result<History, String> {
        let (map, _) = Record::decode(bytes)?;
        if map.uuid != format.uuid {
            return Err("a map of another volume".into());
        }
        Ok(History {
            format: format.clone(),
            slot: map.slot,
            checksum: map.previous,
            term: map.term,
            // A clone's map belongs to no record.
            is_released: map.slot == 0 || map.kind == Kind::Release,
            is_staging: map.is_staging,
            size_bytes: map.size_bytes,
            records_since_map: 0,
            extents: map.extents,
        })
    }

    /// The places of all bytes, from a map.
    pub fn map(&self) -> Record {
        let last = (self.slot, self.term, self.checksum);
        Record::map(self.format.uuid, last, self.size_bytes, self.extents.clone())
    }

    /// Reads the following records, up to the first free slot. Other objects may be next to them.
    pub fn read_on(&mut self, store: &Store) -> Result<(), Error> {
        let after = format::record_name(self.slot);
        let mut names = store.list_after("log", &after)?;
        names.retain(|name| format::slot_of_record(name).is_some());
        let first = self.slot + 1;
        for (slot, name) in (first..).zip(&names) {
            if format::record_name(slot) != *name {
                let why = format!(
                    "is missing, although {name} follows it; restore it from a copy, or delete {name} if \
                     another program put it there"
                );
                return Err(store.damaged(&format::record_name(slot))(why));
            }
        }
        let slots: Vec<u64> = (first..first + names.len() as u64).collect();
        for slots in slots.chunks(AT_ONCE) {
            for (slot, read) in slots.iter().zip(read_records(store, slots)?) {
                self.apply(store, *slot, read)?;
            }
        }
        Ok(())
    }

    /// Applies the record of the next slot, given with its checksum.
    pub fn apply(&mut self, store: &Store, slot: u64, read: (Record, u32)) -> Result<(), Error> {
        let (record, checksum) = read;
        let name = format::record_name(slot);
        let wrong = |why: &str| Err(store.damaged(&name)(why.to_owned()));
        if record.uuid != self.format.uuid {
            return wrong(format::FOREIGN);
        }
        if record.slot != slot {
            return wrong("the record of another slot");
        }
        if record.previous != self.checksum {
            return wrong("it does not follow the record before it: one of them was replaced");
        }
        let is_in_order = match record.kind {
            Kind::Claim => record.term == slot,
            Kind::Epoch | Kind::Release => record.term == self.term && !self.is_released,
        };
        if !is_in_order {
            return wrong("its writer had not claimed the volume");
        }
        debug_assert_eq!(slot, self.slot + 1, "records are applied one after the other");
        self.slot = slot;
        self.checksum = checksum;
        self.term = record.term;
        self.is_released = record.kind == Kind::Release;
        self.is_staging = record.is_staging;
        self.size_bytes = record.size_bytes;
        self.records_since_map += 1;
        format::apply(&mut self.extents, &record.extents);
        Ok(())
    }
}

fn cannot_be_used(map: &str, why: &str) {
    tracing::warn!(map, why, "a map cannot be used");
}

/// The record in a slot, and its checksum.
pub fn read_record(store: &Store, slot: u64) -> Result<(Record, u32), Error> {
    let mut read = read_records(store, &[slot])?;
    read.pop().ok_or_else(|| store.damaged(&format::record_name(slot))("it is empty".into()))
}

/// The record in a slot, its checksum, and its first bytes; `None` if the slot is empty.
pub fn find_record(store: &Store, slot: u64) -> Result<Option<(Record, u32, Bytes)>, Error> {
    let name = format::record_name(slot);
    let bytes = match store.get(&name, Some(0..REQUEST_BYTES)) {
        Err(error) if error.is_not_found() => return Ok(None),
        bytes => bytes?,
    };
    let (record, checksum) = decode_head(store, &name, &bytes)?;
    Ok(Some((record, checksum, bytes)))
}

/// Decodes the head of a record from its first bytes; reads more if the head is longer.
fn decode_head(store: &Store, name: &str, bytes: &[u8]) -> Result<(Record, u32), Error> {
    let wrong = store.damaged(name);
    if bytes.len() < Record::head_bytes(0) {
        return Err(wrong(String::from(
            "it is truncated; restore it from a copy. If no copy exists, and no object of the log \
             follows it, delete it: its sync is lost",
        )));
    }
    let len = Record::len_of(bytes).map_err(&wrong)?;
    match len <= bytes.len() {
        true => Record::decode(bytes).map_err(&wrong),
        false => Record::decode(&store.get(name, Some(0..len as u64))?).map_err(&wrong),
    }
}

fn read_records(store: &Store, slots: &[u64]) -> Result<Vec<(Record, u32)>, Error> {
    let head = |slot: &u64| (store.address(&format::record_name(*slot)), 0..FIRST_BYTES);
    let ranges: Vec<_> = slots.iter().map(head).collect();
    let heads = store.get_many(&ranges)?;
    let decode =
        |(bytes, slot): (Bytes, &u64)| decode_head(store, &format::record_name(*slot), &bytes);
    heads.into_iter().zip(slots).map(decode).collect()
}
