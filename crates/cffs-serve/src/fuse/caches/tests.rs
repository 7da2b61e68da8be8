use super::*;

/// A program that appends line by line starts no thread for each line.
#[test]
fn one_thread_takes_all_that_is_to_be_dropped() {
    let mut dropping = Dropping::default();
    let [a, b] = [7, 8].map(InodeNo);
    assert!(dropping.add(vec![a], 30), "the first starts the thread");
    assert!(!dropping.add(vec![a], 10) && !dropping.add(vec![b, a], 20));
    assert_eq!([dropping.take_next(), dropping.take_next()], [Some((a, 10)), Some((b, 20))]);
    assert!(!dropping.add(vec![a], 40), "the thread asks again");
    assert_eq!([dropping.take_next(), dropping.take_next()], [Some((a, 40)), None]);
    assert!(dropping.add(vec![a], 50), "it has ended");
}
