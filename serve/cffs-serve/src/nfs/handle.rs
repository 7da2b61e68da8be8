//! File handles, which clients keep and cannot forge.
//!
//! ```text
//!   version 1 │ 0 0 0 │ export, 4 │ generation, 4 │ inode, 8 │ authentication code, 16 │  36 bytes
//! ```
//!
//! The export is identified by a hash of its path, so that it does not depend on the order of exports. The
//! code is the SipHash-2-4-128 of the preceding bytes and of the volume's UUID, under a key that only the
//! server has: so no client can forge a handle of a file outside its export.
//!
//! The key is in an attribute of the root directory that no program can list, read or set, and that copies of
//! files do not have: handles stay valid after a restart of the server, and for a copy of the image.

use std::hash::Hasher;

use cffs::error::{Error, Result};
use cffs::units::InodeNo;
use cffs::vfs::types::{Attr, XattrMode};
use cffs::vfs::{Volume, own_xattr, set_own_xattr};
use siphasher::sip128::{Hasher128, SipHasher24};

#[cfg(test)]
mod tests;

/// The attribute of the root directory with the key.
pub const KEY_ATTRIBUTE: &[u8] = b"trusted.cffs.nfs.key";
pub const HANDLE_BYTES: usize = 36;

const KEY_BYTES: usize = 16;
const CODE_AT: usize = 20;
const VERSION: u8 = 1;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Target {
    /// The export through which the handle was obtained.
    pub export: u32,
    pub ino: InodeNo,
    /// Distinguishes the inode from earlier ones with the same number.
    pub generation: u32,
}

/// Encodes and decodes the handles of one volume.
pub struct Handles {
    key: [u8; KEY_BYTES],
    uuid: [u8; 16],
}

impl Handles {
    /// The handles of this volume. Creates the key if there is none; on a read-only volume without a key,
    /// handles are valid only for this server.
    ///
    /// # Errors
    ///
    /// Errors of reading and writing the attribute, and of the system's random numbers.
    pub fn of(volume: &Volume) -> Result<Handles> {
        let uuid = volume.writer().superblock.get().uuid;
        match own_xattr(volume, InodeNo::ROOT, KEY_ATTRIBUTE) {
            Ok(key) => {
                let key = key.try_into().map_err(|_| {
                    Error::Invalid(
                        "the NFS handle key is not 16 bytes long; remove it with setfattr -x",
                    )
                })?;
                return Ok(Handles { key, uuid });
            }
            Err(Error::NoAttribute) => {}
            Err(error) => return Err(error),
        }
        let mut key = [0; KEY_BYTES];
        random(&mut key)?;
        match set_own_xattr(volume, InodeNo::ROOT, KEY_ATTRIBUTE, &key, XattrMode::Create) {
            Ok(()) => volume.sync_file(InodeNo::ROOT, false)?,
            Err(Error::ReadOnly) => {
                tracing::warn!("the volume has no key for NFS handles: they end with this server");
            }
            Err(error) => return Err(error),
        }
        Ok(Handles { key, uuid })
    }

    /// The handles of this volume with the key of another server.
    pub fn with_key(volume: &Volume, key: [u8; KEY_BYTES]) -> Handles {
        Handles { key, uuid: volume.writer().superblock.get().uuid }
    }

    pub fn key(&self) -> [u8; KEY_BYTES] {
        self.key
    }

    /// The number of an export in handles.
    pub fn export_id(&self, path: &str) -> u32 {
        let mut hasher = SipHasher24::new_with_key(&self.key);
        hasher.write(path.as_bytes());
        hasher.finish128().h1 as u32
    }

    pub fn make(&self, export: u32, attr: &Attr) -> [u8; HANDLE_BYTES] {
        let mut handle = [0; HANDLE_BYTES];
        handle[0] = VERSION;
        handle[4..8].copy_from_slice(&export.to_be_bytes());
        handle[8..12].copy_from_slice(&attr.generation.to_be_bytes());
        handle[12..CODE_AT].copy_from_slice(&attr.ino.0.to_be_bytes());
        let code = self.code(&handle[..CODE_AT]);
        handle[CODE_AT..].copy_from_slice(&code);
        handle
    }

    /// Decodes a handle; `None` if no server of this volume made it.
    pub fn read(&self, handle: &[u8]) -> Option<Target> {
        let handle: &[u8; HANDLE_BYTES] = handle.try_into().ok()?;
        let code = self.code(&handle[..CODE_AT]);
        // Compares all bytes, so that the time does not reveal the first difference.
        let differs = code.iter().zip(&handle[CODE_AT..]).fold(0, |sum, (a, b)| sum | (a ^ b));
        if differs != 0 || handle[0] != VERSION {
            return None;
        }
        let number = |at| u32::from_be_bytes(std::array::from_fn(|i| handle[at + i]));
        let ino = InodeNo(u64::from(number(12)) << 32 | u64::from(number(16)));
        Some(Target { export: number(4), generation: number(8), ino })
    }

    fn code(&self, bytes: &[u8]) -> [u8; 16] {
        let mut hasher = SipHasher24::new_with_key(&self.key);
        hasher.write(&self.uuid);
        hasher.write(bytes);
        hasher.finish128().as_u128().to_be_bytes()
    }
}

/// Fills the slice with random bytes from the system.
pub fn random(mut bytes: &mut [u8]) -> Result<()> {
    use rustix::rand::{GetRandomFlags, getrandom};
    while !bytes.is_empty() {
        let count = getrandom(&mut *bytes, GetRandomFlags::empty())
            .map_err(|errno| Error::Io(errno.into()))?;
        bytes = &mut bytes[count..];
    }
    Ok(())
}
