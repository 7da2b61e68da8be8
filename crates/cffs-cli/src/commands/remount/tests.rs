use std::path::PathBuf;

use rustix::mount::MountFlags;

use super::{NOSYMFOLLOW, changed};
use crate::mount_options::Flags;
use crate::mounts::Mounted;

fn mounted(options: &str) -> Mounted {
    Mounted {
        source: PathBuf::from("/image"),
        shown_source: PathBuf::from("/dev/loop0"),
        directory: PathBuf::from("/mnt"),
        device: (7, 0),
        options: options.split(',').map(String::from).collect(),
        is_read_only: false,
    }
}

#[test]
fn nothing_changes_that_was_not_asked_for() {
    let hardened = mounted("rw,nosuid,nodev,noexec,nosymfollow,noatime");
    let all = MountFlags::NOSUID | MountFlags::NODEV | MountFlags::NOEXEC | NOSYMFOLLOW;
    assert_eq!(changed(&hardened, &Flags::default()), all);
    let ro = Flags { read_only: Some(true), ..Flags::default() };
    assert_eq!(changed(&hardened, &ro), all | MountFlags::RDONLY);
    let exec = Flags { exec: Some(true), ..Flags::default() };
    assert_eq!(changed(&hardened, &exec), all - MountFlags::NOEXEC);
    assert_eq!(changed(&mounted("rw,relatime"), &Flags::default()), MountFlags::empty());
}

#[test]
fn what_was_asked_for_changes() {
    let plain = mounted("ro,relatime");
    let asked = Flags {
        read_only: Some(false),
        suid: Some(false),
        dev: Some(false),
        exec: Some(false),
        symlink_follow: Some(false),
    };
    let all = MountFlags::NOSUID | MountFlags::NODEV | MountFlags::NOEXEC | NOSYMFOLLOW;
    assert_eq!(changed(&plain, &asked), all);
    assert_eq!(changed(&plain, &Flags::default()), MountFlags::RDONLY);
}
