//! Tests of the delays, in virtual time.

use std::sync::Arc;

use super::*;
use crate::device::{MemoryDevice, RequestKind};

/// A disk that takes 10 ms to move its arm and 1 ms for a kilobyte.
fn disk() -> impl ServiceTime {
    let mut arm_at = 0;
    move |request: &Request| {
        if request.kind == RequestKind::Barrier {
            return Duration::ZERO;
        }
        let seek_ms = if arm_at == request.offset_bytes { 0 } else { 10 };
        arm_at = request.offset_bytes + request.len_bytes;
        Duration::from_millis(seek_ms + request.len_bytes / 1024)
    }
}

#[test]
fn requests_take_the_time_that_the_model_says() {
    let time = Arc::new(VirtualTime::default());
    let device = ThrottleDevice::new(MemoryDevice::new(1 << 20), disk(), Arc::clone(&time));
    let mut buf = [0; 2048];
    device.write_at(0, &[IoSlice::new(&[1; 1024]), IoSlice::new(&[2; 1024])]).unwrap();
    assert_eq!(time.elapsed(), Duration::from_millis(2));
    device.read_at(0, &mut buf).unwrap();
    assert_eq!(time.elapsed(), Duration::from_millis(14));
    device.barrier().unwrap();
    assert_eq!(time.elapsed(), Duration::from_millis(14));
    device.discard(2048, 1024).unwrap();
    assert_eq!(time.elapsed(), Duration::from_millis(15));
    device.sync().unwrap();
    assert_eq!(time.elapsed(), Duration::from_millis(25));
    assert_eq!(device.busy(), time.elapsed());
    assert_eq!(buf[1023..1025], [1, 2]);
}

#[test]
fn requests_outside_the_device_take_no_time() {
    let device = ThrottleDevice::new(MemoryDevice::new(4096), disk(), VirtualTime::default());
    assert!(device.read_at(4096, &mut [0]).is_err());
    assert_eq!(device.busy(), Duration::ZERO);
}

#[test]
fn requests_at_the_same_time_are_served_one_after_the_other() {
    let model = |_: &Request| Duration::from_millis(20);
    let device = ThrottleDevice::new(MemoryDevice::new(4096), model, RealTime);
    let begun = std::time::Instant::now();
    std::thread::scope(|threads| {
        for _ in 0..3 {
            threads.spawn(|| device.read_at(0, &mut [0]).unwrap());
        }
    });
    assert!(begun.elapsed() >= Duration::from_millis(60));
    assert_eq!(device.busy(), Duration::from_millis(60));
}
