//! Deletes a volume with all of its objects.
//!
//! ```text
//!   volume ─claim─▶ claimed ─PUT─▶ tombstone in the place of `format` ─ does a clone need objects? ─ yes ┐
//!     ▲                              │ no                                                              │
//!     │                              ▼                                                                 │
//!     │     DELETE data, snapshots, maps, log ─▶ DELETE the tombstone                                  │
//!     └──────────────────────── PUT `format` as before, release ◀──────────────────────────────────────┘
//! ```
//!
//! The tombstone contains the object `format`, so that this can be restored. While the tombstone exists, no
//! program opens or clones the volume, and another run continues the deletion.
//!
//! Invariants:
//!
//! - No object is deleted before the tombstone exists, and no clone is completed after that.
//! - The claim, or the fence of a volume whose log cannot be read, stays until the other objects are deleted:
//!   meanwhile, no writer that had the volume open adds a record.
//! - Only objects with names of this layout are deleted, and only while the tombstone exists: a volume that
//!   was made in the same place meanwhile is left alone. If an object among the versions is not one, nothing
//!   is deleted.

use std::fs;
use std::path::Path as HostPath;
use std::sync::Arc;
use std::time::Instant;

use bytes::Bytes;

use crate::chunks::Chunks;
use crate::commit;
use crate::device::{self, COMMAND_PATIENCE};
use crate::error::Error;
use crate::format::{self, IDENTITY, TAKE_OVER};
use crate::history::History;
use crate::identity;
use crate::location::Location;
use crate::store::Store;
use crate::unlock::{self, Marker};
use crate::versions;
use crate::writer::{self, Claimed, OpenOptions};

/// The number of objects that are deleted between two checks that the tombstone exists.
const AT_ONCE: usize = 1000;
/// How often to try to get a slot for the fence: a writer that commits without pause takes the slots first.
const FENCE_TRIES: usize = 100;
/// How much of an object is read to see that it is a version.
const MAGIC_BYTES: u64 = 8;
/// The text of the fence.
const FENCE: &[u8] = b"the volume was deleted by cffs destroy";
/// The length of the fence: a shorter object would be a record that is cut off.
const FENCE_BYTES: usize = 128;

/// How a volume is deleted.
#[derive(Clone, Copy, Debug, Default)]
pub struct DestroyOptions {
    /// Take the volume over from a program that has not closed it.
    pub take_over: bool,
    /// Delete the volume even if its log cannot be read, because it is damaged or its key is missing, or if
    /// it is not complete.
    pub force: bool,
    /// Called with the reason why the deletion waits, or with what cannot be checked, to show it to the user.
    pub note: Option<fn(&str)>,
}

/// The volume to delete.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Doomed {
    /// Its kept versions, by name.
    pub versions: Vec<String>,
    /// Whether an earlier deletion was interrupted.
    pub was_begun: bool,
}

/// The deleted objects.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Destroyed {
    /// Their number.
    pub objects: u64,
    /// Their length in bytes.
    pub bytes: u64,
    /// Whether the last program that wrote the volume had a staging directory.
    pub had_staging: bool,
}

/// Examines the volume, and changes nothing.
///
/// # Errors
///
/// [`Error::IsVersion`]; [`Error::NoVolume`]; errors of the store.
pub fn look(location: &Location) -> Result<Doomed, Error> {
    let store = connect(location)?;
    let marker = unlock::marker(&store)?;
    let names = store.list_after("snapshots", "snapshots")?;
    let versions = names.iter().filter(|name| format::is_object(name) && !name.contains('@'));
    let versions = versions.filter_map(|name| name.strip_prefix("snapshots/"));
    Ok(Doomed { versions: versions.map(str::to_owned).collect(), was_begun: marker.is_tombstone })
}

/// Deletes a volume with its versions.
///
/// # Errors
///
/// [`Error::IsVersion`]; [`Error::NoVolume`]; [`Error::Claimed`]; [`Error::HasClone`]; [`Error::Contains`];
/// damage, and a missing key, unless it is forced; errors of the store. Then nothing was deleted, except with
/// [`Error::Unfinished`]: then another call finishes it.
pub fn destroy(location: &Location, options: &DestroyOptions) -> Result<Destroyed, Error> {
    let store = Arc::new(connect(location)?);
    let marker = unlock::marker(&store)?;
    check_inside(location, &store)?;
    let unknown = check_clones(location, &store, &marker, options)?;
    if let (Some(unknown), Some(note)) = (unknown, options.note) {
        note(&format!(
            "cannot check whether a clone reads objects of {location} ({unknown}); if one does, it loses \
             their data"
        ));
    }
    let unfinished =
        |cause| Error::Unfinished { url: location.to_string(), cause: Box::new(cause) };
    let tombstone = Bytes::from(identity::encode_tombstone(&marker.format));
    let mut had_staging = false;
    if !marker.is_tombstone {
        let (held, is_staging) = claim(&store, options)?;
        had_staging = is_staging;
        let ready = check_versions(&store, options)
            .and_then(|()| commit::put(&store, IDENTITY, &tombstone, Some(COMMAND_PATIENCE)))
            .and_then(|()| check_clones(location, &store, &marker, options).map(drop));
        if let Err(error) = ready {
            return Err(match put_back(&store, &marker, held) {
                Ok(()) => error,
                Err(_) => unfinished(error),
            });
        }
    }
    let mut destroyed = delete_all(&store, &tombstone).map_err(unfinished)?;
    destroyed.had_staging = had_staging;
    if let Some(directory) = location.directory() {
        remove_directories(&directory);
    }
    Ok(destroyed)
}

fn connect(location: &Location) -> Result<Store, Error> {
    match location.version() {
        Some(name) => Err(Error::IsVersion { url: location.volume_url(), name: name.to_owned() }),
        None => location.connect(),
    }
}

/// Fails if another volume has the place of the versions.
fn check_inside(location: &Location, store: &Store) -> Result<(), Error> {
    let inside = format::snapshot_name(IDENTITY);
    let bytes = match store.get(&inside, None) {
        Err(error) if error.is_not_found() => return Ok(()),
        bytes => bytes?,
    };
    if identity::is_identity(&bytes) || identity::decode_tombstone(&bytes).is_some() {
        return Err(Error::Contains { url: location.to_string() });
    }
    Ok(())
}

/// Fails if an object has the name of a version but is not one. This cannot be checked without the key, which
/// may be missing if the deletion is forced.
fn check_versions(store: &Store, options: &DestroyOptions) -> Result<(), Error> {
    if options.force {
        return Ok(());
    }
    let names = store.list_after("snapshots", "snapshots")?;
    for name in names.iter().filter(|name| format::is_object(name)) {
        let is_version = match store.get(name, Some(0..MAGIC_BYTES)) {
            Err(error) if error.is_not_found() => true,
            Err(Error::Damaged { .. }) => false,
            bytes => format::is_record(&bytes?),
        };
        if !is_version {
            let why = "it is not a version of this volume: move or delete it first";
            return Err(store.damaged(name)(String::from(why)));
        }
    }
    Ok(())
}

/// Fails if a clone reads objects of this volume. If that cannot be determined, because the key is missing or
/// objects are damaged, it fails unless the deletion is forced; then returns the reason.
fn check_clones(
    location: &Location,
    store: &Store,
    marker: &Marker,
    options: &DestroyOptions,
) -> Result<Option<Error>, Error> {
    let names = store.list_after("snapshots", "snapshots")?;
    let kept: Vec<_> =
        names.iter().filter(|name| format::is_object(name) && name.contains('@')).collect();
    let mut unknown = None;
    let mut unless_forced = |error| match error {
        Error::NeedsSecret { .. } | Error::Secret { .. } | Error::Damaged { .. }
            if options.force =>
        {
            unknown.get_or_insert(error);
            Ok(None)
        }
        error => Err(error),
    };
    if !kept.is_empty() {
        let opened = marker.encoded(store).and_then(|encoded| unlock::open(store, encoded));
        opened.map(|_| None).or_else(&mut unless_forced)?;
    }
    for name in kept {
        let clone = versions::clone_for(location, store, name).or_else(&mut unless_forced)?;
        if let Some(clone) = clone {
            return Err(Error::HasClone { url: location.to_string(), clone: clone.to_string() });
        }
    }
    Ok(unknown)
}

/// The object that keeps writers out.
enum Held {
    /// A claim of this run.
    Claim(Box<Claimed>),
    /// The fence with this name.
    Fence(String),
}

/// Claims the volume, and returns whether its last writer had a staging directory. If its log cannot be read,
/// and the deletion is forced, excludes writers without a claim.
fn claim(store: &Arc<Store>, options: &DestroyOptions) -> Result<(Held, bool), Error> {
    let history = match History::read_to_claim(store) {
        Err(
            Error::NeedsSecret { .. }
            | Error::Secret { .. }
            | Error::Damaged { .. }
            | Error::Unmade { .. },
        ) if options.force => {
            return Ok((Held::Fence(fence(store)?), false));
        }
        history => history?,
    };
    let had_staging = history.is_staging;
    let open = OpenOptions {
        take_over: options.take_over,
        patience: Some(COMMAND_PATIENCE),
        note: options.note,
        ..OpenOptions::default()
    };
    match writer::claim(store, history, &open) {
        Err(Error::Claimed { term, is_staging, .. }) => {
            Err(device::claimed(term, Arc::clone(store), is_staging))
        }
        claimed => Ok((Held::Claim(Box::new(claimed?)), had_staging)),
    }
}

/// Puts an object that is not a record into the next slot, and returns its name. A writer that finds it there
/// stops writing.
fn fence(store: &Store) -> Result<String, Error> {
    let mut fence = FENCE.to_vec();
    fence.resize(FENCE_BYTES, b' ');
    let began = Instant::now();
    for _ in 0..FENCE_TRIES {
        let names = store.list_after("log", "log")?;
        let slots = names.iter().filter_map(|name| format::slot_of_record(name));
        let name = format::record_name(slots.max().unwrap_or(0) + 1);
        match store.create(&name, fence.clone()) {
            Err(error) if error.is_taken() => continue,
            created => created?,
        }
        if store.list_after("log", &name)?.is_empty() {
            return Ok(name);
        }
    }
    Err(Error::Busy { seconds: began.elapsed().as_secs() })
}

/// Restores the identity of the volume, and admits other writers.
fn put_back(store: &Arc<Store>, marker: &Marker, held: Held) -> Result<(), Error> {
    commit::put(store, IDENTITY, &marker.format, Some(COMMAND_PATIENCE))?;
    let claimed = match held {
        Held::Claim(claimed) => claimed,
        Held::Fence(name) => return store.delete(&[name]),
    };
    let chunks = Arc::new(Chunks::new(Arc::clone(store), claimed.format()));
    let options = OpenOptions { patience: Some(COMMAND_PATIENCE), ..OpenOptions::default() };
    let (writer, _) = claimed.into_writer(Arc::clone(store), chunks, options)?;
    writer.release(false)
}

/// Deletes the objects, and then the tombstone.
fn delete_all(store: &Store, tombstone: &Bytes) -> Result<Destroyed, Error> {
    let mut destroyed = Destroyed::default();
    for folder in ["data", "snapshots", "probe", "map", "log"] {
        let mut names = Vec::new();
        store.list(folder, None, |listed| {
            if format::is_object(&listed.name) {
                destroyed.objects += 1;
                destroyed.bytes += listed.bytes;
                names.push(listed.name);
            }
        })?;
        for names in names.chunks(AT_ONCE) {
            delete(store, tombstone, names)?;
        }
    }
    delete(store, tombstone, &["head", TAKE_OVER].map(str::to_owned))?;
    delete(store, tombstone, &[IDENTITY.to_owned()])?;
    Ok(destroyed)
}

/// Deletes objects, if the tombstone is still there.
fn delete(store: &Store, tombstone: &Bytes, names: &[String]) -> Result<(), Error> {
    commit::again(store.counter(), "deleting", Some(COMMAND_PATIENCE), || {
        match store.get(IDENTITY, None) {
            // Another run has deleted everything, or this one has, and the answer was lost.
            Err(error) if error.is_not_found() => Ok(()),
            Ok(there) if there != *tombstone => Err(Error::Replaced { url: store.url() }),
            there => {
                there?;
                store.delete(names)
            }
        }
    })
}

/// Removes the directories that the client made, if they are empty.
fn remove_directories(volume: &HostPath) {
    let shards = fs::read_dir(volume.join("data")).into_iter().flatten().flatten();
    let shards = shards.map(|shard| shard.path());
    let folders = ["data", "snapshots", "probe", "map", "log", ""];
    for directory in shards.chain(folders.iter().map(|folder| volume.join(folder))) {
        // Fails if there is anything else in it.
        let _ = fs::remove_dir(directory);
    }
}
