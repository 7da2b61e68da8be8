//! `cffs mark` and `cffs changes`: on images, mounts and volumes in stores, and as the list for rsync.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::Command;

use rustix::fs::{Mode, OFlags};
use serde_json::Value;

use crate::harness::{Scratch, assert_one_succeeded, at_once, can_mount, fail, succeed};

/// The lines of a list, in order.
fn sorted(list: &str, end: char) -> Vec<String> {
    let mut lines: Vec<String> = list.split_terminator(end).map(str::to_owned).collect();
    lines.sort();
    lines
}

fn since(scratch: &Scratch, target: &Path, mark: &str) -> Vec<String> {
    sorted(&succeed(scratch.cffs(["changes", "--since", mark]).arg(target)), '\n')
}

#[test]
fn changes_of_an_image_are_listed_for_programs() {
    let scratch = Scratch::with_image();
    let (image, source) = (scratch.image(), scratch.path().join("source"));
    fs::create_dir_all(source.join("a/b")).expect("made");
    for name in ["a/file", "a/b/file", "a/b/other"] {
        fs::write(source.join(name), "first").expect("written");
    }
    let import = |from: &Path, to: &str| {
        succeed(scratch.cffs(["import", "-q"]).arg(&image).arg(from).arg(to));
    };
    import(&source, "/tree");
    succeed(scratch.cffs(["mark"]).arg(&image).arg("first"));
    assert!(since(&scratch, &image, "first").is_empty());
    fs::write(source.join("a/b/# new;\\"), "new").expect("written");
    import(&source.join("a/b/# new;\\"), "/tree/a/b/# new;\\");
    let expected = ["./tree/a/b/", "./tree/a/b/# new;\\"];
    assert_eq!(since(&scratch, &image, "first"), expected);
    let mut nulls = scratch.cffs(["changes", "-0", "--since", "first"]);
    assert_eq!(sorted(&succeed(nulls.arg(&image)), '\0'), expected);
    let mut below = scratch.cffs(["changes", "--json", "--since", "first"]);
    let below = succeed(below.arg(&image).arg("/tree/a"));
    let lines = below.lines().map(|line| serde_json::from_str(line).expect("JSON"));
    let lines: Vec<(String, String)> = lines
        .map(|line: Value| {
            let text = |field: &str| line[field].as_str().expect("text").to_owned();
            (text("path"), text("type"))
        })
        .collect();
    assert!(lines.contains(&("./b/".into(), "directory".into())), "{lines:?}");
    assert!(lines.contains(&("./b/# new;\\".into(), "file".into())), "{lines:?}");
    // In a list of lines, a name with a line break would be two others.
    import(&source.join("a/file"), "/tree/a/two\nlines");
    let said = fail(1, scratch.cffs(["changes", "--since", "first"]).arg(&image));
    assert!(said.contains("use -0"), "{said}");
}

#[test]
fn marks_are_listed_and_removed() {
    let scratch = Scratch::with_image();
    let mark = |name: &str| scratch.cffs(["mark"]).arg(scratch.image()).arg(name).status();
    assert!(mark("one").expect("it starts").success());
    assert!(mark("two").expect("it starts").success());
    let said = fail(1, scratch.cffs(["mark"]).arg(scratch.image()).arg("one"));
    assert!(said.contains("the mark one already exists"), "{said}");
    let said = fail(1, scratch.cffs(["mark"]).arg(scratch.image()).arg("a/b"));
    assert!(said.contains("letters"), "{said}");
    let listed = succeed(scratch.cffs(["mark"]).arg(scratch.image()));
    assert!(listed.lines().count() == 2 && listed.contains("  one\n"), "{listed}");
    succeed(scratch.cffs(["mark", "--remove"]).arg(scratch.image()).arg("one"));
    let listed = succeed(scratch.cffs(["mark", "--json"]).arg(scratch.image()));
    let listed: Value = serde_json::from_str(&listed).expect("JSON");
    assert_eq!(
        (listed[0]["name"].as_str(), listed.as_array().map(Vec::len)),
        (Some("two"), Some(1))
    );
    let said = fail(1, scratch.cffs(["changes", "--since", "one"]).arg(scratch.image()));
    assert!(said.contains("the mark one does not exist"), "{said}");
    let said = fail(1, scratch.cffs(["mark", "--remove"]).arg(scratch.image()).arg("one"));
    assert!(said.contains("the mark one does not exist"), "{said}");
    scratch.assert_clean();
}

#[test]
fn changes_of_a_mounted_volume_are_listed_by_its_server() {
    if !can_mount() {
        return;
    }
    let scratch = Scratch::with_image();
    scratch.mount("rw");
    let mount = scratch.mountpoint();
    fs::create_dir_all(mount.join("a/b/c")).expect("made");
    fs::create_dir(mount.join("d")).expect("made");
    fs::write(mount.join("a/b/file"), "first").expect("written");
    fs::write(mount.join("d/file"), "first").expect("written");
    succeed(scratch.cffs(["mark"]).arg(&mount).arg("one"));
    let said = fail(1, scratch.cffs(["mark"]).arg(&mount).arg("one"));
    assert!(said.contains("the mark one already exists"), "{said}");
    assert!(since(&scratch, &mount, "one").is_empty());
    // Not synced: the list includes it, also what only the kernel has.
    fs::write(mount.join("a/b/file"), "second").expect("written");
    fs::write(mount.join("a/b/c/new"), "new").expect("written");
    assert_eq!(since(&scratch, &mount, "one"), ["./a/b/c/", "./a/b/c/new", "./a/b/file"]);
    assert_eq!(since(&scratch, &mount.join("a/b/c"), "one"), ["./", "./new"]);
    let image = scratch.image();
    assert_eq!(since(&scratch, &image, "one").len(), 3, "the image names its mount");
    let said = fail(1, scratch.cffs(["changes", "--since", "two"]).arg(&mount));
    assert!(said.contains("the mark two does not exist"), "{said}");
    // Regression: another user was told to set a mark, if it did not exist.
    if rustix::process::geteuid().is_root() {
        for name in ["one", "two"] {
            let said = fail(1, scratch.cffs_by_nobody(["changes", "--since", name]).arg(&mount));
            assert!(said.ends_with(": only root, who mounted the volume, may do this\n"), "{said}");
        }
    }
    scratch.umount();
    scratch.mount("rw");
    assert_eq!(since(&scratch, &mount, "one"), ["./a/b/c/", "./a/b/c/new", "./a/b/file"]);
    assert!(succeed(scratch.cffs(["mark"]).arg(&mount)).contains("  one\n"));
    succeed(scratch.cffs(["mark", "--remove"]).arg(&mount).arg("one"));
    assert_eq!(succeed(scratch.cffs(["mark"]).arg(&mount)), "");
    scratch.umount();
    scratch.assert_clean();
}

/// Regression: the kernel found the changes and the server the files, and links led them to different
/// directories, or to none.
#[test]
fn links_of_a_path_lead_changes_and_archives_to_one_directory() {
    if !can_mount() {
        return;
    }
    let scratch = Scratch::with_image();
    scratch.mount("rw");
    let mount = scratch.mountpoint();
    fs::create_dir_all(mount.join("a/b")).expect("made");
    std::os::unix::fs::symlink("a", mount.join("link")).expect("linked");
    std::os::unix::fs::symlink("link/b", mount.join("last")).expect("linked");
    succeed(scratch.cffs(["mark"]).arg(&mount).arg("one"));
    fs::write(mount.join("a/b/new"), "new").expect("written");
    for (path, below) in [("last", ""), ("link/b", ""), ("link", "b\nb/")] {
        let listed = succeed(scratch.cffs(["changes", "--since", "one"]).arg(&mount).arg(path));
        assert!(listed.ends_with("new\n"), "{path}: {listed}");
        let archive = scratch.path().join("archive");
        let mut tar = scratch.cffs(["tar", "--since", "one"]);
        succeed(tar.arg(&mount).arg(path).stdout(fs::File::create(&archive).expect("made")));
        let names = succeed(std::process::Command::new("tar").arg("-tf").arg(&archive));
        assert_eq!(names.replace("/\n", "\n"), format!(".\n{below}new\n"), "{path}");
    }
    scratch.umount();
}

/// Regression: the message was that no volume is mounted, and nothing was listed.
#[test]
fn a_list_of_a_mount_continues_after_a_path_that_is_too_long() {
    if !can_mount() {
        return;
    }
    let scratch = Scratch::with_image();
    scratch.mount("rw");
    let mount = scratch.mountpoint();
    succeed(scratch.cffs(["mark"]).arg(&mount).arg("one"));
    let (name, flags) = ("d".repeat(255), OFlags::RDONLY | OFlags::DIRECTORY);
    let mut dir = rustix::fs::open(&mount, flags, Mode::empty()).expect("opened");
    for _ in 0..20 {
        rustix::fs::mkdirat(&dir, &name, Mode::RWXU).expect("made");
        dir = rustix::fs::openat(&dir, &name, flags, Mode::empty()).expect("opened");
    }
    drop(dir);
    fs::write(mount.join("other"), "contents").expect("written");
    for target in [mount.clone(), scratch.image()] {
        let output = scratch.cffs(["changes", "--since", "one"]).arg(&target).output();
        let output = output.expect("it starts");
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success() && said.contains("more than 4095 bytes"), "{said}");
        assert_eq!(said.lines().count(), 1, "{said}");
        let listed = sorted(&String::from_utf8_lossy(&output.stdout), '\n');
        // The root, 17 directories, of which the last has too long a path, and the file.
        assert_eq!(listed.len(), 19, "{listed:?}");
        assert_eq!(listed.last().map(String::as_str), Some("./other"));
    }
    scratch.umount();
    assert_eq!(since(&scratch, &scratch.image(), "one").len(), 19);
    scratch.assert_clean();
}

#[test]
fn changes_of_a_version_in_a_store_are_listed_while_the_volume_is_in_use() {
    if !can_mount() {
        return;
    }
    let scratch = Scratch::new();
    let url = format!("file://{}", scratch.path().join("store").display());
    let version = format!("{url}@one");
    let run = |arguments: &[&str]| {
        let mut command = scratch.cffs([]);
        command.args(arguments);
        command
    };
    succeed(&mut run(&["mkfs", "-q", "--size", "1G", &url]));
    let mount = scratch.mountpoint();
    let at = mount.to_str().expect("UTF-8");
    succeed(&mut run(&["mount", "-o", &scratch.log_option(), &url, at]));
    fs::create_dir(mount.join("a")).expect("made");
    fs::write(mount.join("a/file"), "first").expect("written");
    succeed(&mut run(&["mark", at, "m"]));
    fs::write(mount.join("a/file"), "second").expect("written");
    succeed(&mut run(&["sync", at]));
    succeed(&mut run(&["snapshot", "create", &version]));
    fs::write(mount.join("later"), "later").expect("written");
    let list =
        |target: &str| sorted(&succeed(&mut run(&["changes", "--since", "m", target])), '\n');
    // A version of a volume in use is as after a crash: all directories are listed.
    let of_version = ["./", "./a/", "./a/file"];
    assert_eq!(list(&version), of_version);
    assert_eq!(list(&url), ["./", "./a/file", "./later"]);
    scratch.umount();
    assert_eq!(list(&version), of_version);
    assert_eq!(list(&url), ["./", "./a/file", "./later"]);
}

/// The commands of the chapter on backups in docs/OPERATING.md, with other paths.
fn recipe(scratch: &Scratch, mount: &Path, backup: &Path, begins: &str) -> String {
    const OPERATING: &str = include_str!("../../../../docs/OPERATING.md");
    let from = OPERATING.find(begins).expect("the recipe");
    let mut lines = OPERATING[from..].lines();
    let first = lines.next();
    let rest = lines.take_while(|line| line.starts_with("    "));
    let script: Vec<&str> = first.into_iter().chain(rest).map(str::trim_start).collect();
    let program = scratch.cffs([]).get_program().to_string_lossy().into_owned();
    script
        .join("\n")
        .replace("cffs ", &format!("{program} "))
        .replace("/srv/tree", &mount.to_string_lossy())
        .replace("/backup/tree", &backup.to_string_lossy())
}

#[test]
fn the_recipe_for_backups_with_rsync_copies_what_changed() {
    if !can_mount() || Command::new("rsync").arg("--version").output().is_err() {
        return;
    }
    let scratch = Scratch::with_image();
    scratch.mount("rw");
    let (mount, backup) = (scratch.mountpoint(), scratch.path().join("backup"));
    let shell = |script: &str| {
        let mut shell = Command::new("bash");
        shell.arg("-c").arg(script).current_dir(scratch.path());
        shell
    };
    for dir in ["kept/below", "moved/below/deep", "gone/below"] {
        fs::create_dir_all(mount.join(dir)).expect("made");
        for number in 0..5 {
            fs::write(mount.join(dir).join(format!("file {number}")), dir).expect("written");
        }
    }
    let first = recipe(&scratch, &mount, &backup, "cffs mark /srv/tree monday");
    succeed(&mut shell(&first));
    let is_copied = || {
        let diff =
            Command::new("diff").arg("-r").arg("--no-dereference").args([&mount, &backup]).output();
        let diff = diff.expect("it starts");
        assert!(diff.status.success(), "{}", String::from_utf8_lossy(&diff.stdout));
    };
    is_copied();
    let at = |name: &str| mount.join(name);
    fs::write(at("kept/below/file 1"), "changed").expect("written");
    fs::write(at("kept/# hash"), "hash").expect("written");
    fs::write(at("; semicolon"), "semicolon").expect("written");
    fs::write(at("kept/two\nlines"), "lines").expect("written");
    fs::remove_file(at("kept/below/file 2")).expect("removed");
    fs::rename(at("moved"), at("kept/moved here")).expect("renamed");
    fs::remove_dir_all(at("gone")).expect("removed");
    fs::write(at("gone"), "a file now").expect("written");
    fs::remove_file(at("kept/below/file 3")).expect("removed");
    fs::create_dir(at("kept/below/file 3")).expect("made");
    fs::write(at("kept/below/file 3/in"), "in").expect("written");
    symlink("file 1", at("kept/below/link")).expect("linked");
    let each = recipe(&scratch, &mount, &backup, "set -euo pipefail");
    succeed(&mut shell(&each));
    is_copied();
    let marks = succeed(scratch.cffs(["mark"]).arg(&mount));
    assert!(marks.lines().count() == 1 && !marks.contains("monday"), "{marks}");
    // A list that fails is not taken for one without changes.
    let last = scratch.path().join("last-mark");
    fs::write(&last, "never-set\n").expect("written");
    let said = fail(1, &mut shell(&each));
    assert!(said.contains("the mark never-set does not exist"), "{said}");
    assert_eq!(fs::read_to_string(&last).expect("read"), "never-set\n");
    scratch.umount();
}

/// Regression: only the mount was named, with the message that it does not exist.
#[test]
fn a_missing_path_on_a_mount_is_named() {
    if !can_mount() {
        return;
    }
    let scratch = Scratch::with_image();
    scratch.mount("rw");
    let at = scratch.mountpoint();
    succeed(scratch.cffs(["mark"]).arg(&at).arg("first"));
    for command in [&["changes", "--since", "first"][..], &["layout"], &["regroup"]] {
        let said = fail(1, scratch.cffs([]).args(command).arg(&at).arg("/missing"));
        let named = format!("{}: /missing: No such file or directory", at.display());
        assert!(said.contains(&named), "{command:?}: {said}");
    }
    // It is not said to be a missing image.
    let said = fail(1, scratch.cffs(["quota", "get"]).arg(at.join("missing")));
    assert!(said.contains("/missing: No such file or directory"), "{said}");
    assert!(!said.contains("image"), "{said}");
    scratch.umount();
}

/// Regression: a command whose mark another one had just set failed with "file exists".
#[test]
fn of_commands_that_set_a_mark_at_the_same_time_one_succeeds() {
    if !can_mount() {
        return;
    }
    let scratch = Scratch::with_image();
    scratch.mount("rw");
    for round in 0..8 {
        let mark = format!("mark-{round}");
        let outcomes = at_once(|| {
            let mut command = scratch.cffs(["mark"]);
            command.arg(scratch.mountpoint()).arg(&mark);
            command
        });
        assert_one_succeeded(&outcomes, &format!("the mark {mark} already exists"));
    }
    scratch.umount();
}
