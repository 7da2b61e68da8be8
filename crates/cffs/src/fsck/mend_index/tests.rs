use super::*;

#[test]
fn a_bucket_leads_back_to_the_one_that_it_was_split_from() {
    for buckets in 1..40 {
        for later in buckets..160 {
            for hash in (0..5000).step_by(7) {
                let now = index::bucket_of(hash, later);
                assert_eq!(kept(now, buckets), index::bucket_of(hash, buckets));
            }
        }
    }
}
