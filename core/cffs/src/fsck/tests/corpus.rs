//! The corruption corpus: a volume, one problem of each kind with its checksums right, the exact
//! report, the repair, a second run without a finding, and everything else as it was.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::damage::{CASES, Case};
use super::image::{Image, walk};
use super::volumes::{open, run};
use crate::device::{BlockDevice, Geometry, MemoryDevice, VolatileDevice};
use crate::fsck::problems::PROBLEMS;
use crate::fsck::{CheckOptions, Code, Place, Repair, Report, Severity, check};
use crate::mkfs::MkfsOptions;

fn findings(report: &Report) -> Vec<(Code, Place)> {
    report.problems.iter().map(|problem| (problem.code, problem.place)).collect()
}

fn options(case: &Case) -> MkfsOptions {
    MkfsOptions { embed: case.embed, compression: case.compression, ..MkfsOptions::default() }
}

fn check_case(case: &Case) {
    let name = case.name;
    let image = Image::new(&options(case));
    let expected = (case.inject)(&image);

    let report = run(&image.device, Repair::No);
    assert_eq!(findings(&report), expected, "{name}: {:#?}", report.problems);
    assert_eq!(report.exit_code(), 4, "{name}");
    assert!(report.write_requests == 0, "{name}: a check writes nothing");
    for problem in &report.problems {
        let place = format!("{}: ", problem.place);
        assert!(!problem.message.starts_with(&place), "{name}: it is named twice: {problem}");
    }

    let is_derived = expected.iter().all(|(code, _)| code.severity() == Severity::Derived);
    if !is_derived {
        let report = run(&image.device, Repair::Preen);
        assert_eq!(report.exit_code(), 4, "{name}: preening leaves damage alone");
        assert_eq!(report.write_requests, 0, "{name}");
    }
    let repair = if is_derived { Repair::Preen } else { Repair::Yes };
    let report = run(&image.device, repair);
    assert_eq!(findings(&report), expected, "{name}: {:#?}", report.problems);
    assert_eq!(report.exit_code(), 1, "{name}: {report:#?}");

    let report = run(&image.device, Repair::No);
    assert_eq!(findings(&report), [], "{name}, second run: {:#?}", report.problems);
    assert_eq!((report.exit_code(), report.recovery), (0, false), "{name}");

    assert_spared(case, &image, &image.device);
}

/// Everything that the case does not damage is as it was.
fn assert_spared(case: &Case, image: &Image, device: &Arc<MemoryDevice>) {
    let name = case.name;
    let volume = open(device);
    let mut seen = walk(&volume, &mut BTreeMap::new());
    volume.close().expect("close");
    seen.retain(|path, _| !path.starts_with("/lost+found"));
    let mut kept = image.seen.clone();
    for map in [&mut seen, &mut kept] {
        map.retain(|path, _| !case.lost.iter().any(|lost| path.starts_with(lost)));
    }
    let paths = |map: &BTreeMap<String, _>| map.keys().cloned().collect::<BTreeSet<_>>();
    assert_eq!(paths(&seen), paths(&kept), "{name}");
    assert!(seen == kept, "{name}: a file that was not damaged has changed");
}

#[test]
fn every_case_is_found_repaired_and_gone() {
    let only = std::env::var("CASE").ok();
    let chosen = CASES.iter().filter(|case| only.as_deref().is_none_or(|only| only == case.name));
    let failed: Vec<&str> = chosen
        .filter(|case| std::panic::catch_unwind(|| check_case(case)).is_err())
        .map(|case| case.name)
        .collect();
    assert!(failed.is_empty(), "these cases failed: {failed:?}");
}

#[test]
fn every_code_has_a_case() {
    let cased: BTreeSet<Code> = CASES.iter().flat_map(|case| case.codes.iter().copied()).collect();
    // These are about the device, of the repair, or of a journal, which the volumes here do not have
    // (tests/integration/journal.rs), and not of one wrong thing in an image.
    let apart = [
        Code::Unrepaired,
        Code::NoSpace,
        Code::ContentsLost,
        Code::DeviceTooSmall,
        Code::JournalHeader,
        Code::JournalLost,
    ];
    for problem in PROBLEMS.iter().filter(|problem| !apart.contains(&problem.code)) {
        assert!(cased.contains(&problem.code), "{} has no case", problem.id);
    }
}

#[test]
fn a_repair_that_is_cut_short_is_completed_by_the_next() {
    let repair = CheckOptions {
        repair: Repair::Yes,
        force: true,
        contents: true,
        threads: 1,
        ..CheckOptions::default()
    };
    for case in CASES {
        let image = Image::new(&options(case));
        (case.inject)(&image);
        let volatile = Unsynced(VolatileDevice::new(image.device.snapshot()));
        check(&volatile, &repair, &()).expect("check");
        for seed in 0..6 {
            let crashed = volatile.0.crash_seeded(seed).expect("crash");
            let device = Arc::new(MemoryDevice::from_image(crashed));
            run(&device, Repair::Yes);
            let report = run(&device, Repair::No);
            assert_eq!(findings(&report), [], "{} seed {seed}: {report:#?}", case.name);
            assert_spared(case, &image, &device);
        }
    }
}

/// A device that never makes anything durable, so that a crash may strike at any time.
struct Unsynced(VolatileDevice);

impl BlockDevice for Unsynced {
    fn geometry(&self) -> Geometry {
        self.0.geometry()
    }
    fn read_at(&self, offset: u64, buf: &mut [u8]) -> std::io::Result<()> {
        self.0.read_at(offset, buf)
    }
    fn write_at(&self, offset: u64, bufs: &[std::io::IoSlice<'_>]) -> std::io::Result<()> {
        self.0.write_at(offset, bufs)
    }
    fn barrier(&self) -> std::io::Result<()> {
        self.0.barrier()
    }
    fn sync(&self) -> std::io::Result<()> {
        self.0.barrier()
    }
    fn discard(&self, offset: u64, len: u64) -> std::io::Result<()> {
        self.0.discard(offset, len)
    }
}

#[test]
fn a_truncated_device_is_not_changed() {
    let image = Image::new(&MkfsOptions::default());
    let geometry = Geometry { size_bytes: 32 << 20, ..image.device.geometry() };
    let mut half = vec![0; 32 << 20];
    image.device.read_at(0, &mut half).expect("read");
    let short = MemoryDevice::with_geometry(geometry);
    short.write_at(0, &[std::io::IoSlice::new(&half)]).expect("write");
    let report = run(&short, Repair::Yes);
    assert_eq!(findings(&report), [(Code::DeviceTooSmall, Place::Volume)]);
    assert_eq!((report.exit_code(), report.write_requests), (4, 0));
}

#[test]
fn a_device_without_a_volume_is_an_error() {
    let options = CheckOptions { repair: Repair::Yes, ..CheckOptions::default() };
    assert!(check(&MemoryDevice::new(8 << 20), &options, &()).is_err());
    assert!(check(&MemoryDevice::new(100), &options, &()).is_err());
}
