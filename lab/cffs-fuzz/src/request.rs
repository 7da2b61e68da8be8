//! Arbitrary messages as the kernel's: each is malformed, or a request whose parts can be read.

use fuse_ring::protocol::{Dialect, Frame, Operation, Request};

use crate::input::Input;

/// A limit somewhat above the highest operation number that the kernel sends.
const OPCODES: usize = 60;

/// Decodes a message, once in one piece and once in parts, as over io_uring.
pub fn request(data: &[u8]) {
    let mut input = Input::new(data);
    let shape = input.byte();
    let dialect = Dialect { setxattr_ext: shape & 1 != 0 };
    let opcode = input.below(OPCODES) as u32;
    let mut message = input.rest().to_vec();
    // A message contains its length and operation. A wrong length is refused at once.
    let len = message.len() as u32;
    if let Some(stated) = message.get_mut(..4) {
        stated.copy_from_slice(&len.to_ne_bytes());
    }
    if let Some(stated) = message.get_mut(4..8)
        && shape & 2 != 0
    {
        stated.copy_from_slice(&opcode.to_ne_bytes());
    }
    if let Ok(frame) = Frame::contiguous(&message, dialect) {
        read(&frame, dialect);
    }
    let (header, body) = message.split_at(message.len().min(128));
    let (argument, payload) = body.split_at(body.len().min(128));
    if let Ok(frame) = Frame::split(header, argument, payload, dialect) {
        read(&frame, dialect);
    }
}

fn read(frame: &Frame<'_>, dialect: Dialect) {
    let Ok(request) = Request::decode(frame, dialect) else {
        return;
    };
    assert_eq!(request.context.unique, frame.unique());
    request.context.extensions.security_contexts().for_each(drop);
    if let Operation::BatchForget(forgets) = &request.operation {
        forgets.for_each(drop);
    }
    drop(format!("{request:?}"));
}
