//! A thread that sends staged records to the store, in order.
//!
//! ```text
//!   put ─▶ on the local disk ─▶ waiting ─▶ in its slot ─▶ removed from the disk
//!                                  └─ another's is there ─▶ rejected, with all after it; no sync succeeds
//! ```

use std::collections::VecDeque;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use bytes::Bytes;
use parking_lot::{Condvar, Mutex};
use uuid::Uuid;

use crate::commit::{self, Owner, Turns};
use crate::error::Error;
use crate::format::Record;
use crate::history::{self, History};
use crate::staging::Staging;
use crate::store::Store;

/// A record that waits for this long shows that the store cannot be reached.
const BEHIND: Duration = Duration::from_secs(5);

/// Sends the records that are staged from an earlier use of the directory.
///
/// A record whose slot is in the past and is empty was sent and has been collected since. Another program's
/// records in these slots would begin with a claim, and claims are never deleted.
///
/// # Errors
///
/// [`Error::Rejected`] if another program has written the volume since; then the waiting records are set
/// aside, and the next call succeeds. Errors of the store and of the disk; then the records keep waiting.
pub fn send_rest(
    staging: &Staging,
    store: &Store,
    patience: Option<Duration>,
) -> Result<(), Error> {
    let slots = staging.slots().map_err(staging.failed())?;
    if slots.is_empty() {
        return Ok(());
    }
    let mut history = History::read(store)?;
    for (index, &slot) in slots.iter().enumerate() {
        let rest = &slots[index..];
        let Some(bytes) = staging.load(slot).map_err(staging.failed())? else {
            if rest.len() > 1 {
                return Err(staging.damaged(rest, slot));
            }
            // It was being written when the machine stopped, so its sync had not returned.
            tracing::warn!(slot, "ignoring a record that was staged only in part");
            staging.remove(slot);
            break;
        };
        let (record, checksum) = Record::decode(&bytes).map_err(|why| staging.wrong(why))?;
        if record.uuid != history.format.uuid {
            let [waiting, there] = [record.uuid, history.format.uuid].map(Uuid::from_bytes);
            return Err(staging.wrong(format!(
                "it has records of another volume: their store UUID is {waiting}, that of {url} is {there} \
                 (cffs ls --json shows store UUIDs); mount the volume of the records, or name another \
                 directory",
                url = store.url()
            )));
        }
        // A listing may lack the records that were sent last: only a GET of an empty slot shows the end.
        while history.slot + 1 < slot {
            let next = history.slot + 1;
            let Some((record, checksum, _)) = history::find_record(store, next)? else { break };
            history.apply(store, next, (record, checksum))?;
        }
        let is_next = slot == history.slot + 1
            && record.previous == history.checksum
            && record.term == history.term
            && !history.is_released;
        let is_there = if slot <= history.slot {
            match history::read_record(store, slot) {
                Ok((there, _)) => there.nonce == record.nonce,
                Err(error) if error.is_not_found() => true,
                Err(error) => return Err(error),
            }
        } else if is_next {
            let owner = commit::settle(store, slot, record.nonce, &bytes, patience)?;
            if owner == Owner::Ours {
                history.apply(store, slot, (record, checksum))?;
            }
            owner == Owner::Ours
        } else {
            false
        };
        if !is_there {
            return Err(staging.reject(rest, slot));
        }
        staging.remove(slot);
    }
    tracing::info!(records = slots.len(), "sent the records that waited in the staging directory");
    Ok(())
}

/// Sends staged records to the store; their syncs were acknowledged already.
pub struct Uploader(Arc<Shared>);

struct Shared {
    staging: Arc<Staging>,
    store: Arc<Store>,
    patience: Option<Duration>,
    queue: Mutex<Queue>,
    changed: Condvar,
}

#[derive(Default)]
struct Queue {
    waiting: VecDeque<Waiting>,
    failure: Option<Failure>,
    is_over: bool,
}

#[derive(Clone, Copy)]
struct Waiting {
    slot: u64,
    nonce: [u8; 16],
    since: Instant,
}

#[derive(Clone)]
enum Failure {
    Rejected { directory: String, records: usize, slot: u64 },
    Staging { directory: String, why: String },
}

impl Failure {
    fn error(self) -> Error {
        match self {
            Failure::Rejected { directory, records, slot } => {
                Error::Rejected { directory, records, slot }
            }
            Failure::Staging { directory, why } => Error::Staging { directory, why },
        }
    }
}

impl Uploader {
    /// Starts a thread that sends the records given to [`put`](Uploader::put).
    ///
    /// # Errors
    ///
    /// The thread cannot be started.
    pub fn start(
        staging: Arc<Staging>,
        store: Arc<Store>,
        patience: Option<Duration>,
    ) -> Result<Uploader, Error> {
        let (queue, changed) = (Mutex::default(), Condvar::new());
        let shared = Arc::new(Shared { staging, store, patience, queue, changed });
        let sender = Arc::clone(&shared);
        let thread = thread::Builder::new().name(String::from("staging"));
        thread.spawn(move || sender.run()).map_err(Error::Runtime)?;
        Ok(Uploader(shared))
    }

    /// Makes a record durable on the local disk, from which it is sent to the store after the earlier ones.
    /// If the disk does not accept it, it is sent to the store before this returns.
    ///
    /// # Errors
    ///
    /// [`Error::Rejected`]; [`Error::Staging`] once sending has failed permanently, or errors of the store.
    pub fn put(&self, slot: u64, nonce: [u8; 16], record: &Bytes) -> Result<(), Error> {
        let Shared { staging, store, patience, queue, changed } = &*self.0;
        if let Some(failure) = &queue.lock().failure {
            return Err(failure.clone().error());
        }
        if let Err(error) = staging.put(slot, record) {
            tracing::warn!(%error, "the staging directory accepts nothing, so a sync waits for the store");
            self.drain()?;
            return match commit::settle(store, slot, nonce, record, *patience)? {
                Owner::Ours => Ok(()),
                Owner::Another => Err(Error::Fenced { slot }),
            };
        }
        let mut queue = queue.lock();
        if let Some(failure) = &queue.failure {
            staging.remove(slot);
            return Err(failure.clone().error());
        }
        // The first record without a predecessor follows one that is in the store.
        let is_next = queue.waiting.back().is_none_or(|last| last.slot + 1 == slot);
        assert!(is_next, "records wait in the order of their slots, without a gap");
        queue.waiting.push_back(Waiting { slot, nonce, since: Instant::now() });
        changed.notify_all();
        Ok(())
    }

    /// Waits until all records are in the store.
    ///
    /// # Errors
    ///
    /// As of [`put`](Uploader::put).
    pub fn drain(&self) -> Result<(), Error> {
        let mut queue = self.0.queue.lock();
        while !queue.waiting.is_empty() && queue.failure.is_none() {
            self.0.changed.wait(&mut queue);
        }
        queue.failure.clone().map_or(Ok(()), |failure| Err(failure.error()))
    }

    /// Waits until all records are in the store, or a record has waited for some time; returns whether all
    /// are.
    pub fn has_caught_up(&self) -> bool {
        let mut queue = self.0.queue.lock();
        while let Some(first) = queue.waiting.front()
            && queue.failure.is_none()
        {
            let left = BEHIND.saturating_sub(first.since.elapsed());
            if left.is_zero() {
                return false;
            }
            self.0.changed.wait_for(&mut queue, left);
        }
        true
    }

    /// Whether the store has accepted no record for some time.
    pub fn is_behind(&self) -> bool {
        self.0.queue.lock().waiting.front().is_some_and(|first| first.since.elapsed() >= BEHIND)
    }
}

impl Drop for Uploader {
    /// Waiting records are still sent, as long as the process lives.
    fn drop(&mut self) {
        self.0.queue.lock().is_over = true;
        self.0.changed.notify_all();
    }
}

impl Shared {
    fn run(&self) {
        let mut turns = Turns::default();
        while let Some(first) = self.next() {
            let failure = match self.send(&mut turns, first) {
                Ok(Owner::Ours) => {
                    self.staging.remove(first.slot);
                    let sent = self.queue.lock().waiting.pop_front();
                    assert!(sent.is_some_and(|sent| sent.slot == first.slot), "the first was sent");
                    self.changed.notify_all();
                    continue;
                }
                Ok(Owner::Another) => None,
                Err(error) => Some(error),
            };
            self.fail(first.slot, failure);
            return;
        }
    }

    /// The next record, once there is one.
    fn next(&self) -> Option<Waiting> {
        let mut queue = self.queue.lock();
        while queue.waiting.is_empty() && !queue.is_over {
            self.changed.wait(&mut queue);
        }
        queue.waiting.front().copied()
    }

    fn send(
        &self,
        turns: &mut Turns,
        Waiting { slot, nonce, .. }: Waiting,
    ) -> Result<Owner, Error> {
        let record = self.staging.load(slot).map_err(self.staging.failed())?;
        let why = || io_error("a staged record is damaged");
        let record = record.ok_or_else(why).map_err(self.staging.failed())?;
        turns.settle(&self.store, slot, nonce, &record, self.patience)
    }

    /// Makes all later syncs fail: for this error, or without one because the slot has another program's
    /// record.
    fn fail(&self, slot: u64, error: Option<Error>) {
        let mut queue = self.queue.lock();
        let slots: Vec<u64> = queue.waiting.iter().map(|waiting| waiting.slot).collect();
        let error = error.unwrap_or_else(|| self.staging.reject(&slots, slot));
        tracing::error!(%error, records = slots.len(), "staged changes are not in the store");
        queue.failure = Some(match error {
            Error::Rejected { directory, records, slot } => {
                Failure::Rejected { directory, records, slot }
            }
            error => Failure::Staging {
                directory: self.staging.shown(),
                why: format!(
                    "{error}; acknowledged syncs wait there ({}): mount the volume with the same directory, \
                     which sends them",
                    slots.len()
                ),
            },
        });
        self.changed.notify_all();
    }
}

fn io_error(why: &'static str) -> std::io::Error {
    std::io::Error::new(std::io::ErrorKind::InvalidData, why)
}
