//! Tests that faults strike what they should, and nothing else.

use super::*;
use crate::device::MemoryDevice;

const SECTOR: usize = 4096;

fn device() -> FaultDevice<MemoryDevice> {
    FaultDevice::new(MemoryDevice::new(1 << 20), 7)
}

fn arm(device: &FaultDevice<MemoryDevice>, target: Target, strike: Strike, effect: Effect) {
    device.arm(Fault { target, strike, effect });
}

fn write(device: &impl BlockDevice, offset: u64, data: &[u8]) -> io::Result<()> {
    device.write_at(offset, &[IoSlice::new(data)])
}

fn read(device: &impl BlockDevice, offset: u64, len: usize) -> io::Result<Vec<u8>> {
    let mut buf = vec![0; len];
    device.read_at(offset, &mut buf)?;
    Ok(buf)
}

#[test]
fn the_nth_write_fails_and_does_nothing() {
    let device = device();
    arm(&device, Target::writes(), Strike::Nth(1), Effect::IO_ERROR);
    write(&device, 0, b"a").unwrap();
    read(&device, 0, 1).unwrap();
    let error = write(&device, 0, b"b").unwrap_err();
    assert_eq!(error.raw_os_error(), Some(EIO));
    assert_eq!(read(&device, 0, 1).unwrap(), b"a");
    write(&device, 0, b"c").unwrap();
    assert_eq!(device.struck(), 1);
}

#[test]
fn every_write_from_the_nth_on_finds_no_space() {
    let device = device();
    arm(&device, Target::writes(), Strike::From(2), Effect::NO_SPACE);
    let outcomes: Vec<Option<io::ErrorKind>> =
        (0..4).map(|_| write(&device, 0, b"x").err().map(|error| error.kind())).collect();
    let full = Some(io::ErrorKind::StorageFull);
    assert_eq!(outcomes, [None, None, full, full]);
    device.disarm();
    write(&device, 0, b"x").unwrap();
}

#[test]
fn a_bad_range_fails_just_the_requests_that_touch_it() {
    let device = device();
    arm(&device, Target::reads().within(1000..2000), Strike::Always, Effect::IO_ERROR);
    assert!(read(&device, 0, 1000).is_ok());
    assert!(read(&device, 0, 1001).is_err());
    assert!(read(&device, 1999, 1).is_err());
    assert!(read(&device, 2000, 10).is_ok());
    assert!(write(&device, 1500, b"x").is_ok());
}

#[test]
fn flushes_fail_both_ways() {
    let device = device();
    arm(&device, Target::flushes(), Strike::Always, Effect::IO_ERROR);
    assert!(device.barrier().is_err());
    assert!(device.sync().is_err());
    assert!(write(&device, 0, b"x").is_ok());
}

#[test]
fn a_torn_write_puts_down_its_first_sectors_and_fails() {
    for (sectors, kept) in [(0, 0), (1, SECTOR - 100), (2, 2 * SECTOR - 100), (9, 3 * SECTOR)] {
        let device = device();
        arm(&device, Target::writes(), Strike::Always, Effect::Torn { sectors });
        let error = write(&device, 100, &vec![1; 3 * SECTOR]).unwrap_err();
        assert_eq!(error.raw_os_error(), Some(EIO));
        let data = read(&device, 100, 3 * SECTOR).unwrap();
        assert!(data[..kept].iter().all(|byte| *byte == 1), "{sectors} sectors");
        assert!(data[kept..].iter().all(|byte| *byte == 0), "{sectors} sectors");
    }
}

#[test]
fn a_lost_write_succeeds_and_does_nothing() {
    let device = device();
    arm(&device, Target::writes(), Strike::Nth(0), Effect::Lost);
    write(&device, 0, b"x").unwrap();
    assert_eq!(read(&device, 0, 1).unwrap(), [0]);
    assert_eq!(device.struck(), 1);
}

#[test]
fn a_flipped_bit_is_one_bit_in_reads_and_writes() {
    let ones = |data: &[u8]| data.iter().map(|byte| byte.count_ones()).sum::<u32>();
    let device = device();
    arm(&device, Target::reads(), Strike::Nth(0), Effect::FlippedBit);
    assert_eq!(ones(&read(&device, 0, 100).unwrap()), 1);
    assert_eq!(ones(&read(&device, 0, 100).unwrap()), 0);
    arm(&device, Target::writes(), Strike::Nth(0), Effect::FlippedBit);
    write(&device, 0, &[0; 100]).unwrap();
    assert_eq!(ones(&read(&device, 0, 100).unwrap()), 1);
}

#[test]
fn the_first_fault_that_strikes_decides_and_all_count() {
    let device = device();
    arm(&device, Target::writes(), Strike::Nth(0), Effect::Lost);
    arm(&device, Target::writes(), Strike::Nth(1), Effect::IO_ERROR);
    arm(&device, Target::writes(), Strike::From(1), Effect::NO_SPACE);
    assert!(write(&device, 0, b"x").is_ok());
    assert_eq!(write(&device, 0, b"x").unwrap_err().raw_os_error(), Some(EIO));
    assert_eq!(write(&device, 0, b"x").unwrap_err().kind(), io::ErrorKind::StorageFull);
}

#[test]
fn chance_follows_from_the_seed() {
    let struck = |seed| {
        let device = FaultDevice::new(MemoryDevice::new(4096), seed);
        arm(&device, Target::writes(), Strike::PerMillion(100_000), Effect::IO_ERROR);
        (0..1000).map(|_| write(&device, 0, b"x").is_err()).collect::<Vec<bool>>()
    };
    assert_eq!(struck(1), struck(1));
    assert_ne!(struck(1), struck(2));
    let count = struck(1).iter().filter(|struck| **struck).count();
    assert!((50..150).contains(&count), "{count} of 1000 at one in ten");
}
