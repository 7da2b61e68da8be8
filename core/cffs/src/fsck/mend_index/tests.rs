use super::*;

#[test]
fn the_bucket_from_which_a_bucket_was_split_is_found() {
    for buckets in 1..40 {
        for later in buckets..160 {
            for hash in (0..5000).step_by(7) {
                let now = index::bucket_of(hash, later);
                assert_eq!(kept(now, buckets), index::bucket_of(hash, buckets));
            }
        }
    }
}

/// Two names of one hash in one sector have two equal entries.
#[test]
fn a_bucket_has_exactly_the_names_of_changed_sectors() {
    let entry = |hash: u32, sector| (hash << 8, SectorIndex(sector));
    let mut bytes = vec![0; 4096];
    index::init(&mut bytes, InodeNo(20), 1, 0);
    for (hash, sector) in [entry(1, 0), entry(2, 1), entry(2, 1), entry(3, 1), entry(4, 2)] {
        index::insert(&mut bytes, hash, sector);
    }
    let names = vec![entry(5, 1), entry(2, 1), entry(6, 1), entry(5, 1)];
    let is_changed = |sector: SectorIndex| sector == SectorIndex(1);
    assert!(correct(&mut bytes, names.clone(), is_changed));
    let left: Vec<IndexEntry> = index::entries(&bytes).collect();
    let expected = [entry(1, 0), entry(2, 1), entry(4, 2), entry(5, 1), entry(5, 1), entry(6, 1)];
    assert_eq!(left, expected);
    assert!(!correct(&mut bytes, names, is_changed), "it was right");
}
