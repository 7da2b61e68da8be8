//! Programs that wait for a store that does not answer.

use std::cell::RefCell;
use std::fs;
use std::process::{Child, Command, Stdio};

use crate::harness::store_server::{SECRET, StoreServer};
use crate::harness::{CFFS, Scratch, can_mount, succeed, wait_for};

const URL: &str = "s3://bucket/tree";

/// Whether a process is waiting for the answer of a server.
fn waits(process: &Child) -> bool {
    let place = fs::read_to_string(format!("/proc/{}/wchan", process.id()));
    place.is_ok_and(|place| place == "request_wait_answer")
}

// Regression: a program that waited for a commit to a store stayed until the store answered, even after
// SIGKILL.
#[test]
fn programs_that_wait_for_a_store_can_be_killed() {
    let scratch = Scratch::new();
    let Some(store) = StoreServer::start(&scratch).filter(|_| can_mount()) else { return };
    let run = |arguments: &[&str]| store.cffs(&scratch, SECRET, arguments);
    succeed(&mut run(&["mkfs", "-q", "--size", "1G", URL]));
    let directory = scratch.mountpoint();
    let at = directory.to_str().expect("UTF-8");
    let options = format!("dirty=16M,{}", scratch.log_option());
    succeed(&mut run(&["mount", "-o", &options, URL, at]));
    fs::write(directory.join("file"), "before").expect("written");
    succeed(&mut run(&["sync", at]));

    store.stop();
    fs::write(directory.join("file"), "during").expect("it goes to memory");
    let start = |program: &str, arguments: &[&str]| {
        let mut command = Command::new(program);
        command.args(arguments).stdout(Stdio::null()).stderr(Stdio::null());
        command.spawn().expect("it starts")
    };
    let path = |name: &str| directory.join(name).to_str().expect("UTF-8").to_owned();
    // An fsync, the request of cffs sync, and a change that finds no memory for changes.
    let mut waiting = vec![
        start("sync", &[&path("file")]),
        start(CFFS, &["sync", at]),
        start("dd", &["if=/dev/zero", &format!("of={}", path("large")), "bs=1M", "count=100"]),
    ];
    for process in &waiting {
        wait_for(|| waits(process));
    }
    for process in &mut waiting {
        assert!(process.try_wait().expect("a child").is_none(), "it does not wait for the store");
        process.kill().expect("killed");
    }
    let waiting = RefCell::new(waiting);
    wait_for(|| {
        let mut waiting = waiting.borrow_mut();
        waiting.iter_mut().all(|process| process.try_wait().expect("a child").is_some())
    });
    store.start_again();
    succeed(&mut run(&["sync", at]));
    scratch.umount();
    let contents = succeed(&mut run(&["cat", URL, "/file"]));
    assert_eq!(contents, "during");
    succeed(&mut run(&["fsck", "-n", "-f", "--contents", URL]));
}
