//! Promises of blocks, and the counts after them.

use std::sync::Arc;

use proptest::prelude::*;

use super::*;
use crate::device::{BlockDevice, MemoryDevice};
use crate::error::{Corruption, Error};
use crate::format::Layout;
use crate::format::superblock::Policy;
use crate::mkfs::{self, MkfsOptions};
use crate::tuning::Tuning;
use crate::units::{FragNo, Key};
use crate::waiter::InPlace;

const FRAGMENTS: u32 = 512;

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn whole_blocks_are_counted(
        used in prop::collection::vec((0u32..FRAGMENTS, 1u32..9), 0..60),
        held in prop::collection::vec((0u32..FRAGMENTS, 1u32..9), 0..9),
        log in 0u32..7,
    ) {
        let per_block = 1 << log;
        let layout = Layout::new(&volume(8 << 20).1);
        let mut group = Group::from_bitmap(&layout, CgIndex(0), &[0; FRAGMENTS as usize / 8], 0);
        let mut free = [true; FRAGMENTS as usize];
        for (start, len) in &used {
            (*start..(start + len).min(FRAGMENTS)).for_each(|at| free[at as usize] = false);
        }
        for at in (0..FRAGMENTS).filter(|at| free[*at as usize]) {
            group.give(at, 1);
        }
        for (start, len) in held {
            let len = len.min(FRAGMENTS - start);
            group.reserve(start, len);
            (start..start + len).for_each(|at| free[at as usize] = false);
        }
        let whole = free.chunks(per_block).filter(|block| block.iter().all(|free| *free)).count();
        prop_assert_eq!(group.whole_blocks(per_block as u32), whole as u64);
    }
}

/// An empty volume: its allocator and superblock.
fn volume(size_bytes: u64) -> (Allocator, Superblock) {
    volume_with(size_bytes, &MkfsOptions::default())
}

fn volume_with(size_bytes: u64, options: &MkfsOptions) -> (Allocator, Superblock) {
    let device = Arc::new(MemoryDevice::new(size_bytes));
    mkfs::make(&*device, options).unwrap();
    let mut bytes = [0; 512];
    device.read_at(0, &mut bytes).unwrap();
    let superblock = Superblock::decode(&bytes, 0).unwrap();
    let (layout, tuning) = (Layout::new(&superblock), Tuning::for_cache(1 << 20));
    let cache = Arc::new(BufferCache::new(device, layout, tuning, true, Arc::new(InPlace)));
    let allocator = Allocator::new(cache, &superblock);
    allocator.fill_pool().unwrap();
    (allocator, superblock)
}

/// A small file of a key.
fn small(key: u64, len: u32, grown: bool) -> Request {
    Request {
        kind: Kind::Small,
        owner: Owner::Key(Key(key)),
        len,
        goal: None,
        grown,
        replaces: false,
        room: 0,
    }
}

fn place(allocator: &Allocator, kind: Kind, len: u32) -> Result<FragRun> {
    allocator.place(&Request { kind, len, ..small(9, len, false) })
}

/// The number of a directory's files that are right after the previously placed one.
fn adjacent(policy: Policy) -> usize {
    let (allocator, _) = volume_with(64 << 20, &MkfsOptions { policy, ..MkfsOptions::default() });
    let place = |_| place(&allocator, Kind::Small, 1).unwrap();
    let runs: Vec<FragRun> = (0..1000).map(place).collect();
    runs.windows(2).filter(|pair| pair[0].end() == pair[1].start).count()
}

#[test]
fn a_policy_decides_how_files_lie() {
    assert!(adjacent(Policy::Directory) > 990);
    assert!(adjacent(Policy::None) > 990);
    let scattered = adjacent(Policy::Scattered);
    assert!((450..550).contains(&scattered), "half of them, and by chance: {scattered}");
}

/// Frees every other fragment of the rest, so that no whole block is left.
fn in_pieces(allocator: &Allocator) {
    let mut taken = Vec::new();
    while allocator.promise(1, Spender::Privileged).is_ok() {
        allocator.withdraw(1);
        taken.push(place(allocator, Kind::Small, 1).unwrap());
    }
    taken.sort_by_key(|run| run.start);
    taken.into_iter().step_by(2).for_each(|run| allocator.free(run));
    allocator.epoch_started().unwrap();
    allocator.epoch_done().unwrap();
}

#[test]
fn no_more_blocks_are_promised_than_there_are() {
    let (allocator, _) = volume(8 << 20);
    in_pieces(&allocator);
    assert!(allocator.space().available > 1000);
    let mut promised = 0;
    while promised < 2000 && allocator.promise_blocks(1, Spender::Privileged).is_ok() {
        promised += 1;
    }
    let pool = allocator.state.lock().promises.pool_blocks();
    assert!((1..pool as u64).contains(&promised), "{promised}");
    for _ in 0..promised {
        allocator.withdraw_blocks(1);
        assert_eq!(place(&allocator, Kind::Metadata, 4).unwrap().len, 4);
    }
}

/// Data that is promised later must not take the blocks that were promised before.
#[test]
fn promised_blocks_exist_after_data_was_placed() {
    let (allocator, _) = volume(8 << 20);
    let mut blocks = 0;
    let mut fragments = 0;
    while allocator.promise_spill(1, false, Spender::Privileged).is_ok() && blocks < 300 {
        blocks += 1;
    }
    while allocator.promise(3, Spender::Privileged).is_ok() {
        fragments += 3;
    }
    assert!(blocks == 300 && fragments > 1000, "{blocks} blocks, {fragments} fragments");
    let mut left = fragments;
    while left > 0 {
        allocator.withdraw(left.min(3));
        let run = place(&allocator, Kind::Small, left.min(3) as u32).unwrap();
        allocator.promise(left.min(3) - u64::from(run.len), Spender::Privileged).unwrap();
        left -= u64::from(run.len);
    }
    for _ in 0..blocks {
        allocator.withdraw_spill(1);
        assert_eq!(place(&allocator, Kind::Metadata, 4).unwrap().len, 4);
    }
}

/// Blocks that metadata takes are not those that data was promised.
#[test]
fn data_that_was_promised_has_its_space_when_blocks_were_placed() {
    let (allocator, _) = volume(8 << 20);
    let mut fragments = 0;
    while allocator.promise(1, Spender::Privileged).is_ok() {
        fragments += 1;
    }
    let mut blocks = 0;
    while allocator.promise_spill(1, true, Spender::Privileged).is_ok() {
        blocks += 1;
    }
    assert!(blocks > 10 && fragments > 1000, "{blocks} blocks, {fragments} fragments");
    for _ in 0..blocks {
        allocator.withdraw_spill(1);
        assert_eq!(place(&allocator, Kind::Metadata, 4).unwrap().len, 4);
    }
    for _ in 0..fragments {
        allocator.withdraw(1);
        assert_eq!(place(&allocator, Kind::Small, 1).unwrap().len, 1);
    }
}

/// Places the sectors of a directory of `blocks` blocks; returns their runs.
fn sectors(allocator: &Allocator, key: u64, blocks: usize) -> Vec<FragRun> {
    let mut goal = None;
    let place = |_| {
        let request = Request { kind: Kind::Metadata, goal, ..small(key, 4, false) };
        let run = allocator.place(&request).unwrap();
        goal = Some(run.end());
        run
    };
    (0..blocks).map(place).collect()
}

/// Directories that grow in turn, as in a tree in use. A walk reads everything between the first and the last
/// sector; a listing of one directory reads all of its pieces.
#[test]
fn sectors_of_directories_that_grow_alternately_are_dense_and_in_few_pieces() {
    const DIRECTORIES: usize = 40;
    const BLOCKS: usize = 40;
    let (allocator, _) = volume(1 << 30);
    let mut directories: Vec<Vec<FragRun>> = vec![Vec::new(); DIRECTORIES];
    for _ in 0..BLOCKS {
        for (key, runs) in (1..).zip(&mut directories) {
            let goal = runs.last().map(|run| run.end());
            let room = runs.len() as u32;
            let request = Request { kind: Kind::Metadata, goal, room, ..small(key, 4, false) };
            runs.push(allocator.place(&request).unwrap());
        }
    }
    let all = || directories.iter().flatten();
    let first = all().map(|run| run.start.0).min().unwrap();
    let end = all().map(|run| run.end().0).max().unwrap();
    let used = (4 * DIRECTORIES * BLOCKS) as u64;
    // The reservation of all first sectors, a mebibyte, blocks the others.
    assert!(end - first - 1024 < used * 5 / 4, "{used} fragments in {}", end - first);
    for runs in &directories {
        let pieces = 1 + runs.windows(2).filter(|pair| pair[0].end() != pair[1].start).count();
        assert!(pieces <= 10, "{pieces} pieces: {runs:?}");
    }
}

/// A 64 MiB volume's zone is its first 2 MiB.
const ZONE_END: u64 = 2 << 10;

#[test]
fn sectors_are_in_the_zone_and_files_after_it() {
    let (allocator, _) = volume(64 << 20);
    let mut in_zone = 0;
    // Directories grow one after the other, and later again, when files have filled most of the rest.
    for round in 0..2 {
        for key in 1..=20 {
            let blocks = if round == 0 { 4 } else { 12 };
            let sectors = sectors(&allocator, key, blocks);
            in_zone += sectors.iter().filter(|run| run.end().0 <= ZONE_END).count();
        }
        let room = allocator.space().available * 4 / 5;
        let files = if round == 0 { room } else { room / 2 };
        for _ in 0..files / 16 {
            let run = place(&allocator, Kind::Small, 16).unwrap();
            assert!(run.start.0 >= ZONE_END, "{run:?} is in the zone");
        }
    }
    assert_eq!(in_zone, 20 * 16);
}

#[test]
fn files_take_the_zone_when_nothing_else_is_left() {
    let (allocator, _) = volume(64 << 20);
    let mut in_zone = 0;
    while allocator.promise(1, Spender::Privileged).is_ok() {
        allocator.withdraw(1);
        let run = place(&allocator, Kind::Small, 1).unwrap();
        in_zone += u64::from(run.start.0 < ZONE_END);
    }
    assert!(allocator.space().available == 0 && in_zone > ZONE_END * 9 / 10, "{in_zone}");
}

#[test]
fn conventional_placement_has_no_zone() {
    let options = MkfsOptions { policy: Policy::None, ..MkfsOptions::default() };
    let (allocator, _) = volume_with(64 << 20, &options);
    let runs: Vec<FragRun> =
        (0..1000).map(|_| place(&allocator, Kind::Small, 1).unwrap()).collect();
    assert!(runs.iter().any(|run| run.start.0 < ZONE_END));
}

fn place_reserved(allocator: &Allocator, key: u64, len: u32) -> FragRun {
    allocator.place(&small(key, len, true)).unwrap()
}

/// A user may choose any number as the key of a file.
#[test]
fn no_key_shares_what_is_set_aside_for_all_or_for_urgent_files() {
    let (allocator, _) = volume(256 << 20);
    let zone_end = 4 * ZONE_END;
    let own = place_reserved(&allocator, 0, 4);
    assert_ne!(place(&allocator, Kind::Small, 4).unwrap().start, own.end());
    let last = allocator.place(&small(u64::MAX, 4, false)).unwrap();
    assert!(last.start.0 >= zone_end, "{last:?} is in the zone");
    let urgent = Request { owner: Owner::Urgent, ..small(9, 4, false) };
    assert!(allocator.place(&urgent).unwrap().start.0 < zone_end);
}

/// A key of files' own, and a request for a file of it.
fn own_key(number: u64, len: u32) -> (Key, Request) {
    let key = Key(number | 1 << 63);
    (key, Request { owner: Owner::Key(key), ..small(0, len, true) })
}

#[test]
fn a_key_fills_a_segment_by_files_that_stay() {
    let (allocator, _) = volume(64 << 20);
    let (key, _) = own_key(1, 4);
    (0..100).for_each(|_| allocator.key_sizes.note(key, 63, 63));
    allocator.key_sizes.note(key, 0, 63);
    (0..100).for_each(|_| allocator.key_sizes.note(key, 63, 62));
    allocator.key_sizes.note(key, 0, 63);
    assert!(!allocator.key_sizes.has_filled(key));
    allocator.key_sizes.note(key, 0, 1);
    assert!(allocator.key_sizes.has_filled(key));
    assert!(!allocator.key_sizes.has_filled(own_key(2, 4).0));
}

#[test]
fn the_run_of_a_key_is_as_long_as_its_files() {
    let (allocator, _) = volume(256 << 20);
    for (number, size, run) in [(1, 0, 64), (2, 65, 128), (3, 640, 640), (4, 1 << 30, 8192)] {
        let (key, request) = own_key(number, 4);
        allocator.key_sizes.note(key, 0, size);
        allocator.place(&request).unwrap();
        let state = allocator.state.lock();
        let holder = (Owner::Key(key), Class::Files);
        let made = state.space.reservations.get(holder).unwrap().made;
        assert_eq!(made, run, "a key of {size} fragments");
    }
}

#[test]
fn the_sizes_of_a_bounded_number_of_keys_are_known() {
    let (allocator, _) = volume(64 << 20);
    let (key, _) = own_key(1, 4);
    for (before, after, known) in [(64, 0, 0), (0, 64, 1), (64, 1, 1), (1, 0, 0)] {
        allocator.key_sizes.note(key, before, after);
        assert_eq!(allocator.key_sizes.known(), known, "{before} to {after}");
    }
    let most = Tuning::for_cache(1 << 20).placing.key_sizes_max;
    (0..3 * most as u64).for_each(|number| allocator.key_sizes.note(own_key(number, 4).0, 0, 64));
    assert!((1..=most).contains(&allocator.key_sizes.known()));
}

#[test]
fn the_tail_of_a_large_file_does_not_use_reservations() {
    let (allocator, _) = volume(64 << 20);
    let first = place_reserved(&allocator, 1, 4);
    let other = place_reserved(&allocator, 2, 4);
    let goal = Some(other.start);
    let request = Request { kind: Kind::Large, goal, ..small(3, 1, true) };
    (0..20).for_each(|_| {
        allocator.place(&request).unwrap();
    });
    assert_eq!(place_reserved(&allocator, 1, 4).start, first.end());
}

#[test]
fn a_medium_file_is_placed_in_several_holes_of_its_directory() {
    let (allocator, _) = volume(64 << 20);
    let others: Vec<FragRun> = (0..16).map(|_| place_reserved(&allocator, 1, 64)).collect();
    let window = others[0].start..others[15].end();
    others.into_iter().step_by(2).for_each(|run| allocator.free(run));
    allocator.epoch_started().unwrap();
    allocator.epoch_done().unwrap();
    let place_all = |len: u32| {
        let mut runs: Vec<FragRun> = Vec::new();
        while runs.iter().map(|run| run.len).sum::<u32>() < len {
            let left = len - runs.iter().map(|run| run.len).sum::<u32>();
            let goal = runs.last().map(|run| run.end());
            let request = Request { kind: Kind::Medium, goal, ..small(1, left, true) };
            runs.push(allocator.place(&request).unwrap());
        }
        runs
    };
    let pieces = place_all(200);
    assert_eq!(pieces.iter().map(|run| run.len).collect::<Vec<u32>>(), [64, 64, 64, 8]);
    assert!(pieces.iter().all(|run| window.contains(&run.start)), "{pieces:?}");
    // A directory that finds no room there still stays in one piece.
    let apart = place_all(400);
    assert!(apart.len() == 1 && !window.contains(&apart[0].start), "{apart:?}");
}

#[test]
fn reservations_shrink_before_they_are_gone() {
    let (allocator, _) = volume(64 << 20);
    let mut last: Vec<FragRun> = (1..=4).map(|key| place_reserved(&allocator, key, 4)).collect();
    // Each of the four reservations has a mebibyte. Without two of them, less than a mebibyte of the volume
    // is left.
    while allocator.space().available > 3 << 10 {
        place(&allocator, Kind::Small, 16).unwrap();
    }
    for (key, last) in (1..).zip(&mut last) {
        let next = place_reserved(&allocator, key, 4);
        assert_eq!(next.start, last.end(), "key {key}");
        *last = next;
    }
    while allocator.promise(1, Spender::Privileged).is_ok() {
        allocator.withdraw(1);
        place(&allocator, Kind::Small, 1).unwrap();
    }
}

#[test]
fn a_directory_that_is_being_filled_continues_in_the_shared_reservation() {
    let (allocator, _) = volume(64 << 20);
    let mut last = place(&allocator, Kind::Small, 16).unwrap();
    // An epoch ends. Only the segment of its last file is known of the directory.
    let segment = last.start.0 / 64;
    for _ in 0..20 {
        allocator.note_home(Owner::Key(Key(9)), &[segment]);
        let request = small(9, 16, true);
        let next = allocator.place(&request).unwrap();
        assert_eq!(next.start, last.end());
        last = next;
    }
    let other = place_reserved(&allocator, 10, 16);
    assert_ne!(other.start, last.end(), "one that lies elsewhere has a reservation of its own");
}

#[test]
fn replacing_files_stay_with_the_stream_until_the_replaced_are_gone() {
    let (allocator, _) = volume(64 << 20);
    let segment = u64::from(allocator.store.layout.segment_fragments());
    let own = place(&allocator, Kind::Small, 4).unwrap();
    // The stream continues elsewhere, so that the key does not end in it.
    let mut last = own;
    while last.start.0 / segment == own.start.0 / segment {
        last = allocator.place(&small(10, 4, false)).unwrap();
    }
    allocator.note_home(Owner::Key(Key(9)), &[own.start.0 / segment]);
    let again = Request { replaces: true, ..small(9, 4, true) };
    let run = allocator.place(&again).unwrap();
    assert_eq!(run.start, last.end(), "a run of its own would be mostly empty");
    allocator.free(own);
    allocator.epoch_started().unwrap();
    allocator.epoch_done().unwrap();
    assert_eq!(allocator.place(&again).unwrap(), own, "there is a hole now");
    // The key's own space is used first.
    allocator.place(&small(10, 4, false)).unwrap();
    let grown = place_reserved(&allocator, 9, 64);
    assert_eq!(allocator.place(&Request { len: 64, ..again }).unwrap().start, grown.end());
}

#[test]
fn the_stream_fills_a_group_to_its_end() {
    let options = MkfsOptions { cg_blocks: 4096, ..MkfsOptions::default() };
    let (allocator, _) = volume_with(64 << 20, &options);
    let runs: Vec<FragRun> =
        (0..2000).map(|_| place(&allocator, Kind::Small, 16).unwrap()).collect();
    // 31 MiB of files in groups of 16 MiB; at the end of each group are blocks set aside for metadata.
    for pair in runs.windows(2) {
        let skipped = pair[1].start.0.abs_diff(pair[0].end().0);
        assert!(skipped < 4 << 10, "{pair:?}");
    }
}

/// The bitmap may come from a device with forged contents.
#[test]
fn a_bitmap_with_free_reserved_fragments_is_refused() {
    let (allocator, _) = volume(16 << 20);
    let layout = &allocator.store.layout;
    let mut state = allocator.state.lock();
    let groups = &mut state.space.groups;
    loop {
        let (start, len) = groups.get(CgIndex(0)).unwrap().longest(1, Among::All);
        if len == 0 {
            break;
        }
        groups.take(layout.cg_run(CgIndex(0), start, len));
    }
    // The counts agree with the bitmap.
    groups.give(&[layout.cg_run(CgIndex(0), 0, 4)]).unwrap();
    drop(state);
    let error = place(&allocator, Kind::Small, 1).unwrap_err();
    let expected = Corruption::CgBitmap { cg: CgIndex(0) };
    assert!(matches!(&error, Error::Corruption(found) if *found == expected), "{error}");
}

/// Leaves single blocks free, no two of them side by side.
fn scatter_free_space(allocator: &Allocator) {
    let layout = &allocator.store.layout;
    let block = layout.block_fragments();
    let mut state = allocator.state.lock();
    for start in (0..layout.fragments()).step_by(2 * block as usize).map(FragNo) {
        if let Some(run) = state.space.groups.run_from(start, block..=block).unwrap() {
            state.space.groups.take(run);
        }
    }
}

/// The allocation of a large file where all free space is in single blocks: once, each piece was
/// looked for in all bitmaps at each length from that of the file down, and 48 MB took a minute.
#[test]
fn pieces_of_scattered_space_are_found_without_reading_all_bitmaps_for_each() {
    let (allocator, _) = volume(256 << 20);
    scatter_free_space(&allocator);
    let block = allocator.store.layout.block_fragments();
    let all = allocator.store.layout.fragments() / 64;
    let mut goal = None;
    let mut next = |left: u32| {
        let request = Request { kind: Kind::Large, len: left * block, goal, ..small(9, 0, false) };
        let run = allocator.place(&request).unwrap();
        assert_eq!(run.len, block);
        goal = Some(run.end());
    };
    next(12_000);
    let before = group::WORDS_READ.get();
    (1..12_000).for_each(|done| next(12_000 - done));
    let read = group::WORDS_READ.get() - before;
    assert!(read < 32 * all, "{read} words, of {all}");
}

#[test]
fn a_run_that_becomes_free_is_found_though_it_was_looked_for_in_vain() {
    let layout = Layout::new(&volume(8 << 20).1);
    let mut group = Group::from_bitmap(&layout, CgIndex(0), &[0; FRAGMENTS as usize / 8], 0);
    group.give(66, 10);
    assert_eq!(group.find_from_rotor(0, 8, 8), None);
    assert_eq!(group.find_from_rotor(0, 8, 3), Some(66), "another alignment is not ruled out");
    group.give(64, 2);
    group.take(72, 4);
    assert_eq!(group.find_from_rotor(0, 16, 8), None);
    assert_eq!(group.find_from_rotor(0, 8, 8), Some(64), "a shorter one is not ruled out");
    assert_eq!(group.find_from_rotor(0, 16, 8), None);
    group.give(72, 8);
    assert_eq!(group.find_from_rotor(0, 16, 8), Some(64));
    group.reserve(64, 16);
    assert_eq!(group.find_from_rotor(0, 16, 8), None);
    group.release(64, 16);
    assert_eq!(group.find_from_rotor(0, 16, 8), Some(64));
    assert_eq!(group.find_from_rotor(128, 8, 8), None);
    assert_eq!(group.find_from_rotor(0, 8, 8), Some(64), "the search was of a part alone");
}
