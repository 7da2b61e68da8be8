//! Random damage to many places: the check ends, the second run finds nothing, and what was not
//! damaged is there.

use std::collections::BTreeMap;
use std::io::IoSlice;

use super::image::{Image, walk};
use super::volumes::{open, run};
use crate::device::BlockDevice;
use crate::fsck::{Code, Repair};
use crate::mkfs::MkfsOptions;

/// SplitMix64.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn below(&mut self, limit: u64) -> u64 {
        self.next() % limit
    }
}

/// Damages blocks in the part of the volume that is used.
fn damage(image: &Image, random: &mut Random) {
    let blocks = 1 + random.below(6);
    for _ in 0..blocks {
        let offset = random.below(600) * 4096;
        let mut block = vec![0; 4096];
        image.device.read_at(offset, &mut block).expect("read");
        match random.below(4) {
            0 => block.fill(0),
            1 => block.iter_mut().for_each(|byte| *byte = random.next() as u8),
            2 => block[random.below(4096) as usize] ^= 1 << random.below(8),
            _ => {
                let other = random.below(600) * 4096;
                image.device.read_at(other, &mut block).expect("read");
            }
        }
        image.device.write_at(offset, &[IoSlice::new(&block)]).expect("write");
    }
}

fn seeds() -> std::ops::Range<u64> {
    let count = std::env::var("FSCK_SEEDS").ok().and_then(|count| count.parse().ok());
    match std::env::var("FSCK_SEED").ok().and_then(|seed| seed.parse().ok()) {
        Some(seed) => seed..seed + 1,
        None => 0..count.unwrap_or(24),
    }
}

#[test]
fn random_damage_is_repaired_in_one_run() {
    let images: Vec<Image> = [true, false]
        .map(|embed| Image::new(&MkfsOptions { embed, ..MkfsOptions::default() }))
        .into();
    for seed in seeds() {
        let image = &images[(seed % 2) as usize];
        let whole = image.device.snapshot();
        damage(image, &mut Random(seed));
        let report = run(&image.device, Repair::Yes);
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
        let seen = walk(&volume, &mut BTreeMap::new());
        volume.close().expect("close");
        let kept = image.seen.iter().filter(|(path, old)| seen.get(*path) == Some(old)).count();
        assert!(kept > 0 || report.problems.len() > 3, "seed {seed}: everything is lost");
        image.device.restore(&whole).expect("restore");
    }
}
