//! Properties that a server in the background inherits from the program that started it.

use std::process::Command;

use crate::harness::{CFFS, Scratch, can_mount, succeed};

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
