//! Properties that a server in the background inherits from the program that started it.

use std::fs;
use std::io::{self, Read};
use std::process::{Command, Stdio};
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use crate::harness::{CFFS, Scratch, can_mount, succeed, wait_for};

/// A pipe that is open this long after the command is held by the server.
const HELD_AFTER: Duration = Duration::from_secs(60);

/// Runs a command in a shell that holds a lock on a file, as scripts do that must not run twice; returns
/// whether the lock is free afterwards.
fn lock_is_free_after(scratch: &Scratch, command: &str, log: &str) -> bool {
    let script = format!("( flock 9 && {command} ) 9>\"$3\" && flock -n \"$3\" true || echo held");
    let mut shell = Command::new("sh");
    shell.args(["-ec", &script, CFFS]).arg(scratch.image()).arg(scratch.mountpoint());
    succeed(shell.arg(scratch.path().join("lock")).arg(log)).is_empty()
}

// Regression: a server kept all descriptors of the program that mounted: a lock held by a script stayed held
// while the volume was mounted.
#[test]
fn a_server_in_the_background_holds_no_lock_of_its_caller() {
    let scratch = Scratch::with_image();
    let log = scratch.log_option();
    let serve = "\"$0\" serve --nfs 127.0.0.1:0 -o \"$4\" \"$1\" 2>/dev/null";
    let is_free = lock_is_free_after(&scratch, serve, &log);
    succeed(scratch.cffs(["serve", "--stop"]).arg(scratch.image()));
    assert!(is_free, "cffs serve holds it");
    if can_mount() {
        let mount = "\"$0\" mount -o \"$4\" \"$1\" \"$2\"";
        let is_free = lock_is_free_after(&scratch, mount, &log);
        scratch.umount();
        assert!(is_free, "cffs mount holds it");
    }
}

/// Runs a command with a pipe as its standard output, its standard error and another descriptor. Returns
/// whether a reader of the pipe sees its end. The monitor closes its copy just after the command ends.
fn pipe_ends_with(arguments: &[&str], scratch: &Scratch) -> bool {
    let (mut reader, writer) = io::pipe().expect("a pipe");
    let mut shell = Command::new("sh");
    shell.args(["-ec", "exec \"$0\" \"$@\" 9>&1", CFFS]).args(arguments).arg(scratch.image());
    if arguments[0] == "mount" {
        shell.arg(scratch.mountpoint());
    }
    shell.stdin(Stdio::null()).stdout(writer.try_clone().expect("a copy")).stderr(writer);
    let status = shell.status().expect("run");
    // It has the write end, too.
    drop(shell);
    assert!(status.success(), "{arguments:?}: {status}");
    let (sender, ended) = mpsc::channel();
    thread::spawn(move || sender.send(reader.read_to_end(&mut Vec::new()).is_ok()));
    ended.recv_timeout(HELD_AFTER).unwrap_or(false)
}

/// A script that reads what `cffs mount` prints continues when the command ends, not when the volume is
/// unmounted: neither the server nor its monitor has the write end of the pipe.
#[test]
fn a_server_in_the_background_holds_no_pipe_of_its_caller() {
    let scratch = Scratch::with_image();
    let log = scratch.log_option();
    let has_ended = pipe_ends_with(&["serve", "--nfs", "127.0.0.1:0", "-o", &log], &scratch);
    // The server ran until here.
    succeed(scratch.cffs(["serve", "--stop"]).arg(scratch.image()));
    assert!(has_ended, "cffs serve holds it");
    if can_mount() {
        let has_ended = pipe_ends_with(&["mount", "-o", &log], &scratch);
        scratch.umount();
        assert!(has_ended, "cffs mount holds it");
    }
}

/// Regression: a mount that was interrupted while it opened the volume was made later, when `cffs umount` had
/// found none.
#[test]
fn an_interrupted_command_leaves_no_server() {
    let scratch = Scratch::with_image();
    let log = scratch.path().join("pipe");
    let log_option = format!("logfile={}", log.display());
    let mut serve = scratch.cffs(["serve", "--nfs", "127.0.0.1:0", "-o", &log_option]);
    serve.arg(scratch.image());
    let mut mount = scratch.cffs(["mount", "-o", &log_option]);
    mount.arg(scratch.image()).arg(scratch.mountpoint());
    let mut commands = vec![serve];
    commands.extend(can_mount().then_some(mount));
    for mut command in commands {
        // The monitor waits for a reader of its log.
        succeed(Command::new("mkfifo").arg(&log));
        let mut caller = command.spawn().expect("started");
        let children = format!("/proc/{0}/task/{0}/children", caller.id());
        wait_for(|| fs::read_to_string(&children).is_ok_and(|list| !list.is_empty()));
        caller.kill().expect("killed");
        caller.wait().expect("ended");
        let (sender, ended) = mpsc::channel();
        let pipe = log.clone();
        thread::spawn(move || sender.send(fs::read(pipe).is_ok()));
        let has_ended = ended.recv_timeout(HELD_AFTER).unwrap_or(false);
        if !has_ended && scratch.is_mounted() {
            scratch.umount();
        }
        assert!(has_ended, "{command:?} still serves");
        assert!(!scratch.is_mounted());
        scratch.assert_clean();
        fs::remove_file(&log).expect("removed");
    }
}
