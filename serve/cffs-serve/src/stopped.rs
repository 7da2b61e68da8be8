//! Detects servers that do not answer because their process is stopped.

use std::fs;

#[cfg(test)]
mod tests;

/// Whether a process is stopped, by a signal or by a debugger.
pub fn is_stopped(process: u32) -> bool {
    let stat = fs::read(format!("/proc/{process}/stat")).unwrap_or_default();
    // The state follows the program's name, which is in parentheses and may contain any character.
    let after_name = stat.rsplit(|byte| *byte == b')').next().unwrap_or_default();
    matches!(after_name.trim_ascii_start().first(), Some(b'T' | b't'))
}

/// Why a server with a stopped process does not answer, and the remedy.
pub fn explain(process: u32) -> String {
    format!(
        "its server, process {process}, is stopped and does not answer; continue it with kill -CONT {process}"
    )
}
