//! A server that crashes logs the reason. If mounting is impossible, the tests print that and pass.

use std::fs;
use std::time::{Duration, Instant};

use crate::harness::{Scratch, can_mount, succeed};
use rustix::process::{Pid, Resource, Rlimit, Signal, kill_process, prlimit};

/// The process that serves a mounted volume.
fn server(scratch: &Scratch) -> Pid {
    let info = succeed(scratch.cffs(["info", "--json"]).arg(scratch.mountpoint()));
    let info: serde_json::Value = serde_json::from_str(&info).expect("it is JSON");
    let pid = info["server"]["pid"].as_i64().and_then(|pid| i32::try_from(pid).ok());
    Pid::from_raw(pid.expect("a number")).expect("a process")
}

/// Waits until the log contains all of these texts, or fails.
fn wait_for_log(scratch: &Scratch, wanted: &[&str]) {
    let until = Instant::now() + Duration::from_secs(20);
    loop {
        let log = fs::read_to_string(scratch.path().join("log")).unwrap_or_default();
        if wanted.iter().all(|wanted| log.contains(wanted)) {
            return;
        }
        assert!(Instant::now() < until, "the log lacks one of {wanted:?}:\n{log}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn an_end_by_a_signal_is_in_the_log() {
    if !can_mount() {
        return;
    }
    for (signal, name) in [(Signal::KILL, "SIGKILL"), (Signal::ILL, "SIGILL")] {
        let scratch = Scratch::with_image();
        scratch.mount("rw");
        kill_process(server(&scratch), signal).expect("sent");
        let image = scratch.image();
        wait_for_log(&scratch, &[&format!("ended by {name}"), &image.to_string_lossy()]);
    }
}

#[test]
fn a_server_that_gets_no_memory_says_so() {
    if !can_mount() {
        return;
    }
    let scratch = Scratch::with_image();
    scratch.mount("cache=128M");
    let file = scratch.mountpoint().join("large");
    fs::write(&file, vec![7; 100 << 20]).expect("written");
    scratch.umount();
    scratch.mount("cache=128M");
    let server = server(&scratch);
    let status = fs::read_to_string(format!("/proc/{}/status", server.as_raw_nonzero()));
    let status = status.expect("it runs");
    let size = status.lines().find_map(|line| line.strip_prefix("VmSize:")).expect("there");
    let size: u64 = size.trim().trim_end_matches(" kB").parse().expect("a number");
    let limit = Some((size << 10) + (16 << 20));
    prlimit(Some(server), Resource::As, Rlimit { current: limit, maximum: limit }).expect("set");
    assert!(fs::read(&file).is_err(), "there was no memory for what was read");
    wait_for_log(&scratch, &["the server says: memory allocation of", "ended by SIGABRT"]);
}

#[test]
fn an_unmount_is_not_reported_as_a_crash() {
    if !can_mount() {
        return;
    }
    let scratch = Scratch::with_image();
    scratch.mount("rw");
    scratch.umount();
    wait_for_log(&scratch, &["closed"]);
    std::thread::sleep(Duration::from_millis(200));
    let log = fs::read_to_string(scratch.path().join("log")).expect("there");
    assert!(!log.contains("ended") && !log.contains("says"), "{log}");
}
