//! The offsets of files in a donor.

use super::*;
use crate::extents::Kind;

fn run(logical: u64, physical: u64, length: u64) -> Extent {
    let kind = Kind::Unwritten;
    let [logical, physical, length] = [logical, physical, length].map(|blocks| blocks * 4096);
    Extent { logical, physical, length, kind, is_shared: false }
}

#[test]
fn no_file_is_in_two_runs_of_space() {
    let space = joined(&[run(0, 100, 3), run(3, 103, 2), run(5, 900, 4)]);
    assert_eq!(space.len(), 2);
    assert_eq!(slots(&space, &[2, 2, 2, 2, 1], 4096), [Some(0), Some(2), Some(5), Some(7), None]);
}
