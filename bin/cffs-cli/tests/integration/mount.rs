//! The program with real mounts. If mounting is impossible, the tests print that and pass.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use crate::harness::{CFFS, Scratch, can_mount, fail, succeed, umount_8};

#[test]
fn a_mount_keeps_what_is_written() {
    if !can_mount() {
        return;
    }
    let scratch = Scratch::with_image();
    scratch.mount("rw");
    let dir = scratch.mountpoint();
    fs::create_dir(dir.join("d")).expect("made");
    fs::write(dir.join("d/f"), b"kept").expect("written");
    fs::hard_link(dir.join("d/f"), dir.join("g")).expect("linked");
    succeed(scratch.cffs(["sync"]).arg(&dir));
    let stats = succeed(scratch.cffs(["stats", "--json"]).arg(&dir));
    let stats: serde_json::Value = serde_json::from_str(&stats).expect("it is JSON");
    assert!(stats["calls"]["creates"].as_u64() >= Some(2), "{stats}");
    assert!(stats["device"]["writes"].as_u64() >= Some(1), "{stats}");
    let explained = succeed(scratch.cffs(["explain", "--json"]).arg(dir.join("d/f")));
    let explained: serde_json::Value = serde_json::from_str(&explained).expect("it is JSON");
    let ino = fs::metadata(dir.join("g")).expect("there").ino();
    assert_eq!(explained["inode"], ino);
    scratch.umount();
    scratch.assert_clean();

    scratch.mount("ro");
    assert_eq!(fs::read(dir.join("g")).expect("read"), b"kept");
    assert_eq!(fs::metadata(dir.join("d/f")).expect("there").ino(), ino);
    assert!(fs::write(dir.join("new"), b"").is_err());
    scratch.umount();
}

/// Regression: a mount failed if an upgrade replaced the program between its start and that of the server.
#[test]
fn a_mount_succeeds_while_the_program_is_replaced() {
    if !can_mount() {
        return;
    }
    let scratch = Scratch::with_image();
    let program = scratch.path().join("program");
    fs::copy(CFFS, &program).expect("copied");
    // The shell keeps the program open, removes its file, and runs it.
    let script = "exec 3<\"$1\" && rm \"$1\" && exec /proc/self/fd/3 mount \"$2\" \"$3\"";
    let mut shell = Command::new("sh");
    shell.args(["-c", script, "sh"]).arg(&program).arg(scratch.image()).arg(scratch.mountpoint());
    succeed(&mut shell);
    fs::write(scratch.mountpoint().join("f"), b"written").expect("written");
    scratch.umount();
    scratch.assert_clean();
}

/// The image that a crash would leave now: copied while it is mounted. Its mark says that the server has it
/// open.
fn copied_image(scratch: &Scratch) -> Scratch {
    let copy = Scratch::new();
    succeed(Command::new("cp").arg("--sparse=always").args([scratch.image(), copy.image()]));
    let recovery =
        copy.cffs(["fsck", "-p", "--take-over"]).arg(copy.image()).output().expect("it starts");
    assert!(matches!(recovery.status.code(), Some(0 | 1)), "{recovery:?}");
    copy.assert_clean();
    copy
}

#[test]
fn durable_changes_are_in_a_copy_of_the_image() {
    if !can_mount() {
        return;
    }
    let scratch = Scratch::with_image();
    scratch.mount("rw");
    let dir = scratch.mountpoint();
    for name in ["fsync of the file", "fsync of the directory", "cffs sync"] {
        fs::write(dir.join(name), name).expect("written");
        let sync = |path: &Path| fs::File::open(path).and_then(|file| file.sync_all());
        match name {
            "fsync of the file" => sync(&dir.join(name)).expect("synced"),
            "fsync of the directory" => sync(&dir).expect("synced"),
            _ => drop(succeed(scratch.cffs(["sync"]).arg(&dir))),
        }
        let copy = copied_image(&scratch);
        let path = format!("/{name}");
        assert_eq!(succeed(copy.cffs(["cat"]).arg(copy.image()).arg(path)), name);
    }
    scratch.umount();
}

#[test]
fn every_change_of_a_mount_with_sync_is_in_a_copy_of_the_image() {
    if !can_mount() {
        return;
    }
    let scratch = Scratch::with_image();
    scratch.mount("sync");
    let dir = scratch.mountpoint();
    fs::create_dir(dir.join("d")).expect("made");
    fs::write(dir.join("d/f"), b"durable").expect("written");
    fs::rename(dir.join("d/f"), dir.join("d/g")).expect("renamed");
    let copy = copied_image(&scratch);
    assert_eq!(succeed(copy.cffs(["ls"]).arg(copy.image()).arg("/d")).trim(), "g");
    assert_eq!(succeed(copy.cffs(["cat"]).arg(copy.image()).arg("/d/g")), "durable");
    scratch.umount();
}

#[test]
fn umount_returns_when_the_image_is_complete() {
    if !can_mount() {
        return;
    }
    let scratch = Scratch::with_image();
    scratch.mount("commit=3600");
    for index in 0..200 {
        let contents = vec![index as u8; 20_000];
        fs::write(scratch.mountpoint().join(index.to_string()), contents).expect("written");
    }
    scratch.umount();
    // It returns without waiting: the image is complete already.
    let info = succeed(scratch.cffs(["info", "--json"]).arg(scratch.image()));
    assert!(info.contains("\"clean\""), "{info}");
    scratch.assert_clean();
}

/// Regression: the unmount failed if another command was just querying the server.
#[test]
fn a_mount_that_is_busy_for_a_moment_is_unmounted_and_one_that_stays_so_is_not() {
    if !can_mount() {
        return;
    }
    let scratch = Scratch::with_image();
    scratch.mount("rw");
    let file = fs::File::create(scratch.mountpoint().join("f")).expect("made");
    let said = fail(1, scratch.cffs(["umount"]).arg(scratch.mountpoint()));
    let who = format!("(process {}) has files open", std::process::id());
    assert!(said.contains("is busy") && said.contains(&who), "{said}");
    // Regression: the command named itself as well.
    let mut within = scratch.cffs(["umount"]);
    let said = fail(1, within.current_dir(scratch.mountpoint()).arg(scratch.mountpoint()));
    assert!(said.contains(&who) && said.matches("(process ").count() == 1, "{said}");
    let mut umount = scratch.cffs(["umount"]).arg(scratch.mountpoint()).spawn().expect("it starts");
    std::thread::sleep(Duration::from_millis(100));
    drop(file);
    assert!(umount.wait().expect("it ended").success());
    scratch.assert_clean();
}

/// The space that the image occupies on the host.
fn image_on_disk(scratch: &Scratch) -> u64 {
    fs::metadata(scratch.image()).expect("there").blocks() * 512
}

#[test]
fn a_mounted_volume_is_trimmed_by_fstrim_and_only_by_its_owner() {
    if !can_mount() {
        return;
    }
    let scratch = Scratch::with_image();
    for transport in ["auto", "dev"] {
        scratch.mount(&format!("transport={transport}"));
        let dir = scratch.mountpoint();
        fs::write(dir.join("gone"), vec![4; 30 << 20]).expect("written");
        succeed(scratch.cffs(["sync"]).arg(&dir));
        assert!(image_on_disk(&scratch) > 30 << 20);
        fs::remove_file(dir.join("gone")).expect("removed");
        // The kernel reports the end of all use of the file separately from the trim, and perhaps after it;
        // until then its space is not free.
        let begun = Instant::now();
        loop {
            let printed = succeed(scratch.cffs(["trim"]).arg(scratch.image()));
            assert!(printed.contains("trimmed"), "{printed}");
            if image_on_disk(&scratch) < 4 << 20 {
                break;
            }
            assert!(begun.elapsed() < Duration::from_secs(60), "the image does not shrink");
            std::thread::sleep(Duration::from_millis(20));
        }
        if rustix::process::geteuid().is_root() {
            succeed(Command::new("fstrim").arg("-v").arg(&dir));
            // Regression: ranges beyond the end and shorter than a block were accepted.
            for range in [["-o", "1T"], ["-o", "18446744073709551615"], ["-l", "0"], ["-l", "100"]]
            {
                let said = fail(1, Command::new("fstrim").args(range).arg(&dir));
                assert!(said.contains("Invalid argument"), "{range:?}: {said}");
            }
            let said = fail(1, scratch.cffs_by_nobody(["trim"]).arg(&dir));
            assert!(said.contains(": only root, who mounted the volume, may do this"), "{said}");
        }
        scratch.umount();
        scratch.assert_clean();
    }
}

/// swapon(8) queries the blocks of a file, as filefrag(8) does, and the kernel then writes to them bypassing
/// the server.
#[test]
fn no_file_of_a_mount_has_places_or_can_be_swapped_to() {
    if !can_mount() || !rustix::process::geteuid().is_root() {
        return;
    }
    let scratch = Scratch::with_image();
    for fuseblk in ["auto", "no"] {
        scratch.mount(&format!("fuseblk={fuseblk}"));
        let file = scratch.mountpoint().join("swap");
        fs::write(&file, vec![1; 4 << 20]).expect("written");
        fs::set_permissions(&file, PermissionsExt::from_mode(0o600)).expect("set");
        succeed(scratch.cffs(["sync"]).arg(scratch.mountpoint()));
        let said = succeed(Command::new("filefrag").arg(&file));
        assert!(said.contains(" 0 extents"), "{said}");
        succeed(Command::new("mkswap").arg(&file));
        fail(255, Command::new("swapon").arg(&file));
        scratch.umount();
    }
    scratch.assert_clean();
}

#[test]
fn with_discard_the_image_shrinks_by_itself() {
    if !can_mount() {
        return;
    }
    let scratch = Scratch::with_image();
    scratch.mount("discard,commit=1");
    let dir = scratch.mountpoint();
    fs::write(dir.join("gone"), vec![4; 30 << 20]).expect("written");
    succeed(scratch.cffs(["sync"]).arg(&dir));
    assert!(image_on_disk(&scratch) > 30 << 20);
    fs::remove_file(dir.join("gone")).expect("removed");
    let begun = Instant::now();
    while image_on_disk(&scratch) > 4 << 20 {
        assert!(begun.elapsed() < Duration::from_secs(60), "the image does not shrink");
        std::thread::sleep(Duration::from_millis(100));
    }
    let stats = succeed(scratch.cffs(["stats", "--json"]).arg(&dir));
    let stats: serde_json::Value = serde_json::from_str(&stats).expect("it is JSON");
    assert!(stats["device"]["discarded_bytes"].as_u64() >= Some(30 << 20), "{stats}");
    scratch.umount();
    scratch.assert_clean();
}

#[test]
fn the_next_command_waits_for_a_server_that_umount_8_left_behind() {
    if !can_mount() || !rustix::process::geteuid().is_root() {
        return;
    }
    let scratch = Scratch::with_image();
    scratch.mount("commit=3600,fuseblk=no");
    for index in 0..500 {
        fs::write(scratch.mountpoint().join(index.to_string()), [1; 3000]).expect("written");
    }
    umount_8(&scratch.mountpoint());
    let names = succeed(scratch.cffs(["ls"]).arg(scratch.image()));
    assert_eq!(names.lines().count(), 500);
}

#[test]
fn a_second_mount_fails_at_once_and_says_who_has_it() {
    if !can_mount() {
        return;
    }
    let scratch = Scratch::with_image();
    scratch.mount("rw");
    let other = scratch.path().join("other");
    fs::create_dir(&other).expect("made");
    let begun = Instant::now();
    let said = fail(32, scratch.cffs(["mount"]).arg(scratch.image()).arg(&other));
    assert!(begun.elapsed() < Duration::from_secs(10));
    let mountpoint = scratch.mountpoint().display().to_string();
    assert!(said.contains("is mounted on") && said.contains(&mountpoint), "{said}");
    let said = fail(8, scratch.cffs(["fsck", "-y"]).arg(scratch.image()));
    assert!(said.contains(&mountpoint), "{said}");
    scratch.umount();
}

#[test]
fn a_scrub_of_a_mounted_volume_tells_what_is_damaged() {
    if !can_mount() {
        return;
    }
    let scratch = Scratch::with_image();
    scratch.mount("rw");
    let dir = scratch.mountpoint();
    fs::write(dir.join("small"), b"a text to be found in the image").expect("written");
    succeed(scratch.cffs(["sync"]).arg(&dir));
    let said = succeed(scratch.cffs(["scrub", "--rate", "0"]).arg(&dir));
    assert!(said.contains("0 problems; complete"), "{said}");

    flip_the_text(&scratch.image(), b"a text to be found");
    let printed = scratch.cffs(["scrub", "--json"]).arg(&dir).output().expect("it starts");
    assert_eq!(printed.status.code(), Some(4));
    let status: serde_json::Value = serde_json::from_slice(&printed.stdout).expect("it is JSON");
    assert_eq!(status["problem_count"], 1, "{status}");
    scratch.umount();
    let printed = scratch.cffs(["scrub"]).arg(scratch.image()).output().expect("it starts");
    assert_eq!(printed.status.code(), Some(4));
}

/// Regression: damage that programs had found was forgotten at unmount: the next boot's check said "clean,
/// not checked".
#[test]
fn a_mount_that_found_damage_is_checked_by_the_next_fsck() {
    if !can_mount() {
        return;
    }
    let scratch = Scratch::with_image();
    scratch.mount("rw");
    let dir = scratch.mountpoint();
    fs::write(dir.join("small"), b"a text to be found in the image").expect("written");
    scratch.umount();
    flip_the_text(&scratch.image(), b"a text to be found");
    let said = succeed(scratch.cffs(["fsck", "-p"]).arg(scratch.image()));
    assert!(said.contains("clean, not checked"), "no call has met it yet: {said}");

    scratch.mount("errors=remount-ro");
    let error = fs::read(dir.join("small")).expect_err("its sector is damaged");
    assert_eq!(error.raw_os_error(), Some(rustix::io::Errno::UCLEAN.raw_os_error()));
    let error = fs::set_permissions(&dir, PermissionsExt::from_mode(0o700));
    let error = error.expect_err("changes are refused, also of what is sound");
    assert_eq!(error.kind(), std::io::ErrorKind::ReadOnlyFilesystem);
    let info = succeed(scratch.cffs(["info"]).arg(&dir));
    assert!(info.contains("damage seen code") && info.contains("CF0201"), "{info}");
    let is_line = |line: &str, name: &str| line.trim_start().starts_with(name);
    let read_only = info.lines().find(|line| is_line(line, "server read only ")).expect("a line");
    assert!(read_only.ends_with(" yes"), "{info}");
    assert!(info.lines().any(|line| is_line(line, "read only because ")), "{info}");
    scratch.umount();

    let output = scratch.mount_command("rw").output().expect("it starts");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && said.contains("first CF0201 at inode 1"), "{said}");
    scratch.umount();
    let preened = scratch.cffs(["fsck", "-p"]).arg(scratch.image()).output().expect("it starts");
    let said = String::from_utf8_lossy(&preened.stdout);
    assert_eq!(preened.status.code(), Some(4), "{said}");
    assert!(
        said.contains("damage was found") && said.contains("CF0201 inode 1 sector 0"),
        "{said}"
    );
    let repaired = scratch.cffs(["fsck", "-y"]).arg(scratch.image()).output().expect("it starts");
    assert_eq!(repaired.status.code(), Some(1));
    let said = succeed(scratch.cffs(["fsck", "-p"]).arg(scratch.image()));
    assert!(said.contains("clean, not checked"), "{said}");
}

#[test]
fn a_mounted_volume_is_checked_while_it_is_used() {
    if !can_mount() {
        return;
    }
    let scratch = Scratch::with_image();
    scratch.mount("rw");
    let dir = scratch.mountpoint();
    fs::write(dir.join("f"), [1; 5000]).expect("written");
    fs::hard_link(dir.join("f"), dir.join("g")).expect("linked");
    let said = succeed(scratch.cffs(["fsck", "--online", "--contents"]).arg(&dir));
    assert!(said.contains("1 inode,") && said.contains("clean"), "{said}");
    fs::write(dir.join("f"), [2; 5000]).expect("written after the check");
    let open = fs::File::open(dir.join("f")).expect("open");
    fs::remove_file(dir.join("f")).expect("removed");
    fs::remove_file(dir.join("g")).expect("removed");
    let printed = succeed(scratch.cffs(["fsck", "--online", "--json"]).arg(&dir));
    let printed: serde_json::Value = serde_json::from_str(&printed).expect("it is JSON");
    assert_eq!(printed["problem_count"], 0, "{printed}");
    drop(open);
    scratch.umount();
    scratch.assert_clean();
    scratch.mount("ro");
    let said = fail(8, scratch.cffs(["fsck", "--online"]).arg(&dir));
    assert!(said.contains("read-only"), "{said}");
    scratch.umount();
    fail(16, scratch.cffs(["fsck", "--online", "-y"]).arg(&dir));
}

#[test]
fn a_scrub_ends_on_request_and_when_the_volume_is_unmounted() {
    if !can_mount() {
        return;
    }
    let scratch = Scratch::with_image();
    scratch.mount("rw");
    let dir = scratch.mountpoint();
    for end in ["stop", "umount"] {
        // At one byte per second it runs until it is ended.
        let mut command = scratch.cffs(["scrub", "--json", "--rate", "1"]);
        let scrub = command.arg(&dir).stdout(Stdio::piped()).stderr(Stdio::piped());
        let scrub = scrub.spawn().expect("it starts");
        crate::harness::wait_for(|| {
            let mut status = [0; 4096];
            let len = rustix::fs::getxattr(&dir, "system.cffs.scrub", &mut status).expect("read");
            String::from_utf8_lossy(&status[..len]).contains("running")
        });
        match end {
            "stop" => drop(succeed(scratch.cffs(["scrub", "--stop"]).arg(&dir))),
            _ => scratch.umount(),
        }
        let output = scrub.wait_with_output().expect("it ends");
        if end == "stop" {
            assert!(String::from_utf8_lossy(&output.stdout).contains("stopped"));
        } else {
            let said = String::from_utf8_lossy(&output.stderr);
            assert!(said.contains("was unmounted"), "{said}");
        }
    }
    scratch.assert_clean();
}

/// Inverts one byte in the only place of the image that contains these bytes.
fn flip_the_text(image: &Path, text: &[u8]) {
    let mut bytes = fs::read(image).expect("readable");
    let places: Vec<usize> = bytes
        .windows(text.len())
        .enumerate()
        .filter(|(_, window)| *window == text)
        .map(|(offset, _)| offset)
        .collect();
    let [place] = places[..] else { panic!("{} places have it", places.len()) };
    bytes[place] ^= 0xff;
    let file = fs::OpenOptions::new().write(true).open(image).expect("writable");
    file.write_all_at(&bytes[place..=place], place as u64).expect("written");
}

#[test]
fn a_mount_that_fails_leaves_nothing() {
    if !can_mount() {
        return;
    }
    let scratch = Scratch::with_image();
    let said = fail(32, &mut scratch.mount_command("bogus"));
    assert!(said.contains("'bogus'"), "{said}");
    fs::write(scratch.path().join("junk"), vec![1; 1 << 20]).expect("written");
    let junk = scratch.path().join("junk");
    let mut command = scratch.cffs(["mount", "-o", &scratch.log_option()]);
    let said = fail(32, command.arg(&junk).arg(scratch.mountpoint()));
    assert!(said.contains("superblock"), "{said}");
    fail(32, scratch.cffs(["mount"]).arg(scratch.image()).arg(scratch.path().join("no-dir")));
    assert!(!scratch.is_mounted());
    // The image is available to the next command.
    succeed(scratch.cffs(["fsck", "-y"]).arg(scratch.image()));
}

#[test]
fn a_server_that_was_killed_is_recovered_from_by_the_next_mount() {
    if !can_mount() {
        return;
    }
    let scratch = Scratch::with_image();
    scratch.mount("rw");
    let dir = scratch.mountpoint();
    fs::write(dir.join("durable"), b"synced").expect("written");
    succeed(scratch.cffs(["sync"]).arg(&dir));
    fs::write(dir.join("later"), b"perhaps").expect("written");
    let info = succeed(scratch.cffs(["info", "--json"]).arg(&dir));
    let info: serde_json::Value = serde_json::from_str(&info).expect("it is JSON");
    let pid = info["server"]["pid"].to_string();
    succeed(Command::new("kill").args(["-9", &pid]));
    let begun = Instant::now();
    // Cached names do not reveal that the server has died; a new name does.
    for probe in 0.. {
        let error = fs::metadata(dir.join(format!("probe{probe}"))).expect_err("it is not there");
        if error.kind() != std::io::ErrorKind::NotFound {
            break;
        }
        assert!(begun.elapsed() < crate::harness::PATIENCE, "the server is still there");
        std::thread::sleep(Duration::from_millis(20));
    }
    let said = fail(1, scratch.cffs(["umount"]).arg(&dir));
    assert!(said.contains("recovers"), "{said}");
    assert!(!scratch.is_mounted());
    scratch.mount("rw");
    assert_eq!(fs::read(dir.join("durable")).expect("read"), b"synced");
    scratch.umount();
    scratch.assert_clean();
}

#[test]
fn a_signal_ends_the_server_and_completes_the_image() {
    if !can_mount() {
        return;
    }
    let scratch = Scratch::with_image();
    scratch.mount("commit=3600");
    fs::write(scratch.mountpoint().join("f"), b"kept").expect("written");
    let info = succeed(scratch.cffs(["info", "--json"]).arg(scratch.mountpoint()));
    let info: serde_json::Value = serde_json::from_str(&info).expect("it is JSON");
    succeed(Command::new("kill").arg(info["server"]["pid"].to_string()));
    crate::harness::wait_for(|| !scratch.is_mounted());
    assert_eq!(succeed(scratch.cffs(["cat"]).arg(scratch.image()).arg("f")), "kept");
}

#[test]
fn a_mount_becomes_read_only_and_writable_again() {
    if !can_mount() || !rustix::process::geteuid().is_root() {
        return;
    }
    let scratch = Scratch::with_image();
    scratch.mount("rw");
    let file = scratch.mountpoint().join("f");
    fs::write(&file, b"before").expect("written");
    scratch.mount("remount,ro");
    let error = fs::write(&file, b"while it is read-only").expect_err("refused");
    assert_eq!(error.kind(), std::io::ErrorKind::ReadOnlyFilesystem);
    assert_eq!(fs::read(&file).expect("read"), b"before");
    scratch.mount("remount,rw");
    fs::write(&file, b"after").expect("written");
    scratch.umount();
    scratch.assert_clean();

    scratch.mount("ro");
    let said = fail(32, &mut scratch.mount_command("remount,rw"));
    assert!(said.contains("unmount it and mount it again"), "{said}");
    scratch.umount();
}

#[test]
fn mount_8_finds_its_helper() {
    if !can_mount() || !rustix::process::geteuid().is_root() {
        return;
    }
    let scratch = Scratch::with_image();
    let helper = scratch.path().join("mount.fuse.cffs");
    std::os::unix::fs::symlink(CFFS, &helper).expect("linked");
    let options = format!("rw,noatime,nofail,x-systemd.automount,{}", scratch.log_option());
    let mut command = scratch.named(helper.as_os_str(), []);
    command.arg(scratch.image()).arg(scratch.mountpoint());
    succeed(command.args(["-n", "-t", "fuse.cffs", "-o", &options]));
    assert!(scratch.is_mounted());
    let table = fs::read_to_string("/proc/self/mountinfo").expect("readable");
    let mountpoint = scratch.mountpoint();
    let line = table.lines().find(|line| line.contains(&*mountpoint.to_string_lossy()));
    assert!(line.is_some_and(|line| line.contains("noatime")), "{line:?}");
    scratch.umount();
    let mut command = scratch.named(helper.as_os_str(), []);
    command.arg(scratch.image()).arg(scratch.mountpoint());
    fail(32, command.args(["-o", "bogus"]));
}

#[test]
fn a_target_that_is_not_mounted_is_named() {
    let scratch = Scratch::new();
    let said = fail(1, scratch.cffs(["umount"]).arg(scratch.mountpoint()));
    assert!(said.contains("no C-FFS volume is mounted"), "{said}");
    for command in ["sync", "stats", "explain", "info"] {
        let said = fail(1, scratch.cffs([command]).arg(scratch.mountpoint()));
        assert!(said.contains("not a C-FFS volume that is mounted"), "{command}: {said}");
    }
}

/// Regression: when an ordinary user's mount failed, two wrong hints were printed, and then the cause.
#[test]
fn a_mount_that_fusermount3_refuses_says_why_and_nothing_else() {
    let has_helper = std::process::Command::new("fusermount3").arg("-V").output().is_ok();
    if !can_mount() || !has_helper || !rustix::process::geteuid().is_root() {
        return;
    }
    let scratch = Scratch::with_image();
    fs::set_permissions(scratch.image(), PermissionsExt::from_mode(0o644)).expect("set");
    let mut mount = scratch.cffs_by_nobody(["mount", "-o", "ro"]);
    let said = fail(32, mount.arg(scratch.image()).arg(scratch.mountpoint()));
    assert!(said.contains("cannot mount on") && said.contains("fusermount3: "), "{said}");
    assert!(!said.contains("package fuse3") && !said.contains("fuse.conf"), "{said}");
}

/// Each request of the kernel is a round trip: only the unavoidable ones are made.
#[test]
fn a_file_costs_few_round_trips() {
    const FILES: u64 = 64;
    if !can_mount() {
        return;
    }
    let scratch = Scratch::with_image();
    scratch.mount("rw");
    let dir = scratch.mountpoint().join("d");
    fs::create_dir(&dir).expect("made");
    let requests = || -> BTreeMap<String, u64> {
        let stats = succeed(scratch.cffs(["stats", "--json"]).arg(scratch.mountpoint()));
        let mut stats: serde_json::Value = serde_json::from_str(&stats).expect("it is JSON");
        serde_json::from_value(stats["requests"].take()).expect("they are counts")
    };
    // Per file, rounded to a whole number: the first files may find more in the kernel's cache, and requests
    // for which the kernel does not wait may arrive late.
    let rise = |work: &dyn Fn(&Path)| -> Vec<(String, u64)> {
        let before = requests();
        (0..FILES).for_each(|index| work(&dir.join(format!("file{index}"))));
        let waited_for = |name: &str| !name.contains("forget") && name != "release";
        let risen = requests().into_iter().filter(|(name, _)| waited_for(name)).map(|(name, n)| {
            let rise = (n - before.get(&name).unwrap_or(&0) + FILES / 2) / FILES;
            // Newer kernels request copies with a wider reply.
            (name.trim_end_matches("64").to_owned(), rise)
        });
        risen.filter(|(_, rise)| *rise > 0).collect()
    };
    let is = |work: &dyn Fn(&Path), expected: &[&str], what: &str| {
        let expected: Vec<_> = expected.iter().map(|name| (name.to_string(), 1)).collect();
        assert_eq!(rise(work), expected, "{what}");
    };
    let read = |file: &Path| assert_eq!(fs::read(file).expect("read").len(), 1024);
    let stat = |file: &Path| assert_eq!(fs::metadata(file).expect("there").len(), 1024);
    // The kernel queries the directory's permissions again after each change of it.
    let new = ["create", "getattr", "lookup", "write"];
    is(&|file| fs::write(file, [1; 1024]).expect("written"), &new, "write a new file");
    is(&stat, &["statx"], "stat after a write");
    is(&stat, &[], "stat again");
    is(&read, &["read"], "read");
    is(&stat, &["statx"], "stat after a read, which may have changed the time of access");
    is(&read, &[], "read again");
    // The contents do not pass through the kernel, which queries capabilities first. The other requests are
    // made by the standard library.
    let copied = ["copyfilerange", "create", "getattr", "getxattr", "lookup", "setattr", "statx"];
    let copy = |file: &Path| {
        let copy = file.with_extension("copy");
        assert_eq!(fs::copy(file, copy).expect("copied"), 1024);
    };
    is(&copy, &copied, "copy to a new file");
    is(&|file| fs::remove_file(file).expect("removed"), &["getattr", "unlink"], "remove");
    let gone = |file: &Path| assert!(fs::metadata(file).is_err());
    is(&gone, &["lookup"], "stat a removed file");
    is(&gone, &[], "stat it again");
    scratch.umount();
}

#[test]
fn metrics_of_a_mounted_volume_have_the_format_of_prometheus() {
    if !crate::harness::can_mount() {
        return;
    }
    let scratch = Scratch::new();
    succeed(scratch.cffs(["mkfs", "-q", "--size", "64M", "-L", "a \"b\" \\"]).arg(scratch.image()));
    scratch.mount("rw");
    fs::write(scratch.mountpoint().join("file"), b"contents").expect("written");
    let text = succeed(scratch.cffs(["stats", "--prometheus"]).arg(scratch.mountpoint()));
    scratch.umount();
    let metrics = crate::exposition::parse(&text).unwrap_or_else(|why| panic!("{why}\n{text}"));
    for (name, kind) in [
        ("cffs_calls_creates_total", "counter"),
        ("cffs_cache_hits_total", "counter"),
        ("cffs_device_written_bytes_total", "counter"),
        ("cffs_epochs_written_total", "counter"),
        ("cffs_memory_dirty_bytes", "gauge"),
        ("cffs_requests_total", "counter"),
        ("cffs_volume_free_bytes", "gauge"),
        ("cffs_volume_info", "gauge"),
    ] {
        assert_eq!(metrics.get(name).map(|metric| metric.kind.as_str()), Some(kind), "{name}");
    }
    assert_eq!(metrics["cffs_calls_creates_total"].samples[0].1, 1.0);
    assert_eq!(metrics["cffs_volume_size_bytes"].samples[0].1, f64::from(64 << 20));
    let label = ("label".to_owned(), "a \"b\" \\".to_owned());
    assert!(metrics.values().all(|m| m.samples.iter().all(|(labels, _)| labels.contains(&label))));
}

/// Wrapping the device in several layers must not disable the journal.
#[test]
fn an_fsync_on_a_mounted_volume_with_a_journal_is_one_record_and_one_flush() {
    if !crate::harness::can_mount() {
        return;
    }
    const FILES: u64 = 20;
    let scratch = Scratch::new();
    let mut mkfs = scratch.cffs(["mkfs", "-q", "--size", "64M", "--journal", "4M"]);
    succeed(mkfs.arg(scratch.image()));
    scratch.mount("rw");
    let stats = || {
        let shown = succeed(scratch.cffs(["stats", "--json"]).arg(scratch.mountpoint()));
        serde_json::from_str::<serde_json::Value>(&shown).expect("it is JSON")
    };
    let write = |name: &str| {
        let mut file = fs::File::create(scratch.mountpoint().join(name)).expect("created");
        std::io::Write::write_all(&mut file, &[7; 4096]).expect("written");
        file.sync_all().expect("durable");
    };
    write("first");
    let before = stats();
    (0..FILES).for_each(|number| write(&format!("file {number}")));
    let after = stats();
    scratch.umount();
    let rise = |section: &str, name: &str| {
        let value = |stats: &serde_json::Value| stats[section][name].as_u64().expect("a number");
        value(&after) - value(&before)
    };
    assert_eq!(after["journal"]["state"], "on");
    let micros = |name: &str| after["journal"][name].as_u64().expect("a number");
    assert!(
        0 < micros("commit_us_p50") && micros("commit_us_p50") <= micros("commit_us_p99"),
        "{after}"
    );
    // Each record also contains the block of the directory, and so supersedes the previous one.
    let superseded = rise("journal", "superseded_blocks");
    assert!(
        (FILES / 2..=rise("journal", "blocks") - FILES).contains(&superseded),
        "{before} {after}"
    );
    let count = |name: &str| after["journal"][name].as_u64().expect("a number");
    let share = (count("superseded_blocks") * 1000 / count("blocks")) as f64 / 10.0;
    assert_eq!(after["journal"]["superseded_percent"], share);
    assert!(count("written_bytes") > FILES * 2 * 4096, "{after}");
    assert!(count("drains_full") + count("drains_overlap") <= count("drains"), "{after}");
    assert!(count("stalled_us") < 60_000_000, "{after}");
    assert!(after["memory"]["journal"]["bytes_most"].as_u64() > Some(0), "{after}");
    // The background may write an epoch, or reach a checkpoint, meanwhile.
    let most = FILES + 6;
    assert!((FILES..=most).contains(&rise("journal", "records")), "{before} {after}");
    assert!((FILES..=most).contains(&rise("journal", "flushes")), "{before} {after}");
    assert!((FILES..=most).contains(&rise("device", "writes")), "{before} {after}");
    assert!((FILES..=most).contains(&rise("device", "syncs")), "{before} {after}");
}

/// Containers and users that must not learn the image's path on the host can see a mount.
#[test]
fn only_the_owner_sees_the_path_of_the_image() {
    use std::os::unix::process::CommandExt;

    if !can_mount() || !rustix::process::geteuid().is_root() {
        return;
    }
    let scratch = Scratch::with_image();
    fs::set_permissions(scratch.path(), fs::Permissions::from_mode(0o755)).expect("set");
    scratch.mount("rw");
    let info = |uid: u32| {
        let mut command = Command::new("python3");
        let script = "import os, sys; print(os.getxattr(sys.argv[1], 'system.cffs.info').decode())";
        command.args(["-c", script]).arg(scratch.mountpoint()).uid(uid);
        let shown = succeed(&mut command);
        let shown: serde_json::Value = serde_json::from_str(&shown).expect("it is JSON");
        shown["server"].clone()
    };
    let own = info(0);
    assert_eq!(own["image"].as_str(), Some(&*scratch.image().to_string_lossy()));
    assert_eq!(own["directory"].as_str(), Some(&*scratch.mountpoint().to_string_lossy()));
    let others = info(65534);
    assert_eq!((&others["image"], &others["directory"]), (&().into(), &().into()), "{others}");
    // These contain the path of the log.
    assert_eq!(own["fixed_options"]["logfile"].as_str(), Some(&*scratch.log_option()));
    let own_atime = &own["fixed_options"]["atime"];
    assert!(own_atime.is_string(), "{own}");
    assert_eq!(others["fixed_options"], serde_json::json!({ "atime": own_atime }));
    assert_eq!(others["pid"], own["pid"]);
    scratch.umount();
}

/// Each thread has its own capabilities, and all must have dropped them.
#[test]
fn a_server_keeps_no_rights_but_that_to_unmount() {
    if !can_mount() || !rustix::process::geteuid().is_root() {
        return;
    }
    let scratch = Scratch::with_image();
    for transport in ["auto", "dev"] {
        scratch.mount(&format!("transport={transport}"));
        fs::write(scratch.mountpoint().join("f"), vec![1; 100_000]).expect("written");
        let info = succeed(scratch.cffs(["info", "--json"]).arg(scratch.mountpoint()));
        let info: serde_json::Value = serde_json::from_str(&info).expect("it is JSON");
        let tasks = format!("/proc/{}/task", info["server"]["pid"]);
        let mut threads = 0;
        for task in fs::read_dir(tasks).expect("it runs") {
            let status = task.expect("readable").path().join("status");
            let Ok(status) = fs::read_to_string(status) else { continue };
            let field = |name| status.lines().find_map(|line| line.strip_prefix(name));
            let set = |name| u64::from_str_radix(field(name).expect("there").trim(), 16);
            const SYS_ADMIN: u64 = 1 << 21;
            for name in ["CapEff:", "CapPrm:", "CapBnd:"] {
                assert_eq!(set(name), Ok(SYS_ADMIN), "{name} {status}");
            }
            assert_eq!(set("CapInh:"), Ok(0));
            assert_eq!(field("NoNewPrivs:").map(str::trim), Some("1"));
            threads += 1;
        }
        assert!(threads > 1);
        scratch.umount();
        scratch.assert_clean();
    }
}

#[test]
fn a_log_that_cannot_be_written_does_not_keep_a_volume_from_being_mounted() {
    if !can_mount() {
        return;
    }
    let scratch = Scratch::with_image();
    let log = scratch.path().join("no/such/log");
    let mount = scratch
        .cffs(["mount", "-o", &format!("logfile={}", log.display())])
        .arg(scratch.image())
        .arg(scratch.mountpoint())
        .output()
        .expect("it starts");
    let said = String::from_utf8_lossy(&mount.stderr).into_owned();
    assert!(mount.status.success(), "{said}");
    assert_eq!(said.matches("no log is written").count(), 1, "{said}");
    assert!(said.contains("no/such/log"), "{said}");
    fs::write(scratch.mountpoint().join("f"), b"served").expect("written");
    scratch.umount();
}

#[test]
fn the_log_names_the_volume_and_shows_no_structures() {
    if !can_mount() {
        return;
    }
    let scratch = Scratch::with_image();
    scratch.mount("rw");
    scratch.umount();
    let log = fs::read_to_string(scratch.path().join("log")).expect("there");
    let volume = scratch.image().display().to_string();
    assert!(log.contains("mounted"), "{log}");
    for line in log.lines() {
        assert!(line.contains(&volume), "{line}");
        assert!(!line.contains(" { ") && !line.contains("granted"), "{line}");
    }
}
