//! Copies on a device that fails at each step: whatever was lost, something says so.

use super::*;
use crate::device::FaultDevice;
use crate::device::fault::{Effect, Fault, Strike, Target};
use crate::error::Result;

/// `EIO`.
const IO_ERROR: i32 = 5;
/// How many steps of each kind are tried at most, spread over all there are.
const STEPS_MAX: u64 = 40;

type Device = Arc<FaultDevice<Arc<MemoryDevice>>>;

fn device_of(made: &MemoryDevice) -> Device {
    let copy = MemoryDevice::from_image(made.snapshot());
    Arc::new(FaultDevice::new(Arc::new(copy), 1))
}

fn opened(device: &Device, read_only: bool) -> Result<Files> {
    let options = OpenOptions { read_only, ..OpenOptions::default() };
    let clock = Arc::new(TestClock::default());
    Ok(Files::new(Arc::new(crate::open::open(device.clone(), clock, options)?)))
}

/// Has all requests of a kind fail from each step on, and calls `copy`, which says whether it claims to
/// have copied all.
fn fail_from_each_step(
    target: &Target,
    made: &MemoryDevice,
    copy: impl Fn(&Device) -> bool,
    is_complete: impl Fn(&Device) -> bool,
) {
    let begin = |step| {
        let device = device_of(made);
        let effect = Effect::Error(IO_ERROR);
        device.arm(Fault { target: target.clone(), strike: Strike::From(step), effect });
        device
    };
    // How many steps there are, by halving.
    let strikes = |step| {
        let device = begin(step);
        copy(&device);
        device.struck() > 0
    };
    let mut steps = 1;
    while strikes(steps) {
        steps *= 2;
    }
    let mut failed = 0;
    for step in (0..steps).step_by(steps.div_ceil(STEPS_MAX) as usize) {
        let device = begin(step);
        let claims = copy(&device);
        failed += u64::from(!claims);
        device.disarm();
        assert!(!claims || is_complete(&device), "{target:?} from {step} on: something is lost");
    }
    assert!(failed > 0);
}

fn claims_all(copied: std::result::Result<super::super::Summary, CopyError>) -> bool {
    copied.is_ok_and(|summary| summary.failures == 0)
}

#[test]
fn an_import_that_lost_something_says_so() {
    let host = tempfile::tempdir().expect("a directory");
    let source = host.path().join("source");
    build_tree(&source);
    let made = MemoryDevice::new(16 << 20);
    mkfs::make(&made, &MkfsOptions::default()).expect("the volume is made");
    let copy = |device: &Device| {
        let Ok(files) = opened(device, false) else { return false };
        let copied = import(&files, &source, b"/", &CopyOptions::default(), &());
        // The order of evaluation matters: it is closed in any case.
        files.close().is_ok() & claims_all(copied)
    };
    let is_complete = |device: &Device| {
        let target = tempfile::tempdir().expect("a directory");
        let target = target.path().join("back");
        let files = opened(device, true).expect("it opens");
        assert!(claims_all(export(&files, b"/", &target, &CopyOptions::default(), &())));
        assert_same(&source, &target);
        true
    };
    for target in [Target::writes(), Target::flushes(), Target::reads()] {
        fail_from_each_step(&target, &made, copy, is_complete);
    }
}

#[test]
fn an_export_that_lost_something_says_so() {
    let host = tempfile::tempdir().expect("a directory");
    let (source, target) = (host.path().join("source"), host.path().join("target"));
    build_tree(&source);
    let made = Arc::new(MemoryDevice::new(16 << 20));
    mkfs::make(&made, &MkfsOptions::default()).expect("the volume is made");
    let clock = Arc::new(TestClock::default());
    let volume = Volume::open(made.clone(), clock, OpenOptions::default()).expect("it opens");
    let files = Files::new(Arc::new(volume));
    assert!(claims_all(import(&files, &source, b"/", &CopyOptions::default(), &())));
    files.close().expect("closed");
    let copy = |device: &Device| {
        let _ = fs::remove_dir_all(&target);
        let Ok(files) = opened(device, true) else { return false };
        claims_all(export(&files, b"/", &target, &CopyOptions::default(), &()))
    };
    let is_complete = |_: &Device| {
        assert_same(&source, &target);
        true
    };
    fail_from_each_step(&Target::reads(), &made, copy, is_complete);
}

/// One file of many cannot be read: it is named, and the others are copied.
#[test]
fn files_that_cannot_be_read_are_named() {
    let host = tempfile::tempdir().expect("a directory");
    let files = files();
    files.write("/good", b"fine").expect("written");
    files.write("/bad", &[7; 100_000]).expect("written");
    files.volume().sync().expect("durable");
    let failures = Failures::default();
    // A directory has the name of the file.
    fs::create_dir_all(host.path().join("target/bad/x")).expect("made");
    let target = host.path().join("target");
    let summary = export(&files, b"/", &target, &CopyOptions::default(), &failures);
    assert_eq!(summary.expect("goes on").failures, 1);
    assert_eq!(failures.0.into_inner(), 1);
    assert_eq!(fs::read(target.join("good")).expect("read"), b"fine");
}
