//! Tests of what is particular to memory: room, sharing, and images as files.

use super::*;

fn geometry(size_bytes: u64) -> Geometry {
    Geometry { size_bytes, sector_bytes: 512 }
}

#[test]
fn a_device_of_16_tib_takes_the_room_of_what_is_written() {
    let size_bytes = 16 << 40;
    let device = MemoryDevice::new(size_bytes);
    device.write_at(size_bytes - 5, &[IoSlice::new(b"tail!")]).unwrap();
    let mut tail = [0; 7];
    device.read_at(size_bytes - 7, &mut tail).unwrap();
    assert_eq!(&tail, b"\0\0tail!");
    assert_eq!(device.snapshot().resident_bytes(), CHUNK_BYTES as u64);
}

#[test]
fn a_snapshot_keeps_what_the_device_changes_later() {
    let device = MemoryDevice::new(1 << 20);
    device.write_at(100, &[IoSlice::new(b"before")]).unwrap();
    let snapshot = device.snapshot();
    device.write_at(100, &[IoSlice::new(b"after!")]).unwrap();
    let mut bytes = [0; 6];
    snapshot.read(100, &mut bytes).unwrap();
    assert_eq!(&bytes, b"before");
    assert_ne!(device.snapshot(), snapshot);
    device.restore(&snapshot).unwrap();
    device.read_at(100, &mut bytes).unwrap();
    assert_eq!(&bytes, b"before");
    assert_eq!(device.snapshot(), snapshot);
}

#[test]
fn an_image_of_another_size_is_not_restored() {
    let device = MemoryDevice::new(1 << 20);
    let other = MemoryDevice::new(1 << 21).snapshot();
    assert_eq!(device.restore(&other).unwrap_err().kind(), io::ErrorKind::InvalidInput);
    assert_eq!(device.geometry().size_bytes, 1 << 20);
}

#[test]
fn discarding_frees_whole_chunks_and_zeros_parts() {
    let chunk = CHUNK_BYTES as u64;
    let mut image = Image::zeroed(geometry(8 * chunk));
    image.write(0, &vec![1; 4 * CHUNK_BYTES]).unwrap();
    image.zero(chunk / 2, 2 * chunk).unwrap();
    assert_eq!(image.resident_bytes(), 3 * chunk);
    let mut bytes = vec![9; 4 * CHUNK_BYTES];
    image.read(0, &mut bytes).unwrap();
    for (at, byte) in bytes.iter().enumerate() {
        let zeroed = (CHUNK_BYTES / 2..CHUNK_BYTES * 5 / 2).contains(&at);
        assert_eq!(*byte, u8::from(!zeroed), "at byte {at}");
    }
    image.zero(0, 0).unwrap();
    image.zero(8 * chunk, 0).unwrap();
    assert_eq!(image.resident_bytes(), 3 * chunk);
}

#[test]
fn images_that_read_the_same_are_equal() {
    let mut written = Image::zeroed(geometry(1 << 20));
    written.write(70_000, &[0; 10]).unwrap();
    assert_eq!(written, Image::zeroed(geometry(1 << 20)));
    written.write(70_000, &[1]).unwrap();
    assert_ne!(written, Image::zeroed(geometry(1 << 20)));
    assert_ne!(Image::zeroed(geometry(1 << 20)), written);
}

#[test]
fn a_saved_image_loads_again() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("image");
    let mut image = Image::zeroed(geometry(100_001));
    image.write(50_000, b"middle").unwrap();
    image.write(99_998, b"end").unwrap();
    image.save(&path).unwrap();
    assert_eq!(std::fs::metadata(&path).unwrap().len(), 100_001);
    assert_eq!(Image::load(&path, 512).unwrap(), image);
}
