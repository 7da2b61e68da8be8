//! Tests that crashes leave every state that the contract allows, and no other.

use std::collections::BTreeSet;

use super::*;
use crate::device::{TraceDevice, TraceEvent};

const SECTOR: u64 = 512;

fn device() -> VolatileDevice {
    VolatileDevice::new(Image::zeroed(Geometry { size_bytes: 1 << 20, sector_bytes: 512 }))
}

fn write(device: &impl BlockDevice, offset: u64, data: &[u8]) {
    device.write_at(offset, &[IoSlice::new(data)]).unwrap();
}

/// The first byte of each of the first `count` sectors.
fn heads(image: &Image, count: u64) -> Vec<u8> {
    let head = |sector| {
        let mut byte = [0];
        image.read(sector * SECTOR, &mut byte).unwrap();
        byte[0]
    };
    (0..count).map(head).collect()
}

/// The states that many seeded crashes leave, as [`heads`] sees them.
fn seeded_states(device: &VolatileDevice, count: u64) -> BTreeSet<Vec<u8>> {
    (0..2000).map(|seed| heads(&device.crash_seeded(seed).unwrap(), count)).collect()
}

#[test]
fn the_program_sees_its_writes_before_they_are_durable() {
    let device = device();
    write(&device, 10, b"hello");
    let mut buf = [0; 5];
    device.read_at(10, &mut buf).unwrap();
    assert_eq!(&buf, b"hello");
    device.durable().read(10, &mut buf).unwrap();
    assert_eq!(buf, [0; 5]);
    device.sync().unwrap();
    assert_eq!(device.durable(), device.current());
    device.durable().read(10, &mut buf).unwrap();
    assert_eq!(&buf, b"hello");
}

#[test]
fn within_a_phase_any_subset_survives() {
    let device = device();
    for sector in 0..3 {
        write(&device, sector * SECTOR, &[sector as u8 + 1]);
    }
    let states = seeded_states(&device, 3);
    let every_subset: BTreeSet<Vec<u8>> = (0..8_u8)
        .map(|set| (0..3).map(|sector| (set >> sector & 1) * (sector + 1)).collect())
        .collect();
    assert_eq!(states, every_subset);
}

#[test]
fn a_phase_survives_only_if_all_before_it_did() {
    let device = device();
    write(&device, 0, &[1]);
    device.barrier().unwrap();
    device.barrier().unwrap();
    write(&device, SECTOR, &[2]);
    device.barrier().unwrap();
    write(&device, 2 * SECTOR, &[3]);
    let allowed = [[0, 0, 0], [1, 0, 0], [1, 2, 0], [1, 2, 3]];
    assert_eq!(seeded_states(&device, 3), allowed.map(Vec::from).into());
    assert_eq!(device.pending().len(), 3);
}

#[test]
fn synced_data_survives_every_crash() {
    let device = device();
    write(&device, 0, &[1]);
    device.sync().unwrap();
    write(&device, SECTOR, &[2]);
    let allowed = [[1, 0], [1, 2]];
    assert_eq!(seeded_states(&device, 2), allowed.map(Vec::from).into());
}

#[test]
fn a_write_tears_between_sectors_and_never_within_one() {
    let device = device();
    write(&device, 0, &[1; 3 * SECTOR as usize]);
    assert_eq!(seeded_states(&device, 3).len(), 8);
    for seed in 0..200 {
        let image = device.crash_seeded(seed).unwrap();
        let mut bytes = vec![0; 3 * SECTOR as usize];
        image.read(0, &mut bytes).unwrap();
        for sector in bytes.chunks(SECTOR as usize) {
            assert!(sector.iter().all(|byte| *byte == sector[0]));
        }
    }
}

#[test]
fn the_crash_can_be_chosen_sector_by_sector() {
    let device = device();
    write(&device, 0, &[1; 2 * SECTOR as usize]);
    write(&device, 2 * SECTOR + 100, &[2; SECTOR as usize]);
    let expected = [(0, 0, 512), (0, 512, 512), (1, 1124, 412), (1, 1536, 100)];
    let expected = expected.map(|(write, offset_bytes, len_bytes)| PendingSector {
        write,
        offset_bytes,
        len_bytes,
    });
    assert_eq!(device.pending(), [Vec::from(expected)]);

    let image = device.crash(0, |sector| sector == expected[1] || sector == expected[3]).unwrap();
    assert_eq!(heads(&image, 4), [0, 1, 0, 2]);
    let untouched = device.crash(0, |_| false).unwrap();
    assert_eq!(untouched, device.durable());
    assert_eq!(device.crash(0, |_| true).unwrap(), device.current());
    assert_eq!(device.crash(1, |_| true).unwrap_err().kind(), io::ErrorKind::InvalidInput);
}

#[test]
fn the_later_of_two_writes_to_a_sector_wins_if_both_survive() {
    let device = device();
    write(&device, 0, &[1]);
    write(&device, 0, &[2]);
    assert_eq!(seeded_states(&device, 1), [[0], [1], [2]].map(Vec::from).into());
    assert_eq!(heads(&device.crash(0, |_| true).unwrap(), 1), [2]);
}

#[test]
fn a_discard_may_or_may_not_have_happened() {
    let device = device();
    write(&device, 0, &[1]);
    device.sync().unwrap();
    device.discard(0, SECTOR).unwrap();
    assert_eq!(seeded_states(&device, 1), [[0], [1]].map(Vec::from).into());
}

#[test]
fn a_seed_always_leaves_the_same_image() {
    let device = device();
    for sector in 0..20 {
        write(&device, sector * SECTOR, &[1]);
    }
    for seed in 0..50 {
        assert_eq!(device.crash_seeded(seed).unwrap(), device.crash_seeded(seed).unwrap());
    }
}

/// A program that replaces a record safely: the new record, a barrier, then the pointer to it.
/// Crashing after every recorded request must never show the pointer without the record.
#[test]
fn a_record_of_a_run_can_be_crashed_at_every_step() {
    let start = device().current();
    let run = TraceDevice::new(VolatileDevice::new(start.clone()));
    run.start_recording();
    write(&run, SECTOR, &[7]);
    run.barrier().unwrap();
    write(&run, 0, &[1]);
    run.sync().unwrap();
    let events = run.stop_recording();

    let states = |events: &[TraceEvent]| {
        let mut states = BTreeSet::new();
        let replayed = VolatileDevice::new(start.clone());
        states.extend(seeded_states(&replayed, 2));
        for event in events {
            event.replay(&replayed).unwrap();
            states.extend(seeded_states(&replayed, 2));
        }
        states
    };
    assert_eq!(states(&events), [[0, 0], [0, 7], [1, 7]].map(Vec::from).into());

    let unsafe_events: Vec<TraceEvent> =
        events.into_iter().filter(|event| *event != TraceEvent::Barrier).collect();
    assert!(states(&unsafe_events).contains(&vec![1, 0]), "without the barrier it is seen");
}
