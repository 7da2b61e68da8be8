//! Tells the transport when threads wait.

use cffs::waiter::Waiter;

/// A waiting thread leaves its slot to another one ([`fuse_ring::will_wait`]). Mounted volumes are opened
/// with this waiter. Others work as well, but then a slow device delays more callers.
#[derive(Clone, Copy, Debug, Default)]
pub struct LeaveSeat;

impl Waiter for LeaveSeat {
    fn about_to_wait(&self) {
        fuse_ring::will_wait();
    }
}
