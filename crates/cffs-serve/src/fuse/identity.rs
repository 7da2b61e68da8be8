//! What a server says of itself.

use std::collections::BTreeMap;
use std::time::SystemTime;

use serde::{Deserialize, Serialize};

/// The server of a mount, and what it serves.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Identity {
    /// The image or device; lossy where its path is not text. Not for everybody.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub image: Option<String>,
    /// The directory on which it was mounted. Not for everybody.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub directory: Option<String>,
    /// The server's process, as it sees itself.
    pub pid: u32,
    /// The user that the server runs as.
    pub uid: u32,
    /// Whether it was mounted without writes.
    pub read_only: bool,
    /// When a read sets the time of access: `relatime`, `strictatime` or `noatime`.
    #[serde(default)]
    pub atime: String,
    /// The options that it keeps as long as it runs, each under its name. Not for everybody.
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
    /// A number that no other server has which serves the same volume, for [`Identity::started`].
    pub fn now() -> u64 {
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
        now.map_or(0, |now| now.as_nanos() as u64)
    }
}
