//! The default number of threads.

use super::*;

/// With one core, eight callers can wait for a disk without waiting for threads; a large machine does not
/// have hundreds of threads.
#[test]
fn few_cores_have_more_threads_each() {
    let threads = [1, 2, 3, 4, 64].map(threads_per_core);
    assert_eq!(threads, [16, 8, 6, 4, 4]);
}
