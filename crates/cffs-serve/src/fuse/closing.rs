//! Closing the volume of a mount, once, and what is said about it.
//!
//! ```text
//!   kernel waits (block device): DESTROY ──┐
//!                                          ├──▶ the front end beside the mount ends ──▶ volume closed
//!   the connection has ended: serve() ─────┘                    ──▶ device released ──▶ last word
//! ```
//!
//! When the kernel has its answer, the unmount returns, and anybody may have the image, or take away
//! what lies below it. So the device is closed before that, though the server's process is still
//! about to end.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, Once, OnceLock, PoisonError};
use std::time::Duration;

use cffs::device::Failure;
use cffs::device::file::FileDevice;
use cffs::error::Error;
use cffs::vfs::Volume;

use super::farewell::{Farewells, Word};
use super::watch::Watch;
use crate::shared::{Beside, Current};

/// The end of a mounted volume.
pub(super) struct Closing {
    volume: Current,
    device: Option<Arc<FileDevice>>,
    farewells: Arc<Farewells>,
    watch: Arc<Watch>,
    beside: OnceLock<Arc<dyn Beside>>,
    is_broken: AtomicBool,
    once: Once,
    failure: Mutex<Option<Error>>,
}

impl Closing {
    pub fn new(
        volume: Current,
        device: Option<Arc<FileDevice>>,
        farewells: Arc<Farewells>,
        watch: Arc<Watch>,
    ) -> Closing {
        let (beside, once, failure) = (OnceLock::new(), Once::new(), Mutex::default());
        let is_broken = AtomicBool::new(false);
        Closing { volume, device, farewells, watch, beside, is_broken, once, failure }
    }

    /// What is to end before the volume is closed.
    pub fn set_beside(&self, beside: Arc<dyn Beside>) {
        // There is one at most.
        let _ = self.beside.set(beside);
    }

    /// Has nothing more be written of the volume, or answered from it: what is in memory may be half changed,
    /// since a call panicked.
    pub fn broken(&self) {
        self.is_broken.store(true, Ordering::Release);
        self.volume.get().distrust("a call of the mount panicked");
        if let Some(beside) = self.beside.get() {
            beside.broken();
        }
    }

    /// Has what is to end before the volume is closed pause, if there is something.
    ///
    /// # Errors
    ///
    /// Why it goes on as before.
    pub fn pause_beside(&self) -> Result<(), String> {
        let Some(beside) = self.beside.get() else { return Ok(()) };
        // Until it has paused, another thread reads requests in this one's place.
        fuse_ring::will_wait();
        beside.pause()
    }

    /// Has it go on.
    pub fn beside_goes_on(&self) {
        if let Some(beside) = self.beside.get() {
            beside.go_on();
        }
    }

    /// Closes the volume and gives the device back. A second caller waits for the first.
    pub fn run(&self) {
        self.once.call_once(|| {
            self.watch.closing();
            self.farewells.say(&Word::Closing);
            let mut ended = self.beside.get().map_or(Ok(()), |beside| beside.end());
            if self.is_broken.load(Ordering::Acquire) {
                ended = Err(String::from("a call of the mount panicked, as the log says"));
            }
            let closed = match &ended {
                Ok(()) => self.volume.get().close(),
                // What is in memory would damage what is on the device.
                Err(why) => Err(Error::Latched(why.clone())),
            };
            if let Some(Err(error)) = self.device.as_ref().map(|device| device.release()) {
                tracing::warn!(%error, "the lock on the volume may stay until the server has ended");
            }
            let Err(error) = closed else {
                tracing::info!("closed");
                self.farewells.say(&Word::Closed);
                return;
            };
            let failure = match ended {
                Ok(()) => failure(&self.volume.get(), &error),
                Err(why) => format!("{why}; the volume was not closed; the next opening recovers it"),
            };
            tracing::error!("not closed: {failure}");
            self.farewells.say(&Word::Failed(failure));
            *self.failure.lock().unwrap_or_else(PoisonError::into_inner) = Some(error);
        });
    }

    /// Why closing failed, once it has.
    pub fn take_failure(&self) -> Option<Error> {
        self.failure.lock().unwrap_or_else(PoisonError::into_inner).take()
    }
}

/// Why the volume could not be written, what that means for its changes, and what to do: a command, after
/// which the volume's name is to follow.
pub(crate) fn failure(volume: &Volume, error: &Error) -> String {
    let why = volume.latched().unwrap_or_else(|| error.to_string());
    let lost = match volume.lost() {
        Some(since) => {
            format!("changes of the last {} that no fsync covered are lost", in_words(since))
        }
        None => String::from("no change is lost"),
    };
    let failure = volume.latched_by().or(match error {
        Error::Io(error) => Some(Failure::of(error)),
        _ => None,
    });
    let cause = why.trim_start_matches("device error: ");
    match failure {
        Some(Failure::TakenOver) => {
            format!("{cause}; {lost}; when that program has closed the volume: cffs mount")
        }
        Some(Failure::Unreachable) => format!(
            "the volume could not be written ({cause}); {lost}; when it can be reached again, run cffs \
             fsck -p"
        ),
        Some(Failure::Medium) | None => format!(
            "writing to the device failed ({cause}); {lost}; fix the device, then run cffs fsck -p"
        ),
    }
}

fn in_words(time: Duration) -> String {
    match time.as_secs() {
        seconds @ ..120 => format!("{} s", seconds + 1),
        seconds => format!("{} min", seconds.div_ceil(60)),
    }
}
