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

/// The access of a program to a volume. The next program opens the volume with it while all others are
/// refused.
pub struct Succession {
    /// The term that the next program ends by its claim; `None` if the volume is only read.
    pub term: Option<Term>,
    /// The data key of an encrypted volume. The secret that wraps it may have been replaced since.
    pub(crate) key: Option<DataKey>,
}

impl Succession {
    /// Opens the encrypted volume; `None` if it is not encrypted.
    pub fn secret(&self) -> Option<Secret> {
        self.key.clone().map(Secret::of_volume)
    }

    /// Encodes it. The bytes contain the data key.
    pub fn encode(&self) -> Zeroizing<Vec<u8>> {
        let mut out = Zeroizing::new(vec![self.term.is_some().into(), self.key.is_some().into()]);
        if let Some(Term { uuid, slot }) = self.term {
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
        let [has_term, has_key] = reader.array()?.map(|byte: u8| byte != 0);
        let term =
            has_term.then(|| Ok::<_, String>(Term { uuid: reader.array()?, slot: reader.u64()? }));
        let term = term.transpose()?;
        let key = has_key.then(|| reader.array().map(Zeroizing::new)).transpose()?;
        match reader.rest() {
            [] => Ok(Succession { term, key }),
            _ => Err(String::from("it is too long")),
        }
    }
}
