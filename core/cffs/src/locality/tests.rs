use super::*;

const PARTS: usize = 8;

fn hashes(numbers: impl Iterator<Item = u64>, apart: u64) -> Vec<u64> {
    let by_stretch = LocalityHash::new(apart);
    numbers.map(|number| by_stretch.hash_one(number)).collect()
}

fn part(hash: &u64) -> usize {
    (hash >> 32) as usize % PARTS
}

#[test]
fn neighbours_are_side_by_side_and_distinguished() {
    for apart in [1, 64] {
        let found = hashes((0..NEIGHBOURS).map(|at| (777 * NEIGHBOURS + at) * apart), apart);
        for (at, hash) in found.iter().enumerate() {
            assert_eq!(hash & 0xFFFF, (found[0] & 0xFFFF) + at as u64, "the next place");
            assert_eq!(part(hash), part(&found[0]), "in the same part");
            let tags = found.iter().filter(|other| *other >> 57 == hash >> 57).count();
            assert_eq!(tags, 1, "each with a tag of its own");
        }
    }
}

#[test]
fn numbers_have_hashes_of_their_own() {
    let numbers = (0..1 << 20).chain((1 << 40)..(1 << 40) + (1 << 16));
    let mut found = hashes(numbers, 1);
    let count = found.len();
    found.sort_unstable();
    found.dedup();
    assert_eq!(found.len(), count);
}

/// A part that had many more than another would evict while the others have room.
#[test]
fn parts_have_as_much_whatever_the_way() {
    for way in [1, 2, 3, 4, 8, 16, 64, 128, 1_024, 16_384] {
        let mut counts = [0; PARTS];
        for hash in hashes((0..1_024).map(|block| (1_000 + block * way) * NEIGHBOURS), 1) {
            counts[part(&hash)] += 1;
        }
        let most = counts.iter().max().copied().unwrap_or(0);
        assert!(most <= 1_024 / PARTS * 21 / 20, "every {way}: {counts:?}");
    }
}
