use cffs::units::{BlockNo, Container, FragNo, FragRun, InodeNo, SectorIndex};
use cffs::vfs::Piece;

use super::*;

/// An attribute's value has at most 64 KiB, and a file any number of pieces.
#[test]
fn the_placement_of_a_large_file_fits_into_an_answer() {
    const MANY: u64 = 1 << 20;
    let large = (1 << 48) - MANY;
    let pieces = (0..MANY).map(|piece| Piece {
        offset: large + piece,
        run: FragRun { start: FragNo(large + piece), len: u32::MAX },
        unwritten: false,
        in_cluster: true,
    });
    let cluster =
        ClusterPlace { stored_bytes: 16 << 10, expanded_bytes: Some(64 << 10), other_parts: 255 };
    let placement = Placement {
        ino: InodeNo(large),
        container: Some(Container { file: InodeNo(large), sector: SectorIndex(u32::MAX) }),
        container_block: Some(BlockNo(large)),
        inline: false,
        pieces: pieces.collect(),
        clusters: vec![cluster; 100],
        unplaced_bytes: large,
        segments: (large..large + MANY).collect(),
        shares_with: (large..large + MANY).map(InodeNo).collect(),
        cold_requests: MANY,
    };
    let answer = super::placement(&placement);
    assert!(answer.to_string().len() <= 64 << 10, "{}", answer.to_string().len());
    for counted in ["pieces", "segment_count", "files_in_the_same_segments"] {
        assert_eq!(answer[counted], MANY, "{counted}");
    }
    assert_eq!(answer["clusters"]["count"], 100);
    assert_eq!(answer["clusters"]["parts_of_other_files"], 25_500);
    assert_eq!(answer["clusters"]["ratio"], 4.0);
}

#[test]
fn the_limit_of_polling_has_an_effect_only_with_its_governor() {
    let polls = Some(String::from("poll for 200 µs, then halt"));
    assert_eq!(describe_idle("haltpoll", "haltpoll", 200_000), polls);
    let halts = Some(String::from("halt at once"));
    assert_eq!(describe_idle("haltpoll", "haltpoll", 0), halts);
    assert_eq!(describe_idle("none", "menu", 200_000), halts, "the limit has no effect");
    assert_eq!(describe_idle("intel_idle", "menu", 200_000), None);
}
