//! A record in its slot, whatever becomes of the answers (decisions/031).
//!
//! ```text
//!   create ──ok──────────────────────────────▶ ours
//!     ▲  └─error─▶ read the slot ─our nonce──▶ ours
//!     │              │   └──────── foreign ──▶ another's
//!     └── wait ◀─────┘ free, or unknown: the same bytes again
//! ```
//!
//! Invariant: for one slot a writer ever sends one sequence of bytes, so that a request that is late, or
//! arrives twice, changes nothing.

use std::thread;
use std::time::{Duration, Instant};

use crate::error::Error;
use crate::format;
use crate::history;
use crate::store::Store;

const FIRST_WAIT: Duration = Duration::from_millis(50);
const LONGEST_WAIT: Duration = Duration::from_secs(10);

/// Whose record a slot has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Owner {
    /// That of the caller.
    Ours,
    /// That of another writer.
    Another,
}

/// Creates the record with this nonce in its slot, and returns when it is known whose is there.
///
/// # Errors
///
/// What asking again cannot mend, and anything once it has lasted for longer than `patience`. Then the
/// record may be there or come yet: the caller must not put another in its slot.
pub fn settle(
    store: &Store,
    slot: u64,
    nonce: [u8; 16],
    bytes: &bytes::Bytes,
    patience: Option<Duration>,
) -> Result<Owner, Error> {
    let name = format::record_name(slot);
    again(&name, patience, || {
        let Err(error) = store.create(&name, bytes.clone()) else { return Ok(Owner::Ours) };
        match history::read_record(store, slot) {
            Ok((record, _)) if record.nonce == nonce => Ok(Owner::Ours),
            Ok(_) | Err(Error::Damaged { .. }) => Ok(Owner::Another),
            Err(_) => Err(error),
        }
    })
}

/// Puts an object that nobody else creates.
pub fn put(
    store: &Store,
    name: &str,
    bytes: &bytes::Bytes,
    patience: Option<Duration>,
) -> Result<(), Error> {
    again(name, patience, || store.put(name, bytes.clone()))
}

fn again<T>(
    name: &str,
    patience: Option<Duration>,
    attempt: impl Fn() -> Result<T, Error>,
) -> Result<T, Error> {
    let began = Instant::now();
    let mut wait = FIRST_WAIT;
    loop {
        let error = match attempt() {
            Err(error) if !error.is_final() => error,
            outcome => return outcome,
        };
        if patience.is_some_and(|patience| began.elapsed() >= patience) {
            return Err(error);
        }
        tracing::warn!(object = name, %error, "asking the store again");
        thread::sleep(wait);
        wait = (wait * 2).min(LONGEST_WAIT);
    }
}
