//! Finds dead objects, and chooses the ranges to compact so that more objects die (decision 012).
//!
//! An object is dead if a map in the store has no byte of it, and it is older than that map. Records only
//! refer to objects that are made with them, so a dead object stays dead: a collector that is paused and
//! taken over meanwhile still deletes only objects that no volume reads. Snapshots are read after the map was
//! written. A snapshot that is made later finds that map: it is of a later version, or is retried.
//!
//! Invariants:
//!
//! - A record without contents is kept: it may be a claim, which keeps a paused writer out of its slot.
//! - No object that is newer than the map is deleted.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::time::Duration;

use crate::error::Error;
use crate::extents::Extents;
use crate::format::{self, Object, Place, Record};
use crate::state::PENDING_BYTES_MAX;
use crate::store::Store;

/// An object below this size is merged with others.
const SMALL_BYTES: u64 = 1 << 20;
/// Small objects are merged once there are this many: each takes a request to read.
const SMALL_COUNT_MIN: usize = 16;
/// Compaction must free at least this many bytes.
pub const DEAD_BYTES_MIN: u64 = 8 << 20;
/// The length of the ranges that are compared, and of those that one record compacts.
pub const WINDOW_BYTES: u64 = PENDING_BYTES_MAX;
/// Bytes of the device within this distance are usually read together.
pub const NEAR_BYTES: u64 = 1 << 20;
/// The volume's beginning may span this many objects per [`NEAR_BYTES`] before it is compacted: half of the
/// requests that go out at once.
const NEAR_OBJECTS_MAX: usize = 8;

/// When dead objects are deleted.
#[derive(Clone, Copy, Debug)]
pub struct Collection {
    /// How long readers without a snapshot can continue to read a version after it was overwritten.
    pub grace: Duration,
    /// The bytes written between two sweeps; at least an eighth of the volume.
    pub after_bytes: u64,
    /// The number of extents of the map, each of some 80 bytes of memory, beyond which fragmented ranges of
    /// the device are compacted. The map never has more than twice this many.
    pub extents_max: usize,
}

impl Default for Collection {
    fn default() -> Self {
        Collection { grace: Duration::from_secs(3600), after_bytes: 64 << 20, extents_max: 1 << 20 }
    }
}

/// A version whose map is in the store: objects that it does not use may be deleted.
pub struct Mark {
    /// The slot of the map.
    pub slot: u64,
    /// The term of its writer.
    pub term: u64,
    /// The number of objects of contents that the writer had made.
    pub data_count: u64,
    /// The live bytes of each object of this volume, as listings show it.
    pub live: HashMap<Object, u64>,
}

/// The result of a sweep.
#[derive(Debug, Default)]
pub struct Swept {
    /// The number of deleted objects.
    pub objects: u64,
    /// Their total length.
    pub bytes: u64,
    /// Objects with few live bytes; compacting these makes them dead.
    pub sparse: HashSet<Object>,
}

/// The live bytes of each object of this volume, as listings show it.
pub fn live(extents: &Extents<Place>) -> HashMap<Object, u64> {
    let mut live = HashMap::new();
    for (_, len, place) in extents.iter() {
        match place {
            Place::Stored(object, _) if object.origin() == 0 => {
                *live.entry(object.listed()).or_default() += len;
            }
            _ => {}
        }
    }
    live
}

impl Mark {
    /// Whether the object is of this version or an earlier one, so that the map would contain it if it were
    /// live.
    fn covers(&self, object: Object) -> bool {
        match object.slot() {
            Some(slot) => slot < self.slot,
            None if object.term() == self.term => object.number() < self.data_count,
            None => object.term() < self.term,
        }
    }
}

/// Deletes dead objects, and examines nearly dead ones.
///
/// # Errors
///
/// Errors of the store, and damage of a snapshot. Then fewer objects are deleted, and nothing is lost.
pub fn sweep(store: &Store, mark: &Mark) -> Result<Swept, Error> {
    assert!(mark.live.values().all(|bytes| *bytes > 0), "live objects have live bytes");
    let kept = kept_by_snapshots(store)?;
    let mut swept = Swept::default();
    let mut dead = Vec::new();
    let mut small = HashSet::new();
    let mut sparse_bytes = 0;
    for folder in ["log", "data"] {
        store.list(folder, None, |listed| {
            let Some(object) = Object::of_name(&listed.name) else { return };
            let may_be_claim =
                object.slot().is_some() && listed.bytes <= Record::head_bytes(0) as u64;
            if !mark.covers(object) || may_be_claim || kept.contains(&object) {
                return;
            }
            match mark.live.get(&object) {
                None => {
                    swept.objects += 1;
                    swept.bytes += listed.bytes;
                    dead.push(listed.name);
                }
                Some(live) if live * 2 < listed.bytes => {
                    sparse_bytes += listed.bytes - live;
                    swept.sparse.insert(object);
                }
                Some(_) if listed.bytes < SMALL_BYTES => {
                    small.insert(object);
                }
                Some(_) => {}
            }
        })?;
    }
    store.list("map", None, |listed| {
        if format::slot_of_map(&listed.name).is_some_and(|slot| slot < mark.slot) {
            dead.push(listed.name);
        }
    })?;
    store.delete(&dead)?;
    if sparse_bytes < DEAD_BYTES_MIN {
        // Objects of unknown length count at most as small ones.
        small.extend(swept.sparse.drain().filter(|object| mark.live[object] < SMALL_BYTES));
    }
    if small.len() >= SMALL_COUNT_MIN {
        swept.sparse.extend(small);
    }
    Ok(swept)
}

/// The objects of this volume that kept versions read.
fn kept_by_snapshots(store: &Store) -> Result<HashSet<Object>, Error> {
    let mut kept = HashSet::new();
    for name in store.list_after("snapshots", "snapshots")? {
        let bytes = match store.get(&name, None) {
            Err(error) if error.is_not_found() => continue,
            bytes => bytes?,
        };
        let (map, _) =
            Record::decode(&bytes).map_err(|why| Error::Damaged { object: name, why })?;
        kept.extend(live(&map.extents).into_keys());
    }
    Ok(kept)
}

/// The ranges of the device that are read from these objects, in device order.
pub fn ranges_of(extents: &Extents<Place>, objects: &HashSet<Object>) -> Vec<(u64, u64)> {
    let reads = |place: &Place| match place {
        Place::Stored(object, _) => objects.contains(&object.listed()),
        Place::Zeros => false,
    };
    let ranges = extents.iter().filter(|(_, _, place)| reads(place));
    ranges.map(|(start, len, _)| (start, len)).collect()
}

/// The ranges of the device with the most extents: compacting them removes about `excess` from the map.
pub fn fragmented(extents: &Extents<Place>, excess: usize) -> Vec<(u64, u64)> {
    let mut windows: BTreeMap<u64, usize> = BTreeMap::new();
    for (start, _, _) in extents.iter() {
        *windows.entry(start / WINDOW_BYTES).or_default() += 1;
    }
    let mut by_count: Vec<(usize, u64)> =
        windows.into_iter().map(|(window, count)| (count, window)).collect();
    by_count.sort_unstable();
    let mut chosen = Vec::new();
    let mut saved = 0;
    while let Some((count, window)) = by_count.pop().filter(|_| saved < excess) {
        saved += count - 1;
        chosen.push((window * WINDOW_BYTES, WINDOW_BYTES));
    }
    chosen.sort_unstable();
    chosen
}

/// The part of the device's beginning that spans too many objects, as a range to compact. A piece that
/// continues past it is not split, since it may be a directory that one request reads.
pub fn scattered_beginning(extents: &Extents<Place>) -> Option<(u64, u64)> {
    let stored = |offset, len| {
        let there = extents.within(offset, len).into_iter();
        there.filter_map(|(start, len, place)| match place {
            Place::Stored(object, _) => Some((start, start + len, object)),
            Place::Zeros => None,
        })
    };
    let is_scattered = |window: &u64| {
        let objects = stored(window * NEAR_BYTES, NEAR_BYTES).map(|(_, _, object)| object);
        objects.collect::<HashSet<_>>().len() > NEAR_OBJECTS_MAX
    };
    let windows = (0..WINDOW_BYTES / NEAR_BYTES).take_while(is_scattered).count() as u64;
    let end = windows * NEAR_BYTES;
    let goes_on = stored(0, end + NEAR_BYTES).find(|(start, to, _)| *start < end && *to > end);
    (end > 0).then(|| (0, goes_on.map_or(end, |(start, _, _)| start)))
}
