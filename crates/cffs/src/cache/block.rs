//! A block in memory.

use std::ops::{Deref, DerefMut};
use std::sync::atomic::{AtomicU64, Ordering};

use crate::units::InodeNo;

/// The bytes of a block, and whether they passed the checks of what they are used as.
#[derive(Debug)]
pub struct Block {
    bytes: Box<[u8]>,
    verified_as: AtomicU64,
}

impl Block {
    /// A block with these bytes, unverified.
    pub fn new(bytes: &[u8]) -> Block {
        Block { bytes: bytes.into(), verified_as: AtomicU64::new(0) }
    }

    /// A block of zeros.
    pub fn zeroed(len: usize) -> Block {
        Block { bytes: vec![0; len].into(), verified_as: AtomicU64::new(0) }
    }

    /// Runs `verify` unless the block was verified before as metadata of this file. Checking is so
    /// paid once per read from the device, not once per use.
    pub fn verify_as<E>(
        &self,
        owner: InodeNo,
        verify: impl FnOnce(&[u8]) -> Result<(), E>,
    ) -> Result<(), E> {
        if self.verified_as.load(Ordering::Relaxed) != owner.0 {
            verify(&self.bytes)?;
            self.verified_as.store(owner.0, Ordering::Relaxed);
        }
        Ok(())
    }

    /// Takes the block for verified: it was made here as metadata of this file.
    pub fn trust_as(&self, owner: InodeNo) {
        self.verified_as.store(owner.0, Ordering::Relaxed);
    }
}

impl Clone for Block {
    fn clone(&self) -> Block {
        let verified_as = AtomicU64::new(self.verified_as.load(Ordering::Relaxed));
        Block { bytes: self.bytes.clone(), verified_as }
    }
}

impl Deref for Block {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.bytes
    }
}

impl DerefMut for Block {
    fn deref_mut(&mut self) -> &mut [u8] {
        &mut self.bytes
    }
}
