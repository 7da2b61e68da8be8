//! Numbers of users and groups.

use crate::error::{Error, Result};

/// The number that no user and no group has: for chown(2), it means to keep the owner.
pub(super) const NO_ID: u32 = u32::MAX;

/// The user or group that is shown if a forged image has this number: `nobody`.
const NOBODY: u32 = 65534;

/// Fails for a number that no user or group has.
pub(super) fn check_id(id: u32) -> Result<()> {
    if id == NO_ID { Err(Error::Invalid("4294967295 is not a user or group")) } else { Ok(()) }
}

/// The user or group that is shown for that of an inode.
pub(super) fn shown_id(id: u32) -> u32 {
    if id == NO_ID { NOBODY } else { id }
}
