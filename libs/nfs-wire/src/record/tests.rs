use super::*;

const LIMITS: Limits = Limits { bytes_max: 100_000, fragments_max: 3 };

fn read_all(stream: &[u8]) -> Result<Vec<u8>, RecordError> {
    let (first, mut rest) = stream.split_first_chunk::<4>().expect("a header");
    read(&mut rest, *first, LIMITS)
}

fn fragment(header: u32, body: &[u8]) -> Vec<u8> {
    [&header.to_be_bytes(), body].concat()
}

#[test]
fn fragments_become_one_record() {
    let stream = [fragment(2, b"ab"), fragment(0, b""), fragment(LAST | 3, b"cde")].concat();
    assert_eq!(read_all(&stream).expect("a record"), b"abcde");
}

#[test]
fn a_finished_record_can_be_read() {
    let mut message = [&[0; HEADER_BYTES][..], b"body"].concat();
    finish(&mut message);
    assert_eq!(read_all(&message).expect("a record"), b"body");
}

#[test]
fn limits_hold() {
    let long = fragment(LAST | 100_001, b"");
    assert!(matches!(read_all(&long), Err(RecordError::TooLong(100_001))));
    let sum = [fragment(60_000, &[0; 60_000]), fragment(LAST | 60_000, b"")].concat();
    assert!(matches!(read_all(&sum), Err(RecordError::TooLong(120_000))));
    let endless = fragment(0, b"").repeat(10);
    assert!(matches!(read_all(&endless), Err(RecordError::TooManyFragments(3))));
    let cut = fragment(LAST | 9, b"short");
    assert!(matches!(read_all(&cut), Err(RecordError::Io(_))));
}
