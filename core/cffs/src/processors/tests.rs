//! Tests of the number of processors.

use rustix::thread::{CpuSet, sched_setaffinity};

use super::*;

#[test]
fn a_bound_thread_uses_fewer_processors() {
    let before = available();
    std::thread::scope(|scope| {
        let bound = scope.spawn(|| {
            let all = sched_getaffinity(None).expect("the processors");
            let first = (0..CpuSet::MAX_CPU).find(|cpu| all.is_set(*cpu)).expect("one");
            let mut one = CpuSet::new();
            one.set(first);
            sched_setaffinity(None, &one).expect("bound");
            available()
        });
        assert_eq!(bound.join().expect("no panic"), 1);
    });
    assert_eq!(available(), before);
    assert_eq!(available(), std::thread::available_parallelism().map_or(1, usize::from));
}
