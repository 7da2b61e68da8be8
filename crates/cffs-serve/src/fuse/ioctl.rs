//! Commands on open files (`ioctl`), as the kernel passes them on.

use cffs::vfs::Volume;
use fuse_ring::Errno;
use fuse_ring::protocol::Ioctl;

#[cfg(test)]
mod tests;

/// What fstrim(8) asks: the range of the file system to discard, and the shortest run of it that
/// counts, in bytes. The answer has the bytes discarded in the place of the length.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub(super) struct FstrimRange {
    pub start: u64,
    pub len: u64,
    pub least: u64,
}

impl FstrimRange {
    /// The number of the command, `_IOWR('X', 121, struct fstrim_range)`.
    pub const COMMAND: u32 = 0xc018_5879;

    fn from_bytes(bytes: &[u8]) -> Option<FstrimRange> {
        let (words, rest) = bytes.as_chunks::<8>();
        let [start, len, least] = *words else { return None };
        let word = u64::from_ne_bytes;
        let range = FstrimRange { start: word(start), len: word(len), least: word(least) };
        rest.is_empty().then_some(range)
    }

    fn to_bytes(self) -> Vec<u8> {
        [self.start, self.len, self.least].iter().flat_map(|word| word.to_ne_bytes()).collect()
    }
}

/// Carries out a command, and returns how many bytes of the buffer it filled. `is_owner` says whether
/// root asks, or the user who mounted the volume.
pub(super) fn carry_out(
    volume: &Volume,
    ioctl: &Ioctl<'_>,
    is_owner: bool,
    buf: &mut [u8],
) -> Result<usize, Errno> {
    match ioctl.command {
        FstrimRange::COMMAND if !is_owner => Err(Errno::PERM),
        FstrimRange::COMMAND => {
            let range = FstrimRange::from_bytes(ioctl.data).ok_or(Errno::INVAL)?;
            let end = range.start.saturating_add(range.len);
            let trimmed = volume
                .trim(range.start..end, range.least)
                .map_err(|error| Errno::from_raw_os_error(cffs::vfs::errno(&error)))?;
            tracing::info!(bytes = trimmed.bytes, requests = trimmed.requests, "trimmed");
            let answer = FstrimRange { len: trimmed.bytes, ..range }.to_bytes();
            buf.get_mut(..answer.len()).ok_or(Errno::INVAL)?.copy_from_slice(&answer);
            Ok(answer.len())
        }
        _ => Err(Errno::NOTTY),
    }
}
