//! Which threads are woken.

use std::collections::HashSet;
use std::sync::Barrier;
use std::sync::mpsc;
use std::time::{Duration, Instant};

use super::*;

#[test]
fn as_many_threads_run_as_jobs_wait() {
    const THREADS: usize = 8;
    let pool = Pool::start(THREADS).expect("started");
    for _ in 0..200 {
        // Each job waits for all others, so that a thread that is not woken blocks all of them.
        let barrier = Arc::new(Barrier::new(THREADS + 1));
        for _ in 0..THREADS {
            let barrier = Arc::clone(&barrier);
            let job = move || {
                barrier.wait();
            };
            assert!(pool.run(Box::new(job)));
        }
        barrier.wait();
    }
    pool.end();
    assert!(!pool.run(Box::new(|| ())), "it has ended");
}

#[test]
fn jobs_that_arrive_together_wake_one_thread_at_a_time() {
    let pool = Pool::start(4).expect("started");
    let queue = &pool.queue;
    let all_sleep = || {
        let until = Instant::now() + Duration::from_secs(20);
        let is_so = || {
            let jobs = queue.jobs.lock();
            jobs.idle == 4 && !jobs.is_waking
        };
        while !is_so() {
            assert!(Instant::now() < until, "one that was woken has not looked");
            thread::sleep(Duration::from_millis(1));
        }
    };
    all_sleep();
    let (done, ended) = mpsc::channel();
    {
        let mut jobs = queue.jobs.lock();
        for _ in 0..100 {
            let done = done.clone();
            let job = move || done.send(thread::current().id()).expect("awaited");
            jobs.waiting.push_back(Box::new(job));
        }
        assert!(jobs.wakes_another());
        assert!(!jobs.wakes_another(), "one is on its way");
    }
    queue.changed.notify_one();
    let threads: HashSet<_> = ended.iter().take(100).collect();
    assert!((1..=4).contains(&threads.len()));
    all_sleep();
    pool.end();
}
