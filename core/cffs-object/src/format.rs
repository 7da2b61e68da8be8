//! The objects of a volume: one codec each, little-endian, no I/O.
//!
//! | object | contents |
//! | --- | --- |
//! | `format` | the volume's identity, and its origins if it is a clone; created once, replaced by a new key, and by a tombstone while the volume is deleted |
//! | `log/<slot>` | a record of the log: a claim, an epoch or a release; created once |
//! | `data/<shard>/<term>-<number>` | contents sent ahead of their record; created once |
//! | `map/<slot>-<term>` | all extents after the record of that slot; created once |
//! | `snapshots/<name>` | the map of a kept version; created once |
//! | `head` | the newest map: a hint, overwritten, never needed |
//!
//! A record is a head, as below, and after it the bytes that its extents place in the record itself.
//!
//! ```text
//!   0 magic, 8   8 checksum of what follows in the head, 4   12 bytes of the head, 4
//!  16 UUID, 16  32 slot, 8  40 term, 8  48 nonce, 16  64 checksum of the record before, 4
//!  68 kind, 1   69 codec of the contents, 1: 0 for none  70 whether its writer has a staging directory, 1
//!  71 reserved, 1  72 bytes of the device, 8
//!  80 number of extents, 4  84 instance of the writer's objects, 4: 0 without encryption
//!  88 extents, 40 each: first byte, length, source, number, first byte there
//! ```
//!
//! The highest byte of a source names the volume that made the object (0: this one, else one of the origins
//! in `format`); the lower bytes are the term of its writer, or 0 for a record. All ones mean zeros. The
//! upper half of a number is the instance of the object, which is 0 without encryption (decision 027); the
//! lower half is the slot of a record, or the number of contents among those of their term.
//!
//! A map is encoded as the head of a record that changes everything, with two differences: it has the
//! checksum of its slot's record instead of that of the previous one, and that record's kind if it is a
//! release. The map of a snapshot for a clone is followed by the clone's prefix.

use uuid::Uuid;

use crate::extents::{Extents, Source};
use crate::reader::{Reader, checked, with_checksum};

const RECORD_MAGIC: [u8; 8] = *b"CFFSREC1";
const HINT_MAGIC: [u8; 8] = *b"CFFSHED1";
const STAGING_MAGIC: [u8; 8] = *b"CFFSSTG1";
/// The name of the object that has a volume's identity.
pub const IDENTITY: &str = "format";
/// The object by which a program requests that the writer gives way.
pub const TAKE_OVER: &str = "takeover";
/// The folder of records.
pub const LOG: &str = "log/";
/// The folder of contents sent ahead.
pub const DATA: &str = "data/";
/// The folder of the objects that show whether a store has conditional PUT.
pub const PROBES: &str = "probe/";
/// The fault of a record that has another volume's UUID.
pub const FOREIGN: &str =
    "a record of another volume; if a program put it there by mistake, delete it";
/// The bytes of a record's head before its extents.
const HEAD_BYTES: usize = 88;
const EXTENT_BYTES: usize = 40;
const UUID_AT: usize = 16;
const SIZE_AT: usize = 72;
const INSTANCE_AT: usize = 84;
/// The source of an extent that reads as zeros.
const ZEROS: u64 = u64::MAX;

/// The length of one read: it takes about as long to transfer as a store takes to answer.
pub const REQUEST_BYTES: u64 = 1 << 20;
/// The unit in which objects are read and cached.
pub const CHUNK_BYTES: u64 = 256 << 10;

/// An object with bytes of the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Object {
    /// The volume that made it and the term of its writer, as they are encoded.
    source: u64,
    /// The slot of a record, or the number among its writer's contents; and the instance, in the upper half.
    number: u64,
}

const INSTANCE_SHIFT: u32 = 32;

const TERM_BITS: u32 = 56;

impl Object {
    /// The record in a slot, by a writer whose objects have this instance.
    pub fn record(slot: u64, instance: u32) -> Object {
        assert!(slot <= u32::MAX.into(), "the log has no more slots");
        Object { source: 0, number: slot | u64::from(instance) << INSTANCE_SHIFT }
    }

    /// Contents sent ahead of their record, by the term of their writer, their number in it, and the instance
    /// of its objects.
    pub fn data(term: u64, number: u64, instance: u32) -> Object {
        assert!(number <= u32::MAX.into(), "a term has no more objects");
        Object { source: term, number: number | u64::from(instance) << INSTANCE_SHIFT }
    }

    /// Its instance.
    pub fn instance(self) -> u32 {
        (self.number >> INSTANCE_SHIFT) as u32
    }

    /// The object that a listing shows: the name of a record does not have its instance.
    pub fn listed(self) -> Object {
        match self.slot() {
            Some(slot) => Object { number: slot, ..self },
            None => self,
        }
    }

    /// The volume that made it: 0 for this one, else the number of an origin, from 1 on.
    pub fn origin(self) -> usize {
        (self.source >> TERM_BITS) as usize
    }

    /// The same object as a clone of this volume names it.
    pub fn of_clone(self) -> Object {
        Object { source: self.source + (1 << TERM_BITS), ..self }
    }

    /// A key unique to this object within the volume.
    pub fn key(self) -> (u64, u64) {
        (self.source, self.number)
    }

    /// The slot, if it is a record.
    pub fn slot(self) -> Option<u64> {
        (self.term() == 0).then_some(self.number())
    }

    /// The term of the writer of contents; 0 for a record.
    pub fn term(self) -> u64 {
        self.source & ((1 << TERM_BITS) - 1)
    }

    /// The slot of a record, or the number among its writer's contents.
    pub fn number(self) -> u64 {
        self.number & u64::from(u32::MAX)
    }

    /// Its name below the prefix of its volume. Contents are spread over several prefixes, since stores limit
    /// requests per prefix.
    pub fn name(self) -> String {
        match self.slot() {
            Some(slot) => record_name(slot),
            None => {
                let (term, number) = (self.term(), self.number);
                format!("data/{:02x}/{term:020}-{number:010}", number % 256)
            }
        }
    }

    /// The object of this volume with that name.
    pub fn of_name(name: &str) -> Option<Object> {
        let object = match name.strip_prefix("log/") {
            Some(slot) => Object::record(slot.parse::<u32>().ok()?.into(), 0),
            None => {
                let (term, number) = name.strip_prefix("data/")?.get(3..)?.split_once('-')?;
                Object { source: term.parse().ok()?, number: number.parse().ok()? }
            }
        };
        (object.name() == name).then_some(object)
    }
}

/// The name of a slot.
pub fn record_name(slot: u64) -> String {
    format!("log/{slot:020}")
}

/// The slot of the record with that name.
pub fn slot_of_record(name: &str) -> Option<u64> {
    Object::of_name(name)?.slot()
}

/// The name of a map.
pub fn map_name(slot: u64, term: u64) -> String {
    format!("map/{slot:020}-{term:020}")
}

/// The slot of the map with that name.
pub fn slot_of_map(name: &str) -> Option<u64> {
    name.strip_prefix("map/")?.split_once('-')?.0.parse().ok()
}

/// Fails if a version cannot have this name, which is part of an object's name and of a URL.
///
/// # Errors
///
/// The rule for names.
pub fn check_version(name: &str) -> Result<(), String> {
    let is_fit = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
    match (1..=128).contains(&name.len()) && name.bytes().all(is_fit) && !name.starts_with('.') {
        true => Ok(()),
        false => Err(format!(
            "the version {name:?}: a name has up to 128 letters, digits, '-', '_' and '.'"
        )),
    }
}

/// The name of the map of a version that is kept.
pub fn snapshot_name(name: &str) -> String {
    format!("snapshots/{name}")
}

/// Whether an object below the prefix of a volume is one of its objects.
pub fn is_object(name: &str) -> bool {
    let Some((folder, rest)) = name.split_once('/') else {
        return ["head", IDENTITY, TAKE_OVER].contains(&name);
    };
    let is_uuid = |text: &str| Uuid::parse_str(text).is_ok_and(|uuid| uuid.to_string() == text);
    match folder {
        "log" | "data" => Object::of_name(name).is_some(),
        "map" => {
            let term = rest.split_once('-').and_then(|(_, term)| term.parse().ok());
            let known = slot_of_map(name).zip(term);
            known.is_some_and(|(slot, term)| map_name(slot, term) == name)
        }
        "snapshots" => match rest.split_once('@') {
            Some((version, clone)) => check_version(version).is_ok() && is_uuid(clone),
            None => check_version(rest).is_ok(),
        },
        "probe" => is_uuid(rest),
        _ => false,
    }
}

/// Whether an object begins as a record or a map does.
pub fn is_record(bytes: &[u8]) -> bool {
    bytes.starts_with(&RECORD_MAGIC)
}

/// The place of bytes in the store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// In an object, from this byte on.
    Stored(Object, u64),
    /// Nowhere: the bytes are zeros.
    Zeros,
}

impl Source for Place {
    fn skip(&self, bytes: u64) -> Place {
        match *self {
            Place::Stored(object, at) => Place::Stored(object, at + bytes),
            Place::Zeros => Place::Zeros,
        }
    }

    fn continues(&self, len: u64, next: &Place) -> bool {
        self.skip(len) == *next
    }
}

/// Applies a record's changes to the map of committed data. Ranges that read as zeros are not in the map.
pub fn apply(committed: &mut Extents<Place>, changes: &Extents<Place>) {
    for (start, len, place) in changes.iter() {
        match place {
            Place::Zeros => committed.remove(start, len),
            Place::Stored(..) => committed.insert(start, len, *place),
        }
    }
}

/// The purpose of a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Makes its creator the writer. Its slot is the writer's term.
    Claim = 1,
    /// Commits all writes since the record before.
    Epoch = 2,
    /// Ends the term.
    Release = 3,
}

/// The head of a record.
#[derive(Clone, Debug)]
pub struct Record {
    /// The volume.
    pub uuid: [u8; 16],
    /// Its slot.
    pub slot: u64,
    /// The slot of its writer's claim.
    pub term: u64,
    /// Distinguishes this record from others sent for its slot.
    pub nonce: [u8; 16],
    /// The checksum of the record in the previous slot.
    pub previous: u32,
    /// Its purpose.
    pub kind: Kind,
    /// Whether its writer has a staging directory, so that syncs may wait where no other machine sees them.
    pub is_staging: bool,
    /// The instance of its writer's objects.
    pub instance: u32,
    /// The device's size in bytes after this record.
    pub size_bytes: u64,
    /// The ranges that it changes.
    pub extents: Extents<Place>,
}

impl Record {
    /// The length of a head with this many extents, in bytes.
    pub fn head_bytes(extents: usize) -> usize {
        HEAD_BYTES + extents * EXTENT_BYTES
    }

    /// A map of all extents after a slot.
    pub fn map(
        uuid: [u8; 16],
        (slot, term, previous): (u64, u64, u32),
        size_bytes: u64,
        extents: Extents<Place>,
    ) -> Record {
        let (nonce, kind, is_staging, instance) = ([0; 16], Kind::Epoch, false, 0);
        Record {
            uuid,
            slot,
            term,
            nonce,
            previous,
            kind,
            is_staging,
            instance,
            size_bytes,
            extents,
        }
    }

    /// The head, and its checksum, which the next record repeats.
    pub fn encode(&self) -> (Vec<u8>, u32) {
        let len = Self::head_bytes(self.extents.len());
        let mut out = Vec::with_capacity(len);
        out.extend_from_slice(&RECORD_MAGIC);
        out.extend_from_slice(&[0; 4]);
        out.extend_from_slice(&(len as u32).to_le_bytes());
        out.extend_from_slice(&self.uuid);
        out.extend_from_slice(&self.slot.to_le_bytes());
        out.extend_from_slice(&self.term.to_le_bytes());
        out.extend_from_slice(&self.nonce);
        out.extend_from_slice(&self.previous.to_le_bytes());
        out.extend_from_slice(&[self.kind as u8, 0, u8::from(self.is_staging), 0]);
        out.extend_from_slice(&self.size_bytes.to_le_bytes());
        out.extend_from_slice(&(self.extents.len() as u32).to_le_bytes());
        out.extend_from_slice(&self.instance.to_le_bytes());
        encode_extents(&self.extents, &mut out);
        let checksum = crc32c::crc32c(&out[12..]);
        out[8..12].copy_from_slice(&checksum.to_le_bytes());
        (out, checksum)
    }

    /// The length of the head that begins with these bytes.
    pub fn len_of(bytes: &[u8]) -> Result<usize, String> {
        let mut reader = Reader::new(bytes);
        if reader.array()? != RECORD_MAGIC {
            return Err("no record of a log".into());
        }
        reader.u32()?;
        let len = reader.u32()? as usize;
        match len >= HEAD_BYTES && (len - HEAD_BYTES).is_multiple_of(EXTENT_BYTES) {
            true => Ok(len),
            false => Err(format!("a head of {len} bytes")),
        }
    }

    /// The record with this head, and its checksum.
    pub fn decode(bytes: &[u8]) -> Result<(Record, u32), String> {
        let len = Self::len_of(bytes)?;
        let head = bytes.get(..len).ok_or("it is cut off")?;
        let mut reader = Reader::new(&head[8..]);
        let checksum = reader.u32()?;
        if crc32c::crc32c(&head[12..]) != checksum {
            return Err("the checksum of its head is wrong".into());
        }
        reader.u32()?;
        let (uuid, slot, term) = (reader.array()?, reader.u64()?, reader.u64()?);
        let (nonce, previous) = (reader.array()?, reader.u32()?);
        let [kind, codec, staging, _]: [u8; 4] = reader.array()?;
        let kind = match kind {
            1 => Kind::Claim,
            2 => Kind::Epoch,
            3 => Kind::Release,
            other => {
                return Err(format!("a record of kind {other}, which this program does not know"));
            }
        };
        if codec != 0 {
            return Err(format!("contents in codec {codec}, which this program does not know"));
        }
        let size_bytes = reader.u64()?;
        let (count, instance) = (reader.u32()? as usize, reader.u32()?);
        if Self::head_bytes(count) != len {
            return Err(format!("{count} extents in a head of {len} bytes"));
        }
        let extents = decode_extents(&mut reader, count, size_bytes)?;
        let is_staging = staging != 0;
        let record = Record {
            uuid,
            slot,
            term,
            nonce,
            previous,
            kind,
            is_staging,
            instance,
            size_bytes,
            extents,
        };
        Ok((record, checksum))
    }

    /// The size of the device in an encoded head, of which only the fixed part is needed.
    pub fn size_of(bytes: &[u8]) -> Option<u64> {
        let field = bytes.get(SIZE_AT..SIZE_AT + 8).filter(|_| bytes.starts_with(&RECORD_MAGIC))?;
        Some(u64::from_le_bytes(field.try_into().ok()?))
    }

    /// The volume in an encoded head.
    pub fn uuid_of(bytes: &[u8]) -> Option<[u8; 16]> {
        bytes.get(UUID_AT..UUID_AT + 16)?.try_into().ok()
    }

    /// The instance in an encoded head.
    pub fn instance_of(bytes: &[u8]) -> Option<u32> {
        let field = bytes.get(INSTANCE_AT..HEAD_BYTES)?.try_into().ok()?;
        Some(u32::from_le_bytes(field))
    }
}

fn encode_extents(extents: &Extents<Place>, out: &mut Vec<u8>) {
    for (start, len, place) in extents.iter() {
        let (source, number, at) = match *place {
            Place::Stored(object, at) => (object.source, object.number, at),
            Place::Zeros => (ZEROS, 0, 0),
        };
        for word in [start, len, source, number, at] {
            out.extend_from_slice(&word.to_le_bytes());
        }
    }
}

fn decode_extents(
    reader: &mut Reader<'_>,
    count: usize,
    size_bytes: u64,
) -> Result<Extents<Place>, String> {
    let mut extents = Extents::default();
    let mut last = 0;
    for _ in 0..count {
        let (start, len, source) = (reader.u64()?, reader.u64()?, reader.u64()?);
        let (number, at) = (reader.u64()?, reader.u64()?);
        let end = start.checked_add(len).filter(|end| *end <= size_bytes);
        let Some(end) = end.filter(|_| start >= last && len > 0 && at.checked_add(len).is_some())
        else {
            return Err(format!("an extent of {len} bytes at {start} of {size_bytes}"));
        };
        last = end;
        let place = match source {
            ZEROS => Place::Zeros,
            source => Place::Stored(Object { source, number }, at),
        };
        extents.insert(start, len, place);
    }
    Ok(extents)
}

/// Encodes the hint that names a map.
pub fn encode_hint(slot: u64, term: u64) -> Vec<u8> {
    with_checksum(HINT_MAGIC, &[slot.to_le_bytes(), term.to_le_bytes()].concat())
}

/// The slot and the term of the map that a hint names, if it is valid.
pub fn decode_hint(bytes: &[u8]) -> Option<(u64, u64)> {
    let mut reader = Reader::new(checked(HINT_MAGIC, bytes).ok()?);
    Some((reader.u64().ok()?, reader.u64().ok()?))
}

/// Encodes the claim that a staging directory keeps.
pub fn encode_staging_claim(uuid: &[u8; 16], term: u64) -> Vec<u8> {
    with_checksum(STAGING_MAGIC, &[&uuid[..], &term.to_le_bytes()].concat())
}
