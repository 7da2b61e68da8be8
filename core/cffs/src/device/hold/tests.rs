//! Held requests wait, others continue, and all are completed in the end.

use std::thread;

use super::*;
use crate::device::MemoryDevice;

const LONG: Duration = Duration::from_secs(60);

#[test]
fn requests_of_one_kind_wait_until_they_are_released() {
    let device = HoldDevice::new(MemoryDevice::new(4096));
    let mut bytes = [0; 4];
    thread::scope(|threads| {
        let held = device.hold(RequestKind::Write);
        assert!(!device.wait_for_request(Duration::from_millis(1)), "nothing was asked for");
        let writer = threads.spawn(|| device.write_at(0, &[IoSlice::new(b"late")]).unwrap());
        assert!(device.wait_for_request(LONG));
        device.read_at(0, &mut bytes).unwrap();
        assert_eq!(bytes, [0; 4]);
        assert!(!writer.is_finished());
        drop(held);
    });
    device.read_at(0, &mut bytes).unwrap();
    assert_eq!(&bytes, b"late");
}
