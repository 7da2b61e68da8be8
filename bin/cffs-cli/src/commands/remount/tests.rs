use std::path::PathBuf;

use rustix::mount::MountFlags;

use super::{NOSYMFOLLOW, changed, check_kept};
use crate::mount_options::{Flags, MountOptions};
use crate::mounts::Mounted;

fn mounted(options: &str) -> Mounted {
    Mounted {
        id: 0,
        source: PathBuf::from("/image"),
        shown_source: PathBuf::from("/dev/loop0"),
        directory: PathBuf::from("/mnt"),
        device: (7, 0),
        options: options.split(',').map(String::from).collect(),
        is_read_only: false,
        user: None,
    }
}

#[test]
fn only_requested_attributes_change() {
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
fn requested_attributes_change() {
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

/// Regression: a remount accepted an option that was missing from a second list, and changed nothing.
#[test]
fn another_value_of_every_option_that_the_server_keeps_is_refused() {
    let others = [
        ("allow_other", "noallow_other"),
        ("atime", "noatime"),
        ("cache", "cache=64M"),
        ("cache-dir", "cache-dir=/elsewhere=1G"),
        ("clean", "clean=never"),
        ("clean_share", "clean_share=11"),
        ("commit", "commit=0.5"),
        ("dirty", "dirty=1M"),
        ("discard", "discard"),
        ("errors", "errors=remount-ro"),
        ("follow", "follow"),
        ("fuseblk", "fuseblk=no"),
        ("journal", "journal=off"),
        ("journal-device", "journal-device=/elsewhere"),
        ("key-file", "key-file=/elsewhere"),
        ("logfile", "logfile=/elsewhere"),
        ("regroup", "regroup=idle"),
        ("soft", "soft=9"),
        ("staging", "staging=/elsewhere"),
        ("stall", "stall=31"),
        ("sync", "dirsync"),
        ("takeover", "takeover"),
        ("transport", "transport=rings"),
    ];
    let server = MountOptions::for_user(true).kept();
    let names: Vec<&str> = server.keys().map(String::as_str).collect();
    assert_eq!(names, others.map(|(name, _)| name), "each option of the table has a case here");
    for (name, other) in others {
        let mut wanted = MountOptions::for_user(true);
        wanted.apply(&[String::from(other)], false).expect("known");
        let given = wanted.kept_and_given();
        let refused = check_kept(&server, &given).expect_err(name).to_string();
        assert!(refused.contains(&given[name]) && refused.contains("unmount it"), "{refused}");
        check_kept(&wanted.kept(), &given).expect("the server has this value");
    }
}

/// The kernel shows `relatime` for a mount with `strictatime`, and mount(8) passes that back.
#[test]
fn relatime_is_accepted_from_the_kernel() {
    let options = |list: &str| {
        let mut options = MountOptions::for_user(true);
        options.apply(&[String::from(list)], false).expect("known");
        options
    };
    let server = options("strictatime").kept();
    check_kept(&server, &options("relatime").kept_and_given()).expect("as the kernel shows it");
    check_kept(&options("noatime").kept(), &options("relatime").kept_and_given())
        .expect_err("the kernel shows noatime");
}
