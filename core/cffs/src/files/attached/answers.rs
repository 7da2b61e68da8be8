//! The answers of the server, from the bytes that arrive.

use std::io;

use crate::wire::{self, ANSWER_BYTES_MAX, Answer, HEADER_BYTES};

/// The bytes that do not form a whole answer yet.
#[derive(Default)]
pub(super) struct Answers(Vec<u8>);

impl Answers {
    /// Takes in bytes that have arrived.
    pub fn add(&mut self, bytes: &[u8]) {
        self.0.extend_from_slice(bytes);
    }

    /// The next answer; `None` if it has not arrived completely.
    ///
    /// # Errors
    ///
    /// The bytes are not an answer.
    pub fn next(&mut self) -> io::Result<Option<Answer>> {
        let Some((head, rest)) = self.0.split_first_chunk() else { return Ok(None) };
        let (len, kind) = wire::header(*head, ANSWER_BYTES_MAX)?;
        let Some(body) = rest.get(..len) else { return Ok(None) };
        let answer = Answer::decode(kind, body)?;
        self.0.drain(..HEADER_BYTES + len);
        Ok(Some(answer))
    }
}
