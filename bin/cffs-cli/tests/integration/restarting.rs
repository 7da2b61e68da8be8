//! Replacing the program of a server during a mount, with open files and calls in progress.

use std::ffi::OsStr;
use std::fs::{self, File};
use std::io::{Read, Seek, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};

use crate::harness::page::Page;
use crate::harness::{
    CFFS, Scratch, can_mount, fail, install, install_script, install_vanishing, succeed,
};

fn info(scratch: &Scratch) -> serde_json::Value {
    let info = succeed(scratch.cffs(["info", "--json"]).arg(scratch.mountpoint()));
    serde_json::from_str(&info).expect("it is JSON")
}

fn restart(scratch: &Scratch) {
    succeed(scratch.cffs(["restart"]).arg(scratch.mountpoint()));
}

#[test]
fn files_stay_open_and_nothing_is_lost() {
    if can_mount() {
        keep_files_open("auto");
        keep_files_open("dev");
    }
}

fn keep_files_open(transport: &str) {
    let scratch = Scratch::with_image();
    scratch.mount(&format!("transport={transport},commit=3600"));
    let dir = scratch.mountpoint();
    fs::create_dir(dir.join("d")).expect("made");
    fs::write(dir.join("d/kept"), "kept").expect("written");
    let mut open = File::options()
        .read(true)
        .write(true)
        .create_new(true)
        .open(dir.join("d/open"))
        .expect("made");
    open.write_all(b"before").expect("written");
    let gone = File::options()
        .read(true)
        .write(true)
        .create_new(true)
        .open(dir.join("gone"))
        .expect("made");
    gone.write_all_at(&[7; 50_000], 0).expect("written");
    fs::remove_file(dir.join("gone")).expect("removed");
    let ino = fs::metadata(dir.join("d/kept")).expect("there").ino();
    let before = info(&scratch)["server"].clone();

    for round in 0..3 {
        restart(&scratch);
        let now = info(&scratch)["server"].clone();
        assert_eq!(now["pid"], before["pid"], "the process stays");
        assert_ne!(now["started"], before["started"]);
        assert_eq!(now["mount_type"], before["mount_type"]);
        assert_eq!(fs::metadata(dir.join("d/kept")).expect("there").ino(), ino);
        open.write_all(round.to_string().as_bytes()).expect("written");
        gone.write_all_at(b"x", round).expect("written");
        fs::write(dir.join(format!("new{round}")), "new").expect("written");
        let mut names: Vec<_> = fs::read_dir(&dir)
            .expect("listed")
            .map(|entry| entry.expect("read").file_name())
            .collect();
        names.sort();
        assert_eq!(names.len() as u64, round + 2, "{names:?}");
    }
    open.rewind().expect("sought");
    let mut contents = String::new();
    open.read_to_string(&mut contents).expect("read");
    assert_eq!(contents, "before012");
    let mut bytes = vec![0; 50_000];
    gone.read_exact_at(&mut bytes, 0).expect("read");
    assert!(bytes.starts_with(b"xxx\x07") && bytes[4..].iter().all(|byte| *byte == 7));
    assert_eq!(gone.metadata().expect("open").nlink(), 0);
    drop((open, gone));
    scratch.umount();
    scratch.assert_clean();
}

/// The new program finds the journal's device by the mount's options.
#[test]
fn a_journal_in_a_file_is_used_after_a_restart() {
    if !can_mount() {
        return;
    }
    let (scratch, journal) = Scratch::with_journal_in_a_file();
    scratch.mount(&format!("transport=dev,journal-device={}", journal.display()));
    for round in 0..3 {
        let mut file = File::create(scratch.mountpoint().join(format!("{round}"))).expect("made");
        file.write_all(&[7; 4096]).expect("written");
        file.sync_all().expect("durable");
        let stats = succeed(scratch.cffs(["stats", "--json"]).arg(scratch.mountpoint()));
        let stats: serde_json::Value = serde_json::from_str(&stats).expect("it is JSON");
        assert_eq!(stats["journal"]["state"], "on");
        assert!(stats["journal"]["records"].as_u64() > Some(0), "{stats}");
        restart(&scratch);
    }
    scratch.umount();
    scratch.assert_clean();
}

/// Regression: the program that replaced the server opened the journal by its path: without it, the mount
/// ended.
#[test]
fn a_journal_that_was_renamed_and_removed_is_used_after_a_restart() {
    if !can_mount() {
        return;
    }
    let (scratch, journal) = Scratch::with_journal_in_a_file();
    scratch.mount(&format!("journal-device={}", journal.display()));
    let renamed = journal.with_extension("renamed");
    fs::rename(&journal, &renamed).expect("renamed");
    restart(&scratch);
    fs::write(scratch.mountpoint().join("file"), "contents").expect("written");
    // The link keeps the file for the check.
    fs::hard_link(&renamed, &journal).expect("linked");
    fs::remove_file(&renamed).expect("removed");
    restart(&scratch);
    assert_eq!(fs::read(scratch.mountpoint().join("file")).expect("read"), b"contents");
    scratch.umount();
    scratch.assert_clean();
}

/// Regression: over io_uring, the requests that the restart needs were made on the old path.
#[test]
fn a_mount_whose_directory_was_renamed_is_restarted() {
    if !can_mount() {
        return;
    }
    let scratch = Scratch::with_image();
    let (old, new) = (scratch.path().join("old"), scratch.path().join("new"));
    fs::create_dir_all(old.join("mnt")).expect("made");
    succeed(scratch.cffs(["mount"]).arg(scratch.image()).arg(old.join("mnt")));
    fs::write(old.join("mnt/file"), "contents").expect("written");
    fs::rename(&old, &new).expect("renamed");
    let mountpoint = new.join("mnt");
    succeed(scratch.cffs(["restart"]).arg(&mountpoint));
    assert_eq!(fs::read(mountpoint.join("file")).expect("read"), b"contents");
    succeed(scratch.cffs(["umount"]).arg(&mountpoint));
    scratch.assert_clean();
}

/// Regression: a restart ended a clone that had just begun, and reports of a layout.
#[test]
fn a_restart_and_other_commands_at_once_succeed_or_are_refused_with_the_reason() {
    if !can_mount() {
        return;
    }
    let scratch = Scratch::with_image();
    scratch.mount("rw");
    let tree = scratch.mountpoint().join("tree");
    fs::create_dir(&tree).expect("made");
    (0..200).for_each(|i| fs::write(tree.join(i.to_string()), "contents").expect("written"));
    for round in 0..12_u64 {
        let copy = scratch.mountpoint().join(format!("copy {round}"));
        let (restarted, [cloned, shown]) = thread::scope(|scope| {
            let restart = scope.spawn(|| {
                thread::sleep(Duration::from_millis(round * 4));
                scratch.cffs(["restart"]).arg(scratch.mountpoint()).output().expect("run")
            });
            let mut clone = scratch.cffs(["clone"]);
            let clone = clone.arg(&tree).arg(&copy).output().expect("run");
            let layout = scratch.cffs(["layout"]).arg(&tree).output().expect("run");
            (restart.join().expect("ended"), [clone, layout])
        });
        let said = |output: &Output| String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(shown.status.success(), "{round}: {}", said(&shown));
        let text = said(&restarted);
        assert!(restarted.status.success() || text.contains("a clone is under way"), "{text}");
        let text = said(&cloned);
        assert!(cloned.status.success() || text.contains("being restarted"), "{round}: {text}");
        assert!(!cloned.status.success() || fs::read_dir(&copy).expect("a copy").count() == 200);
    }
    scratch.umount();
    scratch.assert_clean();
}

/// Regression: a volume that was restarted while umount waited was called incomplete.
#[test]
fn an_unmount_at_the_time_of_a_restart_waits_for_the_new_server() {
    if !can_mount() {
        return;
    }
    let scratch = Scratch::with_image();
    for round in 0..10_u64 {
        scratch.mount("rw");
        fs::write(scratch.mountpoint().join("file"), round.to_string()).expect("written");
        thread::scope(|scope| {
            let restart = scope.spawn(|| {
                scratch.cffs(["restart"]).arg(scratch.mountpoint()).output().expect("run")
            });
            thread::sleep(Duration::from_millis(round * 6));
            scratch.umount();
            // It may have come too late.
            restart.join().expect("ended");
        });
        scratch.assert_clean();
    }
}

/// Regression: the next program opened its log through the mount that it was to serve, and waited for itself.
#[test]
fn a_mount_over_its_own_log_is_not_restarted_and_served_as_before() {
    if !can_mount() {
        return;
    }
    let scratch = Scratch::with_image();
    let log = format!("fuseblk=no,logfile={}", scratch.mountpoint().join("log").display());
    let mut mount = scratch.cffs(["mount", "-o", &log]);
    succeed(mount.arg(scratch.image()).arg(scratch.mountpoint()));
    let said = fail(1, scratch.cffs(["restart"]).arg(scratch.mountpoint()));
    assert!(said.contains("log is below the mount point"), "{said}");
    fs::write(scratch.mountpoint().join("file"), "contents").expect("written");
    scratch.umount();
    // The image itself is handed over open.
    let hidden = scratch.mountpoint().join("image");
    fs::rename(scratch.image(), &hidden).expect("renamed");
    let mut mount = scratch.cffs(["mount", "-o", &format!("fuseblk=no,{}", scratch.log_option())]);
    succeed(mount.arg(&hidden).arg(scratch.mountpoint()));
    restart(&scratch);
    assert_eq!(fs::read(scratch.mountpoint().join("file")).expect("read"), b"contents");
    scratch.umount();
    fs::rename(&hidden, scratch.image()).expect("renamed back");
    scratch.assert_clean();
}

/// Regression: if the kernel had forgotten that a mount has no file with the name of the image below it, the
/// program that was to serve the mount asked itself for it.
#[test]
fn a_successor_does_not_look_for_the_image() {
    if !can_mount() {
        return;
    }
    let scratch = Scratch::with_image();
    scratch.mount("rw");
    let pid = info(&scratch)["server"]["pid"].as_i64().expect("a number");
    let server = Pid::from_raw(pid as i32).expect("a process");
    kill_process(server, Signal::STOP).expect("stopped");
    let mut successor = scratch.cffs(["mount"]);
    successor.env("CFFS_HANDOVER", "nothing").arg(scratch.mountpoint().join("image"));
    let ended = successor.arg(scratch.path()).output();
    kill_process(server, Signal::CONT).expect("continued");
    let said = String::from_utf8_lossy(&ended.expect("run").stderr).into_owned();
    assert!(said.contains("CFFS_HANDOVER"), "{said}");
    scratch.umount();
}

/// Regression: such a path could not be handed over.
#[test]
fn an_image_whose_path_is_not_utf_8_is_restarted() {
    if !can_mount() {
        return;
    }
    let scratch = Scratch::with_image();
    let image = scratch.path().join(OsStr::from_bytes(b"image \xff \n"));
    fs::rename(scratch.image(), &image).expect("renamed");
    succeed(scratch.cffs(["mount"]).arg(&image).arg(scratch.mountpoint()));
    fs::write(scratch.mountpoint().join("file"), "contents").expect("written");
    restart(&scratch);
    assert_eq!(fs::read(scratch.mountpoint().join("file")).expect("read"), b"contents");
    scratch.umount();
    fs::rename(&image, scratch.image()).expect("renamed back");
    scratch.assert_clean();
}

/// Regression: the program that replaced the server looked for relative paths in `/`: without its journal the
/// mount ended.
#[test]
fn relative_paths_of_options_are_found_after_a_restart() {
    if !can_mount() {
        return;
    }
    let (scratch, journal) = Scratch::with_journal_in_a_file();
    let journal = journal.strip_prefix(scratch.path()).expect("below");
    let options = format!("journal-device={},logfile=server.log", journal.display());
    let mut mount = scratch.cffs(["mount", "-o", &options]);
    succeed(mount.args(["image.cffs", "mnt"]).current_dir(scratch.path()));
    let log = scratch.path().join("server.log");
    for round in 0..2 {
        let logged = fs::metadata(&log).expect("there").len();
        restart(&scratch);
        assert!(fs::metadata(&log).expect("there").len() > logged, "round {round}");
        let lines = fs::read_to_string(&log).expect("read");
        let volume = format!(" {}: ", scratch.image().display());
        assert!(lines.lines().all(|line| line.contains(&volume)), "{lines}");
        fs::write(scratch.mountpoint().join("file"), "contents").expect("written");
    }
    scratch.umount();
    scratch.assert_clean();
}

/// Four programs create, read and remove files continuously; none of their calls may fail.
#[test]
fn callers_only_wait() {
    if can_mount() {
        restart_under_callers("auto");
        restart_under_callers("dev");
    }
}

fn restart_under_callers(transport: &str) {
    let scratch = Scratch::with_image();
    scratch.mount(&format!("transport={transport}"));
    let (dir, done) = (&scratch.mountpoint(), &AtomicBool::new(false));
    std::thread::scope(|scope| {
        let callers: Vec<_> = (0..4)
            .map(|caller| scope.spawn(move || churn(&dir.join(caller.to_string()), done)))
            .collect();
        for _ in 0..8 {
            restart(&scratch);
        }
        done.store(true, Ordering::Relaxed);
        let rounds: Vec<u64> =
            callers.into_iter().map(|caller| caller.join().expect("no call failed")).collect();
        assert!(rounds.iter().all(|rounds| *rounds > 0), "{rounds:?}");
    });
    scratch.umount();
    scratch.assert_clean();
}

fn churn(dir: &Path, done: &AtomicBool) -> u64 {
    fs::create_dir(dir).expect("made");
    let mut rounds = 0;
    while !done.load(Ordering::Relaxed) {
        let name = dir.join((rounds % 10).to_string());
        fs::write(&name, rounds.to_string()).expect("written");
        assert_eq!(fs::read_to_string(&name).expect("read"), rounds.to_string());
        fs::rename(&name, dir.join("renamed")).expect("renamed");
        fs::remove_file(dir.join("renamed")).expect("removed");
        rounds += 1;
    }
    rounds
}

#[test]
fn no_other_program_gets_the_image_meanwhile() {
    if !can_mount() {
        return;
    }
    let scratch = Scratch::with_image();
    scratch.mount("rw");
    for _ in 0..3 {
        restart(&scratch);
        fail(8, scratch.cffs(["fsck", "-y"]).arg(scratch.image()));
    }
    scratch.umount();
    scratch.assert_clean();
}

// Regression: a mount over io_uring, the default, could not be restarted.
#[test]
fn requests_over_rings_are_handed_over() {
    if !can_mount() || !rustix::process::geteuid().is_root() {
        return;
    }
    let scratch = Scratch::with_image();
    scratch.mount("rw");
    let transport = || info(&scratch)["server"]["transport"].clone();
    let before = transport();
    if !before.as_str().expect("text").starts_with("io_uring") {
        println!("SKIPPED: {before}");
        return;
    }
    // First it is idle, then large requests are in progress.
    restart(&scratch);
    let (dir, done) = (&scratch.mountpoint(), &AtomicBool::new(false));
    std::thread::scope(|scope| {
        let callers: Vec<_> =
            (0..4).map(|caller| scope.spawn(move || write_and_read(dir, caller, done))).collect();
        for _ in 0..8 {
            restart(&scratch);
        }
        done.store(true, Ordering::Relaxed);
        callers.into_iter().for_each(|caller| assert!(caller.join().expect("no call failed") > 0));
    });
    assert_eq!(transport(), before);
    scratch.umount();
    scratch.assert_clean();
}

fn write_and_read(dir: &Path, caller: u8, done: &AtomicBool) -> usize {
    let path = dir.join(format!("large{caller}"));
    let mut rounds = 0;
    while !done.load(Ordering::Relaxed) {
        let contents = vec![caller ^ rounds as u8; 3 << 20];
        fs::write(&path, &contents).expect("written");
        let file = File::open(&path).expect("opened");
        file.sync_all().expect("durable");
        // Otherwise the kernel would read from its cache.
        rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed).expect("advised");
        assert!(fs::read(&path).expect("read") == contents);
        rounds += 1;
    }
    rounds
}

/// Requests of the other cores could not be held.
#[test]
fn a_server_on_a_part_of_the_cores_says_that_it_cannot_hand_over() {
    if !can_mount() || !rustix::process::geteuid().is_root() {
        return;
    }
    let scratch = Scratch::with_image();
    let mut mount = Command::new("taskset");
    mount.args(["-c", "0", CFFS, "mount", "-o", &scratch.log_option()]);
    succeed(mount.arg(scratch.image()).arg(scratch.mountpoint()));
    let transport = info(&scratch)["server"]["transport"].as_str().expect("text").to_owned();
    if transport.starts_with("io_uring")
        && std::thread::available_parallelism().is_ok_and(|n| n.get() > 1)
    {
        let said = fail(1, scratch.cffs(["restart"]).arg(scratch.mountpoint()));
        assert!(said.contains("core 1") && said.contains("transport=dev"), "{said}");
        fs::write(scratch.mountpoint().join("f"), "served").expect("written");
    }
    scratch.umount();
}

/// A program started from a copy that is then replaced by one without the required commands.
#[test]
fn a_program_that_cannot_take_over_is_refused() {
    if !can_mount() {
        return;
    }
    let scratch = Scratch::with_image();
    let program: PathBuf = scratch.path().join("cffs");
    install(CFFS, &program);
    let mount = || {
        let mut command = Command::new(&program);
        command.args(["mount", "-o", "transport=dev"]);
        command.arg(scratch.image()).arg(scratch.mountpoint());
        command
    };
    succeed(&mut mount());
    fs::remove_file(&program).expect("removed");
    let said = fail(1, scratch.cffs(["restart"]).arg(scratch.mountpoint()));
    assert!(said.contains("not restarted") && said.contains("No such file"), "{said}");
    install("/bin/true", &program);
    let said = fail(1, scratch.cffs(["restart"]).arg(scratch.mountpoint()));
    assert!(said.contains("cannot take over"), "{said}");
    install_script("#!/bin/sh\nexec sleep 3600\n", &program);
    let said = fail(1, scratch.cffs(["restart"]).arg(scratch.mountpoint()));
    assert!(said.contains("did not print its version"), "{said}");
    // It answers like the right program, but cannot be executed.
    install_vanishing(&scratch, &program);
    let said = fail(1, scratch.cffs(["restart"]).arg(scratch.mountpoint()));
    assert!(said.contains("not restarted") && said.contains("No such file"), "{said}");
    fs::write(scratch.mountpoint().join("f"), "served by the old one").expect("written");
    fs::remove_file(&program).ok();
    install(CFFS, &program);
    restart(&scratch);
    assert_eq!(fs::read(scratch.mountpoint().join("f")).expect("read"), b"served by the old one");
    scratch.umount();
    scratch.assert_clean();
}

#[test]
fn the_page_keeps_its_tokens_and_shows_the_new_server() {
    if !can_mount() {
        return;
    }
    let scratch = Scratch::with_image();
    let page = Page::of(&scratch);
    succeed(scratch.mount_command("transport=dev").args(page.options()));
    let started = |page: &Page| {
        let (code, body) = page.ask("GET /api/v1/status", "");
        assert_eq!(code, 200, "{body}");
        let status: serde_json::Value = serde_json::from_str(&body).expect("JSON");
        status["server"]["started"].as_u64().expect("a number")
    };
    let before = started(&page);
    fs::write(scratch.mountpoint().join("f"), "written before").expect("written");
    restart(&scratch);
    assert_ne!(started(&page), before, "the old server's figures are shown");
    assert_eq!(page.ask("POST /api/v1/actions/label", "{\"label\":\"after\"}").0, 202);
    assert_eq!(info(&scratch)["superblock"]["label"], "after", "it runs another volume");
    // Regression: the address was in the log as an error.
    let log = fs::read_to_string(scratch.path().join("log")).expect("there");
    assert!(log.contains(": the page is http") && !log.contains("ERROR"), "{log}");
    scratch.umount();
    scratch.assert_clean();
}
