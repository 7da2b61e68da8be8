//! Puts a record into its slot, even if answers are lost (decision 012).
//!
//! ```text
//!   create ──ok──────────────────────────────▶ ours
//!     ▲  └─error─▶ read the slot ─our nonce──▶ ours
//!     │              │   ├─────────── other ──▶ another's
//!     │              │   └─ of another volume ▶ an error that ends all writing
//!     └── wait ◀─────┘ free, or unknown: the same bytes again
//! ```
//!
//! A writer that commits without pause fills the next slot before another program, which must read the last
//! record first, can claim it. Therefore the other program puts the object `takeover`. A writer looks for
//! this object once per several records, and then waits for the other's claim for a while. Only the claim
//! stops the writer.
//!
//! ```text
//!   another:  claim ─lost─▶ PUT takeover, read on ─▶ claim ─▶ … ─▶ its claim is there ─▶ DELETE takeover
//!   writer:   … record, record ─▶ GET takeover ─ there ─▶ wait for a record in the next slot ─▶ fenced
//!                                    └─ none ─▶ record       └─ none comes: DELETE takeover ─▶ record
//! ```
//!
//! Invariant: a writer sends only one record for a slot, so a late or repeated request changes nothing. (Each
//! request of an encrypted volume seals it again, and so sends other bytes.)

use std::thread;
use std::time::{Duration, Instant};

use uuid::Uuid;

use crate::error::Error;
use crate::format::{self, Record, TAKE_OVER};
use crate::history;
use crate::requests::Counter;
use crate::store::Store;
use crate::unlock;

/// The number of records after which a writer looks for a request to take over.
pub const RECORDS_PER_LOOK: u32 = 32;
/// How long a writer waits for the requesting program: longer than reading the rest of the log takes.
const GIVE_WAY_FOR: Duration = Duration::from_secs(if cfg!(test) { 2 } else { 10 });
/// How often it checks for the claim.
const LOOK_EVERY: Duration = Duration::from_millis(50);
const FIRST_WAIT: Duration = Duration::from_millis(50);
const LONGEST_WAIT: Duration = Duration::from_secs(10);

/// The owner of the record in a slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Owner {
    /// The caller.
    Ours,
    /// Another writer.
    Another,
}

/// Commits a writer's records, one after the other.
#[derive(Default)]
pub struct Turns {
    since_look: u32,
}

impl Turns {
    /// Like [`settle`]; before that, waits for the claim of a program that asked to take the volume over.
    ///
    /// # Errors
    ///
    /// Those of [`settle`].
    pub fn settle(
        &mut self,
        store: &Store,
        slot: u64,
        nonce: [u8; 16],
        bytes: &bytes::Bytes,
        patience: Option<Duration>,
    ) -> Result<Owner, Error> {
        self.since_look += 1;
        if self.since_look >= RECORDS_PER_LOOK {
            self.since_look = 0;
            give_way(store, slot);
        }
        settle(store, slot, nonce, bytes, patience)
    }
}

/// If a program asked to take the volume over, waits until the slot is taken; only for a while, since that
/// program may have ended.
fn give_way(store: &Store, slot: u64) {
    if store.get(TAKE_OVER, Some(0..1)).is_err() {
        return;
    }
    tracing::warn!("another program asks to take the volume over; waiting for its claim");
    let began = Instant::now();
    while began.elapsed() < GIVE_WAY_FOR {
        if history::read_record(store, slot).is_ok() {
            return;
        }
        thread::sleep(LOOK_EVERY);
    }
    tracing::warn!("the other program did not take the volume over; continuing");
    withdraw(store);
}

/// Asks the writer of the volume to wait for this program's claim.
///
/// # Errors
///
/// Errors of the store.
pub fn ask_for_way(store: &Store) -> Result<(), Error> {
    store.put(TAKE_OVER, vec![1])
}

/// Withdraws the request. If that fails, a busy writer waits once for nothing.
pub fn withdraw(store: &Store) {
    if let Err(error) = store.delete(&[TAKE_OVER.to_owned()]) {
        tracing::warn!(%error, "cannot withdraw the request to take the volume over");
    }
}

/// Creates the record with this nonce in its slot, and returns once the owner of the record there is known.
///
/// # Errors
///
/// Errors that a repeated request cannot fix, such as [`Error::OtherVolume`], and any error once it has
/// lasted for longer than `patience`. Then the record may have arrived, or may arrive later: the caller must
/// not put another one into its slot.
pub fn settle(
    store: &Store,
    slot: u64,
    nonce: [u8; 16],
    bytes: &bytes::Bytes,
    patience: Option<Duration>,
) -> Result<Owner, Error> {
    let name = format::record_name(slot);
    again(store.counter(), &name, patience, || {
        let Err(error) = store.create(&name, bytes.clone()) else { return Ok(Owner::Ours) };
        match history::read_record(store, slot) {
            Ok((record, _)) if record.nonce == nonce => Ok(Owner::Ours),
            Ok((record, _)) if Some(record.uuid) == Record::uuid_of(bytes) => Ok(Owner::Another),
            Ok(_) => {
                let foreign = || store.damaged(&name)(String::from(format::FOREIGN));
                Err(replaced(store, bytes).unwrap_or_else(foreign))
            }
            // It may be this record.
            Err(damaged @ Error::Damaged { .. }) => Err(replaced(store, bytes).unwrap_or(damaged)),
            Err(gone @ Error::Gone(_)) => Err(gone),
            Err(_) => Err(error),
        }
    })
}

/// The error if another volume is at the place of the one to which a record belongs.
fn replaced(store: &Store, record: &[u8]) -> Option<Error> {
    let ours = Uuid::from_bytes(Record::uuid_of(record)?);
    let there = Uuid::from_bytes(unlock::volume_there(store)?);
    (there != ours).then(|| Error::OtherVolume { url: store.url(), ours, there })
}

/// Puts an object that no other program creates.
pub fn put(
    store: &Store,
    name: &str,
    bytes: &bytes::Bytes,
    patience: Option<Duration>,
) -> Result<(), Error> {
    again(store.counter(), name, patience, || store.put(name, bytes.clone()))
}

/// Repeats an action until it succeeds, fails permanently, or has failed for longer than `patience`.
/// Meanwhile, the counter shows and logs an outage.
///
/// # Errors
///
/// The last error of the action.
pub fn again<T>(
    counter: &Counter,
    name: &str,
    patience: Option<Duration>,
    mut attempt: impl FnMut() -> Result<T, Error>,
) -> Result<T, Error> {
    let began = Instant::now();
    let mut wait = FIRST_WAIT;
    // Another action may be retried at the same time, and this one ends only an outage that it has seen.
    let mut has_failed = false;
    loop {
        let error = match attempt() {
            Err(error) if !error.is_final() => error,
            outcome => {
                match &outcome {
                    Ok(_) if has_failed => counter.works_again(),
                    Err(_) if has_failed => counter.retries_no_more(),
                    _ => {}
                }
                return outcome;
            }
        };
        if let Some(patience) = patience.filter(|patience| began.elapsed() >= *patience) {
            if has_failed {
                counter.retries_no_more();
            }
            let seconds = patience.as_secs();
            tracing::warn!(
                object = name,
                seconds,
                "the store is not asked again: the time is over"
            );
            return Err(error);
        }
        has_failed = true;
        counter.retries(name, &error);
        thread::sleep(wait);
        wait = (wait * 2).min(LONGEST_WAIT);
    }
}
