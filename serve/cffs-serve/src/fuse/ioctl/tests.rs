//! The numbers and structures of ioctls.

use cffs::format::inode::InodeFlags;

use super::{EXTENDED_FLAGS, FLAGS, FstrimRange, STATX_ATTRIBUTES, encode, statx_attributes};

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
fn flags_have_the_bits_of_chattr_and_statx() {
    let (compressed, immutable, append_only) = (0x4, 0x10, 0x20);
    assert_eq!(STATX_ATTRIBUTES, compressed | immutable | append_only);
    for (flags, bits) in [
        (InodeFlags::empty(), 0),
        (InodeFlags::IMMUTABLE, immutable),
        (InodeFlags::APPEND_ONLY, append_only),
        (InodeFlags::PROTECTION, immutable | append_only),
        (InodeFlags::COMPRESS | InodeFlags::IMMUTABLE, compressed | immutable),
        (InodeFlags::NO_COMPRESS, 0),
    ] {
        assert_eq!(statx_attributes(flags), bits);
    }
    assert_eq!(encode(InodeFlags::SETTABLE, FLAGS), 0x434);
    assert_eq!(encode(InodeFlags::SETTABLE, EXTENDED_FLAGS), 0x18);
}
