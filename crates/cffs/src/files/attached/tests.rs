//! Tests of what needs no server.

use super::ring::Ring;

#[test]
fn a_range_of_the_ring_is_taken_again_after_its_call() {
    let mut ring = Ring::new(100);
    assert_eq!(ring.take(40, 1), Some(0));
    assert_eq!(ring.take(40, 2), Some(40));
    assert_eq!(ring.take(30, 3), None, "the rest is too short, and the beginning is in use");
    assert_eq!(ring.first_call(), Some(1));
    ring.settle(1);
    assert_eq!(ring.take(30, 3), Some(0));
    assert_eq!(ring.take(0, 4), Some(0), "nothing needs no range");
    assert_eq!(ring.take(20, 5), None);
    ring.settle(3);
    assert_eq!(ring.first_call(), None);
    assert_eq!(ring.take(50, 6), Some(30));
}
