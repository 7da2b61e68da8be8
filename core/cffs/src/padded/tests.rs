use super::*;

#[test]
fn threads_count_together_and_write_apart() {
    let counter = Counter::default();
    std::thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| (0..1000).for_each(|_| counter.count()));
        }
    });
    assert_eq!(counter.get(), 3000);
    let used = counter.0.iter().filter(|part| part.load(Ordering::Relaxed) > 0).count();
    assert!(used > 1, "three threads counted at one place");
    assert_eq!(size_of::<Counter>(), PARTS * 64);
}
