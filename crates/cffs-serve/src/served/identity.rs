//! How a server describes itself.

use std::collections::BTreeMap;
use std::time::SystemTime;

use cffs::error::{Error, Result};
use serde::{Deserialize, Serialize};

/// The option that says when a read sets the time of access. It contains no path.
const ATIME: &str = "atime";

/// The server of a mount, and what it serves.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Identity {
    /// The image or device; lossy if its path is not UTF-8. Not for all users.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub image: Option<String>,
    /// The directory on which it was mounted. Not for all users.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub directory: Option<String>,
    /// The server's process, as it sees itself.
    pub pid: u32,
    /// The user that the server runs as.
    pub uid: u32,
    /// Whether it was mounted without writes.
    pub read_only: bool,
    /// The mount options that it keeps while it runs, by name; for users other than the owner, `atime` alone.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub fixed_options: BTreeMap<String, String>,
    /// The size of the volume's cache in bytes.
    pub cache_bytes: u64,
    /// How requests reach the server.
    pub transport: String,
    /// The type of the mount, and why it is not `fuseblk` if it is not.
    pub mount_type: String,
    /// Differs between the servers that serve one mount in a row.
    pub started: u64,
    /// Why the last attempt to replace this server's program failed.
    pub restart_failure: Option<String>,
    /// Why NFS clients are no longer served since that attempt.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub nfs_failure: Option<String>,
}

impl Identity {
    /// A value of [`Identity::started`] that no other server of this volume has.
    pub fn now() -> u64 {
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
        now.map_or(0, |now| now.as_nanos() as u64)
    }

    /// The identity as the user `uid` may see it. The paths of the image, the log and the mount are for root
    /// and the user who mounted the volume: a container may see the mount and must not learn them.
    pub(crate) fn shown_to(&self, uid: u32) -> Identity {
        if is_owner(uid) { self.clone() } else { self.without_paths() }
    }

    /// The part for all users.
    pub(crate) fn without_paths(&self) -> Identity {
        let atime = self.fixed_options.get_key_value(ATIME);
        let fixed_options =
            atime.map(|(name, value)| (name.clone(), value.clone())).into_iter().collect();
        Identity { image: None, directory: None, fixed_options, ..self.clone() }
    }
}

/// Whether the user is root, or the one who mounted the volume.
pub(crate) fn is_owner(uid: u32) -> bool {
    uid == 0 || uid == rustix::process::geteuid().as_raw()
}

pub(crate) fn check_owner(uid: u32) -> Result<()> {
    if is_owner(uid) { Ok(()) } else { Err(Error::NotPermitted) }
}
