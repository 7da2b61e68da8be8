use proptest::prelude::*;

use super::*;
use crate::rpc;
use crate::xdr::{Malformed, Reader};

const TIME: Time = Time { seconds: 5, nanoseconds: 6 };

fn attributes() -> Attributes {
    Attributes {
        file_type: FileType::Regular,
        mode: 0o644,
        nlink: 1,
        uid: 2,
        gid: 3,
        size: 4,
        used: 4096,
        device: (0, 0),
        fsid: 7,
        fileid: 8,
        atime: TIME,
        mtime: TIME,
        ctime: TIME,
    }
}

fn write_call(count: u32, data: &[u8]) -> Vec<u8> {
    let mut w = Writer::default();
    w.opaque(b"handle");
    w.u64(10);
    w.u32(count);
    w.u32(Stability::FileSync as u32);
    w.opaque(data);
    w.into_bytes()
}

#[test]
fn attributes_have_the_length_of_the_standard() {
    let mut w = Writer::default();
    attributes().encode(&mut w);
    assert_eq!(w.bytes().len(), ATTRIBUTES_BYTES);
}

#[test]
fn a_write_takes_no_more_than_was_sent() {
    let call = write_call(1000, b"data");
    let decoded = Call::decode(7, &call).expect("well-formed");
    let Some(Call::Write { data, offset, stability, .. }) = decoded else {
        panic!("not a write: {decoded:?}")
    };
    assert_eq!((data, offset, stability), (&b"data"[..], 10, Stability::FileSync));
    let fewer = write_call(2, b"data");
    assert!(matches!(Call::decode(7, &fewer), Ok(Some(Call::Write { data: b"da", .. }))));
}

#[test]
fn a_truncated_or_too_long_call_is_malformed() {
    let call = write_call(4, b"data");
    for len in 0..call.len() {
        assert!(Call::decode(7, &call[..len]).is_err(), "cut to {len} bytes");
    }
    let longer = [&call[..], &[0; 4]].concat();
    assert_eq!(Call::decode(7, &longer), Err(Malformed::Trailing(4)));
    let mut w = Writer::default();
    w.opaque(&[0; 65]);
    assert_eq!(Call::decode(1, w.bytes()), Err(Malformed::TooLong { len: 65, max: 64 }));
    assert_eq!(Call::decode(22, b""), Ok(None));
}

#[test]
fn contents_are_read_in_place() {
    let mut w = rpc::reply(1, rpc::Verdict::Success);
    let begin = w.bytes().len();
    reply::read(&mut w, 100, |buf| {
        buf[..5].copy_from_slice(b"bytes");
        Ok((5, true, attributes()))
    })
    .expect("read");
    let mut r = Reader::new(&w.bytes()[begin..]);
    assert_eq!((r.u32(), r.bool()), (Ok(0), Ok(true)));
    r.fixed(ATTRIBUTES_BYTES).expect("attributes");
    assert_eq!((r.u32(), r.bool(), r.opaque(100)), (Ok(5), Ok(true), Ok(&b"bytes"[..])));
    r.end().expect("all");
    let before = w.bytes().to_vec();
    assert_eq!(reply::read(&mut w, 100, |_| Err(Status::Io)), Err(Status::Io));
    assert_eq!(w.bytes(), before);
}

#[test]
fn a_listing_respects_its_limits() {
    for bytes_max in 0..600 {
        let mut w = Writer::default();
        let attributes = attributes();
        let mut listing = reply::Listing::plus(&mut w, Some(&attributes), u32::MAX, bytes_max);
        let mut pushed = 0;
        while pushed < 3 && listing.push(1, b"name", pushed + 1, Some((&[1; 32], &attributes))) {
            pushed += 1;
        }
        let finished = listing.finish();
        assert_eq!(finished.is_err(), pushed == 0, "{bytes_max} bytes");
        if finished.is_ok() {
            assert!(w.bytes().len() <= bytes_max as usize, "{bytes_max} bytes");
        }
    }
    let mut w = Writer::default();
    // An entry with a name of four bytes counts as 28 bytes: mark, number, name and cookie.
    let mut listing = reply::Listing::plus(&mut w, None, 28, 10_000);
    assert!(listing.push(1, b"name", 1, None));
    assert!(!listing.push(1, b"name", 2, None));
    assert!(!listing.push(1, b"", 3, None), "nothing comes after what found no room");
    listing.finish().expect("one entry");
}

proptest! {
    #[test]
    fn no_bytes_cause_a_panic(procedure in 0u32..23, bytes in prop::collection::vec(any::<u8>(), 0..300)) {
        let _ = Call::decode(procedure, &bytes);
        let _ = crate::mount::Call::decode(procedure, &bytes);
        let _ = rpc::Call::decode(&bytes);
    }
}
