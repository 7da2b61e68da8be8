//! What `place disk` finds of disks of which the truth is known, in virtual time.

use std::io::{self, IoSlice};

use cffs::device::{BlockDevice, Geometry, MemoryDevice};
use cffs_bench::disk::profile::Spec;
use cffs_bench::disk::seek::SeekCurve;
use cffs_bench::disk::{Nanos, Profile, Stroke};
use cffs_bench::virtual_disk::VirtualDisk;
use cffs_place::disk::{Disk, Drive, measure};

/// The size of a volume, which is a whole disk, on a smaller scale if that is larger.
fn size_of(profile: Profile) -> u64 {
    if profile == Profile::St31200 { 980 << 20 } else { 8 << 30 }
}

struct Virtual {
    disk: VirtualDisk<MemoryDevice>,
    unit: usize,
    writes: u32,
}

impl Drive for Virtual {
    fn size_bytes(&self) -> u64 {
        self.disk.geometry().size_bytes
    }

    fn unit(&self) -> usize {
        self.unit
    }

    fn read(&mut self, offset: u64, bytes: usize) -> io::Result<Vec<u8>> {
        let mut contents = vec![0; bytes];
        self.disk.read_at(offset, &mut contents)?;
        Ok(contents)
    }

    fn write(&mut self, offset: u64, contents: &[u8]) -> io::Result<()> {
        self.writes += 1;
        self.disk.write_at(offset, &[IoSlice::new(contents)])
    }

    fn now(&self) -> f64 {
        self.disk.now().as_secs()
    }

    fn idle(&mut self, seconds: f64) {
        self.disk.idle(Nanos::from_ms(seconds * 1e3));
    }
}

/// A disk of zeroes.
fn disk_of(profile: Profile) -> Virtual {
    let unit = profile.sector_size();
    let memory =
        MemoryDevice::with_geometry(Geometry { size_bytes: size_of(profile), sector_bytes: unit });
    let disk = VirtualDisk::new(memory, profile, Stroke::Whole);
    Virtual { disk, unit: unit as usize, writes: 0 }
}

/// What is found, and in how many seconds.
fn found(profile: Profile) -> (Disk, f64) {
    let mut drive = disk_of(profile);
    let found = measure(&mut drive, true).expect("measured");
    (found, drive.now())
}

fn assert_near(what: &str, found: f64, truth: f64, part: f64) {
    assert!((found / truth - 1.0).abs() <= part, "{what}: {found}, in truth {truth}");
}

#[test]
fn disks_are_found_as_they_are() {
    for profile in
        [Profile::St31200, Profile::AtlasIi, Profile::Hdd7200, Profile::Hdd7200WriteThrough]
    {
        let Spec::Disk(truth) = profile.spec() else { panic!("{profile:?} is a disk") };
        let (disk, seconds) = found(profile);
        println!("{profile:?} in {seconds:.1} s: {disk:#?}");
        assert!(seconds <= 10.0, "{profile:?}: {seconds} s");
        let name = |what: &str| format!("{profile:?}, {what}");
        assert_near(&name("turns"), disk.rpm.expect("it turns"), truth.rpm, 0.01);
        let (single, average, full) =
            (truth.seek_single_ms, truth.seek_average_ms, truth.seek_full_ms);
        let curve = SeekCurve::through(truth.cylinders, single, average, full);
        for seek in &disk.seeks {
            let distance = (seek.distance * f64::from(truth.cylinders)) as u32;
            let ms = curve.time(distance).as_secs() * 1e3;
            let what = name(&format!("seek over {:.3}", seek.distance));
            assert_near(&what, seek.ms, ms, 0.05);
        }
        let geometry = truth.geometry(None);
        let outermost = disk.zones[0].bytes_per_second;
        assert_near(&name("bandwidth"), outermost, geometry.streaming_rate(), 0.05);
        assert_eq!(disk.zones.len(), truth.zones.len(), "{profile:?}: {:?}", disk.zones);
        let [first, .., last] = truth.zones else { continue };
        let rates =
            disk.zones[0].bytes_per_second / disk.zones[disk.zones.len() - 1].bytes_per_second;
        assert_near(&name("zones"), rates, f64::from(*first) / f64::from(*last), 0.05);
    }
}

#[test]
fn buffers_and_write_caches_are_found() {
    for profile in
        [Profile::St31200, Profile::AtlasIi, Profile::Hdd7200, Profile::Hdd7200WriteThrough]
    {
        let Spec::Disk(truth) = profile.spec() else { panic!("{profile:?} is a disk") };
        let (disk, _) = found(profile);
        let ahead = truth.buffer.read_ahead_sectors * 512;
        assert!(
            disk.read_ahead_bytes <= ahead && ahead < 2 * disk.read_ahead_bytes + 1,
            "{profile:?}: {} bytes ahead, in truth {ahead}",
            disk.read_ahead_bytes
        );
        assert_eq!(disk.write_cache, Some(profile.has_write_cache()), "{profile:?}");
    }
}

#[test]
fn what_does_not_turn_is_no_disk() {
    for profile in [Profile::Net3000, Profile::None] {
        let (disk, _) = found(profile);
        assert_eq!(disk.rotation_ms, None, "{profile:?}: {disk:?}");
        assert!(disk.seeks.is_empty());
    }
}

#[test]
fn nothing_is_written_unless_that_is_asked_for() {
    let mut drive = disk_of(Profile::Hdd7200);
    let found = measure(&mut drive, false).expect("measured");
    assert_eq!(drive.writes, 0);
    assert_eq!(found.write_cache, None);
}

#[test]
fn writes_leave_the_contents_as_they_were() {
    let mut drive = disk_of(Profile::St31200);
    let (size, unit) = (drive.size_bytes(), drive.unit as u64);
    // Each sector begins with its number, so that one written to another place shows too.
    let numbered = |sector: u64| {
        let mut contents = vec![0xa5; unit as usize];
        contents[..8].copy_from_slice(&sector.to_le_bytes());
        contents
    };
    let per_chunk = (1 << 20) / unit;
    let chunk = |first: u64| (first..first + per_chunk).flat_map(numbered).collect::<Vec<u8>>();
    let firsts = || (0..size / unit).step_by(per_chunk as usize);
    for first in firsts() {
        drive.disk.write_at(first * unit, &[IoSlice::new(&chunk(first))]).expect("written");
    }
    measure(&mut drive, true).expect("measured");
    assert!(drive.writes > 0);
    for first in firsts() {
        let found = drive.read(first * unit, 1 << 20).expect("read");
        assert!(found == chunk(first), "contents differ in the MiB from sector {first}");
    }
}
