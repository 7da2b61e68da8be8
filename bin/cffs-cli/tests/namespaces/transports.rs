//! The transports of requests, io_uring and `/dev/fuse`, and the messages about them.

use std::fs;
use std::process::{Command, Stdio};

use crate::harness::{CFFS, Scratch, can_mount, fail, succeed, take_turns};

const SWITCH: &str = "/sys/module/fuse/parameters/enable_uring";

/// Whether the kernel supports FUSE over io_uring and allows enabling it; prints a line if not.
fn can_have_rings() -> bool {
    let can =
        can_mount() && rustix::process::geteuid().is_root() && fs::exists(SWITCH).unwrap_or(false);
    if !can {
        eprintln!("not run: it needs root, and a kernel with io_uring for FUSE");
    }
    can
}

fn transport(scratch: &Scratch) -> String {
    let info = succeed(scratch.cffs(["info", "--json"]).arg(scratch.mountpoint()));
    let info: serde_json::Value = serde_json::from_str(&info).expect("it is JSON");
    info["server"]["transport"].as_str().expect("it is text").to_owned()
}

fn works(scratch: &Scratch) {
    let dir = scratch.mountpoint();
    fs::write(dir.join("f"), [1; 10_000]).expect("written");
    assert_eq!(fs::read(dir.join("f")).expect("read"), [1; 10_000]);
    fs::remove_file(dir.join("f")).expect("removed");
}

#[test]
fn each_transport_can_be_requested_and_is_reported() {
    let _turn = take_turns();
    if !can_have_rings() {
        return;
    }
    let scratch = Scratch::with_image();
    for (option, expected) in [("auto", "io_uring"), ("rings", "io_uring"), ("dev", "/dev/fuse")] {
        let mut command = scratch.mount_command(&format!("transport={option}"));
        let output = command.arg("-v").output().expect("it starts");
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success() && said.contains(expected), "{option}: {said}");
        assert!(transport(&scratch).starts_with(expected), "{option}");
        let stats = succeed(scratch.cffs(["stats", "--json"]).arg(scratch.mountpoint()));
        assert!(stats.contains(&format!("\"transport\": \"{expected}")), "{stats}");
        works(&scratch);
        scratch.umount();
    }
    scratch.assert_clean();
}

/// Mounts in a mount namespace in which the kernel's switch appears to have this value. The actual switch is
/// unchanged. Returns the output, the value of the switch afterwards, and the info.
fn with_switch(
    scratch: &Scratch,
    value: &str,
    bind: &str,
    options: &str,
) -> (String, String, String) {
    let fake = scratch.path().join("switch");
    fs::write(&fake, value).expect("written");
    let script = format!(
        "mount --bind \"$1\" {SWITCH}; {bind}
         \"$0\" mount -o \"$4\" \"$2\" \"$3\" && \"$0\" info --json \"$3\"
         code=$?; \"$0\" umount \"$3\" 2>/dev/null; exit $code"
    );
    let mut command = Command::new("unshare");
    command.args(["-m", "--propagation", "private", "sh", "-c", &script, CFFS]).arg(&fake);
    command.arg(scratch.image()).arg(scratch.mountpoint());
    command.arg(format!("{options},{}", scratch.log_option())).stdin(Stdio::null());
    let output = command.output().expect("it starts");
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    let info = String::from_utf8_lossy(&output.stdout).into_owned();
    (said, fs::read_to_string(fake).expect("readable"), info)
}

#[test]
fn a_mount_by_root_switches_the_rings_on_and_says_so_once() {
    let _turn = take_turns();
    if !can_have_rings() {
        return;
    }
    let scratch = Scratch::with_image();
    // If it is off in the kernel, it stays off, and the mount detects that.
    let (said, switch, _) = with_switch(&scratch, "N\n", "", "transport=auto");
    assert_eq!(switch.trim(), "Y");
    assert_eq!(said.matches("enabled FUSE over io_uring").count(), 1, "{said}");
    let (said, switch, _) = with_switch(&scratch, "Y\n", "", "transport=auto");
    assert!(switch.trim() == "Y" && !said.contains("switched"), "{said}");
    let (said, switch, info) = with_switch(&scratch, "N\n", "", "transport=dev");
    assert!(switch.trim() == "N" && !said.contains("switched"), "{said}");
    assert!(info.contains("/dev/fuse") && info.contains("not asked for"), "{info}");
    scratch.assert_clean();
}

#[test]
fn without_the_switch_dev_fuse_serves_and_the_reason_is_shown() {
    let _turn = take_turns();
    if !can_have_rings() {
        return;
    }
    let scratch = Scratch::with_image();
    let keep_off = format!("mount -o remount,bind,ro {SWITCH};");
    let (said, switch, info) = with_switch(&scratch, "N\n", &keep_off, "transport=auto");
    assert_eq!(switch.trim(), "N");
    assert!(info.contains("/dev/fuse") && info.contains("enable_uring is N"), "{said} {info}");
    let (said, _, info) = with_switch(&scratch, "N\n", &keep_off, "transport=rings");
    assert!(said.contains("enable_uring is N") && info.is_empty(), "{said} {info}");
    scratch.assert_clean();
}

/// The kernel has a queue for each core of the machine, whichever the server may use.
#[test]
fn a_server_that_may_use_one_core_serves_all_of_them() {
    let _turn = take_turns();
    if !can_have_rings() {
        return;
    }
    let scratch = Scratch::with_image();
    let mut command = Command::new("taskset");
    command.args(["--cpu-list", "0", CFFS, "mount", "-o", "transport=rings", "-o"]);
    command.arg(scratch.log_option()).arg(scratch.image()).arg(scratch.mountpoint());
    succeed(command.stdin(Stdio::null()));
    assert!(transport(&scratch).starts_with("io_uring, 1 core,"), "{}", transport(&scratch));
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    for core in 0..cores {
        let file = scratch.mountpoint().join(format!("made on {core}"));
        let mut command = Command::new("taskset");
        succeed(command.args(["--cpu-list", &core.to_string(), "touch"]).arg(&file));
        assert!(file.exists());
    }
    works(&scratch);
    scratch.umount();
    scratch.assert_clean();
}

#[test]
fn a_transport_that_does_not_exist_is_refused() {
    let _turn = take_turns();
    let scratch = Scratch::new();
    let said = fail(32, &mut scratch.mount_command("transport=pigeon"));
    assert!(said.contains("'pigeon'"), "{said}");
}
