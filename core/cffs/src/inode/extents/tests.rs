use proptest::prelude::*;

use super::*;
use crate::units::{FragNo, FragRun};

std::thread_local! {
    /// How many extents this thread has gone through: what grows with the extents of a file.
    pub(crate) static VISITS: std::cell::Cell<u64> = const { std::cell::Cell::new(0) };
}

fn kept(logical: u64, start: u64) -> Kept {
    let extent = Extent::new(logical, FragRun::new(FragNo(start), 1));
    Kept { extent, direct: start.is_multiple_of(2) }
}

#[test]
fn a_file_in_few_pieces_takes_no_more_than_these() {
    let mut extents = Extents::default();
    extents.insert(kept(0, 7));
    assert!(matches!(&extents, Extents::One(_)));
    extents.insert(kept(1, 7));
    assert!(matches!(&extents, Extents::Few(list) if list.capacity() == 2));
}

proptest! {
    /// Against a map, across the change from a list to a tree.
    #[test]
    fn few_and_many_answer_alike(
        steps in prop::collection::vec((0u64..24, 0u64..100, 0u8..5), 1..80),
    ) {
        let (mut extents, mut plain) = (Extents::default(), BTreeMap::new());
        for (at, start, what) in steps {
            match what {
                0 => prop_assert_eq!(extents.remove(at), plain.remove(&at)),
                1 => {
                    let (one, other) = (extents.before_mut(at), plain.range_mut(..at).next_back());
                    prop_assert_eq!(one.is_some(), other.is_some());
                    for kept in one.into_iter().chain(other.map(|(_, kept)| kept)) {
                        kept.extent.len += 1;
                    }
                }
                _ => {
                    extents.insert(kept(at, start));
                    plain.insert(at, kept(at, start));
                }
            }
            prop_assert_eq!(extents.len(), plain.len());
            prop_assert!(extents.iter().eq(plain.values()));
            prop_assert_eq!(extents.before(at), plain.range(..at).next_back().map(|(_, k)| k));
            prop_assert_eq!(extents.at_or_after(at), plain.range(at..).next().map(|(_, k)| k));
            let range = at..at + start % 8;
            prop_assert!(extents.range(range.clone()).eq(plain.range(range).map(|(_, k)| k)));
        }
    }
}
