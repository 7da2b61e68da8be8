//! One device: time, completions and busy time around a model of it.
//!
//! An event is an announced completion, or the moment at which the arm of a disk finishes.
//! [`Emulator::submit`] and [`Emulator::advance`] execute the events up to a given time, in order. The device
//! is busy while a request is in flight or its arm is at work.

use std::collections::BTreeSet;

use super::completion::{Completion, RequestId};
use super::counters::Counters;
use super::drive::Drive;
use super::flash::Flash;
use super::profile::{Profile, Spec, Stroke};
use super::quota::Quota;
use super::{Nanos, Request};

/// An emulated device.
#[derive(Clone, Debug)]
pub struct Emulator {
    model: Model,
    counters: Counters,
    now: Nanos,
    last_id: u64,
    in_flight: u64,
    busy_since: Option<Nanos>,
    /// Completions whose time is known and in the future.
    announced: BTreeSet<(Nanos, RequestId)>,
    /// Completions that were not fetched yet.
    completed: Vec<Completion>,
}

#[derive(Clone, Debug)]
enum Model {
    Disk(Box<Drive>),
    Quota(Quota),
    Flash(Flash),
    None,
}

impl Emulator {
    /// A device of `size` bytes at rest at time zero.
    pub fn new(profile: Profile, size: u64, stroke: Stroke) -> Emulator {
        Emulator {
            model: Model::new(profile, size, stroke),
            counters: Counters::default(),
            now: Nanos::ZERO,
            last_id: 0,
            in_flight: 0,
            busy_since: None,
            announced: BTreeSet::new(),
            completed: Vec::new(),
        }
    }

    /// Totals up to the latest time that was passed to this device.
    pub fn counters(&self) -> Counters {
        let mut counters = self.counters;
        if let Some(since) = self.busy_since {
            counters.busy_ns += self.now.since(since).0;
        }
        counters
    }

    /// Accepts a request at `now`, or at the device's latest time if that is later.
    pub fn submit(&mut self, request: Request, now: Nanos) -> RequestId {
        self.run_until(now);
        self.last_id += 1;
        let id = RequestId(self.last_id);
        self.count(request);
        self.in_flight += 1;
        let now = self.now;
        self.busy_since.get_or_insert(now);
        match &mut self.model {
            Model::None => self.announced.extend([(now, id)]),
            Model::Quota(quota) => {
                let bytes = match request {
                    Request::Read(run) | Request::Write(run) => run.bytes(),
                    Request::Flush | Request::Discard(_) => 0,
                };
                self.announced.insert((quota.admit(bytes, now), id));
            }
            Model::Flash(flash) => {
                self.announced.insert((flash.admit(request, now), id));
            }
            Model::Disk(drive) => drive.accept(id, request, now, &mut self.counters),
        }
        self.collect();
        id
    }

    /// The time of the next event if nothing else is submitted.
    pub fn next_event(&self) -> Option<Nanos> {
        let announced = self.announced.first().map(|(at, _)| *at);
        let arm = match &self.model {
            Model::Disk(drive) => drive.next_event(),
            Model::Quota(_) | Model::Flash(_) | Model::None => None,
        };
        [announced, arm].into_iter().flatten().min()
    }

    /// Advances time to `now`; returns the completions, in order.
    pub fn advance(&mut self, now: Nanos) -> Vec<Completion> {
        self.run_until(now);
        std::mem::take(&mut self.completed)
    }

    /// Advances time until `id` has completed, and returns that time: for a caller with one request at a
    /// time.
    pub fn complete(&mut self, id: RequestId) -> Nanos {
        loop {
            if let Some(i) = self.completed.iter().position(|c| c.id == id) {
                return self.completed.swap_remove(i).at;
            }
            match self.next_event() {
                Some(at) => self.run_until(at),
                None => return self.now,
            }
        }
    }

    /// The latest time that was passed to this device.
    pub fn now(&self) -> Nanos {
        self.now
    }

    fn run_until(&mut self, now: Nanos) {
        while let Some(at) = self.next_event().filter(|at| *at <= now) {
            // An event may be overdue; then time does not go back to it.
            self.now = self.now.max(at);
            while let Some(&(due, id)) = self.announced.first().filter(|(due, _)| *due <= at) {
                self.announced.remove(&(due, id));
                self.completed.push(Completion { id, at: due });
                self.in_flight -= 1;
            }
            if let Model::Disk(drive) = &mut self.model {
                drive.step(at, &mut self.counters);
            }
            self.collect();
            self.account();
        }
        self.now = self.now.max(now);
    }

    fn collect(&mut self) {
        if let Model::Disk(drive) = &mut self.model {
            self.announced.extend(drive.announcements().map(|c| (c.at, c.id)));
        }
    }

    fn account(&mut self) {
        let at_work = match &self.model {
            Model::Disk(drive) => drive.is_at_work(),
            Model::Quota(_) | Model::Flash(_) | Model::None => false,
        };
        if self.in_flight > 0 || at_work {
            self.busy_since.get_or_insert(self.now);
        } else if let Some(since) = self.busy_since.take() {
            self.counters.busy_ns += self.now.since(since).0;
        }
    }

    fn count(&mut self, request: Request) {
        let c = &mut self.counters;
        match request {
            Request::Read(run) => {
                c.reads += 1;
                c.read_bytes += run.bytes();
            }
            Request::Write(run) => {
                c.writes += 1;
                c.write_bytes += run.bytes();
            }
            Request::Flush => c.flushes += 1,
            Request::Discard(_) => c.discards += 1,
        }
    }
}

impl Model {
    fn new(profile: Profile, size: u64, stroke: Stroke) -> Model {
        match profile.spec() {
            Spec::Disk(disk) => Model::Disk(Box::new(Drive::new(&disk, size, stroke))),
            Spec::Quota(quota) => Model::Quota(Quota::new(quota)),
            Spec::Flash(flash) => Model::Flash(Flash::new(flash)),
            Spec::None => Model::None,
        }
    }
}
