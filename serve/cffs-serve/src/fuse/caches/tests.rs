use super::*;

const FILES: [InodeNo; 3] = [InodeNo(7), InodeNo(8), InodeNo(9)];

/// A program that appends line by line starts no thread for each line.
#[test]
fn few_threads_take_everything_that_is_to_be_dropped() {
    let mut dropping = Dropping::default();
    let [a, b, _] = FILES;
    for _ in 0..THREADS_MAX {
        assert!(dropping.add(vec![a], 30), "a thread may wait for a lock of the kernel");
    }
    assert!(!dropping.add(vec![a], 10) && !dropping.add(vec![b, a], 20));
    assert_eq!([dropping.take_next(), dropping.take_next()], [Some((a, 10)), Some((b, 20))]);
    assert!(!dropping.add(vec![a], 40), "the threads ask again");
    assert_eq!([dropping.take_next(), dropping.take_next()], [Some((a, 40)), None]);
    assert!(dropping.add(vec![a], 50), "a thread has ended");
}

/// A file that changes all the time does not keep the others waiting.
#[test]
fn each_file_has_its_turn() {
    let mut dropping = Dropping::default();
    dropping.add(FILES.to_vec(), 0);
    for file in FILES.into_iter().cycle().take(7) {
        assert_eq!(dropping.take_next(), Some((file, 0)));
        dropping.add(FILES.to_vec(), 0);
    }
}
