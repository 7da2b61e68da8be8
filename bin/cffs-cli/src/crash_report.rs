//! Crash reports: the log messages about a server that dies.
//!
//! A server logs its own panics, with the request that it was serving. After any other crash, its monitor
//! ([`crate::background`]) logs its last output on standard error and the signal that ended it.

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

/// The longest piece of a server's output that is logged as one message, in bytes.
const PIECE_BYTES_MAX: usize = 4096;

/// Logs panics instead of printing them.
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

/// Logs a server's output on standard error until its end.
pub fn log_output(mut output: impl Read) {
    let mut piece = [0; PIECE_BYTES_MAX];
    while let Ok(len @ 1..) = output.read(&mut piece) {
        let text = String::from_utf8_lossy(&piece[..len]);
        for line in text.lines().filter(|line| !line.trim().is_empty()) {
            tracing::error!("the server says: {line}");
        }
    }
}

/// Logs the signal that ended a server, if one did.
pub fn log_end(image: &Path, pid: u32, status: ExitStatus) {
    let Some(signal) = status.signal() else { return };
    let name = signal_name(signal).unwrap_or("an unknown signal");
    let hint = if signal == SIGKILL {
        "; a user killed it, or the kernel did because memory ran out (see the kernel log)"
    } else {
        ""
    };
    tracing::error!(
        image = %image.display(), pid, signal,
        "the server was ended by {name}{hint}; changes that were not durable are lost; mount the \
         volume again to recover it"
    );
}
