use super::{Plan, count_list, share};

#[test]
fn lists_of_cores_are_counted() {
    assert_eq!(count_list("0\n"), Some(1));
    assert_eq!(count_list("0-3\n"), Some(4));
    assert_eq!(count_list("0-3,8,10-11"), Some(7));
    assert_eq!(count_list(""), None);
    assert_eq!(count_list("3-1"), None);
    assert_eq!(count_list("0-65535"), None);
}

#[test]
fn each_queue_is_served_by_its_own_core_where_that_is_usable() {
    assert_eq!(share(2, &[0, 1]), Plan { cores: vec![(0, vec![0]), (1, vec![1])] });
}

/// The kernel uses no queue before all have registered, so the queues of cores that are offline, or that this
/// process may not run on, must be served, too.
#[test]
fn no_queue_is_left_out() {
    let plan = share(8, &[2, 5]);
    let mut queues: Vec<u16> = plan.cores.iter().flat_map(|(_, queues)| queues.clone()).collect();
    queues.sort_unstable();
    assert_eq!(queues, (0..8).collect::<Vec<_>>());
    assert!(plan.cores[0].1.contains(&2) && plan.cores[1].1.contains(&5));
}

#[test]
fn a_core_without_a_queue_does_not_serve() {
    assert_eq!(share(1, &[0, 1]), Plan { cores: vec![(0, vec![0])] });
}
