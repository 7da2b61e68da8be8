//! Bytes are counted once, each for its file.

use super::*;

#[test]
fn bytes_of_a_request_are_those_of_their_files() {
    let [asked, other] = [InodeNo(7), InodeNo(8)];
    let places = vec![(0..4096, None), (8192..12288, Some(asked)), (12288..13312, Some(other))];
    let contents = Contents { directories: Vec::new(), places };
    let count = |offset, len| contents.count(Run::of_bytes(offset, len), |file| file == asked);
    // Asked for, of another file, names, free.
    assert_eq!(count(0, 16384), [4096, 1024, 4096, 4096 + 3072]);
    assert_eq!(count(10240, 2560), [2048, 512, 0, 0]);
    assert_eq!(count(32768, 512), [0, 0, 0, 512]);
}
