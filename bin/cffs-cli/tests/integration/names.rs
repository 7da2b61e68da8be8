//! A mounted volume has many names: all commands accept each of them.

use std::fs;
use std::os::unix::fs::{PermissionsExt, chown, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::harness::store_server::{SECRET, StoreServer};
use crate::harness::{Scratch, can_mount, fail, succeed};

/// Commands that must accept each name of a mounted volume. `NAME` stands for the name.
const COMMANDS: [&[&str]; 13] = [
    &["stats", "--json", "NAME"],
    &["sync", "NAME"],
    &["info", "--json", "NAME"],
    &["layout", "NAME"],
    &["layout", "--json", "NAME", "/src"],
    &["regroup", "-n", "NAME"],
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

/// A server that is stopped, and continued when this is dropped.
struct Stopped(String);

impl Stopped {
    /// The server of the volume that is mounted on a directory.
    fn of(scratch: &Scratch, directory: &Path) -> Stopped {
        let info = succeed(&mut run(scratch, &["info", "--json", "NAME"], directory));
        let info: serde_json::Value = serde_json::from_str(&info).expect("it is JSON");
        let stopped = Stopped(info["server"]["pid"].to_string());
        stopped.signal("-STOP");
        // The signal is sent before the process has actually stopped.
        crate::harness::wait_for(|| {
            let stat = fs::read_to_string(format!("/proc/{}/stat", stopped.0)).expect("it runs");
            stat.contains(") T ")
        });
        stopped
    }

    fn signal(&self, signal: &str) {
        succeed(Command::new("kill").args([signal, &self.0]));
    }
}

impl Drop for Stopped {
    fn drop(&mut self) {
        self.signal("-CONT");
    }
}

/// The same command with a time limit: a command that waits for a stopped server does not end.
fn bounded(command: &Command) -> Command {
    let mut bounded = Command::new("timeout");
    bounded.args(["--signal=KILL", "60"]).arg(command.get_program()).args(command.get_args());
    bounded.env_remove("CFFS_LOG");
    bounded
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

/// Regression: `stats`, `sync`, `layout`, `ls`, `fsck`, `import`, `export` and `tar` reported the
/// image of a mounted volume as not mounted, or refused it.
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
    // Regression: most commands did not follow a link to the mount point.
    let linked = scratch.path().join("linked mount");
    symlink(&mountpoint, &linked).expect("linked");
    let shown = source_shown(&scratch);
    let names = [scratch.image(), link, hard, shown, mountpoint.clone(), linked];
    let copied = scratch.path().join("copied");
    fs::create_dir(&copied).expect("made");
    let archive = scratch.path().join("empty.tar");
    fs::write(&archive, [0; 1024]).expect("written");
    for (number, name) in names.iter().enumerate() {
        for arguments in COMMANDS {
            succeed(&mut run(&scratch, arguments, name));
        }
        let copy = copied.join(number.to_string());
        succeed(run(&scratch, &["export", "-q", "NAME", "/src"], name).arg(&copy));
        assert_eq!(fs::read(copy.join("file")).expect("copied"), b"contents");
        let imported = format!("/imported-{number}");
        succeed(run(&scratch, &["import", "-q", "NAME"], name).arg(&copy).arg(&imported));
        assert!(mountpoint.join(&imported[1..]).join("file").exists());
        let written = succeed(&mut run(&scratch, &["tar", "NAME", "/src"], name));
        assert!(written.contains("contents"));
        let mut extract = run(&scratch, &["tar", "--extract", "NAME"], name);
        succeed(extract.stdin(fs::File::open(&archive).expect("opened")));
        let ls = succeed(&mut run(&scratch, &["ls", "-l", "-R", "NAME", "/"], name));
        assert!(ls.contains("/src/file\n") && ls.contains("/link -> /src/file\n"), "{ls}");
        assert_eq!(succeed(&mut run(&scratch, &["cat", "NAME", "/link"], name)), "contents");
    }
    // With a path, the path is relative to the volume's root for every name.
    let json = ["layout", "--json", "NAME", "/src"];
    let [by_image, by_directory] =
        [&names[0], &mountpoint].map(|name| succeed(&mut run(&scratch, &json, name)));
    assert_eq!(by_image, by_directory);
    // Commands that change the volume on the device are refused, with the alternative.
    for name in &names {
        let said = fail(8, &mut run(&scratch, &["fsck", "-p", "NAME"], name));
        let advice = format!("mounted on {}", mountpoint.display());
        assert!(said.contains(&advice) && said.contains("cffs umount"), "{said}");
    }
    let listed = succeed(&mut run(&scratch, &["ls", "-R", "NAME", "/"], &names[0]));
    succeed(&mut run(&scratch, &["umount", "NAME"], &names[1]));
    // Reading the image itself gives the same lists.
    assert_eq!(succeed(&mut run(&scratch, &["ls", "-R", "NAME", "/"], &names[0])), listed);
    let said = fail(1, &mut run(&scratch, &["stats", "NAME"], &names[0]));
    assert!(said.contains("not a C-FFS volume that is mounted or served"), "{said}");
}

/// Regression: while mounted, a volume in a store could only be named by its directory.
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
    // Regression: a version of a mounted volume did not have the last changes.
    fs::write(scratch.mountpoint().join("new"), "new").expect("written");
    let version = PathBuf::from(format!("{}@version", url.display()));
    succeed(&mut run(&scratch, &["snapshot", "create", "NAME"], &version));
    assert_eq!(succeed(&mut run(&scratch, &["cat", "NAME", "/new"], &version)), "new");
    succeed(&mut run(&scratch, &["umount", "NAME"], &url));
    assert_eq!(succeed(&mut run(&scratch, &["cat", "NAME", "/link"], &url)), "contents");
}

/// A bucket's URL names the mounted volume if the bucket is on the same server, and no other volume.
#[test]
fn a_mounted_volume_in_a_bucket_is_known_by_its_url() {
    let scratch = Scratch::new();
    let [store, other] = ["store", "other"].map(|name| scratch.path().join(name));
    let (Some(store), Some(other)) = (StoreServer::start_at(&store), StoreServer::start_at(&other))
    else {
        return;
    };
    if !can_mount() {
        return;
    }
    let url = "s3://bucket/tree";
    let run = |arguments: &[&str]| store.cffs(&scratch, SECRET, arguments);
    let elsewhere = |arguments: &[&str]| other.cffs(&scratch, SECRET, arguments);
    succeed(&mut run(&["mkfs", "-q", "--size", "1G", url]));
    let (log, at) = (scratch.log_option(), scratch.mountpoint());
    succeed(&mut run(&["mount", "-o", &log, url, at.to_str().expect("UTF-8")]));
    fill(&at);
    let slash = format!("{url}/");
    for name in [url, &slash] {
        for command in
            [&["stats", "--json"][..], &["sync"], &["trim"], &["layout"], &["fsck", "-n"]]
        {
            succeed(&mut run(&[command, &[name]].concat()));
        }
        assert_eq!(succeed(&mut run(&["cat", name, "/link"])), "contents");
        let info = succeed(&mut run(&["info", "--json", name]));
        assert!(info.contains("\"server\""), "{info}");
        let info = fail(1, &mut elsewhere(&["info", name]));
        assert!(info.contains("no volume at"), "{info}");
        fail(1, &mut elsewhere(&["umount", name]));
    }
    succeed(&mut run(&["umount", url]));
    assert_eq!(succeed(&mut run(&["cat", url, "/link"])), "contents");
}

/// Regression: commands read and changed the mounted volume, whose image was removed or renamed, instead of
/// the one that has its name now.
#[test]
fn an_image_with_the_former_name_of_a_mounted_one_is_another_volume() {
    if !can_mount() {
        return;
    }
    for (options, is_removed) in [("rw", true), ("fuseblk=no", true), ("fuseblk=no", false)] {
        let scratch = Scratch::with_image();
        let image = scratch.image();
        scratch.mount(options);
        match is_removed {
            true => fs::remove_file(&image).expect("removed"),
            false => fs::rename(&image, scratch.path().join("old")).expect("renamed"),
        }
        succeed(scratch.cffs(["mkfs", "-q", "--size", "32M", "--label", "new"]).arg(&image));
        let file = scratch.path().join("file");
        fs::write(&file, "contents").expect("written");
        succeed(scratch.cffs(["import", "-q"]).arg(&image).arg(&file).arg("/file"));
        assert!(
            !scratch.mountpoint().join("file").exists(),
            "{options}: it is in the other volume"
        );
        let info = succeed(scratch.cffs(["info", "--json"]).arg(&image));
        assert!(info.contains("\"label\": \"new\""), "{options}: {info}");
        let said = fail(1, scratch.cffs(["umount"]).arg(&image));
        assert!(said.contains("no C-FFS volume is mounted"), "{options}: {said}");
        succeed(scratch.cffs(["umount"]).arg(scratch.mountpoint()));
        assert_eq!(succeed(scratch.cffs(["cat"]).arg(&image).arg("/file")), "contents");
    }
}

/// A loop device, detached when this is dropped.
struct Attached(PathBuf);

impl Drop for Attached {
    fn drop(&mut self) {
        let _ = Command::new("losetup").arg("--detach").arg(&self.0).status();
    }
}

/// Regression: the name of a disk image named the mounted volume of a partition in it.
#[test]
fn a_disk_image_does_not_name_the_volume_of_a_partition_in_it() {
    if !can_mount() || !rustix::process::geteuid().is_root() {
        return;
    }
    for options in ["rw", "fuseblk=no"] {
        let scratch = Scratch::new();
        let disk = scratch.path().join("disk");
        succeed(scratch.cffs(["mkfs", "-q", "--size", "32M", "--label", "whole"]).arg(&disk));
        fs::File::options()
            .write(true)
            .open(&disk)
            .expect("opened")
            .set_len(96 << 20)
            .expect("set");
        let attach = ["--find", "--show", "--offset", "33554432"];
        let shown = succeed(Command::new("losetup").args(attach).arg(&disk));
        let attached = Attached(PathBuf::from(shown.trim()));
        let part = &attached.0;
        succeed(scratch.cffs(["mkfs", "-q", "--label", "part"]).arg(part));
        let mount = ["mount", "-o", options, "-o", &scratch.log_option()];
        succeed(scratch.cffs(mount).arg(part).arg(scratch.mountpoint()));
        for arguments in [&["info", "NAME"][..], &["ls", "NAME"]] {
            let said = fail(1, &mut run(&scratch, arguments, &disk));
            assert!(said.contains("a part of ") && said.contains(" is mounted on "), "{said}");
        }
        for arguments in [&["stats", "NAME"][..], &["sync", "NAME"], &["restart", "NAME"]] {
            let said = fail(1, &mut run(&scratch, arguments, &disk));
            assert!(!said.contains("part"), "{said}");
        }
        let said = fail(1, &mut run(&scratch, &["umount", "NAME"], &disk));
        assert!(said.contains("no C-FFS volume is mounted"), "{said}");
        let info = succeed(&mut run(&scratch, &["info", "--json", "NAME"], part));
        assert!(info.contains("\"label\": \"part\""), "{options}: {info}");
        scratch.umount();
        succeed(scratch.cffs(mount).arg(&disk).arg(scratch.mountpoint()));
        let said = fail(1, &mut run(&scratch, &["info", "NAME"], part));
        let expected = format!("a device of which {} is a part is mounted on ", part.display());
        assert!(said.contains(&expected), "{said}");
        scratch.umount();
        drop(attached);
        let info = succeed(&mut run(&scratch, &["info", "--json", "NAME"], &disk));
        assert!(info.contains("\"label\": \"whole\""), "{options}: {info}");
    }
}

/// The kernel appends ` (deleted)` to the path of a removed file.
#[test]
fn an_image_whose_name_ends_like_that_of_a_removed_file_is_found() {
    if !can_mount() {
        return;
    }
    let scratch = Scratch::with_image();
    let (image, other) = (scratch.image(), scratch.path().join("other"));
    let marked = PathBuf::from(format!("{} (deleted)", image.display()));
    let label = |name: &Path| {
        let info = succeed(&mut run(&scratch, &["info", "--json", "NAME"], name));
        let info: serde_json::Value = serde_json::from_str(&info).expect("it is JSON");
        (info["superblock"]["label"].clone(), info.get("server").is_some())
    };
    succeed(scratch.cffs(["mkfs", "-q", "--size", "32M", "--label", "marked"]).arg(&marked));
    succeed(
        scratch.cffs(["mount", "-o", &scratch.log_option()]).arg(&marked).arg(scratch.mountpoint()),
    );
    assert_eq!(label(&marked), ("marked".into(), true));
    assert_eq!(label(&image), ("".into(), false));
    succeed(&mut run(&scratch, &["umount", "NAME"], &marked));
    assert!(!scratch.is_mounted());

    fs::rename(&marked, &other).expect("renamed");
    scratch.mount("rw");
    fs::remove_file(&image).expect("removed");
    fs::rename(&other, &marked).expect("renamed");
    assert_eq!(label(&marked), ("marked".into(), false));
    scratch.umount();
}

/// Users other than root cannot see which files root's server has open.
#[test]
fn another_user_reads_a_volume_that_root_mounted_by_the_name_of_its_image() {
    if !can_mount() || !rustix::process::geteuid().is_root() {
        return;
    }
    let scratch = Scratch::with_image();
    scratch.mount("rw");
    fs::write(scratch.mountpoint().join("file"), "contents").expect("written");
    let read = succeed(scratch.cffs_by_nobody(["cat"]).arg(scratch.image()).arg("/file"));
    assert_eq!(read, "contents");
    scratch.umount();
}

/// An image on a mounted volume names its own volume if that is mounted, not a file of the outer one.
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

/// Regression: commands waited for a stopped server, even if it served another volume: to find the mount of a
/// name they queried each server.
#[test]
fn a_server_that_is_stopped_is_not_waited_for() {
    if !can_mount() || !rustix::process::geteuid().is_root() {
        return;
    }
    let (stuck, other, inner) = (Scratch::with_image(), Scratch::with_image(), Scratch::new());
    stuck.mount("rw");
    other.mount("rw");
    fill(&other.mountpoint());
    // The image of a mounted volume is on the volume whose server is stopped.
    let image = stuck.mountpoint().join("inner.cffs");
    succeed(&mut run(&inner, &["mkfs", "-q", "--size", "32M", "NAME"], &image));
    let mut mount = run(&inner, &["mount", "-o", &inner.log_option(), "NAME"], &image);
    succeed(mount.arg(inner.mountpoint()));
    let inside = stuck.mountpoint().join("dir");
    fs::create_dir(&inside).expect("made");
    let link = stuck.path().join("link");
    symlink(&inside, &link).expect("linked");

    let stopped = Stopped::of(&stuck, &stuck.mountpoint());
    for name in [other.image(), source_shown(&other), other.mountpoint()] {
        for arguments in COMMANDS {
            succeed(&mut bounded(&run(&other, arguments, &name)));
        }
        succeed(&mut bounded(&run(&other, &["ls", "NAME", "/"], &name)));
        fail(8, &mut bounded(&run(&other, &["fsck", "-p", "NAME"], &name)));
    }
    // An image that is not mounted.
    let free = other.path().join("free.cffs");
    succeed(&mut bounded(&run(&other, &["mkfs", "-q", "--size", "64M", "NAME"], &free)));
    succeed(&mut bounded(&run(&other, &["info", "NAME"], &free)));
    succeed(&mut bounded(&run(&other, &["fsck", "-f", "NAME"], &free)));

    let remedy = format!("kill -CONT {}", stopped.0);
    for name in [stuck.image(), source_shown(&stuck), stuck.mountpoint(), inside, link, image] {
        for arguments in COMMANDS.into_iter().chain([
            &["umount", "NAME"][..],
            &["ls", "NAME", "/"],
            &["path", "NAME", "1"],
        ]) {
            let output = bounded(&run(&stuck, arguments, &name)).output().expect("it starts");
            let said = String::from_utf8_lossy(&output.stderr);
            assert!(said.contains(&remedy), "{arguments:?} {}: {said}", name.display());
        }
    }
    drop(stopped);
    for scratch in [&inner, &stuck, &other] {
        scratch.umount();
    }
}

/// A mount point of another user than root, who may read the image.
fn for_nobody(scratch: &Scratch) -> PathBuf {
    let directory = scratch.path().join("nobody");
    fs::create_dir(&directory).expect("made");
    chown(&directory, Some(65534), Some(65534)).expect("given away");
    fs::set_permissions(scratch.image(), PermissionsExt::from_mode(0o644)).expect("set");
    directory
}

fn mount_by_nobody(scratch: &Scratch, options: &str, directory: &Path) {
    let log = format!("logfile={}", directory.with_extension("log").display());
    fs::write(directory.with_extension("log"), "").expect("made");
    chown(directory.with_extension("log"), Some(65534), None).expect("given away");
    let mut mount = scratch.cffs_by_nobody(["mount", "-o", options, "-o", &log]);
    succeed(mount.arg(scratch.image()).arg(directory));
}

fn can_mount_as_nobody() -> bool {
    let has_helper = Command::new("fusermount3").arg("-V").output().is_ok();
    can_mount() && has_helper && rustix::process::geteuid().is_root()
}

/// Regression: with several mounts for reading, the name of the image stood for one of them: umount and
/// restart acted on it, and reading failed if the caller may not use that one.
#[test]
fn the_name_of_an_image_with_several_mounts_is_enough_only_for_reading() {
    if !can_mount_as_nobody() {
        return;
    }
    let scratch = Scratch::with_image();
    let tree = scratch.path().join("tree");
    fs::create_dir(&tree).expect("made");
    fs::write(tree.join("f"), "contents").expect("written");
    succeed(&mut run(
        &scratch,
        &["import", "-q", "NAME", &tree.to_string_lossy()],
        &scratch.image(),
    ));
    let (second, third) = (scratch.path().join("second"), for_nobody(&scratch));
    fs::create_dir(&second).expect("made");
    scratch.mount("ro");
    let mount =
        ["mount", "-o", "ro", "-o", &scratch.log_option(), "NAME", &second.to_string_lossy()];
    succeed(&mut run(&scratch, &mount, &scratch.image()));
    mount_by_nobody(&scratch, "ro", &third);

    let image = scratch.image();
    let mounts = [scratch.mountpoint(), second, third];
    for command in ["umount", "restart"] {
        let said = fail(1, &mut run(&scratch, &[command, "NAME"], &image));
        assert!(said.contains("name one of them"), "{said}");
        for mount in &mounts {
            assert!(said.contains(&*mount.to_string_lossy()), "{command}: {said}");
        }
    }
    for mount in &mounts {
        succeed(&mut run(&scratch, &["restart", "NAME"], mount));
    }
    assert_eq!(succeed(&mut run(&scratch, &["ls", "NAME", "/"], &image)), "f\n");
    assert_eq!(succeed(&mut run(&scratch, &["cat", "NAME", "/f"], &image)), "contents");
    for mount in &mounts[..2] {
        succeed(&mut run(&scratch, &["umount", "NAME"], mount));
    }
    // Root may unmount the mount of another user, and not read it.
    let said = fail(1, &mut run(&scratch, &["ls", "NAME", "/"], &image));
    assert!(said.contains("Permission denied"), "{said}");
    // Regression: the kernel passes on requests for a ticket at the root of such a mount.
    let said = fail(1, &mut run(&scratch, &["ls", "NAME", "/"], &mounts[2]));
    assert!(said.contains("Permission denied"), "{said}");
    succeed(&mut run(&scratch, &["umount", "NAME"], &image));
}

/// Regression: trimming failed for root, who cannot open files on a mount of another user.
#[test]
fn root_administers_a_mount_that_it_cannot_read() {
    if !can_mount_as_nobody() {
        return;
    }
    let scratch = Scratch::with_image();
    let directory = for_nobody(&scratch);
    chown(scratch.image(), Some(65534), None).expect("given away");
    mount_by_nobody(&scratch, "rw", &directory);
    assert!(fs::read_dir(&directory).is_err());
    for arguments in COMMANDS.iter().filter(|command| !command.contains(&"layout")) {
        succeed(&mut run(&scratch, arguments, &directory));
    }
    succeed(&mut run(&scratch, &["umount", "NAME"], &directory));
    scratch.assert_clean();
}

/// Commands do not wait for a stopped server without a mount either.
#[test]
fn a_server_without_a_mount_that_is_stopped_is_not_waited_for() {
    let scratch = Scratch::with_image();
    let image = scratch.image();
    let serve = ["serve", "--nfs", "127.0.0.1:0", "-o", &scratch.log_option(), "NAME"];
    succeed(&mut run(&scratch, &serve, &image));
    let stopped = Stopped::of(&scratch, &image);
    for arguments in [&["stats", "NAME"][..], &["sync", "NAME"], &["serve", "--stop", "NAME"]] {
        let output = bounded(&run(&scratch, arguments, &image)).output().expect("it starts");
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(said.contains(&format!("kill -CONT {}", stopped.0)), "{arguments:?}: {said}");
    }
    drop(stopped);
    succeed(&mut run(&scratch, &["serve", "--stop", "NAME"], &image));
}

/// The text after `file://` in a URL is a path. A volume that is not mounted is called so.
#[test]
fn a_volume_in_a_directory_of_any_name_is_used_by_its_url() {
    let scratch = Scratch::new();
    let source = scratch.path().join("source");
    fs::create_dir(&source).expect("made");
    fs::write(source.join("a"), "contents").expect("written");
    let source = source.display().to_string();
    let point = scratch.mountpoint().display().to_string();
    let version = format!("file://{}/c@d", scratch.path().display());
    let text = fail(1, &mut scratch.cffs(["mkfs", "-q", "--size", "1G", &version]));
    assert!(text.contains("names a version, d, which a new volume does not have"), "{text}");
    assert!(!scratch.path().join("c").exists());
    // The slash keeps an @ from being followed by a version.
    for name in ["50% [a]?#1~ b", "a@b/"] {
        let at = |name: &str| format!("file://{}/{name}", scratch.path().display());
        let (url, version) = (at(name), at(&format!("{}@v1", name.trim_end_matches('/'))));
        let run = |arguments: &[&str]| {
            let mut command = scratch.cffs([]);
            command.args(arguments);
            command
        };
        succeed(&mut run(&["mkfs", "-q", "--size", "1G", &url]));
        assert!(scratch.path().join(name).join("format").exists(), "{name}");
        succeed(&mut run(&["import", "-q", &url, &source, "/in"]));
        succeed(&mut run(&["snapshot", "create", &version]));
        assert!(succeed(&mut run(&["snapshot", "ls", &url])).contains("v1"));
        let clone = at(&format!("clone {name}"));
        succeed(&mut run(&["clone", &version, &clone]));
        for volume in [&url, &version, &clone] {
            assert_eq!(succeed(&mut run(&["cat", volume, "/in/a"])), "contents");
        }
        succeed(&mut run(&["fsck", "-n", "-f", &clone]));
        for command in ["stats", "sync", "restart"] {
            let text = fail(1, &mut run(&[command, &url]));
            assert!(text.contains("not mounted on this machine"), "{text}");
        }
        if !can_mount() {
            continue;
        }
        for volume in [&url, &version] {
            succeed(&mut run(&["mount", volume, &point]));
            assert_eq!(fs::read(scratch.mountpoint().join("in/a")).expect("read"), b"contents");
            succeed(&mut run(&["stats", volume]));
            succeed(&mut run(&["umount", volume]));
        }
    }
}
