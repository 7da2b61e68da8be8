//! A volume with damage that its checksums do not show: reading and changing it ends, with answers or
//! errors, and what fsck calls mended is.
#![no_main]

use std::sync::LazyLock;

use cffs::device::{Image, MemoryDevice};
use cffs::fsck::{self, CheckOptions, Repair};
use libfuzzer_sys::fuzz_target;

#[path = "../../crates/cffs/tests/golden/damage.rs"]
mod damage;
#[path = "../../crates/cffs/tests/golden/sample.rs"]
mod sample;

static VOLUMES: LazyLock<Vec<(Image, Vec<damage::Region>)>> = LazyLock::new(|| {
    let with_regions = |(_, options)| {
        let image = sample::full(&options).expect("a sample volume can be made");
        let regions = damage::regions(&image);
        (image, regions)
    };
    sample::kinds().into_iter().map(with_regions).collect()
});

fuzz_target!(|input: (u8, Vec<damage::Change>)| {
    let (which, changes) = input;
    let (image, regions) = &VOLUMES[usize::from(which) % VOLUMES.len()];
    let image = damage::damaged(image, regions, &changes);
    let _ = damage::read_all(&image);
    let _ = damage::change(&image);

    let device = MemoryDevice::from_image(image);
    let check = |repair| {
        let mut options = CheckOptions { repair, force: true, contents: true, ..CheckOptions::default() };
        options.threads = 1;
        fsck::check(&device, &options, &())
    };
    if check(Repair::Yes).is_ok_and(|report| report.exit_code() < 4) {
        let again = check(Repair::No).expect("a mended volume can be checked");
        assert!(again.problems.is_empty(), "{:?}", again.problems);
    }
});
