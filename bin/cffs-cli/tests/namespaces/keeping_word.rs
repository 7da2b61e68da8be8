//! The promises of sync and umount on each type of mount, the changes of a remount, and the programs named if
//! a promise cannot be kept.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::os::unix::fs::OpenOptionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::MutexGuard;
use std::time::{Duration, Instant};

use rustix::fs::OFlags;
use rustix::mount::UnmountFlags;

use crate::harness::{Scratch, can_mount, fail, succeed, take_turns, umount_8};

/// A test's turn, for root on a machine that allows mounting; prints a line otherwise.
fn root_turn() -> Option<MutexGuard<'static, ()>> {
    let is_root = can_mount() && rustix::process::geteuid().is_root();
    if !is_root {
        eprintln!("not run: it needs root");
    }
    is_root.then(take_turns)
}

/// The same if loop devices are available as well.
fn root_turn_with_loop_devices() -> Option<MutexGuard<'static, ()>> {
    root_turn().filter(|_| Path::new("/dev/loop-control").exists())
}

/// Whether the kernel forwards sync(2) to a mounted block device; prints a line if not.
fn passes_sync_on() -> bool {
    let release = rustix::system::uname().release().to_string_lossy().into_owned();
    let mut numbers = release.split('.').map(|part| part.parse::<u32>().unwrap_or(0));
    let version = (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0));
    let passes = version >= (6, 18);
    if !passes {
        eprintln!("not run: Linux {release} does not pass sync(2) on; 6.18 does");
    }
    passes
}

/// The line of the mount table for the scratch directory's mount.
fn mount_line(scratch: &Scratch) -> String {
    let table = fs::read_to_string("/proc/self/mountinfo").expect("readable");
    let mountpoint = scratch.mountpoint().display().to_string();
    let line = table.lines().find(|line| line.split(' ').nth(4) == Some(&mountpoint));
    line.unwrap_or_default().to_owned()
}

/// The loop devices of the image.
fn loop_devices(image: &Path) -> String {
    succeed(Command::new("losetup").args(["--noheadings", "--output", "NAME", "-j"]).arg(image))
}

fn info(scratch: &Scratch) -> serde_json::Value {
    let info = succeed(scratch.cffs(["info", "--json"]).arg(scratch.mountpoint()));
    serde_json::from_str(&info).expect("it is JSON")
}

/// Ends the server as a crash does, and waits for its end.
fn kill_server(scratch: &Scratch) {
    let pid = info(scratch)["server"]["pid"].to_string();
    succeed(Command::new("kill").args(["-9", &pid]));
    crate::harness::wait_for(|| !Path::new("/proc").join(&pid).exists());
}

#[test]
fn root_mounts_a_block_device_and_nothing_stays_of_it() {
    let Some(_turn) = root_turn_with_loop_devices() else { return };
    let scratch = Scratch::with_image();
    scratch.mount("rw");
    let line = mount_line(&scratch);
    assert!(line.contains(" - fuseblk.cffs /dev/loop"), "{line}");
    let device = loop_devices(&scratch.image()).trim().to_owned();
    assert!(line.contains(&device), "{device}: {line}");
    assert_eq!(info(&scratch)["server"]["mount_type"], "fuseblk");
    // It is found by each of its names, and cannot be written by either.
    for name in [scratch.image().display().to_string(), device.clone()] {
        let found = succeed(scratch.cffs(["info", "--json"]).arg(&name));
        assert!(found.contains("\"fuseblk\""), "{name}: {found}");
        let said = fail(8, scratch.cffs(["fsck", "-y"]).arg(&name));
        assert!(said.contains(&*scratch.mountpoint().to_string_lossy()), "{name}: {said}");
    }
    succeed(scratch.cffs(["umount"]).arg(scratch.image()));
    assert!(!scratch.is_mounted());
    assert_eq!(loop_devices(&scratch.image()), "");
    scratch.assert_clean();

    scratch.mount("fuseblk=no");
    let line = mount_line(&scratch);
    assert!(line.contains(" - fuse.cffs "), "{line}");
    assert_eq!(loop_devices(&scratch.image()), "");
    scratch.umount();
}

#[test]
fn an_image_of_an_odd_size_and_one_for_reading_are_mounted_as_block_devices() {
    let Some(_turn) = root_turn_with_loop_devices() else { return };
    let scratch = Scratch::with_image();
    let image = fs::OpenOptions::new().write(true).open(scratch.image()).expect("writable");
    image.set_len((256 << 20) + 777).expect("longer");
    for options in ["rw", "ro"] {
        scratch.mount(options);
        assert!(mount_line(&scratch).contains("fuseblk.cffs"));
        let device = loop_devices(&scratch.image());
        let ro = succeed(Command::new("blockdev").arg("--getro").arg(device.trim()));
        assert_eq!(
            ro.trim() == "1",
            options == "ro",
            "nothing is written past a mount for reading"
        );
        scratch.umount();
    }
    scratch.assert_clean();
}

#[test]
fn a_volume_on_a_block_device_is_mounted_as_it_is_and_claimed() {
    let Some(_turn) = root_turn_with_loop_devices() else { return };
    let scratch = Scratch::with_image();
    let disk = Loop::over(&scratch.image());
    let mount = |options: &str, directory: &Path| {
        let mut command = scratch.cffs(["mount", "-o", options, "-o", &scratch.log_option()]);
        command.arg(&disk.0).arg(directory);
        command
    };
    succeed(&mut mount("rw", &scratch.mountpoint()));
    assert!(mount_line(&scratch).contains(&format!("fuseblk.cffs {}", disk.0)));
    fs::write(scratch.mountpoint().join("f"), b"kept").expect("written");
    let output = Command::new("mkfs.ext4").args(["-q", &disk.0]).output().expect("it starts");
    assert!(!output.status.success(), "the kernel has claimed the device");
    let said = fail(32, &mut mount("rw", scratch.path()));
    assert!(said.contains("is mounted on"), "{said}");
    umount_8(&scratch.mountpoint());
    assert_eq!(succeed(scratch.cffs(["cat"]).arg(&disk.0).arg("f")), "kept");

    // It may be mounted twice for reading; the kernel mounts a device only once.
    let other = scratch.path().join("other");
    fs::create_dir(&other).expect("made");
    succeed(&mut mount("ro", &scratch.mountpoint()));
    let output = mount("ro", &other).output().expect("it starts");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && said.contains("mounted as fuse"), "{said}");
    assert_eq!(fs::read(other.join("f")).expect("read"), b"kept");
    succeed(scratch.cffs(["umount"]).arg(&other));
    scratch.umount();
}

/// A loop device for an image, as an administrator creates it.
struct Loop(String);

impl Loop {
    fn over(image: &Path) -> Loop {
        let shown = succeed(Command::new("losetup").args(["--find", "--show"]).arg(image));
        Loop(shown.trim().to_owned())
    }
}

impl Drop for Loop {
    fn drop(&mut self) {
        let _ = Command::new("losetup").args(["--detach", &self.0]).status();
    }
}

#[test]
fn without_loop_devices_root_mounts_as_fuse_with_the_reason() {
    let Some(_turn) = root_turn() else { return };
    let scratch = Scratch::with_image();
    let script = "mount --bind /dev/null /dev/loop-control\n\
                  \"$0\" mount -o \"$3\" \"$1\" \"$2\" && \"$0\" info --json \"$2\"; \"$0\" umount \"$2\"";
    let mut command = Command::new("unshare");
    command.args(["-m", "--propagation", "private", "sh", "-c", script, crate::harness::CFFS]);
    command.arg(scratch.image()).arg(scratch.mountpoint()).arg(scratch.log_option());
    let output = command.stdin(Stdio::null()).output().expect("it starts");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}");
    assert!(said.contains("mounted as fuse") && said.contains("no loop device"), "{said}");
    assert_eq!(said.lines().count(), 1, "{said}");
    let printed = String::from_utf8_lossy(&output.stdout);
    assert!(printed.contains("fuse; not fuseblk: no loop device"), "{printed}");
    scratch.assert_clean();
}

/// A change survives the server's death after `make_durable`.
fn survives_a_kill(make_durable: impl Fn(&Scratch)) {
    for transport in ["auto", "dev"] {
        let scratch = Scratch::with_image();
        scratch.mount(&format!("commit=3600,transport={transport}"));
        fs::create_dir(scratch.mountpoint().join("d")).expect("made");
        fs::write(scratch.mountpoint().join("d/f"), [7; 100_000]).expect("written");
        make_durable(&scratch);
        kill_server(&scratch);
        let output = scratch.cffs(["umount"]).arg(scratch.mountpoint()).output();
        assert_eq!(output.expect("it starts").status.code(), Some(1), "the server has died");
        succeed_with(&[0, 1], scratch.cffs(["fsck", "-p"]).arg(scratch.image()));
        let output = scratch.cffs(["cat"]).arg(scratch.image()).arg("d/f").output();
        assert_eq!(output.expect("it starts").stdout, [7; 100_000]);
        scratch.assert_clean();
    }
}

fn succeed_with(codes: &[i32], command: &mut Command) {
    let output = command.output().expect("it starts");
    assert!(output.status.code().is_some_and(|code| codes.contains(&code)), "{output:?}");
}

#[test]
fn sync_1_is_durable_on_a_block_device() {
    let turn = root_turn_with_loop_devices().filter(|_| passes_sync_on());
    let Some(_turn) = turn else { return };
    survives_a_kill(|_| drop(succeed(&mut Command::new("sync"))));
}

#[test]
fn syncfs_2_is_durable_on_a_block_device() {
    let turn = root_turn_with_loop_devices().filter(|_| passes_sync_on());
    let Some(_turn) = turn else { return };
    survives_a_kill(|scratch| {
        succeed(Command::new("sync").arg("-f").arg(scratch.mountpoint()));
    });
    survives_a_kill(|scratch| {
        let root = fs::File::open(scratch.mountpoint()).expect("open");
        rustix::fs::syncfs(&root).expect("synced");
    });
}

#[test]
fn cffs_sync_is_durable_on_every_mount() {
    let _turn = take_turns();
    if !can_mount() {
        return;
    }
    survives_a_kill(|scratch| drop(succeed(scratch.cffs(["sync"]).arg(scratch.mountpoint()))));
}

/// The kernel sends a mount of type fuse no request at sync(2). This test fails once a kernel does.
#[test]
fn sync_does_not_reach_a_mount_of_type_fuse() {
    let _turn = take_turns();
    if !can_mount() {
        return;
    }
    let scratch = Scratch::with_image();
    scratch.mount("fuseblk=no,commit=3600");
    fs::write(scratch.mountpoint().join("f"), b"in memory").expect("written");
    succeed(Command::new("sync").arg("-f").arg(scratch.mountpoint()));
    let stats = succeed(scratch.cffs(["stats", "--json"]).arg(scratch.mountpoint()));
    let stats: serde_json::Value = serde_json::from_str(&stats).expect("it is JSON");
    assert!(stats["requests"]["syncfs"].is_null(), "{stats}");
    scratch.umount();
}

#[test]
fn an_image_can_be_copied_as_soon_as_umount_8_has_returned_from_a_block_device() {
    let Some(_turn) = root_turn_with_loop_devices() else { return };
    for transport in ["auto", "dev"] {
        let scratch = Scratch::with_image();
        scratch.mount(&format!("commit=3600,clean=never,transport={transport}"));
        for index in 0..300 {
            let contents = vec![index as u8; 10_000];
            fs::write(scratch.mountpoint().join(index.to_string()), contents).expect("written");
        }
        umount_8(&scratch.mountpoint());
        let copy = Scratch::new();
        fs::copy(scratch.image(), copy.image()).expect("copied");
        copy.assert_clean();
        assert_eq!(succeed(copy.cffs(["ls"]).arg(copy.image())).lines().count(), 300);
        // It returns without waiting, and without a message.
        let output = scratch.cffs(["info"]).arg(scratch.image()).output().expect("it starts");
        assert!(output.status.success() && output.stderr.is_empty(), "{output:?}");
        assert_eq!(loop_devices(&scratch.image()), "");
    }
}

/// A file system in memory, removed at the end.
struct TmpFs(PathBuf);

impl TmpFs {
    fn mount(directory: PathBuf) -> TmpFs {
        fs::create_dir(&directory).expect("made");
        succeed(Command::new("mount").args(["-t", "tmpfs", "cffs-test"]).arg(&directory));
        TmpFs(directory)
    }
}

impl Drop for TmpFs {
    fn drop(&mut self) {
        let _ = rustix::mount::unmount(&self.0, UnmountFlags::DETACH);
    }
}

/// Regression: after an unmount, the file system that contains the image could not always be unmounted: the
/// server's process, which was about to end, still had the image open.
#[test]
fn the_device_below_a_volume_is_free_as_soon_as_it_is_unmounted() {
    let Some(_turn) = root_turn_with_loop_devices() else { return };
    for (unmount, options) in [
        (&[crate::harness::CFFS, "umount"][..], "fuseblk=auto,transport=auto"),
        (&[crate::harness::CFFS, "umount"][..], "fuseblk=auto,transport=dev"),
        (&[crate::harness::CFFS, "umount"][..], "fuseblk=no"),
        (&["umount"][..], "fuseblk=auto"),
    ] {
        for on_disk in [false, true] {
            let scratch = Scratch::new();
            let below = TmpFs::mount(scratch.path().join("below"));
            let image = below.0.join("image.cffs");
            succeed(scratch.cffs(["mkfs", "-q", "--size", "256M"]).arg(&image));
            let mut losetup = Command::new("losetup");
            let source = match on_disk {
                true => succeed(losetup.args(["--find", "--show"]).arg(&image)).trim().into(),
                false => image.clone(),
            };
            let mut command = scratch.cffs(["mount", "-o", options, "-o", &scratch.log_option()]);
            succeed(command.arg(&source).arg(scratch.mountpoint()));
            let pid = info(&scratch)["server"]["pid"].to_string();
            // Memory that the kernel takes some time to free when the server ends.
            fs::write(scratch.mountpoint().join("f"), vec![7; 100 << 20]).expect("written");
            fs::read(scratch.mountpoint().join("f")).expect("read");
            let mut command = Command::new(unmount[0]);
            succeed(command.args(&unmount[1..]).arg(scratch.mountpoint()));
            let is_there = Path::new("/proc").join(&pid).join("exe").exists();
            let exclusive = OFlags::EXCL.bits() as i32;
            let free = File::options().read(true).custom_flags(exclusive).open(&source).map(drop);
            if on_disk {
                succeed(Command::new("losetup").arg("--detach").arg(&source));
            }
            let unmounted = rustix::mount::unmount(&below.0, UnmountFlags::empty());
            let case = format!("{unmount:?} {options} {}", source.display());
            assert!(free.is_ok(), "{case}: {free:?}");
            // An open image keeps its file system mounted, also through a loop device.
            assert!(unmounted.is_ok(), "{case}: {unmounted:?}");
            assert!(!is_there || unmount == ["umount"], "{case}: the server has not ended");
        }
    }
}

#[test]
fn umount_fails_while_a_bind_mount_keeps_the_volume_and_names_it() {
    let Some(_turn) = root_turn() else { return };
    for options in ["fuseblk=auto", "fuseblk=no"] {
        let scratch = Scratch::with_image();
        scratch.mount(options);
        let bound = scratch.path().join("bound");
        fs::create_dir(&bound).expect("made");
        succeed(Command::new("mount").arg("--bind").arg(scratch.mountpoint()).arg(&bound));
        let said = fail(1, scratch.cffs(["umount"]).arg(scratch.mountpoint()));
        assert!(said.contains("is still mounted on"), "{said}");
        assert!(said.contains(&*bound.to_string_lossy()), "{said}");
        fs::write(bound.join("f"), b"it is still there").expect("written");
        succeed(scratch.cffs(["umount"]).arg(&bound));
        scratch.assert_clean();
    }
}

#[test]
fn umount_fails_while_another_namespace_keeps_the_volume_and_names_a_process() {
    let Some(_turn) = root_turn() else { return };
    for options in ["fuseblk=auto", "fuseblk=no"] {
        let scratch = Scratch::with_image();
        scratch.mount(options);
        let mut command = Command::new("unshare");
        command.args(["-m", "--propagation", "private", "sh", "-c", "echo; exec sleep 1000"]);
        let mut other = command.stdout(Stdio::piped()).spawn().expect("it starts");
        let mut line = [0];
        let printed = other.stdout.as_mut().map(|out| std::io::Read::read_exact(out, &mut line));
        printed.expect("there is a pipe").expect("it has a namespace of its own");
        let begun = Instant::now();
        let said = fail(1, scratch.cffs(["umount"]).arg(scratch.mountpoint()));
        assert!(begun.elapsed() < Duration::from_secs(30), "it does not wait for others");
        let process = format!("process {} (", other.id());
        assert!(said.contains("still mounted") && said.contains(&process), "{said}");
        other.kill().expect("killed");
        other.wait().expect("gone");
        // The namespace ends with its last process, and so does the mount.
        let begun = Instant::now();
        while !scratch
            .cffs(["info"])
            .arg(scratch.image())
            .output()
            .expect("it starts")
            .status
            .success()
        {
            assert!(begun.elapsed() < Duration::from_secs(20), "the image is still in use");
        }
        scratch.assert_clean();
    }
}

#[test]
fn a_read_only_mount_of_a_volume_that_was_not_left_clean_unmounts_with_0() {
    let _turn = take_turns();
    if !can_mount() {
        return;
    }
    let scratch = Scratch::with_image();
    scratch.mount("rw,clean=never");
    fs::write(scratch.mountpoint().join("f"), b"durable").expect("written");
    succeed(scratch.cffs(["sync"]).arg(scratch.mountpoint()));
    kill_server(&scratch);
    fail(1, scratch.cffs(["umount"]).arg(scratch.mountpoint()));
    scratch.mount("ro");
    assert_eq!(fs::read(scratch.mountpoint().join("f")).expect("read"), b"durable");
    scratch.umount();
    let info = succeed(scratch.cffs(["info"]).arg(scratch.image()));
    assert!(info.contains("in use"), "it was dirty, and still is: {info}");
}

#[test]
fn a_mount_whose_server_died_makes_way_for_the_next() {
    let _turn = take_turns();
    if !can_mount() {
        return;
    }
    let scratch = Scratch::with_image();
    for options in ["rw", "fuseblk=no"] {
        scratch.mount(options);
        fs::write(scratch.mountpoint().join(options), b"x").expect("written");
        succeed(scratch.cffs(["sync"]).arg(scratch.mountpoint()));
        kill_server(&scratch);
        let output = scratch.mount_command(options).output().expect("it starts");
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success() && said.contains("its server had died"), "{said}");
        assert_eq!(fs::read(scratch.mountpoint().join(options)).expect("read"), b"x");
        let table = fs::read_to_string("/proc/self/mountinfo").expect("readable");
        let mountpoint = format!(" {} ", scratch.mountpoint().display());
        assert_eq!(table.matches(&mountpoint).count(), 1, "the dead one is gone");
        scratch.umount();
    }
    scratch.assert_clean();
}

/// A mount's entry in the mount table: its own options, and the volume's.
fn options_of(directory: &Path) -> (String, bool) {
    let table = fs::read_to_string("/proc/self/mountinfo").expect("readable");
    let directory = directory.display().to_string();
    let line = table.lines().find(|line| line.split(' ').nth(4) == Some(&directory));
    let line = line.expect("it is mounted");
    let options = line.split(' ').nth(5).expect("it has options").to_owned();
    (options, line.rsplit(' ').next().expect("it has options").starts_with("ro"))
}

/// Regression: a user had mounted an image with set-user-id programs; after root remounted it, they ran as
/// root.
#[test]
fn remount_keeps_options_that_were_not_given() {
    let Some(_turn) = root_turn() else { return };
    for type_option in ["fuseblk=auto", "fuseblk=no"] {
        let scratch = Scratch::with_image();
        let dir = scratch.mountpoint();
        scratch.mount(&format!("nosuid,nodev,noexec,nosymfollow,noatime,{type_option}"));
        let hardened = "nosuid,nodev,noexec,noatime,nosymfollow";
        assert_eq!(options_of(&dir), (format!("rw,{hardened}"), false));
        scratch.mount("remount,ro");
        assert_eq!(options_of(&dir), (format!("ro,{hardened}"), true));
        scratch.mount("remount,rw");
        assert_eq!(options_of(&dir), (format!("rw,{hardened}"), false));
        scratch.mount("remount,exec,dev");
        assert_eq!(options_of(&dir), (String::from("rw,nosuid,noatime,nosymfollow"), false));
        scratch.mount("remount");
        assert_eq!(options_of(&dir), (String::from("rw,nosuid,noatime,nosymfollow"), false));

        // A bind mount has its own options, independent of the others.
        let bound = scratch.path().join("bound");
        fs::create_dir(&bound).expect("made");
        succeed(Command::new("mount").arg("--bind").arg(&dir).arg(&bound));
        succeed(Command::new("mount").args(["-i", "-o", "remount,bind,ro,nodev"]).arg(&bound));
        let (before, _) = options_of(&bound);
        let mut command = scratch.cffs(["mount", "-o", "remount,noexec"]);
        succeed(command.arg(scratch.image()).arg(&bound));
        let (after, volume_is_read_only) = options_of(&bound);
        assert!(
            before.starts_with("ro,nosuid,nodev") && after.contains("noexec"),
            "{before} {after}"
        );
        assert_eq!(after.replace(",noexec", ""), before);
        assert!(!volume_is_read_only);
        assert_eq!(options_of(&dir), (String::from("rw,nosuid,noatime,nosymfollow"), false));
        umount_8(&bound);
        scratch.umount();
    }
}

/// Regression: `remount,noatime` was accepted and changed nothing.
#[test]
fn remount_refuses_another_mode_of_access_times() {
    let Some(_turn) = root_turn() else { return };
    for (mode, taken, refused) in [
        ("relatime", ["relatime", "relatime"], ["noatime", "strictatime"]),
        ("noatime", ["noatime", "noatime"], ["relatime", "strictatime"]),
        ("strictatime", ["strictatime", "relatime"], ["noatime", "noatime"]),
    ] {
        let scratch = Scratch::with_image();
        scratch.mount(mode);
        for other in refused {
            let said = fail(32, &mut scratch.mount_command(&format!("remount,ro,{other}")));
            assert!(said.contains(mode) && said.contains("unmount it"), "{mode}, {other}: {said}");
            fs::write(scratch.mountpoint().join("f"), b"x").expect("nothing has changed");
        }
        for other in taken {
            scratch.mount(&format!("remount,ro,{other}"));
        }
        scratch.umount();
    }
}

/// The mount options in the help, each without its value, and `[no]discard` as `discard`.
fn options_in_the_help(scratch: &Scratch) -> BTreeSet<String> {
    let help = succeed(&mut scratch.cffs(["mount", "--help"]));
    let list = help.split("Options for -o").nth(1).expect("it lists the options");
    let list = list.split("Options for mount(8)").next().expect("it ends");
    let names =
        list.lines().skip(1).filter_map(|line| line.strip_prefix("  ")).filter(|line| {
            line.starts_with(|first: char| first.is_ascii_lowercase() || first == '[')
        });
    let names = names.flat_map(|line| {
        let column = line.split("  ").next().expect("there is a first column");
        let named =
            |name: &str| name.replace("[no]", "").split(['=', '[']).next().map(str::to_owned);
        column.split(", ").filter_map(named).collect::<Vec<_>>()
    });
    names.map(|name| name.trim().to_owned()).collect()
}

/// Regression: `remount,cache=1G` and most other options were accepted and changed nothing. Each option in
/// the help is refused by name if its value would change, and accepted if it stays the same.
#[test]
fn remount_refuses_what_the_server_keeps_and_names_it() {
    let Some(_turn) = root_turn() else { return };
    let scratch = Scratch::with_image();
    let log = scratch.path().join("log");
    let same_log = format!("logfile={}", log.display());
    let kept = [
        ("sync", "async", "sync"),
        ("discard", "nodiscard", "discard"),
        ("cache", "cache=100M", "cache=64M"),
        ("dirty", "dirty=0.5G", "dirty=64M"),
        ("commit", "commit=7", "commit=5"),
        ("clean", "clean=never", "clean=10"),
        ("clean_share", "clean_share=10", "clean_share=11"),
        ("errors", "errors=continue", "errors=remount-ro"),
        ("journal", "journal=on", "journal=off"),
        ("allow_other", "allow_other", "noallow_other"),
        ("takeover", "", "takeover"),
        ("fuseblk", "fuseblk=no", "fuseblk=auto"),
        ("journal-device", "", "journal-device=/elsewhere"),
        ("regroup", "regroup=never", "regroup=60"),
        ("soft", "", "soft=9"),
        ("logfile", &same_log, "logfile=/elsewhere"),
        ("stall", "stall=30", "stall=31"),
        ("transport", "transport=dev", "transport=rings"),
    ];
    let changed = ["ro", "rw", "suid", "dev", "exec", "symfollow", "remount"];
    let implying = ["user", "users", "owner", "group"];
    let modes = ["relatime", "strictatime", "noatime"];
    let of_stores = [
        ("follow", "follow=9"),
        ("cache-dir", "cache-dir=/elsewhere=1G"),
        ("key-file", "key-file=/elsewhere"),
        ("staging", "staging=/elsewhere"),
    ];
    let known = kept.iter().map(|(name, ..)| *name).chain(of_stores.map(|(name, _)| name));
    let known: BTreeSet<_> = known.chain(changed).chain(implying).chain(modes).collect();
    let shown = options_in_the_help(&scratch);
    assert_eq!(shown.iter().map(String::as_str).collect::<BTreeSet<_>>(), known);

    let mounted_with =
        "cache=100M,dirty=512M,commit=7,clean=never,fuseblk=no,transport=dev,errors=continue";
    scratch.mount(mounted_with);
    let remount = |options: &str| {
        let mut command = scratch.cffs(["mount", "-o", &format!("remount,{options}")]);
        command.arg(scratch.image()).arg(scratch.mountpoint());
        command
    };
    for (name, same, other) in kept {
        succeed(&mut remount(same));
        let said = fail(32, &mut remount(&format!("ro,{other}")));
        assert!(said.contains(other) && said.contains("unmount it"), "{name}: {said}");
        fs::write(scratch.mountpoint().join("f"), b"x").expect("nothing has changed");
    }
    for (name, option) in of_stores {
        let said = fail(32, &mut remount(&format!("ro,{option}")));
        assert!(said.contains(&format!("'{name}'")) && said.contains("object store"), "{said}");
        fs::write(scratch.mountpoint().join("f"), b"x").expect("nothing has changed");
    }
    // All options at once, as in fstab, and as mount(8) adds them to the given ones.
    succeed(&mut remount(&format!("ro,{mounted_with},{same_log}")));
    assert!(fs::write(scratch.mountpoint().join("f"), b"x").is_err());
    succeed(&mut remount(&format!("rw,{mounted_with},{same_log}")));
    scratch.umount();
}

#[test]
fn nosymfollow_is_honoured() {
    let Some(_turn) = root_turn() else { return };
    let scratch = Scratch::with_image();
    scratch.mount("nosymfollow");
    fs::write(scratch.mountpoint().join("f"), b"x").expect("written");
    std::os::unix::fs::symlink("f", scratch.mountpoint().join("l")).expect("linked");
    assert!(fs::read(scratch.mountpoint().join("l")).is_err());
    assert!(fs::read_link(scratch.mountpoint().join("l")).is_ok());
    scratch.mount("remount,symfollow");
    assert_eq!(fs::read(scratch.mountpoint().join("l")).expect("followed"), b"x");
    scratch.umount();
}

#[test]
fn a_label_that_no_device_has_is_an_error_that_says_where_it_was_looked_for() {
    let _turn = take_turns();
    let scratch = Scratch::new();
    for tag in ["LABEL=data", "UUID=0b0f"] {
        let said = fail(32, scratch.cffs(["mount", tag]).arg(scratch.mountpoint()));
        assert!(said.contains(tag) && said.contains("/dev/disk/by-"), "{said}");
    }
}

/// Relative paths have the same meaning before and after the server leaves the caller's directory.
#[test]
fn relative_paths_work() {
    let _turn = take_turns();
    if !can_mount() {
        return;
    }
    let scratch = Scratch::with_image();
    let here = |arguments: &[&str]| {
        let mut command = Command::new(crate::harness::CFFS);
        command.args(arguments).current_dir(scratch.path()).stdin(Stdio::null()).process_group(0);
        succeed(&mut command)
    };
    here(&["mount", "-o", "logfile=log", "image.cffs", "mnt"]);
    fs::write(scratch.mountpoint().join("f"), b"x").expect("written");
    here(&["sync", "mnt"]);
    assert!(here(&["info", "mnt"]).contains("image.cffs"));
    here(&["umount", "mnt"]);
    assert_eq!(here(&["cat", "image.cffs", "f"]), "x");
    assert!(scratch.path().join("log").exists());
}
