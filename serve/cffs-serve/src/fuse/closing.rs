//! Closes the volume of a mount, once, and reports the outcome.
//!
//! ```text
//!   kernel waits (block device): DESTROY ──┐
//!                                          ├──▶ the companion server ends ──▶ volume closed
//!   the connection has ended: serve() ─────┘       ──▶ device released ──▶ last shutdown report
//! ```
//!
//! When the kernel gets its answer, the unmount returns, and another program may use the image or remove the
//! device. So the device is closed before that, although the server's process still runs.

use std::iter;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, Once, OnceLock, PoisonError};

use cffs::device::file::FileDevice;
use cffs::error::Error;

use super::watch::Watch;
use crate::attached::Sessions;
use crate::served::Served;
use crate::served::closing::failure;
use crate::served::shutdown::ShutdownReport;
use crate::shared::Companion;

/// Closes a mounted volume.
pub(super) struct Closing {
    served: Arc<Served>,
    /// Released when the volume is closed.
    devices: Vec<Arc<FileDevice>>,
    watch: Arc<Watch>,
    /// The programs that are attached, which is a companion as well.
    sessions: Arc<Sessions>,
    companion: OnceLock<Arc<dyn Companion>>,
    is_broken: AtomicBool,
    begun: Once,
    once: Once,
    failure: Mutex<Option<Error>>,
}

impl Closing {
    pub fn new(
        served: Arc<Served>,
        devices: Vec<Arc<FileDevice>>,
        watch: Arc<Watch>,
        sessions: Arc<Sessions>,
    ) -> Closing {
        let (companion, failure) = (OnceLock::new(), Mutex::default());
        let (begun, once) = (Once::new(), Once::new());
        let is_broken = AtomicBool::new(false);
        Closing { served, devices, watch, sessions, companion, is_broken, begun, once, failure }
    }

    /// Makes the companion server end before the volume is closed.
    pub fn set_companion(&self, companion: Arc<dyn Companion>) {
        // A mount has at most one.
        let _ = self.companion.set(companion);
    }

    /// Stops all writes to the volume and all answers from it: a call panicked, so the volume in memory may
    /// be half changed.
    pub fn broken(&self) {
        self.is_broken.store(true, Ordering::Release);
        self.served.volume().writer().distrust("a call of the mount panicked");
        self.companions().for_each(Companion::broken);
    }

    /// The other front ends of the volume.
    fn companions(&self) -> impl Iterator<Item = &dyn Companion> {
        let sessions: &dyn Companion = &*self.sessions;
        iter::once(sessions).chain(self.companion.get().map(|companion| &**companion))
    }

    /// Pauses the companion server, if the mount has one, and ends the sessions of attached programs.
    ///
    /// # Errors
    ///
    /// The reason why it continues to serve.
    pub fn pause_companion(&self) -> Result<(), String> {
        // Another thread reads requests while this one waits.
        fuse_ring::will_wait();
        let paused = self.companions().try_for_each(Companion::pause);
        paused.inspect_err(|_| self.sessions.go_on())
    }

    /// Continues as before an attempt to replace the program.
    pub fn resume_companion(&self) {
        self.served.allow_jobs();
        self.companions().for_each(Companion::go_on);
    }

    /// Reports that the volume is unmounted and will be closed. Requests that are served now may delay that
    /// for long, for instance a sync that waits for a store.
    pub fn begin(&self) {
        self.begun.call_once(|| {
            self.watch.closing();
            self.served.shutdown.send(&ShutdownReport::Closing);
        });
    }

    /// Closes the volume and releases the device. A second caller waits for the first.
    pub fn run(&self) {
        self.once.call_once(|| {
            self.begin();
            let ended: Vec<_> = self.companions().map(Companion::end).collect();
            let mut ended = ended.into_iter().collect::<Result<(), String>>();
            if self.is_broken.load(Ordering::Acquire) {
                ended = Err(String::from("a call of the mount panicked, as the log says"));
            }
            let closed = match &ended {
                Ok(()) => self.served.volume().close(),
                // Writing the volume in memory could damage the one on the device.
                Err(why) => Err(Error::Latched(why.clone())),
            };
            for device in &self.devices {
                if let Err(error) = device.release() {
                    tracing::warn!(%error, "the lock on the volume may stay until the server has ended");
                }
            }
            let Err(error) = closed else {
                tracing::info!("closed");
                self.served.shutdown.send(&ShutdownReport::Closed);
                return;
            };
            let failure = match ended {
                Ok(()) => failure(&self.served.volume(), &error),
                Err(why) => format!("{why}; the volume was not closed; the next opening recovers it"),
            };
            tracing::error!("not closed: {failure}");
            self.served.shutdown.send(&ShutdownReport::Failed(failure));
            *self.failure.lock().unwrap_or_else(PoisonError::into_inner) = Some(error);
        });
    }

    /// The reason why closing failed; returned once.
    pub fn take_failure(&self) -> Option<Error> {
        self.failure.lock().unwrap_or_else(PoisonError::into_inner).take()
    }
}
