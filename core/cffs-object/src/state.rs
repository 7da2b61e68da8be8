//! The places of the device's bytes at a moment: in the store, in flight, or only in memory.
//!
//! ```text
//!   write ─▶ pending ─▶ in flight ─▶ staged ─▶ committed
//!                           └── by a sync ─────────▲
//! ```
//!
//! A read looks in this order, newest first. Invariant: each of the four is older than those to its left, and
//! only the holder of the writer's lock moves anything to the right. When bytes are sent, their future place
//! is recorded as staged; until they have arrived, memory keeps them in flight, and overrides that place.
//! Objects leave the in-flight queue in the order in which they were sent, so that none hides a newer one.

use std::collections::VecDeque;
use std::mem::take;

use bytes::Bytes;

use crate::chunks::Wanted;
use crate::extents::{Extents, Source};
use crate::format::{self, Object, Place, Record};
use crate::history::History;

/// The uncommitted bytes that are kept in memory; more are sent ahead of their record.
pub const PENDING_BYTES_MAX: u64 = 8 << 20;

/// The current state of the device.
pub struct State {
    /// Its size.
    pub size_bytes: u64,
    /// Whether the size is in no record yet.
    pub is_resized: bool,
    /// The ranges in records.
    pub committed: Extents<Place>,
    staged: Extents<Place>,
    /// Objects in flight, the oldest first.
    in_flight: VecDeque<Extents<Piece>>,
    pending: Extents<Piece>,
    pending_bytes: u64,
    /// The limit of pending bytes at which they are sent ahead.
    pub pending_bytes_max: u64,
}

/// The place of bytes that are in no record yet.
#[derive(Clone)]
pub enum Piece {
    /// In this buffer.
    Memory(Bytes),
    /// Zeros, which are stored nowhere.
    Zeros,
}

impl Source for Piece {
    fn skip(&self, bytes: u64) -> Piece {
        match self {
            Piece::Memory(all) => Piece::Memory(all.slice(bytes as usize..)),
            Piece::Zeros => Piece::Zeros,
        }
    }

    fn continues(&self, _: u64, next: &Piece) -> bool {
        matches!((self, next), (Piece::Zeros, Piece::Zeros))
    }
}

/// The source of bytes for a read: a place in the store, or memory.
#[derive(Clone)]
struct Shown(Option<Place>);

impl Source for Shown {
    fn skip(&self, bytes: u64) -> Shown {
        Shown(self.0.map(|place| place.skip(bytes)))
    }

    fn continues(&self, len: u64, next: &Shown) -> bool {
        self.skip(len).0 == next.0
    }
}

/// The parts of a range of the device: those to read, and those in memory.
pub struct View {
    /// The parts in objects, with targets that begin at the range's first byte.
    pub stored: Vec<Wanted>,
    /// The parts that cover those, the oldest first: first byte of the device, length, piece.
    pub newer: Vec<(u64, u64, Piece)>,
}

impl State {
    /// Fails if the pending pieces contradict each other or the size. Debug builds check this with each
    /// change.
    fn check(&self) {
        self.pending.check();
        let mut bytes = 0;
        for (start, len, piece) in self.pending.iter() {
            assert!(start + len <= self.size_bytes, "a write ends within the device");
            if let Piece::Memory(contents) = piece {
                assert!(contents.len() as u64 >= len, "a piece has all bytes of its range");
                bytes += len;
            }
        }
        // Bytes that were written twice count twice.
        assert!(bytes <= self.pending_bytes, "the pending bytes are counted");
    }

    /// The state after the history.
    pub fn new(history: History) -> State {
        State {
            size_bytes: history.size_bytes,
            is_resized: false,
            committed: history.extents,
            staged: Extents::default(),
            in_flight: VecDeque::new(),
            pending: Extents::default(),
            pending_bytes: 0,
            pending_bytes_max: PENDING_BYTES_MAX,
        }
    }

    /// The parts of a range.
    pub fn view(&self, offset: u64, len: u64) -> View {
        let newer: Vec<_> = self.in_memory().flat_map(|layer| layer.within(offset, len)).collect();
        let mut shown: Extents<Shown> = Extents::default();
        for layer in [&self.committed, &self.staged] {
            for (start, len, place) in layer.within(offset, len) {
                shown.insert(start, len, Shown(Some(place)));
            }
        }
        for (start, len, _) in &newer {
            shown.insert(*start, *len, Shown(None));
        }
        let stored = shown.iter().filter_map(|(start, len, place)| match *place {
            Shown(Some(Place::Stored(object, at))) => {
                Some(Wanted { target: (start - offset) as usize, len, object, at })
            }
            _ => None,
        });
        View { stored: stored.collect(), newer }
    }

    /// Whether any byte of a range may be other than zero.
    pub fn has_any(&self, offset: u64, len: u64) -> bool {
        let older = [&self.committed, &self.staged];
        older.iter().any(|layer| layer.has_any(offset, len))
            || self.in_memory().any(|layer| layer.has_any(offset, len))
    }

    /// The layers in memory, the oldest first.
    fn in_memory(&self) -> impl Iterator<Item = &Extents<Piece>> {
        self.in_flight.iter().chain([&self.pending])
    }

    /// Puts a piece over the range; returns whether the pending bytes should be sent ahead.
    pub fn put(&mut self, offset: u64, len: u64, piece: Piece) -> bool {
        if matches!(piece, Piece::Memory(_)) {
            self.pending_bytes += len;
        }
        self.pending.insert(offset, len, piece);
        if cfg!(debug_assertions) && self.pending.len().is_power_of_two() {
            self.check();
        }
        self.is_much()
    }

    /// Whether the pending bytes should be sent ahead.
    pub fn is_much(&self) -> bool {
        self.pending_bytes >= self.pending_bytes_max
    }

    /// Whether any write is in no record yet.
    pub fn has_uncommitted(&self) -> bool {
        let has_any = !self.staged.is_empty() || self.in_memory().any(|layer| !layer.is_empty());
        has_any || self.is_resized
    }

    /// Moves the pending bytes into flight with a record. Returns the ranges that the record changes, and its
    /// contents; `None` if it would change nothing.
    pub fn send(&mut self, record: Object) -> Option<(Extents<Place>, Vec<u8>)> {
        debug_assert!(record.slot().is_some(), "the contents follow a record");
        let pieces = self.take_pending();
        let is_nothing = pieces.is_empty() && self.staged.is_empty() && !self.is_resized;
        (!is_nothing).then(|| {
            let sent = placed(self.staged.clone(), &pieces, record);
            self.in_flight.push_back(pieces);
            sent
        })
    }

    /// Moves the pending bytes into flight with an object of contents, and returns these, if there are any.
    pub fn send_ahead(&mut self, object: Object) -> Option<Vec<u8>> {
        debug_assert!(object.slot().is_none(), "the record comes later");
        let pieces = self.take_pending();
        if pieces.is_empty() {
            return None;
        }
        let (staged, contents) = placed(take(&mut self.staged), &pieces, object);
        self.staged = staged;
        self.in_flight.push_back(pieces);
        Some(contents)
    }

    /// Drops bytes that are in no record. Nothing may be in flight.
    pub fn drop_uncommitted(&mut self) {
        self.take_pending();
        self.staged = Extents::default();
        self.in_flight.clear();
    }

    fn take_pending(&mut self) -> Extents<Piece> {
        self.pending_bytes = 0;
        take(&mut self.pending)
    }

    /// The oldest object in flight is in the store.
    pub fn arrived(&mut self) {
        let arrived = self.in_flight.pop_front();
        assert!(arrived.is_some(), "an object that arrives was in flight");
    }

    /// Staged and in-flight writes are in a record now.
    pub fn commit(&mut self, record: &Record) {
        if cfg!(debug_assertions) {
            record.extents.check();
            let end = record.extents.iter().last().map_or(0, |(start, len, _)| start + len);
            assert!(
                end <= self.size_bytes.max(record.size_bytes),
                "a record changes the device only"
            );
        }
        format::apply(&mut self.committed, &record.extents);
        self.staged = Extents::default();
        self.in_flight.clear();
        self.is_resized &= self.size_bytes != record.size_bytes;
    }
}

/// The pieces joined, and their places in the object that begins with the first.
fn placed(
    mut extents: Extents<Place>,
    pieces: &Extents<Piece>,
    object: Object,
) -> (Extents<Place>, Vec<u8>) {
    let mut contents = Vec::new();
    for (start, len, piece) in pieces.iter() {
        match piece {
            Piece::Zeros => extents.insert(start, len, Place::Zeros),
            Piece::Memory(bytes) => {
                extents.insert(start, len, Place::Stored(object, contents.len() as u64));
                contents.extend_from_slice(&bytes[..len as usize]);
            }
        }
    }
    (extents, contents)
}
