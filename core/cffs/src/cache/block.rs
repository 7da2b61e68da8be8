//! A block in memory.

use std::ops::{Deref, DerefMut};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use crate::units::InodeNo;

/// The bytes of a block; whether they were verified as metadata, whether their first use triggers the next
/// run of a stream, and whether they were prefetched and not used yet.
#[derive(Debug)]
pub struct Block {
    bytes: Box<[u8]>,
    verified_as: AtomicU64,
    marked: AtomicBool,
    prefetched: AtomicBool,
}

impl Block {
    /// A block with these bytes, unverified.
    pub fn new(bytes: &[u8]) -> Block {
        Block::unverified(bytes.into())
    }

    /// A block of zeros.
    pub fn zeroed(len: usize) -> Block {
        Block::unverified(vec![0; len].into())
    }

    fn unverified(bytes: Box<[u8]>) -> Block {
        Block {
            bytes,
            verified_as: AtomicU64::new(0),
            marked: AtomicBool::new(false),
            prefetched: AtomicBool::new(false),
        }
    }

    /// Marks the block as prefetched.
    pub(super) fn set_prefetched(&self) {
        self.prefetched.store(true, Ordering::Relaxed);
    }

    /// Whether this use is the first one of a prefetched block.
    pub(super) fn take_prefetched(&self) -> bool {
        self.prefetched.load(Ordering::Relaxed) && self.prefetched.swap(false, Ordering::Relaxed)
    }

    /// Makes the first use of the block trigger the next run of its stream.
    pub(super) fn mark(&self) {
        self.marked.store(true, Ordering::Relaxed);
    }

    /// Whether this use is the first one of a block that triggers the next run.
    pub(super) fn take_mark(&self) -> bool {
        self.marked.load(Ordering::Relaxed) && self.marked.swap(false, Ordering::Relaxed)
    }

    /// Runs `verify` unless the block was verified before as metadata of this file. So the check costs once
    /// per read from the device, not once per use.
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

    /// Marks the block as verified: it was made here as metadata of this file.
    pub fn trust_as(&self, owner: InodeNo) {
        self.verified_as.store(owner.0, Ordering::Relaxed);
    }
}

impl Clone for Block {
    fn clone(&self) -> Block {
        let verified_as = AtomicU64::new(self.verified_as.load(Ordering::Relaxed));
        Block { verified_as, ..Block::unverified(self.bytes.clone()) }
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
