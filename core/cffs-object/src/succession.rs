//! The access to a volume that a program hands over to the one that replaces it.

use zeroize::Zeroizing;

use crate::reader::Reader;
use crate::secret::Secret;
use crate::vault::DataKey;

/// A term of a volume's writer: from a claim to the next one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Term {
    /// The volume.
    pub uuid: [u8; 16],
    /// The slot of the claim.
    pub slot: u64,
}

/// How the last program used a volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Predecessor {
    /// It read a version.
    Reader,
    /// It was the writer, in this term, which the next program ends by its claim.
    Writer(Term),
}

/// The access of a program to a volume. Only the next program, which gets it, can open the volume.
pub struct Succession {
    /// How it used the volume.
    pub predecessor: Predecessor,
    /// The data key of an encrypted volume. The secret that wraps it may have been replaced since.
    pub(crate) key: Option<DataKey>,
}

impl Succession {
    /// The secret that opens the volume; `None` if it is not encrypted.
    pub fn secret(&self) -> Option<Secret> {
        self.key.clone().map(Secret::of_volume)
    }

    /// Encodes it. The bytes contain the data key.
    pub fn encode(&self) -> Zeroizing<Vec<u8>> {
        let is_writer = self.predecessor != Predecessor::Reader;
        let mut out = Zeroizing::new(vec![is_writer.into(), self.key.is_some().into()]);
        if let Predecessor::Writer(Term { uuid, slot }) = self.predecessor {
            out.extend_from_slice(&uuid);
            out.extend_from_slice(&slot.to_le_bytes());
        }
        if let Some(key) = &self.key {
            out.extend_from_slice(&key[..]);
        }
        out
    }

    /// Decodes it.
    ///
    /// # Errors
    ///
    /// The bytes are cut off, or there are more.
    pub fn decode(bytes: &[u8]) -> Result<Succession, String> {
        let mut reader = Reader::new(bytes);
        let [is_writer, has_key] = reader.array()?.map(|byte: u8| byte != 0);
        let predecessor = match is_writer {
            true => Predecessor::Writer(Term { uuid: reader.array()?, slot: reader.u64()? }),
            false => Predecessor::Reader,
        };
        let key = has_key.then(|| reader.array().map(Zeroizing::new)).transpose()?;
        match reader.rest() {
            [] => Ok(Succession { predecessor, key }),
            _ => Err(String::from("it is too long")),
        }
    }
}
