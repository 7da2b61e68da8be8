//! Tests that the images are of the moments before barriers and syncs.

use std::collections::BTreeSet;

use super::*;

fn device(seed: u64) -> CrashingDevice {
    let geometry = Geometry { size_bytes: 1 << 16, sector_bytes: 512 };
    CrashingDevice::new(Image::zeroed(geometry), 32, seed)
}

fn write(device: &CrashingDevice, sector: u64) {
    device.write_at(sector * 512, &[IoSlice::new(&[1])]).unwrap();
}

/// Which of the first two sectors were written, in each of the images.
fn heads(images: &[Image]) -> Vec<[u8; 2]> {
    let head = |image: &Image, sector: u64| {
        let mut byte = [0];
        image.read(sector * 512, &mut byte).unwrap();
        byte[0]
    };
    images.iter().map(|image| [head(image, 0), head(image, 1)]).collect()
}

#[test]
fn a_barrier_keeps_what_a_crash_before_it_could_leave() {
    let device = device(1);
    write(&device, 0);
    assert!(device.take_images().is_empty(), "no barrier yet");
    device.barrier().unwrap();
    write(&device, 1);
    let images = device.take_images();
    let states: BTreeSet<_> = heads(&images).into_iter().collect();
    assert_eq!(states, BTreeSet::from([[0, 0], [1, 0]]));
    assert!(device.take_images().is_empty(), "they were taken");

    device.sync().unwrap();
    let states: BTreeSet<_> = heads(&device.take_images()).into_iter().collect();
    assert_eq!(states, BTreeSet::from([[0, 0], [1, 0], [1, 1]]));
    device.sync().unwrap();
    let images = device.take_images();
    assert_eq!(heads(&images), vec![[1, 1]; 32], "synced data is there");
    assert_eq!(heads(&[device.inner().durable()]), [[1, 1]]);
}

#[test]
fn a_seed_chooses_the_same_images_again() {
    let choices = [1, 1, 2].map(|seed| {
        let device = device(seed);
        write(&device, 0);
        write(&device, 1);
        device.sync().unwrap();
        heads(&device.take_images())
    });
    assert_eq!(choices[0], choices[1]);
    assert_ne!(choices[0], choices[2]);
}
