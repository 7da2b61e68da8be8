//! Tells the transport about threads that wait.

use cffs::waiter::Waiter;

/// A thread that waits leaves its slot to another ([`fuse_ring::will_wait`]). A mounted volume is opened with
/// this waiter. Others work as well, but a slow device then delays more callers.
#[derive(Clone, Copy, Debug, Default)]
pub struct LeaveSeat;

impl Waiter for LeaveSeat {
    fn about_to_wait(&self) {
        fuse_ring::will_wait();
    }
}
