//! The directory in which the command was started, for relative paths among its arguments.
//!
//! A server changes to `/`, and a program that replaces it gets the same arguments. It must not open the old
//! directory, which may be on the volume that is not served at that moment, and so it gets its path.

use std::io;
use std::path::{Path, PathBuf, absolute};
use std::process::Command;
use std::sync::OnceLock;

/// Tells a program that replaces a server where its command was started.
const VARIABLE: &str = "CFFS_WORKING_DIRECTORY";

static STARTED_IN: OnceLock<PathBuf> = OnceLock::new();

/// Changes to `/`, so that the server uses no directory of its caller.
pub fn leave() -> io::Result<()> {
    if let Some(directory) = started_in() {
        let _ = STARTED_IN.set(directory);
    }
    std::env::set_current_dir("/")
}

/// Passes the directory on to a program that gets the arguments of this one.
pub fn hand_over(command: &mut Command) {
    if let Some(directory) = started_in() {
        command.env(VARIABLE, directory);
    }
}

/// A path among the arguments as an absolute one.
///
/// # Errors
///
/// The path is empty, or the present directory was removed.
pub fn absolute_argument(path: &Path) -> io::Result<PathBuf> {
    match std::env::var_os(VARIABLE) {
        Some(directory) if path.is_relative() && !path.as_os_str().is_empty() => {
            absolute(Path::new(&directory).join(path))
        }
        _ => absolute(path),
    }
}

fn started_in() -> Option<PathBuf> {
    let known = STARTED_IN.get().cloned().or_else(|| std::env::var_os(VARIABLE).map(PathBuf::from));
    known.or_else(|| std::env::current_dir().ok())
}
