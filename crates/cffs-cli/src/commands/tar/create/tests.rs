use super::*;
use crate::mirror::tests::deep;

/// The most lookups per directory and its file.
const LOOKUPS_MAX: u64 = 3;

/// Regression: each file was looked up by its whole path, which took time quadratic in the depth.
#[test]
fn the_work_for_a_file_does_not_depend_on_its_depth() {
    for depth in [100, 400] {
        let files = deep(depth);
        let before = files.volume().stats().lookups;
        let options = Options { xattrs: true, holes: true };
        assert_eq!(archive(&files, b"/", options, io::sink()).expect("written"), 0);
        let lookups = files.volume().stats().lookups - before;
        assert!(lookups <= LOOKUPS_MAX * depth as u64, "{lookups} lookups at a depth of {depth}");
    }
}
