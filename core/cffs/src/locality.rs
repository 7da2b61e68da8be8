//! Hashes of numbers that keep neighbours together.
//!
//! Files that were made together have adjacent numbers, as have the blocks of a file, and a caller that uses
//! one is likely to use the next. In a table with these hashes, adjacent numbers are adjacent in memory, so a
//! walk from one to the next mostly stays in the processor's cache.
//!
//! Stands on nothing.

use std::hash::{BuildHasher, Hasher};

use foldhash::fast::RandomState;

/// The length of a block of numbers that stay adjacent.
pub const NEIGHBOURS: u64 = 16;
/// Two to the 64, divided by the golden ratio.
const MULTIPLIER: u64 = 0x9E37_79B9_7F4A_7C15;
/// The bits by which `quick_cache` chooses a part of a table.
const PART_BITS: u64 = 0xFFFF << 32;

/// Makes the hashes of numbers, which differ from table to table.
#[derive(Clone, Debug)]
pub struct LocalityHash {
    salt: u64,
    apart: u64,
}

impl LocalityHash {
    /// For a table whose numbers have the distance `apart`.
    pub fn new(apart: u64) -> LocalityHash {
        LocalityHash { salt: RandomState::default().hash_one(0), apart }
    }
}

impl BuildHasher for LocalityHash {
    type Hasher = LocalityHasher;

    fn build_hasher(&self) -> LocalityHasher {
        LocalityHasher { hash: self.salt, apart: self.apart }
    }
}

/// Hashes one number.
pub struct LocalityHasher {
    hash: u64,
    apart: u64,
}

impl Hasher for LocalityHasher {
    fn write_u64(&mut self, number: u64) {
        let number = number / self.apart;
        let (block, at) = (number / NEIGHBOURS, number % NEIGHBOURS);
        let product = u128::from(block ^ self.hash) * u128::from(MULTIPLIER);
        let mixed = (product >> 64) as u64 ^ product as u64;
        // Adjacent blocks go to different parts, so that the parts have about equally many.
        let part = (block.wrapping_mul(MULTIPLIER).reverse_bits() << 32) & PART_BITS;
        // The lowest bits give a number's place in the table, the highest ones distinguish it from others
        // at that place.
        let place = ((mixed & !(NEIGHBOURS - 1)) | at) & !PART_BITS;
        self.hash = (place | part) ^ (at << 60);
    }

    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|byte| self.write_u64((*byte).into()));
    }

    fn finish(&self) -> u64 {
        self.hash
    }
}

#[cfg(test)]
mod tests;
