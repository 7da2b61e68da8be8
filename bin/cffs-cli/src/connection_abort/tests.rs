use std::io::Read;
use std::os::fd::OwnedFd;
use std::process::Command;

use super::*;

/// The first thread ends, and another one does not.
const DYING: &str = "
import ctypes, threading, time
threading.Thread(target=time.sleep, args=(1000,)).start()
ctypes.CDLL(None).pthread_exit(None)
";

// Regression: a server was killed while a thread of it waited in the kernel, and its mount hung.
#[test]
fn the_connection_of_a_server_is_aborted_when_its_first_thread_has_ended() {
    let mut server = Command::new("python3").args(["-c", DYING]).spawn().expect("started");
    let (mut written, abort) = std::io::pipe().expect("made");
    abort_when_dying(Pid::from_child(&server), File::from(OwnedFd::from(abort)));
    let mut command = String::new();
    written.read_to_string(&mut command).expect("read");
    let ended = server.try_wait();
    server.kill().expect("killed");
    server.wait().expect("ended");
    assert_eq!(command, "1");
    assert!(matches!(ended, Ok(None)), "a thread of it is left");
}

#[test]
fn a_server_that_runs_is_not_dying() {
    assert!(!is_dying(rustix::process::getpid()));
}

#[test]
fn a_killed_thread_is_dying_before_it_ends() {
    let stat = |state: &str, flags: u64, signals: u64| {
        let zeros = ["0"; 21].join(" ");
        let line = format!("7 (a) (b) {state} 1 7 7 0 -1 {flags} {zeros} {signals} 0 0 0");
        is_dead_or_killed(line.as_bytes())
    };
    for state in ["R", "S", "D"] {
        assert!(!stat(state, 0x40_0000, 0));
        assert!(!stat(state, 0x40_0000, 1 << 14), "another signal");
        assert!(stat(state, 0x40_0004, 0) && stat(state, 0x40_0400, 0) && stat(state, 0, 1 << 8));
    }
    assert!(stat("Z", 0, 0));
    assert!(!is_dead_or_killed(b"") && !is_dead_or_killed(b"7 (a"));
}

#[test]
fn without_a_connection_nothing_is_opened() {
    assert!(open("").is_none());
    assert!(open("4294967295").is_none());
}
