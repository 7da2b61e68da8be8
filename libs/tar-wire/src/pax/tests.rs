use proptest::collection::vec;
use proptest::prelude::*;

use super::*;

fn record(key: &[u8], value: &[u8]) -> Record {
    (key.to_vec(), value.to_vec())
}

/// A reader that splits a header at line ends loses every file with an ACL, whose entries GNU tar separates
/// by line ends, and accepts records inside a value.
#[test]
fn a_value_may_contain_line_ends_and_records() {
    let value = b"user::rw-\ngroup::r--\n12 size=999\n";
    let mut bytes = Vec::new();
    encode(b"SCHILY.acl.access", value, &mut bytes);
    encode(b"path", b"f", &mut bytes);
    let expected = [record(b"SCHILY.acl.access", value), record(b"path", b"f")];
    assert_eq!(decode(&bytes), Ok(expected.to_vec()));
}

#[test]
fn a_malformed_list_of_records_is_refused() {
    for bytes in [
        &b"x"[..],
        b"6 a=b",
        b"5 a=b\n",
        b"99 a=b\n",
        b"6 ab\n\n",
        b"2 ",
        b"0 a=b\n",
        b"-6 a=b\n",
        b"99999999999999999999999 a=b\n",
        b"\0\0\0\0",
    ] {
        assert_eq!(decode(bytes), Err(Malformed), "{}", bytes.escape_ascii());
    }
    assert_eq!(decode(b""), Ok(Vec::new()));
}

#[test]
fn a_length_counts_its_own_digits() {
    for len in (0..12).chain(85..105).chain(980..1010) {
        let value = vec![b'v'; len];
        let mut bytes = Vec::new();
        encode(b"k", &value, &mut bytes);
        assert_eq!(decode(&bytes), Ok(vec![record(b"k", &value)]), "{len}");
    }
}

#[test]
fn times_have_fractions_and_may_be_before_1970() {
    let cases: [(&str, Option<(i64, u32)>); 14] = [
        ("0", Some((0, 0))),
        ("1.5", Some((1, 500_000_000))),
        ("1.000000001999", Some((1, 1))),
        ("-3.5", Some((-4, 500_000_000))),
        ("-0.000000001", Some((-1, 999_999_999))),
        ("-2000000000", Some((-2_000_000_000, 0))),
        ("8589934597", Some((8_589_934_597, 0))),
        ("1e-09", Some((0, 1))),
        ("", None),
        ("-", None),
        ("1.x", None),
        ("+1", None),
        ("nan", None),
        ("99999999999999999999", None),
    ];
    for (text, expected) in cases {
        let expected = expected.map(|(seconds, nanoseconds)| Time { seconds, nanoseconds });
        let found = time(text.as_bytes());
        assert_eq!(found, expected, "{text}");
        if let Some(found) = found {
            assert_eq!(time(time_value(found).as_bytes()), Some(found));
        }
    }
}

#[test]
fn extended_attributes_of_gnu_tar_and_bsdtar_are_decoded() {
    let of_gnu_tar = [record(b"SCHILY.xattr.user.a%3Db%25c%41", b"v\n\0"), record(b"mtime", b"1")];
    assert_eq!(xattrs(&of_gnu_tar), Ok(vec![record(b"user.a=b%c%41", b"v\n\0")]));
    // bsdtar preserves the name only in the second form.
    let of_bsdtar = [
        record(b"SCHILY.xattr.user.b", b"\0\n\xff"),
        record(b"LIBARCHIVE.xattr.user.%62%C3%A9", b"AAr/"),
        record(b"LIBARCHIVE.xattr.user.empty", b""),
    ];
    let expected = vec![record(b"user.b\xc3\xa9", b"\0\n\xff"), record(b"user.empty", b"")];
    assert_eq!(xattrs(&of_bsdtar), Ok(expected));
    assert_eq!(xattrs(&[record(b"LIBARCHIVE.xattr.user.b", b"!")]), Err(Malformed));
}

proptest! {
    #[test]
    fn encoded_records_are_decoded(records in vec((vec(any::<u8>(), 0..20), vec(any::<u8>(), 0..200)), 0..5))
    {
        let mut bytes = Vec::new();
        let records: Vec<Record> =
            records.into_iter().map(|(name, value)| (xattr_key(&name), value)).collect();
        records.iter().for_each(|(key, value)| encode(key, value, &mut bytes));
        prop_assert_eq!(decode(&bytes), Ok(records));
    }

    #[test]
    fn a_name_survives_its_key(name in vec(any::<u8>(), 0..20)) {
        prop_assert_eq!(xattrs(&[(xattr_key(&name), Vec::new())]), Ok(vec![(name, Vec::new())]));
    }

    #[test]
    fn any_bytes_are_decoded_or_refused(bytes in vec(any::<u8>(), 0..64)) {
        let _ = decode(&bytes);
        let _ = time(&bytes);
        let _ = base64(&bytes);
    }
}
