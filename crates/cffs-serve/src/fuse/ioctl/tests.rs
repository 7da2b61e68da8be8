//! The numbers and structures of ioctls.

use cffs::vfs::Protection;

use super::{FstrimRange, STATX_ATTRIBUTES, statx_attributes};

#[test]
fn the_range_is_that_of_linux_fs_h() {
    let range = FstrimRange { start: 1, len: 2, least: 3 };
    assert_eq!(FstrimRange::from_bytes(&range.to_bytes()), Some(range));
    assert_eq!(FstrimRange::from_bytes(&[0; 23]), None);
    assert_eq!(FstrimRange::from_bytes(&[0; 32]), None);
    let number = 3 << 30 | (size_of::<FstrimRange>() as u32) << 16 | u32::from(b'X') << 8 | 121;
    assert_eq!(FstrimRange::COMMAND, number);
}

/// Regression: fstrim(8) succeeded for a range beyond the end, or shorter than a block.
#[test]
fn a_range_without_a_block_is_no_range() {
    let has_a_block = |start, len| FstrimRange { start, len, least: 0 }.has_a_block(100, 4096);
    assert!(has_a_block(0, u64::MAX) && has_a_block(0, 4096) && has_a_block(99 * 4096, 4096));
    assert!(!has_a_block(100 * 4096, u64::MAX) && !has_a_block(u64::MAX, 1 << 20));
    assert!(!has_a_block(0, 0) && !has_a_block(0, 4095));
}

#[test]
fn protection_has_the_bits_of_statx() {
    let (immutable, append_only) = (0x10, 0x20);
    assert_eq!(STATX_ATTRIBUTES, immutable | append_only);
    for (protection, bits) in [
        (Protection { immutable: false, append_only: false }, 0),
        (Protection { immutable: true, append_only: false }, immutable),
        (Protection { immutable: false, append_only: true }, append_only),
        (Protection { immutable: true, append_only: true }, immutable | append_only),
    ] {
        assert_eq!(statx_attributes(protection), bits);
    }
}
