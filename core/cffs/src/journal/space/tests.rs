use super::*;

const BLOCKS: u32 = 402;

fn space() -> Space {
    Space { taken: BTreeMap::new(), next: HEADER_BLOCKS, blocks: BLOCKS, detour_max: 50 }
}

/// Places records until there is no room; returns where they went.
fn fill(space: &mut Space, gap: u32, lens: impl IntoIterator<Item = u32>) -> Vec<(u32, u32)> {
    let mut records: Vec<(u32, u32)> = Vec::new();
    for len in lens {
        let Some(at) = space.place(gap, len) else { break };
        let is_free =
            records.iter().all(|(from, len_there)| at + len <= *from || from + len_there <= at);
        assert!(is_free && at >= HEADER_BLOCKS && at + len <= BLOCKS, "{at}, {len}: {records:?}");
        space.take(at, len);
        records.push((at, len));
    }
    records
}

fn used(records: &[(u32, u32)]) -> u32 {
    records.iter().map(|(_, len)| len).sum()
}

#[test]
fn records_fill_the_gaps_lap_after_lap() {
    let mut space = space();
    let records = fill(&mut space, 37, std::iter::repeat(3));
    assert_eq!(records[..3], [(39, 3), (79, 3), (119, 3)]);
    // The next lap begins at the start, and its records keep their distance.
    assert_eq!(records[9..12], [(399, 3), (2, 3), (42, 3)]);
    assert!(used(&records) > (BLOCKS - 2) * 8 / 10, "{}", used(&records));
    space.clear();
    assert_eq!(fill(&mut space, 37, [3; 2]), [(39, 3), (79, 3)]);
}

#[test]
fn records_of_any_length_never_overlap() {
    for gap in [0, 1, 5, 30] {
        let lens = (0..).map(|nth: u32| 2 + nth.wrapping_mul(0x9e37_79b9) % 17);
        let records = fill(&mut space(), gap, lens);
        assert!(used(&records) > (BLOCKS - 2) * 2 / 5, "{gap}: {}", used(&records));
    }
}

#[test]
fn a_distant_hole_is_not_used() {
    let mut space = space();
    fill(&mut space, 0, [60, 60, 3]);
    space.next = 2;
    assert_eq!(space.place(0, 3), None, "124 blocks are too far, and so they are from the start");
    assert_eq!(space.place(80, 3), Some(125));
}
