//! No program opens a device for writing that another program has open, by whatever path.
//!
//! Two loop devices, or an image and a loop device over it, could be mounted at the same time, and writes
//! through one were lost when the other was unmounted.

use std::cmp::Ordering;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::process::Command;

use super::*;
use crate::device::Excluded;
use crate::device::file::lock::{Span, Use};

fn written_by_somebody(outcome: Result<FileDevice, OpenError>) {
    match outcome {
        Err(OpenError::InUse { by: User::Writer(Some(process)), .. }) => {
            assert_eq!(process.pid, std::process::id());
        }
        outcome => panic!("{outcome:?}"),
    }
}

fn claimed_through(outcome: Result<FileDevice, OpenError>, device: &Path) {
    match outcome {
        Err(OpenError::InUse { by: User::Claim(Some(path)), .. }) => assert_eq!(path, device),
        outcome => panic!("{outcome:?}"),
    }
}

#[test]
fn another_name_of_an_image_has_the_same_lock() {
    let scratch = Scratch::new();
    let _writer = scratch.create(8192);
    let (hard, soft) =
        (scratch.path().with_extension("hard"), scratch.path().with_extension("soft"));
    std::fs::hard_link(scratch.path(), &hard).unwrap();
    symlink(scratch.path(), &soft).unwrap();
    for path in [hard, soft] {
        for access in [Access::ReadOnly, Access::ReadWrite] {
            written_by_somebody(FileDevice::open(&path, access));
        }
    }
}

/// `flock -x` on an image that anybody could read made the mount wait for a minute.
#[test]
fn a_reader_of_an_image_cannot_lock_it_as_a_writer() {
    let scratch = Scratch::new();
    drop(scratch.create(8192));
    let other = File::open(scratch.path()).unwrap();
    rustix::fs::flock(&other, rustix::fs::FlockOperation::LockExclusive).unwrap();
    FileDevice::open(&scratch.path(), Access::ReadWrite).unwrap();

    assert_eq!(lock::lock(&other, Span::ALL, Access::ReadOnly).unwrap(), None);
    let begun = Instant::now();
    let patient = Duration::from_secs(60);
    let error = FileDevice::open_waiting(&scratch.path(), Access::ReadWrite, patient).unwrap_err();
    assert!(begun.elapsed() < Duration::from_secs(30), "readers are not waited for for long");
    let OpenError::InUse { by: User::Reader(Some(process)), .. } = &error else {
        panic!("{error:?}");
    };
    assert_eq!(process.pid, std::process::id());
    assert!(error.to_string().contains("being read by process"), "{error}");
    // The lock that a writer takes is refused to it.
    assert!(lock::lock(&other, Span::ALL, Access::ReadWrite).is_err());
}

#[test]
fn an_image_is_made_only_for_its_owner() {
    let scratch = Scratch::new();
    drop(scratch.create(8192));
    let mode = std::fs::metadata(scratch.path()).unwrap().permissions().mode();
    assert_eq!(mode & 0o077, 0, "{mode:o}");
    // One that was there keeps its mode.
    std::fs::set_permissions(scratch.path(), std::fs::Permissions::from_mode(0o644)).unwrap();
    drop(scratch.create(8192));
    assert_eq!(std::fs::metadata(scratch.path()).unwrap().permissions().mode() & 0o777, 0o644);
}

/// Of several volumes in one file, the one that begins at the same byte is in use. Regression: the first lock
/// that was found decided.
#[test]
fn the_holder_of_a_range_is_the_one_that_begins_with_it() {
    let scratch = Scratch::new();
    drop(scratch.create(8192));
    let open = || File::options().read(true).write(true).open(scratch.path()).unwrap();
    let [first, second, third] = [0, 4096, 6144].map(|start| Span { start, len: Some(1024) });
    let (later, sooner, own) = (open(), open(), open());
    let begins = |span| lock::holder(&own, span, Use::Writes).map(|process| process.begins);
    assert_eq!(begins(Span::ALL), None);
    assert_eq!(lock::lock(&later, third, Access::ReadWrite).unwrap(), None);
    assert_eq!(begins(Span::ALL), Some(Ordering::Greater));
    assert_eq!(begins(Span { start: 6656, len: None }), Some(Ordering::Less));
    assert_eq!(lock::lock(&later, second, Access::ReadWrite).unwrap(), None);
    assert_eq!(begins(Span { start: 6144, len: None }), Some(Ordering::Equal));
    assert_eq!(begins(Span { start: 4096, len: None }), Some(Ordering::Equal));
    assert_eq!(lock::lock(&sooner, first, Access::ReadWrite).unwrap(), None);
    assert_eq!(begins(Span::ALL), Some(Ordering::Equal));
    assert_eq!(lock::holder(&own, Span::ALL, Use::Reads), None);
}

#[test]
fn spans_are_cut_to_what_they_are_part_of() {
    let span = |start, len| Span { start, len };
    assert_eq!(Span::ALL.part(10, Some(5)), span(10, Some(5)));
    assert_eq!(span(100, Some(20)).part(10, None), span(110, Some(10)));
    assert_eq!(span(100, Some(20)).part(10, Some(50)), span(110, Some(10)));
    assert_eq!(span(100, Some(20)).part(30, None), span(130, Some(0)));
    assert!(span(0, None).overlaps(span(5, Some(1))));
    assert!(!span(0, Some(5)).overlaps(span(5, None)));
    assert!(!span(9, None).overlaps(span(0, Some(9))));
}

impl Loop {
    fn with(image: &Path, arguments: &[&str]) -> Loop {
        let arguments = [&["--find", "--show"], arguments].concat();
        Loop { path: PathBuf::from(run("losetup", &arguments, image).trim_end()) }
    }
}

#[test]
#[ignore = "needs root, for loop devices"]
fn an_image_and_the_loop_devices_over_it_have_one_writer() {
    let scratch = image_of_16_mib();
    let image = scratch.path();
    let (first, second) = (Loop::over(&image), Loop::over(&image));
    let over_first = Loop::over(&first.path);
    let paths = [&image, &first.path, &second.path, &over_first.path];
    for writer in paths {
        let device = FileDevice::open(writer, Access::ReadWrite).unwrap();
        assert_eq!(device.hints().excludes, Excluded::OfHost);
        for other in paths {
            for access in [Access::ReadOnly, Access::ReadWrite] {
                let outcome = FileDevice::open(other, access);
                let is_in_use = matches!(outcome, Err(OpenError::InUse { .. }));
                assert!(is_in_use, "{writer:?} is written, {other:?}: {outcome:?}");
            }
        }
    }
    // Readers go together, and keep writers away.
    let _reader = FileDevice::open(&over_first.path, Access::ReadOnly).unwrap();
    FileDevice::open(&image, Access::ReadOnly).unwrap();
    for path in paths {
        let outcome = FileDevice::open(path, Access::ReadWrite);
        assert!(matches!(outcome, Err(OpenError::InUse { .. })), "{path:?}: {outcome:?}");
    }
}

#[test]
#[ignore = "needs root, for loop devices"]
fn volumes_in_different_ranges_of_a_file_are_different_volumes() {
    let scratch = image_of_16_mib();
    let limit = (4_u64 << 20).to_string();
    let head = Loop::with(&scratch.path(), &["--sizelimit", &limit]);
    let next = Loop::with(&scratch.path(), &["--offset", &limit, "--sizelimit", &limit]);
    let tail = Loop::with(&scratch.path(), &["--offset", &limit]);
    let _head = FileDevice::open(&head.path, Access::ReadWrite).unwrap();
    let next_device = FileDevice::open(&next.path, Access::ReadWrite).unwrap();
    written_by_somebody(FileDevice::open(&tail.path, Access::ReadWrite));
    written_by_somebody(FileDevice::open(&scratch.path(), Access::ReadWrite));
    drop(next_device);
    FileDevice::open(&tail.path, Access::ReadWrite).unwrap();
}

#[test]
#[ignore = "needs root, for loop devices"]
fn a_partition_and_what_it_is_a_part_of_have_one_writer() {
    let scratch = image_of_16_mib();
    let whole = Loop::with(&scratch.path(), &["--partscan"]);
    let sectors = |bytes: u64| (bytes / 512).to_string();
    let device = whole.path.to_str().unwrap();
    let part = PathBuf::from(format!("{device}p1"));
    let added = Command::new("addpart")
        .args([device, "1", &sectors(1 << 20), &sectors(8 << 20)])
        .status()
        .unwrap();
    assert!(added.success());
    let number = std::fs::read_to_string(format!(
        "/sys/class/block/{}/dev",
        part.file_name().unwrap().display()
    ));
    assert!(number.is_ok());
    let over_image = Loop::with(
        &scratch.path(),
        &["--offset", &(1 << 20).to_string(), "--sizelimit", &(8 << 20).to_string()],
    );
    let paths = [&part, &whole.path, &over_image.path, &scratch.path()];
    for writer in paths {
        let _device = FileDevice::open(writer, Access::ReadWrite).unwrap();
        for other in paths {
            let outcome = FileDevice::open(other, Access::ReadWrite);
            let is_in_use = matches!(outcome, Err(OpenError::InUse { .. }));
            assert!(is_in_use, "{writer:?} is written, {other:?}: {outcome:?}");
        }
    }
}

#[test]
#[ignore = "needs root, for loop devices"]
fn a_file_that_was_removed_still_has_one_writer() {
    let scratch = image_of_16_mib();
    let (first, second) = (Loop::over(&scratch.path()), Loop::over(&scratch.path()));
    std::fs::remove_file(scratch.path()).unwrap();
    let device = FileDevice::open(&first.path, Access::ReadWrite).unwrap();
    assert_eq!(device.hints().excludes, Excluded::None, "its file cannot be locked");
    claimed_through(FileDevice::open(&second.path, Access::ReadWrite), &first.path);
}

/// The kernel has it mounted; the server that holds the image made that loop device itself.
#[test]
#[ignore = "needs root, for a mount"]
fn an_image_of_which_a_loop_device_is_mounted_is_in_use() {
    let (scratch, disk) = disk_of_16_mib();
    let mount_point = formatted(&scratch, &disk);
    run("mount", &[disk.path.to_str().unwrap()], &mount_point);
    let image = FileDevice::open(&scratch.path(), Access::ReadWrite);
    let other = Loop::over(&scratch.path());
    let through_other = FileDevice::open(&other.path, Access::ReadWrite);
    run("umount", &[], &mount_point);
    claimed_through(image, &disk.path);
    claimed_through(through_other, &disk.path);
}

#[test]
#[ignore = "needs root, for a mount"]
fn the_kernel_can_claim_a_device_that_is_locked_on() {
    let (scratch, disk) = disk_of_16_mib();
    let mount_point = formatted(&scratch, &disk);
    let device = FileDevice::open(&disk.path, Access::ReadWrite).unwrap();
    let mount = |program: &str| {
        Command::new(program).arg(&disk.path).arg(&mount_point).output().unwrap().status.success()
    };
    assert!(!mount("mount"), "the device is claimed");
    device.lend_claim();
    written_by_somebody(FileDevice::open(&scratch.path(), Access::ReadWrite));
    let is_mounted = mount("mount");
    if is_mounted {
        run("umount", &[], &mount_point);
    }
    assert!(is_mounted);
}

#[test]
#[ignore = "needs root, for a loop device"]
fn a_write_protected_device_says_so() {
    let scratch = image_of_16_mib();
    let disk = Loop::with(&scratch.path(), &["--read-only"]);
    let error = FileDevice::open(&disk.path, Access::ReadWrite).unwrap_err();
    assert!(matches!(error, OpenError::WriteProtected { .. }), "{error:?}");
    assert!(error.to_string().ends_with("write-protected"), "{error}");
    FileDevice::open(&disk.path, Access::ReadOnly).unwrap();
}

/// The kernel remembers a block that it has read of a loop device, though its file was written since.
#[test]
#[ignore = "needs root, for a loop device"]
fn writes_beneath_are_seen_on_request() {
    let (scratch, disk) = disk_of_16_mib();
    let device = FileDevice::open(&disk.path, Access::ReadOnly).unwrap();
    let read = || {
        let mut byte = [0];
        device.read_at(0, &mut byte).unwrap();
        byte[0]
    };
    assert_eq!(read(), 0);
    let image = File::options().write(true).open(scratch.path()).unwrap();
    image.write_all_at(&[1], 0).unwrap();
    assert_eq!(read(), 0, "the kernel remembers");
    device.control().drop_cached(0, 4096);
    assert_eq!(read(), 1);
    image.write_all_at(&[2], 0).unwrap();
    let again = FileDevice::open(&disk.path, Access::ReadOnly).unwrap();
    let mut byte = [0];
    again.read_at(0, &mut byte).unwrap();
    assert_eq!(byte, [2]);
}
