//! Kept versions of a volume, and clones of them.
//!
//! A version is a map under a name. It needs no writer: any program that can put an object can keep the
//! current state of the log. The map is put first, and then `map/` is searched for a newer one; if there is
//! none, every later collection finds the version (decision 012).
//!
//! A clone has the map of a version, and reads that version's objects in place. To keep them, the version has
//! a second name, which is removed when the clone is deleted.

use std::time::SystemTime;

use uuid::Uuid;

use crate::error::Error;
use crate::extents::Extents;
use crate::format::{self, IDENTITY, Place, Record};
use crate::history::History;
use crate::identity::{Format, Origin};
use crate::location::Location;
use crate::store::Store;
use crate::unlock;

/// The number of retries if the volume is collected while a version is read.
const TRIES: usize = 8;

/// A kept version.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Version {
    /// Its name.
    pub name: String,
    /// Its time of creation, by the clock of the store.
    pub made: SystemTime,
    /// The prefix of the clone for which it is kept, if it is kept only for one.
    pub clone: Option<String>,
}

/// Keeps the current state of the volume under the version's name.
///
/// # Errors
///
/// [`Error::NoName`]; [`Error::VersionExists`]; [`Error::Collecting`]; errors of the store.
pub fn create(location: &Location) -> Result<(), Error> {
    let name = named(location)?;
    let store = location.connect()?;
    let object = format::snapshot_name(name);
    for _ in 0..TRIES {
        let history = History::read(&store)?;
        let mut map = history.map();
        map.nonce = *Uuid::new_v4().as_bytes();
        let (bytes, _) = map.encode();
        match store.create(&object, bytes.clone()) {
            // The version may be our own, if the answer was lost.
            Err(error) if error.is_taken() => {
                if store.get(&object, None)? != bytes {
                    return Err(Error::VersionExists { name: name.to_owned() });
                }
            }
            created => created?,
        }
        let after = format::map_name(history.slot, u64::MAX);
        if store.list_after("map", &after)?.is_empty() {
            return Ok(());
        }
        store.delete(std::slice::from_ref(&object))?;
    }
    Err(Error::Collecting { name: name.to_owned() })
}

/// The kept versions, by name.
///
/// # Errors
///
/// [`Error::NoVolume`]; errors of the store.
pub fn list(location: &Location) -> Result<Vec<Version>, Error> {
    let store = location.connect()?;
    unlock::read(&store)?;
    let mut versions = Vec::new();
    store.list("snapshots", None, |listed| {
        if let Some(name) = listed.name.strip_prefix("snapshots/") {
            versions.push(Version { name: name.to_owned(), made: listed.made, clone: None });
        }
    })?;
    versions.sort_by(|one, other| one.name.cmp(&other.name));
    for version in &mut versions {
        if version.name.contains('@') {
            let bytes = store.get(&format::snapshot_name(&version.name), None);
            version.clone = match bytes.and_then(|bytes| clone_of(&bytes, &version.name)) {
                Err(Error::Damaged { .. }) => Some(String::from("(damaged)")),
                clone => Some(clone?),
            };
        }
    }
    Ok(versions)
}

/// Deletes a version, and objects kept only for deleted clones of it.
///
/// # Errors
///
/// [`Error::NoName`]; [`Error::NoVersion`]; errors of the store.
pub fn remove(location: &Location) -> Result<(), Error> {
    let name = named(location)?;
    let store = location.connect()?;
    unlock::read(&store)?;
    let object = format::snapshot_name(name);
    let for_clones = format!("{object}@");
    let mut is_any = false;
    for kept in store.list_after("snapshots", &for_clones)? {
        if !kept.starts_with(&for_clones) {
            continue;
        }
        let bytes = store.get(&kept, None)?;
        let clone = location.sibling(&clone_of(&bytes, &kept)?).connect()?;
        if is_clone(&clone, &kept)? {
            continue;
        }
        is_any = true;
        store.delete(std::slice::from_ref(&kept))?;
        // A clone that is being made at this moment either sees the deletion or is seen here.
        if is_clone(&clone, &kept)? {
            store.put(&kept, bytes)?;
        }
    }
    match store.get(&object, Some(0..1)) {
        Err(error) if error.is_not_found() && is_any => return Ok(()),
        Err(error) if error.is_not_found() => {
            return Err(Error::NoVersion { url: store.url(), name: name.to_owned() });
        }
        // A damaged version can be removed.
        Err(Error::Damaged { .. }) => {}
        there => drop(there?),
    }
    store.delete(&[object])
}

/// Makes a volume that begins as the version and shares unchanged data with it.
///
/// # Errors
///
/// [`Error::NoName`]; [`Error::NoVersion`]; [`Error::Exists`]; [`Error::OtherStore`]; errors of the store.
pub fn clone(from: &Location, to: &Location) -> Result<(), Error> {
    let name = named(from)?;
    if !from.is_beside(to) || to.version().is_some() {
        return Err(Error::OtherStore { url: to.to_string() });
    }
    // A clone has the secret of its origin.
    let (parent, store) = (from.connect()?, to.clone().with_secret(from.secret()).connect()?);
    let version = History::of_snapshot(&parent, name)?;
    let key = parent.vault().map(|vault| vault.key().clone());
    let uuid = key.as_ref().map_or([0; 16], |_| version.format.uuid);
    let mut origins = vec![Origin { uuid, prefix: parent.prefix() }];
    origins.extend(version.format.origins.iter().cloned());
    if origins.len() > Format::ORIGINS_MAX {
        return Err(Error::TooManyOrigins);
    }
    let uuid = Uuid::new_v4();
    let kept = format!("{}@{uuid}", format::snapshot_name(name));
    let mut bytes = version.map().encode().0;
    bytes.extend_from_slice(store.prefix().as_bytes());
    parent.put(&kept, bytes)?;
    parent.get(&format::snapshot_name(name), Some(0..1))?;
    let sector_bytes = version.format.sector_bytes;
    let format = Format { uuid: *uuid.as_bytes(), sector_bytes, origins };
    if let Err(error) = unlock::create(&store, &format, key) {
        parent.delete(&[kept])?;
        return Err(error);
    }
    parent.get(&kept, Some(0..1))?;
    // The deletion of the origin that has begun since then either sees this clone or is seen here.
    if let Err(error) = unlock::read_encoded(&parent) {
        store.delete(&[IDENTITY.to_owned()])?;
        parent.delete(&[kept])?;
        return Err(error);
    }
    let map = Record {
        uuid: format.uuid,
        slot: 0,
        term: 0,
        previous: 0,
        extents: in_clone(&version.extents),
        ..version.map()
    };
    store.put(&format::map_name(0, 0), map.encode().0)?;
    store.put("head", format::encode_hint(0, 0))
}

/// The same places, with the names that a clone uses.
fn in_clone(extents: &Extents<Place>) -> Extents<Place> {
    let mut moved = Extents::default();
    for (start, len, place) in extents.iter() {
        if let Place::Stored(object, at) = place {
            moved.insert(start, len, Place::Stored(object.of_clone(), *at));
        }
    }
    moved
}

/// The prefix of the clone that a version is kept for, which follows its map.
fn clone_of(bytes: &[u8], name: &str) -> Result<String, Error> {
    let wrong = |why: String| Error::Damaged { object: name.to_owned(), why };
    let len = Record::len_of(bytes).map_err(wrong)?;
    let prefix = bytes.get(len..).unwrap_or_default().to_vec();
    String::from_utf8(prefix).map_err(|error| wrong(error.to_string()))
}

/// The place of the clone that a version is kept for, unless that clone is gone. The version's name in the
/// store is given.
///
/// # Errors
///
/// Damage; errors of the store. The store of an encrypted volume is unlocked.
pub(crate) fn clone_for(
    origin: &Location,
    store: &Store,
    kept: &str,
) -> Result<Option<Location>, Error> {
    let bytes = match store.get(kept, None) {
        Err(error) if error.is_not_found() => return Ok(None),
        bytes => bytes?,
    };
    let clone = origin.sibling(&clone_of(&bytes, kept)?);
    Ok(is_clone(&clone.connect()?, kept)?.then_some(clone))
}

/// Whether the volume is the clone for which a version is kept. It still is while it is being deleted, since
/// the deletion may be abandoned.
fn is_clone(store: &Store, kept: &str) -> Result<bool, Error> {
    let uuid = kept.rsplit_once('@').and_then(|(_, uuid)| Uuid::parse_str(uuid).ok());
    match unlock::marker(store) {
        Ok(marker) => {
            let there = marker.encoded(store)?.uuid();
            Ok(uuid.is_some_and(|uuid| there == *uuid.as_bytes()))
        }
        Err(Error::NoVolume { .. }) => Ok(false),
        Err(error) => Err(error),
    }
}

fn named(location: &Location) -> Result<&str, Error> {
    location.version().ok_or_else(|| Error::NoName { url: location.to_string() })
}
