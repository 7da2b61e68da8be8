//! Checksums and hashes (FORMAT: checksums).

use siphasher::sip::SipHasher13;

/// Computes the CRC-32C of metadata, with a seed that differs between volumes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Checksum {
    seed: u32,
}

impl Checksum {
    /// The checksum of a volume with this seed: see
    /// [`Superblock::checksum`](super::Superblock::checksum).
    pub fn new(seed: &[u8; 16]) -> Checksum {
        Checksum { seed: crc32c::crc32c(seed) }
    }

    /// The checksum of `block`, its four bytes from `at` on counted as zero: there the result is
    /// stored.
    pub fn of(self, block: &[u8], at: usize) -> u32 {
        let sum = crc32c::crc32c_append(self.seed, &block[..at]);
        let sum = crc32c::crc32c_append(sum, &[0; 4]);
        crc32c::crc32c_append(sum, &block[at + 4..])
    }

    /// Stores the checksum of `block` in its four bytes from `at` on.
    pub fn seal(self, block: &mut [u8], at: usize) {
        let sum = self.of(block, at);
        block[at..at + 4].copy_from_slice(&sum.to_le_bytes());
    }

    /// Whether the four bytes from `at` on are the checksum of `block`.
    pub fn verify(self, block: &[u8], at: usize) -> bool {
        block[at..at + 4] == self.of(block, at).to_le_bytes()
    }
}

/// The checksum of the contents of a small file, chained over its pieces: unseeded, so that it can
/// be compared with one computed elsewhere. Start with 0.
pub fn contents(sum: u32, piece: &[u8]) -> u32 {
    crc32c::crc32c_append(sum, piece)
}

/// The hash of a name that a dirent and a directory's index hold: SipHash-1-3 under the volume's
/// seed, its lower 32 bits.
pub fn name_hash(seed: &[u8; 16], name: &[u8]) -> u32 {
    SipHasher13::new_with_key(seed).hash(name) as u32
}
