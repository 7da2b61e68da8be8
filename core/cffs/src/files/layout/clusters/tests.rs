//! Fragments of a cluster that extents map once, several times, or not at all.

use super::*;
use crate::units::FragNo;

#[test]
fn fragments_that_several_extents_map_are_shared() {
    let run = FragRun::new(FragNo(800), 8);
    let extent = |offset, len| Extent::of_cluster(0, len, run, offset);
    let of = |extents: &[Extent]| Mapped::by(extents.iter());
    assert_eq!(of(&[]), Mapped { live: 0, shared: 0 });
    assert_eq!(of(&[extent(0, 4), extent(6, 2)]), Mapped { live: 6, shared: 0 });
    assert_eq!(of(&[extent(0, 4), extent(2, 4)]), Mapped { live: 6, shared: 2 });
    assert_eq!(of(&[extent(0, 4), extent(0, 4), extent(3, 1)]), Mapped { live: 4, shared: 4 });
    let many = vec![extent(254, 1); 300];
    assert_eq!(of(&many), Mapped { live: 1, shared: 1 });
}
