//! Tests of the protocol, byte by byte. Expected bytes are written by hand from the kernel's
//! header, so that a test cannot repeat a mistake in a structure.

mod arbitrary;
mod init;
mod replies;
mod requests;

use super::{Dialect, Frame, Malformed, Opcode, Operation, Request};

const DIALECT: Dialect = Dialect { setxattr_ext: true };

/// Concatenates numbers and strings.
#[derive(Default)]
struct Bytes(Vec<u8>);

impl Bytes {
    fn u16(mut self, value: u16) -> Bytes {
        self.0.extend(value.to_ne_bytes());
        self
    }

    fn u32(mut self, value: u32) -> Bytes {
        self.0.extend(value.to_ne_bytes());
        self
    }

    fn u64(mut self, value: u64) -> Bytes {
        self.0.extend(value.to_ne_bytes());
        self
    }

    fn bytes(mut self, bytes: &[u8]) -> Bytes {
        self.0.extend(bytes);
        self
    }
}

fn bytes() -> Bytes {
    Bytes::default()
}

/// A message number 99 to node 77 from process 33, user 11 and group 22.
fn message(opcode: u32, body: &Bytes, extension_len: u16) -> Vec<u8> {
    let len = 40 + u32::try_from(body.0.len()).unwrap();
    bytes()
        .u32(len)
        .u32(opcode)
        .u64(99)
        .u64(77)
        .u32(11)
        .u32(22)
        .u32(33)
        .u16(extension_len / 8)
        .u16(0)
        .bytes(&body.0)
        .0
}

/// Decodes a message both as from `/dev/fuse` and as from a ring; the results must be equal.
fn decode(message: &[u8], dialect: Dialect) -> Result<Request<'_>, Malformed> {
    let frame = Frame::contiguous(message, dialect)?;
    let request = Request::decode(&frame, dialect);

    let mut argument = [0; 128];
    argument[..frame.argument.len()].copy_from_slice(frame.argument);
    let split = Frame::split(&message[..40], &argument, frame.payload, dialect).unwrap();
    assert_eq!(Request::decode(&split, dialect), request);
    request
}

/// The operation with this code and body.
fn operation(opcode: Opcode, body: &Bytes) -> Result<OwnedOperation, Malformed> {
    let message = message(opcode as u32, body, 0);
    decode(&message, DIALECT).map(|request| OwnedOperation(format!("{:?}", request.operation)))
}

/// An operation that does not borrow from its message: its complete `Debug` output.
#[derive(Debug, PartialEq)]
struct OwnedOperation(String);

impl PartialEq<Operation<'_>> for OwnedOperation {
    fn eq(&self, other: &Operation<'_>) -> bool {
        self.0 == format!("{other:?}")
    }
}
