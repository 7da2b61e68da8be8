//! Any message in place of the kernel's: it is malformed, or a request whose parts can be read.
#![no_main]

use fuse_ring::protocol::{Dialect, Frame, Operation, Request};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: (bool, &[u8])| {
    let (setxattr_ext, message) = input;
    let mut message = message.to_vec();
    let dialect = Dialect { setxattr_ext };
    // A message tells its own length; one that lies about it is refused at once.
    let len = message.len() as u32;
    if let Some(stated) = message.get_mut(..4) {
        stated.copy_from_slice(&len.to_ne_bytes());
    }
    if let Ok(frame) = Frame::contiguous(&message, dialect) {
        read(&frame, dialect);
    }
    let (header, body) = message.split_at(message.len().min(128));
    let (argument, payload) = body.split_at(body.len().min(128));
    if let Ok(frame) = Frame::split(header, argument, payload, dialect) {
        read(&frame, dialect);
    }
});

fn read(frame: &Frame<'_>, dialect: Dialect) {
    let Ok(request) = Request::decode(frame, dialect) else {
        return;
    };
    assert_eq!(request.context.unique, frame.unique());
    request.context.extensions.security_contexts().for_each(drop);
    if let Operation::BatchForget(forgets) = &request.operation {
        forgets.clone().for_each(drop);
    }
    drop(format!("{request:?}"));
}
