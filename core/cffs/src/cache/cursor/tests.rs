//! Windows that grow, and readers that are forgotten.

use super::*;

const GROWTH: Growth = Growth { factor: 2, least: 4, most: 10 };

#[test]
fn a_window_grows_from_the_least_to_the_most() {
    let mut cursor = Cursor::new(0);
    let windows = (1..5).map(|at| {
        cursor.advance(at, GROWTH);
        cursor.window
    });
    assert_eq!(windows.collect::<Vec<u64>>(), [4, 8, 10, 10]);
    // If the longest window is shorter than the shortest, it counts.
    assert_eq!(Cursor::new(0).next_window(Growth { most: 3, ..GROWTH }), 3);
}

#[test]
fn the_cursor_that_moved_longest_ago_makes_room() {
    let mut cursors = Cursors::new(3);
    (0..3).for_each(|at| cursors.add(Cursor::new(at)));
    assert!(cursors.find_to_move(|at| *at == 0).is_some());
    cursors.add(Cursor::new(3));
    let has = |number: i32| cursors.find(|at| *at == number).is_some();
    assert_eq!([0, 1, 2, 3].map(has), [true, false, true, true]);
    assert_eq!(cursors.latest().map(|cursor| cursor.at), Some(3));
}
