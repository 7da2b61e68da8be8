//! The map of the fragments that files use.

use super::volumes::make;
use crate::format::Layout;
use crate::format::cluster::REFERENCES_MAX;
use crate::format::superblock::Compression;
use crate::fsck::cluster_counts::ClusterCounts;
use crate::fsck::used::UsedMap;
use crate::mkfs::MkfsOptions;
use crate::units::{CgIndex, FragNo, FragRun};
use crate::vfs::read_superblock;

/// Once, what a search could not have because another file has a part of it stayed marked.
#[test]
fn a_run_that_is_not_free_is_not_claimed_in_part() {
    let device = make(&MkfsOptions::default());
    let layout = Layout::new(&read_superblock(&*device).unwrap());
    let mut used = UsedMap::new(layout);
    let first = layout.block_start(layout.cg_start(CgIndex(0))).0 + 128;
    let run = |at: u64, len| FragRun::new(FragNo(first + at), len);
    assert!(used.claim_free(run(3, 2)));
    let (total, bitmap) = (used.total(), used.free_bitmap(CgIndex(0)));
    assert!(!used.claim_free(run(0, 4)) && !used.claim_free(run(4, 100)));
    assert_eq!((used.total(), used.free_bitmap(CgIndex(0))), (total, bitmap));
    assert!(used.claim_free(run(0, 3)) && used.claim_free(run(5, 100)));
    assert_eq!(used.total(), 105);
}

/// A cluster can begin in a block in which another one began, at another fragment.
#[test]
fn a_block_has_the_count_of_the_cluster_that_remains() {
    let compression = Some(Compression::Off);
    let device = make(&MkfsOptions { compression, ..MkfsOptions::default() });
    let layout = Layout::new(&read_superblock(&*device).unwrap());
    let start = layout.block_start(layout.cg_start(CgIndex(0))).0;
    let block = 100;
    let first = start + block as u64 * u64::from(layout.block_fragments());
    for (at_first, later) in [(3, 0), (0, 3)] {
        let listed = [(FragNo(first), at_first), (FragNo(first + 2), later)];
        let mut counts = vec![0; layout.count_bytes()];
        let recovered = ClusterCounts(listed.into_iter().collect());
        assert!(recovered.apply(&layout, CgIndex(0), &mut counts));
        assert_eq!(counts[block], 3);
    }
}

#[test]
fn a_cluster_is_free_when_as_many_references_go_as_came() {
    let compression = Some(Compression::Off);
    let device = make(&MkfsOptions { compression, ..MkfsOptions::default() });
    let mut used = UsedMap::new(Layout::new(&read_superblock(&*device).unwrap()));
    let run = FragRun::new(FragNo(400), 8);
    for _ in 0..REFERENCES_MAX {
        assert!(used.claim_cluster(run));
    }
    assert!(!used.claim_cluster(run), "a byte counts no more");
    // Extents that begin at the cluster and are not of it release nothing.
    used.release_cluster(FragRun::new(FragNo(400), 4095));
    used.release_cluster(FragRun::new(FragNo(401), 8));
    assert!(!used.claim(FragRun::new(FragNo(404), 1)), "its run is in use");
    for _ in 0..REFERENCES_MAX {
        assert_eq!(used.total(), 8);
        used.release_cluster(run);
    }
    assert_eq!(used.total(), 0);
    assert!(used.references(CgIndex(0)).iter().all(|count| *count == 0));
}
