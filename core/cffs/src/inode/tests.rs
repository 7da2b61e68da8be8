//! Promises of a map about the blocks of its tree.

use std::collections::HashSet;

use proptest::prelude::*;

use super::map::TreeWriter;
use super::*;
use crate::error::Result;
use crate::format::extent::{Node, node_capacity};
use crate::units::{BlockNo, FileFrag, FragNo};

const BLOCK_BYTES: u32 = 4096;

/// Gives out blocks one after the other, and knows which are in use.
#[derive(Default)]
struct Counter {
    taken: u64,
    next: u64,
    used: HashSet<BlockNo>,
}

impl TreeWriter for Counter {
    fn allocate(&mut self) -> Result<BlockNo> {
        self.taken += 1;
        self.next += 1;
        self.used.insert(BlockNo(self.next));
        Ok(BlockNo(self.next))
    }

    fn write(&mut self, _: BlockNo, _: u8, node: &Node) {
        let entries = match node {
            Node::Leaf(extents) => extents.len(),
            Node::Inner(children) => children.len(),
        };
        assert!((1..=node_capacity(BLOCK_BYTES)).contains(&entries));
    }

    fn free(&mut self, block: BlockNo) {
        assert!(self.used.remove(&block), "a freed block was in use");
    }
}

/// A change: where, how many fragments, how often with a gap after each, and whether they come, written
/// or not, or go.
type Change = (u64, u32, u16, Option<bool>);

fn change() -> impl Strategy<Value = Change> {
    (0u64..20_000, 1u32..4, 1u16..600, any::<Option<bool>>())
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn a_tree_takes_no_more_blocks_than_was_said(
        epochs in prop::collection::vec(prop::collection::vec(change(), 1..4), 1..6),
        direct_max in DIRECT_EXTENTS_MIN..=DIRECT_EXTENTS_MAX,
    ) {
        let mut map = ExtentMap::default();
        let mut counter = Counter::default();
        let mut place = 1_000_000;
        for changes in epochs {
            let mut count = 0;
            for (start, len, times, come) in changes {
                for at in (start..).step_by(4).take(times.into()) {
                    let range = FileFrag(at)..FileFrag(at).plus(len.into());
                    count += map.remove(range).runs.len() as u64 + 1;
                    if let Some(unwritten) = come {
                        // Never after the one before, so that they stay apart.
                        place += 10;
                        map.insert(FileFrag(at), FragRun::new(FragNo(place), len), unwritten);
                        count += 1;
                    }
                }
            }
            let most = map.tree_blocks_max(count, BLOCK_BYTES);
            counter.taken = 0;
            map.write_tree(direct_max, BLOCK_BYTES, &mut counter).unwrap();
            prop_assert!(counter.taken <= most, "{} blocks, {most} said", counter.taken);
            let tree: HashSet<BlockNo> = map.tree_blocks().collect();
            prop_assert_eq!(&tree, &counter.used);
            let has_unwritten = map.iter().any(|extent| extent.unwritten);
            prop_assert_eq!(map.has_unwritten(), has_unwritten);
        }
    }
}

/// Most small files have no tree, and must not be promised one for nothing.
#[test]
fn contents_that_fit_into_the_inode_take_no_blocks() {
    let map = ExtentMap::default();
    assert_eq!(map.tree_blocks_max(DIRECT_EXTENTS_MIN as u64, BLOCK_BYTES), 0);
    assert_eq!(map.tree_blocks_max(DIRECT_EXTENTS_MIN as u64 + 1, BLOCK_BYTES), 1);
}
