//! After any crash, the account of a quota is the count of its tree.

use cffs_testing::crash::case::QUOTA;
use cffs_testing::crash::explorer::Workload;

use super::disks::JOURNALED;
use super::explorer;

/// States of volumes with a quota.
const STATES: u64 = 20_000;

#[test]
fn an_account_equals_a_count_after_any_crash() {
    let nth = |nth, calls| Workload::nth_pair(nth, calls).of_kinds_from(QUOTA);
    explorer().explore(nth, STATES);
}

#[test]
fn an_account_equals_a_count_after_any_crash_with_a_journal() {
    let nth = |nth, calls| Workload::nth_pair(nth, calls).of_kinds_from(QUOTA | JOURNALED);
    explorer().explore(nth, STATES / 5);
}
