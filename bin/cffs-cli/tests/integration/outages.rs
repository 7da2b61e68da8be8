//! Programs that wait for a store that does not answer.

use std::cell::RefCell;
use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};

use crate::harness::store_server::{SECRET, StoreServer};
use crate::harness::{CFFS, Scratch, can_mount, fail, succeed, wait_for};

const URL: &str = "s3://bucket/tree";

/// Whether a thread of a process is waiting for the answer of a server.
fn waits(process: &Child) -> bool {
    let threads = fs::read_dir(format!("/proc/{}/task", process.id())).into_iter().flatten();
    let mut places =
        threads.flatten().map(|thread| fs::read_to_string(thread.path().join("wchan")));
    places.any(|place| place.is_ok_and(|place| place == "request_wait_answer"))
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

/// A mounted volume in a directory that can be moved away.
struct Movable {
    scratch: Scratch,
}

impl Movable {
    fn mount() -> Movable {
        let scratch = Scratch::new();
        let movable = Movable { scratch };
        movable.cffs(&["mkfs", "-q", "--size", "1G", &movable.url("one")]);
        let at = movable.scratch.mountpoint().display().to_string();
        let options = movable.scratch.log_option();
        movable.cffs(&["mount", "-o", &options, &movable.url("one"), &at]);
        movable
    }

    fn url(&self, name: &str) -> String {
        format!("file://{}", self.scratch.path().join(name).display())
    }

    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = self.scratch.cffs([]);
        command.args(arguments);
        command
    }

    fn cffs(&self, arguments: &[&str]) -> String {
        succeed(&mut self.command(arguments))
    }

    fn rename(&self, from: &str, to: &str) {
        let path = |name: &str| self.scratch.path().join(name);
        fs::rename(path(from), path(to)).expect("moved");
    }
}

/// Regression: while the directory of a mounted volume was moved away, `cffs mkfs` and `cffs publish` made
/// another volume in its place, and `cffs clone` a clone.
#[test]
fn no_volume_is_made_in_the_place_of_one_in_use() {
    if !can_mount() {
        return;
    }
    let volume = Movable::mount();
    let (one, other) = (volume.url("one"), volume.url("other"));
    volume.cffs(&["mkfs", "-q", "--size", "1G", &other]);
    volume.cffs(&["snapshot", "create", &format!("{other}@v1")]);
    volume.rename("one", "away");
    fs::create_dir(volume.scratch.path().join("source")).expect("made");
    let source = volume.scratch.path().join("source").display().to_string();
    for arguments in [
        &["mkfs", "-q", "--size", "1G", &one][..],
        &["publish", "-q", &source, &format!("{one}@v1")],
        &["clone", &format!("{other}@v1"), &one],
    ] {
        let said = fail(1, &mut volume.command(arguments));
        assert!(said.contains("is mounted on") && said.contains("by process"), "{said}");
        assert!(!volume.scratch.path().join("one").exists(), "{arguments:?}");
    }
    volume.rename("away", "one");
    volume.scratch.umount();
    let said = fail(1, &mut volume.command(&["mkfs", "-q", "--size", "1G", &one]));
    assert!(said.contains("already has a volume"), "{said}");
}

/// Regression: `cffs sync` waited silently for the end of an outage. If another volume is in the place of the
/// mounted one, the message names both. The log had neither an error nor the end of the outage.
#[test]
fn a_sync_says_that_it_waits_for_the_store() {
    if !can_mount() {
        return;
    }
    let volume = Movable::mount();
    let at = volume.scratch.mountpoint();
    volume.cffs(&["mkfs", "-q", "--size", "1G", &volume.url("other")]);
    for number in 0..8 {
        volume.cffs(&[
            "import",
            "-q",
            &volume.url("other"),
            "/etc/hostname",
            &format!("/{number}"),
        ]);
    }
    for is_replaced in [false, true] {
        volume.rename("one", "away");
        if is_replaced {
            volume.rename("other", "one");
        }
        fs::write(at.join("file"), if is_replaced { "second" } else { "first" }).expect("written");
        let mut sync = volume.command(&["sync", &at.display().to_string()]);
        let mut sync = sync.stderr(Stdio::piped()).spawn().expect("it starts");
        let mut said = String::new();
        let output = sync.stderr.take().expect("a pipe");
        BufReader::new(output).read_line(&mut said).expect("a line");
        let cause = if is_replaced { "has another volume now" } else { "is gone" };
        assert!(said.contains("waiting for the store") && said.contains(cause), "{said}");
        let stats = volume.cffs(&["stats", "--json", &at.display().to_string()]);
        assert!(stats.contains("\"outage\"") && stats.contains(cause), "{stats}");
        assert!(sync.try_wait().expect("a child").is_none(), "it waits");
        let log = || fs::read_to_string(volume.scratch.path().join("log")).expect("read");
        let ends = || log().matches("the store works again").count();
        assert_eq!(ends(), usize::from(is_replaced), "{}", log());
        if is_replaced {
            volume.rename("one", "other");
        } else {
            wait_for(|| log().contains("ERROR"));
            let log = log();
            let line = log.lines().find(|line| line.contains("ERROR")).expect("a line");
            assert!(line.contains("changes wait until they succeed"), "{line}");
            assert!(line.contains(cause) && !line.contains("writing continues"), "{line}");
        }
        volume.rename("away", "one");
        assert!(sync.wait().expect("it ends").success());
        let stats = volume.cffs(&["stats", "--json", &at.display().to_string()]);
        assert!(!stats.contains("\"outage\""), "{stats}");
        assert_eq!(ends(), 1 + usize::from(is_replaced), "{}", log());
    }
    volume.scratch.umount();
    assert_eq!(volume.cffs(&["cat", &volume.url("one"), "/file"]), "second");
    volume.cffs(&["fsck", "-n", "-f", &volume.url("other")]);
}

/// The messages of a command that waits, up to the reason.
fn reason_for_waiting(command: &mut Child) -> String {
    let mut said = String::new();
    let mut output = BufReader::new(command.stderr.take().expect("a pipe"));
    while !said.contains("is gone") && output.read_line(&mut said).expect("a line") > 0 {}
    said
}

/// Regression: `cffs umount` said that it waited for a device, and `cffs snapshot create` advised to make a
/// volume, although the server was still closing the one at that URL.
#[test]
fn an_unmount_says_that_it_waits_for_the_store() {
    if !can_mount() {
        return;
    }
    let volume = Movable::mount();
    let at = volume.scratch.mountpoint();
    volume.rename("one", "away");
    fs::write(at.join("file"), "contents").expect("written");
    let mut umount = volume.command(&["umount", &at.display().to_string()]);
    let mut umount = umount.stderr(Stdio::piped()).spawn().expect("it starts");
    let said = reason_for_waiting(&mut umount);
    assert!(said.contains("waiting for the store, which has not answered for"), "{said}");
    assert!(!said.contains("device"), "{said}");
    let version = format!("{}@v1", volume.url("one"));
    let said = fail(1, &mut volume.command(&["snapshot", "create", &version]));
    assert!(said.contains("check the URL, and whether its directory was moved"), "{said}");
    assert!(umount.try_wait().expect("a child").is_none(), "it waits");
    volume.rename("away", "one");
    assert!(umount.wait().expect("it ends").success());
    assert_eq!(volume.cffs(&["cat", &volume.url("one"), "/file"]), "contents");
}

/// Regression: `cffs umount` gave up after five seconds, and blamed another mount, if the server still served
/// a `cffs sync` that was killed.
#[test]
fn an_unmount_waits_for_the_store_after_a_killed_sync() {
    if !can_mount() {
        return;
    }
    let volume = Movable::mount();
    let at = volume.scratch.mountpoint();
    volume.rename("one", "away");
    fs::write(at.join("file"), "contents").expect("written");
    let mut sync = volume.command(&["sync", &at.display().to_string()]);
    let mut sync = sync.stderr(Stdio::piped()).spawn().expect("it starts");
    reason_for_waiting(&mut sync);
    sync.kill().expect("killed");
    sync.wait().expect("it ends");
    let mut umount = volume.command(&["umount", &at.display().to_string()]);
    let mut umount = umount.stderr(Stdio::piped()).spawn().expect("it starts");
    let said = reason_for_waiting(&mut umount);
    assert!(said.contains("waiting for the store, which has not answered for"), "{said}");
    // Longer than a server needs to notice that it has no users left.
    thread::sleep(Duration::from_secs(6));
    assert!(umount.try_wait().expect("a child").is_none(), "it waits");
    volume.rename("away", "one");
    assert!(umount.wait().expect("it ends").success());
    assert_eq!(volume.cffs(&["cat", &volume.url("one"), "/file"]), "contents");
}

/// Regression: `cffs serve --stop` did not say why it waited.
#[test]
fn a_stop_says_that_it_waits_for_the_store() {
    let volume = Movable { scratch: Scratch::new() };
    let url = volume.url("one");
    volume.cffs(&["mkfs", "-q", "--size", "1G", &url]);
    let log = volume.scratch.log_option();
    volume.cffs(&["serve", "--nfs", "127.0.0.1:0", "-o", &log, &url]);
    volume.rename("one", "away");
    let mut stop = volume.command(&["serve", "--stop", &url]);
    let mut stop = stop.stderr(Stdio::piped()).spawn().expect("it starts");
    let said = reason_for_waiting(&mut stop);
    assert!(said.contains("waiting for the store, which has not answered for"), "{said}");
    volume.rename("away", "one");
    assert!(stop.wait().expect("it ends").success());
    volume.cffs(&["fsck", "-n", "-f", &url]);
}

/// Regression: commands waited for a stopped server if the server of a detached mount, which had the same
/// number, still waited for its store.
#[test]
fn a_stopped_server_is_found_while_that_of_a_detached_mount_waits() {
    if !can_mount() {
        return;
    }
    let volume = Movable::mount();
    let at = volume.scratch.mountpoint();
    volume.rename("one", "away");
    fs::write(at.join("file"), "contents").expect("written");
    volume.cffs(&["umount", "-l", &at.display().to_string()]);
    let other = Scratch::with_image();
    other.mount("fuseblk=no");
    let info = succeed(other.cffs(["info", "--json"]).arg(other.mountpoint()));
    let info: serde_json::Value = serde_json::from_str(&info).expect("it is JSON");
    let server = info["server"]["pid"].as_i64().and_then(|pid| Pid::from_raw(pid as i32));
    let server = server.expect("a process");
    kill_process(server, Signal::STOP).expect("stopped");
    let mut info = Command::new("timeout");
    let output = info.args(["20", CFFS, "info"]).arg(other.mountpoint()).output();
    // Before anything fails: the mount of a stopped server cannot be unmounted.
    kill_process(server, Signal::CONT).expect("continued");
    let output = output.expect("it starts");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.code() == Some(1) && said.contains("kill -CONT"), "{output:?}");
    other.umount();
    volume.rename("away", "one");
    // The server of the detached mount must end before its directory is removed.
    let check = || volume.command(&["fsck", "-p", &volume.url("one")]).output().expect("it starts");
    wait_for(|| check().status.success());
    assert_eq!(volume.cffs(&["cat", &volume.url("one"), "/file"]), "contents");
}
