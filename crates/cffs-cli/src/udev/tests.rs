//! Labels that would break out of a property or of a link's name.

use super::*;

#[test]
fn labels_become_values_and_names_of_links() {
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
