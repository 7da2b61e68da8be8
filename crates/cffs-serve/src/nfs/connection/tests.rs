use super::*;

#[test]
fn memory_has_a_bound_over_all_connections_and_each_may_have_one_call() {
    let total = Arc::new(Total::default());
    let greedy: Vec<_> = (0..TOTAL_BYTES_MAX / BYTES_MAX)
        .map(|_| Permit::take(&Arc::new(Underway::new(&total)), BYTES_MAX))
        .collect();
    let other = Arc::new(Underway::new(&total));
    let has_room = |underway: &Underway| underway.has_room(*underway.count.lock());
    assert!(has_room(&other), "nobody is kept from a first call");
    let first = Permit::take(&other, 1);
    assert!(!has_room(&other), "a second one has to wait");
    drop(first);
    assert!(has_room(&other));
    let first = Permit::take(&other, 1);
    drop(greedy);
    assert!(has_room(&other), "there is room again");
    drop(first);
    assert_eq!(total.0.load(Ordering::Relaxed), 0);
}
