//! Programs that wait for a store that does not answer.

use std::cell::RefCell;
use std::fs;
use std::io::Read;
use std::process::{Child, Command, Stdio};

use rustix::process::{Pid, Signal, kill_process};

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

/// Whether a process handles SIGINT itself.
fn hears_interrupts(process: &Child) -> bool {
    let status = fs::read_to_string(format!("/proc/{}/status", process.id())).expect("read");
    let caught = status.lines().find_map(|line| line.strip_prefix("SigCgt:")).expect("a line");
    let caught = u64::from_str_radix(caught.trim(), 16).expect("a number");
    // The thread that waits for them begins after the handler is installed.
    let threads = fs::read_dir(format!("/proc/{}/task", process.id())).expect("read").count();
    threads > 1 && caught & 1 << (Signal::INT.as_raw() - 1) != 0
}

// Regression: Ctrl-C of `cffs cp` and `cffs clone` waited for the end of the outage, `cffs rm` needed a
// second one, and `cffs cp` said twice that it was interrupted.
#[test]
fn one_interrupt_ends_commands_whose_server_waits_for_a_store() {
    let scratch = Scratch::new();
    let Some(store) = StoreServer::start(&scratch).filter(|_| can_mount()) else { return };
    let run = |arguments: &[&str]| store.cffs(&scratch, SECRET, arguments);
    succeed(&mut run(&["mkfs", "-q", "--size", "1G", URL]));
    let directory = scratch.mountpoint();
    let at = directory.to_str().expect("UTF-8");
    let options = format!("cache=16M,{}", scratch.log_option());
    let path = |name: &str| directory.join(name).to_str().expect("UTF-8").to_owned();
    // Each tree is in objects of its own, so that nothing of it is fetched together with another.
    for tree in ["removed", "copied", "cloned", "unseen"] {
        succeed(&mut run(&["mount", "-o", &options, URL, at]));
        fs::create_dir_all(path(&format!("{tree}/below"))).expect("made");
        for number in 0..20 {
            let file = path(&format!("{tree}/below/{number}"));
            fs::write(file, vec![number; 1 << 20]).expect("written");
        }
        succeed(&mut run(&["umount", at]));
    }
    succeed(&mut run(&["mount", "-o", &options, URL, at]));
    // The command reaches the server with these names, and waits in the kernel for the others.
    for tree in ["copied", "cloned", "removed"] {
        fs::metadata(path(tree)).expect("found");
    }
    store.stop();
    let commands = [
        vec!["cp", "-a", &path("copied"), &path("copied-2")],
        vec!["clone", &path("cloned"), &path("cloned-2")],
        vec!["rm", "-r", &path("removed")],
        vec!["cp", "-a", &path("unseen/below/1"), &path("unseen/below/2"), &path("copied")],
    ]
    .map(|arguments| {
        let command = run(&arguments.iter().map(|word| &**word).collect::<Vec<_>>())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn();
        RefCell::new(command.expect("it starts"))
    });
    for command in &commands {
        wait_for(|| hears_interrupts(&command.borrow()));
        kill_process(Pid::from_child(&command.borrow()), Signal::INT).expect("sent");
    }
    for command in &commands {
        wait_for(|| command.borrow_mut().try_wait().expect("a child").is_some());
        let mut said = String::new();
        let mut output = command.borrow_mut().stderr.take().expect("a pipe");
        output.read_to_string(&mut said).expect("text");
        assert_eq!(said.matches("interrupted").count(), 1, "{said}");
        assert_eq!(said.lines().count(), 1, "{said}");
    }
    store.start_again();
    succeed(&mut run(&["umount", at]));
    succeed(&mut run(&["fsck", "-n", "-f", "--contents", URL]));
}
