//! Labels that would break out of a property or a link's name.

use std::fs;
use std::path::Path;

use super::*;

#[test]
fn labels_are_escaped_in_values_and_links() {
    for (label, expected_safe, expected_encoded) in [
        (&b"tree"[..], "tree", "tree"),
        (b"a b/c", "a_b_c", "a\\x20b\\x2fc"),
        (b"x\nID_FS_TYPE=ext4", "x_ID_FS_TYPE=ext4", "x\\x0aID_FS_TYPE=ext4"),
        (b"\"$(reboot)\\", "___reboot__", "\\x22\\x24\\x28reboot\\x29\\x5c"),
        ("na\u{ef}ve\u{a0}".as_bytes(), "na\u{ef}ve_", "na\u{ef}ve\\xc2\\xa0"),
        (b"\xff..", "_..", "\\xff.."),
    ] {
        assert_eq!(safe(label), expected_safe);
        assert_eq!(encoded(label), expected_encoded);
    }
}

#[test]
fn a_tag_is_resolved_to_the_link_that_udev_makes() {
    let links = tempfile::tempdir().expect("a directory");
    let device_of = |source: &str| super::device_below(links.path(), Path::new(source));
    for (source, link) in [
        ("LABEL=my tree", "by-label/my\\x20tree"),
        ("LABEL=\"a/b\"", "by-label/a\\x2fb"),
        ("UUID=0F1E2D3C-4b5a", "by-uuid/0f1e2d3c-4b5a"),
        ("PARTLABEL=x", "by-partlabel/x"),
    ] {
        let link = links.path().join(link);
        let said = device_of(source).expect_err("there is none").to_string();
        assert!(
            said.contains(&*link.to_string_lossy()) && said.contains("61-cffs.rules"),
            "{said}"
        );
        fs::create_dir_all(link.parent().expect("below")).expect("made");
        fs::write(&link, b"").expect("written");
        assert_eq!(device_of(source).expect("there"), link);
    }
    // Values cannot leave the directory, and a path is not a tag.
    assert!(device_of("LABEL=../by-uuid/0f1e2d3c-4b5a").is_err());
    for path in ["/srv/LABEL=x", "image.cffs", "name=value"] {
        assert_eq!(device_of(path).expect("a path"), Path::new(path));
    }
}
