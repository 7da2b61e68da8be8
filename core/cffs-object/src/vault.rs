//! Sealed objects: everything that an encrypted volume keeps outside this machine, in its cache and in its
//! staging directory (decision 027). No I/O.
//!
//! ```text
//!   plain    |0 .. 16 KiB|16 .. 64 KiB|64 .. 128 KiB|128 ..     |          cut at the frames' borders
//!   sealed   |instance 4|nonce 12, ciphertext, tag 16|nonce, …    28 bytes more for each frame
//! ```
//!
//! The borders include those of chunks, of requests and of the first read of a record, so a range of whole
//! frames is one range of the sealed object.
//!
//! A frame's key is derived from the volume's data key, the UUID of the volume that made the object, the
//! object's name and its instance; the number of the frame is associated data. So a frame opens only in its
//! place. The instance distinguishes objects that were sealed for one name: it is random, and where extents
//! refer to an object they have it, in the object's number (see [`Object`](crate::format::Object)). Nonces
//! are random as well: one key seals at most the frames of one object, again for each attempt to send it.

use std::fmt;
use std::ops::Range;

use bytes::Bytes;
use ring::aead::{AES_256_GCM, Aad, LessSafeKey, NONCE_LEN, Nonce, UnboundKey};
use ring::hkdf::{HKDF_SHA256, Prk, Salt};
use ring::rand::{SecureRandom, SystemRandom};
use zeroize::Zeroizing;

/// The length of the first frame: that of the first read of a record.
const FIRST_BYTES: u64 = 16 << 10;
/// The borders of all later frames are multiples of this.
const FRAME_BYTES: u64 = 64 << 10;
/// The bytes that sealing adds to a frame.
const ADDED_BYTES: u64 = (NONCE_LEN + 16) as u64;
const FRAME_INFO: &[u8] = b"cffs frame 1";

/// The length of a data key, in bytes.
pub const KEY_BYTES: usize = 32;
/// The data key of a volume, which its clones share.
pub type DataKey = Zeroizing<[u8; KEY_BYTES]>;

/// The owner of an object: the UUID of the volume that made it.
pub type Owner = [u8; 16];

/// The length of an instance at the beginning of a sealed object.
const INSTANCE_BYTES: u64 = 4;

/// The instance of an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Instance {
    /// Part of its name, or not needed.
    Named,
    /// At its beginning, which must be this one.
    Known(u32),
    /// At its beginning. Only ranges from there on can be opened.
    Leading,
}

impl Instance {
    /// The bytes that it takes in the object.
    fn bytes(self) -> u64 {
        if self == Instance::Named { 0 } else { INSTANCE_BYTES }
    }
}

/// Seals and opens the objects of a volume and of its origins.
pub struct Vault {
    key: DataKey,
    root: Prk,
    owner: Owner,
}

impl fmt::Debug for Vault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Vault")
    }
}

impl Vault {
    /// The vault of a volume with this UUID.
    pub fn new(key: DataKey, owner: Owner) -> Vault {
        let root = Salt::new(HKDF_SHA256, &[]).extract(&key[..]);
        Vault { key, root, owner }
    }

    /// A new data key.
    pub fn new_key() -> DataKey {
        let mut key = Zeroizing::new([0; KEY_BYTES]);
        random(&mut key[..]);
        key
    }

    /// The data key.
    pub fn key(&self) -> &DataKey {
        &self.key
    }

    /// The volume.
    pub fn owner(&self) -> Owner {
        self.owner
    }

    /// Seals an object of this volume.
    pub fn seal(&self, name: &str, instance: Instance, plain: &[u8]) -> Vec<u8> {
        let len = sealed_len(plain.len() as u64, instance);
        let mut sealed = Vec::with_capacity(len as usize);
        let number = match instance {
            Instance::Named => 0,
            Instance::Known(number) => number,
            Instance::Leading => new_instance(),
        };
        if instance != Instance::Named {
            sealed.extend_from_slice(&number.to_le_bytes());
        }
        let key = self.key_of(&self.owner, name, number);
        for number in 0..frames(plain.len() as u64) {
            let frame = start(number)..start(number + 1).min(plain.len() as u64);
            let mut nonce = [0; NONCE_LEN];
            random(&mut nonce);
            sealed.extend_from_slice(&nonce);
            let from = sealed.len();
            sealed.extend_from_slice(&plain[frame.start as usize..frame.end as usize]);
            let nonce = Nonce::assume_unique_for_key(nonce);
            let tag = key.seal_in_place_separate_tag(nonce, aad(number), &mut sealed[from..]);
            let tag = tag.expect("a frame is shorter than 64 GiB");
            sealed.extend_from_slice(tag.as_ref());
        }
        debug_assert_eq!(sealed.len() as u64, len);
        sealed
    }

    /// Opens a part of an object: `sealed` is what the store has of [`sealed_range`] of `wanted`. Returns the
    /// wanted bytes, or fewer if the object ends earlier.
    ///
    /// # Errors
    ///
    /// A frame was changed, truncated, or moved here from another place.
    pub fn open(
        &self,
        owner: &Owner,
        (name, instance): (&str, Instance),
        wanted: &Range<u64>,
        sealed: &[u8],
    ) -> Result<Bytes, String> {
        let first = frame_of(wanted.start);
        let mut plain = Vec::with_capacity(sealed.len());
        let mut rest = sealed;
        let mut number = match instance {
            Instance::Known(number) => number,
            Instance::Named | Instance::Leading => 0,
        };
        if instance != Instance::Named && first == 0 && !sealed.is_empty() {
            let (leading, frames) = sealed.split_first_chunk().ok_or("it is cut off")?;
            rest = frames;
            let leading = u32::from_le_bytes(*leading);
            if instance == Instance::Leading {
                number = leading;
            } else if leading != number {
                return Err(String::from("it is another object that was sealed for this name"));
            }
        }
        assert!(instance != Instance::Leading || first == 0, "the instance is not known");
        let key = self.key_of(owner, name, number);
        for number in first.. {
            if rest.is_empty() {
                break;
            }
            let len = start(number + 1) - start(number) + ADDED_BYTES;
            let (frame, after) = rest.split_at(rest.len().min(len as usize));
            rest = after;
            let damaged = || {
                format!(
                    "frame {number} does not belong to this object, or was changed: its key does not open it"
                )
            };
            let (nonce, sealed) = frame.split_first_chunk().ok_or_else(damaged)?;
            let from = plain.len();
            plain.extend_from_slice(sealed);
            let nonce = Nonce::assume_unique_for_key(*nonce);
            let opened = key.open_in_place(nonce, aad(number), &mut plain[from..]);
            let len = opened.map_err(|_| damaged())?.len();
            plain.truncate(from + len);
        }
        let skipped = ((wanted.start - start(first)) as usize).min(plain.len());
        let len = ((wanted.end - wanted.start) as usize).min(plain.len() - skipped);
        Ok(Bytes::from(plain).slice(skipped..skipped + len))
    }

    fn key_of(&self, owner: &Owner, name: &str, instance: u32) -> LessSafeKey {
        let instance = instance.to_le_bytes();
        let info = [FRAME_INFO, owner, &instance, name.as_bytes()];
        let key = self.root.expand(&info, &AES_256_GCM).expect("a key is shorter than 255 hashes");
        LessSafeKey::new(UnboundKey::from(key))
    }
}

/// Fills a buffer with random bytes.
pub fn random(bytes: &mut [u8]) {
    SystemRandom::new().fill(bytes).expect("Linux has random numbers");
}

/// A new instance of an object, or of all objects of a term.
pub fn new_instance() -> u32 {
    let mut bytes = [0; INSTANCE_BYTES as usize];
    random(&mut bytes);
    u32::from_le_bytes(bytes)
}

fn aad(number: u64) -> Aad<[u8; 8]> {
    Aad::from(number.to_le_bytes())
}

/// The range of the sealed object that has a range of the plain one, which is not empty.
pub fn sealed_range(wanted: &Range<u64>, instance: Instance) -> Range<u64> {
    debug_assert!(wanted.start < wanted.end);
    let (first, last) = (frame_of(wanted.start), frame_of(wanted.end - 1));
    // The end of a range may be beyond all objects.
    let end = start(last + 1).saturating_add((last + 1) * ADDED_BYTES + instance.bytes());
    match first {
        // The instance belongs to the first frame.
        0 => 0..end,
        _ => start(first) + first * ADDED_BYTES + instance.bytes()..end,
    }
}

/// The length of a sealed object, from that of the plain one.
pub fn sealed_len(plain: u64, instance: Instance) -> u64 {
    plain + frames(plain) * ADDED_BYTES + instance.bytes()
}

/// The length of the plain object, from that of the sealed one; `None` if no object has that length.
pub fn plain_len(sealed: u64, instance: Instance) -> Option<u64> {
    let sealed = sealed.checked_sub(instance.bytes())?;
    let first = FIRST_BYTES + ADDED_BYTES;
    let second = FRAME_BYTES + 2 * ADDED_BYTES;
    let frames = match sealed {
        0 => 0,
        _ if sealed <= first => 1,
        _ if sealed <= second => 2,
        _ => 2 + (sealed - second).div_ceil(FRAME_BYTES + ADDED_BYTES),
    };
    let plain = sealed.checked_sub(frames * ADDED_BYTES)?;
    (plain + frames * ADDED_BYTES == sealed && self::frames(plain) == frames).then_some(plain)
}

/// The number of frames of an object.
fn frames(plain: u64) -> u64 {
    if plain == 0 { 0 } else { frame_of(plain - 1) + 1 }
}

/// The frame that has a byte.
fn frame_of(at: u64) -> u64 {
    if at < FIRST_BYTES { 0 } else { 1 + at / FRAME_BYTES }
}

/// The first byte of a frame.
fn start(frame: u64) -> u64 {
    match frame {
        0 => 0,
        1 => FIRST_BYTES,
        _ => (frame - 1).saturating_mul(FRAME_BYTES),
    }
}

#[cfg(test)]
mod tests;
