//! The volumes below a place in a store, and a description of each from a few small requests.
//!
//! One listing with a delimiter finds the names. Each is then asked for its identity, and a volume for the
//! names of its maps and of the end of its log, and for the last record there. These requests do not depend
//! on the size of a volume. Of an encrypted volume, only its names can be read without its secret.

use std::fs;
use std::io;
use std::path::Path as HostPath;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::SystemTime;

use cffs::format::superblock::Holder;
use cffs::host::{Host, Standing, SystemHost};

use crate::device;
use crate::error::Error;
use crate::format::{self, Kind, Record};
use crate::history::{self, History};
use crate::identity::{Encoded, Format};
use crate::location::Location;
use crate::store::{Listed, Store};
use crate::unlock;

/// The number of names that are examined concurrently.
const AT_ONCE: usize = 8;
/// A map up to this length is read to find the program that has the volume open.
const MAP_BYTES_MAX: u64 = 1 << 20;

/// The names directly below a place.
#[derive(Debug)]
pub struct Listing {
    /// The volumes, by name.
    pub volumes: Vec<Found>,
    /// Other names, in order: they are not volumes, but volumes may exist below them.
    pub others: Vec<String>,
}

/// A volume in a listing.
#[derive(Debug)]
pub struct Found {
    /// The last part of its prefix.
    pub name: String,
    /// Its URL.
    pub url: String,
    /// Its description, or why there is none.
    pub about: Result<About, Error>,
}

/// The description of a volume.
#[derive(Debug)]
pub struct About {
    /// Its UUID in the store.
    pub uuid: [u8; 16],
    /// Whether its objects are sealed.
    pub is_encrypted: bool,
    /// Whether its deletion has begun, and is in progress or was interrupted.
    pub is_being_deleted: bool,
    /// Whether it was completed; otherwise a program is making it, or was interrupted. `None` if the
    /// volume is sealed, and its secret is missing.
    pub is_complete: Option<bool>,
    /// Its size in bytes, unless that is sealed, or the volume was not completed.
    pub size_bytes: Option<u64>,
    /// Whether a program has it open for writing.
    pub in_use: InUse,
    /// The creation of its last record, by the clock of the store: the last sync, opening or closing.
    pub changed: Option<SystemTime>,
}

/// Whether a program has a volume open for writing.
#[derive(Debug, PartialEq, Eq)]
pub enum InUse {
    /// It was closed.
    No,
    /// It was not closed; with the mark of the program that opened it, if that is cheap to read.
    Yes(Option<(Holder, Standing)>),
    /// The answer is sealed.
    Sealed,
}

/// Lists the names below a place.
///
/// # Errors
///
/// Errors of the store about the listing. Those about one volume are in its entry.
pub fn list(above: &Location) -> Result<Listing, Error> {
    let store = above.connect()?;
    let names = match above.directory() {
        Some(directory) => folders_of(&directory, above)?,
        None => store.folders()?,
    };
    let (next, all) = (AtomicUsize::new(0), Mutex::new(Vec::new()));
    let ask = || {
        while let Some(name) = names.get(next.fetch_add(1, Ordering::Relaxed)) {
            let place = above.below(name);
            let about = place.connect().and_then(|store| about(Arc::new(store)));
            let found = (name.clone(), place.to_string(), about.transpose());
            all.lock().unwrap_or_else(PoisonError::into_inner).push(found);
        }
    };
    thread::scope(|scope| (0..AT_ONCE.min(names.len())).for_each(|_| drop(scope.spawn(ask))));
    let mut all = all.into_inner().unwrap_or_else(PoisonError::into_inner);
    all.sort_by(|one, other| one.0.cmp(&other.0));
    let mut listing = Listing { volumes: Vec::new(), others: Vec::new() };
    for (name, url, about) in all {
        match about {
            Some(about) => listing.volumes.push(Found { name, url, about }),
            None => listing.others.push(name),
        }
    }
    Ok(listing)
}

/// The directories in a directory. Names that no URL can have are left out; no volume has one.
fn folders_of(directory: &HostPath, place: &Location) -> Result<Vec<String>, Error> {
    let wrong = |error: io::Error| Error::Url { url: place.to_string(), why: error.to_string() };
    let entries = match fs::read_dir(directory) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        entries => entries.map_err(wrong)?,
    };
    let mut names = Vec::new();
    for entry in entries {
        let entry = entry.map_err(wrong)?;
        if let Ok(name) = entry.file_name().into_string()
            && !name.contains(|letter: char| letter.is_ascii_control())
            && entry.path().is_dir()
        {
            names.push(name);
        }
    }
    Ok(names)
}

/// Describes the volume; `None` if the place has none.
fn about(store: Arc<Store>) -> Result<Option<About>, Error> {
    let Some(marker) = unlock::find_marker(&store)? else { return Ok(None) };
    let encoded = marker.encoded(&store)?;
    let (uuid, is_encrypted) = (encoded.uuid(), matches!(encoded, Encoded::Sealed { .. }));
    let mut about = About {
        uuid,
        is_encrypted,
        is_being_deleted: marker.is_tombstone,
        is_complete: Some(true),
        size_bytes: None,
        in_use: InUse::No,
        changed: None,
    };
    if marker.is_tombstone {
        return Ok(Some(about));
    }
    let format = match encoded {
        Encoded::Plain(format) => Some(format),
        Encoded::Sealed { .. } if store.secret().is_none() => None,
        encoded => match unlock::open(&store, encoded) {
            Err(Error::Secret { .. }) => None,
            format => Some(format?),
        },
    };
    let last = Last::of(&store)?;
    about.changed = last.made;
    match format {
        Some(format) => {
            let record = last.slot.map(|slot| history::read_record(&store, slot)).transpose()?;
            let record = record.map(|(record, _)| record);
            (about.size_bytes, about.in_use) = last.state(&store, &format, record.as_ref())?;
            about.is_complete = Some(last.is_complete(&store, record.as_ref())?);
        }
        None => (about.in_use, about.is_complete) = (InUse::Sealed, None),
    }
    Ok(Some(about))
}

/// The end of a volume's history, by the names of objects.
struct Last {
    /// The newest map, and its length.
    map: Option<(String, u64)>,
    /// The slot of the last record.
    slot: Option<u64>,
    /// The creation of the newest of both.
    made: Option<SystemTime>,
}

impl Last {
    fn of(store: &Store) -> Result<Last, Error> {
        let map = newest_of(store, "map", None)?;
        // The record of a map's slot is never deleted before the next map.
        let slot = map.as_ref().and_then(|map| format::slot_of_map(&map.name)).unwrap_or(0);
        let before = format::record_name(slot.saturating_sub(1));
        let newest = newest_of(store, "log", Some(&before))?;
        let made = newest.as_ref().or(map.as_ref()).map(|listed| listed.made);
        let slot = newest.and_then(|record| format::slot_of_record(&record.name));
        Ok(Last { map: map.map(|map| (map.name, map.bytes)), slot, made })
    }

    /// The size of the volume, and whether it is in use.
    fn state(
        &self,
        store: &Arc<Store>,
        format: &Format,
        record: Option<&Record>,
    ) -> Result<(Option<u64>, InUse), Error> {
        let Some(record) = record else {
            // A clone that was not opened yet has only a map.
            let Some((map, _)) = &self.map else { return Ok((None, InUse::No)) };
            let head = store.get(map, Some(0..Record::head_bytes(0) as u64))?;
            return Ok((Record::size_of(&head), InUse::No));
        };
        let size_bytes = Some(record.size_bytes).filter(|bytes| *bytes > 0);
        if record.kind == Kind::Release {
            return Ok((size_bytes, InUse::No));
        }
        let holder = self.holder(store, format, record.term);
        let standing = |holder: Holder| {
            let standing = SystemHost.standing(&holder);
            (holder, standing)
        };
        Ok((size_bytes, InUse::Yes(holder.map(standing))))
    }

    /// Whether the volume was completed. One that was released once, and a clone, have a map.
    fn is_complete(&self, store: &Store, record: Option<&Record>) -> Result<bool, Error> {
        if self.map.is_some() || record.is_some_and(|record| !record.extents.is_empty()) {
            return Ok(true);
        }
        match History::read(store) {
            Err(Error::Unmade { .. }) => Ok(false),
            history => history.map(|_| true),
        }
    }

    /// The mark of the writer. It writes it with the first record after its claim, which is collected later;
    /// then the mark is found by the map, unless that is long.
    fn holder(&self, store: &Arc<Store>, format: &Format, term: u64) -> Option<Holder> {
        let of_first = || {
            let (record, _) = history::read_record(store, term + 1).ok()?;
            let mut history = History::empty(format.clone(), record.size_bytes);
            format::apply(&mut history.extents, &record.extents);
            device::holder_of(Arc::clone(store), history)
        };
        of_first().or_else(|| {
            let is_short = self.map.as_ref().is_none_or(|(_, bytes)| *bytes <= MAP_BYTES_MAX);
            let history = if is_short { History::read(store).ok() } else { None };
            device::holder_of(Arc::clone(store), history?)
        })
    }
}

/// The object with the highest name in a folder, after `after`.
fn newest_of(store: &Store, folder: &str, after: Option<&str>) -> Result<Option<Listed>, Error> {
    let mut newest: Option<Listed> = None;
    store.list(folder, after, |listed| {
        let is_newer = newest.as_ref().is_none_or(|newest| newest.name < listed.name);
        if is_newer && format::is_object(&listed.name) {
            newest = Some(listed);
        }
    })?;
    Ok(newest)
}
