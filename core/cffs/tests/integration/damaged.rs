//! Volumes with damage that checksums do not detect. Whatever the bytes, every operation ends with a result
//! or an error; and if fsck reports a repair as complete, a second run finds no problem, and the volume can
//! be read and changed.

use std::sync::LazyLock;

use cffs::device::{Image, MemoryDevice};
use cffs::fsck::{self, CheckOptions, Repair};
use cffs::units::InodeNo;
use cffs::vfs::{self, Caller, RenameMode};
use proptest::prelude::*;

use cffs_testing::golden::{damage, sample};

static VOLUMES: LazyLock<Vec<(Image, Vec<damage::Region>)>> = LazyLock::new(|| {
    let with_regions = |(_, options)| {
        let image = sample::full(&options).unwrap();
        let regions = damage::regions(&image);
        (image, regions)
    };
    sample::kinds().into_iter().map(with_regions).collect()
});

/// The volume, and its changes.
fn damages() -> impl Strategy<Value = (usize, Vec<damage::Change>)> {
    (0..VOLUMES.len(), prop::collection::vec(any::<damage::Change>(), 1..5))
}

fn damaged((which, changes): (usize, Vec<damage::Change>)) -> Image {
    let (image, regions) = &VOLUMES[which];
    damage::damaged(image, regions, &changes)
}

fn check(device: &MemoryDevice, repair: Repair) -> cffs::error::Result<fsck::Report> {
    let options =
        CheckOptions { repair, force: true, contents: true, threads: 1, ..CheckOptions::default() };
    fsck::check(device, &options, &())
}

#[test]
fn a_volume_without_damage_is_clean() {
    for (image, regions) in VOLUMES.iter() {
        let report = check(&MemoryDevice::from_image(image.clone()), Repair::No).unwrap();
        assert!(report.problems.is_empty(), "{:?}", report.problems);
        // Changes to the same values keep every checksum valid, so the damage below is only the intended one.
        let same = damage::damaged(image, regions, &[]);
        assert_eq!(same, *image);
        assert!(damage::change(image).is_ok());
    }
}

/// The root directory claims half a TiB. Regression: every sector of that was searched when the next file was
/// placed.
#[test]
fn a_directory_larger_than_its_blocks_is_refused() {
    let (image, regions) = &VOLUMES[1];
    let system_area = regions.iter().position(|region| region.start == 4096).unwrap();
    let size_at = 40 + 12 + 32;
    let larger = damage::damaged(image, regions, &[(system_area as u16, size_at + 4, 119)]);
    let error = sample::open(&larger, false).err().unwrap();
    assert!(error.to_string().contains("larger than its blocks"), "{error}");
    let device = MemoryDevice::from_image(larger);
    assert!(check(&device, Repair::Yes).unwrap().exit_code() < 4);
    damage::read_all(&device.snapshot()).unwrap();
}

/// An entry of the root directory has the root's own number. Regression: a rename of it deadlocked, holding
/// the directory while waiting for the file, which was the same.
#[test]
fn an_entry_that_names_its_own_directory_is_refused() {
    let (image, regions) = &VOLUMES[0];
    let name = b"file of 5000";
    let (_, volume) = sample::open(image, true).unwrap();
    let ino = volume.lookup(InodeNo::ROOT, name).unwrap().ino;
    let number = ino.0.to_le_bytes();
    let find = |region: &damage::Region, what: &[u8]| {
        let mut bytes = vec![0; region.len];
        image.read(region.start, &mut bytes).unwrap();
        bytes.windows(what.len()).position(|bytes| bytes == what)
    };
    let sector = regions.iter().position(|region| find(region, name).is_some()).unwrap();
    let at = find(&regions[sector], &number).unwrap();
    let root = InodeNo::ROOT.0.to_le_bytes();
    let change = |(byte, at)| (sector as u16, at as u16, byte);
    let changes: Vec<damage::Change> = root.into_iter().zip(at..).map(change).collect();
    let damaged = damage::damaged(image, regions, &changes);
    let (_, volume) = sample::open(&damaged, false).unwrap();
    let rename = volume.rename(
        &Caller::ROOT,
        InodeNo::ROOT,
        name,
        InodeNo::ROOT,
        b"new",
        RenameMode::Replace,
    );
    assert!(rename.unwrap_err().to_string().contains("loop"));
    assert!(volume.lookup(InodeNo::ROOT, name).is_err());
    assert!(volume.unlink(&Caller::ROOT, InodeNo::ROOT, name).is_err());
}

/// An inode of the external table gets the number of an earlier one, with another type. Regression: its
/// name got the other's place but kept its type.
#[test]
fn a_second_inode_of_a_number_may_be_of_another_type() {
    let (image, regions) = &VOLUMES[1];
    let (_, volume) = sample::open(image, true).unwrap();
    let large = volume.lookup(InodeNo::ROOT, b"large").unwrap().ino;
    let to = volume.lookup(InodeNo::ROOT, b"file of 0").unwrap().ino.0;
    let mut links = Vec::new();
    let listed = volume.read_dir(large, 0, false, &mut |entry| {
        links.push(entry.ino.0);
        true
    });
    listed.unwrap();
    for from in links {
        let holds = |region: &damage::Region, number: u64| {
            let mut bytes = vec![0; region.len];
            image.read(region.start, &mut bytes).unwrap();
            // The record comes after the heads of the sector and of the entry.
            let mut records = bytes.windows(8).enumerate().skip(40);
            let found = records.find(|(_, bytes)| **bytes == number.to_le_bytes());
            found.filter(|_| bytes.starts_with(b"CFse")).map(|(at, _)| at)
        };
        let external = |region: &damage::Region| holds(region, from);
        for (region, at) in (0..).zip(regions).filter_map(|(i, r)| Some((i, external(r)?))) {
            let changes: Vec<damage::Change> = to
                .to_le_bytes()
                .into_iter()
                .zip(at..)
                .map(|(b, at)| (region, at as u16, b))
                .collect();
            let device = MemoryDevice::from_image(damage::damaged(image, regions, &changes));
            if check(&device, Repair::Yes).is_ok_and(|report| report.exit_code() < 4) {
                let again = check(&device, Repair::No).unwrap();
                assert!(again.problems.is_empty(), "{:?}", again.problems);
            }
        }
    }
}

/// Sectors of 512 bytes, eight to a block, one of which has a wrong sector number. Regression: the whole
/// block was given up, including a file in another sector, and blocks claimed by the unsuccessful search
/// stayed marked as used.
#[test]
fn a_sector_with_a_wrong_number_costs_no_file() {
    let (_, volume) = sample::open(&VOLUMES[2].0, true).unwrap();
    let large = volume.lookup(InodeNo::ROOT, b"large").unwrap().ino;
    assert!(sectors_with_wrong_numbers_cost_no_file(2, large) > 8);
}

/// The same in the external inode table. Regression: the sector was emptied, and files whose inodes it
/// contained went to lost+found or were lost, although their names were intact.
#[test]
fn a_sector_of_the_external_table_with_a_wrong_number_costs_no_file() {
    let tried: Vec<usize> = (0..VOLUMES.len())
        .map(|volume| sectors_with_wrong_numbers_cost_no_file(volume, InodeNo::EXTERNAL))
        .collect();
    assert!(tried.iter().all(|sectors| *sectors > 0), "{tried:?}");
}

/// Gives each sector of a container on one of the volumes other numbers, and returns the number of sectors.
fn sectors_with_wrong_numbers_cost_no_file(volume: usize, container: InodeNo) -> usize {
    /// The offset of the sector number: after the magic, the checksum, the number of the file and its
    /// generation.
    const NUMBER_AT: u16 = 20;
    let (image, regions) = &VOLUMES[volume];
    let whole = check(&MemoryDevice::from_image(image.clone()), Repair::No).unwrap();
    let mut tried = 0;
    for (index, region) in (0..).zip(regions) {
        let mut head = [0; 24];
        image.read(region.start, &mut head).unwrap();
        if !head.starts_with(b"CFse") || head[8..16] != container.0.to_le_bytes() {
            continue;
        }
        tried += 1;
        // The last number belongs to another place in its block, so that the block seems to begin elsewhere.
        for number in [3, head[20] ^ 0x80, head[20] ^ 0x82] {
            let change = (index, NUMBER_AT, number);
            let device = MemoryDevice::from_image(damage::damaged(image, regions, &[change]));
            let repaired = check(&device, Repair::Yes).unwrap();
            assert!(repaired.exit_code() < 4, "{change:?}: {:?}", repaired.problems);
            assert!(repaired.losses.is_empty(), "{change:?}: {:?}", repaired.losses);
            assert_eq!(repaired.names, whole.names, "{change:?}");
            let again = check(&device, Repair::No).unwrap();
            assert!(again.problems.is_empty(), "{change:?}: {:?}", again.problems);
        }
    }
    tried
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn reading_ends(damages in damages()) {
        let _ = damage::read_all(&damaged(damages));
    }

    #[test]
    fn changing_ends(damages in damages()) {
        let _ = damage::change(&damaged(damages));
    }

    #[test]
    fn a_repair_is_complete(damages in damages()) {
        let device = MemoryDevice::from_image(damaged(damages));
        // Some volumes cannot be repaired, for example one whose superblock has a wrong size.
        if !check(&device, Repair::Yes).is_ok_and(|report| report.exit_code() < 4) {
            return Ok(());
        }
        let again = check(&device, Repair::No).unwrap();
        prop_assert!(again.problems.is_empty(), "{:?}", again.problems);
        let repaired = device.snapshot();
        let superblock = vfs::read_superblock(&device).unwrap();
        if !superblock.writable() {
            return Ok(());
        }
        damage::read_all(&repaired).unwrap();
        damage::change(&repaired).unwrap();
    }
}
