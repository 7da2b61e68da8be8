//! Reading ahead behind the reader's back: runs that threads of the front end read meanwhile.
//!
//! Who reads in order would else wait for each run, and the device for whoever digests it. Within
//! [`BufferCache::with_read_ahead`], a run is *awaited* from when it is ordered until its blocks are
//! in memory, and who misses one of them waits for that run alone. Elsewhere nothing is ordered, and
//! every run is read by who needs it: so tests and tools see the same requests each time.
//!
//! ```text
//!   order ──▶ queued ──▶ at the device ──▶ taken over ──▶ in memory, or gone if reading failed
//!             └──────────────── awaited ───────────┘
//! ```
//!
//! Of runs that lie one behind the other the device is asked in this order, for two at a time, the
//! second a moment after the first: if two threads asked at once, either could be first, and an arm
//! that begins with the second loses a rotation.
//!
//! A request is as long as the device takes, since what it costs hardly depends on its length. But
//! where nothing is awaited somebody waits for the first block of a run, so its requests begin short;
//! those of a stream are ordered before they are needed, and grow with its window.

use std::collections::{BTreeMap, VecDeque};
use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};

use super::{BufferCache, MARKED_BLOCKS, REQUEST_BLOCKS_MAX};
use crate::device::LongBuffer;
use crate::error::Result;
use crate::units::BlockNo;

/// No more runs than this are awaited; what exceeds that is not read ahead.
const AWAITED_MAX: usize = 1024;
/// How much is ordered at once where somebody waits, and taken over before it is no longer awaited.
const SHORT_BYTES: u64 = 1 << 20;
/// The part of the cache that one order may fill.
const ORDER_CACHE_PART: u64 = 16;

/// How long a thread takes at most from taking a run to asking the device for it, if it is not held
/// up.
const HEAD_START: Duration = Duration::from_micros(200);

/// The longest run in blocks that is ordered at once. The kernel cuts what is longer than a disk takes,
/// and sends the pieces in any order. So it is what the disk takes, or if that is little, as many times
/// that as come to [`SHORT_BYTES`].
pub(super) fn order_blocks(longest: Option<u64>, block_bytes: u32, cache_blocks: u64) -> u64 {
    let block_bytes = u64::from(block_bytes);
    let short = SHORT_BYTES / block_bytes;
    match longest.map(|bytes| bytes / block_bytes) {
        Some(little) if (1..short).contains(&little) => short / little * little,
        Some(0) => short,
        most => {
            let part = (cache_blocks / ORDER_CACHE_PART).clamp(short, REQUEST_BLOCKS_MAX);
            most.unwrap_or(REQUEST_BLOCKS_MAX).min(part)
        }
    }
}

/// The runs that are read behind the readers' backs.
pub(super) struct Behind {
    /// The longest run that is ordered at once, in blocks.
    order_blocks: u64,
    /// How long the second of two runs in a row waits while the device has the first.
    pub(super) head_start: Duration,
    /// Threads that serve.
    threads: AtomicUsize,
    /// How many runs are awaited.
    count: AtomicUsize,
    state: Mutex<State>,
    /// There is a run to read, or one less at the device, or no more will come.
    ordered: Condvar,
    /// A run is no longer awaited.
    arrived: Condvar,
}

#[derive(Default)]
struct State {
    /// Runs that nobody reads yet.
    queue: VecDeque<Order>,
    /// The runs that the device is asked for, since when.
    at_device: Vec<(Order, Instant)>,
    /// All runs, from first block to end.
    awaited: BTreeMap<u64, u64>,
    ended: bool,
}

#[derive(Clone, Copy)]
struct Order {
    first: u64,
    end: u64,
    /// Whether a stream goes on when its blocks are read.
    goes_on: bool,
    stay: Stay,
}

/// How long what was read ahead stays in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stay {
    /// Until it was used, if that is soon: contents.
    UntilUsed,
    /// As long as what was used already: sectors, which are little, while all the contents of the
    /// directories before theirs are read.
    AmongUsed,
}

/// What there is to read.
enum Ready {
    /// The run at this place of the queue.
    Run(usize),
    /// Nothing before this moment.
    From(Instant),
    /// Nothing until something changes.
    Nothing,
}

impl Behind {
    /// Nothing is awaited; no more than `order_blocks` are ordered at once.
    pub(super) fn new(order_blocks: u64) -> Behind {
        Behind {
            order_blocks,
            head_start: HEAD_START,
            threads: AtomicUsize::default(),
            count: AtomicUsize::default(),
            state: Mutex::default(),
            ordered: Condvar::default(),
            arrived: Condvar::default(),
        }
    }

    fn is_served(&self) -> bool {
        self.threads.load(Ordering::Relaxed) > 0
    }

    /// Adds a run, but for what is awaited already. If nothing is, its orders grow from `short` blocks
    /// on.
    pub(super) fn order(&self, first: u64, end: u64, short: u64, goes_on: bool, stay: Stay) {
        let mut state = self.state.lock();
        let mut longest = if state.awaited.is_empty() { short } else { self.order_blocks };
        let mut at = first;
        while at < end && !state.ended && state.awaited.len() < AWAITED_MAX {
            let (before, next) = state.around(at);
            if before > at {
                at = before;
                continue;
            }
            let to = end.min(next).min(at + longest.min(self.order_blocks));
            longest = (longest * 2).min(self.order_blocks);
            state.awaited.insert(at, to);
            state.queue.push_back(Order {
                first: at,
                end: to,
                goes_on: goes_on && at == first,
                stay,
            });
            at = to;
        }
        self.count.store(state.awaited.len(), Ordering::Relaxed);
        drop(state);
        self.ordered.notify_all();
    }

    pub(super) fn is_awaited(&self, block: u64) -> bool {
        self.count.load(Ordering::Relaxed) > 0 && self.state.lock().around(block).0 > block
    }

    /// The blocks around one that is not awaited, up to the next ones that are.
    pub(super) fn unawaited_around(&self, block: u64) -> (u64, u64) {
        if self.count.load(Ordering::Relaxed) == 0 {
            return (0, u64::MAX);
        }
        self.state.lock().around(block)
    }

    /// Waits until the block is not awaited, after `before_waiting` if it is.
    pub(super) fn wait_for(&self, block: u64, before_waiting: impl FnOnce()) {
        if !self.is_awaited(block) {
            return;
        }
        before_waiting();
        let mut state = self.state.lock();
        while state.around(block).0 > block {
            self.arrived.wait(&mut state);
        }
    }

    /// The next run to read; `None` when no more will come.
    fn next(&self) -> Option<Order> {
        let mut state = self.state.lock();
        loop {
            if state.ended {
                return None;
            }
            let now = Instant::now();
            match state.ready(now, self.head_start) {
                Ready::Run(at) => {
                    let order = state.queue.remove(at)?;
                    state.at_device.push((order, now));
                    // Who waits for a run that follows has to look when.
                    self.ordered.notify_all();
                    return Some(order);
                }
                Ready::From(then) => {
                    self.ordered.wait_until(&mut state, then);
                }
                Ready::Nothing => self.ordered.wait(&mut state),
            }
        }
    }

    /// The device has done its part of a run.
    fn left_device(&self, order: Order) {
        let mut state = self.state.lock();
        state.at_device.retain(|(asked, _)| asked.first != order.first);
        drop(state);
        self.ordered.notify_all();
    }

    /// What is awaited from the first block on is so no longer, up to the second.
    pub(super) fn done(&self, from: u64, to: u64) {
        let mut state = self.state.lock();
        if let Some(end) = state.awaited.remove(&from).filter(|end| to < *end) {
            state.awaited.insert(to, end);
        }
        self.count.store(state.awaited.len(), Ordering::Relaxed);
        drop(state);
        self.arrived.notify_all();
    }

    fn begin(&self, threads: usize) {
        self.state.lock().ended = false;
        self.threads.store(threads, Ordering::Relaxed);
    }

    fn end(&self) {
        self.threads.store(0, Ordering::Relaxed);
        let mut state = self.state.lock();
        state.ended = true;
        for order in std::mem::take(&mut state.queue) {
            state.awaited.remove(&order.first);
        }
        self.count.store(state.awaited.len(), Ordering::Relaxed);
        drop(state);
        self.ordered.notify_all();
        self.arrived.notify_all();
    }
}

/// Ends the threads when the work beside them ends, in whatever way.
struct End<'a>(&'a Behind);

impl Drop for End<'_> {
    fn drop(&mut self) {
        self.0.end();
    }
}

impl State {
    /// The first run in the queue that the device may be asked for: not where it goes on with one that
    /// waits, nor as the second in a row. Where it goes on with what the device was asked for just now,
    /// the others wait with it: the next one may lie far away.
    fn ready(&self, now: Instant, head_start: Duration) -> Ready {
        let mut waiting: Vec<u64> = Vec::new();
        let before = |run: &Order| self.at_device.iter().find(|(asked, _)| asked.end == run.first);
        for (at, order) in self.queue.iter().enumerate() {
            match before(order) {
                _ if waiting.contains(&order.first) => {}
                Some((asked, _)) if before(asked).is_some() => {}
                Some((_, since)) if now < *since + head_start => {
                    return Ready::From(*since + head_start);
                }
                _ => return Ready::Run(at),
            }
            waiting.push(order.end);
        }
        Ready::Nothing
    }

    /// The end of the last awaited run that begins at the block or before it, and the beginning of
    /// the first one behind it.
    fn around(&self, block: u64) -> (u64, u64) {
        let before = self.awaited.range(..=block).next_back().map_or(0, |(_, end)| *end);
        let next = self.awaited.range(block + 1..).next().map_or(u64::MAX, |(first, _)| *first);
        (before, next)
    }
}

impl BufferCache {
    /// Does `work` with threads beside it that read what is ordered; two of them keep the device
    /// busy while one takes over what it has read. One call at a time.
    pub fn with_read_ahead<T>(&self, threads: usize, work: impl FnOnce() -> T) -> T {
        thread::scope(|scope| {
            self.device.expect_chosen_reads();
            self.behind.begin(threads);
            let _end = End(&self.behind);
            for _ in 0..threads {
                scope.spawn(|| self.serve());
            }
            work()
        })
    }

    fn serve(&self) {
        let order_bytes = self.behind.order_blocks as usize * self.layout.block_bytes as usize;
        let mut buffer = LongBuffer::new(order_bytes);
        while let Some(order) = self.behind.next() {
            let marked = if order.goes_on { MARKED_BLOCKS } else { 0 };
            let fetched = self.fetch(BlockNo(order.first), BlockNo(order.end), buffer.bytes());
            self.behind.left_device(order);
            let mut at = order.first;
            if let Ok(fetched) = fetched {
                while at < order.end {
                    let to = order.end.min(at + self.short_blocks());
                    self.take_over(&fetched, at..to, None, marked);
                    self.let_stay(at, to, order.stay);
                    self.behind.done(at, to);
                    at = to;
                }
            } else {
                // Who needs blocks that could not be read reads them again, and has the error.
                self.behind.done(order.first, order.end);
            }
        }
    }

    /// The longest request in blocks that the device takes whole.
    pub(super) fn request_blocks(&self) -> u64 {
        self.behind.order_blocks
    }

    fn short_blocks(&self) -> u64 {
        SHORT_BYTES / u64::from(self.layout.block_bytes)
    }

    /// Whether runs are read behind the reader's back.
    pub fn is_read_behind(&self) -> bool {
        self.behind.is_served()
    }

    /// Whether the block is in memory, or will be.
    pub fn is_coming(&self, block: BlockNo) -> bool {
        self.clean.contains_key(&block) || self.behind.is_awaited(block.0)
    }

    /// Brings a run into memory: orders it if somebody serves, and else reads it, in as few
    /// requests as may be.
    pub(super) fn read_run(&self, first: BlockNo, end: BlockNo, stay: Stay) -> Result<()> {
        if self.behind.is_served() {
            self.order_run(first.0, end.0, stay);
            return Ok(());
        }
        let mut next = first.0;
        while next < end.0 {
            let to = end.0.min(next + REQUEST_BLOCKS_MAX);
            self.read_between(BlockNo(next), BlockNo(to), None, 0)?;
            self.let_stay(next, to, stay);
            next = to;
        }
        Ok(())
    }

    /// Brings runs into memory, one after the other. Errors are left to who needs the blocks.
    pub fn read_runs(&self, runs: impl IntoIterator<Item = Range<u64>>, stay: Stay) {
        for run in runs {
            if self.read_run(BlockNo(run.start), BlockNo(run.end), stay).is_err() {
                return;
            }
        }
    }

    /// Orders a run, for which somebody may wait.
    pub(super) fn order_run(&self, first: u64, end: u64, stay: Stay) {
        let (short, longest) = (self.short_blocks(), self.behind.order_blocks);
        // A request that is hardly shorter than the longest would cost one more, and save nothing.
        let short = if longest >= 2 * short { short } else { longest };
        self.behind.order(first, end, short, false, stay);
    }

    /// Counts as used what is to stay longer than what is used once. Twice, since the cache takes one
    /// use for granted when it moves a block to those that stay.
    fn let_stay(&self, first: u64, end: u64, stay: Stay) {
        if stay == Stay::AmongUsed {
            for block in (first..end).map(BlockNo) {
                self.clean.get(&block);
                self.clean.get(&block);
            }
        }
    }

    /// Orders what a stream reads next, when its last run is needed.
    pub(super) fn stream_on(&self, block: u64, until: BlockNo) {
        let limit = self.horizon().min(until.0);
        let Some(run) = self.streams.go_on(block, limit) else { return };
        let missing = |number: &u64| !self.clean.contains_key(&BlockNo(*number));
        let end = run.clone().take_while(missing).last().map_or(run.start, |last| last + 1);
        if run.start < end {
            self.behind.order(run.start, end, self.behind.order_blocks, true, Stay::UntilUsed);
        }
    }
}
