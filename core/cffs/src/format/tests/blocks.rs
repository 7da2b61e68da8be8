//! The blocks with a header and a list: extent tree, attributes, index, locator, cylinder group;
//! and the hashes.

use std::collections::BTreeSet;

use super::*;
use crate::error::Corruption;
use crate::format::cylinder_group::{CG_HEADER_BYTES, CgHeader};
use crate::format::extent::{Child, EXTENT_FRAGMENTS_MAX, Extent, Node, node_capacity};
use crate::format::{checksum as sums, index, locator, xattr};
use crate::units::{BlockNo, CgIndex, FragNo, FragRun};

const BLOCK: usize = 4096;

fn extents() -> impl Strategy<Value = Vec<Extent>> {
    let steps = (0u64..1000, 1..=EXTENT_FRAGMENTS_MAX, 0u64..1 << 48, any::<bool>());
    prop::collection::vec(steps, 1..node_capacity(BLOCK as u32)).prop_map(|steps| {
        let mut logical = 0;
        let place = |(gap, len, start, unwritten)| {
            let extent = Extent {
                unwritten,
                ..Extent::new(logical + gap, FragRun::new(FragNo(start), len))
            };
            logical = extent.logical_end();
            extent
        };
        steps.into_iter().map(place).collect()
    })
}

fn node_bytes(node: &Node, depth: u8) -> Vec<u8> {
    node.encode(InodeNo(20), 3, depth, BlockNo(500), BLOCK as u32, checksum())
}

fn decode_node(bytes: &[u8], depth: u8) -> Result<Node, Corruption> {
    Node::decode(bytes, InodeNo(20), 3, depth, BlockNo(500), checksum())
}

fn two_extents() -> Vec<Extent> {
    let extent = |logical| Extent::new(logical, FragRun::new(FragNo(1000), 10));
    vec![extent(0), extent(10)]
}

proptest! {
    #[test]
    fn extents_come_back(
        logical in 0u64..1 << 40,
        len in 0..=EXTENT_FRAGMENTS_MAX,
        start in 0u64..1 << 48,
        unwritten in any::<bool>(),
    ) {
        let extent = Extent { unwritten, ..Extent::new(logical, FragRun::new(FragNo(start), len)) };
        prop_assert_eq!(Extent::decode(&extent.encode()), extent);
    }

    #[test]
    fn leaves_come_back(extents in extents()) {
        let node = Node::Leaf(extents);
        prop_assert_eq!(decode_node(&node_bytes(&node, 0), 0).unwrap(), node);
    }

    #[test]
    fn inner_blocks_come_back(
        logicals in prop::collection::btree_set(any::<u64>(), 1..node_capacity(BLOCK as u32)),
        depth in 1u8..4,
    ) {
        let child = |logical: &u64| Child { logical: *logical, block: BlockNo(logical ^ 77) };
        let node = Node::Inner(logicals.iter().map(child).collect());
        prop_assert_eq!(decode_node(&node_bytes(&node, depth), depth).unwrap(), node);
    }

    #[test]
    fn mutated_nodes_are_refused_or_in_order(mutations in mutations(), depth in 0u8..3) {
        let node = match depth {
            0 => Node::Leaf(two_extents()),
            _ => Node::Inner(vec![Child { logical: 5, block: BlockNo(7) }]),
        };
        let mut bytes = node_bytes(&node, depth);
        mutate(&mut bytes, &mutations, 8..100);
        checksum().seal(&mut bytes, 4);
        match decode_node(&bytes, depth) {
            Ok(Node::Leaf(extents)) => {
                prop_assert!(extents.iter().all(|extent| extent.len > 0));
                prop_assert!(extents.is_sorted_by_key(Extent::logical_end));
            }
            Ok(Node::Inner(children)) => {
                prop_assert!(children.is_sorted_by_key(|child| child.logical));
            }
            Err(_) => {}
        }
    }

    #[test]
    fn attributes_come_back(
        attributes in prop::collection::vec(
            (prop::collection::vec(any::<u8>(), 1..256), prop::collection::vec(any::<u8>(), 0..600)),
            0..6,
        ),
    ) {
        let mut list = Vec::new();
        for (name, value) in &attributes {
            xattr::push(&mut list, name, value);
        }
        let total = (list.len() + xattr::HEADER_BYTES).next_multiple_of(1024);
        let bytes = xattr::encode_block(&list, InodeNo(20), 3, FragNo(9), total, checksum());
        prop_assert_eq!(bytes.len(), total);
        let found = xattr::decode_block(&bytes, InodeNo(20), 3, FragNo(9), checksum()).unwrap();
        let found: Result<Vec<_>, _> = xattr::iter(found).collect();
        let found = found.unwrap();
        prop_assert_eq!(found.len(), attributes.len());
        for ((name, value), (found_name, found_value)) in attributes.iter().zip(found) {
            prop_assert_eq!(name, found_name);
            prop_assert_eq!(value, found_value);
        }
    }

    #[test]
    fn any_list_of_attributes_ends(list in prop::collection::vec(any::<u8>(), 0..300)) {
        let attributes: Vec<_> = xattr::iter(&list).collect();
        let errors = attributes.iter().filter(|a| a.is_err()).count();
        prop_assert!(errors <= 1 && attributes.len() <= list.len());
        prop_assert_eq!(attributes.iter().position(Result::is_err).map(|at| at + 1),
            (errors == 1).then_some(attributes.len()));
    }

    /// The bucket is a multiset of hash and sector.
    #[test]
    fn a_bucket_is_a_multiset(
        operations in prop::collection::vec((any::<bool>(), 0u32..20, 0u32..4), 0..800),
    ) {
        let mut bytes = vec![0xee; BLOCK];
        index::init(&mut bytes, InodeNo(20), 3, 8);
        let mut model: Vec<(u32, SectorIndex)> = Vec::new();
        let mut overflowed = false;
        for (add, hash, sector) in operations {
            let entry = (hash, SectorIndex(sector));
            if add {
                index::insert(&mut bytes, entry.0, entry.1);
                if model.len() < index::bucket_capacity(BLOCK as u32) {
                    model.push(entry);
                } else {
                    overflowed = true;
                }
            } else {
                let position = model.iter().position(|e| *e == entry);
                prop_assert_eq!(index::remove(&mut bytes, hash, entry.1), position.is_some());
                position.map(|position| model.swap_remove(position));
            }
        }
        prop_assert_eq!(index::overflowed(&bytes), overflowed);
        prop_assert_eq!(index::count(&bytes), model.len());
        prop_assert!(index::entries(&bytes).is_sorted_by_key(|(hash, _)| hash));
        let sorted = |mut entries: Vec<(u32, SectorIndex)>| {
            entries.sort_unstable();
            entries
        };
        prop_assert_eq!(sorted(index::entries(&bytes).collect()), sorted(model.clone()));
        for hash in 0..20 {
            let expected = model.iter().filter(|(h, _)| *h == hash).count();
            prop_assert_eq!(index::find(&bytes, hash).count(), expected);
        }
        index::seal(&mut bytes, checksum());
        index::verify(&bytes, InodeNo(20), 3, 8, checksum()).unwrap();
    }

    #[test]
    fn mutated_buckets_are_refused_or_usable(mutations in mutations()) {
        let mut bytes = vec![0; BLOCK];
        index::init(&mut bytes, InodeNo(20), 3, 8);
        mutate(&mut bytes, &mutations, 8..64);
        index::seal(&mut bytes, checksum());
        if index::verify(&bytes, InodeNo(20), 3, 8, checksum()).is_ok() {
            prop_assert_eq!(index::entries(&bytes).count(), index::count(&bytes));
            prop_assert!(index::entries(&bytes).is_sorted_by_key(|(hash, _)| hash));
        }
    }

    /// A split moves names only from the bucket that is split, and only to the new one.
    #[test]
    fn a_split_moves_names_to_the_new_bucket_only(hash in any::<u32>(), buckets in 1u32..1 << 20) {
        let before = index::bucket_of(hash, buckets);
        let after = index::bucket_of(hash, buckets + 1);
        prop_assert!(before < buckets);
        if after != before {
            prop_assert_eq!(after, buckets);
            let split = buckets - buckets.next_power_of_two() / 2;
            let split = if buckets.is_power_of_two() { 0 } else { split };
            prop_assert_eq!(before, split);
        }
    }

    #[test]
    fn a_locator_block_is_an_array(
        sets in prop::collection::vec(
            (0usize..254, prop::option::of((1u64.., any::<u32>())), any::<u32>()),
            0..60,
        ),
        from in 0usize..300,
    ) {
        let mut bytes = vec![0xee; BLOCK];
        locator::init(&mut bytes, 12);
        let free = locator::Entry { container: None, generation: 0 };
        let mut model = vec![free; locator::entries_per_block(BLOCK as u32) as usize];
        for (position, place, generation) in sets {
            let place = place.map(|(file, sector)| container(file, sector));
            let entry = locator::Entry { container: place, generation };
            locator::set(&mut bytes, position, entry);
            model[position] = entry;
        }
        for (position, entry) in model.iter().enumerate() {
            prop_assert_eq!(locator::get(&bytes, position), *entry);
        }
        let used = model.iter().filter(|entry| entry.container.is_some()).count();
        prop_assert_eq!(locator::used_count(&bytes), used);
        let first_free =
            (from..model.len()).find(|position| model[*position].container.is_none());
        prop_assert_eq!(locator::find_free(&bytes, from), first_free);
        locator::seal(&mut bytes, checksum());
        locator::verify(&bytes, 12, checksum()).unwrap();
        prop_assert_eq!(usize::from(u16::from_le_bytes([bytes[16], bytes[17]])), used);
    }
}

#[test]
fn locator_positions_count_through_the_blocks() {
    for block_bytes in [4096, 65536] {
        let per_block = locator::entries_per_block(block_bytes);
        let mut expected = (0, 0);
        for ino in 0..u64::from(per_block) * 3 {
            assert_eq!(locator::position(InodeNo(ino), block_bytes), expected);
            expected.1 += 1;
            if expected.1 == per_block as usize {
                expected = (expected.0 + 1, 0);
            }
        }
    }
}

#[test]
fn each_refusal_of_an_extent_block() {
    let refusal = |change: &dyn Fn(&mut Vec<u8>)| {
        let mut bytes = node_bytes(&Node::Leaf(two_extents()), 0);
        change(&mut bytes);
        if bytes.len() >= 48 {
            checksum().seal(&mut bytes, 4);
        }
        match decode_node(&bytes, 0) {
            Err(Corruption::ExtentBlock { ino: InodeNo(20), block: BlockNo(500), what }) => what,
            other => panic!("{other:?}"),
        }
    };
    assert_eq!(refusal(&|b| b.truncate(47)), "shorter than its header");
    assert_eq!(refusal(&|b| b[0] ^= 1), "not an extent block");
    assert_eq!(refusal(&|b| b[8] ^= 1), "it belongs to another inode");
    assert_eq!(refusal(&|b| b[16] ^= 1), "it belongs to another inode");
    assert_eq!(refusal(&|b| b[24] ^= 1), "it was written for another place");
    assert_eq!(refusal(&|b| b[22] = 1), "it is at another level of the tree");
    assert_eq!(refusal(&|b| b[21] = 1), "more entries than fit");
    assert_eq!(refusal(&|b| b[20] = 3), "its extents are out of order");
    assert_eq!(refusal(&|b| b[64] = 9), "its extents are out of order");
    let mut damaged = node_bytes(&Node::Leaf(two_extents()), 0);
    damaged[4000] ^= 1;
    let found = decode_node(&damaged, 0);
    assert!(matches!(found, Err(Corruption::ExtentBlock { what: "checksum mismatch", .. })));
    let child = |logical| Child { logical, block: BlockNo(1) };
    let bytes = node_bytes(&Node::Inner(vec![child(5), child(5)]), 1);
    let found = decode_node(&bytes, 1);
    let what = "its children are out of order";
    assert_eq!(found, Err(Corruption::ExtentBlock { ino: InodeNo(20), block: BlockNo(500), what }));
}

#[test]
fn each_refusal_of_an_attribute_block() {
    let refusal = |change: &dyn Fn(&mut Vec<u8>), seal: bool| {
        let mut bytes = xattr::encode_block(b"xyz", InodeNo(20), 3, FragNo(9), 1024, checksum());
        change(&mut bytes);
        if seal {
            checksum().seal(&mut bytes, 4);
        }
        match xattr::decode_block(&bytes, InodeNo(20), 3, FragNo(9), checksum()) {
            Err(Corruption::XattrBlock { ino: InodeNo(20), start: FragNo(9), what }) => what,
            other => panic!("{other:?}"),
        }
    };
    assert_eq!(refusal(&|b| b.truncate(31), false), "shorter than its header");
    assert_eq!(refusal(&|b| b[1] ^= 1, true), "not an attribute block");
    assert_eq!(refusal(&|b| b[1000] ^= 1, false), "checksum mismatch");
    assert_eq!(refusal(&|b| b[9] ^= 1, true), "it belongs to another inode");
    assert_eq!(refusal(&|b| b[19] ^= 1, true), "it belongs to another inode");
    assert_eq!(refusal(&|b| b[24] ^= 1, true), "it was written for another place");
    assert_eq!(refusal(&|b| b[21] = 4, true), "the list does not fit");
    assert_eq!(refusal(&|b| b[23] = 0xff, true), "the list does not fit");
}

#[test]
fn each_refusal_of_a_bucket_a_locator_block_and_a_group() {
    let mut bucket = vec![0; BLOCK];
    index::init(&mut bucket, InodeNo(20), 3, 8);
    index::seal(&mut bucket, checksum());
    let refusal = |change: &dyn Fn(&mut Vec<u8>), seal: bool| {
        let mut bytes = bucket.clone();
        change(&mut bytes);
        if seal {
            checksum().seal(&mut bytes, 4);
        }
        match index::verify(&bytes, InodeNo(20), 3, 8, checksum()) {
            Err(Corruption::IndexBlock { dir: InodeNo(20), index: 8, what }) => what,
            other => panic!("{other:?}"),
        }
    };
    assert_eq!(refusal(&|b| b.truncate(31), false), "shorter than its header");
    assert_eq!(refusal(&|b| b[0] ^= 1, true), "not an index block");
    assert_eq!(refusal(&|b| b[4095] ^= 1, false), "checksum mismatch");
    assert_eq!(refusal(&|b| b[15] ^= 1, true), "it belongs to another directory");
    assert_eq!(refusal(&|b| b[17] ^= 1, true), "it belongs to another directory");
    assert_eq!(refusal(&|b| b[20] ^= 1, true), "it is another bucket");
    assert_eq!(refusal(&|b| b[25] = 0xff, true), "more entries than fit");

    let mut block = vec![0; BLOCK];
    locator::init(&mut block, 12);
    locator::seal(&mut block, checksum());
    let refusal = |change: &dyn Fn(&mut Vec<u8>), seal: bool| {
        let mut bytes = block.clone();
        change(&mut bytes);
        if seal {
            checksum().seal(&mut bytes, 4);
        }
        match locator::verify(&bytes, 12, checksum()) {
            Err(Corruption::LocatorBlock { index: 12, what }) => what,
            other => panic!("{other:?}"),
        }
    };
    assert_eq!(refusal(&|b| b.truncate(31), false), "shorter than its header");
    assert_eq!(refusal(&|b| b[3] ^= 1, true), "not a block of the table");
    assert_eq!(refusal(&|b| b[40] ^= 1, false), "checksum mismatch");
    assert_eq!(refusal(&|b| b[8] ^= 1, true), "it is another block of the table");

    let cg = CgIndex(5);
    let header = CgHeader {
        cg,
        free_fragments: 1,
        rotor: 2,
        bitmap_checksum: 3,
        generation: 4,
        clusters: 0,
        counts_checksum: 0,
    };
    let mut block = vec![0; BLOCK];
    header.encode_into(&mut block, checksum());
    assert_eq!(CgHeader::decode(&block, cg, checksum()), Ok(header));
    let refusal = |bytes: &[u8], cg| match CgHeader::decode(bytes, cg, checksum()) {
        Err(Corruption::CgHeader { what, .. }) => what,
        other => panic!("{other:?}"),
    };
    assert_eq!(refusal(&block[..CG_HEADER_BYTES - 1], cg), "shorter than a header");
    assert_eq!(refusal(&block, CgIndex(6)), "it is another group's");
    assert_eq!(refusal(&[0; BLOCK], cg), "not a header");
    block[BLOCK - 1] ^= 1;
    assert_eq!(refusal(&block, cg), "checksum mismatch");
}

#[test]
fn another_volumes_block_has_a_wrong_checksum() {
    let mut bytes = vec![7; 100];
    checksum().seal(&mut bytes, 4);
    assert!(checksum().verify(&bytes, 4));
    assert!(!Checksum::new(b"another volume's").verify(&bytes, 4));
}

/// Values that other programs compute: the check value of CRC-32C, and a SipHash-1-3 that was
/// computed by the decoder in `python/`.
#[test]
fn the_sums_are_the_well_known_ones() {
    assert_eq!(sums::contents(0, b"123456789"), 0xe306_9283);
    let halves = sums::contents(sums::contents(0, b"12345"), b"6789");
    assert_eq!(halves, 0xe306_9283);
    let seed: [u8; 16] = std::array::from_fn(|index| index as u8);
    let hashes: BTreeSet<u32> =
        [&b"a"[..], b"b", b"ab", b""].iter().map(|name| sums::name_hash(&seed, name)).collect();
    assert_eq!(hashes.len(), 4);
    assert_ne!(sums::name_hash(&seed, b"a"), sums::name_hash(&[0; 16], b"a"));
}
