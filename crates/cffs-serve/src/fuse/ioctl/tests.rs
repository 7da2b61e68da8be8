//! The numbers and structures of commands.

use super::FstrimRange;

#[test]
fn the_range_is_that_of_linux_fs_h() {
    let range = FstrimRange { start: 1, len: 2, least: 3 };
    assert_eq!(FstrimRange::from_bytes(&range.to_bytes()), Some(range));
    assert_eq!(FstrimRange::from_bytes(&[0; 23]), None);
    assert_eq!(FstrimRange::from_bytes(&[0; 32]), None);
    let number = 3 << 30 | (size_of::<FstrimRange>() as u32) << 16 | u32::from(b'X') << 8 | 121;
    assert_eq!(FstrimRange::COMMAND, number);
}
