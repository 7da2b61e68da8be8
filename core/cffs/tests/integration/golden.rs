//! Volumes made by the first programs with their version of the format. Every later program must read their
//! contents and be able to write to them.
//!
//! `tests/golden/v2-NAME.image` is an image as text, `tests/golden/v2-NAME.listing` lists its files. They
//! never change. `CFFS_GOLDEN_WRITE=1 cargo test -p cffs --test integration golden::` writes those of a new
//! version of the format.

use std::fmt::Write;
use std::fs;
use std::path::PathBuf;
use std::sync::LazyLock;

use cffs::device::{Geometry, Image, MemoryDevice};
use cffs::fsck::{self, CheckOptions};
use cffs::vfs::Caller;
use cffs_testing::golden::{listing, sample};

/// The unit of the text form: a line has the bytes of one chunk and its repeat count.
const CHUNK_BYTES: usize = 32;

fn path(name: &str, extension: &str) -> PathBuf {
    let dir = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/golden");
    dir.join(format!("v2-{name}.{extension}"))
}

/// The text form of an image: its size and sector size, then each chunk that is not all zeros, with its
/// offset and repeat count.
fn to_text(image: &Image) -> String {
    let Geometry { size_bytes, sector_bytes } = image.geometry();
    let mut bytes = vec![0; size_bytes as usize];
    image.read(0, &mut bytes).unwrap();
    let mut text = format!("{size_bytes} {sector_bytes}\n");
    let chunks: Vec<&[u8]> = bytes.chunks(CHUNK_BYTES).collect();
    let mut at = 0;
    while at < chunks.len() {
        let repeated = chunks[at..].iter().take_while(|chunk| **chunk == chunks[at]).count();
        if chunks[at].iter().any(|byte| *byte != 0) {
            let offset = at * CHUNK_BYTES;
            writeln!(text, "{offset:x} {repeated} {}", listing::hex(chunks[at])).unwrap();
        }
        at += repeated;
    }
    text
}

fn from_text(text: &str) -> Image {
    let mut lines = text.lines();
    let (size, sector) = lines.next().unwrap().split_once(' ').unwrap();
    let size_bytes = size.parse().unwrap();
    let mut image = Image::zeroed(Geometry { size_bytes, sector_bytes: sector.parse().unwrap() });
    for line in lines {
        let fields: Vec<&str> = line.split(' ').collect();
        let offset = u64::from_str_radix(fields[0], 16).unwrap();
        let chunk: Vec<u8> = (0..fields[2].len() / 2)
            .map(|at| u8::from_str_radix(&fields[2][2 * at..2 * at + 2], 16).unwrap())
            .collect();
        image.write(offset, &chunk.repeat(fields[1].parse().unwrap())).unwrap();
    }
    image
}

type Golden = (&'static str, Image, String);

/// The golden images, with names and listings.
static GOLDENS: LazyLock<Vec<Golden>> = LazyLock::new(|| {
    let write = std::env::var_os("CFFS_GOLDEN_WRITE").is_some();
    let read = |(name, options)| {
        if write && !path(name, "image").exists() {
            let image = sample::full(&options).unwrap();
            let (_, volume) = sample::open(&image, true).unwrap();
            fs::write(path(name, "image"), to_text(&image)).unwrap();
            fs::write(path(name, "listing"), listing::of(&volume).unwrap()).unwrap();
        }
        let image = from_text(&fs::read_to_string(path(name, "image")).unwrap());
        (name, image, fs::read_to_string(path(name, "listing")).unwrap())
    };
    sample::kinds().into_iter().take(2).map(read).collect()
});

#[test]
fn golden_volumes_read_as_they_were_meant() {
    for (name, image, expected) in GOLDENS.iter() {
        let (_, volume) = sample::open(image, true).unwrap();
        assert_eq!(listing::of(&volume).unwrap(), *expected, "{name}");
        assert_eq!(listing::decoded(image), *expected, "{name}");
    }
}

/// Reading must not change the device, and a volume that was opened for writing and closed must have the same
/// names and contents.
#[test]
fn golden_volumes_survive_being_opened() {
    for (name, image, expected) in GOLDENS.iter() {
        let (device, volume) = sample::open(image, true).unwrap();
        listing::of(&volume).unwrap();
        volume.close().unwrap();
        assert_eq!(device.snapshot(), *image, "{name}");
        let (device, volume) = sample::open(image, false).unwrap();
        volume.close().unwrap();
        assert_eq!(listing::decoded(&device.snapshot()), *expected, "{name}");
    }
}

#[test]
fn golden_volumes_are_clean() {
    for (name, image, _) in GOLDENS.iter() {
        let options = CheckOptions { force: true, contents: true, ..CheckOptions::default() };
        let report = fsck::check(&MemoryDevice::from_image(image.clone()), &options, &()).unwrap();
        assert!(report.problems.is_empty(), "{name}: {:?}", report.problems);
        assert_eq!(report.exit_code(), 0, "{name}");
    }
}

/// Earlier programs, here represented by the decoder, can read what a later program writes.
#[test]
fn golden_volumes_can_be_written_to() {
    for (name, image, _) in GOLDENS.iter() {
        let (device, volume) = sample::open(image, false).unwrap();
        let root = cffs::units::InodeNo::ROOT;
        let large = volume.lookup(root, b"large").unwrap().ino;
        let mut names = Vec::new();
        volume
            .read_dir(large, 0, false, &mut |entry| {
                names.push(entry.name.to_vec());
                true
            })
            .unwrap();
        names.iter().for_each(|name| volume.unlink(&Caller::ROOT, large, name).unwrap());
        volume.remove_dir(&Caller::ROOT, root, b"large").unwrap();
        let new = cffs::vfs::NewFile {
            kind: cffs::vfs::NewKind::Regular,
            permissions: 0o644,
            uid: 0,
            gid: 0,
            times: None,
        };
        let file = volume.make(&Caller::ROOT, root, b"new", &new).unwrap().ino;
        volume.write(&Caller::ROOT, file, 100_000, b"data after a hole").unwrap();
        let above = volume.lookup(root, b"above").unwrap().ino;
        volume.unlink(&Caller::ROOT, above, b"third name").unwrap();
        let after = listing::of(&volume).unwrap();
        volume.close().unwrap();
        let without_times = |listing: &str| -> Vec<String> {
            let cut = |line: &str| line.split(" times=").next().unwrap_or_default().to_owned();
            listing.lines().map(cut).collect()
        };
        let decoded = listing::decoded(&device.snapshot());
        assert_eq!(without_times(&decoded), without_times(&after), "{name}");
    }
}
