//! A volume with damage that its checksums do not reveal: reading and changing it ends, with results or
//! errors, and a volume that fsck reports as repaired is sound.

use std::sync::LazyLock;

use cffs::device::{Geometry, Image, MemoryDevice};
use cffs::fsck::{self, CheckOptions, Repair};
use cffs::vfs;
use cffs_testing::golden::{damage, sample};

use crate::input::Input;

/// The maximum number of changes.
const CHANGES_MAX: usize = 12;

static VOLUMES: LazyLock<Vec<(Image, Vec<damage::Region>)>> = LazyLock::new(|| {
    let with_regions = |(_, options)| {
        let image = sample::full(&options).expect("a sample volume can be made");
        let regions = damage::regions(&image);
        (image, regions)
    };
    sample::kinds().into_iter().map(with_regions).collect()
});

/// Opens the volume, and reads everything that can be reached.
pub fn walk(data: &[u8]) {
    let _ = damage::read_all(&mutated(data));
}

/// Opens the volume, reads everything, makes some changes, closes and checks it: the check ends, and a volume
/// that could be opened can be opened again.
pub fn write(data: &[u8]) {
    let image = mutated(data);
    let _ = damage::read_all(&image);
    let _ = damage::change(&image);
    let _ = check(&MemoryDevice::from_image(image), Repair::No);
}

/// Repairs the volume. If that succeeds, a second check finds nothing, and the volume can be read and
/// changed.
pub fn repair(data: &[u8]) {
    let device = MemoryDevice::from_image(mutated(data));
    // Some volumes cannot be repaired, for example one whose superblock has a wrong size.
    if !check(&device, Repair::Yes).is_ok_and(|report| report.exit_code() < 4) {
        return;
    }
    let again = check(&device, Repair::No).expect("a mended volume can be checked");
    assert!(again.problems.is_empty(), "{:?}", again.problems);
    let mended = device.snapshot();
    let superblock = vfs::read_superblock(&device).expect("a mended volume has a superblock");
    if superblock.writable() {
        damage::read_all(&mended).expect("a mended volume can be read");
        damage::change(&mended).expect("a mended volume can be changed");
    }
}

pub(crate) fn check(device: &MemoryDevice, repair: Repair) -> cffs::error::Result<fsck::Report> {
    let options =
        CheckOptions { repair, force: true, contents: true, threads: 1, ..CheckOptions::default() };
    fsck::check(device, &options, &())
}

/// One of the sample volumes, changed as the input determines.
fn mutated(data: &[u8]) -> Image {
    let mut input = Input::new(data);
    let shape = input.byte();
    let (image, regions) = &VOLUMES[usize::from(shape) % VOLUMES.len()];
    let mut changes = Vec::new();
    for _ in 0..CHANGES_MAX {
        if input.is_empty() {
            break;
        }
        let region = input.below(regions.len());
        let at = input.below(regions[region].used.max(1));
        let patch = match input.byte() % 4 {
            // Data of another structure: its numbers, its names, its extents.
            0 => elsewhere(image, regions, &mut input),
            // The place of another structure.
            1 => place(regions, &mut input),
            _ => input.patch(),
        };
        changes.extend(patch.iter().zip(at..).map(|(byte, at)| (region as u16, at as u16, *byte)));
    }
    let image = damage::damaged(image, regions, &changes);
    if shape >= 240 { truncated(&image, shape - 240) } else { image }
}

fn elsewhere(image: &Image, regions: &[damage::Region], input: &mut Input<'_>) -> Vec<u8> {
    let region = &regions[input.below(regions.len())];
    let at = input.below(region.used.max(1));
    let mut bytes = vec![0; usize::from(input.byte() % 64) + 1];
    // Bytes outside of the image read as zeros.
    let _ = image.read(region.start + at as u64, &mut bytes);
    bytes
}

/// The number of the fragment or block at which a structure begins: sizes of 512, 1024 and 4096 bytes.
fn place(regions: &[damage::Region], input: &mut Input<'_>) -> Vec<u8> {
    let start = regions[input.below(regions.len())].start;
    let unit = [512, 1024, 4096][input.below(3)];
    (start / unit).to_le_bytes()[..6].to_vec()
}

/// A truncated image: `sixteenths` of it remain.
fn truncated(image: &Image, sixteenths: u8) -> Image {
    let Geometry { size_bytes, sector_bytes } = image.geometry();
    let size_bytes = (size_bytes / 16 * u64::from(sixteenths)).next_multiple_of(4096);
    let mut rest = Image::zeroed(Geometry { size_bytes, sector_bytes });
    let mut bytes = vec![0; size_bytes as usize];
    if image.read(0, &mut bytes).is_ok() {
        let _ = rest.write(0, &bytes);
    }
    rest
}
