//! Stops or pauses a server from another thread: its threads notice this wherever they wait for peers.
//!
//! ```text
//!             pause            no connection is left
//!   Serving ────────▶ Pausing ──────────────────────▶ Paused
//!      ▲  ▲              │ some are, after all            │
//!      │  └──────────────┘              go_on             │
//!      └──────────────────────────────────────────────────┘      end, from each of them ──▶ Ending
//! ```

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use parking_lot::{Condvar, Mutex};
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use rustix::io::Errno;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Serving,
    /// It takes no further calls, and answers those in progress.
    Pausing,
    /// All calls are answered, and no client is connected. New connections wait in the kernel.
    Paused,
    Ending,
}

/// The reason why a wait ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Woken {
    Ready,
    Timeout,
    /// The server takes no further calls.
    Stop,
}

/// The phase of a server, and requests to change it.
pub struct Stop {
    phase: Mutex<Phase>,
    changed: Condvar,
    /// Whether the phase is not serving; checked for each call.
    is_asked: AtomicBool,
    /// Readable unless the server is serving, so that all threads that wait for peers wake up.
    wake: OwnedFd,
}

impl Stop {
    /// The state of a serving server.
    ///
    /// # Errors
    ///
    /// Errors of eventfd(2).
    pub fn new() -> io::Result<Stop> {
        let wake = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        let (phase, is_asked) = (Mutex::new(Phase::Serving), AtomicBool::new(false));
        Ok(Stop { phase, changed: Condvar::new(), is_asked, wake })
    }

    /// Whether no further call may be taken.
    pub fn is_asked(&self) -> bool {
        self.is_asked.load(Ordering::Acquire)
    }

    pub fn end(&self) {
        self.set(&mut self.phase.lock(), Phase::Ending);
    }

    /// Pauses the server, and waits for it; returns false if it continues to serve, or has ended.
    pub fn pause(&self) -> bool {
        let mut phase = self.phase.lock();
        if *phase == Phase::Serving {
            self.set(&mut phase, Phase::Pausing);
        }
        self.changed.wait_while(&mut phase, |phase| *phase == Phase::Pausing);
        *phase == Phase::Paused
    }

    /// Makes a paused server continue.
    pub fn go_on(&self) {
        let mut phase = self.phase.lock();
        if *phase == Phase::Paused {
            self.set(&mut phase, Phase::Serving);
        }
    }

    /// Called by the server while it accepts no calls: pauses, if that was requested and `is_idle`. Returns
    /// whether to continue serving.
    pub fn stay(&self, is_idle: bool) -> bool {
        let mut phase = self.phase.lock();
        if *phase == Phase::Pausing {
            let next = if is_idle { Phase::Paused } else { Phase::Serving };
            self.set(&mut phase, next);
        }
        self.changed.wait_while(&mut phase, |phase| *phase == Phase::Paused);
        *phase == Phase::Serving
    }

    fn set(&self, phase: &mut Phase, next: Phase) {
        *phase = next;
        self.is_asked.store(next != Phase::Serving, Ordering::Release);
        // Neither can fail: the counter is far from its maximum, and at worst empty.
        let _ = match next {
            Phase::Serving => rustix::io::read(&self.wake, &mut [0; 8]),
            _ => rustix::io::write(&self.wake, &1_u64.to_ne_bytes()),
        };
        self.changed.notify_all();
    }

    /// Waits for a descriptor, or for the end of accepting calls, which has priority.
    ///
    /// # Errors
    ///
    /// Errors of poll(2).
    pub fn wait_for(&self, peer: impl AsFd, timeout: Option<Duration>) -> io::Result<Woken> {
        let timeout = timeout.map(Timespec::try_from).transpose().map_err(io::Error::other)?;
        let mut descriptors =
            [PollFd::new(&self.wake, PollFlags::IN), PollFd::new(&peer, PollFlags::IN)];
        let ready = match poll(&mut descriptors, timeout.as_ref()) {
            // The caller has more to wait for, or checks and waits again.
            Err(Errno::INTR) => return Ok(Woken::Ready),
            other => other?,
        };
        Ok(match descriptors[0].revents().is_empty() {
            false => Woken::Stop,
            true if ready == 0 => Woken::Timeout,
            true => Woken::Ready,
        })
    }
}
