//! The argument of the ioctl `FITRIM`, which fstrim(8) uses.

/// `struct fstrim_range`, in bytes: the range of the file system to discard, and the shortest free run to
/// discard. The answer has the number of discarded bytes in `len`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub(crate) struct FstrimRange {
    pub start: u64,
    pub len: u64,
    pub least: u64,
}

impl FstrimRange {
    /// The number of the ioctl, `_IOWR('X', 121, struct fstrim_range)`.
    pub const COMMAND: u32 = 0xc018_5879;

    pub fn from_bytes(bytes: &[u8]) -> Option<FstrimRange> {
        let (words, rest) = bytes.as_chunks::<8>();
        let [start, len, least] = *words else { return None };
        let word = u64::from_ne_bytes;
        let range = FstrimRange { start: word(start), len: word(len), least: word(least) };
        rest.is_empty().then_some(range)
    }

    /// Whether the range begins within the volume and is at least a block long, as ext4, XFS and btrfs
    /// require.
    pub fn has_a_block(self, blocks: u64, block_bytes: u64) -> bool {
        self.start / block_bytes < blocks && self.len >= block_bytes
    }

    pub fn to_bytes(self) -> Vec<u8> {
        [self.start, self.len, self.least].iter().flat_map(|word| word.to_ne_bytes()).collect()
    }
}
