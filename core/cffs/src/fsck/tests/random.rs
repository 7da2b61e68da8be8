//! Random damage in many places: the check terminates, the second run finds nothing, and undamaged files are
//! intact.

use std::collections::{BTreeMap, BTreeSet};
use std::io::IoSlice;

use cffs_testing::random::Random;

use super::image::{Image, look, walk};
use super::salvage::salvage;
use super::volumes::{open, run};
use crate::device::BlockDevice;
use crate::format::Superblock;
use crate::fsck::{Code, Repair};
use crate::mkfs::MkfsOptions;
use crate::units::{CgIndex, InodeNo};

/// Blocks at the head of the volume, among which the damage is done: the files are there.
const BLOCKS: u64 = 600;

/// Damages blocks; returns which.
fn damage(image: &Image, random: &mut Random) -> BTreeSet<u64> {
    let mut damaged = BTreeSet::new();
    for _ in 0..1 + random.below(6) {
        let at = random.below(BLOCKS);
        let mut block = vec![0; 4096];
        image.device.read_at(at * 4096, &mut block).expect("read");
        match random.below(4) {
            0 => block.fill(0),
            1 => block.iter_mut().for_each(|byte| *byte = random.number() as u8),
            2 => block[random.below(4096) as usize] ^= 1 << random.below(8),
            _ => {
                let other = random.below(BLOCKS) * 4096;
                image.device.read_at(other, &mut block).expect("read");
            }
        }
        image.device.write_at(at * 4096, &[IoSlice::new(&block)]).expect("write");
        damaged.insert(at);
    }
    damaged
}

/// Changes fields of metadata and makes the checksums right again: what a program's mistake leaves.
fn mislead(image: &Image, random: &mut Random) {
    let mut head = vec![0; 4096];
    image.device.read_at(0, &mut head).expect("read");
    let checksum = Superblock::decode(&head, 0).expect("a superblock").checksum();
    let mut left = 1 + random.below(5);
    for _ in 0..2000 {
        let at = random.below(BLOCKS);
        let mut block = vec![0; 4096];
        image.device.read_at(at * 4096, &mut block).expect("read");
        let is_metadata = [b"CFse", b"CFxt", b"CFlo", b"CFix", b"CFcg", b"CFxa"]
            .into_iter()
            .any(|magic| block.starts_with(magic));
        if !is_metadata {
            continue;
        }
        let limit = 1 + random.below(4000);
        let used = 40 + random.below(limit);
        for _ in 0..1 + random.below(3) {
            let byte = 8 + random.below(used) as usize % 4088;
            block[byte] = [0, 1, 0x7f, 0xff, random.number() as u8][random.below(5) as usize];
        }
        checksum.seal(&mut block, 4);
        image.device.write_at(at * 4096, &[IoSlice::new(&block)]).expect("write");
        left -= 1;
        if left == 0 {
            break;
        }
    }
}

/// The blocks that each file needs: its inode's sector, its contents, the extent blocks that refer to these,
/// its attributes.
fn needed_blocks(image: &Image) -> BTreeMap<InodeNo, BTreeSet<u64>> {
    image.with(|c| {
        let inos: Vec<InodeNo> = c.meta.inventory.inodes.iter().map(|found| found.ino).collect();
        let block = u64::from(c.meta.layout.block_bytes);
        let mut needed = BTreeMap::new();
        for ino in inos.into_iter().filter(|ino| !ino.is_system()) {
            let container = c.meta.inventory.get(ino).expect("an inode").container;
            let mut places = c.meta.inventory.sector_pieces(container, &c.meta.layout);
            let record = c.meta.load_record(ino).expect("a record");
            let map = c.meta.collect_map(&record.as_record());
            places.extend(map.extents.iter().map(|extent| c.meta.run_place(extent.run())));
            places.extend(map.tree_blocks.iter().map(|block| c.meta.block_place(*block)));
            let attributes = record.inode.attribute_run();
            places.extend(attributes.map(|run| c.meta.run_place(run)));
            let blocks = places.iter().flat_map(|place| {
                place.offset / block..(place.offset + place.len as u64).div_ceil(block)
            });
            needed.insert(ino, blocks.collect());
        }
        needed
    })
}

/// The blocks that a repair needs to find what a lost sector had: groups' heads, system area,
/// locator table.
fn redundancy(image: &Image) -> BTreeSet<u64> {
    image.with(|c| {
        let locator = c.round.locator.extents.clone();
        let blocks = u64::from(c.meta.layout.block_fragments());
        let table = locator.iter().flat_map(|e| e.start.0 / blocks..e.run().end().0 / blocks);
        (0..u64::from(c.meta.layout.cg_reserved_blocks(CgIndex(0)))).chain(table).collect()
    })
}

fn seeds() -> std::ops::Range<u64> {
    let count = std::env::var("FSCK_SEEDS").ok().and_then(|count| count.parse().ok());
    match std::env::var("FSCK_SEED").ok().and_then(|seed| seed.parse().ok()) {
        Some(seed) => seed..seed + 1,
        None => 0..count.unwrap_or(24),
    }
}

fn images() -> Vec<Image> {
    [true, false].map(|embed| Image::new(&MkfsOptions { embed, ..MkfsOptions::default() })).into()
}

/// Repairs, with some seeds by a search of the whole device, and checks that nothing is left to
/// repair and that the volume can be used.
fn repair(image: &Image, seed: u64) -> BTreeMap<String, InodeNo> {
    let repair = if seed.is_multiple_of(3) { salvage } else { run };
    let report = repair(&image.device, Repair::Yes);
    // Without space for a copy of what two files claim, one loses it, which is reported once.
    if report.problems.iter().any(|p| p.code == Code::NoSpace) {
        run(&image.device, Repair::Yes);
    }
    let is_gone = report.problems.iter().any(|p| p.code == Code::Unrepaired);
    assert!(!is_gone, "seed {seed}: {:#?}", report.problems);
    let second = run(&image.device, Repair::No);
    assert!(
        second.problems.is_empty() && second.exit_code() == 0,
        "seed {seed}: {:#?} and then {:#?}",
        report.problems,
        second.problems
    );
    let volume = open(&image.device);
    let mut inos = BTreeMap::new();
    walk(&volume, &mut inos);
    volume.close().expect("close");
    inos
}

#[test]
fn random_damage_is_repaired_and_spares_the_rest() {
    let images = images();
    let about: Vec<_> = images.iter().map(|i| (needed_blocks(i), redundancy(i))).collect();
    let mut spared = 0;
    for seed in seeds() {
        let which = (seed % 2) as usize;
        let (image, (needed, redundancy)) = (&images[which], &about[which]);
        let whole = image.device.snapshot();
        let damaged = damage(image, &mut Random(seed));
        repair(image, seed);
        if damaged.is_disjoint(redundancy) {
            let volume = open(&image.device);
            for (path, ino) in &image.inos {
                if needed[ino].is_disjoint(&damaged) && !path.starts_with("/lost+found") {
                    let is_same = look(&volume, *ino, path) == image.seen[path];
                    assert!(is_same, "seed {seed}: {path} was not damaged and has changed");
                    spared += 1;
                }
            }
            volume.close().expect("close");
        }
        image.device.restore(&whole).expect("restore");
    }
    assert!(spared > 0, "no seed left the redundancy alone");
}

#[test]
fn wrong_fields_under_right_checksums_are_repaired() {
    let images = images();
    for seed in seeds() {
        let image = &images[(seed % 2) as usize];
        let whole = image.device.snapshot();
        mislead(image, &mut Random(seed ^ 0xfeed));
        repair(image, seed);
        image.device.restore(&whole).expect("restore");
    }
}
