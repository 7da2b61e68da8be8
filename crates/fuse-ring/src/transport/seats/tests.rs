use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use super::*;

#[test]
fn who_leaves_a_seat_lets_one_other_in() {
    let seats = &Seats::new(1);
    let (tell, told) = mpsc::channel();
    thread::scope(|scope| {
        assert!(seats.take() && seats.take());
        let spares: Vec<_> = (0..2)
            .map(|_| {
                let tell = tell.clone();
                scope.spawn(move || {
                    let seated = seats.take();
                    tell.send(seated).unwrap();
                    // Until the end, which it must not take for itself.
                    while !seats.ended.load(Ordering::Relaxed) {
                        thread::yield_now();
                    }
                })
            })
            .collect();
        assert!(told.recv_timeout(Duration::from_millis(50)).is_err());
        leave();
        leave();
        assert_eq!(told.recv(), Ok(true));
        assert!(told.recv_timeout(Duration::from_millis(50)).is_err());
        seats.end();
        assert_eq!(told.recv(), Ok(false));
        assert!(!seats.take());
        leave();
        assert!(!seats.take());
        assert!(spares.into_iter().all(|spare| spare.join().is_ok()));
    });
}

#[test]
fn a_thread_that_ends_leaves_its_seat() {
    let seats = Seats::new(1);
    thread::scope(|scope| scope.spawn(|| assert!(seats.take())).join().unwrap());
    assert!(seats.take());
    leave();
}
