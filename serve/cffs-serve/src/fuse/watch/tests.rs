use std::time::Duration;

use fuse_ring::protocol::{NodeId, Opcode};

use super::{DeviceCall, Watch};

const LIMIT: u64 = 30;

fn after(watch: &Watch, ticks: u64, step: Option<&'static str>) -> Option<String> {
    (0..ticks).fold(None, |last, _| watch.pass(step).0.or(last))
}

fn watch() -> Watch {
    Watch::new(Duration::from_secs(LIMIT))
}

#[test]
fn progress_is_not_reported() {
    let watch = watch();
    for _ in 0..200 {
        watch.request(Opcode::Write, NodeId(7));
        drop(watch.device(DeviceCall::Write, 0, 4096));
        assert_eq!(watch.pass(Some("writing")), (None, None));
        watch.answered();
    }
    assert_eq!(after(&watch, 200, None), None, "an idle server");
}

#[test]
fn a_stalled_request_is_named_with_its_cause() {
    let watch = watch();
    watch.request(Opcode::Fsync, NodeId(7));
    let _job = watch.device(DeviceCall::Write, 8192, 4096);
    assert_eq!(after(&watch, LIMIT - 1, Some("an epoch writes")), None);
    let line = after(&watch, 2, Some("an epoch writes")).expect("it is time");
    for part in [
        "no progress for 30 s",
        "an epoch writes, for",
        "the device has not answered: write of 4096 bytes at 8192 for 30 s",
        "requests wait: fsync of inode 7 for 30 s",
    ] {
        assert!(line.contains(part), "{part}: {line}");
    }
}

#[test]
fn a_wait_is_reported_at_growing_intervals_and_once_when_it_ends() {
    let watch = watch();
    watch.request(Opcode::Read, NodeId(1));
    let said: Vec<u64> = (1..=500).filter(|_| watch.pass(None).0.is_some()).collect();
    assert_eq!(said, [30, 60, 120, 240, 480]);
    watch.answered();
    assert_eq!(watch.pass(None).0.as_deref(), Some("progress resumed after 501 s"));
    assert_eq!(after(&watch, 100, None), None);
}

#[test]
fn a_step_during_which_the_device_answers_moves() {
    let watch = watch();
    for _ in 0..100 {
        drop(watch.device(DeviceCall::Write, 0, 4096));
        assert_eq!(watch.pass(Some("an epoch writes")).0, None);
    }
    assert!(after(&watch, LIMIT + 1, Some("an epoch writes")).is_some(), "now it does not");
}

#[test]
fn a_waiting_unmount_gets_the_reason_before_it_is_logged() {
    let watch = watch();
    watch.closing();
    let _job = watch.device(DeviceCall::Flush, 0, 0);
    let heard: Vec<(u64, String)> =
        (1..=35).filter_map(|tick| Some((tick, watch.pass(Some("an epoch waits")).1?))).collect();
    let [(2, early), (30, late)] = &heard[..] else { panic!("{heard:?}") };
    assert!(early.contains("flush for 2 s") && early.contains("closing for 2 s"), "{early}");
    assert!(late.contains("flush for 30 s"), "{late}");
}

#[test]
fn many_requests_are_counted() {
    let watch = watch();
    std::thread::scope(|scope| {
        for inode in 0..20 {
            let watch = &watch;
            scope.spawn(move || watch.request(Opcode::Read, NodeId(inode)));
        }
    });
    let line = after(&watch, LIMIT, None).expect("it is time");
    assert!(line.contains("and 14 more"), "{line}");
}
