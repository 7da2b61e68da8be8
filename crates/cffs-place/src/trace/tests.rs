//! Parsing of mountinfo.

use std::path::Path;

use super::mount_of;

#[test]
fn mounts_of_file_systems_that_have_a_layout_are_watched() {
    let line = br"36 35 98:0 /root /mnt/a\040b\134c rw,noatime shared:1 - ext4 /dev/sda1 rw";
    assert_eq!(mount_of(line).as_deref(), Some(Path::new("/mnt/a b\\c")));
    for other in [&b"22 1 0:21 / /proc rw - proc proc rw"[..], b"", b"1 2 - xfs", b"nothing"] {
        assert_eq!(mount_of(other), None, "{}", String::from_utf8_lossy(other));
    }
}
