//! `FITRIM`, the command of fstrim(8): its argument.

/// `struct fstrim_range`, in bytes: the range of the file system to discard, and the shortest free run that
/// is discarded. The answer has the count of discarded bytes in `len`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub(crate) struct FstrimRange {
    pub start: u64,
    pub len: u64,
    pub least: u64,
}

impl FstrimRange {
    /// The number of the command, `_IOWR('X', 121, struct fstrim_range)`.
    pub const COMMAND: u32 = 0xc018_5879;

    pub fn from_bytes(bytes: &[u8]) -> Option<FstrimRange> {
        let (words, rest) = bytes.as_chunks::<8>();
        let [start, len, least] = *words else { return None };
        let word = u64::from_ne_bytes;
        let range = FstrimRange { start: word(start), len: word(len), least: word(least) };
        rest.is_empty().then_some(range)
    }

    /// Whether the range begins in the volume and is long enough for a block, as ext4, XFS and btrfs demand.
    pub fn has_a_block(self, blocks: u64, block_bytes: u64) -> bool {
        self.start / block_bytes < blocks && self.len >= block_bytes
    }

    pub fn to_bytes(self) -> Vec<u8> {
        [self.start, self.len, self.least].iter().flat_map(|word| word.to_ne_bytes()).collect()
    }
}
