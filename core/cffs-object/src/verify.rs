//! Verifies the objects of a volume: that each is in the store, is long enough, and can be read.

use std::collections::{BTreeMap, HashMap};

use object_store::path::Path;

use crate::chunks::Chunks;
use crate::error::Error;
use crate::extents::Extents;
use crate::format::{Object, Place, REQUEST_BYTES};
use crate::history;
use crate::store::{Address, Store};
use crate::vault;

/// The fault of an object that a volume needs and the store does not have.
pub const MISSING: &str = "it is missing, although the volume has data in it";
/// The fault of an object that is another one of the log: all of its bytes are wrong.
pub const EXCHANGED: &str = "the record of another slot";

/// An object of a volume that is missing or damaged.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unusable {
    /// Its path in the store.
    pub object: String,
    /// The fault.
    pub why: String,
    /// The bytes of the volume in it.
    pub bytes: u64,
}

/// The part of an object that a volume uses.
#[derive(Clone, Copy, Default)]
struct Use {
    /// The end of the last byte.
    end: u64,
    /// The number of bytes.
    bytes: u64,
}

/// See [`LogDevice::verify`](crate::LogDevice::verify). Only objects with wanted paths are verified.
pub fn verify(
    store: &Store,
    chunks: &Chunks,
    extents: &Extents<Place>,
    is_wanted: &dyn Fn(&str) -> bool,
    mut read: Option<&mut dyn FnMut(u64)>,
) -> Result<Vec<Unusable>, Error> {
    let mut uses: BTreeMap<Object, Use> = BTreeMap::new();
    for (_, len, place) in extents.iter() {
        if let Place::Stored(object, at) = place {
            let found = uses.entry(*object).or_default();
            found.end = found.end.max(at + len);
            found.bytes += len;
        }
    }
    let mut lengths = Lengths { store, folders: HashMap::new() };
    let mut unusable = Vec::new();
    for (object, Use { end, bytes }) in uses {
        let address = chunks.address(object)?;
        if !is_wanted(address.path.as_ref()) {
            continue;
        }
        let wrong = match lengths.of(&address)? {
            None => Some(String::from(MISSING)),
            Some(len) if len < end => Some(format!("it ends before byte {end}")),
            Some(len) => match &mut read {
                Some(read) => read_whole(store, object, &address, len, read)?,
                None => None,
            },
        };
        if let Some(why) = wrong {
            unusable.push(Unusable { object: address.path.into(), why, bytes });
        }
    }
    Ok(unusable)
}

/// The lengths of all objects, listed when they are first needed.
struct Lengths<'a> {
    store: &'a Store,
    folders: HashMap<Path, HashMap<Path, u64>>,
}

impl Lengths<'_> {
    /// The length of an object without what sealing adds; 0 if no sealed object is as long. `None` if it is
    /// missing.
    fn of(&mut self, address: &Address) -> Result<Option<u64>, Error> {
        let folder = address.name.split('/').next().unwrap_or_default();
        let depth = address.path.parts().count() - address.name.split('/').count();
        let prefix = Path::from_iter(address.path.parts().take(depth));
        let key = Path::from_iter(prefix.parts().chain(Path::from(folder).parts()));
        if !self.folders.contains_key(&key) {
            self.folders.insert(key.clone(), self.store.lengths(&prefix, folder)?);
        }
        let len = self.folders.get(&key).and_then(|listed| listed.get(&address.path));
        let is_sealed = self.store.vault().is_some();
        Ok(len.map(|len| match is_sealed {
            true => vault::plain_len(*len, address.instance).unwrap_or(0),
            false => *len,
        }))
    }
}

/// Reads an object as a whole; returns its fault.
fn read_whole(
    store: &Store,
    object: Object,
    address: &Address,
    len: u64,
    read: &mut dyn FnMut(u64),
) -> Result<Option<String>, Error> {
    let starts = (0..len).step_by(REQUEST_BYTES as usize);
    let ranges: Vec<_> =
        starts.map(|start| (address.clone(), start..(start + REQUEST_BYTES).min(len))).collect();
    let outcome = store.get_many(&ranges).and_then(|_| match object.slot() {
        Some(slot) if object.origin() == 0 => match history::find_record(store, slot)? {
            Some((record, ..)) if record.slot == slot => Ok(()),
            _ => Err(store.damaged(&address.name)(String::from(EXCHANGED))),
        },
        _ => Ok(()),
    });
    read(len);
    match outcome {
        Ok(()) => Ok(None),
        Err(Error::Damaged { why, .. }) => Ok(Some(why)),
        Err(error) if error.is_not_found() => Ok(Some(String::from(MISSING))),
        Err(error) => Err(error),
    }
}
