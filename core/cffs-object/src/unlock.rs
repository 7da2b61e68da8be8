//! Opens and makes the identities of volumes, and with them the data keys of encrypted ones. The object is
//! written once, and again only when an encrypted volume gets another secret.

use bytes::Bytes;

use crate::error::Error;
use crate::format::IDENTITY;
use crate::identity::{self, Encoded, Format};
use crate::location::Location;
use crate::secret::{Secret, Wrapped};
use crate::store::Store;
use crate::vault::{DataKey, Owner, Vault};

/// More bytes than any identity has. A file of this name may belong to another program, and have any size.
const IDENTITY_BYTES_MAX: u64 = 64 << 10;

/// Reads the identity of a volume, and unlocks the store of an encrypted one.
///
/// # Errors
///
/// [`Error::NoVolume`]; [`Error::Deleting`]; [`Error::NeedsSecret`], [`Error::Secret`] and
/// [`Error::NotEncrypted`]; damage; errors of the store.
pub fn read(store: &Store) -> Result<Format, Error> {
    let format = read_unnoted(store)?;
    store.opened(format.uuid);
    Ok(format)
}

fn read_unnoted(store: &Store) -> Result<Format, Error> {
    open(store, read_encoded(store)?)
}

/// Opens an identity that was read, and unlocks the store of an encrypted volume.
///
/// # Errors
///
/// [`Error::NeedsSecret`], [`Error::Secret`] and [`Error::NotEncrypted`]; damage.
pub fn open(store: &Store, encoded: Encoded) -> Result<Format, Error> {
    match encoded {
        Encoded::Plain(_) if store.secret().is_some() => {
            Err(Error::NotEncrypted { url: store.url() })
        }
        Encoded::Plain(format) => Ok(format),
        Encoded::Sealed { uuid, wrapped, sealed } => {
            let vault = match store.vault() {
                Some(vault) => vault,
                None => store.unlock(Vault::new(data_key(store, &uuid, &wrapped)?, uuid)),
            };
            if vault.owner() != uuid {
                return Err(store.damaged(IDENTITY)(String::from(
                    "it is that of another volume now",
                )));
            }
            Format::open(vault, &sealed).map_err(store.damaged(IDENTITY))
        }
    }
}

/// Reads the object without opening its sealed part.
///
/// # Errors
///
/// [`Error::NoVolume`]; [`Error::Deleting`]; damage; errors of the store.
pub fn read_encoded(store: &Store) -> Result<Encoded, Error> {
    Encoded::decode(&read_bytes(store)?).map_err(store.damaged(IDENTITY))
}

/// The identity of a volume that may be partly deleted.
pub struct Marker {
    /// The object `format`, or its contents before the deletion.
    pub format: Bytes,
    /// Whether the deletion has begun.
    pub is_tombstone: bool,
}

impl Marker {
    /// The identity.
    ///
    /// # Errors
    ///
    /// It is damaged.
    pub fn encoded(&self, store: &Store) -> Result<Encoded, Error> {
        Encoded::decode(&self.format).map_err(store.damaged(IDENTITY))
    }
}

/// Reads the object, even if it is a tombstone.
///
/// # Errors
///
/// [`Error::NoVolume`]; a damaged tombstone; errors of the store.
pub fn marker(store: &Store) -> Result<Marker, Error> {
    let identity = store.get(IDENTITY, Some(0..IDENTITY_BYTES_MAX));
    let bytes = identity.map_err(|error| match error.is_not_found() {
        true => Error::NoVolume { url: store.url() },
        false => error,
    })?;
    match identity::decode_tombstone(&bytes) {
        None => Ok(Marker { format: bytes, is_tombstone: false }),
        Some(before) => {
            let before = before.map_err(store.damaged(IDENTITY))?;
            Ok(Marker { format: bytes.slice_ref(before), is_tombstone: true })
        }
    }
}

/// The same; `None` if the place has no volume. Another file of this name does not count.
///
/// # Errors
///
/// A damaged tombstone; errors of the store.
pub fn find_marker(store: &Store) -> Result<Option<Marker>, Error> {
    match marker(store) {
        Err(Error::NoVolume { .. }) => Ok(None),
        Ok(marker) if !identity::is_identity(&marker.format) => Ok(None),
        marker => marker.map(Some),
    }
}

/// The UUID of the volume at the place, even of one that is being deleted; `None` if it cannot be read.
pub fn volume_there(store: &Store) -> Option<Owner> {
    marker(store).and_then(|marker| marker.encoded(store)).ok().map(|encoded| encoded.uuid())
}

fn read_bytes(store: &Store) -> Result<Bytes, Error> {
    match marker(store)? {
        Marker { is_tombstone: true, .. } => Err(Error::Deleting { url: store.url() }),
        Marker { format, .. } => Ok(format),
    }
}

/// The data key of a volume, by the secret that was given.
fn data_key(store: &Store, uuid: &Owner, wrapped: &Wrapped) -> Result<DataKey, Error> {
    let url = || store.url();
    let secret = store.secret().ok_or_else(|| Error::NeedsSecret { url: url() })?;
    wrapped.open(secret, uuid).map_err(|why| Error::Secret { url: url(), why })
}

/// Creates the object of a new volume, with the secret that was given if there is a data key.
///
/// # Errors
///
/// [`Error::Exists`]; [`Error::Deleting`]; errors of the store.
pub fn create(store: &Store, format: &Format, key: Option<DataKey>) -> Result<(), Error> {
    let bytes = match (key, store.secret()) {
        (Some(key), Some(secret)) => {
            let wrapped = Wrapped::new(secret, &key, &format.uuid);
            format.seal(store.unlock(Vault::new(key, format.uuid)), &wrapped)
        }
        (Some(_), None) => return Err(Error::NeedsSecret { url: store.url() }),
        (None, _) => format.encode(),
    };
    let Err(error) = store.create(IDENTITY, bytes) else {
        store.opened(format.uuid);
        return Ok(());
    };
    // The object may have been created and only the answer lost.
    match read(store) {
        Ok(there) if there == *format => Ok(()),
        Err(deleting @ Error::Deleting { .. }) => Err(deleting),
        _ if error.is_taken() => Err(Error::Exists { url: store.url() }),
        _ => Err(error),
    }
}

/// Gives an encrypted volume another secret. The data key stays, so the old secret still opens a copy of
/// the old object.
///
/// # Errors
///
/// [`Error::NotEncrypted`], [`Error::NeedsSecret`] and [`Error::Secret`]; [`Error::Rekeyed`] if another
/// program replaced the object meanwhile; errors of the store. Then the
/// volume has its old secret or its new one.
pub fn rekey(location: &Location, new: &Secret) -> Result<(), Error> {
    let store = &location.connect()?;
    let before = read_bytes(store)?;
    let encoded = Encoded::decode(&before).map_err(store.damaged(IDENTITY))?;
    let Encoded::Sealed { uuid, wrapped, sealed } = encoded else {
        return Err(Error::NotEncrypted { url: store.url() });
    };
    let key = data_key(store, &uuid, &wrapped)?;
    let vault = Vault::new(key, uuid);
    let format = Format::open(&vault, &sealed).map_err(store.damaged(IDENTITY))?;
    let bytes = format.seal(&vault, &Wrapped::new(new, vault.key(), &uuid));
    // Two commands may do this at the same time, so the second check tells the loser.
    let is_there = |expected: &[u8]| Ok::<_, Error>(store.get(IDENTITY, None)? == *expected);
    if !is_there(&before)? {
        return Err(Error::Rekeyed { url: store.url() });
    }
    store.put(IDENTITY, bytes.clone())?;
    match is_there(&bytes)? {
        true => Ok(()),
        false => Err(Error::Rekeyed { url: store.url() }),
    }
}
