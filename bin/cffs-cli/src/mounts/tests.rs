use std::path::{Path, PathBuf};
use std::process::Command;

use super::{Mounted, was_killed};

fn parse_line(line: &[u8]) -> Option<Mounted> {
    mount_list::parse(line).find_map(Mounted::of)
}

#[test]
fn a_line_of_the_mount_table_is_parsed() {
    let line = [
        r"96 25 0:41 / /mnt/with\040space rw,nosuid shared:5 master:1 - ",
        r"fuse.cffs /var/a\134b.cffs ro,user_id=0",
    ]
    .concat();
    let mounted = parse_line(line.as_bytes()).expect("it is a C-FFS mount");
    assert_eq!(mounted.directory, Path::new("/mnt/with space"));
    assert_eq!(mounted.source, Path::new(r"/var/a\b.cffs"));
    assert_eq!(mounted.device, (0, 41));
    assert!(mounted.has("nosuid") && !mounted.has("nodev"));
    assert!(mounted.is_read_only && !mounted.has("ro"));
}

#[test]
fn a_mounted_block_device_is_parsed() {
    let line = b"96 25 7:3 / /mnt rw,relatime - fuseblk.cffs /dev/loop3 rw,user_id=0,blksize=4096";
    let mounted = parse_line(line).expect("it is a C-FFS mount");
    assert_eq!(mounted.shown_source, Path::new("/dev/loop3"));
    assert_eq!(mounted.device, (7, 3));
    assert!(!mounted.is_read_only);
}

#[test]
fn other_mounts_are_skipped() {
    for line in [
        &b"25 1 254:0 / / rw,relatime - ext4 /dev/root rw"[..],
        b"96 25 0:41 / /mnt rw - fuse.sshfs host: rw",
        b"96 25 8:1 / /mnt rw - fuseblk /dev/sda1 rw",
    ] {
        assert_eq!(parse_line(line), None);
    }
}

#[test]
fn a_loop_device_that_was_reattached_is_detected() {
    if !rustix::process::geteuid().is_root() {
        return;
    }
    let scratch = tempfile::tempdir().expect("made");
    let image = scratch.path().join("image").canonicalize().unwrap_or(scratch.path().join("image"));
    std::fs::write(&image, [0; 4096]).expect("written");
    let attached = Command::new("losetup").args(["--find", "--show"]).arg(&image).output();
    let device = String::from_utf8(attached.expect("it starts").stdout).expect("a path");
    let minor = device.trim().trim_start_matches("/dev/loop").parse().expect("a loop device");
    let line = b"96 25 7:3 / /mnt rw,relatime - fuseblk.cffs /dev/loop3 rw,user_id=0,blksize=4096";
    let before = parse_line(line).expect("it is a C-FFS mount");
    let mounted = |source| Mounted { device: (7, minor), source, ..before.clone() };
    let is_other = [image, PathBuf::from("/another")].map(|it| mounted(it).has_another_image());
    let detached = Command::new("losetup").args(["--detach", device.trim()]).status();
    assert!(detached.expect("it starts").success());
    assert_eq!(is_other, [false, true]);
}

/// Regression: an unmount waited half a second for a killed process, and then failed.
#[test]
fn a_killed_process_is_about_to_end() {
    let status = |own: &str, shared: &str| {
        format!("Name:\tcp\nSigQ:\t0/31\nSigPnd:\t{own}\nShdPnd:\t{shared}\nSigBlk:\t0100\n")
    };
    let (none, kill, interrupt) = ("0000000000000000", "0000000000000100", "0000000000000002");
    assert!(was_killed(&status(kill, none)));
    assert!(was_killed(&status(none, "0000000000000102")));
    assert!(!was_killed(&status(none, none)));
    assert!(!was_killed(&status(none, interrupt)), "it may handle that");
}
