//! Handles, by which requests name files, and ranges of the shared memory.

use super::{BadMessage, CONTENTS_BYTES_MAX, Fields, Result};

/// A number that the program chose for a file: it can use the file before it knows whether it exists.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Handle(pub u32);

impl Handle {
    /// The directory of the ticket.
    pub const ROOT: Handle = Handle(0);
}

/// A range of the shared memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Memory {
    pub offset: u32,
    /// At most [`CONTENTS_BYTES_MAX`].
    pub len: u32,
}

impl Handle {
    /// Fails for the root, which no request makes or releases.
    pub(super) fn not_root(self) -> Result<Handle> {
        if self == Handle::ROOT { Err(BadMessage) } else { Ok(self) }
    }
}

impl Memory {
    pub(super) fn put(self, body: &mut Vec<u8>) {
        body.extend(self.offset.to_le_bytes());
        body.extend(self.len.to_le_bytes());
    }

    pub(super) fn decode(fields: &mut Fields<'_>) -> Result<Memory> {
        let memory = Memory { offset: fields.u32()?, len: fields.u32()? };
        let is_range = memory.offset.checked_add(memory.len).is_some();
        if is_range && memory.len <= CONTENTS_BYTES_MAX { Ok(memory) } else { Err(BadMessage) }
    }
}

pub(super) fn put_handles(body: &mut Vec<u8>, handles: &[&Handle]) {
    handles.iter().for_each(|handle| body.extend(handle.0.to_le_bytes()));
}

pub(super) fn put_bytes(body: &mut Vec<u8>, bytes: &[u8]) {
    body.extend((bytes.len() as u16).to_le_bytes());
    body.extend(bytes);
}

pub(super) fn handle(fields: &mut Fields<'_>) -> Result<Handle> {
    fields.u32().map(Handle)
}

pub(super) fn handles<const N: usize>(fields: &mut Fields<'_>) -> Result<[Handle; N]> {
    let mut handles = [Handle::ROOT; N];
    for one in &mut handles {
        *one = handle(fields)?;
    }
    Ok(handles)
}
