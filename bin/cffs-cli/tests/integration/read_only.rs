//! Mounts that are read-only, from the beginning or after a remount: commands, the page, and the server
//! itself agree.

use std::fs;
use std::path::Path;
use std::process::Command;

use rustix::fs::Advice;
use rustix::mount::{MountFlags, mount_remount};
use serde_json::Value;

use crate::harness::nfs::{ANY_PORT, Client, OK, entry, started, status};
use crate::harness::page::Page;
use crate::harness::{Scratch, can_mount, fail, succeed, wait_for};

/// The commands that the kernel keeps from the server, with their exit codes, and the actions of the page.
const COMMANDS: [(i32, &[&str]); 6] = [
    (1, &["trim"]),
    (1, &["regroup"]),
    (8, &["scrub"]),
    (8, &["fsck", "--online"]),
    (1, &["tune", "--label", "new"]),
    (1, &["grow"]),
];
const ACTIONS: [(&str, &str); 6] = [
    ("trim", "{}"),
    ("regroup", "{}"),
    ("scrub", "{}"),
    ("fsck", "{}"),
    ("label", "{\"label\":\"new\"}"),
    ("export-add", "{\"export\":\"/:rw\"}"),
];

fn json(command: &mut Command) -> Value {
    serde_json::from_str(&succeed(command)).expect("it is JSON")
}

fn shown(page: &Page) -> Value {
    let (code, status) = page.ask("GET /api/v1/status", "");
    assert_eq!(code, 200, "{status}");
    serde_json::from_str(&status).expect("it is JSON")
}

fn act(page: &Page, action: &str, body: &str) -> (u16, String) {
    page.ask(&format!("POST /api/v1/actions/{action}"), body)
}

/// Fails unless commands and the page refuse all work, and the image stays as it is.
fn assert_refuses_work(scratch: &Scratch, page: &Page) {
    let mount = scratch.mountpoint();
    succeed(scratch.cffs(["sync"]).arg(&mount));
    let before = fs::read(scratch.image()).expect("read");
    let info = json(scratch.cffs(["info", "--json"]).arg(&mount));
    assert_eq!(info["server"]["read_only"], true, "{info}");
    wait_for(|| shown(page)["server"]["read_only"] == true);
    for (code, command) in COMMANDS {
        let said = fail(code, scratch.cffs([]).args(command).arg(&mount));
        assert!(said.contains("read-only"), "{command:?}: {said}");
    }
    for (action, body) in ACTIONS {
        let (code, said) = act(page, action, body);
        assert!(code == 409 && said.contains("read-only"), "{action}: {code} {said}");
    }
    let fstrim = Command::new("fstrim").arg(&mount).output().expect("it starts");
    assert!(!fstrim.status.success(), "{fstrim:?}");
    assert_eq!(act(page, "sync", "{}").0, 202);
    // Reads set no access times.
    for entry in fs::read_dir(&mount).expect("listed") {
        let file = fs::File::open(entry.expect("an entry").path()).expect("opened");
        rustix::fs::fadvise(&file, 0, None, Advice::DontNeed).expect("advised");
        std::io::read_to_string(file).expect("read");
    }
    succeed(scratch.cffs(["sync"]).arg(&mount));
    let jobs = shown(page)["jobs"].clone();
    for job in ["trim", "regroup", "scrub", "fsck"] {
        assert_eq!(jobs[job]["stage"], "never", "{jobs}");
    }
    assert!(fs::read(scratch.image()).expect("read") == before, "the image has changed");
}

fn mount(scratch: &Scratch, page: &Page, options: &str) {
    let mut command = scratch.cffs(["mount", "-o", options, "-o", &scratch.log_option()]);
    command.args(page.options()).args(["--nfs", "127.0.0.1:0", "--export", "/:ro"]);
    succeed(command.arg(scratch.image()).arg(scratch.mountpoint()));
}

fn fill(directory: &Path) {
    for number in 0..40 {
        fs::write(directory.join(number.to_string()), vec![1; 20_000]).expect("written");
    }
    for number in (0..40).step_by(2) {
        fs::remove_file(directory.join(number.to_string())).expect("removed");
    }
}

/// Regression: the page of a mount that was remounted read-only showed it as writable, and trimmed and
/// regrouped it.
#[test]
fn the_page_and_commands_refuse_the_same_work_on_a_mount_that_became_read_only() {
    if !can_mount() || !rustix::process::geteuid().is_root() {
        return;
    }
    for transport in ["auto", "dev"] {
        let scratch = Scratch::with_image();
        let page = Page::of(&scratch);
        mount(&scratch, &page, &format!("strictatime,transport={transport}"));
        fill(&scratch.mountpoint());
        scratch.mount("remount,ro");
        assert_refuses_work(&scratch, &page);
        // Without the command, which tells the server nothing either.
        mount_remount(scratch.mountpoint(), MountFlags::empty(), "").expect("writable");
        let remount = || mount_remount(scratch.mountpoint(), MountFlags::RDONLY, "");
        wait_for(|| remount().is_ok());
        assert_refuses_work(&scratch, &page);
        succeed(scratch.cffs(["restart"]).arg(scratch.mountpoint()));
        assert_refuses_work(&scratch, &page);

        scratch.mount("remount,rw");
        wait_for(|| shown(&page)["server"]["read_only"] == false);
        succeed(scratch.cffs(["trim"]).arg(scratch.mountpoint()));
        assert_eq!(act(&page, "trim", "{}").0, 202);
        assert_eq!(act(&page, "regroup", "{}").0, 202);
        wait_for(|| {
            let jobs = shown(&page)["jobs"].clone();
            jobs["trim"]["stage"] == "done" && jobs["regroup"]["stage"] == "done"
        });
        fs::write(scratch.mountpoint().join("new"), b"contents").expect("written");
        scratch.umount();
        scratch.assert_clean();
    }
}

/// Regression: the page of a mount that was read-only from the beginning began scrubs and checks, which the
/// commands refuse.
#[test]
fn the_page_and_commands_refuse_the_same_work_on_a_mount_that_was_made_read_only() {
    if !can_mount() || !rustix::process::geteuid().is_root() {
        return;
    }
    let scratch = Scratch::with_image();
    let page = Page::of(&scratch);
    mount(&scratch, &page, "ro");
    assert_refuses_work(&scratch, &page);
    scratch.umount();
}

/// Regression: the server made the check.
#[test]
fn an_image_that_is_served_read_only_is_read_by_the_check() {
    let scratch = Scratch::with_image();
    let page = Page::of(&scratch);
    let mut serve = scratch.cffs(["serve", "-o", "ro", "-o", &scratch.log_option()]);
    succeed(serve.args(page.options()).arg(scratch.image()));
    let stage = || shown(&page)["jobs"]["fsck"]["stage"].clone();
    succeed(scratch.cffs(["fsck", "-n"]).arg(scratch.image()));
    // The page shows the state of each second.
    let before = shown(&page)["at"].as_u64();
    wait_for(|| shown(&page)["at"].as_u64() > before);
    assert_eq!(stage(), "never");
    succeed(scratch.cffs(["fsck", "--online"]).arg(scratch.image()));
    wait_for(|| stage() == "done");
    succeed(scratch.cffs(["serve", "--stop"]).arg(scratch.image()));
}

/// Regression: NFS clients continued changing a mount that was remounted by mount(2), of which its server
/// learns nothing.
#[test]
fn nfs_clients_change_nothing_from_the_moment_of_a_remount() {
    const MAKE_DIR: u32 = 9;
    const ROFS: u32 = 30;
    if !can_mount() || !rustix::process::geteuid().is_root() {
        return;
    }
    let scratch = Scratch::with_image();
    let mut mount = scratch.mount_command("rw");
    mount.args(["--nfs", ANY_PORT, "--export", "/:insecure,no_root_squash"]);
    let mut client = Client::new(started(&mut mount), 0);
    let root = client.mount("/").expect("exported");
    for round in 0..20 {
        let is_read_only = round % 2 == 1;
        let flags = if is_read_only { MountFlags::RDONLY } else { MountFlags::empty() };
        mount_remount(scratch.mountpoint(), flags, "").expect("remounted");
        let made = client.prepare(MAKE_DIR, |w| {
            entry(&root, &format!("d{round}"))(w);
            (0..6).for_each(|_| w.u32(0));
        });
        let expected = if is_read_only { ROFS } else { OK };
        assert_eq!(status(&client.make(&made)), expected, "round {round}");
    }
    scratch.umount();
    scratch.assert_clean();
}
