//! What the thread is doing, and for whom.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, HashMap};
use std::marker::PhantomData;
use std::ops::Range;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use super::causes::{Causes, shares};
use super::op::{OpId, OpKind, Share, Way};
use crate::caller;
use crate::units::BlockNo;

/// The number of the next operation, in whatever volume of this process.
static NEXT: AtomicU64 = AtomicU64::new(1);

/// The operation of a thread. It gets its number, and the time at which it began, when it first causes
/// something: most operations find what they look for in memory.
#[derive(Clone, Copy)]
pub(super) struct Current {
    kind: OpKind,
    pub(super) ino: u64,
    pub(super) id: Option<OpId>,
    pub(super) started_ns: u64,
    way: Way,
    is_hidden: bool,
}

thread_local! {
    static CURRENT: Cell<Option<Current>> = const { Cell::new(None) };
    static WRITING: RefCell<Option<Writing>> = const { RefCell::new(None) };
}

/// The blocks of a set that is being written, for their causes.
struct Writing {
    block_bytes: u64,
    /// By the block's place in bytes.
    causes: BTreeMap<u64, Causes>,
    /// The places of those that are written as a record of the log.
    record: Option<Vec<u64>>,
}

/// The time since this process first asked for it.
pub(super) fn now_ns() -> u64 {
    static ORIGIN: OnceLock<Instant> = OnceLock::new();
    ORIGIN.get_or_init(Instant::now).elapsed().as_nanos() as u64
}

/// Begins an operation on this thread; false if one is under way, to which this belongs.
pub(super) fn begin(kind: OpKind, ino: u64, at_once: bool) -> bool {
    if CURRENT.get().is_some() {
        return false;
    }
    let way = Way::Direct;
    CURRENT.set(Some(Current { kind, ino, id: None, started_ns: 0, way, is_hidden: false }));
    if at_once {
        requester();
    }
    true
}

/// Ends the operation of this thread.
pub(super) fn end() -> Option<Current> {
    CURRENT.take()
}

/// The operation to which what this thread changes belongs, if there is one and it is recorded.
pub fn cause() -> Option<OpId> {
    let current = CURRENT.get()?;
    if current.is_hidden { None } else { Some(numbered(current)) }
}

/// The operation to which a request that this thread makes belongs.
pub(super) fn requester() -> OpId {
    CURRENT.get().map_or(OpId::VOLUME, numbered)
}

pub(super) fn way() -> Way {
    CURRENT.get().map_or(Way::Direct, |current| current.way)
}

fn numbered(current: Current) -> OpId {
    if let Some(id) = current.id {
        return id;
    }
    let id = OpId::new(current.kind, caller::process(), NEXT.fetch_add(1, Ordering::Relaxed));
    CURRENT.set(Some(Current { id: Some(id), started_ns: now_ns(), ..current }));
    id
}

/// What holds on this thread until it is dropped.
pub struct Scope {
    undo: Undo,
    /// It is of the thread that made it.
    _thread: PhantomData<*const ()>,
}

enum Undo {
    Nothing,
    Current(Option<Current>),
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
            // It may have got its number meanwhile.
            Undo::Current(Some(before)) => {
                let now = CURRENT.get().unwrap_or(before);
                CURRENT.set(Some(Current { way: before.way, is_hidden: before.is_hidden, ..now }));
            }
            Undo::Current(None) => CURRENT.set(None),
            Undo::Writing => WRITING.set(None),
            Undo::Record => WRITING.with_borrow_mut(|writing| {
                if let Some(writing) = writing {
                    writing.record = None;
                }
            }),
        }
    }
}

/// What changes within the scope is on behalf of others: it is told of by [`Causes`] alone.
pub fn hide() -> Scope {
    let before = CURRENT.get();
    let Some(current) = before else { return Scope::new(Undo::Nothing) };
    CURRENT.set(Some(Current { is_hidden: true, ..current }));
    Scope::new(Undo::Current(before))
}

/// What is read within the scope was asked for by an operation of another thread.
pub fn read_ahead_for(op: Option<OpId>) -> Scope {
    let (Some(op), None) = (op, CURRENT.get()) else { return Scope::new(Undo::Nothing) };
    CURRENT.set(Some(Current {
        kind: op.kind(),
        ino: 0,
        id: Some(op),
        started_ns: 0,
        way: Way::ReadAhead,
        is_hidden: false,
    }));
    Scope::new(Undo::Current(None))
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

/// What the log has of blocks whose places have not got them yet.
#[derive(Default)]
pub(super) struct Logged {
    /// Where the log lies, in bytes.
    pub(super) area: Range<u64>,
    block_bytes: u64,
    causes: BTreeMap<u64, Causes>,
}

impl Logged {
    /// Forgets what the log has.
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
                        (shares(causes, otherwise), Way::Log)
                    }
                    // A header of the log.
                    _ => alone(Way::Log),
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

    /// The places of logged blocks in a range.
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
