use super::*;

#[test]
fn numbers_are_octal_or_binary_with_a_sign() {
    let cases: [(&[u8], Option<i128>); 9] = [
        (b"0000644\0", Some(0o644)),
        (b"  17 \0\0\0", Some(0o17)),
        (b"\0\0\0\0\0\0\0\0", Some(0)),
        (b"        ", Some(0)),
        (b"777777777777", Some(0o777_777_777_777)),
        (b"\x80\0\0\0\0\x20\0\x05", Some(0x0020_0005)),
        (b"\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xfd", Some(-3)),
        (b"0000948\0", None),
        (b"-1\0\0\0\0\0\0", None),
    ];
    for (field, expected) in cases {
        assert_eq!(number(field), expected, "{field:?}");
    }
}

#[test]
fn pieces_end_at_the_first_that_is_empty() {
    let mut bytes = b"00000001000 00000000005\0".to_vec();
    bytes.extend([0; 72]);
    assert_eq!(pieces(&bytes, 4), Some(vec![0o1000, 5]));
    assert_eq!(pieces(b"9                      1", 1), None);
}
