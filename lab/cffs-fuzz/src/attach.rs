//! Arbitrary bytes as messages between an attached program and its server.

use cffs::wire::{
    self, ANSWER_BYTES_MAX, Answer, CALL_BYTES_MAX, Call, HEADER_BYTES, REQUEST_BYTES_MAX, Request,
};

/// Decodes messages, encodes them, and decodes them again: the result is the same.
pub fn attach_frames(data: &[u8]) {
    let mut rest = data;
    while let Some((head, tail)) = rest.split_first_chunk::<HEADER_BYTES>() {
        // A wrong length is corrected: otherwise no body would ever be long enough.
        let (len, kind) = wire::header(*head, ANSWER_BYTES_MAX).unwrap_or((0, u32::from(head[4])));
        let (body, next) = tail.split_at(len.min(tail.len()));
        for kind in [kind, u32::from(head[0] % 64)] {
            if let Ok(call) = Call::decode(kind, body) {
                let (kind, body) = parts(call.encode(), CALL_BYTES_MAX);
                assert_eq!(Call::decode(kind, &body), Ok(call));
            }
            if let Ok(request) = Request::decode(kind, body) {
                let (kind, body) = parts(request.encode(), REQUEST_BYTES_MAX);
                assert_eq!(Request::decode(kind, &body), Ok(request));
            }
            if let Ok(answer) = Answer::decode(kind, body) {
                let (kind, body) = parts(answer.encode(), ANSWER_BYTES_MAX);
                assert_eq!(Answer::decode(kind, &body), Ok(answer));
            }
        }
        rest = next;
    }
}

fn parts(message: Vec<u8>, bytes_max: usize) -> (u32, Vec<u8>) {
    let (head, body) = message.split_first_chunk().expect("a header");
    let (len, kind) = wire::header(*head, bytes_max).expect("within the limits");
    assert_eq!(len, body.len());
    (kind, body.to_vec())
}
