//! A disk with an arm: its queue, its buffers, and the handling of each request.
//!
//! ```text
//!   accept ─┬─ write, with room in the write cache ─┐
//!           ├─ read of buffered data ───────────────┼──► bus ──► done
//!           ├─ flush of a clean cache, discard ─────┘
//!           └─ everything else ──► queue ──► arm ──────────────► done
//!                    write cache ──────────► arm (destage)
//! ```
//!
//! The arm serves one run at a time. Whenever it is free it takes, from the oldest requests of its queue, the
//! one with the shortest positioning time; a request that was passed over too often goes first. The write
//! cache is written out in the same way: for a flush, when half of it is dirty, and when the arm has been
//! idle for a moment.

use super::buffer::{Lookup, ReadBuffer};
use super::completion::{Completion, RequestId};
use super::counters::Counters;
use super::mechanics::Mechanics;
use super::profile::{DiskSpec, Stroke};
use super::write_cache::{Stamp, WriteCache};
use super::{Nanos, Request, Run, SECTOR_SIZE};

/// A request that was passed over this often is served before all others.
const PATIENCE: u32 = 64;

/// The time for which the arm is idle before it writes out the cache without a flush. Neighbours of cached
/// writes can arrive meanwhile.
const DESTAGE_DELAY: Nanos = Nanos(10_000_000);

#[derive(Clone, Debug)]
pub struct Drive {
    mechanics: Mechanics,
    buffer: ReadBuffer,
    cache: WriteCache,
    overhead: Nanos,
    bus_ns_per_sector: f64,
    bus_free: Nanos,
    queue_depth: usize,
    /// The requests that wait for the arm, the oldest first.
    queue: Vec<Queued>,
    flushes: Vec<(RequestId, Stamp)>,
    arm: Option<Busy>,
    last_stamp: Stamp,
    last_activity: Nanos,
    announcements: Vec<Completion>,
}

#[derive(Clone, Copy, Debug)]
struct Queued {
    id: RequestId,
    run: Run,
    write: bool,
    arrived: Nanos,
    passed_over: u32,
}

#[derive(Clone, Copy, Debug)]
struct Busy {
    until: Nanos,
    run: Run,
    task: Task,
}

#[derive(Clone, Copy, Debug)]
enum Task {
    /// The head was moved to read the data of this request.
    Read(RequestId),
    /// The head reads ahead, and is about to pass over the data of this request.
    CatchUp(RequestId),
    Write(RequestId),
    Destage,
}

impl Drive {
    /// A drive at rest.
    pub fn new(spec: &DiskSpec, size: u64, stroke: Stroke) -> Drive {
        Drive {
            mechanics: spec.mechanics(size, stroke),
            buffer: ReadBuffer::new(spec.buffer),
            cache: WriteCache::new(spec.write_cache_bytes / SECTOR_SIZE),
            overhead: Nanos::from_ms(spec.overhead_ms),
            bus_ns_per_sector: SECTOR_SIZE as f64 * 1e9 / spec.bus_bytes_per_sec,
            bus_free: Nanos::ZERO,
            queue_depth: spec.queue_depth,
            queue: Vec::new(),
            flushes: Vec::new(),
            arm: None,
            last_stamp: Stamp(0),
            last_activity: Nanos::ZERO,
            announcements: Vec::new(),
        }
    }

    pub fn accept(&mut self, id: RequestId, request: Request, now: Nanos, counters: &mut Counters) {
        self.last_activity = now;
        match request {
            Request::Discard(run) => {
                self.cache.discard(run);
                self.announce(id, now + self.overhead);
            }
            Request::Flush if self.cache.is_clean() => self.announce(id, now + self.overhead),
            Request::Flush => self.flushes.push((id, self.last_stamp)),
            Request::Read(run) => {
                self.queue.push(Queued { id, run, write: false, arrived: now, passed_over: 0 });
            }
            Request::Write(run) => {
                self.queue.push(Queued { id, run, write: true, arrived: now, passed_over: 0 });
            }
        }
        self.dispatch(now, counters);
    }

    /// The time at which the arm finishes, or starts to write out the cache.
    pub fn next_event(&self) -> Option<Nanos> {
        match self.arm {
            Some(busy) => Some(busy.until),
            None if self.cache.has_waiting() => Some(self.last_activity + DESTAGE_DELAY),
            None => None,
        }
    }

    /// Executes the event that [`Drive::next_event`] announced.
    pub fn step(&mut self, now: Nanos, counters: &mut Counters) {
        if let Some(busy) = self.arm.take_if(|busy| busy.until <= now) {
            match busy.task {
                Task::Read(id) => {
                    self.mechanics.finish_at(busy.run);
                    self.buffer.start(busy.run, busy.until);
                    self.announce(id, busy.until);
                }
                Task::CatchUp(id) => {
                    self.mechanics.finish_at(busy.run);
                    self.buffer.advance(busy.run, busy.until, &self.mechanics);
                    self.announce(id, busy.until);
                }
                Task::Write(id) => {
                    self.mechanics.finish_at(busy.run);
                    self.announce(id, busy.until);
                }
                Task::Destage => {
                    self.mechanics.finish_at(busy.run);
                    self.cache.settled();
                    self.finish_flushes(busy.until);
                }
            }
        }
        self.dispatch(now, counters);
    }

    /// Whether the arm is serving a request or writing out the cache.
    pub fn is_at_work(&self) -> bool {
        self.arm.is_some()
    }

    /// Completions that became known since the last call.
    pub fn announcements(&mut self) -> impl Iterator<Item = Completion> + '_ {
        self.announcements.drain(..)
    }

    fn announce(&mut self, id: RequestId, at: Nanos) {
        self.announcements.push(Completion { id, at });
    }

    fn finish_flushes(&mut self, now: Nanos) {
        let (cache, announcements) = (&self.cache, &mut self.announcements);
        self.flushes.retain(|&(id, stamp)| {
            let durable = cache.is_durable(stamp);
            if durable {
                announcements.push(Completion { id, at: now });
            }
            !durable
        });
    }

    /// Serves the requests that need no arm, then starts the arm if it is free.
    fn dispatch(&mut self, now: Nanos, counters: &mut Counters) {
        self.serve_from_buffers(now, counters);
        if self.arm.is_some() {
            return;
        }
        let foreground = self.pick_request(now);
        let destage = self.pick_destage(now, foreground.is_some());
        match (foreground, destage) {
            (Some((i, cost)), Some((_, other))) if cost <= other => self.start(i, now, counters),
            (Some((i, _)), None) => self.start(i, now, counters),
            (_, Some((run, _))) => self.start_destage(run, now, counters),
            (None, None) => {}
        }
    }

    fn serve_from_buffers(&mut self, now: Nanos, counters: &mut Counters) {
        let mut i = 0;
        while i < self.queue.len() {
            let q = self.queue[i];
            let served = if q.write {
                let accepted = self.cache.is_enabled() && self.cache.has_room(q.run);
                if accepted {
                    self.last_stamp.0 += 1;
                    self.cache.insert(q.run, self.last_stamp);
                    self.buffer.invalidate(q.run);
                }
                accepted
            } else {
                let held = self.cache.holds(q.run);
                let hit = held || self.buffer.lookup(q.run, now, &self.mechanics) == Lookup::Hit;
                if hit && !held {
                    self.buffer.advance(q.run, now, &self.mechanics);
                }
                counters.buffer_hits += u64::from(hit);
                hit
            };
            if served {
                self.queue.remove(i);
                let begin = now.max(q.arrived + self.overhead).max(self.bus_free);
                let bus = (q.run.sectors as f64 * self.bus_ns_per_sector) as u64;
                self.bus_free = begin + Nanos(bus);
                self.announce(q.id, self.bus_free);
            } else {
                i += 1;
            }
        }
    }

    /// The request to serve next, and its positioning time.
    fn pick_request(&self, now: Nanos) -> Option<(usize, Nanos)> {
        let waits_for_room =
            |q: &Queued| q.write && self.cache.is_enabled() && self.cache.can_ever_hold(q.run);
        let mut best = None;
        for (i, q) in self.queue.iter().take(self.queue_depth).enumerate() {
            if waits_for_room(q) {
                continue;
            }
            if q.passed_over > PATIENCE {
                return Some((i, Nanos::ZERO));
            }
            let cost =
                if !q.write && self.buffer.lookup(q.run, now, &self.mechanics) != Lookup::Miss {
                    Nanos::ZERO
                } else {
                    self.mechanics.positioning(q.run.first, q.write, now)
                };
            if best.is_none_or(|(_, least)| cost < least) {
                best = Some((i, cost));
            }
        }
        best
    }

    /// The dirty run to write out next, if it is due, and its positioning time.
    fn pick_destage(&self, now: Nanos, others_wait: bool) -> Option<(Run, Nanos)> {
        let blocked = self.queue.iter().any(|q| q.write);
        let idle = !others_wait && now >= self.last_activity + DESTAGE_DELAY;
        let flush = self.flushes.first().map(|(_, stamp)| *stamp);
        if !(flush.is_some() || idle || blocked || self.cache.is_pressed()) {
            return None;
        }
        let until = flush.unwrap_or(Stamp(u64::MAX));
        let near = self.mechanics.head_sector();
        self.cache
            .candidates(near, until)
            .map(|run| (run, self.mechanics.positioning(run.first, true, now)))
            .min_by_key(|(_, cost)| *cost)
    }

    fn start(&mut self, i: usize, now: Nanos, counters: &mut Counters) {
        let Queued { id, run, write, arrived, .. } = self.queue.remove(i);
        for other in self.queue.iter_mut().take(self.queue_depth) {
            other.passed_over += 1;
        }
        // The command of a queued request was processed while its predecessor was served.
        let begin = now.max(arrived + self.overhead);
        if let (false, Lookup::Arriving(at)) =
            (write, self.buffer.lookup(run, now, &self.mechanics))
        {
            counters.buffer_hits += 1;
            self.arm = Some(Busy { until: at.max(begin), run, task: Task::CatchUp(id) });
            return;
        }
        self.buffer.halt(begin, &mut self.mechanics);
        if write {
            self.buffer.invalidate(run);
        }
        let task = if write { Task::Write(id) } else { Task::Read(id) };
        self.move_arm(run, write, begin, task, counters);
    }

    fn start_destage(&mut self, run: Run, now: Nanos, counters: &mut Counters) {
        self.buffer.halt(now, &mut self.mechanics);
        self.cache.take(run);
        counters.destages += 1;
        self.move_arm(run, true, now, Task::Destage, counters);
    }

    fn move_arm(&mut self, run: Run, write: bool, at: Nanos, task: Task, counters: &mut Counters) {
        let access = self.mechanics.plan(run, write, at);
        counters.seeks += u64::from(access.moved);
        counters.seek_ns += access.seek.0;
        counters.rotation_ns += access.rotation.0;
        counters.transfer_ns += access.transfer.0;
        self.arm = Some(Busy { until: at + access.total(), run, task });
    }
}
