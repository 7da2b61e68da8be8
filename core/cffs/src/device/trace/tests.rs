//! Tests of the counts and of the record.

use std::time::Duration;

use super::*;
use crate::device::{FaultDevice, HoldDevice, MemoryDevice, RequestKind, fault};

fn write(device: &impl BlockDevice, offset: u64, data: &[u8]) {
    device.write_at(offset, &[IoSlice::new(data)]).unwrap();
}

#[test]
fn counts_what_passes() {
    let device = TraceDevice::new(MemoryDevice::new(1 << 20));
    let mut buf = [0; 100];
    write(&device, 0, &[1; 4096]);
    let before = device.counts();
    device.write_at(4096, &[IoSlice::new(&[1; 10]), IoSlice::new(&[2; 20])]).unwrap();
    device.read_at(4126, &mut buf).unwrap();
    device.read_at(0, &mut buf).unwrap();
    device.barrier().unwrap();
    device.read_at(100, &mut buf[..50]).unwrap();
    device.sync().unwrap();
    device.discard(0, 512).unwrap();
    let expected = Counts {
        reads: 3,
        writes: 1,
        barriers: 1,
        syncs: 1,
        discards: 1,
        read_bytes: 250,
        written_bytes: 30,
        sequential: 3,
    };
    assert_eq!(device.counts() - before, expected);
    assert_eq!(expected.requests(), 4);
}

#[test]
fn the_first_request_is_not_sequential_wherever_it_is() {
    let device = TraceDevice::new(MemoryDevice::new(1 << 20));
    device.read_at(0, &mut [0; 1]).unwrap();
    assert_eq!(device.counts().sequential, 0);
}

#[test]
fn requests_that_fail_are_neither_counted_nor_recorded() {
    let device = TraceDevice::new(FaultDevice::new(MemoryDevice::new(1 << 20), 0));
    for target in [fault::Target::reads(), fault::Target::writes(), fault::Target::flushes()] {
        device.inner().arm(fault::Fault {
            target,
            strike: fault::Strike::Always,
            effect: fault::Effect::IO_ERROR,
        });
    }
    device.start_recording();
    assert!(device.read_at(0, &mut [0; 1]).is_err());
    assert!(device.write_at(0, &[IoSlice::new(b"x")]).is_err());
    assert!(device.barrier().is_err());
    assert!(device.sync().is_err());
    assert_eq!(device.inner().struck(), 4);
    assert_eq!(device.counts(), Counts::default());
    assert_eq!(device.stop_recording(), []);
}

#[test]
fn a_replayed_record_makes_the_same_image() {
    let device = TraceDevice::new(MemoryDevice::new(1 << 20));
    write(&device, 0, b"not recorded");
    let start = device.inner().snapshot();
    device.start_recording();
    write(&device, 512, b"first");
    device.barrier().unwrap();
    write(&device, 514, b"second");
    device.read_at(0, &mut [0; 8]).unwrap();
    device.discard(0, 4).unwrap();
    device.sync().unwrap();
    let events = device.stop_recording();
    write(&device, 600, b"not recorded either");

    assert_eq!(events.len(), 6);
    assert_eq!(events[1], TraceEvent::Barrier);
    assert_eq!(events[3], TraceEvent::Read { offset_bytes: 0, len_bytes: 8 });
    let copy = MemoryDevice::from_image(start);
    for event in &events {
        event.replay(&copy).unwrap();
    }
    assert_ne!(copy.snapshot(), device.inner().snapshot());
    write(&copy, 600, b"not recorded either");
    assert_eq!(copy.snapshot(), device.inner().snapshot());
}

#[test]
fn a_write_that_returns_during_a_barrier_is_recorded_after_it() {
    let device = TraceDevice::new(HoldDevice::new(MemoryDevice::new(4096)));
    device.start_recording();
    std::thread::scope(|threads| {
        let held = device.inner().hold(RequestKind::Barrier);
        threads.spawn(|| device.barrier().unwrap());
        assert!(device.inner().wait_for_request(Duration::from_secs(60)));
        threads.spawn(|| write(&device, 0, b"late"));
        let mut bytes = [0; 4];
        while &bytes != b"late" {
            std::thread::yield_now();
            device.inner().inner().read_at(0, &mut bytes).unwrap();
        }
        drop(held);
    });
    let events = device.stop_recording();
    assert_eq!(events[0], TraceEvent::Barrier);
    assert!(matches!(events[1], TraceEvent::Write { .. }));
}
