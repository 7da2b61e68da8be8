use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use super::*;

#[test]
fn leaving_a_slot_admits_one_other_thread() {
    let slots = &ReaderSlots::new(1);
    let (sender, receiver) = mpsc::channel();
    thread::scope(|scope| {
        assert!(slots.take() && slots.take());
        let spares: Vec<_> = (0..2)
            .map(|_| {
                let sender = sender.clone();
                scope.spawn(move || {
                    let reading = slots.take();
                    sender.send(reading).unwrap();
                    // Until the end, since it must not take the slot itself.
                    while !slots.ended.load(Ordering::Relaxed) {
                        thread::yield_now();
                    }
                })
            })
            .collect();
        assert!(receiver.recv_timeout(Duration::from_millis(50)).is_err());
        leave();
        leave();
        assert_eq!(receiver.recv(), Ok(true));
        assert!(receiver.recv_timeout(Duration::from_millis(50)).is_err());
        slots.end();
        assert_eq!(receiver.recv(), Ok(false));
        assert!(!slots.take());
        leave();
        assert!(!slots.take());
        assert!(spares.into_iter().all(|spare| spare.join().is_ok()));
    });
}

#[test]
fn a_thread_that_ends_frees_its_slot() {
    let slots = ReaderSlots::new(1);
    thread::scope(|scope| scope.spawn(|| assert!(slots.take())).join().unwrap());
    assert!(slots.take());
    leave();
}
