//! The object `format`: the identity of a volume. No I/O.
//!
//! ```text
//!   CFFSOBJ1 | checksum, 4 | UUID, 16 | sector bytes, 4 | origins: length, 4, prefix
//!   CFFSOBJ2 | checksum, 4 | UUID, 16 | wrapped data key, 124 | sealed as the object `format`: {
//!                sector bytes, 4 | origins: UUID, 16, length, 4, prefix }
//!   CFFSOBJX | checksum, 4 | the object before: a tombstone, while the volume is deleted
//! ```

use crate::format::IDENTITY;
use crate::reader::{Reader, checked, with_checksum};
use crate::secret::Wrapped;
use crate::vault::{Instance, Owner, Vault};

const PLAIN_MAGIC: [u8; 8] = *b"CFFSOBJ1";
const SEALED_MAGIC: [u8; 8] = *b"CFFSOBJ2";
const TOMBSTONE_MAGIC: [u8; 8] = *b"CFFSOBJX";

/// Whether an object of this name is the identity of a volume, in any version of its codec.
pub fn is_identity(bytes: &[u8]) -> bool {
    bytes.starts_with(&PLAIN_MAGIC[..PLAIN_MAGIC.len() - 1])
}

/// Encodes the object that replaces the identity while the volume is deleted.
pub fn encode_tombstone(identity: &[u8]) -> Vec<u8> {
    with_checksum(TOMBSTONE_MAGIC, identity)
}

/// The identity that a tombstone replaces, if the object is one.
///
/// # Errors
///
/// The tombstone is damaged.
pub fn decode_tombstone(bytes: &[u8]) -> Option<Result<&[u8], String>> {
    bytes.starts_with(&TOMBSTONE_MAGIC).then(|| checked(TOMBSTONE_MAGIC, bytes))
}

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
    /// The reason why it is not such an object.
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
        let sealed =
            vault.seal(IDENTITY, Instance::Leading, &self.encode_rest(|origin| &origin.uuid));
        with_checksum(SEALED_MAGIC, &[&self.uuid[..], &wrapped.encode(), &sealed].concat())
    }

    /// Opens the sealed part of the object.
    ///
    /// # Errors
    ///
    /// The part was changed.
    pub fn open(vault: &Vault, sealed: &[u8]) -> Result<Format, String> {
        let opened =
            vault.open(&vault.owner(), (IDENTITY, Instance::Leading), &(0..u64::MAX), sealed)?;
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
