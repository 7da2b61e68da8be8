use super::*;
use crate::format::journal::JOURNAL_BLOCKS_MIN;
use crate::format::{Layout, LiveLayout};
use crate::units::{BlockNo, CgIndex, FragNo};

/// Small volumes of every shape, so that each block can be looked at.
fn layouts() -> impl Strategy<Value = Layout> {
    (0u32..3, 0u32..4, 6u32..9, 64u64..1500, 0u32..40).prop_filter_map(
        "no room for its own structures",
        |(block_shift, fragment_shift, cg_shift, blocks, journal_blocks)| {
            let block_bytes = 4096 << block_shift;
            let superblock = Superblock {
                block_bytes,
                fragment_bytes: block_bytes >> fragment_shift,
                segment_bytes: block_bytes * 4,
                cg_blocks: 1 << cg_shift,
                blocks,
                cgs_made: 1,
                cg_rotor: 0,
                intent_log_blocks: Layout::usual_intent_log_half_blocks(
                    blocks,
                    block_bytes,
                    1 << cg_shift,
                ),
                ..superblock()
            };
            let superblock = with_journal(superblock, journal_blocks);
            superblock.check().ok().map(|()| Layout::new(&superblock))
        },
    )
}

/// With a journal in the middle of the volume, unless it is shorter than any.
fn with_journal(mut superblock: Superblock, blocks: u32) -> Superblock {
    if blocks >= JOURNAL_BLOCKS_MIN {
        let layout = Layout::new(&superblock);
        let start = layout.journal_start(CgIndex(layout.cgs() / 2)).0;
        superblock.incompat |= Incompat::JOURNAL;
        superblock.journal = JournalArea { start, blocks, ..JournalArea::default() };
    }
    superblock
}

proptest! {
    #[test]
    fn the_sums_are_those_of_the_blocks(layout in layouts()) {
        let per_block = u64::from(layout.block_fragments());
        let mut allocatable = 0;
        for block in (0..layout.blocks).map(BlockNo) {
            let reserved = layout.is_reserved(block);
            let start = layout.block_start(block);
            prop_assert_eq!(layout.is_allocatable(start, per_block as u32), !reserved);
            prop_assert_eq!(layout.block_of(FragNo(start.0 + per_block - 1)), block);
            let cg = layout.cg_of(block);
            prop_assert!(block.0 - layout.cg_start(cg).0 < layout.cg_len_blocks(cg).into());
            if !reserved {
                allocatable += per_block;
            }
        }
        prop_assert_eq!(layout.allocatable_fragments(), allocatable);
        let lens: u64 =
            (0..layout.cgs()).map(|cg| u64::from(layout.cg_len_blocks(CgIndex(cg)))).sum();
        prop_assert_eq!(lens, layout.blocks);
    }

    #[test]
    fn fixed_structures_are_in_reserved_blocks_and_do_not_overlap(layout in layouts()) {
        let mut fixed = vec![BlockNo(0), layout.system_area()];
        for copy in layout.superblock_copies() {
            fixed.extend([copy, BlockNo(copy.0 + 1)]);
        }
        for cg in (0..layout.cgs()).map(CgIndex) {
            fixed.push(layout.cg_header(cg));
            for block in 0..u64::from(layout.bitmap_blocks()) {
                fixed.push(BlockNo(layout.cg_bitmap(cg).0 + block));
            }
            prop_assert!(
                layout.bitmap_blocks() * layout.block_bytes * 8 >= layout.cg_fragments(cg)
            );
        }
        let halves = 2 * u64::from(layout.intent_log_half_blocks);
        fixed.extend((0..halves).map(|b| BlockNo(layout.intent_log().0 + b)));
        let journal = layout.journal_start(layout.journal_cg).0;
        fixed.extend((0..u64::from(layout.journal_blocks)).map(|b| BlockNo(journal + b)));
        for block in &fixed {
            prop_assert!(layout.is_reserved(*block), "{block:?}");
        }
        let count = fixed.len();
        fixed.sort_unstable();
        fixed.dedup();
        prop_assert_eq!(fixed.len(), count);
    }

    /// The system blocks of a volume are those of its groups in use, and of the others only the copies of the
    /// superblock and the journal.
    #[test]
    fn system_runs_are_the_heads_of_groups_in_use_and_copies_and_journal_of_others(
        layout in layouts(),
        cgs_made in 1u32..30,
    ) {
        let mut system = vec![false; layout.blocks as usize];
        let mut from = BlockNo(0);
        while from.0 < layout.blocks {
            let run = layout.next_system_run(from, cgs_made);
            prop_assert!(run.end > from && run.end.0 <= layout.blocks, "{run:?}");
            (run.start.0..run.end.0).for_each(|block| system[block as usize] = true);
            from = run.end;
        }
        let copies = layout.superblock_copies();
        let journal = layout.journal_start(layout.journal_cg).0;
        let journal = journal..journal + u64::from(layout.journal_blocks);
        for block in 0..layout.blocks {
            let is_copy = copies.iter().any(|copy| (copy.0..copy.0 + 2).contains(&block));
            let expected = match layout.cg_of(BlockNo(block)).0 < cgs_made {
                true => layout.is_reserved(BlockNo(block)),
                false => is_copy || journal.contains(&block),
            };
            prop_assert_eq!(system[block as usize], expected, "block {}", block);
        }
    }

    #[test]
    fn a_run_is_allocatable_if_each_of_its_fragments_is_in_one_group(
        layout in layouts(),
        start in 0u64..12_000,
        len in 0u32..600,
    ) {
        let fragments = start..start + u64::from(len);
        let each = len > 0
            && fragments.clone().all(|f| layout.is_allocatable(FragNo(f), 1))
            && layout.cg_of_fragment(FragNo(start)) == layout.cg_of_fragment(FragNo(fragments.end - 1));
        prop_assert_eq!(layout.is_allocatable(FragNo(start), len), each);
    }
}

#[test]
fn a_run_near_the_end_of_numbers_is_outside() {
    let layout = Layout::new(&superblock());
    assert!(!layout.is_allocatable(FragNo(u64::MAX), 1));
    assert!(!layout.is_allocatable(FragNo(u64::MAX - 5), u32::MAX));
}

#[test]
fn copies_are_in_group_1_and_the_powers_of_3_5_and_7_and_at_the_end() {
    let blocks = 64 * 130;
    let superblock = Superblock {
        block_bytes: 4096,
        fragment_bytes: 1024,
        cg_blocks: 64,
        blocks,
        segment_bytes: 65536,
        intent_log_blocks: 4,
        compression: Default::default(),
        ..superblock()
    };
    superblock.check().unwrap();
    let mut expected: Vec<u64> =
        [1, 3, 5, 7, 9, 25, 27, 49, 81, 125].into_iter().map(|cg| cg * 64).collect();
    expected.push(blocks - 2);
    let copies = Layout::new(&superblock).superblock_copies();
    assert_eq!(copies, expected.into_iter().map(BlockNo).collect::<Vec<_>>());
}

#[test]
fn all_users_of_a_layout_see_it_grow() {
    let layout = Layout::new(&superblock());
    let live = LiveLayout::from(layout);
    let shared = live.clone();
    live.grow(2_000_000);
    live.grow(3_000_000);
    assert_eq!(*shared, layout.with_blocks(3_000_000));
    live.grow(2_500_000);
    assert_eq!(shared.blocks, 3_000_000, "it never shrinks");
    assert_eq!(*LiveLayout::from(layout), layout);
}

#[test]
fn system_inodes_share_a_sector_where_they_fit() {
    let places = |sector_bytes| {
        let layout = Layout::new(&Superblock { sector_bytes, ..superblock() });
        [InodeNo::ROOT, InodeNo::LOCATOR, InodeNo::EXTERNAL]
            .map(|ino| layout.system_container(ino).sector.0)
    };
    assert_eq!(places(512), [0, 1, 2]);
    assert_eq!(places(1024), [0, 0, 0]);
    assert_eq!(places(4096), [0, 0, 0]);
}
