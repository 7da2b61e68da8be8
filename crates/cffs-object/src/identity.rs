//! The object `format`: the identity of a volume, which is written once, and again only when an encrypted
//! volume gets another key.
//!
//! ```text
//!   CFFSOBJ1 | checksum, 4 | UUID, 16 | sector bytes, 4 | origins: length, 4, prefix
//!   CFFSOBJ2 | checksum, 4 | UUID, 16 | wrapped data key, 124 | sealed as the object `format`:
//!                                                               sector bytes, 4 | origins: UUID, 16, length, 4, prefix
//! ```

use crate::error::Error;
use crate::history::damaged;
use crate::location::Location;
use crate::reader::{Reader, checked, with_checksum};
use crate::secret::{Secret, Wrapped};
use crate::store::Store;
use crate::vault::{DataKey, Owner, Vault};

const PLAIN_MAGIC: [u8; 8] = *b"CFFSOBJ1";
const SEALED_MAGIC: [u8; 8] = *b"CFFSOBJ2";
/// The name of the object.
pub const NAME: &str = "format";

/// A volume that another one was cloned from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Origin {
    /// Its UUID, if the volumes are encrypted; otherwise zeros.
    pub uuid: Owner,
    /// Its prefix.
    pub prefix: String,
}

/// The identity of a volume.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Format {
    /// The volume's UUID in the store, which all its records repeat.
    pub uuid: Owner,
    /// The size of an atomic write, in bytes.
    pub sector_bytes: u32,
    /// The volumes that it was cloned from, its parent first. It reads objects of theirs.
    pub origins: Vec<Origin>,
}

/// The object `format`, of which a part may be sealed.
pub enum Encoded {
    /// A volume without encryption.
    Plain(Format),
    /// An encrypted volume.
    Sealed {
        /// Its UUID.
        uuid: Owner,
        /// Its data key.
        wrapped: Wrapped,
        /// The sealed part.
        sealed: Vec<u8>,
    },
}

impl Encoded {
    /// Decodes the object.
    ///
    /// # Errors
    ///
    /// The reason why it is no such object.
    pub fn decode(bytes: &[u8]) -> Result<Encoded, String> {
        if !bytes.starts_with(&SEALED_MAGIC) {
            let mut reader = Reader::new(checked(PLAIN_MAGIC, bytes)?);
            let uuid = reader.array()?;
            return Format::decode_rest(uuid, &mut reader, |_| Ok([0; 16])).map(Encoded::Plain);
        }
        let mut reader = Reader::new(checked(SEALED_MAGIC, bytes)?);
        let uuid = reader.array()?;
        let wrapped = Wrapped::decode(&mut reader)?;
        Ok(Encoded::Sealed { uuid, wrapped, sealed: reader.rest().to_vec() })
    }

    /// The volume's UUID, which is never sealed.
    pub fn uuid(&self) -> Owner {
        match self {
            Encoded::Plain(format) => format.uuid,
            Encoded::Sealed { uuid, .. } => *uuid,
        }
    }
}

impl Format {
    /// The number of origins that an extent can distinguish.
    pub const ORIGINS_MAX: usize = 254;

    /// Encodes the object of a volume without encryption.
    pub fn encode(&self) -> Vec<u8> {
        with_checksum(PLAIN_MAGIC, &[&self.uuid[..], &self.encode_rest(|_| &[])].concat())
    }

    /// Encodes the object of an encrypted volume.
    pub fn seal(&self, vault: &Vault, wrapped: &Wrapped) -> Vec<u8> {
        let sealed = vault.seal(NAME, &self.encode_rest(|origin| &origin.uuid));
        with_checksum(SEALED_MAGIC, &[&self.uuid[..], &wrapped.encode(), &sealed].concat())
    }

    /// Opens the sealed part of the object.
    ///
    /// # Errors
    ///
    /// The part was changed.
    pub fn open(vault: &Vault, sealed: &[u8]) -> Result<Format, String> {
        let opened = vault.open(&vault.owner(), NAME, &(0..u64::MAX), sealed)?;
        Self::decode_rest(vault.owner(), &mut Reader::new(&opened), |reader| reader.array())
    }

    /// Encodes all but the UUID.
    fn encode_rest(&self, uuid_of: fn(&Origin) -> &[u8]) -> Vec<u8> {
        let mut body = self.sector_bytes.to_le_bytes().to_vec();
        for origin in &self.origins {
            body.extend_from_slice(uuid_of(origin));
            body.extend_from_slice(&(origin.prefix.len() as u32).to_le_bytes());
            body.extend_from_slice(origin.prefix.as_bytes());
        }
        body
    }

    fn decode_rest(
        uuid: Owner,
        reader: &mut Reader<'_>,
        uuid_of: fn(&mut Reader<'_>) -> Result<Owner, String>,
    ) -> Result<Format, String> {
        let sector_bytes = reader.u32()?;
        if !sector_bytes.is_power_of_two() {
            return Err(format!("sectors of {sector_bytes} bytes"));
        }
        let mut origins = Vec::new();
        while !reader.rest().is_empty() {
            let uuid = uuid_of(reader)?;
            let len = reader.u32()? as usize;
            let prefix = reader.bytes(len)?.to_vec();
            let prefix = String::from_utf8(prefix).map_err(|error| error.to_string())?;
            origins.push(Origin { uuid, prefix });
        }
        Ok(Format { uuid, sector_bytes, origins })
    }
}

/// Reads the identity of a volume, and unlocks the store of an encrypted one.
///
/// # Errors
///
/// [`Error::NoVolume`]; [`Error::NeedsSecret`], [`Error::Secret`] and [`Error::NotEncrypted`]; damage; errors of
/// the store.
pub fn read(store: &Store) -> Result<Format, Error> {
    match read_encoded(store)? {
        Encoded::Plain(_) if store.secret().is_some() => {
            Err(Error::NotEncrypted { url: store.url() })
        }
        Encoded::Plain(format) => Ok(format),
        Encoded::Sealed { uuid, wrapped, sealed } => {
            let vault = match store.vault() {
                Some(vault) => vault,
                None => store.unlock(Vault::new(open(store, &uuid, &wrapped)?, uuid)),
            };
            if vault.owner() != uuid {
                return Err(damaged(store, NAME)(String::from("it is that of another volume now")));
            }
            Format::open(vault, &sealed).map_err(damaged(store, NAME))
        }
    }
}

/// Reads the object, of which nothing sealed is opened.
///
/// # Errors
///
/// [`Error::NoVolume`]; damage; errors of the store.
pub fn read_encoded(store: &Store) -> Result<Encoded, Error> {
    let bytes = store.get(NAME, None).map_err(|error| match error.is_not_found() {
        true => Error::NoVolume { url: store.url() },
        false => error,
    })?;
    Encoded::decode(&bytes).map_err(damaged(store, NAME))
}

/// The data key of a volume, by the secret that was given.
fn open(store: &Store, uuid: &Owner, wrapped: &Wrapped) -> Result<DataKey, Error> {
    let url = || store.url();
    let secret = store.secret().ok_or_else(|| Error::NeedsSecret { url: url() })?;
    wrapped.open(secret, uuid).map_err(|why| Error::Secret { url: url(), why })
}

/// Creates the object of a new volume, with the secret that was given if there is a data key.
///
/// # Errors
///
/// [`Error::Exists`]; errors of the store.
pub fn create(store: &Store, format: &Format, key: Option<DataKey>) -> Result<(), Error> {
    let bytes = match (key, store.secret()) {
        (Some(key), Some(secret)) => {
            let wrapped = Wrapped::new(secret, &key, &format.uuid);
            format.seal(store.unlock(Vault::new(key, format.uuid)), &wrapped)
        }
        (Some(_), None) => return Err(Error::NeedsSecret { url: store.url() }),
        (None, _) => format.encode(),
    };
    let Err(error) = store.create(NAME, bytes) else { return Ok(()) };
    // The object may have been created and only the answer lost.
    match read(store).is_ok_and(|there| there == *format) {
        true => Ok(()),
        false if error.is_taken() => Err(Error::Exists { url: store.url() }),
        false => Err(error),
    }
}

/// Gives an encrypted volume another secret. The data key stays, so the old secret still opens a copy of the
/// old object.
///
/// # Errors
///
/// [`Error::NotEncrypted`], [`Error::NeedsSecret`] and [`Error::Secret`]; errors of the store. Then the volume
/// has its old secret or its new one.
pub fn rekey(location: &Location, new: &Secret) -> Result<(), Error> {
    let store = &location.connect()?;
    let Encoded::Sealed { uuid, wrapped, sealed } = read_encoded(store)? else {
        return Err(Error::NotEncrypted { url: store.url() });
    };
    let key = open(store, &uuid, &wrapped)?;
    let vault = Vault::new(key, uuid);
    let format = Format::open(&vault, &sealed).map_err(damaged(store, NAME))?;
    let bytes = format.seal(&vault, &Wrapped::new(new, vault.key(), &uuid));
    store.put(NAME, bytes)
}
