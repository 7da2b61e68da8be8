use super::*;

fn calls() -> Vec<Call> {
    let remove =
        |name: &[u8], recursive| Call::Remove { ticket: [9; 16], name: name.into(), recursive };
    vec![
        Call::Hello { oldest: 1, newest: 3 },
        remove(b"a", false),
        remove(&[b'x'; 255], true),
        remove(b"...", true),
    ]
}

fn answers() -> Vec<Answer> {
    let removed = Removed { files: 1 << 40, directories: 3 };
    let failure = |path: &[u8], text: &str| {
        Answer::Failed(Failure { path: path.into(), errno: 13, text: text.into() })
    };
    vec![
        Answer::Welcome { version: 1 },
        Answer::Refused("no".into()),
        Answer::Progress(removed),
        failure(b"d/\xff", "permission denied"),
        failure(&[b'y'; PATH_BYTES_MAX], ""),
        Answer::Done { removed, end: End::Complete },
        Answer::Done { removed, end: End::Cancelled },
        Answer::Done { removed, end: End::Closing },
    ]
}

/// The kind and the body of a message.
fn parts(message: &[u8], bytes_max: usize) -> (u32, &[u8]) {
    let (head, body) = message.split_first_chunk().expect("a header");
    let (len, kind) = header(*head, bytes_max).expect("a length");
    assert_eq!(len, body.len());
    (kind, body)
}

#[test]
fn messages_are_decoded_as_they_were_encoded() {
    for call in calls() {
        let message = call.encode();
        let (kind, body) = parts(&message, CALL_BYTES_MAX);
        assert_eq!(Call::decode(kind, body), Ok(call));
    }
    for answer in answers() {
        let message = answer.encode();
        let (kind, body) = parts(&message, ANSWER_BYTES_MAX);
        assert_eq!(Answer::decode(kind, body), Ok(answer));
    }
}

/// The bytes of version 1, which programs in use send.
#[test]
fn the_bytes_of_the_first_version_stay() {
    let call = Call::Remove { ticket: *b"0123456789abcdef", name: b"dir".into(), recursive: true };
    assert_eq!(call.encode(), b"\x16\0\0\0\x02\0\0\0\x30\x31\x32\x33456789abcdef\x01\x03\0dir");
    let hello = Call::Hello { oldest: 1, newest: 1 };
    assert_eq!(hello.encode(), b"\x08\0\0\0\x01\0\0\0CFFS\x01\0\x01\0");
    let failed = Failure { path: b"a/b".into(), errno: 13, text: "no".into() };
    assert_eq!(Answer::Failed(failed).encode(), b"\x0b\0\0\0\x04\0\0\0\x0d\0\x03\0\0\0a/bno");
}

#[test]
fn a_body_that_is_cut_off_is_refused_and_one_that_is_longer_is_not() {
    for call in calls() {
        let message = call.encode();
        let (kind, body) = parts(&message, CALL_BYTES_MAX);
        for len in 0..body.len() {
            assert_eq!(Call::decode(kind, &body[..len]), Err(BadMessage), "{call:?} {len}");
        }
        assert_eq!(Call::decode(kind, &[body, b"of a later version"].concat()), Ok(call));
    }
}

#[test]
fn a_call_names_one_file_of_its_directory() {
    for name in [&b""[..], b".", b"..", b"a/b", b"/", b"a\0", &[b'x'; 256]] {
        let message = Call::Remove { ticket: [0; 16], name: name.into(), recursive: true }.encode();
        let (kind, body) = parts(&message, CALL_BYTES_MAX);
        assert_eq!(Call::decode(kind, body), Err(BadMessage), "{}", name.escape_ascii());
    }
}

#[test]
fn lengths_and_kinds_beyond_the_limits_are_refused() {
    let head =
        |len: u32| header([len.to_le_bytes(), [1, 0, 0, 0]].concat().try_into().unwrap(), 10);
    assert_eq!(head(10), Ok((10, 1)));
    assert_eq!(head(11), Err(BadMessage));
    assert_eq!(head(u32::MAX), Err(BadMessage));
    assert_eq!(Call::decode(3, &[0; 100]), Err(BadMessage));
    assert_eq!(Answer::decode(0, &[0; 100]), Err(BadMessage));
    let path_beyond_the_end = [&[13, 0][..], &u32::MAX.to_le_bytes(), b"abc"].concat();
    assert_eq!(Answer::decode(4, &path_beyond_the_end), Err(BadMessage));
}

#[test]
fn a_long_text_is_cut_between_characters() {
    let message = Answer::Refused("ä".repeat(1000) + "b").encode();
    let (kind, body) = parts(&message, ANSWER_BYTES_MAX);
    assert_eq!(Answer::decode(kind, body), Ok(Answer::Refused("ä".repeat(512))));
}
