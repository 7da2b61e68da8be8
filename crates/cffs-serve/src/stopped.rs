//! Servers that do not answer because their process is stopped.

use std::fs;

/// Whether a process is stopped, by a signal or by a debugger.
pub fn is_stopped(process: u32) -> bool {
    let stat = fs::read(format!("/proc/{process}/stat")).unwrap_or_default();
    // The state follows the program's name, which is in parentheses and may contain any character.
    let after_name = stat.rsplit(|byte| *byte == b')').next().unwrap_or_default();
    matches!(after_name.trim_ascii_start().first(), Some(b'T' | b't'))
}

/// Why a server does not answer whose process is stopped, and the remedy.
pub fn explain(process: u32) -> String {
    format!(
        "its server, process {process}, is stopped and does not answer; continue it with kill -CONT {process}"
    )
}

#[cfg(test)]
mod tests {
    use std::process::{Command, Stdio};
    use std::{process, thread, time::Duration};

    use rustix::process::{Pid, Signal, kill_process};

    use super::*;

    #[test]
    fn a_process_is_stopped_by_a_signal() {
        let mut child = Command::new("cat").stdin(Stdio::piped()).spawn().expect("it starts");
        let pid = Pid::from_child(&child);
        assert!(!is_stopped(child.id()) && !is_stopped(process::id()));
        kill_process(pid, Signal::STOP).expect("signalled");
        while !is_stopped(child.id()) {
            thread::sleep(Duration::from_millis(1));
        }
        kill_process(pid, Signal::CONT).expect("signalled");
        while is_stopped(child.id()) {
            thread::sleep(Duration::from_millis(1));
        }
        drop(child.stdin.take());
        assert!(child.wait().expect("it ends").success());
        assert!(!is_stopped(child.id()), "it is gone");
    }
}
