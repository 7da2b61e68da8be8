//! The run queue: runs that prefetch threads read in the background.
//!
//! Otherwise a sequential reader would wait for each run, and the device would idle between runs. Within
//! [`BufferCache::with_prefetch`], a run is *in flight* from when it is queued until its blocks are in
//! memory, and a reader that misses one of them waits for that run alone. Without it nothing is queued, and
//! every run is read by the thread that needs it, so that tests and tools see the same requests each time.
//!
//! ```text
//!   queue ──▶ queued ──▶ at the device ──▶ taken over ──▶ in memory, or gone if reading failed
//!             └──────────────── in flight ─────────┘
//! ```
//!
//! Adjacent runs reach the device in their order, two at a time, the second a moment after the first: if two
//! threads sent them at once, either could be first, and an arm that begins with the second loses a rotation.
//! A device that answers many requests at once has no arm, so all queued runs are sent to it.
//!
//! A request is as long as the device accepts, since its cost hardly depends on its length. But if nothing is
//! in flight, a reader waits for the first block of a run, so its requests begin short; those of a stream are
//! queued before they are needed, and grow with its window.
//!
//! Lock order: the queue's lock is a leaf. A thread that serves the queue takes no segment lock, because
//! a reader waits for it while it holds one.

use std::collections::{BTreeMap, VecDeque};
use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use super::BufferCache;
use crate::device::LongBuffer;
use crate::error::Result;
use crate::lock::{self, Condvar, Mutex, Rank, Rule};
use crate::trace::{self, OpId};
use crate::tuning::Tuning;
use crate::units::{BlockNo, Class};

/// The runs that are prefetched in the background.
pub(super) struct RunQueue {
    /// The longest run that is queued as one request, in blocks.
    request_blocks: u64,
    /// The most runs in flight; beyond that nothing is prefetched.
    runs_max: usize,
    /// The delay of the second of two adjacent runs while the device has the first.
    pub(super) head_start: Duration,
    /// Whether all queued runs are sent to the device at once, in any order.
    is_parallel: bool,
    /// The number of prefetch threads.
    threads: AtomicUsize,
    /// The number of runs in flight.
    count: AtomicUsize,
    state: Mutex<State>,
    /// Signals a run to read, the end of a request, or the end of the queue.
    queued: Condvar,
    /// A run is no longer in flight.
    arrived: Condvar,
}

#[derive(Default)]
struct State {
    /// Runs that no thread has taken yet.
    queue: VecDeque<Run>,
    /// The runs that were sent to the device, with their start times.
    at_device: Vec<(Run, Instant)>,
    /// All runs, from first block to end.
    in_flight: BTreeMap<u64, u64>,
    ended: bool,
}

#[derive(Clone, Copy)]
struct Run {
    first: u64,
    end: u64,
    /// Whether the first use of a block of this run continues a stream.
    triggers: bool,
    class: Class,
    /// The operation that caused it.
    cause: Option<OpId>,
}

/// The runs to read.
enum Ready {
    /// The run at this place of the queue.
    Run(usize),
    /// Nothing before this moment.
    From(Instant),
    /// Nothing until something changes.
    Nothing,
}

impl RunQueue {
    /// Nothing is in flight.
    pub(super) fn new(tuning: &Tuning, block_bytes: u32) -> RunQueue {
        RunQueue {
            request_blocks: tuning.request_blocks(block_bytes),
            runs_max: tuning.reading.runs_max,
            head_start: tuning.reading.head_start,
            is_parallel: tuning.device.is_parallel(),
            threads: AtomicUsize::default(),
            count: AtomicUsize::default(),
            state: Mutex::new(Rank::Leaf, State::default()),
            queued: Condvar::default(),
            arrived: Condvar::default(),
        }
    }

    fn is_served(&self) -> bool {
        self.threads.load(Ordering::Relaxed) > 0
    }

    /// Adds the parts of a run that are not in flight. If nothing is in flight, its requests grow from
    /// `short` blocks on.
    pub(super) fn push(&self, run: Range<u64>, short: u64, triggers: bool, class: Class) {
        let Range { start: first, end } = run;
        let mut state = self.state.lock();
        let mut longest = if state.in_flight.is_empty() { short } else { self.request_blocks };
        let mut at = first;
        while at < end && !state.ended && state.in_flight.len() < self.runs_max {
            let (before, next) = state.around(at);
            if before > at {
                at = before;
                continue;
            }
            let to = end.min(next).min(at + longest.min(self.request_blocks));
            assert!(at < to && to <= next, "runs in flight do not overlap");
            longest = (longest * 2).min(self.request_blocks);
            state.in_flight.insert(at, to);
            let triggers = triggers && (at == first || self.is_parallel);
            let cause = trace::cause();
            state.queue.push_back(Run { first: at, end: to, triggers, class, cause });
            at = to;
        }
        self.count.store(state.in_flight.len(), Ordering::Relaxed);
        drop(state);
        self.queued.notify_all();
    }

    pub(super) fn is_in_flight(&self, block: u64) -> bool {
        self.count.load(Ordering::Relaxed) > 0 && self.state.lock().around(block).0 > block
    }

    /// The blocks around one that is not in flight, up to the next ones that are.
    pub(super) fn idle_around(&self, block: u64) -> (u64, u64) {
        if self.count.load(Ordering::Relaxed) == 0 {
            return (0, u64::MAX);
        }
        self.state.lock().around(block)
    }

    /// Waits until the block is not in flight, after `before_waiting` if it is.
    pub(super) fn wait_for(&self, block: u64, before_waiting: impl FnOnce()) {
        if !self.is_in_flight(block) {
            return;
        }
        before_waiting();
        let mut state = self.state.lock();
        while state.around(block).0 > block {
            self.arrived.wait(&mut state);
        }
    }

    /// The next run to read; `None` when no more will come.
    fn next(&self) -> Option<Run> {
        let mut state = self.state.lock();
        loop {
            if state.ended {
                return None;
            }
            let now = Instant::now();
            let ready = if !self.is_parallel {
                state.ready(now, self.head_start)
            } else if state.queue.is_empty() {
                Ready::Nothing
            } else {
                Ready::Run(0)
            };
            match ready {
                Ready::Run(at) => {
                    let run = state.queue.remove(at)?;
                    state.at_device.push((run, now));
                    // A thread may wait for the run after this one until a certain time, so it is woken.
                    self.queued.notify_all();
                    return Some(run);
                }
                Ready::From(then) => {
                    self.queued.wait_until(&mut state, then);
                }
                Ready::Nothing => self.queued.wait(&mut state),
            }
        }
    }

    /// The device has finished a run.
    fn left_device(&self, run: Run) {
        let mut state = self.state.lock();
        state.at_device.retain(|(asked, _)| asked.first != run.first);
        drop(state);
        self.queued.notify_all();
    }

    /// The runs in flight between these two blocks have arrived.
    pub(super) fn done(&self, from: u64, to: u64) {
        let mut state = self.state.lock();
        let end = state.in_flight.remove(&from);
        assert!(end.is_some_and(|end| to <= end), "what arrives was in flight");
        if let Some(end) = end.filter(|end| to < *end) {
            state.in_flight.insert(to, end);
        }
        self.count.store(state.in_flight.len(), Ordering::Relaxed);
        drop(state);
        if Rule::ArrivalsWake.holds() {
            self.arrived.notify_all();
        }
    }

    pub(super) fn begin(&self, threads: usize) {
        self.state.lock().ended = false;
        self.threads.store(threads, Ordering::Relaxed);
    }

    fn end(&self) {
        self.threads.store(0, Ordering::Relaxed);
        let mut state = self.state.lock();
        state.ended = true;
        for run in std::mem::take(&mut state.queue) {
            state.in_flight.remove(&run.first);
        }
        self.count.store(state.in_flight.len(), Ordering::Relaxed);
        drop(state);
        self.queued.notify_all();
        self.arrived.notify_all();
    }
}

/// Ends the threads when the work that they accompany ends, in any way.
struct End<'a>(&'a RunQueue);

impl Drop for End<'_> {
    fn drop(&mut self) {
        self.0.end();
    }
}

impl State {
    /// The first run in the queue that may be sent to a device with an arm. A run waits while its predecessor
    /// is queued, and as the third of adjacent runs. If the predecessor was sent just now, all others wait,
    /// since the next run may be far away.
    fn ready(&self, now: Instant, head_start: Duration) -> Ready {
        let mut waiting: Vec<u64> = Vec::new();
        let predecessor =
            |run: &Run| self.at_device.iter().find(|(asked, _)| asked.end == run.first);
        for (at, run) in self.queue.iter().enumerate() {
            match predecessor(run) {
                _ if waiting.contains(&run.first) => {}
                Some((asked, _)) if predecessor(asked).is_some() => {}
                Some((_, since)) if now < *since + head_start => {
                    return Ready::From(*since + head_start);
                }
                _ => return Ready::Run(at),
            }
            waiting.push(run.end);
        }
        Ready::Nothing
    }

    /// The end of the last run in flight that begins at the block or before it, and the beginning of
    /// the first one after it.
    fn around(&self, block: u64) -> (u64, u64) {
        let before = self.in_flight.range(..=block).next_back().map_or(0, |(_, end)| *end);
        let next = self.in_flight.range(block + 1..).next().map_or(u64::MAX, |(first, _)| *first);
        (before, next)
    }
}

impl BufferCache {
    /// Does `work` while threads read the queued runs. Two threads keep the device busy while one of them
    /// takes over its data; with a device that answers more requests at once, there are as many threads. One
    /// call at a time.
    pub fn with_prefetch<T>(&self, threads: usize, work: impl FnOnce() -> T) -> T {
        let threads = threads.max(self.tuning.device.parallel as usize);
        lock::scope(|scope| {
            self.device.control().expect_chosen_reads();
            self.queue.begin(threads);
            let _end = End(&self.queue);
            for _ in 0..threads {
                scope.spawn(|| self.serve());
            }
            work()
        })
    }

    fn serve(&self) {
        let request_bytes = self.queue.request_blocks as usize * self.layout.block_bytes as usize;
        let mut buffer = LongBuffer::new(request_bytes);
        while let Some(run) = self.queue.next() {
            let marked = if run.triggers { self.marked_blocks() } else { 0 };
            let first = BlockNo(run.first);
            let _segment = (!Rule::ServedWithoutSegment.holds()).then(|| self.clean.reading(first));
            let fetched = {
                let _for = trace::read_ahead_for(run.cause);
                self.fetch(first, BlockNo(run.end), buffer.bytes())
            };
            self.queue.left_device(run);
            let mut at = run.first;
            if let Ok(fetched) = fetched {
                while at < run.end {
                    let to = run.end.min(at + self.short_blocks());
                    self.clean.take_over(&fetched, at..to, None, marked);
                    self.clean.let_stay(at..to, run.class);
                    self.queue.done(at, to);
                    at = to;
                }
            } else {
                // A reader that needs blocks that could not be read reads them again, and gets the error.
                self.queue.done(run.first, run.end);
            }
        }
    }

    /// The longest request that the device accepts, in blocks.
    pub(super) fn request_blocks(&self) -> u64 {
        self.queue.request_blocks
    }

    /// The first request of a run that a reader waits for, in blocks.
    fn short_blocks(&self) -> u64 {
        (self.tuning.reading.request_bytes_first / u64::from(self.layout.block_bytes)).max(1)
    }

    /// The number of blocks at the start of a stream's run that trigger the next run. More than one, since a
    /// reader may skip some.
    fn marked_blocks(&self) -> u64 {
        (self.tuning.reading.marked_bytes / u64::from(self.layout.block_bytes)).max(1)
    }

    /// Whether threads prefetch in the background.
    pub fn has_prefetchers(&self) -> bool {
        self.queue.is_served()
    }

    /// Whether the block is in memory, or in flight.
    pub fn claims(&self, block: BlockNo) -> bool {
        self.resident(block) || self.queue.is_in_flight(block.0)
    }

    /// Reads runs into memory: queues them for the prefetch threads, or without those reads them here, in as
    /// few requests as possible. Errors are left to the readers that need the blocks.
    pub fn prefetch(&self, runs: impl IntoIterator<Item = Range<u64>>, class: Class) {
        for run in runs {
            if self.prefetch_run(run, class).is_err() {
                return;
            }
        }
    }

    /// Prefetches runs that a reader uses in this order. A read right after them continues a stream. If the
    /// device answers many requests at once and the stream's window is long, its next runs are prefetched as
    /// well: the reader requests more only when it has used these, and would then wait for the device.
    pub fn prefetch_in_sequence(&self, runs: Vec<Range<u64>>, class: Class) {
        let ([first, ..], [.., last]) = (&runs[..], &runs[..]) else { return };
        let from = last.start;
        let slides = self.streams.read(first.start, last.clone());
        self.prefetch(runs, class);
        if slides && self.has_prefetchers() {
            self.continue_stream(from, BlockNo(self.layout.blocks));
        }
    }

    pub(super) fn prefetch_run(&self, run: Range<u64>, class: Class) -> Result<()> {
        assert!(run.end <= self.layout.blocks, "prefetched runs are on the volume");
        if self.queue.is_served() {
            self.queue_run(run, class);
            return Ok(());
        }
        let longest = self.tuning.reading.request_bytes / u64::from(self.layout.block_bytes);
        let mut next = run.start;
        while next < run.end {
            let to = run.end.min(next + longest.max(1));
            self.read_between(BlockNo(next), BlockNo(to), None, 0)?;
            self.clean.let_stay(next..to, class);
            next = to;
        }
        Ok(())
    }

    /// Queues a run that a reader may wait for.
    pub(super) fn queue_run(&self, run: Range<u64>, class: Class) {
        let (short, longest) = (self.short_blocks(), self.queue.request_blocks);
        // A first request that is almost as long as the longest would only add a request. On a device that
        // gets all of a run at once, the first request shares its bandwidth with the others.
        let is_whole = longest < 2 * short || self.queue.is_parallel;
        let short = if is_whole { longest } else { short };
        self.queue.push(run, short, false, class);
    }

    /// Queues the next run of a stream when its last run is used.
    pub(super) fn continue_stream(&self, block: u64, until: BlockNo) {
        let limit = self.horizon().min(until.0);
        let Some(run) = self.streams.next_run(block, limit) else { return };
        let missing = |number: &u64| !self.resident(BlockNo(*number));
        let end = run.clone().take_while(missing).last().map_or(run.start, |last| last + 1);
        if run.start < end {
            self.queue.push(run.start..end, self.queue.request_blocks, true, Class::Files);
        }
    }
}
