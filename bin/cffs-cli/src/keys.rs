//! The key or passphrase of an encrypted volume in an object store: from a file, or printed by a command.

use std::ffi::OsString;
use std::fs::File;
use std::io::{self, Read, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::process::{ChildStdin, Command, Stdio};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use anyhow::{Context, bail};
use cffs_object::{PASSPHRASE_CHARS_MIN, Secret};
use clap::Args;
use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};
use rustix::process::{DumpableBehavior, geteuid, set_dumpable_behavior};

use crate::output::note;
use crate::role::{ROLE_VARIABLE, Role, role};

/// A secret is shorter.
const BYTES_MAX: u64 = 64 << 10;

/// The source of the secret of an encrypted volume.
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
/// The bytes of the named key file, which may be a pipe and readable only once.
static PASSED: Mutex<Option<Vec<u8>>> = Mutex::new(None);

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

/// Fails if a source was named, for a volume that is not in an object store.
pub fn check_none_named() -> anyhow::Result<()> {
    if are_named() {
        bail!("--key-file and --key-command are for a volume in an object store, given by its URL");
    }
    Ok(())
}

/// Takes the secret of the volume from the file that the mount option `key-file` names, if it was given.
///
/// # Errors
///
/// A source was named before.
pub fn name_by_option(key_file: Option<&Path>) -> anyhow::Result<()> {
    if key_file.is_some() && are_named() {
        bail!("the key is named twice: by the option key-file, and by --key-file or --key-command");
    }
    name(Keys { key_file: key_file.map(Path::to_owned), key_command: None });
    Ok(())
}

/// The secret of the volumes of this command, if a source was named. Other processes of the user cannot
/// inspect this one from then on, and it leaves no core dump.
///
/// # Errors
///
/// The file or the command gives no secret.
pub fn secret() -> anyhow::Result<Option<Arc<Secret>>> {
    let mut known = SECRET.lock().unwrap_or_else(PoisonError::into_inner);
    if known.is_none()
        && let Some(keys) = GIVEN.get()
    {
        hide()?;
        *known = keys.read()?.map(Arc::new);
    }
    Ok(known.clone())
}

/// Takes the secret of the volume from the program that this one replaces.
///
/// # Errors
///
/// The memory of this process cannot be hidden.
pub fn inherit(secret: Secret) -> anyhow::Result<()> {
    hide()?;
    *SECRET.lock().unwrap_or_else(PoisonError::into_inner) = Some(Arc::new(secret));
    Ok(())
}

/// Warns of a secret that will protect a volume and is a short passphrase, or may be a key that was cut off.
pub fn warn_of_weakness(secret: Option<&Secret>) {
    if secret.is_some_and(Secret::is_short) {
        note!(
            "cffs: the passphrase is short, and can be guessed by anyone who can read the store; use \
             {PASSPHRASE_CHARS_MIN} characters or more, or a key of 32 random bytes (cffs tune \
             --new-key-file)"
        );
    }
    if secret.is_some_and(Secret::looks_like_key) {
        note!(
            "cffs: the key is used as a passphrase: it has only hexadecimal digits, but not 64; if it was \
             cut off, replace it with cffs tune --new-key-file"
        );
    }
}

/// Prevents other processes of the user from inspecting this one, and core dumps of its memory.
fn hide() -> anyhow::Result<()> {
    set_dumpable_behavior(DumpableBehavior::NotDumpable).context("hiding the key")
}

/// The bytes of the named key file. The processes that serve a volume in the background get them as their
/// standard input: the file may be a pipe or a descriptor of the first process.
///
/// # Errors
///
/// The file cannot be read, or is too long.
pub fn of_named_file() -> anyhow::Result<Option<Vec<u8>>> {
    let Some(path) = GIVEN.get().and_then(|keys| keys.key_file.as_deref()) else { return Ok(None) };
    hide()?;
    let mut passed = PASSED.lock().unwrap_or_else(PoisonError::into_inner);
    if passed.is_none() {
        *passed = Some(match role() {
            Role::Caller => of_file(path)?,
            _ => all_of(io::stdin()).with_context(|| described(path))?,
        });
    }
    Ok(passed.clone())
}

/// Passes a key to a process that this one has started.
pub fn pass(bytes: &[u8], to: Option<ChildStdin>) {
    if let Some(mut pipe) = to {
        // A process that ended reports why.
        let _ = pipe.write_all(bytes);
    }
}

impl Keys {
    /// Reads the secret, if a source is named.
    pub fn read(&self) -> anyhow::Result<Option<Secret>> {
        let (bytes, source) = match (&self.key_file, &self.key_command) {
            (Some(path), _) => {
                let is_volumes = GIVEN.get().is_some_and(|keys| keys.key_file == self.key_file);
                let passed = if is_volumes { of_named_file()? } else { None };
                let bytes = passed.map_or_else(|| of_file(path), Ok)?;
                (bytes, described(path))
            }
            (None, Some(command)) => (of_command(command)?, String::from("the key command")),
            (None, None) => return Ok(None),
        };
        check_length(&bytes, &source)?;
        let secret = Secret::new(bytes).map_err(anyhow::Error::msg).context(source)?;
        Ok(Some(secret))
    }
}

/// Reads a file or a pipe.
fn of_file(path: &Path) -> anyhow::Result<Vec<u8>> {
    let read = open(path).and_then(|file| {
        warn_of_others(path, &file)?;
        all_of(file)
    });
    let bytes = read.with_context(|| described(path))?;
    check_length(&bytes, &described(path))?;
    Ok(bytes)
}

fn described(path: &Path) -> String {
    format!("the key file {}", path.display())
}

fn check_length(bytes: &[u8], source: &str) -> anyhow::Result<()> {
    if bytes.len() as u64 > BYTES_MAX {
        bail!("{source}: a key or passphrase has at most {BYTES_MAX} bytes");
    }
    Ok(())
}

/// Opens a file without waiting: a pipe without a writer ends at once.
fn open(path: &Path) -> io::Result<File> {
    let nonblocking = OFlags::NONBLOCK.bits().cast_signed();
    let file = File::options().read(true).custom_flags(nonblocking).open(path)?;
    fcntl_setfl(&file, fcntl_getfl(&file)? - OFlags::NONBLOCK)?;
    Ok(file)
}

fn all_of(source: impl Read) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    source.take(BYTES_MAX + 1).read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// Warns of a file of this user to which others have access.
fn warn_of_others(path: &Path, file: &File) -> io::Result<()> {
    let there = file.metadata()?;
    let mode = there.mode() & 0o777;
    if there.is_file() && there.uid() == geteuid().as_raw() && mode & 0o077 != 0 {
        let path = path.display();
        note!(
            "cffs: others have access to the key file {path} (mode {mode:03o}): chmod 600 {path}"
        );
    }
    Ok(())
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
