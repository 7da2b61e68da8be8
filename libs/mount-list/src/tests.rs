use std::path::Path;

use super::*;

#[test]
fn a_line_is_parsed() {
    let line = [
        r"96 25 0:41 /part\134 /mnt/with\040space rw,nosuid shared:5 master:1 - ",
        r"fuse.cffs /var/a\134b.cffs ro,user_id=0",
    ]
    .concat();
    let mounts: Vec<_> = parse(line.as_bytes()).collect();
    let expected = Mount {
        id: 96,
        parent: 25,
        device: (0, 41),
        root: Path::new(r"/part\").into(),
        point: Path::new("/mnt/with space").into(),
        options: b"rw,nosuid",
        kind: b"fuse.cffs",
        source: Path::new(r"/var/a\b.cffs").into(),
        shared_options: b"ro,user_id=0",
    };
    assert_eq!(mounts, [expected]);
    assert!(mounts[0].is_read_only());
    assert!(options(mounts[0].options).eq([&b"rw"[..], b"nosuid"]));
}

#[test]
fn names_are_bytes() {
    let mounts: Vec<_> = parse(b"1 1 8:1 / /\xff\\012\\9\\77 rw - ext4 none rw").collect();
    assert_eq!(mounts[0].point.as_os_str().as_encoded_bytes(), b"/\xff\n\\9\\77");
    assert!(!mounts[0].is_read_only());
}

#[test]
fn lines_that_are_not_understood_are_skipped() {
    let list = b"\n96 25\n96 25 0:41 / /mnt rw\n96 25 0:41 / /mnt rw - fuse.cffs /image\n\
        x 25 0:41 / /a rw - ext4 none rw\n96 25 041 / /b rw - ext4 none rw\n1 2 3:4 / /c rw - xfs none rw\n";
    assert!(parse(list).map(|mount| mount.point).eq([Path::new("/c")]));
}

#[test]
fn the_list_of_this_process_has_its_root_directory() {
    let list = std::fs::read(OWN).expect("readable");
    assert!(parse(&list).any(|mount| mount.point == Path::new("/")));
    assert_eq!(
        parse(&list).count(),
        list.split(|byte| *byte == b'\n').count() - 1,
        "all are understood"
    );
}
