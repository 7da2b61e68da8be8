//! What the log says when a server dies.
//!
//! Panics are logged by the server itself, with the request that it was serving. Whatever else ends a
//! process leaves it no time for that, or no memory: its monitor ([`crate::background`]) logs what it
//! wrote to standard error last, and the signal that ended it.

use std::io::Read;
use std::os::unix::process::ExitStatusExt;
use std::panic::{self, PanicHookInfo};
use std::path::Path;
use std::process::ExitStatus;

use cffs_serve::fuse;
use signal_hook::consts::SIGKILL;
use signal_hook::low_level::signal_name;

#[cfg(test)]
mod tests;

/// The longest piece of what a server writes that is logged as one message, in bytes.
const PIECE_BYTES_MAX: usize = 4096;

/// Has panics logged instead of printed.
pub fn log_panics() {
    panic::set_hook(Box::new(|panic| {
        let place = panic.location().map(ToString::to_string).unwrap_or_default();
        let thread = std::thread::current();
        let thread = thread.name().unwrap_or("unnamed");
        let message = message_of(panic);
        match fuse::current_request() {
            Some(request) => {
                tracing::error!(place, thread, request, "panicked: {message}; requests fail now");
            }
            None => tracing::error!(place, thread, "panicked: {message}"),
        }
    }));
}

fn message_of<'a>(panic: &'a PanicHookInfo<'_>) -> &'a str {
    let payload = panic.payload();
    let text = payload.downcast_ref::<&str>().copied();
    text.or_else(|| payload.downcast_ref::<String>().map(String::as_str)).unwrap_or("no message")
}

/// Logs what comes from a server's standard error, until there is no more.
pub fn log_all(mut words: impl Read) {
    let mut piece = [0; PIECE_BYTES_MAX];
    while let Ok(len @ 1..) = words.read(&mut piece) {
        let text = String::from_utf8_lossy(&piece[..len]);
        for line in text.lines().filter(|line| !line.trim().is_empty()) {
            tracing::error!("the server says: {line}");
        }
    }
}

/// Logs how a server ended, if it was not its own doing.
pub fn log_end(image: &Path, pid: u32, status: ExitStatus) {
    let Some(signal) = status.signal() else { return };
    let name = signal_name(signal).unwrap_or("an unknown signal");
    let hint = if signal == SIGKILL {
        "; somebody killed it, or the kernel for want of memory (its log says so)"
    } else {
        ""
    };
    tracing::error!(
        image = %image.display(), pid, signal,
        "the server was ended by {name}{hint}; what was not durable is lost: mount the volume again, \
         which recovers it"
    );
}
