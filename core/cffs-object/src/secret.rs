//! The secret of an encrypted volume, and the data key that it wraps (decision 027). No I/O.
//!
//! ```text
//!   secret ─ Argon2id, if it is a passphrase ─▶ HKDF-Extract ─┬─ "cffs wrap 1" ───▶ seals the data key
//!                                                (salt)       └─ "cffs commit 1" ─▶ is compared first
//! ```
//!
//! AES-GCM lets an attacker craft one ciphertext that several keys open, and so test several passphrases at
//! once. The commitment prevents that: only one secret matches it.

use argon2::{Algorithm, Argon2, Params, Version};
use ring::aead::{AES_256_GCM, Aad, LessSafeKey, NONCE_LEN, Nonce, UnboundKey};
use ring::hkdf::{HKDF_SHA256, Prk, Salt};
use zeroize::Zeroizing;

use crate::reader::Reader;
use crate::vault::{self, DataKey, KEY_BYTES, Owner};

const SALT_BYTES: usize = 16;
const COMMITMENT_BYTES: usize = 32;
const TAG_BYTES: usize = 16;
const WRAPPED_BYTES: usize = KEY_BYTES + TAG_BYTES;
/// Number of hexadecimal digits of a key.
const DIGITS: usize = 2 * KEY_BYTES;
const CIPHER_AES_256_GCM: u8 = 1;
/// Shorter passphrases cause a warning: an attacker with a copy of the store tries a few each second on one
/// processor, and can use many.
pub const PASSPHRASE_CHARS_MIN: usize = 12;

/// Protects a volume's data key: a key of 256 bits, or a passphrase.
#[derive(Clone)]
pub struct Secret(Kind);

#[derive(Clone)]
enum Kind {
    Key(DataKey),
    Passphrase(Zeroizing<Vec<u8>>),
    /// The volume's data key, which a program got from the one that it replaces.
    OfVolume(DataKey),
}

impl std::fmt::Debug for Secret {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Secret")
    }
}

impl Secret {
    /// The secret in a file, or in the output of a command: 32 bytes that are not UTF-8 and 64 hexadecimal
    /// digits are keys; everything else is a passphrase. One newline at the end, LF or CR LF, is ignored,
    /// except in a key of 32 bytes.
    ///
    /// # Errors
    ///
    /// The reason why the bytes are no secret.
    pub fn new(bytes: Vec<u8>) -> Result<Secret, String> {
        let mut bytes = Zeroizing::new(bytes);
        let is_text = std::str::from_utf8(&bytes).is_ok();
        if let Ok(key) = <[u8; KEY_BYTES]>::try_from(&bytes[..])
            && !is_text
        {
            return Ok(Secret(Kind::Key(Zeroizing::new(key))));
        }
        if bytes.last() == Some(&b'\n') {
            bytes.pop();
            if bytes.last() == Some(&b'\r') {
                bytes.pop();
            }
        }
        if bytes.is_empty() {
            return Err(String::from("it is empty"));
        }
        Ok(Secret(match digits(&bytes) {
            Some(key) => Kind::Key(key),
            None => Kind::Passphrase(bytes),
        }))
    }

    /// The data key of a volume. It opens the volume, whichever secret wraps the key, and wraps no other.
    pub(crate) fn of_volume(key: DataKey) -> Secret {
        Secret(Kind::OfVolume(key))
    }

    /// Whether Argon2id derives a key from it.
    pub fn is_passphrase(&self) -> bool {
        matches!(self.0, Kind::Passphrase(_))
    }

    /// Whether it is a passphrase with fewer than [`PASSPHRASE_CHARS_MIN`] characters.
    pub fn is_short(&self) -> bool {
        match &self.0 {
            Kind::Key(_) | Kind::OfVolume(_) => false,
            Kind::Passphrase(text) => {
                String::from_utf8_lossy(text).chars().count() < PASSPHRASE_CHARS_MIN
            }
        }
    }

    /// Whether it is a passphrase that looks like a part of a key, or more than one: only hexadecimal digits,
    /// and more than a passphrase would have.
    pub fn looks_like_key(&self) -> bool {
        match &self.0 {
            Kind::Key(_) | Kind::OfVolume(_) => false,
            Kind::Passphrase(text) => text.len() > 40 && text.iter().all(u8::is_ascii_hexdigit),
        }
    }

    /// The root of the keys derived from this secret.
    fn root(&self, cost: Option<Cost>, salt: &[u8; SALT_BYTES]) -> Result<Prk, WrongSecret> {
        let extract = |key: &[u8]| Salt::new(HKDF_SHA256, salt).extract(key);
        match (&self.0, cost) {
            (Kind::Key(key), None) => Ok(extract(&key[..])),
            (Kind::Passphrase(text), Some(cost)) => Ok(extract(&cost.derive(text, salt)[..])),
            (Kind::Key(_), Some(_)) => Err(WrongSecret::IsPassphrase),
            (Kind::Passphrase(_), None) => Err(WrongSecret::IsKey),
            (Kind::OfVolume(_), _) => Err(WrongSecret::Another),
        }
    }
}

/// The key that hexadecimal digits stand for.
fn digits(bytes: &[u8]) -> Option<DataKey> {
    let mut key = Zeroizing::new([0; KEY_BYTES]);
    if bytes.len() != DIGITS {
        return None;
    }
    for (byte, pair) in key.iter_mut().zip(bytes.chunks(2)) {
        let digit = |digit: u8| char::from(digit).to_digit(16);
        *byte = (digit(pair[0])? << 4 | digit(pair[1])?) as u8;
    }
    Some(key)
}

/// Why a secret does not open a volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum WrongSecret {
    /// It is another one.
    #[error("this is not its key or passphrase")]
    Another,
    /// A key was given, and the volume has a passphrase.
    #[error("it has a passphrase, not a key")]
    IsPassphrase,
    /// A passphrase was given, and the volume has a key.
    #[error("it has a key of 32 bytes, not a passphrase")]
    IsKey,
}

/// The cost of Argon2id.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cost {
    /// Memory in KiB.
    pub memory_kib: u32,
    /// Passes over it.
    pub passes: u32,
    /// Lanes, which could be computed in parallel.
    pub lanes: u32,
}

impl Cost {
    /// The second recommendation of RFC 9106.
    pub const RECOMMENDED: Cost = Cost { memory_kib: 64 << 10, passes: 3, lanes: 4 };
    #[cfg(test)]
    const CHEAP: Cost = Cost { memory_kib: 64, passes: 1, lanes: 1 };

    /// Checks the bounds: the store, which may be an attacker, has the cost.
    fn check(self) -> Result<Cost, String> {
        let Cost { memory_kib, passes, lanes } = self;
        let is_fit = (1..=8).contains(&passes)
            && (1..=16).contains(&lanes)
            && (8 * lanes..=512 << 10).contains(&memory_kib);
        is_fit.then_some(self).ok_or_else(|| {
            format!("Argon2id with {memory_kib} KiB, {passes} passes and {lanes} lanes, which are out of bounds")
        })
    }

    fn derive(self, passphrase: &[u8], salt: &[u8]) -> DataKey {
        let mut key = Zeroizing::new([0; KEY_BYTES]);
        let params = Params::new(self.memory_kib, self.passes, self.lanes, Some(KEY_BYTES));
        let argon =
            Argon2::new(Algorithm::Argon2id, Version::V0x13, params.expect("checked bounds"));
        argon.hash_password_into(passphrase, salt, &mut key[..]).expect("checked bounds");
        key
    }
}

/// A data key, sealed with a secret.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Wrapped {
    /// The cost of deriving a key from the passphrase; `None` if the secret is a key.
    pub cost: Option<Cost>,
    salt: [u8; SALT_BYTES],
    commitment: [u8; COMMITMENT_BYTES],
    nonce: [u8; NONCE_LEN],
    sealed: [u8; WRAPPED_BYTES],
}

impl Wrapped {
    /// The length of its encoding.
    pub const BYTES: usize = 16 + SALT_BYTES + COMMITMENT_BYTES + NONCE_LEN + WRAPPED_BYTES;

    /// Seals the data key of a volume.
    pub fn new(secret: &Secret, key: &DataKey, owner: &Owner) -> Wrapped {
        #[cfg(test)]
        let cost = Cost::CHEAP;
        #[cfg(not(test))]
        let cost = Cost::RECOMMENDED;
        let mut wrapped = Wrapped {
            cost: secret.is_passphrase().then_some(cost),
            salt: [0; SALT_BYTES],
            commitment: [0; COMMITMENT_BYTES],
            nonce: [0; NONCE_LEN],
            sealed: [0; WRAPPED_BYTES],
        };
        vault::random(&mut wrapped.salt);
        vault::random(&mut wrapped.nonce);
        let root = secret.root(wrapped.cost, &wrapped.salt).expect("the cost fits the secret");
        wrapped.commitment = commitment(&root);
        wrapped.sealed[..KEY_BYTES].copy_from_slice(&key[..]);
        let nonce = Nonce::assume_unique_for_key(wrapped.nonce);
        let aad = Aad::from(wrapped.bound(owner));
        let sealed = wrapping_key(&root).seal_in_place_separate_tag(
            nonce,
            aad,
            &mut wrapped.sealed[..KEY_BYTES],
        );
        wrapped.sealed[KEY_BYTES..].copy_from_slice(sealed.expect("a key is short").as_ref());
        wrapped
    }

    /// The data key.
    ///
    /// # Errors
    ///
    /// The secret is another one, or the object was changed.
    pub fn open(&self, secret: &Secret, owner: &Owner) -> Result<DataKey, WrongSecret> {
        // A wrong key is noticed, since it does not open the rest of the identity.
        if let Kind::OfVolume(key) = &secret.0 {
            return Ok(key.clone());
        }
        let root = secret.root(self.cost, &self.salt)?;
        // The commitment is no secret, so the time of this comparison may depend on it.
        if commitment(&root) != self.commitment {
            return Err(WrongSecret::Another);
        }
        let mut sealed = Zeroizing::new(self.sealed);
        let nonce = Nonce::assume_unique_for_key(self.nonce);
        let aad = Aad::from(self.bound(owner));
        let opened = wrapping_key(&root).open_in_place(nonce, aad, &mut sealed[..]);
        let opened = opened.map_err(|_| WrongSecret::Another)?;
        let mut key = Zeroizing::new([0; KEY_BYTES]);
        key.copy_from_slice(opened);
        Ok(key)
    }

    /// The associated data of the sealed key: the volume, and how the wrapping key is derived.
    fn bound(&self, owner: &Owner) -> Vec<u8> {
        let encoded = self.encode();
        [owner, &encoded[..16 + SALT_BYTES + COMMITMENT_BYTES]].concat()
    }

    /// Encodes it.
    pub fn encode(&self) -> Vec<u8> {
        let cost = self.cost.unwrap_or(Cost { memory_kib: 0, passes: 0, lanes: 0 });
        let mut out = vec![CIPHER_AES_256_GCM, u8::from(self.cost.is_some()), 0, 0];
        for word in [cost.memory_kib, cost.passes, cost.lanes] {
            out.extend_from_slice(&word.to_le_bytes());
        }
        out.extend_from_slice(&self.salt);
        out.extend_from_slice(&self.commitment);
        out.extend_from_slice(&self.nonce);
        out.extend_from_slice(&self.sealed);
        debug_assert_eq!(out.len(), Self::BYTES);
        out
    }

    /// Decodes it.
    pub fn decode(reader: &mut Reader<'_>) -> Result<Wrapped, String> {
        let [cipher, derivation, _, _]: [u8; 4] = reader.array()?;
        if cipher != CIPHER_AES_256_GCM {
            return Err(format!("contents in cipher {cipher}, which this program does not know"));
        }
        let cost = Cost { memory_kib: reader.u32()?, passes: reader.u32()?, lanes: reader.u32()? };
        let cost = match derivation {
            0 => None,
            1 => Some(cost.check()?),
            other => {
                return Err(format!("key derivation {other}, which this program does not know"));
            }
        };
        let (salt, commitment) = (reader.array()?, reader.array()?);
        Ok(Wrapped { cost, salt, commitment, nonce: reader.array()?, sealed: reader.array()? })
    }
}

fn commitment(root: &Prk) -> [u8; COMMITMENT_BYTES] {
    let mut commitment = [0; COMMITMENT_BYTES];
    let okm = root.expand(&[b"cffs commit 1"], HKDF_SHA256).expect("one hash is not too long");
    okm.fill(&mut commitment).expect("the length is that of the hash");
    commitment
}

fn wrapping_key(root: &Prk) -> LessSafeKey {
    let key = root.expand(&[b"cffs wrap 1"], &AES_256_GCM).expect("one key is not too long");
    LessSafeKey::new(UnboundKey::from(key))
}

#[cfg(test)]
mod tests;
