//! How many threads serve.

use super::*;

/// Eight callers that wait for one core's disk do not wait for threads; a large machine has no hundreds.
#[test]
fn few_cores_have_more_threads_each() {
    let threads = [1, 2, 3, 4, 64].map(threads_per_core);
    assert_eq!(threads, [16, 8, 6, 4, 4]);
}
