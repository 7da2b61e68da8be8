use super::super::create;
use super::*;
use crate::mirror::tests::{deep, volume};

/// The most lookups per directory and its file.
const LOOKUPS_MAX: u64 = 6;

/// An archive of a chain of directories, each with a file.
fn deep_archive(depth: usize) -> Vec<u8> {
    let mut bytes = Vec::new();
    let options = create::Options { xattrs: false, holes: false };
    assert_eq!(create::archive(&deep(depth), b"/", options, &mut bytes).expect("written"), 0);
    bytes
}

/// Each entry was looked up by its whole path, which took time quadratic in the depth.
#[test]
fn the_work_for_an_entry_does_not_depend_on_its_depth() {
    for depth in [100, 400] {
        let (bytes, target) = (deep_archive(depth), volume());
        let options = Options { owner: false, xattrs: false };
        let before = target.volume().stats().lookups;
        let missing = archive(&target, b"/", &options, &bytes[..]).expect("extracted");
        assert_eq!(missing, 0);
        let lookups = target.volume().stats().lookups - before;
        assert!(lookups <= LOOKUPS_MAX * depth as u64, "{lookups} lookups at a depth of {depth}");
    }
}
