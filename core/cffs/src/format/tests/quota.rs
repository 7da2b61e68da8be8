//! The list of quotas.

use super::*;
use crate::format::quota::{self, QUOTAS_MAX, QuotaRecord, RECORD_BYTES};

fn records() -> impl Strategy<Value = QuotaRecord> {
    (any::<u64>(), any::<[u32; 2]>(), any::<[u64; 4]>()).prop_map(
        |(dir, [generation, mounts], [limit_bytes, limit_files, used_bytes, used_files])| {
            let dir = InodeNo(dir);
            QuotaRecord {
                dir,
                generation,
                mounts,
                limit_bytes,
                limit_files,
                used_bytes,
                used_files,
            }
        },
    )
}

proptest! {
    #[test]
    fn quotas_come_back(all in prop::collection::vec(records(), 0..9), rest in 0..RECORD_BYTES) {
        let mut list = quota::encode(&all);
        prop_assert_eq!(list.len(), all.len() * RECORD_BYTES);
        list.resize(list.len() + rest, 9);
        prop_assert_eq!(quota::decode(&list), all);
    }

    #[test]
    fn any_bytes_are_a_list_of_quotas(list in prop::collection::vec(any::<u8>(), 0..2000)) {
        let again = quota::encode(&quota::decode(&list));
        prop_assert!(list.starts_with(&again) && list.len() - again.len() < RECORD_BYTES);
    }
}

#[test]
fn a_list_that_is_too_long_ends_at_the_limit() {
    let list = vec![7; (QUOTAS_MAX + 3) * RECORD_BYTES];
    assert_eq!(quota::decode(&list).len(), QUOTAS_MAX);
}
