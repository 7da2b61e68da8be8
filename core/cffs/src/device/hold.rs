//! A device that can hold requests back, for tests of concurrent work.

use std::io::{self, IoSlice};
use std::time::Duration;

use parking_lot::{Condvar, Mutex};

use super::{BlockDevice, Geometry, RequestKind};

#[cfg(test)]
mod tests;

/// A decorator that holds requests of one kind back. The device below does not see them meanwhile.
pub struct HoldDevice<D> {
    inner: D,
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    held: Option<RequestKind>,
    /// Requests that are held back.
    waiting: usize,
}

/// Releases the requests of a device when dropped, so also when a test fails.
pub struct Held<'a, D>(&'a HoldDevice<D>);

impl<D> Drop for Held<'_, D> {
    fn drop(&mut self) {
        self.0.release();
    }
}

impl<D> HoldDevice<D> {
    /// A device that holds nothing back yet.
    pub fn new(inner: D) -> HoldDevice<D> {
        HoldDevice { inner, state: Mutex::default(), changed: Condvar::new() }
    }

    /// The device below.
    pub fn inner(&self) -> &D {
        &self.inner
    }

    /// Holds back requests of this kind until the returned value is dropped.
    pub fn hold(&self, kind: RequestKind) -> Held<'_, D> {
        self.state.lock().held = Some(kind);
        Held(self)
    }

    /// Lets all requests go.
    pub fn release(&self) {
        self.state.lock().held = None;
        self.changed.notify_all();
    }

    /// Waits until a request is held back; false if none came in time.
    pub fn wait_for_request(&self, timeout: Duration) -> bool {
        let mut state = self.state.lock();
        let none = |state: &mut State| state.waiting == 0;
        !self.changed.wait_while_for(&mut state, none, timeout).timed_out()
    }

    fn pass(&self, kind: RequestKind) {
        let mut state = self.state.lock();
        if state.held == Some(kind) {
            state.waiting += 1;
            self.changed.notify_all();
            self.changed.wait_while(&mut state, |state| state.held == Some(kind));
            state.waiting -= 1;
        }
    }
}

impl<D: BlockDevice> BlockDevice for HoldDevice<D> {
    fn geometry(&self) -> Geometry {
        self.inner.geometry()
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<()> {
        self.pass(RequestKind::Read);
        self.inner.read_at(offset, buf)
    }

    fn write_at(&self, offset: u64, bufs: &[IoSlice<'_>]) -> io::Result<()> {
        self.pass(RequestKind::Write);
        self.inner.write_at(offset, bufs)
    }

    fn barrier(&self) -> io::Result<()> {
        self.pass(RequestKind::Barrier);
        self.inner.barrier()
    }

    fn sync(&self) -> io::Result<()> {
        self.pass(RequestKind::Sync);
        self.inner.sync()
    }

    fn discard(&self, offset: u64, len: u64) -> io::Result<()> {
        self.pass(RequestKind::Discard);
        self.inner.discard(offset, len)
    }

    fn below(&self) -> Option<&dyn BlockDevice> {
        Some(&self.inner)
    }
}
