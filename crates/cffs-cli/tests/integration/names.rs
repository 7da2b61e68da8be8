//! A mounted volume has many names: every command takes each.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::harness::{Scratch, can_mount, fail, succeed};

/// Commands that must take each name of a mounted volume. `NAME` stands for the name.
const COMMANDS: [&[&str]; 14] = [
    &["stats", "--json", "NAME"],
    &["sync", "NAME"],
    &["info", "--json", "NAME"],
    &["layout", "NAME"],
    &["layout", "--json", "NAME", "/src"],
    &["regroup", "-n", "NAME"],
    &["regroup", "--stop", "NAME"],
    &["scrub", "--rate", "0", "NAME"],
    &["fsck", "-n", "NAME"],
    &["fsck", "--online", "NAME"],
    &["trim", "NAME"],
    &["grow", "NAME"],
    &["tune", "--label", "named", "NAME"],
    &["trace", "record", "--seconds", "0", "-o", "/dev/null", "NAME"],
];

fn run(scratch: &Scratch, arguments: &[&str], name: &Path) -> Command {
    let mut command = scratch.cffs([]);
    for argument in arguments {
        match *argument {
            "NAME" => command.arg(name),
            argument => command.arg(argument),
        };
    }
    command
}

/// Fills a mounted volume.
fn fill(root: &Path) {
    fs::create_dir(root.join("src")).expect("made");
    fs::write(root.join("src/file"), b"contents").expect("written");
    symlink("/src/file", root.join("link")).expect("linked");
}

fn source_shown(scratch: &Scratch) -> PathBuf {
    let table = fs::read_to_string("/proc/self/mountinfo").expect("readable");
    let directory = scratch.mountpoint().display().to_string();
    let line = table.lines().find(|line| line.contains(&directory)).expect("mounted");
    let (_, rest) = line.split_once(" - ").expect("a source");
    PathBuf::from(rest.split(' ').nth(1).expect("a source"))
}

/// `stats`, `sync`, `layout`, `ls` and `fsck` said of the image of a mounted volume that it is not mounted,
/// or refused it.
#[test]
fn every_command_takes_every_name_of_a_mounted_volume() {
    if !can_mount() {
        return;
    }
    let scratch = Scratch::with_image();
    scratch.mount("rw");
    let mountpoint = scratch.mountpoint();
    fill(&mountpoint);
    let (link, hard) = (scratch.path().join("link.cffs"), scratch.path().join("hard.cffs"));
    symlink(scratch.image(), &link).expect("linked");
    fs::hard_link(scratch.image(), &hard).expect("linked");
    let names = [scratch.image(), link, hard, source_shown(&scratch), mountpoint.clone()];
    for name in &names {
        for arguments in COMMANDS {
            succeed(&mut run(&scratch, arguments, name));
        }
        let ls = succeed(&mut run(&scratch, &["ls", "-l", "-R", "NAME", "/"], name));
        assert!(ls.contains("/src/file\n") && ls.contains("/link -> /src/file\n"), "{ls}");
        assert_eq!(succeed(&mut run(&scratch, &["cat", "NAME", "/link"], name)), "contents");
    }
    // With a path it is the directory of the volume that every name leads to.
    let json = ["layout", "--json", "NAME", "/src"];
    let [by_image, by_directory] =
        [&names[0], &mountpoint].map(|name| succeed(&mut run(&scratch, &json, name)));
    assert_eq!(by_image, by_directory);
    // What changes the volume below the mount is refused, with the way out.
    for name in &names {
        let said = fail(8, &mut run(&scratch, &["fsck", "-p", "NAME"], name));
        let advice = format!("mounted on {}", mountpoint.display());
        assert!(said.contains(&advice) && said.contains("cffs umount"), "{said}");
    }
    let listed = succeed(&mut run(&scratch, &["ls", "-R", "NAME", "/"], &names[0]));
    succeed(&mut run(&scratch, &["umount", "NAME"], &names[1]));
    // The same lists come from the image itself.
    assert_eq!(succeed(&mut run(&scratch, &["ls", "-R", "NAME", "/"], &names[0])), listed);
    let said = fail(1, &mut run(&scratch, &["stats", "NAME"], &names[0]));
    assert!(said.contains("not a C-FFS volume that is mounted or served"), "{said}");
}

/// A volume in a store was known by its directory alone while it was mounted.
#[test]
fn a_mounted_volume_in_a_store_is_known_by_its_url() {
    if !can_mount() {
        return;
    }
    let scratch = Scratch::new();
    let url = PathBuf::from(format!("file://{}", scratch.path().join("tree").display()));
    succeed(&mut run(&scratch, &["mkfs", "-q", "--size", "1G", "NAME"], &url));
    let log = scratch.log_option();
    let mut mount = run(&scratch, &["mount", "-o", &log, "NAME"], &url);
    succeed(mount.arg(scratch.mountpoint()));
    fill(&scratch.mountpoint());
    let slash = PathBuf::from(format!("{}/", url.display()));
    for name in [&url, &slash, &scratch.mountpoint()] {
        for arguments in [
            &["stats", "--json", "NAME"][..],
            &["sync", "NAME"],
            &["info", "NAME"],
            &["layout", "NAME"],
            &["fsck", "-n", "NAME"],
            &["tune", "--label", "named", "NAME"],
        ] {
            succeed(&mut run(&scratch, arguments, name));
        }
        // Not yet in the store, unless it was synced.
        assert_eq!(succeed(&mut run(&scratch, &["cat", "NAME", "/link"], name)), "contents");
    }
    succeed(&mut run(&scratch, &["umount", "NAME"], &url));
    assert_eq!(succeed(&mut run(&scratch, &["cat", "NAME", "/link"], &url)), "contents");
}

/// The image of a mounted volume that lies on another mounted volume is itself, and not a file of that.
#[test]
fn an_image_on_a_mounted_volume_is_a_volume_of_its_own() {
    if !can_mount() {
        return;
    }
    let scratch = Scratch::with_image();
    scratch.mount("rw");
    let inner = scratch.mountpoint().join("inner.cffs");
    succeed(&mut run(&scratch, &["mkfs", "-q", "--size", "32M", "-L", "inner", "NAME"], &inner));
    assert_eq!(succeed(&mut run(&scratch, &["ls", "NAME"], &inner)), "");
    let info = succeed(&mut run(&scratch, &["info", "NAME"], &inner));
    assert!(info.contains("inner") && info.contains("32 MiB"), "{info}");
    succeed(&mut run(&scratch, &["fsck", "-f", "NAME"], &inner));
    scratch.umount();
}
