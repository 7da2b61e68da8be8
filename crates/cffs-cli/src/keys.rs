//! The key or passphrase of an encrypted volume in an object store: from a file, or printed by a command.

use std::ffi::OsString;
use std::fs::{self, File};
use std::io::Read;
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use anyhow::{Context, bail};
use cffs_object::Secret;
use clap::Args;
use rustix::process::{DumpableBehavior, set_dumpable_behavior};

use crate::background::ROLE_VARIABLE;

/// A secret is shorter.
const BYTES_MAX: u64 = 64 << 10;

/// Where the secret of an encrypted volume comes from.
#[derive(Clone, Debug, Default, Args)]
#[command(next_help_heading = "Encrypted volumes in object stores")]
pub struct Keys {
    /// The file with the volume's key (32 random bytes, or 64 hexadecimal digits) or passphrase.
    #[arg(long, global = true, value_name = "FILE")]
    pub key_file: Option<PathBuf>,
    /// The command that prints the volume's key or passphrase. It is run by /bin/sh, and has no terminal if a
    /// mount is made in the background.
    #[arg(long, global = true, value_name = "COMMAND", conflicts_with = "key_file")]
    pub key_command: Option<OsString>,
}

/// The sources named on the command line or by mount options.
static GIVEN: OnceLock<Keys> = OnceLock::new();
/// The secret, once it was read: servers read no file again.
static SECRET: Mutex<Option<Arc<Secret>>> = Mutex::new(None);

/// Takes the secret of all volumes from here, unless a source was named before.
pub fn name(keys: Keys) {
    if keys.key_file.is_some() || keys.key_command.is_some() {
        let _ = GIVEN.set(keys);
    }
}

/// Whether a source was named.
pub fn are_named() -> bool {
    GIVEN.get().is_some()
}

/// The secret of the volumes of this command, if a source was named. Other processes of the user cannot look
/// into this one from then on, and it leaves no core dump.
///
/// # Errors
///
/// The file or the command gives no secret.
pub fn secret() -> anyhow::Result<Option<Arc<Secret>>> {
    let mut known = SECRET.lock().unwrap_or_else(PoisonError::into_inner);
    if known.is_none()
        && let Some(keys) = GIVEN.get()
    {
        set_dumpable_behavior(DumpableBehavior::NotDumpable).context("hiding the key")?;
        *known = keys.read()?.map(Arc::new);
    }
    Ok(known.clone())
}

impl Keys {
    /// Reads the secret, if a source is named.
    pub fn read(&self) -> anyhow::Result<Option<Secret>> {
        let (bytes, source) = match (&self.key_file, &self.key_command) {
            (Some(path), _) => (of_file(path)?, path.display().to_string()),
            (None, Some(command)) => (of_command(command)?, String::from("the key command")),
            (None, None) => return Ok(None),
        };
        if bytes.len() as u64 > BYTES_MAX {
            bail!("{source}: a key or passphrase has at most {BYTES_MAX} bytes");
        }
        let secret = Secret::new(bytes).map_err(anyhow::Error::msg).context(source)?;
        Ok(Some(secret))
    }
}

/// Reads a file, or a pipe that the shell passes as a descriptor (`<(command)`). A named pipe may have no
/// writer, and then nothing would happen.
fn of_file(path: &Path) -> anyhow::Result<Vec<u8>> {
    let is_pipe = fs::metadata(path).is_ok_and(|there| there.file_type().is_fifo());
    if is_pipe && !path.starts_with("/dev/fd") && !path.starts_with("/proc") {
        bail!(
            "the key file {} is a named pipe; name a file, or print the key with --key-command",
            path.display()
        );
    }
    let mut bytes = Vec::new();
    let read = File::open(path).and_then(|file| file.take(BYTES_MAX + 1).read_to_end(&mut bytes));
    read.with_context(|| format!("the key file {}", path.display()))?;
    Ok(bytes)
}

fn of_command(command: &OsString) -> anyhow::Result<Vec<u8>> {
    let mut shell = Command::new("/bin/sh");
    // It is no server, even if this is one.
    shell.env_remove(ROLE_VARIABLE);
    shell.arg("-c").arg(command).stdin(Stdio::null()).stdout(Stdio::piped());
    let mut child = shell.spawn().context("starting the key command")?;
    let mut bytes = Vec::new();
    // The pipe is closed here, so that a command without end ends.
    let read = child.stdout.take().map(|pipe| pipe.take(BYTES_MAX + 1).read_to_end(&mut bytes));
    read.transpose().context("reading from the key command")?;
    let status = child.wait().context("waiting for the key command")?;
    if bytes.len() as u64 <= BYTES_MAX && !status.success() {
        bail!("the key command ended with {status}");
    }
    Ok(bytes)
}
