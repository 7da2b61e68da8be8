//! Commands that write or read an image on a device that fails at each step: none of them returns 0 if data
//! is lost, and each reports the state of the volume and the remedy.

use std::fs::{self, File};
use std::io::IoSlice;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::{Command, Output, Stdio};

use crate::harness::failing::{FailingDisk, Fault};
use crate::harness::{Scratch, can_mount, succeed};
use cffs::device::{Access, BlockDevice, FileDevice};

static CONTENTS: [u8; 50_000] = [7; 50_000];

/// The requests after which the device fails: each of the first ones, and some later ones.
const STEPS: [i64; 10] = [0, 1, 2, 3, 4, 5, 8, 13, 24, 40];

/// A command that writes.
struct Case {
    /// Prepares the volume.
    before: fn(&Scratch),
    arguments: &'static [&'static str],
    /// The argument after the image's name.
    last: Option<fn(&Scratch) -> String>,
    /// Its standard input.
    input: fn(&Scratch) -> Stdio,
    /// The exit codes of success, and those of failure.
    success: &'static [i32],
    failure: &'static [i32],
    /// The advice in its message, depending on the failing step.
    advice: &'static [&'static str],
    /// Whether the healed image has the state that the command promised.
    is_done: fn(&Scratch, &Path) -> bool,
}

fn text(output: &Output) -> String {
    format!(
        "{}{}",
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    )
}

fn superblock(scratch: &Scratch, image: &Path) -> serde_json::Value {
    let info = succeed(scratch.cffs(["info", "--json"]).arg(image));
    let mut info: serde_json::Value = serde_json::from_str(&info).expect("it is JSON");
    info["superblock"].take()
}

fn has(scratch: &Scratch, image: &Path, path: &str) -> bool {
    let output = scratch.cffs(["cat"]).arg(image).arg(path).output().expect("it starts");
    output.stdout == CONTENTS
}

/// A volume of 32 MiB with one file, in a larger image.
fn template(scratch: &Scratch, before: fn(&Scratch)) -> File {
    succeed(scratch.cffs(["mkfs", "-q", "--size", "32M"]).arg(scratch.image()));
    let source = scratch.path().join("old");
    fs::write(&source, CONTENTS).expect("written");
    succeed(scratch.cffs(["import", "-q"]).arg(scratch.image()).arg(&source));
    before(scratch);
    let image = File::options().read(true).write(true).open(scratch.image()).expect("open");
    image.set_len(64 << 20).expect("longer");
    image
}

fn nothing(_: &Scratch) {}

fn no_input(_: &Scratch) -> Stdio {
    Stdio::null()
}

/// Leaves the volume as after a crash, with another file.
fn crash(scratch: &Scratch) {
    scratch.mount("clean=never");
    fs::write(scratch.mountpoint().join("new"), CONTENTS).expect("written");
    succeed(scratch.cffs(["sync"]).arg(scratch.mountpoint()));
    let crashed = scratch.path().join("crashed");
    fs::copy(scratch.image(), &crashed).expect("copied");
    scratch.umount();
    fs::rename(crashed, scratch.image()).expect("renamed");
}

const SCATTERED_DIRECTORIES: usize = 6;
const SCATTERED_FILES: usize = 40;
const SCATTERED_BYTES: usize = 5000;

fn scattered(dir: usize, file: usize) -> String {
    format!("d{dir}/f{file}")
}

/// Directories that grow alternately, and then change their files.
fn scatter(scratch: &Scratch) {
    scratch.mount("rw");
    let tree = scratch.mountpoint();
    (0..SCATTERED_DIRECTORIES)
        .for_each(|dir| fs::create_dir(tree.join(format!("d{dir}"))).expect("made"));
    for file in 0..SCATTERED_FILES {
        for dir in 0..SCATTERED_DIRECTORIES {
            let name = format!("d{dir}/g{file}");
            fs::write(tree.join(name), &CONTENTS[..SCATTERED_BYTES]).expect("written");
        }
        if file % 5 == 0 {
            succeed(scratch.cffs(["sync"]).arg(&tree));
        }
    }
    for file in 0..SCATTERED_FILES {
        for dir in 0..SCATTERED_DIRECTORIES {
            let to = scattered((dir * 5 + file * 3) % SCATTERED_DIRECTORIES, dir * 100 + file);
            fs::rename(tree.join(format!("d{dir}/g{file}")), tree.join(to)).expect("renamed");
        }
    }
    scratch.umount();
}

/// Whether the scattered files exist.
fn has_scattered(scratch: &Scratch, image: &Path) -> bool {
    let paths = (0..SCATTERED_DIRECTORIES).flat_map(|from| {
        (0..SCATTERED_FILES).map(move |file| {
            scattered((from * 5 + file * 3) % SCATTERED_DIRECTORIES, from * 100 + file)
        })
    });
    let output = scratch.cffs(["cat"]).arg(image).args(paths).output().expect("it starts");
    output.stdout == [7; SCATTERED_DIRECTORIES * SCATTERED_FILES * SCATTERED_BYTES]
}

fn disk_like(image: &File) -> FailingDisk {
    let data = tempfile::tempfile().expect("a file");
    let mut offset = 0;
    data.set_len(64 << 20).expect("room");
    let mut piece = vec![0; 1 << 20];
    while offset < 32 << 20 {
        image.read_exact_at(&mut piece, offset).expect("read");
        if piece.iter().any(|byte| *byte != 0) {
            data.write_all_at(&piece, offset).expect("written");
        }
        offset += piece.len() as u64;
    }
    FailingDisk::with(data)
}

/// Runs the command on a device that fails after each number of requests of each kind.
fn table(case: &Case) {
    if !can_mount() {
        return;
    }
    let scratch = Scratch::new();
    let image = template(&scratch, case.before);
    for fault in [Fault::Read, Fault::Write, Fault::Flush, Fault::Close] {
        let mut failures = 0;
        for after in STEPS {
            let disk = disk_like(&image);
            disk.fail(fault, after);
            let mut command = scratch.cffs([]);
            command.args(case.arguments).arg(disk.image());
            command.args(case.last.map(|last| last(&scratch)));
            command.stdin((case.input)(&scratch));
            let output = command.output().expect("it starts");
            let said = text(&output);
            let place = format!("{:?}, {fault:?} after {after}: {said}", case.arguments);
            let code = output.status.code().expect("it was not killed");
            let failed = disk.heal();
            let image = disk.image();
            if case.success.contains(&code) {
                assert!((case.is_done)(&scratch, &image), "{place}");
                assert!(failed == 0 || fault == Fault::Close || fault == Fault::Read, "{place}");
                continue;
            }
            failures += 1;
            assert!(case.failure.contains(&code), "{place}");
            assert!(failed > 0, "{place}");
            assert!(said.contains(&*image.to_string_lossy()), "{place}");
            assert!(case.advice.iter().any(|advice| said.contains(advice)), "{place}");
            if case.arguments[0] == "mkfs" {
                continue;
            }
            // Existing files survive, and the advice helps.
            let repaired = scratch.cffs(["fsck", "-y"]).arg(&image).output().expect("it starts");
            assert!(matches!(repaired.status.code(), Some(0 | 1)), "{place}{}", text(&repaired));
            succeed(scratch.cffs(["fsck", "-n", "-f", "--contents"]).arg(&image));
            assert!(has(&scratch, &image, "old"), "{place}");
        }
        assert!(failures > 0 || fault == Fault::Close, "{:?}, {fault:?}", case.arguments);
    }
}

/// Every ordering of writes, and every promise of durability, depends on these two.
#[test]
fn a_barrier_and_a_sync_of_an_image_flush_its_device() {
    if !can_mount() {
        return;
    }
    let disk = FailingDisk::new(1 << 20);
    let device = FileDevice::open(&disk.image(), Access::ReadWrite).expect("open");
    let write = |byte| device.write_at(4096, &[IoSlice::new(&[byte; 4096])]).expect("written");
    let calls: [fn(&FileDevice) -> std::io::Result<()>; 2] =
        [|device| device.barrier(), |device| device.sync()];
    for (call, byte) in calls.into_iter().zip([1, 3]) {
        write(byte);
        call(&device).expect("flushed");
        write(byte + 1);
        assert_eq!(disk.after_power_cut()[4096..8192], [byte; 4096]);
        disk.fail(Fault::Flush, 0);
        assert!(call(&device).is_err());
        assert_eq!(disk.heal(), 1);
    }
}

#[test]
fn mkfs_on_a_device_that_fails() {
    table(&Case {
        before: nothing,
        arguments: &["mkfs", "-q", "--force", "--label", "new"],
        last: None,
        input: no_input,
        success: &[0],
        failure: &[1],
        advice: &["it does not contain a complete volume", "nothing was written"],
        is_done: |scratch, image| superblock(scratch, image)["label"] == "new",
    });
}

#[test]
fn import_on_a_device_that_fails() {
    table(&Case {
        before: nothing,
        arguments: &["import", "-q"],
        last: Some(|scratch| {
            let source = scratch.path().join("imported");
            fs::write(&source, CONTENTS).expect("written");
            source.display().to_string()
        }),
        input: no_input,
        success: &[0],
        failure: &[1],
        advice: &["copied files may be lost"],
        is_done: |scratch, image| has(scratch, image, "imported"),
    });
}

#[test]
fn tune_on_a_device_that_fails() {
    table(&Case {
        before: nothing,
        arguments: &["tune", "-q", "--label", "new"],
        last: None,
        input: no_input,
        success: &[0],
        failure: &[1],
        advice: &["no file is"],
        is_done: |scratch, image| superblock(scratch, image)["label"] == "new",
    });
}

#[test]
fn grow_on_a_device_that_fails() {
    table(&Case {
        before: nothing,
        arguments: &["grow", "-q"],
        last: None,
        input: no_input,
        success: &[0],
        failure: &[1],
        advice: &["no file is"],
        is_done: |scratch, image| superblock(scratch, image)["size_bytes"] == 64 << 20,
    });
}

#[test]
fn trim_on_a_device_that_fails() {
    table(&Case {
        before: nothing,
        arguments: &["trim", "-q"],
        last: None,
        input: no_input,
        success: &[0],
        failure: &[1],
        advice: &["no file is lost"],
        is_done: |scratch, image| has(scratch, image, "old"),
    });
}

#[test]
fn tar_extract_on_a_device_that_fails() {
    table(&Case {
        before: nothing,
        arguments: &["tar", "--extract"],
        last: None,
        input: |scratch| {
            let (source, archive) = (scratch.path().join("extracted"), scratch.path().join("tar"));
            fs::write(&source, CONTENTS).expect("written");
            let mut tar = Command::new("tar");
            tar.arg("-cf").arg(&archive).arg("-C").arg(scratch.path()).arg("extracted");
            succeed(&mut tar);
            File::open(archive).expect("open").into()
        },
        success: &[0],
        failure: &[1],
        advice: &["extracted files may be lost"],
        is_done: |scratch, image| has(scratch, image, "extracted"),
    });
}

#[test]
fn regroup_on_a_device_that_fails() {
    table(&Case {
        before: scatter,
        arguments: &["regroup"],
        last: None,
        input: no_input,
        success: &[0],
        failure: &[1],
        advice: &["no file is lost"],
        is_done: has_scattered,
    });
}

/// Either an export from an image with failing reads is complete, or the exit code is not 0.
#[test]
fn export_from_a_device_that_fails() {
    if !can_mount() {
        return;
    }
    let scratch = Scratch::new();
    let image = template(&scratch, nothing);
    let mut failures = 0;
    for after in STEPS {
        let disk = disk_like(&image);
        disk.fail(Fault::Read, after);
        let target = scratch.path().join(format!("out{after}"));
        let mut command = scratch.cffs(["export", "-q"]);
        let output = command.arg(disk.image()).args(["old".as_ref(), target.as_os_str()]).output();
        let output = output.expect("it starts");
        let said = text(&output);
        match output.status.code() {
            Some(0) => {
                assert_eq!(disk.heal(), 0, "after {after}: {said}");
                assert!(fs::read(&target).expect("there") == CONTENTS, "after {after}");
            }
            code => {
                failures += 1;
                assert_eq!(code, Some(1), "after {after}: {said}");
                let names = [disk.image(), target, "old".into()];
                let is_named = names.iter().any(|name| said.contains(&*name.to_string_lossy()));
                assert!(is_named, "after {after}: {said}");
            }
        }
    }
    assert!(failures > 0);
}

/// Either an export to a file system that fails, possibly when a file is closed, is on its device, or the
/// exit code is not 0. The kernel does not forward syncfs(2) to this file system.
#[test]
fn export_to_a_file_system_that_fails() {
    if !can_mount() {
        return;
    }
    let scratch = Scratch::new();
    template(&scratch, nothing);
    for fault in [Fault::Write, Fault::Flush, Fault::Close] {
        let (mut failures, mut successes) = (0, 0);
        for after in [0, 1, 2, 5] {
            let target = FailingDisk::new(CONTENTS.len() as u64);
            target.fail(fault, after);
            let mut command = scratch.cffs(["export", "-q", "--no-owner"]);
            let output = command.arg(scratch.image()).arg("old").arg(target.image()).output();
            let output = output.expect("it starts");
            let (said, failed) = (text(&output), target.heal());
            let case = format!("{fault:?} after {after}: {said}");
            if output.status.code() == Some(0) {
                successes += 1;
                assert_eq!(failed, 0, "{case}");
                assert!(target.after_power_cut() == CONTENTS, "{case}");
                continue;
            }
            failures += 1;
            assert_eq!(output.status.code(), Some(1), "{case}");
            assert!(said.contains(&*target.image().to_string_lossy()), "{case}");
        }
        assert!(failures > 0 && successes > 0, "{fault:?}");
    }
}

/// No scrub with failing reads reports a volume without problems.
#[test]
fn scrub_on_a_device_that_fails() {
    if !can_mount() {
        return;
    }
    let scratch = Scratch::new();
    let image = template(&scratch, nothing);
    for is_mounted in [false, true] {
        let (mut failures, mut successes) = (0, 0);
        for after in STEPS.into_iter().chain([1000]) {
            let disk = disk_like(&image);
            let mut target = disk.image();
            if is_mounted {
                target = scratch.mountpoint();
                let mut mount = scratch.cffs(["mount", "-o", &scratch.log_option()]);
                succeed(mount.arg(disk.image()).arg(&target));
            }
            disk.fail(Fault::Read, after);
            let output = scratch.cffs(["scrub", "--rate", "0"]).arg(&target).output();
            let output = output.expect("it starts");
            let (said, failed) = (text(&output), disk.heal());
            if is_mounted {
                scratch.umount();
            }
            let case = format!("after {after}, mounted {is_mounted}: {said}");
            match output.status.code() {
                Some(0) => {
                    successes += 1;
                    // The server of a mount reads as well, for example the mark of its process.
                    assert!(failed == 0 || is_mounted, "{case}");
                    assert!(said.contains("0 problems; complete"), "{case}");
                }
                code => {
                    failures += 1;
                    assert!(matches!(code, Some(4 | 8)) && failed > 0, "{code:?}, {case}");
                    assert!(said.contains(&*target.to_string_lossy()), "{case}");
                    assert!(said.contains("nput/output error"), "{case}");
                }
            }
        }
        assert!(failures > 0 && successes > 0, "mounted {is_mounted}");
    }
}

#[test]
fn fsck_p_on_a_device_that_fails() {
    table(&Case {
        before: crash,
        arguments: &["fsck", "-p"],
        last: None,
        input: no_input,
        success: &[0, 1],
        failure: &[4, 8],
        advice: &["cffs fsck again"],
        is_done: |scratch, image| {
            has(scratch, image, "new") && superblock(scratch, image)["state"] == "clean"
        },
    });
}

#[test]
fn fsck_y_on_a_device_that_fails() {
    table(&Case {
        before: crash,
        arguments: &["fsck", "-f", "-y"],
        last: None,
        input: no_input,
        success: &[0, 1],
        failure: &[4, 8],
        advice: &["cffs fsck again"],
        is_done: |scratch, image| {
            has(scratch, image, "new") && superblock(scratch, image)["state"] == "clean"
        },
    });
}

/// Regression: the program looked for its mark in the superblock, and ended when that could not be read,
/// although copies of it could.
#[test]
fn fsck_y_restores_a_superblock_that_cannot_be_read() {
    if !can_mount() {
        return;
    }
    let scratch = Scratch::new();
    let image = template(&scratch, nothing);
    let disk = disk_like(&image);
    disk.lose(0..4096);
    let fsck = |options: &[&str]| {
        let mut command = scratch.cffs(["fsck"]);
        let output = command.args(options).arg(disk.image()).output().expect("it starts");
        let said = String::from_utf8_lossy(&output.stdout).into_owned() + &text(&output);
        (output.status.code(), said)
    };
    for (option, expected) in [("-n", 4), ("-p", 4), ("-y", 1)] {
        let (code, said) = fsck(&[option]);
        assert_eq!(code, Some(expected), "{option}: {said}");
        assert!(said.contains("CF0101"), "{option}: {said}");
    }
    let (code, said) = fsck(&["-n", "-f", "--contents"]);
    assert_eq!(code, Some(0), "{said}");
    assert!(has(&scratch, &disk.image(), "old"));
}
