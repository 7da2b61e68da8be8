//! Which caller leads, for which others it waits, and which of them it serves.

use std::sync::mpsc;
use std::thread;

use super::*;
use crate::clock::VirtualClock;

const HOUR: Duration = Duration::from_secs(3600);

fn callers(last: usize) -> Callers {
    let callers = Callers::new(EpochNo(1), HOUR, Arc::new(VirtualClock::default()));
    callers.state.lock().last = LastGroup { callers: last, lasted: HOUR };
    callers
}

#[test]
fn a_leader_waits_for_as_many_as_came_last_time() {
    let callers = callers(3);
    let (sender, receiver) = mpsc::channel();
    thread::scope(|scope| {
        for ino in 1..=3 {
            let (callers, sender) = (&callers, sender.clone());
            scope.spawn(move || {
                let lead = callers.ask(&[InodeNo(ino)], EpochNo(2));
                if lead.is_some() {
                    sender.send(callers.take()).unwrap();
                    callers.reached(EpochNo(2), HashSet::new());
                }
            });
        }
    });
    drop(sender);
    let taken: Vec<Wanted> = receiver.iter().collect();
    assert_eq!(taken.len(), 1, "one leads, and the others are served");
    assert_eq!(taken[0].len(), 3);
    assert_eq!(callers.state.lock().last.callers, 3);
    assert!(callers.state.lock().led.is_none());
}

#[test]
fn callers_that_come_while_an_epoch_is_written_count_for_the_next() {
    let callers = callers(0);
    let lead = callers.ask(&[InodeNo(1)], EpochNo(2)).unwrap();
    callers.take();
    callers.state.lock().wanted.extend([InodeNo(2), InodeNo(3)]);
    callers.reached(EpochNo(2), HashSet::new());
    drop(lead);
    assert_eq!(callers.state.lock().last.callers, 3);
}

#[test]
fn a_file_that_an_epoch_left_behind_is_not_served_by_it() {
    let callers = callers(0);
    callers.reached(EpochNo(2), HashSet::from([InodeNo(7)]));
    assert!(callers.ask(&[InodeNo(8)], EpochNo(2)).is_none());
    assert!(callers.ask(&[InodeNo(7)], EpochNo(2)).is_some());
    callers.reached(EpochNo(3), HashSet::new());
    assert!(callers.ask(&[InodeNo(7)], EpochNo(2)).is_none());
}

#[test]
fn when_a_leader_gives_up_another_one_leads() {
    let callers = callers(0);
    let lead = callers.ask(&[InodeNo(1)], EpochNo(2));
    thread::scope(|scope| {
        let second = scope.spawn(|| callers.ask(&[InodeNo(2)], EpochNo(2)).is_some());
        while callers.state.lock().wanted.len() < 2 {
            thread::yield_now();
        }
        drop(lead);
        assert!(second.join().unwrap());
    });
}

#[test]
fn the_duration_of_an_epoch_is_remembered_for_the_next_leader() {
    let clock = Arc::new(VirtualClock::default());
    let callers = Callers::new(EpochNo(1), HOUR, clock.clone());
    let lead = callers.ask(&[InodeNo(1)], EpochNo(2));
    clock.advance(Duration::from_secs(2));
    callers.reached(EpochNo(2), HashSet::new());
    drop(lead);
    assert_eq!(callers.state.lock().last.lasted, Duration::from_secs(2));
}
