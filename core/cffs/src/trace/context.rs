//! The operation of the current thread, and the operations for which it works.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, HashMap};
use std::marker::PhantomData;
use std::ops::Range;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::Instant;

use super::causes::{Causes, shares};
use super::op::{OpId, OpKind, Share, Way};
use crate::units::BlockNo;

/// The number of the next operation, in whatever volume of this process.
static NEXT: AtomicU64 = AtomicU64::new(1);

/// The number of the next thread that makes a request.
static NEXT_TRACK: AtomicU32 = AtomicU32::new(1);

/// The operation of a thread. It gets its number, and the time at which it began, when it first causes a
/// request or a change: most operations are served from memory, and beginning one must cost little. Between
/// operations all fields except `kind` have their initial values.
struct Current {
    /// The kind of the operation; none between operations.
    kind: Cell<Option<OpKind>>,
    ino: Cell<u64>,
    id: Cell<Option<OpId>>,
    started_ns: Cell<u64>,
    is_read_ahead: Cell<bool>,
    is_hidden: Cell<bool>,
}

/// An operation that has caused something, and has ended.
pub(super) struct Ended {
    pub(super) id: OpId,
    pub(super) ino: u64,
    pub(super) started_ns: u64,
}

thread_local! {
    static CURRENT: Current = const {
        Current {
            kind: Cell::new(None),
            ino: Cell::new(0),
            id: Cell::new(None),
            started_ns: Cell::new(0),
            is_read_ahead: Cell::new(false),
            is_hidden: Cell::new(false),
        }
    };
    static PROCESS: Cell<u32> = const { Cell::new(0) };
    static WRITING: RefCell<Option<Writing>> = const { RefCell::new(None) };
    static TRACK: u32 = NEXT_TRACK.fetch_add(1, Ordering::Relaxed);
}

/// Sets the process to which a recording attributes the operations of this thread from now on; 0 if that is
/// not known. It is the kernel's number of the calling thread.
pub fn set_process(process: u32) {
    PROCESS.set(process);
}

/// The process of this thread's operations; 0 if it is not known.
pub(crate) fn process() -> u32 {
    PROCESS.get()
}

/// The number of this thread, under which a trace shows its requests.
pub(super) fn track() -> u32 {
    TRACK.with(|track| *track)
}

/// The blocks of a set that is being written, for their causes.
struct Writing {
    block_bytes: u64,
    /// By the block's place in bytes.
    causes: BTreeMap<u64, Causes>,
    /// The places of those that are written as a record of the journal.
    record: Option<Vec<u64>>,
}

/// The time since the first call in this process.
pub(super) fn now_ns() -> u64 {
    static ORIGIN: OnceLock<Instant> = OnceLock::new();
    ORIGIN.get_or_init(Instant::now).elapsed().as_nanos() as u64
}

/// Begins an operation on this thread; false if one is in progress, to which this belongs.
pub(super) fn begin(kind: OpKind, ino: u64, at_once: bool) -> bool {
    CURRENT.with(|current| {
        if current.kind.get().is_some() {
            return false;
        }
        current.kind.set(Some(kind));
        current.ino.set(ino);
        if at_once {
            numbered(current, kind);
        }
        true
    })
}

/// Ends the operation of this thread; returns it if it has caused something.
pub(super) fn end() -> Option<Ended> {
    CURRENT.with(|current| {
        current.kind.set(None);
        let id = current.id.take()?;
        Some(Ended { id, ino: current.ino.get(), started_ns: current.started_ns.get() })
    })
}

/// The operation to which changes by this thread belong, if it has a recorded one.
#[inline]
pub fn cause() -> Option<OpId> {
    CURRENT.with(|current| {
        let kind = current.kind.get().filter(|_| !current.is_hidden.get())?;
        Some(numbered(current, kind))
    })
}

/// The operation to which a request that this thread makes belongs.
pub(super) fn requester() -> OpId {
    CURRENT.with(|current| current.kind.get().map_or(OpId::VOLUME, |kind| numbered(current, kind)))
}

/// How a request of this thread is related to that operation.
pub(super) fn way() -> Way {
    let is_read_ahead = CURRENT.with(|current| current.is_read_ahead.get());
    if is_read_ahead { Way::ReadAhead } else { Way::Direct }
}

fn numbered(current: &Current, kind: OpKind) -> OpId {
    current.id.get().unwrap_or_else(|| {
        let id = OpId::new(kind, PROCESS.get(), NEXT.fetch_add(1, Ordering::Relaxed));
        current.id.set(Some(id));
        current.started_ns.set(now_ns());
        id
    })
}

/// A setting of this thread until it is dropped.
pub struct Scope {
    undo: Undo,
    /// It is of the thread that made it.
    _thread: PhantomData<*const ()>,
}

enum Undo {
    Nothing,
    Hidden,
    ReadAhead,
    Writing,
    Record,
}

impl Scope {
    fn new(undo: Undo) -> Scope {
        Scope { undo, _thread: PhantomData }
    }
}

impl Drop for Scope {
    fn drop(&mut self) {
        match self.undo {
            Undo::Nothing => {}
            Undo::Hidden => CURRENT.with(|current| current.is_hidden.set(false)),
            Undo::ReadAhead => {
                CURRENT.with(|current| current.is_read_ahead.set(false));
                end();
            }
            Undo::Writing => WRITING.set(None),
            Undo::Record => WRITING.with_borrow_mut(|writing| {
                if let Some(writing) = writing {
                    writing.record = None;
                }
            }),
        }
    }
}

/// Changes within the scope are made for other operations: [`Causes`] name them.
pub fn hide() -> Scope {
    CURRENT.with(|current| match current.is_hidden.replace(true) {
        true => Scope::new(Undo::Nothing),
        false => Scope::new(Undo::Hidden),
    })
}

/// Reads within the scope belong to an operation of another thread.
pub fn read_ahead_for(op: Option<OpId>) -> Scope {
    let Some(op) = op.filter(|op| begin(op.kind(), 0, false)) else {
        return Scope::new(Undo::Nothing);
    };
    CURRENT.with(|current| {
        current.id.set(Some(op));
        current.is_read_ahead.set(true);
    });
    Scope::new(Undo::ReadAhead)
}

/// Within the scope these blocks are written.
pub fn write_for(causes: HashMap<BlockNo, Causes>, block_bytes: u32) -> Scope {
    if causes.is_empty() {
        return Scope::new(Undo::Nothing);
    }
    let block_bytes = u64::from(block_bytes);
    let causes = causes.into_iter().map(|(block, causes)| (block.0 * block_bytes, causes));
    WRITING.set(Some(Writing { block_bytes, causes: causes.collect(), record: None }));
    Scope::new(Undo::Writing)
}

/// Within the scope these blocks, of those of [`write_for`], are written to another place.
pub fn as_record(blocks: impl Iterator<Item = BlockNo>) -> Scope {
    WRITING.with_borrow_mut(|writing| {
        let Some(writing) = writing else { return Scope::new(Undo::Nothing) };
        writing.record = Some(blocks.map(|block| block.0 * writing.block_bytes).collect());
        Scope::new(Undo::Record)
    })
}

/// Causes of the blocks that are in the journal and not at their places yet.
#[derive(Default)]
pub(super) struct Journaled {
    /// Where the journal is, in bytes.
    pub(super) area: Range<u64>,
    block_bytes: u64,
    causes: BTreeMap<u64, Causes>,
}

impl Journaled {
    /// Forgets the causes of blocks in the journal.
    pub(super) fn clear(&mut self) {
        self.causes.clear();
    }

    /// The shares of a write, and how it came about.
    pub(super) fn attribute(&self, offset: u64, len: u64) -> (Vec<Share>, Way) {
        let otherwise = requester();
        let alone = |way| (shares([None].into_iter(), otherwise), way);
        WRITING.with_borrow(|writing| {
            let record = writing.as_ref().and_then(|writing| writing.record.as_ref());
            match (writing, record) {
                _ if self.area.contains(&offset) => match (writing, record) {
                    (Some(writing), Some(record)) if len > writing.block_bytes => {
                        let causes = record.iter().map(|place| writing.causes.get(place));
                        (shares(causes, otherwise), Way::Journal)
                    }
                    // A header of the journal.
                    _ => alone(Way::Journal),
                },
                _ if self.within(offset, len).next().is_some() => {
                    let places = places(offset, len, self.block_bytes);
                    let causes = places.map(|place| self.causes.get(&place));
                    (shares(causes, otherwise), Way::Drain)
                }
                (Some(_), Some(_)) => alone(Way::Drain),
                (Some(writing), None) => {
                    let places = places(offset, len, writing.block_bytes);
                    let causes = places.map(|place| writing.causes.get(&place));
                    (shares(causes, otherwise), Way::WriteBack)
                }
                (None, _) => alone(way()),
            }
        })
    }

    /// The shares of a record that the device writes by itself.
    pub(super) fn attribute_record() -> Vec<Share> {
        let otherwise = requester();
        WRITING.with_borrow(|writing| {
            let Some(writing) = writing else { return shares([None].into_iter(), otherwise) };
            let record = writing.record.as_deref().unwrap_or_default();
            shares(record.iter().map(|place| writing.causes.get(place)), otherwise)
        })
    }

    /// Notes that a write succeeded.
    pub(super) fn written(&mut self, offset: u64, len: u64) {
        if !self.area.contains(&offset) {
            let drained: Vec<u64> = self.within(offset, len).collect();
            for place in &drained {
                self.causes.remove(place);
            }
            return;
        }
        WRITING.with_borrow(|writing| {
            let Some(writing) = writing else { return };
            let Some(record) = &writing.record else { return };
            if len > writing.block_bytes {
                self.block_bytes = writing.block_bytes;
                for place in record {
                    let causes = writing.causes.get(place).cloned().unwrap_or_default();
                    self.causes.insert(*place, causes);
                }
            }
        });
    }

    /// The places of journaled blocks in a range.
    fn within(&self, offset: u64, len: u64) -> impl Iterator<Item = u64> + '_ {
        let range = offset..offset.saturating_add(len);
        self.causes.range(range).map(|(place, _)| *place)
    }
}

/// The places of the blocks of a range.
fn places(offset: u64, len: u64, block_bytes: u64) -> impl ExactSizeIterator<Item = u64> {
    let blocks = len.div_ceil(block_bytes.max(1)) as usize;
    (0..blocks).map(move |index| offset + index as u64 * block_bytes)
}
