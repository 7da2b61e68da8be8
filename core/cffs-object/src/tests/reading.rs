//! Requests for reads: how much around a read is fetched, and how often.

use std::thread;

use object_store::throttle::{ThrottleConfig, ThrottledStore};

use super::*;

/// The length of one read.
const PIECE_BYTES: u64 = 64 << 10;
/// The length of the objects of contents sent ahead.
const OBJECT_BYTES: u64 = 8 << 20;
const PIECES: u64 = OBJECT_BYTES / PIECE_BYTES;

/// A volume with this many objects of contents, in a slow store.
fn written(objects: u64) -> Location {
    let store = InMemory::new();
    let geometry = Geometry { size_bytes: 1 << 30, ..GEOMETRY };
    let device = LogDevice::create(&at(Arc::new(store.clone())), geometry).expect("made");
    for object in 0..objects {
        let pieces = object * PIECES..(object + 1) * PIECES;
        write(&device, object * OBJECT_BYTES, &pieces.flat_map(contents).collect::<Vec<u8>>());
    }
    device.sync().expect("synced");
    drop(device);
    let delay = Duration::from_millis(5);
    let config = ThrottleConfig { wait_get_per_call: delay, ..ThrottleConfig::default() };
    at(Arc::new(ThrottledStore::new(store, config)))
}

fn contents(piece: u64) -> Vec<u8> {
    vec![(piece * 5 + piece / PIECES) as u8; PIECE_BYTES as usize]
}

/// A device from which nothing has been read.
struct Cold {
    device: LogDevice,
    opened: Requests,
}

impl Cold {
    fn open(location: &Location) -> Cold {
        let device = LogDevice::open(location, READ_ONLY).expect("opened");
        Cold { opened: device.requests(), device }
    }

    fn read(&self, piece: u64) {
        let found = read(&self.device, piece * PIECE_BYTES, PIECE_BYTES as usize);
        assert!(found == contents(piece), "piece {piece}");
    }

    /// The requests since the opening, and the bytes received.
    fn asked_for(&self) -> (u64, u64) {
        let now = self.device.requests();
        (now.gets - self.opened.gets, now.received_bytes - self.opened.received_bytes)
    }
}

/// Wherever a program begins to read, the first request also fetches the bytes shortly before and after.
#[test]
fn neighbouring_chunks_are_fetched_by_one_request() {
    const BEFORE: u64 = (256 << 10) / PIECE_BYTES;
    const AFTER: u64 = (768 << 10) / PIECE_BYTES;
    let location = written(1);
    for piece in (0..PIECES).step_by(3) {
        let cold = Cold::open(&location);
        cold.read(piece);
        for near in piece.saturating_sub(BEFORE)..PIECES.min(piece + AFTER + 1) {
            cold.read(near);
        }
        let (gets, bytes) = cold.asked_for();
        assert_eq!(gets, 1, "around piece {piece}");
        assert!(bytes <= 5 << 18, "{bytes} bytes around piece {piece}");
    }
}

/// Readers wait for requests of other readers, including their read-ahead.
#[test]
fn concurrent_readers_fetch_nothing_twice() {
    const READERS: u64 = 8;
    let location = written(2);
    // Each reads every eighth piece, or an eighth of the object.
    type Place = fn(u64, u64) -> u64;
    let places: [(&str, Place); 2] = [
        ("every eighth", |reader, number| number * READERS + reader),
        ("an eighth", |reader, number| reader * (PIECES / READERS) + number),
    ];
    for (name, place) in places {
        let cold = Cold::open(&location);
        cold.read(0);
        thread::scope(|scope| {
            for reader in 0..READERS {
                let cold = &cold;
                scope.spawn(move || {
                    for number in 0..PIECES / READERS {
                        cold.read(place(reader, number));
                        cold.read(PIECES + place(reader, number));
                    }
                });
            }
        });
        let (gets, bytes) = cold.asked_for();
        assert_eq!(bytes, 2 * OBJECT_BYTES, "{name}: each byte once");
        assert!(gets <= 2 * READERS, "{name}: {gets} requests");
    }
}

/// Sequential readers of different objects take two requests for each object, even after earlier reads have
/// filled the cache: read-ahead stays until it is used.
#[test]
fn chunks_read_ahead_stay_until_they_are_read() {
    const READERS: u64 = 4;
    const EACH: u64 = 4;
    let location = written(READERS * EACH);
    let cold = Cold::open(&location);
    for number in 0..EACH * PIECES {
        for reader in 0..READERS {
            cold.read(reader * EACH * PIECES + number);
        }
    }
    let objects = READERS * EACH;
    assert_eq!(cold.asked_for(), (2 * objects, objects * OBJECT_BYTES));
}

/// A small read that spans many objects fetches no more of each object than a read of a single object does,
/// even at an object's beginning.
#[test]
fn a_small_read_of_many_objects_does_not_read_ahead() {
    const OBJECTS: u64 = 8;
    const SHARE_BYTES: u64 = PIECE_BYTES / OBJECTS;
    let store = InMemory::new();
    let geometry = Geometry { size_bytes: 1 << 30, ..GEOMETRY };
    let device = LogDevice::create(&at(Arc::new(store.clone())), geometry).expect("made");
    for object in 0..OBJECTS {
        write(&device, object * SHARE_BYTES, &vec![object as u8; SHARE_BYTES as usize]);
        let rest = vec![object as u8; (OBJECT_BYTES / 2) as usize];
        write(&device, (object + 1) * OBJECT_BYTES, &rest);
        device.sync().expect("synced");
    }
    drop(device);
    let cold = Cold::open(&at(Arc::new(store)));
    let found = read(&cold.device, 0, PIECE_BYTES as usize);
    let share = |object: u64| vec![object as u8; SHARE_BYTES as usize];
    assert!(found == (0..OBJECTS).flat_map(share).collect::<Vec<u8>>());
    let (gets, bytes) = cold.asked_for();
    assert!(gets <= OBJECTS && bytes <= OBJECTS * (5 << 18), "{gets} requests, {bytes} bytes");
}
