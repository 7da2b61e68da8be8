//! Administration of a volume: `cffs tune`, `cffs grow`, mounted or not, and on devices that fail. (`cffs
//! trim` is tested with images and mounts.)

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::Command;
use std::thread;
use std::time::Duration;

use crate::harness::{CFFS, Scratch, can_mount, fail, succeed};
use rustix::fs::{AtFlags, CWD, FallocateFlags, StatxAttributes, StatxFlags};
use serde_json::Value;

const MIB: u64 = 1 << 20;

fn json(command: &mut Command) -> Value {
    serde_json::from_str(&succeed(command)).expect("it is JSON")
}

/// The output of `cffs info` for an image or a mounted volume.
fn superblock(scratch: &Scratch, path: &Path) -> Value {
    json(scratch.cffs(["info", "--json"]).arg(path))["superblock"].take()
}

/// Imports a tree into the image.
fn import(scratch: &Scratch) {
    let source = scratch.path().join("source");
    fs::create_dir_all(source.join("d")).expect("made");
    fs::write(source.join("d/small"), b"contents").expect("written");
    fs::write(source.join("large"), vec![3; 3 << 20]).expect("written");
    succeed(scratch.cffs(["import", "-q"]).arg(scratch.image()).arg(&source).arg("/in"));
}

fn assert_imported(scratch: &Scratch) {
    let cat = |path| succeed(scratch.cffs(["cat"]).arg(scratch.image()).arg(path));
    assert_eq!(cat("/in/d/small"), "contents");
    assert_eq!(cat("/in/large").len(), 3 << 20);
}

#[test]
fn a_volume_gets_another_name_and_another_identity() {
    let scratch = Scratch::with_image();
    import(&scratch);
    let before = superblock(&scratch, &scratch.image());
    let printed = succeed(
        scratch
            .cffs(["tune", "--label", "holiday photos", "--uuid", "random"])
            .args(["--errors", "remount-ro", "--reserve", "5%", "--reserve-user", "1000"])
            .arg(scratch.image()),
    );
    assert!(printed.contains("holiday photos") && printed.contains("remount-ro"), "{printed}");
    let after = superblock(&scratch, &scratch.image());
    assert_eq!(after["label"], "holiday photos");
    assert_ne!(after["uuid"], before["uuid"]);
    assert_eq!(after["checksum_seed"], before["uuid"], "what is on the volume keeps its checksums");
    assert_eq!(after["errors"], "remount-ro");
    assert_eq!(after["reserve"]["bytes"], 256 * MIB / 20 / 1024 * 1024 + 1024);
    assert_eq!(after["reserve"]["uid"], 1000);
    scratch.assert_clean();
    assert_imported(&scratch);

    // The copies of the superblock have it as well.
    let mut image = fs::read(scratch.image()).expect("read");
    image[..4096].fill(0);
    fs::write(scratch.image(), image).expect("written");
    succeed(
        Command::new("sh")
            .args(["-c", "\"$0\" fsck -y \"$1\"; test $? -eq 1", CFFS])
            .arg(scratch.image()),
    );
    let restored = superblock(&scratch, &scratch.image());
    for name in ["label", "uuid", "checksum_seed", "errors", "reserve"] {
        assert_eq!(restored[name], after[name], "{name}");
    }
    assert_imported(&scratch);

    // Properties that are not named stay, and with its first UUID the volume is as before.
    let first = before["uuid"].as_str().expect("a UUID");
    succeed(scratch.cffs(["tune", "-q", "--uuid", first, "--reserve", "0"]).arg(scratch.image()));
    let last = superblock(&scratch, &scratch.image());
    assert_eq!((&last["uuid"], &last["checksum_seed"]), (&before["uuid"], &Value::Null));
    assert_eq!(last["label"], "holiday photos");
    assert_eq!(last["features"], before["features"]);
    scratch.assert_clean();
    assert_imported(&scratch);
}

#[test]
fn a_volume_gets_a_journal_and_loses_it() {
    let scratch = Scratch::with_image();
    import(&scratch);
    let before = superblock(&scratch, &scratch.image());
    let printed = succeed(scratch.cffs(["tune", "--journal", "4M"]).arg(scratch.image()));
    assert!(printed.contains("1024"), "{printed}");
    let with = superblock(&scratch, &scratch.image());
    assert_eq!(with["journal"]["blocks"], 1024);
    // Only a journal on a device of its own has a UUID.
    assert!(!printed.contains("journal uuid") && with["journal"]["uuid"].is_null(), "{printed}");
    scratch.assert_clean();
    assert_imported(&scratch);
    let said = fail(1, scratch.cffs(["tune", "--journal", "8M"]).arg(scratch.image()));
    assert!(said.contains("--journal none"), "{said}");
    fail(2, scratch.cffs(["tune", "--journal", "none", "--label", "new"]).arg(scratch.image()));

    succeed(scratch.cffs(["tune", "-q", "--journal", "none"]).arg(scratch.image()));
    let without = superblock(&scratch, &scratch.image());
    for name in ["journal", "features", "uuid", "state", "holder"] {
        assert_eq!(without[name], before[name], "{name}");
    }
    scratch.assert_clean();
    assert_imported(&scratch);
    if can_mount() {
        scratch.mount("rw");
        let said = fail(1, scratch.cffs(["tune", "--journal", "4M"]).arg(scratch.mountpoint()));
        assert!(said.contains("the journal of a mounted volume cannot change"), "{said}");
        let said = fail(1, scratch.cffs(["tune", "--journal", "4M"]).arg(scratch.image()));
        assert!(said.contains("the journal of a mounted volume cannot change"), "{said}");
        scratch.umount();
    }
}

#[test]
fn a_volume_with_its_journal_in_a_file_is_mounted_and_checked() {
    if !can_mount() {
        return;
    }
    let (scratch, journal) = Scratch::with_journal_in_a_file();
    assert_eq!(fs::metadata(&journal).expect("made").len(), 4 << 20);
    let new = scratch.path().join("new");
    let said = fail(
        1,
        scratch.cffs(["mkfs", "--size", "64M", "--journal-device"]).arg(&journal).arg(&new),
    );
    assert!(said.contains("the journal of a C-FFS volume"), "{said}");
    assert!(!new.exists(), "an image without a volume is of no use");

    // Of a clean volume, nothing is missing without its journal.
    let info = scratch.cffs(["info"]).arg(scratch.image()).output().expect("it starts");
    assert!(info.status.success() && info.stderr.is_empty(), "{info:?}");
    for (file, is_told) in [("unknown", true), ("new.journal", false)] {
        let mut mkfs = scratch.cffs(["mkfs", "--size", "64M", "--journal-device"]);
        let made = mkfs.arg(scratch.path().join(file)).arg(&new).output().expect("it starts");
        let said = String::from_utf8_lossy(&made.stderr);
        assert!(made.status.success(), "{said}");
        assert_eq!(said.contains("-o journal-device="), is_told, "{said}");
        fs::remove_file(&new).expect("removed");
    }

    // It is not named, and not found in the image's directory.
    let mounting = |options: &str| {
        let mut command =
            scratch.cffs(["mount", "-o", &format!("{options},{}", scratch.log_option())]);
        command.arg(scratch.image()).arg(scratch.mountpoint());
        command
    };
    let said = fail(32, &mut mounting("rw"));
    assert!(said.contains("journal-device=") && said.contains("--without-journal"), "{said}");
    // Regression: commands without that option said the same.
    let link = scratch.path().join("image.cffs.journal");
    let tune = || scratch.cffs(["tune", "-q", "--label", "new"]);
    let said = fail(1, tune().arg(scratch.image()));
    assert!(said.contains("IMAGE.journal, which may be a symbolic link to it"), "{said}");
    symlink(&journal, &link).expect("linked");
    succeed(tune().arg(scratch.image()));
    fs::remove_file(&link).expect("removed");
    succeed(&mut mounting(&format!("journal-device={}", journal.display())));
    let mut file = fs::File::create(scratch.mountpoint().join("file")).expect("created");
    std::io::Write::write_all(&mut file, &[7; 4096]).expect("written");
    file.sync_all().expect("durable");
    drop(file);
    let stats = succeed(scratch.cffs(["stats", "--json"]).arg(scratch.mountpoint()));
    let stats: Value = serde_json::from_str(&stats).expect("it is JSON");
    assert!(stats["journal"]["records"].as_u64() > Some(0), "{stats}");
    // As after a power cut: a copy of both, with the same UUIDs.
    let (image, found) = (scratch.path().join("cut"), scratch.path().join("cut.journal"));
    fs::copy(&journal, &found).expect("copied");
    fs::copy(scratch.image(), &image).expect("copied");
    scratch.umount();

    let listed = succeed(scratch.cffs(["ls"]).arg(&image));
    assert!(listed.contains("file"), "found beside the image: {listed}");
    fs::rename(&found, &journal).expect("moved");
    fail(8, scratch.cffs(["fsck", "-n"]).arg(&image));
    succeed(scratch.cffs(["fsck", "-n", "--journal-device"]).arg(&journal).arg(&image));
    // Regression: a refused check nevertheless marked the volume as its own.
    let (other, foreign) = (scratch.path().join("other"), scratch.path().join("foreign"));
    let options = ["mkfs", "-q", "--size", "64M", "--journal", "4M", "--journal-device"];
    succeed(scratch.cffs(options).arg(&foreign).arg(&other));
    let before = fs::read(&image).expect("read");
    for repair in ["-p", "-y"] {
        let said =
            fail(8, scratch.cffs(["fsck", repair, "--journal-device"]).arg(&foreign).arg(&image));
        assert!(said.contains("of another volume") && said.contains("--without-journal"), "{said}");
        assert!(fs::read(&image).expect("read") == before, "fsck {repair} changed the volume");
    }
    succeed(
        Command::new("sh")
            .args(["-c", "\"$0\" fsck -y --without-journal \"$1\"; test $? -eq 1", CFFS])
            .arg(&image),
    );
    succeed(scratch.cffs(["fsck", "-n"]).arg(&image));
    let said = fail(1, scratch.cffs(["import"]).arg(&image).args(["/etc/hostname", "/new"]));
    assert!(said.contains("journal-device="), "{said}");
    succeed(scratch.cffs(["tune", "-q", "--journal", "none"]).arg(&image));
    assert_eq!(superblock(&scratch, &image)["journal"], Value::Null);
    succeed(
        scratch
            .cffs(["tune", "-q", "--journal", "4M", "--journal-device"])
            .arg(image.with_extension("journal"))
            .arg(&image),
    );
    let external = 1;
    assert_eq!(superblock(&scratch, &image)["journal"]["flags"], external);
    // Regression: a clean volume passed, although a mount with that journal is refused.
    for mode in ["-p", "-n", "-y"] {
        let said =
            fail(8, scratch.cffs(["fsck", mode, "--journal-device"]).arg(&foreign).arg(&image));
        assert!(said.contains("of another volume"), "{said}");
    }
    succeed(scratch.cffs(["import"]).arg(&image).args(["/etc/hostname", "/new"]));
}

#[test]
fn impossible_changes_are_refused() {
    let scratch = Scratch::with_image();
    let before = fs::read(scratch.image()).expect("read");
    let settings = succeed(scratch.cffs(["tune"]).arg(scratch.image()));
    assert!(settings.contains("uuid") && settings.contains("policy"), "{settings}");
    let store = format!("file://{}/store", scratch.path().display());
    for command in [&["tune", "--label", "x"][..], &["grow"]] {
        let said = fail(1, scratch.cffs([]).args(command).arg(scratch.mountpoint()));
        assert!(said.contains("not a C-FFS volume that is mounted or served"), "{said}");
        let said = fail(1, scratch.cffs([]).args(command).arg(&store));
        assert!(said.contains(&format!(": cffs mount {store} DIR, then name DIR\n")), "{said}");
        assert!(!said.contains("os error"), "{said}");
    }
    fail(2, scratch.cffs(["tune", "--uuid", "no UUID"]).arg(scratch.image()));
    fail(2, scratch.cffs(["tune", "--reserve", "101%"]).arg(scratch.image()));
    fail(2, scratch.cffs(["grow"]).arg(scratch.image()).arg("+more"));
    assert!(fs::read(scratch.image()).expect("read") == before);
    let long = "x".repeat(65);
    let said = fail(1, scratch.cffs(["tune", "--label", &long]).arg(scratch.image()));
    assert!(said.contains("more than 64"), "{said}");
    let said = fail(1, scratch.cffs(["tune", "--reserve", "50%"]).arg(scratch.image()));
    assert!(said.contains("more than half") && said.contains("up to "), "{said}");
    let said = fail(1, scratch.cffs(["grow"]).arg(scratch.image()).arg("255M"));
    assert!(said.contains("do not shrink"), "{said}");
    let printed = succeed(scratch.cffs(["grow"]).arg(scratch.image()));
    assert!(printed.contains("already"), "{printed}");
    assert_eq!(superblock(&scratch, &scratch.image())["label"], "");
    assert_eq!(superblock(&scratch, &scratch.image())["size_bytes"], 256 * MIB);
    scratch.assert_clean();
}

/// Regression: the journal on the volume was removed, and none was made on the device.
#[test]
fn a_volume_with_a_journal_gets_none_on_another_device() {
    let scratch = Scratch::with_image();
    succeed(scratch.cffs(["tune", "--journal", "8M"]).arg(scratch.image()));
    let device = scratch.path().join("journal");
    let mut tune = scratch.cffs(["tune", "--journal-device"]);
    let said = fail(1, tune.arg(&device).arg(scratch.image()));
    assert!(said.contains("remove it first"), "{said}");
    assert!(!device.exists());
    assert_eq!(superblock(&scratch, &scratch.image())["journal"]["blocks"], 8 * MIB / 4096);
    scratch.assert_clean();
}

#[test]
fn an_image_grows_and_takes_no_space_for_it() {
    use std::os::unix::fs::MetadataExt;
    let scratch = Scratch::with_image();
    import(&scratch);
    let grown = json(scratch.cffs(["grow", "--json"]).arg(scratch.image()).arg("+10G"));
    assert_eq!(grown["from_bytes"], 256 * MIB);
    assert_eq!(grown["size_bytes"], (10 << 30) + 256 * MIB);
    let metadata = fs::metadata(scratch.image()).expect("there");
    assert_eq!(metadata.len(), (10 << 30) + 256 * MIB);
    assert!(metadata.blocks() * 512 < 20 * MIB);
    scratch.assert_clean();
    assert_imported(&scratch);

    // Another program has enlarged the file.
    let file = fs::File::options().write(true).open(scratch.image()).expect("opened");
    file.set_len(12 << 30).expect("extended");
    drop(file);
    succeed(scratch.cffs(["grow", "-q"]).arg(scratch.image()));
    assert_eq!(superblock(&scratch, &scratch.image())["size_bytes"], 12_u64 << 30);
    scratch.assert_clean();
    assert_imported(&scratch);
}

#[test]
fn a_mounted_volume_is_tuned_and_grown_while_it_is_used() {
    if !can_mount() {
        return;
    }
    let scratch = Scratch::with_image();
    import(&scratch);
    scratch.mount("commit=1");
    let dir = scratch.mountpoint();
    let free = || rustix::fs::statvfs(&dir).expect("statvfs").f_bfree;
    let before = free();
    thread::scope(|scope| {
        let writer = scope.spawn(|| {
            for index in 0..200 {
                fs::write(dir.join(format!("new {index}")), vec![index as u8; 9000])
                    .expect("written");
                thread::sleep(Duration::from_millis(5));
            }
        });
        succeed(scratch.cffs(["tune", "-q", "--label", "in use"]).arg(&dir));
        succeed(scratch.cffs(["grow", "-q"]).arg(&dir).arg("1G"));
        assert!(free() > before + (700 << 20) / 4096, "df shows it at once");
        succeed(scratch.cffs(["grow", "-q"]).arg(scratch.image()).arg("+1G"));
        writer.join().expect("wrote");
    });
    let shown = superblock(&scratch, &dir);
    assert_eq!((&shown["label"], &shown["size_bytes"]), (&"in use".into(), &(2_u64 << 30).into()));
    let said = fail(1, scratch.cffs(["grow"]).arg(&dir).arg("1G"));
    assert!(said.contains("do not shrink"), "{said}");
    // More than fitted before.
    fs::write(dir.join("large"), vec![7; 400 << 20]).expect("written");
    scratch.umount();
    scratch.assert_clean();
    assert_imported(&scratch);
    let names = succeed(scratch.cffs(["ls"]).arg(scratch.image()));
    assert_eq!(names.lines().count(), 202);
    let large = succeed(scratch.cffs(["cat"]).arg(scratch.image()).arg("/large"));
    assert!(large.bytes().all(|byte| byte == 7) && large.len() == 400 << 20);
}

/// Regression: four concurrent `grow +30M` added 30 MiB together, since each requested the size that it had
/// seen plus its increase. A refused one only referred to the server's log.
#[test]
fn increases_at_the_same_time_add_up_and_a_refusal_has_its_reason() {
    if !can_mount() {
        return;
    }
    let scratch = Scratch::with_image();
    scratch.mount("rw");
    let dir = scratch.mountpoint();
    let grow = || {
        let mut grow = scratch.cffs(["grow", "-q"]);
        grow.arg(&dir).arg("+30M").spawn().expect("it starts")
    };
    let growing: Vec<_> = (0..4).map(|_| grow()).collect();
    for mut child in growing {
        assert!(child.wait().expect("it ends").success());
    }
    assert_eq!(superblock(&scratch, &dir)["size_bytes"], (256 + 4 * 30) * MIB);
    let said = fail(1, scratch.cffs(["grow"]).arg(&dir).arg("15E"));
    assert!(!said.contains("log says") && !said.contains("os error"), "{said}");
    scratch.umount();
    scratch.assert_clean();
}

#[test]
fn only_root_and_the_owner_tune_and_grow_a_mounted_volume() {
    if !can_mount() || !rustix::process::geteuid().is_root() {
        return;
    }
    use std::os::unix::fs::PermissionsExt;
    let scratch = Scratch::with_image();
    scratch.mount("rw");
    fs::set_permissions(scratch.mountpoint(), PermissionsExt::from_mode(0o777)).expect("set");
    let tune = scratch.cffs_by_nobody(["tune", "--label", "x"]);
    for mut by_another in [tune, scratch.cffs_by_nobody(["grow"])] {
        let said = fail(1, by_another.arg(scratch.mountpoint()));
        assert!(said.contains(": only root, who mounted the volume, may do this"), "{said}");
    }
    assert_eq!(superblock(&scratch, &scratch.mountpoint())["label"], "");
    scratch.umount();
}

#[test]
fn a_reserve_is_kept_from_the_users_of_a_mount() {
    if !can_mount() || !rustix::process::geteuid().is_root() {
        return;
    }
    use std::io::Write;
    use std::os::unix::fs::PermissionsExt;
    let scratch = Scratch::new();
    succeed(scratch.cffs(["mkfs", "-q", "--size", "64M", "--reserve", "25%"]).arg(scratch.image()));
    scratch.mount("rw");
    let dir = scratch.mountpoint();
    fs::set_permissions(scratch.path(), PermissionsExt::from_mode(0o755)).expect("set");
    fs::set_permissions(&dir, PermissionsExt::from_mode(0o777)).expect("set");
    let as_user = |script: &str| {
        let mut command = Command::new("setpriv");
        let script = format!("cd {} && {script}", dir.display());
        command.args(["--reuid=65534", "--regid=65534", "--clear-groups", "sh", "-c", &script]);
        command
    };
    let said = fail(1, &mut as_user("dd if=/dev/zero of=user bs=64k"));
    assert!(said.contains("No space left"), "{said}");
    let taken = fs::metadata(dir.join("user")).expect("there").len();
    assert!((36 * MIB..48 * MIB).contains(&taken), "{taken}");
    let stat = rustix::fs::statvfs(&dir).expect("statvfs");
    assert!(stat.f_bavail * stat.f_frsize < MIB && stat.f_bfree * stat.f_frsize >= 16 * MIB);
    for script in ["touch new", "mkdir new", "cp user new", "fallocate -o 60M -l 1M user"] {
        let said = fail(1, &mut as_user(script));
        assert!(said.contains("No space left"), "{script}: {said}");
    }
    // Regression: writes that began outside the reserve, or within a block, wrote only a part. Likewise
    // appends after another front end has joined, which go to the end that the server knows.
    let (root, bytes) = (dir.join("root"), vec![1; 400_001]);
    for is_append in [false, true] {
        let mut file = fs::File::options();
        let mut file = file.create(true).write(true).append(is_append).open(&root).expect("made");
        for _ in 0..25 {
            assert_eq!(file.write(&bytes).expect("root goes on"), bytes.len());
        }
        assert_eq!(file.metadata().expect("there").len(), 25 * bytes.len() as u64);
        drop(file);
        assert!(fs::read(&root).expect("read").iter().all(|byte| *byte == 1));
        fs::remove_file(&root).expect("removed");
        let fill = "rm user && dd if=/dev/zero of=user bs=64k count=100 && mkdir -p new";
        succeed(&mut as_user(fill));
        succeed(scratch.cffs(["import", "-q"]).arg(&dir).arg("/etc/passwd").arg("/joined"));
        fail(1, &mut as_user("dd if=/dev/zero of=user bs=64k"));
    }
    scratch.umount();
    scratch.assert_clean();
}

/// A loop device, detached at the end.
struct Loop(String);

impl Loop {
    fn over(image: &Path) -> Loop {
        Loop(succeed(Command::new("losetup").args(["-f", "--show"]).arg(image)).trim().to_owned())
    }
}

impl Drop for Loop {
    fn drop(&mut self) {
        let _ = Command::new("losetup").args(["-d", &self.0]).status();
    }
}

#[test]
fn a_rotating_disk_has_a_journal_by_default() {
    if !can_mount() || !rustix::process::geteuid().is_root() {
        return;
    }
    let scratch = Scratch::new();
    let backing = scratch.path().join("backing");
    let made = |device: &Path, options: &[&str]| {
        let journal = [scratch.path().join("journal")];
        let apart = options.contains(&"--journal-device").then_some(&journal).into_iter().flatten();
        let printed = succeed(scratch.cffs(["mkfs", "-f"]).arg(device).args(options).args(apart));
        let found = superblock(&scratch, device);
        let figure = |at: &Value| at.as_u64().unwrap_or(0);
        let bytes = figure(&found["journal"]["blocks"]) * figure(&found["block_bytes"]);
        assert_eq!(bytes > 0, printed.contains("a journal of "), "{printed}");
        (bytes / MIB, figure(&found["journal"]["flags"]))
    };
    let attribute = |device: &Loop| {
        let name = device.0.trim_start_matches("/dev/").to_owned();
        Path::new("/sys/block").join(name).join("queue/rotational")
    };
    for (volume_mib, journal_mib) in
        [(511, 0), (512, 8), (1000, 15), (2100, 32), (4096, 60), (20_000, 60)]
    {
        fs::File::create(&backing).expect("created").set_len(volume_mib * MIB).expect("extended");
        let device = Loop::over(&backing);
        let path = Path::new(&device.0);
        fs::write(attribute(&device), "1").expect("it turns");
        assert_eq!(made(path, &[]).0, journal_mib, "of {volume_mib} MiB");
        assert_eq!(made(path, &["--journal", "none"]).0, 0);
        assert_eq!(made(path, &["--journal", "4M"]).0, 4);
        assert_eq!(made(path, &["--journal-device"]), (64, 1), "it lies in the file");
        let large = made(path, &["--block-size", "64k"]).0;
        assert_eq!(large, journal_mib, "in large blocks, with a short last group or without");
        fs::remove_file(scratch.path().join("journal")).expect("removed");
        fs::write(attribute(&device), "0").expect("it does not turn");
        assert_eq!(made(path, &[]).0, 0);
        drop(device);
        assert_eq!(made(&backing, &[]).0, 0, "an image has none");
    }
}

#[test]
fn a_block_device_that_has_grown_is_taken_over() {
    if !can_mount() || !rustix::process::geteuid().is_root() {
        return;
    }
    let scratch = Scratch::with_image();
    import(&scratch);
    let backing = scratch.path().join("backing");
    fs::rename(scratch.image(), &backing).expect("renamed");
    let device = Loop::over(&backing);
    let extend = |bytes| {
        let file = fs::File::options().write(true).open(&backing).expect("opened");
        file.set_len(bytes).expect("extended");
        succeed(Command::new("losetup").args(["-c", &device.0]));
    };
    let said = fail(1, scratch.cffs(["grow"]).arg(&device.0).arg("512M"));
    assert!(said.contains("make it larger first"), "{said}");
    extend(512 * MIB);
    succeed(scratch.cffs(["grow", "-q"]).arg(&device.0));
    assert_eq!(superblock(&scratch, Path::new(&device.0))["size_bytes"], 512 * MIB);
    succeed(scratch.cffs(["fsck", "-n", "-f"]).arg(&device.0));

    let mountpoint = scratch.mountpoint();
    let log = scratch.log_option();
    succeed(scratch.cffs(["mount", "-o", &log]).arg(&device.0).arg(&mountpoint));
    extend(1024 * MIB);
    succeed(scratch.cffs(["grow", "-q"]).arg(&mountpoint));
    fs::write(mountpoint.join("large"), vec![7; 300 << 20]).expect("written");
    assert_eq!(superblock(&scratch, &mountpoint)["size_bytes"], 1024 * MIB);
    scratch.umount();
    succeed(scratch.cffs(["fsck", "-n", "-f"]).arg(&device.0));
    drop(device);
    fs::rename(&backing, scratch.image()).expect("renamed");
    assert_imported(&scratch);
}

/// Writes fail from an offset of the image on. No failed command reports success, and the volume is
/// unchanged.
#[test]
fn no_failed_change_is_reported_as_success() {
    let scratch = Scratch::with_image();
    import(&scratch);
    let before = superblock(&scratch, &scratch.image());
    // The first copy of the superblock is at 128 MiB, here in units of 512 bytes.
    for (limit, arguments) in [
        (1, vec!["tune", "--label", "x"]),
        (200 << 10, vec!["tune", "--label", "x"]),
        (1 << 19, vec!["grow", "+1G"]),
        (2 << 19, vec!["grow", "+1G"]),
        (1, vec!["trim"]),
        (1, vec!["mkfs", "-q", "-f"]),
        (200 << 10, vec!["mkfs", "-q", "-f"]),
    ] {
        let copy = scratch.path().join("copy");
        succeed(Command::new("cp").arg("--sparse=always").arg(scratch.image()).arg(&copy));
        let (verb, rest) = (arguments[0], &arguments[1..]);
        let (flags, values): (Vec<&str>, Vec<&str>) =
            rest.iter().partition(|a| !a.starts_with('+'));
        let script = format!("trap '' XFSZ; ulimit -f {limit}; exec \"$@\"");
        let mut command = Command::new("sh");
        command.args(["-c", &script, "sh", CFFS, verb]).args(flags).arg(&copy).args(values);
        let said = fail(1, &mut command);
        assert!(said.contains(&*copy.display().to_string()), "{arguments:?}: {said}");
        if verb == "mkfs" {
            continue;
        }
        let recovered = scratch.cffs(["fsck", "-p"]).arg(&copy).output().expect("it starts");
        assert!(matches!(recovered.status.code(), Some(0 | 1)), "{arguments:?}: {recovered:?}");
        succeed(scratch.cffs(["fsck", "-n", "-f", "--contents"]).arg(&copy));
        let after = superblock(&scratch, &copy);
        for name in ["label", "uuid", "size_bytes"] {
            assert_eq!(after[name], before[name], "{arguments:?}");
        }
    }
}

#[test]
fn chattr_protects_files_of_a_mount() {
    use std::os::unix::fs::{FileExt, PermissionsExt};
    if !can_mount() || !rustix::process::geteuid().is_root() {
        return;
    }
    let scratch = Scratch::with_image();
    for transport in ["auto", "dev"] {
        scratch.mount(&format!("transport={transport}"));
        let dir = scratch.mountpoint();
        fs::set_permissions(scratch.path(), PermissionsExt::from_mode(0o755)).expect("set");
        fs::set_permissions(&dir, PermissionsExt::from_mode(0o777)).expect("set");
        let (kept, log) = (dir.join("kept"), dir.join("log"));
        fs::write(&kept, b"as it is").expect("written");
        fs::write(&log, b"line\n").expect("written");
        let chattr = |flag: &str, path: &Path| succeed(Command::new("chattr").arg(flag).arg(path));
        let lsattr = |path: &Path| succeed(Command::new("lsattr").arg("-d").arg(path));
        let open = fs::File::options().write(true).open(&kept).expect("opened before");
        chattr("+i", &kept);
        chattr("+a", &log);
        assert!(lsattr(&kept).starts_with("----i---"), "{}", lsattr(&kept));
        assert!(lsattr(&log).starts_with("-----a--"), "{}", lsattr(&log));
        // The server sends the attributes, and newer kernels show them.
        for (path, bit) in [(&kept, StatxAttributes::IMMUTABLE), (&log, StatxAttributes::APPEND)] {
            let shown = rustix::fs::statx(CWD, path, AtFlags::empty(), StatxFlags::BTIME);
            let shown = shown.expect("read");
            if shown.stx_attributes_mask.contains(bit) {
                assert!(shown.stx_attributes.contains(bit), "{path:?}");
            }
        }
        let stats = json(scratch.cffs(["stats", "--json"]).arg(&dir));
        assert!(stats["requests"]["statx"].as_u64() > Some(0), "{}", stats["requests"]);
        let denied = |result: std::io::Result<()>| {
            assert_eq!(result.map_err(|error| error.raw_os_error()), Err(Some(1)), "EPERM");
        };
        denied(fs::write(&kept, b"changed"));
        denied(open.write_all_at(b"changed", 0));
        denied(fs::remove_file(&kept));
        denied(fs::rename(&kept, dir.join("new")));
        denied(fs::hard_link(&kept, dir.join("new")));
        denied(fs::set_permissions(&kept, PermissionsExt::from_mode(0o600)));
        assert_eq!(fs::read(&kept).expect("read"), b"as it is");
        let mut appended = fs::File::options().append(true).open(&log).expect("opened");
        std::io::Write::write_all(&mut appended, b"another\n").expect("appended");
        denied(fs::remove_file(&log));
        denied(fs::File::options().write(true).open(&log).and_then(|file| file.set_len(0)));
        assert_eq!(fs::read(&log).expect("read"), b"line\nanother\n");
        let reserve = |file: &fs::File, flags| Ok(rustix::fs::fallocate(file, flags, 0, 1 << 20)?);
        let keep_size = FallocateFlags::KEEP_SIZE;
        reserve(&appended, keep_size).expect("reserved");
        denied(reserve(&appended, keep_size | FallocateFlags::PUNCH_HOLE));
        denied(reserve(&appended, FallocateFlags::ZERO_RANGE));
        denied(reserve(&open, keep_size));
        denied(reserve(&open, FallocateFlags::empty()));

        // Users other than root can neither set nor clear them.
        fs::write(dir.join("mine"), b"").expect("written");
        std::os::unix::fs::chown(dir.join("mine"), Some(65534), None).expect("given away");
        let mut by_owner = Command::new("setpriv");
        by_owner.args(["--reuid=65534", "--clear-groups", "chattr", "+i"]).arg(dir.join("mine"));
        fail(1, &mut by_owner);
        assert!(lsattr(&dir.join("mine")).starts_with("--------"));
        // An unsupported flag.
        fail(1, Command::new("chattr").arg("+C").arg(dir.join("mine")));
        drop((open, appended));

        scratch.umount();
        scratch.assert_clean();
        scratch.mount("rw");
        assert!(lsattr(&kept).starts_with("----i---"), "it lasts");
        chattr("-i", &kept);
        chattr("-a", &log);
        fs::remove_file(&kept).expect("removed");
        fs::remove_file(&log).expect("removed");
        scratch.umount();
        scratch.assert_clean();
    }
}
