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
    });
    let placement = Placement {
        ino: InodeNo(large),
        container: Some(Container { file: InodeNo(large), sector: SectorIndex(u32::MAX) }),
        container_block: Some(BlockNo(large)),
        inline: false,
        pieces: pieces.collect(),
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
}
