//! Handing the device over to the program that replaces this one (decision 019).

use std::io;
use std::time::{Duration, Instant};

use uuid::Uuid;

use super::{LogDevice, Role};
use crate::cache::DiskCache;
use crate::error::Error;
use crate::format;
use crate::history::History;
use crate::staging::Backlog;
use crate::store::Store;
use crate::succession::{Predecessor, Succession};

/// How long a handover waits for the records in the staging directory before it is refused.
const HANDOVER_PATIENCE: Duration = Duration::from_secs(10);
/// How often it checks for waiting records.
const HANDOVER_LOOK: Duration = Duration::from_millis(50);

impl LogDevice {
    /// The access for the program that replaces this one; `None` if this one is the writer and has not handed
    /// the volume over ([`Control::hand_over`](cffs::device::Control::hand_over)).
    pub fn succession(&self) -> Option<Succession> {
        let key = self.store.vault().map(|vault| vault.key().clone());
        let predecessor = match self.writing {
            Some(_) => Predecessor::Writer(*self.handed_over.get()?),
            None => Predecessor::Reader,
        };
        Some(Succession { predecessor, key })
    }

    /// Checks that the next program could open the volume.
    pub(super) fn check_for_next(&self) -> Result<(), String> {
        match &self.version {
            _ if self.writing.is_some() => {}
            Some(name) => {
                let there = History::of_snapshot(&self.store, name);
                return there.map(drop).map_err(|error| error.to_string());
            }
            None => {
                return Err(String::from(
                    "another program may have changed the volume since it was mounted read-only, and the \
                     kernel has cached the older state; unmount and mount",
                ));
            }
        }
        if let Some(outage) = self.store.counter().outage() {
            return Err(format!("the store does not answer: {}", outage.why));
        }
        let checked = check_local(&self.store).and_then(|()| check_store(&self.store));
        checked.map_err(|error| error.to_string())?;
        let Some(staging) = self.store.staging() else { return Ok(()) };
        let began = Instant::now();
        while staging.backlog() != Backlog::default() {
            if began.elapsed() >= HANDOVER_PATIENCE {
                return Err(format!(
                    "{} in the staging directory have not reached the store after {} s; try again later",
                    cffs::counted(staging.backlog().records, "record"),
                    HANDOVER_PATIENCE.as_secs()
                ));
            }
            std::thread::sleep(HANDOVER_LOOK);
        }
        Ok(())
    }

    /// Ends writing, and keeps the term for the next program.
    pub(super) fn give_to_next(&self) -> io::Result<()> {
        match std::mem::replace(&mut *self.writer.lock(), Role::Reader) {
            Role::Writer(writer) => {
                let term = writer.hand_over().map_err(Error::of_device)?;
                assert!(self.handed_over.set(term).is_ok(), "a device has one writer");
                Ok(())
            }
            Role::Reader => Ok(()),
            Role::Failed(kind, why) => Err(io::Error::new(kind, why)),
        }
    }
}

/// Checks that the directories on a local disk can be opened again.
fn check_local(store: &Store) -> Result<(), Error> {
    store.staging().map_or(Ok(()), |staging| staging.check())?;
    store.cache().map_or(Ok(()), DiskCache::check)
}

/// Checks that the store answers and accepts objects.
fn check_store(store: &Store) -> Result<(), Error> {
    let name = format!("{}{}", format::PROBES, Uuid::new_v4());
    store.put(&name, vec![1])?;
    store.delete(&[name])
}
