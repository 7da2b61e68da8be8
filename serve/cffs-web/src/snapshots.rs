//! Snapshots that the volume's device keeps, for the page.

use std::time::{SystemTime, UNIX_EPOCH};

use axum::http::StatusCode;
use serde_json::{Value, json};

use crate::access::Refusal;

/// The longest name of a version, as in `cffs snapshot`.
const NAME_BYTES_MAX: usize = 128;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Snapshot {
    pub name: String,
    pub made: SystemTime,
    /// Whether it is kept only for a clone, and is removed with it.
    pub for_clone: bool,
}

/// A device that keeps snapshots of its volume. Each call waits for the device.
pub trait Snapshots: Send + Sync + std::fmt::Debug {
    /// The snapshots, sorted by name.
    ///
    /// # Errors
    ///
    /// The reason why they cannot be read.
    fn list(&self) -> Result<Vec<Snapshot>, String>;

    /// Keeps the state of the volume's last sync under this name.
    ///
    /// # Errors
    ///
    /// The reason; for example, the name is taken.
    fn create(&self, name: &str) -> Result<(), String>;

    /// Deletes a snapshot.
    ///
    /// # Errors
    ///
    /// The reason; for example, the snapshot does not exist.
    fn remove(&self, name: &str) -> Result<(), String>;
}

/// Checks that a name can be part of a URL without special meaning.
pub(crate) fn checked_name(name: Option<String>) -> Result<String, Refusal> {
    let is_of_name = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
    let is_good =
        |name: &String| (1..=NAME_BYTES_MAX).contains(&name.len()) && name.chars().all(is_of_name);
    name.filter(is_good).ok_or_else(|| {
        let why = "a name has 1 to 128 letters, digits, '-', '_' and '.'";
        Refusal::new(StatusCode::UNPROCESSABLE_ENTITY, why)
    })
}

/// Snapshots in the form of the interface.
pub(crate) fn described(snapshots: &[Snapshot]) -> Value {
    let described = snapshots.iter().map(|snapshot| {
        let made = snapshot.made.duration_since(UNIX_EPOCH).map_or(0, |made| made.as_secs());
        json!({ "name": snapshot.name, "made": made, "for_clone": snapshot.for_clone })
    });
    json!({ "snapshots": described.collect::<Vec<_>>() })
}
