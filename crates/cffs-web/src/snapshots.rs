//! Versions of the volume that its device keeps, for the page.

use std::time::{SystemTime, UNIX_EPOCH};

use axum::http::StatusCode;
use serde_json::{Value, json};

use crate::access::Refusal;

/// The longest name of a version, as of `cffs snapshot`.
const NAME_BYTES_MAX: usize = 128;

/// A version that is kept.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Snapshot {
    /// Its name.
    pub name: String,
    /// When it was made.
    pub made: SystemTime,
    /// Whether it is kept for a clone, and goes when that is gone.
    pub for_clone: bool,
}

/// A device that keeps versions of its volume. Each call waits for it.
pub trait Snapshots: Send + Sync + std::fmt::Debug {
    /// The versions that are kept, by name.
    ///
    /// # Errors
    ///
    /// Why they cannot be read.
    fn list(&self) -> Result<Vec<Snapshot>, String>;

    /// Keeps the volume as its last sync left it.
    ///
    /// # Errors
    ///
    /// Why not; the name may be taken.
    fn create(&self, name: &str) -> Result<(), String>;

    /// Keeps a version no longer.
    ///
    /// # Errors
    ///
    /// Why not; there may be none of this name.
    fn remove(&self, name: &str) -> Result<(), String>;
}

/// The name of a version, if it can be one: so that it is nothing else where it is a part of a URL.
pub(crate) fn checked_name(name: Option<String>) -> Result<String, Refusal> {
    let is_of_name = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
    let is_good =
        |name: &String| (1..=NAME_BYTES_MAX).contains(&name.len()) && name.chars().all(is_of_name);
    name.filter(is_good).ok_or_else(|| {
        let why = "a name has 1 to 128 letters, digits, '-', '_' and '.'";
        Refusal::new(StatusCode::UNPROCESSABLE_ENTITY, why)
    })
}

/// Versions as the interface shows them.
pub(crate) fn described(snapshots: &[Snapshot]) -> Value {
    let described = snapshots.iter().map(|snapshot| {
        let made = snapshot.made.duration_since(UNIX_EPOCH).map_or(0, |made| made.as_secs());
        json!({ "name": snapshot.name, "made": made, "for_clone": snapshot.for_clone })
    });
    json!({ "snapshots": described.collect::<Vec<_>>() })
}
