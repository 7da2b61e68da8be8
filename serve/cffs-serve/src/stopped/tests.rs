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
