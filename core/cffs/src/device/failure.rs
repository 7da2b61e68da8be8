//! Classifies failed requests by the state of their device.
//!
//! A sector that a disk cannot read may be lost, and others with it. A request that got no answer says
//! nothing about the data: the same request may succeed later. A caller that records damage must distinguish
//! the two.

use std::cell::Cell;
use std::io;
use std::marker::PhantomData;

use rustix::io::Errno;

/// The state of a device, by a failed request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Failure {
    /// The device tried and failed: data may be lost.
    Medium,
    /// Missing or changed data that can be restored: an object of a store.
    Restorable,
    /// The device did not answer, or refused the caller: nothing is known about its data.
    Unreachable,
    /// Another program has the device now: the view of this one is out of date.
    TakenOver,
}

impl Failure {
    /// Whether the device answered, and does not have the data.
    pub fn is_of_data(self) -> bool {
        matches!(self, Failure::Medium | Failure::Restorable)
    }

    /// Classifies an error of a request.
    pub fn of(error: &io::Error) -> Failure {
        use io::ErrorKind as Kind;
        let errno = error.raw_os_error().map(Errno::from_raw_os_error);
        if let Some(Errno::STALE | Errno::NODEV | Errno::NXIO | Errno::NOLINK | Errno::SHUTDOWN) =
            errno
        {
            return Failure::Unreachable;
        }
        match error.kind() {
            Kind::InvalidData => Failure::Restorable,
            // The ESTALE of an image on a network file system is handled above.
            Kind::StaleNetworkFileHandle => Failure::TakenOver,
            Kind::ConnectionAborted
            | Kind::ConnectionRefused
            | Kind::ConnectionReset
            | Kind::HostUnreachable
            | Kind::Interrupted
            | Kind::NetworkDown
            | Kind::NetworkUnreachable
            | Kind::NotConnected
            | Kind::OutOfMemory
            | Kind::PermissionDenied
            | Kind::TimedOut
            | Kind::WouldBlock => Failure::Unreachable,
            _ => Failure::Medium,
        }
    }
}

thread_local! {
    static IS_PATIENT: Cell<bool> = const { Cell::new(false) };
}

/// While it exists, reads by this thread have the patience of writes.
///
/// A caller's read that gets no answer fails after a while, and the caller may try again. A read for an epoch
/// cannot fail without the changes of all callers, so it waits for the device as long as a write would.
#[must_use]
#[derive(Debug)]
pub struct Patient {
    was_patient: bool,
    /// It belongs to the thread.
    thread: PhantomData<*const ()>,
}

impl Patient {
    /// Makes this thread patient.
    pub fn begin() -> Patient {
        Patient { was_patient: IS_PATIENT.replace(true), thread: PhantomData }
    }

    /// Whether this thread is patient.
    pub fn is_begun() -> bool {
        IS_PATIENT.get()
    }
}

impl Drop for Patient {
    fn drop(&mut self) {
        IS_PATIENT.set(self.was_patient);
    }
}
