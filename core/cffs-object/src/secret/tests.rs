use super::*;
use crate::vault::Vault;

const OWNER: Owner = [7; 16];

fn secret(bytes: &[u8]) -> Secret {
    Secret::new(bytes.to_vec()).unwrap()
}

#[test]
fn a_secret_is_a_key_or_a_passphrase() {
    let digits = [b'a'; 64];
    let raw: [u8; 32] = std::array::from_fn(|at| at as u8 * 7);
    let umlauts = "\u{fc}".repeat(16);
    let umlauts_line = [&umlauts.as_bytes()[..30], b"a\n"].concat();
    let cases: [(&[u8], bool, &str); 12] = [
        (&raw, false, "32 bytes"),
        (&digits, false, "64 digits"),
        (&[&digits[..], b"\n"].concat(), false, "64 digits and a newline"),
        (&digits[1..], true, "63 digits"),
        (&[&digits[1..], b"g"].concat(), true, "63 digits and a letter"),
        (b"correct horse battery staple 123", true, "a text of 32 characters"),
        (b"x\n", true, "a text"),
        (&[&digits[..], b"\r\n"].concat(), false, "64 digits and a newline of two bytes"),
        (&raw[1..], true, "31 bytes"),
        ("\u{fc}ber".as_bytes(), true, "UTF-8"),
        (umlauts.as_bytes(), true, "32 bytes of UTF-8"),
        (&umlauts_line, true, "31 bytes of UTF-8 and a newline"),
    ];
    for (bytes, is_passphrase, what) in cases {
        assert_eq!(secret(bytes).is_passphrase(), is_passphrase, "{what}");
    }
    for empty in [&b""[..], b"\n", b"\r\n"] {
        assert_eq!(Secret::new(empty.to_vec()).unwrap_err(), "it is empty");
    }
}

#[test]
fn a_newline_at_the_end_is_not_part_of_a_passphrase() {
    let key = Vault::new_key();
    for line in [&b"words\n"[..], b"words\r\n"] {
        let wrapped = Wrapped::new(&secret(line), &key, &OWNER);
        assert_eq!(wrapped.open(&secret(b"words"), &OWNER), Ok(key.clone()));
        assert!(wrapped.open(&secret(b"words\r"), &OWNER).is_err());
    }
}

#[test]
fn only_the_secret_that_wrapped_a_key_opens_it() {
    let key = Vault::new_key();
    let (words, digits) = (secret(b"words"), secret(&[b'3'; 64]));
    let wrapped = Wrapped::new(&words, &key, &OWNER);
    assert_eq!(wrapped.open(&words, &OWNER).unwrap(), key);
    assert_eq!(wrapped.open(&secret(b"other"), &OWNER), Err(WrongSecret::Another));
    assert_eq!(wrapped.open(&digits, &OWNER), Err(WrongSecret::IsPassphrase));
    assert_eq!(wrapped.open(&words, &[8; 16]), Err(WrongSecret::Another), "another volume");

    let wrapped = Wrapped::new(&digits, &key, &OWNER);
    assert_eq!(wrapped.open(&digits, &OWNER).unwrap(), key);
    assert_eq!(wrapped.open(&secret(&[b'4'; 64]), &OWNER), Err(WrongSecret::Another));
    assert_eq!(wrapped.open(&words, &OWNER), Err(WrongSecret::IsKey));
}

#[test]
fn a_changed_wrapping_opens_with_no_secret() {
    let key = Vault::new_key();
    let words = secret(b"words");
    let wrapped = Wrapped::new(&words, &key, &OWNER);
    let encoded = wrapped.encode();
    assert_eq!(Wrapped::decode(&mut Reader::new(&encoded)).unwrap(), wrapped);
    for at in 0..encoded.len() {
        let mut changed = encoded.clone();
        changed[at] ^= 1;
        let opened = Wrapped::decode(&mut Reader::new(&changed));
        let opened = opened.map(|wrapped| wrapped.open(&words, &OWNER));
        // The two reserved bytes are bound as zeros.
        let is_ignored = matches!(at, 2 | 3);
        assert_eq!(matches!(opened, Ok(Ok(_))), is_ignored, "byte {at}");
    }
}

#[test]
fn costs_out_of_bounds_are_refused() {
    let bad = [
        (7, 1, 1),
        (64, 0, 1),
        (64, 9, 1),
        (64, 1, 0),
        (1 << 10, 1, 17),
        (1 << 20, 1, 1),
        (u32::MAX, 1, 1),
    ];
    for (memory_kib, passes, lanes) in bad {
        Cost { memory_kib, passes, lanes }.check().unwrap_err();
    }
    Cost::RECOMMENDED.check().unwrap();
}

#[test]
fn the_recommended_cost_derives_the_key_of_another_implementation() {
    // Computed by argon2-cffi, which calls the reference implementation.
    let key = Cost::RECOMMENDED.derive(b"words", b"0123456789abcdef");
    let digits: String = key.iter().map(|byte| format!("{byte:02x}")).collect();
    assert_eq!(digits, "dc5190391976341cb8500b242e51a056d9c5a5c3d2e9f2518ced1e306e6b77ea");
}

#[test]
fn debugging_output_has_no_secret() {
    assert_eq!(format!("{:?}", secret(b"words")), "Secret");
}
