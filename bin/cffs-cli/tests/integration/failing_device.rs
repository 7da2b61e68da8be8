//! Commands for a mount on a device that fails at each step: none of them returns 0 if a change is lost, and
//! each reports the result and the remedy.

use std::fs;
use std::path::PathBuf;
use std::process::{Command, Output, Stdio};
use std::time::Duration;

use crate::harness::failing::{FailingDisk, Fault};
use crate::harness::{CFFS, can_mount, succeed};

const SIZE: u64 = 32 << 20;
static CONTENTS: [u8; 50_000] = [7; 50_000];

/// The steps after which the device fails: each of the first ones, and some later ones.
const STEPS: [i64; 8] = [0, 1, 2, 3, 5, 8, 13, 24];

/// A volume on a disk that can fail, and a mount point.
struct Volume {
    // Dropped first: the server has the disk open.
    mountpoint: Mountpoint,
    disk: FailingDisk,
}

struct Mountpoint(tempfile::TempDir);

impl Drop for Mountpoint {
    fn drop(&mut self) {
        let mut command = Command::new(CFFS);
        let _ = command.args(["umount", "-l"]).arg(self.0.path().join("mnt")).output();
    }
}

fn run(arguments: &[&str], path: PathBuf) -> Output {
    let mut command = Command::new(CFFS);
    command.args(arguments).arg(path).stdin(Stdio::null()).output().expect("it starts")
}

fn text(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

impl Volume {
    fn new() -> Volume {
        let mountpoint = Mountpoint(tempfile::tempdir().expect("a directory"));
        fs::create_dir(mountpoint.0.path().join("mnt")).expect("made");
        let volume = Volume { mountpoint, disk: FailingDisk::new(SIZE) };
        let made = run(&["mkfs", "-q", "--size", "32M"], volume.disk.image());
        assert!(made.status.success(), "{}", text(&made));
        volume
    }

    fn dir(&self) -> PathBuf {
        self.mountpoint.0.path().join("mnt")
    }

    fn mount(&self, options: &str) -> Output {
        let log = self.mountpoint.0.path().join("log");
        let mut command = Command::new(CFFS);
        command.args(["mount", "-o", options, "-o", &format!("logfile={}", log.display())]);
        let command = command.arg(self.disk.image()).arg(self.dir()).stdin(Stdio::null());
        command.output().expect("it starts")
    }

    fn mounted(options: &str) -> Volume {
        let volume = Volume::new();
        let output = volume.mount(options);
        assert!(output.status.success(), "{}", text(&output));
        volume
    }

    fn kill_server(&self) {
        let info = run(&["info", "--json"], self.dir());
        let info: serde_json::Value = serde_json::from_slice(&info.stdout).expect("it is JSON");
        let pid = info["server"]["pid"].to_string();
        succeed(Command::new("kill").args(["-9", &pid]));
        while PathBuf::from(format!("/proc/{pid}")).exists() {
            std::thread::sleep(Duration::from_millis(5));
        }
        run(&["umount", "-l"], self.dir());
    }

    /// Whether the volume on the healed disk can be repaired, is then sound, and contains the whole file.
    fn has_file(&self) -> bool {
        self.disk.heal();
        let recovery = run(&["fsck", "-p"], self.disk.image());
        assert!(matches!(recovery.status.code(), Some(0 | 1)), "{}", text(&recovery));
        let check = run(&["fsck", "-n", "-f", "--contents"], self.disk.image());
        assert!(check.status.success(), "{}", text(&check));
        let mut command = Command::new(CFFS);
        let output = command.arg("cat").arg(self.disk.image()).arg("f").output();
        output.expect("it starts").stdout == CONTENTS
    }
}

/// Runs a command on a device that fails after each number of steps, with a file in memory whose loss must be
/// reported. `failure` is the exit code of a failure.
fn table(fault: Fault, options: &str, failure: i32, command: impl Fn(&Volume) -> Output) {
    let mut failures = 0;
    for after in STEPS {
        let volume = Volume::mounted(options);
        fs::write(volume.dir().join("f"), CONTENTS).expect("written to memory");
        volume.disk.fail(fault, after);
        let output = command(&volume);
        let place = format!("{fault:?} after {after}, {options}: {}", text(&output));
        if output.status.success() {
            // The result of a success survives the death of the server.
            volume.kill_server_if_mounted();
            assert!(volume.has_file(), "{place}");
            continue;
        }
        failures += 1;
        assert_eq!(output.status.code(), Some(failure), "{place}");
        let said = text(&output);
        assert!(said.contains(" lost") && said.contains("cffs fsck"), "{place}");
        volume.kill_server_if_mounted();
        if said.contains("no change is lost") {
            assert!(volume.has_file(), "{place}");
        }
    }
    assert!(failures > 0, "{fault:?}, {options}: nothing failed");
}

impl Volume {
    fn is_mounted(&self) -> bool {
        let table = fs::read_to_string("/proc/self/mountinfo").expect("readable");
        table.contains(&*self.dir().to_string_lossy())
    }

    fn kill_server_if_mounted(&self) {
        if self.is_mounted() {
            self.kill_server();
        }
    }
}

/// The kinds of mounts to test: with and without a block device, over both transports.
fn mounts() -> Vec<&'static str> {
    let all = ["commit=3600,clean=never", "commit=3600,clean=never,fuseblk=no,transport=dev"];
    if can_mount() { all.to_vec() } else { Vec::new() }
}

#[test]
fn umount_says_what_is_lost_on_a_device_that_fails() {
    for options in mounts() {
        for fault in [Fault::Write, Fault::Flush] {
            table(fault, options, 1, |volume| run(&["umount"], volume.dir()));
        }
    }
}

/// Stops servers on devices that fail; fails unless the output contains `says` whenever the image was not
/// completed.
fn stop_servers(stop: impl Fn(PathBuf) -> Output, says: &str) {
    for fault in [Fault::Write, Fault::Flush] {
        let mut failures = 0;
        for after in [0, 1, 2, 3, 5, 8] {
            let volume = Volume::new();
            let log = volume.mountpoint.0.path().join("log");
            let log = format!("logfile={}", log.display());
            let serve = ["serve", "--nfs", "127.0.0.1:0", "-o", &log];
            let served = run(&serve, volume.disk.image());
            assert!(served.status.success(), "{}", text(&served));
            volume.disk.fail(fault, after);
            let stopped = stop(volume.disk.image());
            let place = format!("{fault:?} after {after}: {}", text(&stopped));
            let failed = volume.disk.heal();
            let info = run(&["info", "--json"], volume.disk.image());
            let info: serde_json::Value = serde_json::from_slice(&info.stdout).expect("it is JSON");
            if stopped.status.success() {
                assert_eq!((failed, &info["superblock"]["state"]), (0, &"clean".into()), "{place}");
                continue;
            }
            failures += 1;
            assert_eq!(stopped.status.code(), Some(1), "{place}");
            let said = text(&stopped);
            assert!(said.contains(says) && said.contains("cffs fsck -p"), "{place}");
            let recovery = run(&["fsck", "-p"], volume.disk.image());
            assert!(matches!(recovery.status.code(), Some(0 | 1)), "{}", text(&recovery));
        }
        assert!(failures > 0, "{fault:?}: nothing failed");
    }
}

#[test]
fn a_stopped_server_says_what_is_lost_on_a_device_that_fails() {
    if can_mount() {
        stop_servers(|image| run(&["serve", "--stop"], image), "no change is lost");
    }
}

/// In another network namespace, the sockets of servers cannot be reached.
#[test]
fn the_image_shows_whether_a_server_that_cannot_be_queried_lost_changes() {
    if !can_mount() || !rustix::process::geteuid().is_root() {
        return;
    }
    let stop = |image: PathBuf| {
        let mut command = Command::new("unshare");
        command.args(["--net", CFFS, "serve", "--stop"]).arg(image);
        command.stdin(Stdio::null()).output().expect("it starts")
    };
    stop_servers(stop, "complete");
}

#[test]
fn sync_says_what_is_lost_on_a_device_that_fails() {
    for options in mounts() {
        for fault in [Fault::Write, Fault::Flush] {
            table(fault, options, 1, |volume| run(&["sync"], volume.dir()));
        }
    }
}

#[test]
fn remount_says_what_is_lost_on_a_device_that_fails() {
    if !rustix::process::geteuid().is_root() {
        eprintln!("not run: remounting needs root");
        return;
    }
    for options in mounts() {
        for fault in [Fault::Write, Fault::Flush] {
            table(fault, options, 32, |volume| volume.mount("remount,ro"));
        }
    }
}

/// The kernel reports the failure to syncfs(2).
#[test]
fn syncfs_2_fails_on_a_device_that_failed() {
    let old = ["5.", "6.1.", "6.6.", "6.12."];
    let release = rustix::system::uname().release().to_string_lossy().into_owned();
    if !can_mount()
        || !rustix::process::geteuid().is_root()
        || old.iter().any(|v| release.starts_with(v))
    {
        eprintln!("not run: it needs root and Linux 6.18");
        return;
    }
    let volume = Volume::mounted("commit=3600");
    fs::write(volume.dir().join("f"), CONTENTS).expect("written to memory");
    volume.disk.fail(Fault::Write, 0);
    let root = fs::File::open(volume.dir()).expect("open");
    assert!(rustix::fs::syncfs(&root).is_err());
    drop(root);
    assert_eq!(run(&["umount"], volume.dir()).status.code(), Some(1));
}

/// Once a write has failed, every later command reports it as well, even if everything is in memory.
#[test]
fn a_volume_that_refuses_changes_is_not_synced_and_says_why() {
    for options in mounts() {
        let volume = Volume::mounted(options);
        fs::write(volume.dir().join("f"), CONTENTS).expect("written to memory");
        volume.disk.fail(Fault::Write, 0);
        for command in ["sync", "sync", "umount"] {
            let output = run(&[command], volume.dir());
            let said = text(&output);
            assert_eq!(output.status.code(), Some(1), "{command}: {said}");
            assert!(said.contains("changes of the last") && said.contains("are lost"), "{said}");
            // The device recovers, but the changes do not.
            volume.disk.heal();
        }
        assert!(!volume.is_mounted());
        assert!(!volume.has_file());
        let log = fs::read_to_string(volume.mountpoint.0.path().join("log")).expect("there");
        assert!(log.contains("not closed") && log.contains(" lost"), "{log}");
    }
}

/// The superblock said "clean" when writes began to fail, and still does afterwards.
#[test]
fn the_loss_of_a_file_made_after_a_checkpoint_is_reported() {
    for options in ["clean=1", "clean=1,fuseblk=no"] {
        if !can_mount() {
            return;
        }
        let volume = Volume::mounted(&format!("{options},commit=3600"));
        fs::write(volume.dir().join("before"), b"x").expect("written");
        succeed(Command::new(CFFS).arg("sync").arg(volume.dir()));
        let state = || {
            let info = run(&["info"], volume.dir());
            String::from_utf8_lossy(&info.stdout).into_owned()
        };
        while !state().contains("clean") {
            std::thread::sleep(Duration::from_millis(50));
        }
        volume.disk.fail(Fault::Write, 0);
        fs::write(volume.dir().join("f"), CONTENTS).expect("written to memory");
        let output = run(&["umount"], volume.dir());
        assert_eq!(output.status.code(), Some(1), "{}", text(&output));
        assert!(text(&output).contains(" lost"), "{}", text(&output));
        assert!(!volume.has_file());
    }
}

/// A volume that needs recovery, on a device that fails at each of its steps.
#[test]
fn mount_does_not_succeed_over_a_recovery_that_failed() {
    if !can_mount() {
        return;
    }
    for fault in [Fault::Read, Fault::Write, Fault::Flush] {
        let mut failures = 0;
        for after in STEPS {
            let volume = Volume::mounted("clean=never");
            fs::write(volume.dir().join("f"), CONTENTS).expect("written");
            succeed(Command::new(CFFS).arg("sync").arg(volume.dir()));
            volume.kill_server();
            volume.disk.fail(fault, after);
            let output = volume.mount("clean=never");
            let place = format!("{fault:?} after {after}: {}", text(&output));
            if output.status.success() {
                // Without a failing read, the file exists.
                volume.disk.heal();
                assert_eq!(fs::read(volume.dir().join("f")).expect("read"), CONTENTS, "{place}");
                volume.kill_server();
            } else {
                failures += 1;
                assert_eq!(output.status.code(), Some(32), "{place}");
                assert!(!text(&output).is_empty() && !volume.is_mounted(), "{place}");
            }
            assert!(volume.has_file(), "{place}");
        }
        assert!(failures > 0, "{fault:?}: nothing failed");
    }
}

/// Regression: an unmount hung for two minutes without any message.
#[test]
fn a_device_that_hangs_is_named_in_the_log_and_to_waiting_commands() {
    for options in mounts() {
        let volume = Volume::mounted(&format!("{options},stall=1"));
        fs::write(volume.dir().join("f"), CONTENTS).expect("written to memory");
        let log = || fs::read_to_string(volume.mountpoint.0.path().join("log")).expect("there");
        let log_says = |parts: &[&str]| {
            let begun = std::time::Instant::now();
            while !log().lines().any(|line| parts.iter().all(|part| line.contains(part))) {
                assert!(begun.elapsed() < Duration::from_secs(60), "{parts:?}: {}", log());
                std::thread::sleep(Duration::from_millis(20));
            }
        };
        let start = |command: &str| {
            let mut child = Command::new(CFFS);
            let child = child.arg(command).arg(volume.dir()).stdin(Stdio::null());
            child.stderr(Stdio::piped()).spawn().expect("it starts")
        };
        volume.disk.hold(true);
        let sync = start("sync");
        log_says(&[
            "no progress for",
            "waiting for",
            "the device has not answered: flush for",
            "requests wait: getxattr of inode",
        ]);
        volume.disk.hold(false);
        assert!(sync.wait_with_output().expect("it ends").status.success());
        log_says(&["progress resumed after"]);

        fs::write(volume.dir().join("g"), CONTENTS).expect("written to memory");
        volume.disk.hold(true);
        let umount = start("umount");
        log_says(&["the volume has been closing for", "the device has not answered: flush for"]);
        std::thread::sleep(Duration::from_millis(2500));
        volume.disk.hold(false);
        let ended = umount.wait_with_output().expect("it ends");
        let said = text(&ended);
        assert!(ended.status.success(), "{said}");
        assert!(said.contains("waiting until") && said.contains("flush for"), "{said}");
        assert!(volume.has_file());
    }
}

/// Regression: the second command printed "Invalid argument".
#[test]
fn one_of_two_regroupings_is_refused_and_says_how_to_end_the_other() {
    let Some(options) = mounts().pop() else { return };
    let volume = Volume::mounted(options);
    fs::write(volume.dir().join("f"), CONTENTS).expect("written to memory");
    volume.disk.hold(true);
    let start = || {
        let mut child = Command::new(CFFS);
        let child = child.arg("regroup").arg(volume.dir()).stdin(Stdio::null());
        child.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().expect("it starts")
    };
    let mut running = vec![start(), start()];
    let ended = |child: &mut std::process::Child| child.try_wait().expect("waited").is_some();
    let begun = std::time::Instant::now();
    let first = loop {
        let first = running.iter_mut().position(ended);
        if first.is_some() || begun.elapsed() > Duration::from_secs(60) {
            break first;
        }
        std::thread::sleep(Duration::from_millis(5));
    };
    volume.disk.hold(false);
    let refused = running.remove(first.expect("one is refused while the other waits"));
    let refused = refused.wait_with_output().expect("it ended");
    let said = text(&refused);
    assert_eq!(refused.status.code(), Some(1), "{said}");
    assert!(said.contains("a regrouping is under way; cffs regroup --stop ends it"), "{said}");
    let other = running.remove(0).wait_with_output().expect("it ends");
    assert!(other.status.success(), "{}", text(&other));
}
