//! Sealed objects: everything that an encrypted volume keeps outside this machine, in its cache and in its
//! staging directory (decision 027). No I/O.
//!
//! ```text
//!   plain    |0 .. 16 KiB|16 .. 64 KiB|64 .. 128 KiB|128 ..     |          cut at the frames' borders
//!   sealed   |nonce 12, ciphertext, tag 16|nonce, …              28 bytes more for each frame
//! ```
//!
//! The borders include those of chunks, of requests and of the first read of a record, so a range of whole
//! frames is one range of the sealed object.
//!
//! A frame's key is derived from the volume's data key, the UUID of the volume that made the object, and the
//! object's name; the number of the frame is associated data. So a frame opens only in its place. Nonces are
//! random: one key seals at most the frames of one object, or of the objects that writers sent for one name.

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
    pub fn seal(&self, name: &str, plain: &[u8]) -> Vec<u8> {
        let key = self.key_of(&self.owner, name);
        let mut sealed = Vec::with_capacity(sealed_len(plain.len() as u64) as usize);
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
        debug_assert_eq!(sealed.len() as u64, sealed_len(plain.len() as u64));
        sealed
    }

    /// Opens a part of an object: `sealed` is what the store has of [`sealed_range`] of `wanted`. Returns the
    /// wanted bytes, or fewer if the object ends earlier.
    ///
    /// # Errors
    ///
    /// The frame that was changed, cut off, or moved here from elsewhere.
    pub fn open(
        &self,
        owner: &Owner,
        name: &str,
        wanted: &Range<u64>,
        sealed: &[u8],
    ) -> Result<Bytes, String> {
        let key = self.key_of(owner, name);
        let first = frame_of(wanted.start);
        let mut plain = Vec::with_capacity(sealed.len());
        let mut rest = sealed;
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

    fn key_of(&self, owner: &Owner, name: &str) -> LessSafeKey {
        let info = [FRAME_INFO, owner, name.as_bytes()];
        let key = self.root.expand(&info, &AES_256_GCM).expect("a key is shorter than 255 hashes");
        LessSafeKey::new(UnboundKey::from(key))
    }
}

/// Fills a buffer with random bytes.
pub fn random(bytes: &mut [u8]) {
    SystemRandom::new().fill(bytes).expect("Linux has random numbers");
}

fn aad(number: u64) -> Aad<[u8; 8]> {
    Aad::from(number.to_le_bytes())
}

/// The range of the sealed object that has a range of the plain one, which is not empty.
pub fn sealed_range(wanted: &Range<u64>) -> Range<u64> {
    debug_assert!(wanted.start < wanted.end);
    let (first, last) = (frame_of(wanted.start), frame_of(wanted.end - 1));
    // The end of a range may lie beyond all objects.
    let end = start(last + 1).saturating_add((last + 1) * ADDED_BYTES);
    start(first) + first * ADDED_BYTES..end
}

/// The length of a sealed object, from that of the plain one.
pub fn sealed_len(plain: u64) -> u64 {
    plain + frames(plain) * ADDED_BYTES
}

/// The length of the plain object, from that of the sealed one; `None` if no object has that length.
pub fn plain_len(sealed: u64) -> Option<u64> {
    let first = FIRST_BYTES + ADDED_BYTES;
    let second = FRAME_BYTES + 2 * ADDED_BYTES;
    let frames = match sealed {
        0 => 0,
        _ if sealed <= first => 1,
        _ if sealed <= second => 2,
        _ => 2 + (sealed - second).div_ceil(FRAME_BYTES + ADDED_BYTES),
    };
    let plain = sealed.checked_sub(frames * ADDED_BYTES)?;
    (sealed_len(plain) == sealed).then_some(plain)
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
