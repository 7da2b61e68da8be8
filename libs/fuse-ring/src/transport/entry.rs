//! The entries of rings: pairs of buffers that are passed back and forth between the kernel and the server.
//!
//! Offers [`Entry`], which serves the request in its buffers, and [`Held`], entries that are kept between two
//! sessions.

use std::collections::BTreeMap;
use std::io;

use rustix::io::Errno;
use zerocopy::FromBytes;

use super::memory::{Iovec, Pages};
use crate::Handler;
use crate::dispatch::{Dispatcher, Outcome};
use crate::protocol::wire::UringReqHeader;
use crate::protocol::{Dialect, Frame, encode};

/// The headers have a separate page before the payload, so that the payload is page-aligned.
pub(super) const HEAD_LEN: usize = 4096;

/// Payloads up to this length are names, which are copied elsewhere to make room for the answer.
const NAMES_LEN_MAX: usize = 512;

/// The entries that a thread leaves to the next session. All contain a request, except entries for offline
/// cores, which are dropped with the ring.
pub(crate) struct Held {
    pub(super) core: usize,
    pub(super) entries: Vec<Entry>,
}

/// An entry in serialised form: the address of its memory, and its contents.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HeldEntry {
    /// The core of the thread that serves it.
    pub core: usize,
    /// The number of that thread.
    pub thread: usize,
    /// The queue of the kernel that it belongs to.
    pub queue: u16,
    /// Where its memory begins.
    pub address: usize,
    /// Its length in bytes.
    pub len: usize,
    /// The request in it; empty if there is none.
    pub request: Vec<u8>,
}

impl Held {
    /// Serialises the entries of several threads for another program.
    pub(crate) fn to_entries(all: &[Held]) -> Vec<HeldEntry> {
        let threads = all.iter().enumerate();
        let entries = threads.flat_map(|(thread, held)| {
            held.entries.iter().map(move |entry| entry.to_held(held.core, thread))
        });
        entries.collect()
    }

    /// Restores the entries in that program.
    ///
    /// # Errors
    ///
    /// Fails if the addresses are in use.
    pub(crate) fn from_entries(entries: Vec<HeldEntry>) -> io::Result<Vec<Held>> {
        let mut all = BTreeMap::new();
        for held in entries {
            let (thread, core) = (held.thread, held.core);
            let thread = all.entry(thread).or_insert_with(|| Held { core, entries: Vec::new() });
            thread.entries.push(Entry::from_held(&held)?);
        }
        Ok(all.into_values().collect())
    }
}

impl Held {
    pub(crate) fn core(&self) -> usize {
        self.core
    }
}

impl std::fmt::Debug for Held {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Held").field("core", &self.core).finish_non_exhaustive()
    }
}

/// A pair of buffers that is passed back and forth between the kernel and the server.
///
/// The kernel writes to them only on behalf of this entry's commands, in this thread, while it waits in the
/// kernel; so no borrow of them exists at that time.
pub(super) struct Entry {
    pub(super) queue: u16,
    pub(super) buffers: Pages,
    /// Read by the kernel when the entry is registered.
    pub(super) iovecs: [Iovec; 2],
    pub(super) commit_id: u64,
    names: Box<[u8; NAMES_LEN_MAX]>,
    /// Whether the entry is registered with the kernel.
    pub(super) is_registered: bool,
    /// Whether it contains a request that has not been served.
    pub(super) has_request: bool,
    /// Whether it cannot hold a request, since the core of its queue is offline.
    pub(super) is_idle: bool,
}

impl Entry {
    pub(super) fn new(queue: u16, mut buffers: Pages) -> io::Result<Entry> {
        let iovecs = buffers.iovecs(size_of::<UringReqHeader>(), HEAD_LEN);
        Ok(Entry {
            queue,
            buffers,
            iovecs,
            commit_id: 0,
            names: Box::new([0; NAMES_LEN_MAX]),
            is_registered: false,
            has_request: false,
            is_idle: false,
        })
    }

    fn to_held(&self, core: usize, thread: usize) -> HeldEntry {
        let mut request = Vec::new();
        if self.has_request {
            let (head, payload) = self.buffers.split_at(HEAD_LEN);
            let header = &head[..size_of::<UringReqHeader>()];
            let len = UringReqHeader::read_from_bytes(header)
                .map_or(0, |header| header.ring_ent_in_out.payload_sz as usize);
            request.extend_from_slice(header);
            request.extend_from_slice(&payload[..len.min(payload.len())]);
        }
        let (queue, address, len) = (self.queue, self.buffers.address(), self.buffers.len());
        HeldEntry { core, thread, queue, address, len, request }
    }

    fn from_held(held: &HeldEntry) -> io::Result<Entry> {
        let mut buffers = Pages::at(held.address, held.len)?;
        let has_request = !held.request.is_empty();
        if has_request {
            let invalid = || io::Error::from(io::ErrorKind::InvalidData);
            let split = held.request.split_at_checked(size_of::<UringReqHeader>());
            let (header, payload) = split.ok_or_else(invalid)?;
            let (head, room) = buffers.split_at_mut_checked(HEAD_LEN).ok_or_else(invalid)?;
            head[..header.len()].copy_from_slice(header);
            room.get_mut(..payload.len()).ok_or_else(invalid)?.copy_from_slice(payload);
        }
        let entry = Entry::new(held.queue, buffers)?;
        Ok(Entry { has_request, is_registered: has_request, ..entry })
    }

    /// Serves the request in the buffers, and replaces it by the answer.
    ///
    /// The answer is written to the request's payload buffer. Requests with a long payload (writes, values of
    /// xattrs, targets of symbolic links) have answers of fixed length, which are built in another buffer and
    /// copied. Short payloads are names, and are themselves copied elsewhere, since the answer may be long
    /// (the value of an xattr).
    pub(super) fn serve<H: Handler>(&mut self, dispatcher: &Dispatcher<H>) -> io::Result<()> {
        let (head, payload) = self.buffers.split_at_mut(HEAD_LEN);
        let (head, _) = UringReqHeader::mut_from_prefix(head)
            .map_err(|_| io::Error::other("the ring's headers are misplaced"))?;
        self.commit_id = head.ring_ent_in_out.commit_id;
        let len = head.ring_ent_in_out.payload_sz as usize;
        let dialect = dispatcher.dialect();
        let (header, argument) = (&head.in_out[..], &head.op_in[..]);
        let outcome = if let Some(names) = self.names.get_mut(..len) {
            names.copy_from_slice(&payload[..len]);
            answer(dispatcher, header, argument, names, dialect, payload)?
        } else {
            let request = payload
                .get(..len)
                .ok_or_else(|| io::Error::other("a request is longer than its buffer"))?;
            let mut fixed = [0; encode::FIXED_LEN_MAX];
            let outcome = answer(dispatcher, header, argument, request, dialect, &mut fixed)?;
            payload[..fixed.len()].copy_from_slice(&fixed);
            outcome
        };
        let (unique, result) = outcome;
        head.in_out[..16].copy_from_slice(&encode::header(unique, result));
        head.ring_ent_in_out.payload_sz = result.unwrap_or(0) as u32;
        Ok(())
    }
}

fn answer<H: Handler>(
    dispatcher: &Dispatcher<H>,
    header: &[u8],
    argument: &[u8],
    payload: &[u8],
    dialect: Dialect,
    out: &mut [u8],
) -> io::Result<(u64, Result<usize, Errno>)> {
    let frame = Frame::split(header, argument, payload, dialect)
        .map_err(|malformed| io::Error::new(io::ErrorKind::InvalidData, malformed))?;
    let result = match dispatcher.serve(&frame, out) {
        Outcome::Reply(result) => result,
        // Requests without an answer are never sent over rings, but the entry must be returned.
        Outcome::Silent => Ok(0),
    };
    Ok((frame.unique().0, result))
}

/// Whether a core is online, so that programs on it can make requests. The first core is practically always
/// online, and may lack the file that says so.
pub(crate) fn is_online(core: u16) -> bool {
    let directory = format!("/sys/devices/system/cpu/cpu{core}");
    match std::fs::read_to_string(format!("{directory}/online")) {
        Ok(online) => online.trim() != "0",
        Err(_) => std::path::Path::new(&directory).exists(),
    }
}
