//! A device whose requests take the time that a model says.
//!
//! Requests are served one at a time, as by a disk with one arm. The model is a [`ServiceTime`];
//! how the time passes is a [`Sleeper`]'s business: [`RealTime`] waits, [`VirtualTime`] only adds
//! up, so that a test of an hour's disk work ends at once and always with the same figure.

use std::io::{self, IoSlice};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::Mutex;

use super::{BlockDevice, Geometry, Request};

#[cfg(test)]
mod tests;

/// A model of a device's speed. It may remember where the arm is.
pub trait ServiceTime: Send {
    /// How long the device is busy with `request`, given the requests before it.
    fn service_time(&mut self, request: &Request) -> Duration;
}

impl<F: FnMut(&Request) -> Duration + Send> ServiceTime for F {
    fn service_time(&mut self, request: &Request) -> Duration {
        self(request)
    }
}

/// How time passes.
pub trait Sleeper: Send + Sync {
    /// Lets `duration` pass.
    fn sleep(&self, duration: Duration);
}

impl<S: Sleeper + ?Sized> Sleeper for std::sync::Arc<S> {
    fn sleep(&self, duration: Duration) {
        (**self).sleep(duration);
    }
}

/// Time passes by waiting.
#[derive(Clone, Copy, Debug, Default)]
pub struct RealTime;

impl Sleeper for RealTime {
    fn sleep(&self, duration: Duration) {
        std::thread::sleep(duration);
    }
}

/// Time passes by counting.
#[derive(Debug, Default)]
pub struct VirtualTime {
    nanoseconds: AtomicU64,
}

impl VirtualTime {
    /// How much time has passed.
    pub fn elapsed(&self) -> Duration {
        Duration::from_nanos(self.nanoseconds.load(Ordering::SeqCst))
    }
}

impl Sleeper for VirtualTime {
    fn sleep(&self, duration: Duration) {
        let nanoseconds = u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX);
        self.nanoseconds.fetch_add(nanoseconds, Ordering::SeqCst);
    }
}

struct Arm {
    model: Box<dyn ServiceTime>,
    busy: Duration,
}

/// Delays the requests to `D` as a model says.
pub struct ThrottleDevice<D> {
    inner: D,
    sleeper: Box<dyn Sleeper>,
    /// Held while a request is served: there is one arm.
    arm: Mutex<Arm>,
}

impl<D: BlockDevice> ThrottleDevice<D> {
    /// Delays the requests to `inner` as `model` says.
    pub fn new(
        inner: D,
        model: impl ServiceTime + 'static,
        sleeper: impl Sleeper + 'static,
    ) -> ThrottleDevice<D> {
        let arm = Arm { model: Box::new(model), busy: Duration::ZERO };
        ThrottleDevice { inner, sleeper: Box::new(sleeper), arm: Mutex::new(arm) }
    }

    /// The device below.
    pub fn inner(&self) -> &D {
        &self.inner
    }

    /// How long the device was busy, by the model's account.
    pub fn busy(&self) -> Duration {
        self.arm.lock().busy
    }

    fn serve<T>(&self, request: Request, call: impl FnOnce() -> io::Result<T>) -> io::Result<T> {
        self.geometry().check(request.offset_bytes, request.len_bytes)?;
        let mut arm = self.arm.lock();
        let duration = arm.model.service_time(&request);
        arm.busy += duration;
        self.sleeper.sleep(duration);
        call()
    }
}

impl<D: BlockDevice> BlockDevice for ThrottleDevice<D> {
    fn geometry(&self) -> Geometry {
        self.inner.geometry()
    }

    fn wants_discards(&self) -> bool {
        self.inner.wants_discards()
    }

    fn parallel(&self) -> u32 {
        self.inner.parallel()
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<()> {
        self.serve(Request::read(offset, buf), || self.inner.read_at(offset, buf))
    }

    fn write_at(&self, offset: u64, bufs: &[IoSlice<'_>]) -> io::Result<()> {
        self.serve(Request::write(offset, bufs), || self.inner.write_at(offset, bufs))
    }

    fn barrier(&self) -> io::Result<()> {
        self.serve(Request::BARRIER, || self.inner.barrier())
    }

    fn sync(&self) -> io::Result<()> {
        self.serve(Request::SYNC, || self.inner.sync())
    }

    fn discard(&self, offset: u64, len: u64) -> io::Result<()> {
        self.serve(Request::discard(offset, len), || self.inner.discard(offset, len))
    }

    fn grow(&self, size_bytes: u64) -> io::Result<()> {
        self.inner.grow(size_bytes)
    }
}
