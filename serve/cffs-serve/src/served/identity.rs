//! The identity of a server.

use std::collections::BTreeMap;
use std::time::SystemTime;

use cffs::error::{Error, Result};
use serde::{Deserialize, Serialize};

/// The option that determines when a read sets the access time. It contains no path.
const ATIME: &str = "atime";

/// The server of a mount, and its volume.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Identity {
    /// The image or device; lossy if its path is not UTF-8. Omitted for some users.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub image: Option<String>,
    /// The mount point. Omitted for some users.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub directory: Option<String>,
    /// The server's process ID in its own namespace.
    pub pid: u32,
    /// The user that the server runs as.
    pub uid: u32,
    /// Whether changes are refused: the volume was opened for reading only, its mount is read-only now, or
    /// damage or a failed write is the reason.
    pub read_only: bool,
    /// Whether the volume was opened for reading only, so that no remount makes it writable.
    #[serde(default)]
    pub opened_read_only: bool,
    /// The mount options that stay fixed while the server runs, by name; for users other than the owner only
    /// `atime`.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub fixed_options: BTreeMap<String, String>,
    /// The size of the volume's cache in bytes.
    pub cache_bytes: u64,
    /// How requests reach the server.
    pub transport: String,
    /// The type of the mount, with the reason if it is not `fuseblk`.
    pub mount_type: String,
    /// Distinguishes successive servers of one mount.
    pub started: u64,
    /// Why the last attempt to replace this server's program failed.
    pub restart_failure: Option<String>,
    /// Why NFS clients are no longer served after that attempt.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub nfs_failure: Option<String>,
    /// Why the page is no longer served after that attempt.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub page_failure: Option<String>,
}

impl Identity {
    /// A value for [`Identity::started`] that no other server of this volume has.
    pub fn now() -> u64 {
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
        now.map_or(0, |now| now.as_nanos() as u64)
    }

    /// The identity as shown to the user `uid`. Only root and the user who mounted the volume see the paths
    /// of the image, the log and the mount: a container may see the mount, but must not learn them.
    pub(crate) fn shown_to(&self, uid: u32) -> Identity {
        if is_owner(uid) { self.clone() } else { self.without_paths() }
    }

    /// The part that all users may see.
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
