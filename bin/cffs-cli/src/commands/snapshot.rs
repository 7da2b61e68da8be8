//! `cffs snapshot`: kept versions of a volume in an object store.

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::UNIX_EPOCH;

use anyhow::{Context, bail};
use cffs::clock::Timestamp;
use cffs_object::Location;
use cffs_object::versions::{self, Version};
use cffs_serve::socket;
use clap::{Args, Subcommand};
use serde_json::{Value, json};

use crate::output::{self, note, say};
use crate::{durable, first_publish, image, names};

/// Keep versions of a volume in an object store
///
/// A version is the volume as of its last sync, under a name. If the volume is mounted or served on this
/// machine, it is synced first; if that fails, a message says so. It takes one request, whatever the volume's
/// size, and space only for data that is overwritten later. Programs can continue to write meanwhile. Any
/// number of machines can mount a version, read-only and without write access: cffs mount URL@NAME.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  cffs snapshot create s3://bucket/tree@monday
  cffs snapshot ls s3://bucket/tree
  cffs mount s3://bucket/tree@monday mnt
  cffs ls s3://bucket/tree@monday /src
  cffs snapshot rm s3://bucket/tree@monday")]
pub struct Snapshot {
    #[command(subcommand)]
    what: What,
}

#[derive(Debug, Subcommand)]
enum What {
    /// Keep the current state of the volume
    Create {
        /// The volume, and the name: up to 128 letters, digits, '-', '_' and '.'.
        #[arg(value_name = "URL@NAME")]
        kept: PathBuf,
    },
    /// List versions, with the time (UTC) at which each was made
    Ls {
        /// The volume.
        #[arg(value_name = "URL")]
        volume: PathBuf,
        /// Print JSON.
        #[arg(long)]
        json: bool,
    },
    /// Delete a version, and data held only for deleted clones of it
    ///
    /// Unmount the version everywhere before: mounts of it are not noticed. They keep working until a
    /// program that writes the volume deletes data that only this version needed, which may happen at once.
    /// Then reads of such data fail with EIO, and the log names the missing objects. Clones keep their data.
    Rm {
        /// The volume and the name.
        #[arg(value_name = "URL@NAME")]
        kept: PathBuf,
    },
}

impl Snapshot {
    pub fn run(self) -> anyhow::Result<ExitCode> {
        match &self.what {
            What::Create { kept } => {
                let at = place(kept)?;
                let volume = PathBuf::from(at.volume_url());
                if let Err(error) = sync_here(&volume) {
                    note!("cffs: {}: not synced before: {error:#}", volume.display());
                }
                versions::create(&at).with_context(|| kept.display().to_string())?;
            }
            What::Rm { kept } => {
                versions::remove(&place(kept)?).with_context(|| kept.display().to_string())?;
            }
            What::Ls { volume, json } => {
                let (at, of) = (place(volume)?, || volume.display().to_string());
                let all = versions::list(&at).with_context(of)?;
                // A volume that was not completed is an error; whether a publish is cannot always be known.
                if all.is_empty() && first_publish::is_begun(volume, &at).with_context(of)? {
                    note!(
                        "cffs snapshot: {}: its first publish is in progress or was interrupted; the same \
                         command continues it",
                        of()
                    );
                }
                if *json {
                    output::json(&Value::from_iter(all.iter().map(as_json)))?;
                    return Ok(ExitCode::SUCCESS);
                }
                for version in all {
                    let made = Timestamp { seconds: made_seconds(&version), nanoseconds: 0 };
                    match &version.clone {
                        None => say!("{made}  {}", version.name)?,
                        Some(clone) => say!("{made}  {}  (for the clone {clone})", version.name)?,
                    }
                }
            }
        }
        Ok(ExitCode::SUCCESS)
    }
}

/// The place in a store that the argument must name.
pub fn place(target: &Path) -> anyhow::Result<Location> {
    match image::location(target)? {
        Some(location) => Ok(location),
        None => bail!(
            "{}: versions are of volumes in object stores; name one by its URL, s3://bucket/prefix",
            target.display()
        ),
    }
}

/// Writes all earlier changes to the store, if the server of the volume is on this machine.
fn sync_here(volume: &Path) -> anyhow::Result<()> {
    if names::mounted(volume)?.is_none() && socket::server_of_url(volume).is_none() {
        return Ok(());
    }
    durable::sync("snapshot", volume, &names::to_ask(volume)?)
}

fn as_json(version: &Version) -> Value {
    json!({ "name": version.name, "made_at": made_seconds(version), "clone": version.clone })
}

fn made_seconds(version: &Version) -> i64 {
    version.made.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs().cast_signed()
}
