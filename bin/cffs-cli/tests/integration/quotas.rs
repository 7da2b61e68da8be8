//! `cffs quota`: on images and mounts, and what programs get of it.

use std::fs;
use std::io::ErrorKind;
use std::process::Command;

use serde_json::Value;

use crate::harness::{Scratch, can_mount, fail, succeed};

fn quota(scratch: &Scratch, arguments: &[&str]) -> String {
    succeed(scratch.cffs(["quota"]).args(arguments))
}

/// `cffs quota remove` says the same on images and mounts of a directory without a quota of its own.
fn refuse_removal(scratch: &Scratch, target: &[&str]) {
    let said = fail(1, scratch.cffs(["quota", "remove"]).args(target));
    assert!(said.contains(": no quota was set on it; cffs quota list shows"), "{said}");
}

/// The bytes and the files that `du` finds.
fn du(directory: &std::path::Path) -> (u64, u64) {
    let count = |flag: &str| {
        let said = succeed(Command::new("du").args(["-s", flag]).arg(directory));
        said.split_whitespace().next().expect("a number").parse::<u64>().expect("a number")
    };
    (count("--block-size=1"), count("--inodes"))
}

#[test]
fn a_quota_of_an_image_is_set_shown_and_removed() {
    let scratch = Scratch::with_image();
    let image = scratch.image();
    let image = image.to_str().expect("UTF-8");
    let source = scratch.path().join("source");
    fs::create_dir(&source).expect("made");
    fs::write(source.join("f"), vec![1; 100_000]).expect("written");
    succeed(scratch.cffs(["import", "-q"]).arg(image).arg(&source).arg("/d"));
    assert_eq!(quota(&scratch, &["list", image]), "");
    let said = fail(1, scratch.cffs(["quota", "get"]).args([image, "/d"]));
    assert!(said.contains(": /d: neither it nor a directory above has a quota"), "{said}");
    let said = fail(2, scratch.cffs(["quota", "set"]).args([image, "/d"]));
    assert!(said.contains("--size") && said.contains("--files"), "{said}");
    // Regression: 0 set a limit of no bytes.
    for limit in [["--size", "0"], ["--size", "0.0G"], ["--files", "0"], ["--files", "0k"]] {
        let said = fail(2, scratch.cffs(["quota", "set"]).args([image, "/d"]).args(limit));
        assert!(said.contains("for no limit, write none"), "{said}");
    }
    quota(&scratch, &["set", image, "/d", "--size", "150k", "--files", "1k"]);
    let shown: Value =
        serde_json::from_str(&quota(&scratch, &["get", "--json", image, "/d/f"])).expect("JSON");
    assert_eq!(shown["directory"], "/d");
    assert_eq!(
        (shown["limit_bytes"].as_u64(), shown["limit_files"].as_u64()),
        (Some(150 << 10), Some(1000))
    );
    assert_eq!(shown["used_files"], 2);
    assert!(shown["used_bytes"].as_u64() >= Some(100_000));
    let said = fail(1, scratch.cffs(["import", "-q"]).arg(image).arg(&source).arg("/d/again"));
    assert!(said.contains("disk quota exceeded"), "{said}");
    quota(&scratch, &["set", image, "/d", "--size", "none"]);
    let listed = quota(&scratch, &["list", image]);
    assert!(listed.contains("/d") && listed.contains("1000"), "{listed}");
    succeed(scratch.cffs(["import", "-q"]).arg(image).arg(&source).arg("/d/again"));
    refuse_removal(&scratch, &[image, "/d/again"]);
    quota(&scratch, &["remove", image, "/d"]);
    refuse_removal(&scratch, &[image, "/d"]);
    scratch.assert_clean();
}

#[test]
fn a_quota_limits_a_mounted_volume() {
    if !can_mount() {
        return;
    }
    let scratch = Scratch::with_image();
    scratch.mount("rw");
    let mount = scratch.mountpoint();
    let dir = mount.join("d");
    let path = dir.to_str().expect("UTF-8");
    fs::create_dir_all(dir.join("sub")).expect("made");
    fs::write(dir.join("sub/f"), vec![1; 100_000]).expect("written");
    quota(&scratch, &["set", path, "--size", "1M", "--files", "10"]);
    let used = |path: &str| {
        let shown = quota(&scratch, &["get", "--json", path]);
        let shown: Value = serde_json::from_str(&shown).expect("JSON");
        (
            shown["used_bytes"].as_u64().expect("a number"),
            shown["used_files"].as_u64().expect("one"),
        )
    };
    assert_eq!(used(path), du(&dir));
    // Regression: only directories could be named.
    assert_eq!(used(&format!("{path}/sub/f")), du(&dir));
    let said = fail(1, scratch.cffs(["quota", "get"]).arg(dir.join("none")));
    assert!(said.contains("No such file or directory"), "{said}");
    let df = succeed(Command::new("df").args(["--block-size=1", "--output=size"]).arg(&dir));
    assert_eq!(df.split_whitespace().last(), Some("1048576"), "{df}");
    let refused = fs::write(dir.join("large"), vec![2; 2 << 20]).expect_err("it does not fit");
    assert_eq!(refused.kind(), ErrorKind::QuotaExceeded);
    assert!(fs::metadata(dir.join("large")).expect("made").len() < 1 << 20);
    // A program that is attached to the server.
    let source = scratch.path().join("source");
    fs::write(&source, vec![3; 2 << 20]).expect("written");
    let mut import = scratch.cffs(["import", "-q"]);
    let said = fail(1, import.arg(&mount).arg(&source).arg("/d/imported"));
    assert!(said.contains("disk quota exceeded"), "{said}");
    let _ = fs::remove_file(dir.join("imported"));
    fs::remove_file(dir.join("large")).expect("removed");
    fs::write(dir.join("next"), vec![2; 800_000]).expect("the removal makes room");
    for number in 0..6 {
        fs::write(dir.join(number.to_string()), "x").expect("made");
    }
    let refused = fs::write(dir.join("more"), "x").expect_err("too many files");
    assert_eq!(refused.kind(), ErrorKind::QuotaExceeded);
    assert_eq!(used(path), du(&dir));
    let (name, set) = (mount.to_str().expect("UTF-8"), ["quota", "set", "--files", "9"]);
    let said = fail(1, scratch.cffs(set).args([name, "d/sub/f"]));
    assert!(said.contains(": d/sub/f: it is not a directory; a quota belongs to"), "{said}");
    let said = fail(1, scratch.cffs(set).arg(dir.join("sub/f")));
    assert!(said.contains("is a file on the volume that is mounted on"), "{said}");
    let said = fail(1, scratch.cffs(set).arg(scratch.path()));
    assert!(said.contains("mounted or served; name a directory of a mounted volume"), "{said}");
    let log = fs::read_to_string(scratch.path().join("log")).expect("written");
    assert!(log.contains("was refused") && !log.contains("ERROR"), "{log}");
    let moved = fs::rename(dir.join("sub"), mount.join("sub")).expect_err("a directory");
    assert_eq!(moved.kind(), ErrorKind::CrossesDevices);
    fs::rename(dir.join("next"), mount.join("next")).expect("a file");
    let linked = fs::hard_link(dir.join("0"), mount.join("0")).expect_err("a name outside");
    assert_eq!(linked.kind(), ErrorKind::CrossesDevices);
    assert_eq!(used(path), du(&dir));
    if rustix::process::geteuid().is_root() {
        let said = fail(1, scratch.cffs_by_nobody(["quota", "set"]).args([path, "--files", "99"]));
        assert!(said.ends_with(": only root, who mounted the volume, may do this\n"), "{said}");
    }
    scratch.umount();
    let image = scratch.image();
    let listed = quota(&scratch, &["list", "--json", image.to_str().expect("UTF-8")]);
    let listed: Value = serde_json::from_str(&listed).expect("JSON");
    assert_eq!(listed[0]["limit_files"], 10);
    scratch.assert_clean();
    scratch.mount("rw");
    assert_eq!(used(path), du(&dir));
    refuse_removal(&scratch, &[&format!("{path}/sub")]);
    quota(&scratch, &["remove", path]);
    refuse_removal(&scratch, &[path]);
    fs::write(dir.join("more"), vec![1; 2 << 20]).expect("no limit");
    scratch.umount();
    scratch.assert_clean();
}
