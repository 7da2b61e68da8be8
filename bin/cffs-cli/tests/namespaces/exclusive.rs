//! One writer at a time, on this host and across hosts. If mounting is impossible, the tests of mounts print
//! that and pass; those of loop devices also need root.

use std::fs::{self, File};
use std::io::{BufRead, BufReader, Read};
use std::os::unix::fs::{FileExt, PermissionsExt, chown};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use crate::harness::{CFFS, Scratch, can_mount, fail, succeed, take_turns};
use cffs::format::superblock::{Holder, SUPERBLOCK_BYTES};
use cffs::format::{Layout, Superblock};

/// A loop device for an image, detached at the end.
struct Loop(PathBuf);

impl Loop {
    fn over(image: &Path) -> Loop {
        let shown = succeed(Command::new("losetup").args(["--find", "--show"]).arg(image));
        Loop(PathBuf::from(shown.trim()))
    }
}

impl Drop for Loop {
    fn drop(&mut self) {
        let _ = Command::new("losetup").arg("--detach").arg(&self.0).status();
    }
}

fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

/// Regression: an image was mounted, and so was a loop device for it: after both were unmounted, one tree was
/// lost.
#[test]
fn no_path_to_a_mounted_image_admits_a_second_writer() {
    let _turn = take_turns();
    if !can_mount() || !is_root() {
        return;
    }
    let scratch = Scratch::with_image();
    scratch.mount("rw");
    fs::write(scratch.mountpoint().join("f"), b"kept").expect("written");
    let mountpoint = scratch.mountpoint().display().to_string();
    let (first, second) = (Loop::over(&scratch.image()), Loop::over(&scratch.image()));
    let over_first = Loop::over(&first.0);
    let hard_link = scratch.path().join("hard.cffs");
    fs::hard_link(scratch.image(), &hard_link).expect("linked");
    let other = scratch.path().join("other");
    fs::create_dir(&other).expect("made");

    let begun = Instant::now();
    for path in [&first.0, &second.0, &over_first.0, &hard_link] {
        let said = fail(32, scratch.cffs(["mount"]).arg(path).arg(&other));
        assert!(said.contains(&mountpoint), "{path:?}: {said}");
        let said = fail(8, scratch.cffs(["fsck", "-y"]).arg(path));
        assert!(said.contains(&mountpoint), "{path:?}: {said}");
        let said = fail(1, scratch.cffs(["mkfs", "--force", "--take-over"]).arg(path));
        assert!(said.contains(&mountpoint), "{path:?}: {said}");
    }
    // In a separate mount namespace, under another path, and without a view of the mount.
    let elsewhere = scratch.path().join("elsewhere");
    fs::create_dir(&elsewhere).expect("made");
    let script = format!(
        "umount -l '{mountpoint}' && mount --bind '{}' '{}' && exec '{CFFS}' fsck -y '{}'",
        scratch.path().display(),
        elsewhere.display(),
        elsewhere.join("image.cffs").display(),
    );
    let mut unseen = Command::new("unshare")
        .args(["-m", "sh", "-c", &script])
        .stderr(Stdio::piped())
        .spawn()
        .expect("started");
    let mut said = String::new();
    let mut lines = BufReader::new(unseen.stderr.take().expect("a pipe"));
    lines.read_line(&mut said).expect("readable");
    unseen.kill().expect("killed");
    unseen.wait().expect("ended");
    assert!(said.contains("in use by process") && said.contains("(cffs, user 0)"), "{said}");
    assert!(begun.elapsed() < Duration::from_secs(50));

    assert_eq!(fs::read(scratch.mountpoint().join("f")).expect("read"), b"kept");
    scratch.umount();
    scratch.assert_clean();
    let names = succeed(scratch.cffs(["ls"]).arg(&over_first.0));
    assert_eq!(names, "f\n");
}

/// Regression: the owner of an image that root had mounted in another mount namespace was told to wait, for a
/// minute, for "another cffs command or mount", or that the volume is not mounted.
#[test]
fn the_owner_of_an_image_learns_that_another_user_has_mounted_it_elsewhere() {
    let _turn = take_turns();
    if !can_mount() || !is_root() {
        return;
    }
    for pid_namespace in [&[][..], &["-p", "-f", "--mount-proc"]] {
        let scratch = Scratch::with_image();
        let script =
            "\"$0\" mount -o \"$1\" \"$2\" \"$3\" && echo && read line; \"$0\" umount \"$3\"";
        let mut container = Command::new("unshare");
        container.args(["-m", "--propagation", "private"]).args(pid_namespace);
        container.args(["sh", "-c", script, CFFS]).arg(scratch.log_option());
        container.arg(scratch.image()).arg(scratch.mountpoint());
        let mut container =
            container.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("started");
        let mut line = [0];
        let ready = container.stdout.take().map(|mut out| out.read_exact(&mut line));
        ready.expect("a pipe").expect("it is mounted");
        std::os::unix::fs::chown(scratch.image(), Some(65534), None).expect("given away");

        let (begun, mut advice) = (Instant::now(), String::new());
        for command in ["info", "ls", "stats", "sync", "restart", "umount"] {
            let said = fail(1, scratch.cffs_by_nobody([command]).arg(scratch.image()));
            assert!(said.contains("by user 0") && said.contains("mount namespace"), "{said}");
            let remedy = said.split_once("nsenter").expect("advice").1.trim();
            advice = format!("nsenter {remedy}");
        }
        assert!(begun.elapsed() < Duration::from_secs(30), "it waits");
        // The advice works for root.
        let advice = advice.replace("cffs umount", &format!("{CFFS} umount"));
        succeed(Command::new("sh").arg("-c").arg(&advice));
        succeed(scratch.cffs_by_nobody(["info"]).arg(scratch.image()));
        drop(container.stdin.take());
        // It has nothing to unmount.
        container.wait().expect("ended");
        scratch.assert_clean();
    }
}

/// The same for a server without a mount.
#[test]
fn the_owner_of_an_image_learns_that_another_user_serves_it() {
    let _turn = take_turns();
    if !is_root() {
        return;
    }
    let scratch = Scratch::with_image();
    let mut serve = scratch.cffs(["serve", "--nfs", "127.0.0.1:0", "-o", &scratch.log_option()]);
    succeed(serve.arg(scratch.image()));
    std::os::unix::fs::chown(scratch.image(), Some(65534), None).expect("given away");
    for command in ["info", "stats", "umount"] {
        let said = fail(1, scratch.cffs_by_nobody([command]).arg(scratch.image()));
        assert!(said.contains("served by user 0") && said.contains("--stop"), "{said}");
    }
    succeed(scratch.cffs(["serve", "--stop"]).arg(scratch.image()));
    scratch.assert_clean();
}

// Regression: cffs info for an image that was mounted in a container waited for a minute, and failed.
#[test]
fn a_volume_that_is_mounted_in_another_namespace_answers_to_the_name_of_its_image() {
    let _turn = take_turns();
    if !can_mount() || !is_root() {
        return;
    }
    for pid_namespace in [&[][..], &["-p", "-f", "--mount-proc"]] {
        let scratch = Scratch::with_image();
        let script =
            "\"$0\" mount -o \"$1\" \"$2\" \"$3\" && echo && read line; \"$0\" umount \"$3\"";
        let mut container = Command::new("unshare");
        container.args(["-m", "--propagation", "private"]).args(pid_namespace);
        container.args(["sh", "-c", script, CFFS]).arg(scratch.log_option());
        container.arg(scratch.image()).arg(scratch.mountpoint());
        let mut container =
            container.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("started");
        let mut line = [0];
        let ready = container.stdout.take().map(|mut out| out.read_exact(&mut line));
        ready.expect("a pipe").expect("it is mounted");

        let info = succeed(scratch.cffs(["info", "--json"]).arg(scratch.image()));
        let info: serde_json::Value = serde_json::from_str(&info).expect("JSON");
        assert_eq!(info["server"]["directory"], *scratch.mountpoint().to_string_lossy(), "{info}");
        // A mount as a block device could outlive its server, and then block sync(2) of all programs.
        let mount_type = info["server"]["mount_type"].as_str().expect("a text");
        assert!(mount_type.starts_with("fuse;"), "{mount_type}");
        let said = fail(8, scratch.cffs(["fsck", "-y"]).arg(scratch.image()));
        let there = format!("mounted on {} in its", scratch.mountpoint().display());
        assert!(said.contains(&there) && said.contains("nsenter -m -p -t"), "{said}");
        assert!(!said.contains("waiting"), "{said}");
        let said = fail(1, scratch.cffs(["umount"]).arg(scratch.image()));
        assert!(said.contains(&there) && said.contains("nsenter -m -p -t"), "{said}");
        for command in ["stats", "sync", "restart", "stats"] {
            succeed(scratch.cffs([command]).arg(scratch.image()));
        }

        drop(container.stdin.take());
        assert!(container.wait().expect("ended").success());
        scratch.assert_clean();
    }
}

/// Regression: the advice was one for root, and a user who followed it was refused.
#[test]
fn a_user_can_follow_the_advice_to_unmount_in_another_namespace() {
    let _turn = take_turns();
    if !can_mount() || !is_root() {
        return;
    }
    let scratch = Scratch::with_image();
    drop(scratch.cffs_by_nobody([]));
    for path in [scratch.image(), scratch.mountpoint()] {
        chown(path, Some(1000), Some(1000)).expect("given away");
    }
    let by_user = |words: &[&str]| {
        let mut command = Command::new("setpriv");
        command.args(["--reuid=1000", "--regid=1000", "--clear-groups"]).args(words);
        command.env("PATH", format!("{}:/usr/bin:/bin", scratch.path().display()));
        command
    };
    let script = "cffs mount -o logfile=/dev/null \"$1\" \"$2\" && echo && read line";
    let mut container = by_user(&["unshare", "-Urm", "sh", "-c", script, "sh"]);
    container.arg(scratch.image()).arg(scratch.mountpoint());
    let mut container =
        container.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("started");
    let mut line = [0];
    let ready = container.stdout.take().map(|mut out| out.read_exact(&mut line));
    if ready.expect("a pipe").is_err() {
        eprintln!("not run: users may not mount in a user namespace");
        let _ = container.wait();
        return;
    }
    let said = fail(1, by_user(&["cffs", "umount"]).arg(scratch.image()));
    let (_, advice) = said.trim_end().split_once("unmount it there first: ").expect(&said);
    succeed(&mut by_user(&["sh", "-c", advice]));
    scratch.assert_clean();
    drop(container.stdin.take());
    let _ = container.wait();
}

#[test]
fn two_loop_devices_over_an_image_are_not_both_mounted() {
    let _turn = take_turns();
    if !can_mount() || !is_root() {
        return;
    }
    let scratch = Scratch::with_image();
    let (first, second) = (Loop::over(&scratch.image()), Loop::over(&scratch.image()));
    let other = scratch.path().join("other");
    fs::create_dir(&other).expect("made");
    let log = scratch.log_option();
    let at = scratch.mountpoint();
    succeed(scratch.cffs(["mount", "-o", &log]).arg(&first.0).arg(&at));
    fs::write(at.join("f"), b"kept").expect("written");
    for path in [&second.0, &scratch.image()] {
        let said = fail(32, scratch.cffs(["mount", "-o", &log]).arg(path).arg(&other));
        assert!(said.contains(&*at.to_string_lossy()), "{path:?}: {said}");
        fail(8, scratch.cffs(["fsck", "-y"]).arg(path));
    }
    scratch.umount();
    scratch.assert_clean();
}

/// Sets the mark on an image as another host would leave it.
fn mark(image: &Path, holder: Option<Holder>) {
    let file = File::options().read(true).write(true).open(image).expect("opened");
    let mut bytes = [0; SUPERBLOCK_BYTES];
    file.read_exact_at(&mut bytes, 0).expect("read");
    let mut superblock = Superblock::decode(&bytes, 0).expect("a superblock");
    superblock.holder = holder;
    file.write_all_at(&superblock.encode(), 0).expect("written");
}

fn marked(image: &Path) -> Option<Holder> {
    let file = File::open(image).expect("opened");
    let mut bytes = [0; SUPERBLOCK_BYTES];
    file.read_exact_at(&mut bytes, 0).expect("read");
    Superblock::decode(&bytes, 0).expect("a superblock").holder
}

fn foreign() -> Option<Holder> {
    Some(Holder {
        host: [1; 16],
        boot: [2; 16],
        name: b"attic".to_vec(),
        pid: 4711,
        process_started: 7,
        started: 1_000_000_000,
    })
}

#[test]
fn a_volume_that_another_host_has_open_is_written_only_if_it_is_taken_over() {
    let _turn = take_turns();
    let scratch = Scratch::with_image();
    let image = scratch.image();
    let source = scratch.path().join("source");
    fs::create_dir(&source).expect("made");
    fs::write(source.join("f"), b"contents").expect("written");
    mark(&image, foreign());
    let before = fs::read(&image).expect("read");
    let names_it = |said: &str, way_out: &str| {
        assert!(said.contains("host attic (process 4711)"), "{said}");
        assert!(said.contains("since 2001-09-09 01:46 UTC"), "{said}");
        assert!(said.contains(way_out), "{said}");
    };
    for how in ["-p", "-y"] {
        names_it(&fail(8, scratch.cffs(["fsck", how]).arg(&image)), "--take-over");
    }
    names_it(&fail(1, scratch.cffs(["mkfs", "--force"]).arg(&image)), "--take-over");
    names_it(&fail(1, scratch.cffs(["import"]).arg(&image).arg(&source)), "fsck -p --take-over");
    if can_mount() {
        let mount = &mut scratch.mount_command("rw");
        names_it(&fail(32, mount), "-o takeover");
    }
    assert!(fs::read(&image).expect("read") == before, "nothing was written");

    // Readers print a warning.
    for command in [&["ls"][..], &["fsck", "-n"]] {
        let output = Command::new(CFFS).args(command).arg(&image).output().expect("it starts");
        assert!(output.status.success(), "{output:?}");
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        names_it(&said, "reads may be inconsistent");
    }

    succeed(scratch.cffs(["fsck", "-p", "--take-over"]).arg(&image));
    assert_eq!(marked(&image), None);
    succeed(scratch.cffs(["import"]).arg(&image).arg(&source));
    if can_mount() {
        mark(&image, foreign());
        scratch.mount("takeover");
        let own = marked(&image).expect("there is one");
        assert_ne!(own.host, [1; 16]);
        assert_eq!(fs::read(scratch.mountpoint().join("f")).expect("read"), b"contents");
        scratch.umount();
        assert_eq!(marked(&image), None);
    }
    mark(&image, foreign());
    succeed(scratch.cffs(["mkfs", "-q", "--force", "--take-over"]).arg(&image));
    assert_eq!(marked(&image), None);
}

/// Regression: a repair of a volume whose superblock was lost went on although another host had it open.
#[test]
fn a_repair_finds_the_mark_of_another_host_in_a_copy_of_a_lost_superblock() {
    let _turn = take_turns();
    let scratch = Scratch::with_image();
    let image = scratch.image();
    let file = File::options().read(true).write(true).open(&image).expect("opened");
    let mut bytes = [0; SUPERBLOCK_BYTES];
    file.read_exact_at(&mut bytes, 0).expect("read");
    let superblock = Superblock::decode(&bytes, 0).expect("a superblock");
    let layout = Layout::new(&superblock);
    let nearest = layout.block_offset(layout.superblock_copies()[0]);
    let opened =
        Superblock { holder: foreign(), mounts: superblock.mounts + 1, ..superblock.clone() };
    file.write_all_at(&opened.encode(), nearest).expect("written");
    file.write_all_at(&[0; SUPERBLOCK_BYTES], 0).expect("written");
    let before = fs::read(&image).expect("read");
    for how in ["-p", "-y"] {
        let said = fail(8, scratch.cffs(["fsck", how]).arg(&image));
        assert!(said.contains("host attic (process 4711)"), "{said}");
    }
    assert!(fs::read(&image).expect("read") == before, "nothing is written");
    fail(1, scratch.cffs(["fsck", "-y", "--take-over"]).arg(&image));
    assert_eq!(marked(&image), None);
    scratch.assert_clean();
}

#[test]
fn a_copy_of_a_volume_in_use_says_so() {
    let _turn = take_turns();
    if !can_mount() {
        return;
    }
    let scratch = Scratch::with_image();
    scratch.mount("rw");
    let copy = Scratch::new();
    fs::copy(scratch.image(), copy.image()).expect("copied");
    let said = fail(32, &mut copy.mount_command("rw"));
    assert!(said.contains("or has had what it was copied from"), "{said}");
    assert!(said.contains("-o takeover"), "{said}");
    copy.mount("takeover");
    fs::write(copy.mountpoint().join("f"), b"its own").expect("written");
    copy.umount();
    copy.assert_clean();
    scratch.umount();
    scratch.assert_clean();
}

#[test]
fn a_device_that_is_write_protected_is_refused_with_what_to_do() {
    let _turn = take_turns();
    if !can_mount() || !is_root() {
        return;
    }
    let scratch = Scratch::with_image();
    let shown = succeed(
        Command::new("losetup").args(["--find", "--show", "--read-only"]).arg(scratch.image()),
    );
    let disk = Loop(PathBuf::from(shown.trim()));
    let log = scratch.log_option();
    let mount = |options: &str| {
        let mut command = scratch.cffs(["mount", "-o", options, "-o", &log]);
        command.arg(&disk.0).arg(scratch.mountpoint());
        command
    };
    let said = fail(32, &mut mount("rw"));
    assert!(said.contains("write-protected; mount it read-only: -o ro"), "{said}");
    let said = fail(8, scratch.cffs(["fsck", "-y"]).arg(&disk.0));
    assert!(said.contains("write-protected"), "{said}");
    succeed(&mut mount("ro"));
    scratch.umount();
}

#[test]
fn an_image_that_is_read_only_is_refused_with_advice_to_mount_it_so() {
    if !is_root() {
        return;
    }
    let scratch = Scratch::with_image();
    fs::set_permissions(scratch.mountpoint(), PermissionsExt::from_mode(0o755)).expect("set");
    fs::set_permissions(scratch.image(), PermissionsExt::from_mode(0o644)).expect("set");
    let mut by_another = scratch.cffs_by_nobody(["mount", "-o", &scratch.log_option()]);
    let said = fail(32, by_another.arg(scratch.image()).arg(scratch.mountpoint()));
    assert!(said.contains("Permission denied") && said.contains("-o ro"), "{said}");

    // Not every file system supports flags.
    if Command::new("chattr").arg("+i").arg(scratch.image()).status().is_ok_and(|s| s.success()) {
        let said = scratch.mount_command("rw").output().expect("it starts");
        succeed(Command::new("chattr").arg("-i").arg(scratch.image()));
        let said = String::from_utf8_lossy(&said.stderr).into_owned();
        assert!(said.contains("write-protected; mount it read-only: -o ro"), "{said}");
    }
}
