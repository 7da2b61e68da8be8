use super::*;

/// Lists this many files of a directory, and returns how many came with inodes.
fn list(interest: &Interest, dir: u64, files: u32) -> u32 {
    let listing = interest.list_at(InodeNo(dir), Duration::ZERO);
    (0..files).map(|_| u32::from(listing.wants_inode())).sum()
}

#[test]
fn inodes_are_omitted_when_no_sample_of_many_was_looked_up() {
    let interest = Interest::new();
    let names = NAMES_PER_SAMPLE * UNSEEN_MAX;
    assert_eq!(list(&interest, 1, names), names - UNSEEN_MAX);
    assert_eq!(list(&interest, 2, 1000), 0);
}

#[test]
fn inodes_are_returned_while_samples_are_looked_up() {
    let interest = Interest::new();
    for dir in 1..1000 {
        assert!(list(&interest, dir, 100) >= 99, "directory {dir}");
        assert_eq!(interest.looked_up(InodeNo(dir)), [], "no listing of names alone is there");
    }
}

#[test]
fn lookups_bring_inodes_back_and_drop_listings_without_them() {
    let interest = Interest::new();
    list(&interest, 1, 10_000);
    assert_eq!(list(&interest, 2, 100) + list(&interest, 3, 100), 0);
    let dropped: Vec<_> = (0..LOOKS).map(|_| interest.looked_up(InodeNo(3))).collect();
    assert!(dropped[..LOOKS as usize - 1].iter().all(Vec::is_empty));
    let mut dropped = dropped[LOOKS as usize - 1].clone();
    dropped.sort();
    assert_eq!(dropped, [InodeNo(2), InodeNo(3)], "the first one came with its inodes");
    assert!(list(&interest, 4, 100) >= 99);
    assert!((0..100).all(|_| interest.looked_up(InodeNo(3)).is_empty()), "once");
}

#[test]
fn lookups_in_other_directories_do_not_count() {
    let interest = Interest::new();
    list(&interest, 1, 10_000);
    (2..1000).for_each(|dir| assert_eq!(interest.looked_up(InodeNo(dir)), []));
    assert_eq!(list(&interest, 2, 100), 0);
}

#[test]
fn a_pause_discards_the_observations() {
    let interest = Interest::new();
    list(&interest, 1, 10_000);
    let at = |ms| interest.list_at(InodeNo(2), Duration::from_millis(ms)).wants_inode();
    assert!(!at(900));
    assert!(at(2000));
}

#[test]
fn the_number_of_remembered_directories_is_bounded() {
    let interest = Interest::new();
    list(&interest, 1, 10_000);
    (2..3 * DIRECTORIES_MAX as u64).for_each(|dir| assert_eq!(list(&interest, dir, 1), 0));
    assert!(interest.alone.read().len() <= DIRECTORIES_MAX);
}
