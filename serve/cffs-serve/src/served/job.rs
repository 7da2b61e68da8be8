//! Jobs: threads that work on a served volume while programs use the volume.

use std::panic::{self, AssertUnwindSafe};
use std::sync::Arc;
use std::thread;

use cffs::vfs::Volume;

/// The failure shown in the status of a job that panicked.
pub(super) const PANICKED: &str = "its thread panicked, as the server's log says";

/// Runs a job in a new thread. A job that panics may leave the volume in memory half changed, so the volume
/// accepts no more changes; `panicked` then sets the job's status, for which commands wait.
pub(super) fn spawn(
    volume: &Arc<Volume>,
    run: impl FnOnce(&Arc<Volume>) + Send + 'static,
    panicked: impl FnOnce() + Send + 'static,
) {
    let volume = Arc::clone(volume);
    thread::spawn(move || {
        if panic::catch_unwind(AssertUnwindSafe(|| run(&volume))).is_err() {
            volume.writer().distrust("a job of the server panicked");
            panicked();
        }
    });
}
