use std::path::Path;

use super::point_of;

#[test]
fn mounts_of_file_systems_that_have_a_layout_are_watched() {
    let list = br"36 35 98:0 /root /mnt/a\040b\134c rw,noatime shared:1 - ext4 /dev/sda1 rw
22 1 0:21 / /proc rw - proc proc rw";
    let points: Vec<_> = mount_list::parse(list).filter_map(point_of).collect();
    assert_eq!(points, [Path::new(r"/mnt/a b\c")]);
}
