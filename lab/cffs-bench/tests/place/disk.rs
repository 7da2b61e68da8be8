//! The findings of `place disk` about disks with known properties: in virtual time, and through the
//! kernel.

use std::io::{self, IoSlice};
use std::path::Path;

use cffs::device::{BlockDevice, Geometry, MemoryDevice};
use cffs_bench::disk::{Nanos, Profile, Stroke};
use cffs_bench::virtual_disk::VirtualDisk;
use cffs_bench::workload::random::Random;
use cffs_place::disk::{Disk, Drive, FileDrive, Writable, measure};

use crate::trees::turn;
use crate::truth::{DISKS, SECONDS_MAX, Served, faults, size_of};

struct Virtual {
    disk: VirtualDisk<MemoryDevice>,
    unit: usize,
    /// The written ranges.
    written: Vec<u64>,
    /// The disturbance by other programs: this many of a thousand requests are late on their way
    /// to the disk, and on their way back.
    late: u64,
    random: Random,
}

impl Virtual {
    fn on_the_way(&mut self) {
        if self.random.below(1000) < self.late {
            self.disk.idle(Nanos::from_ms(0.5 + self.random.fraction() * 6.0));
        }
    }
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
        self.on_the_way();
        self.disk.read_at(offset, &mut contents)?;
        self.on_the_way();
        Ok(contents)
    }

    fn write(&mut self, offset: u64, contents: &[u8]) -> io::Result<()> {
        self.written.push(offset);
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
    Virtual { disk, unit: unit as usize, written: Vec::new(), late: 0, random: Random::new(1) }
}

/// The findings, and the duration of the measurement in seconds.
fn found(profile: Profile) -> (Disk, f64) {
    let mut drive = disk_of(profile);
    let found = measure(&mut drive, &Writable::Disk, f64::INFINITY).expect("measured");
    (found, drive.now())
}

#[test]
fn findings_match_the_properties_of_the_disks() {
    for profile in DISKS {
        let (disk, seconds) = found(profile);
        println!("{profile:?} in {seconds:.1} s: {disk:#?}");
        assert!(seconds <= SECONDS_MAX, "{profile:?}: {seconds} s");
        assert_eq!(faults(profile, &disk), [""; 0]);
        assert_eq!(disk.write_cache, Some(profile.has_write_cache()), "{profile:?}");
    }
}

/// The rotation is right even if there is time for nothing else.
#[test]
fn a_measurement_ends_in_time_and_names_its_omissions() {
    for profile in DISKS {
        let (whole, _) = found(profile);
        for seconds in [1.0, 3.0, 5.0, 20.0] {
            let mut drive = disk_of(profile);
            let disk = measure(&mut drive, &Writable::Disk, seconds).expect("measured");
            let took = drive.now();
            println!("{profile:?}, {seconds} s: {took:.1} s, without {:?}", disk.omitted);
            assert_eq!(disk.rotation_ms, whole.rotation_ms, "{profile:?}");
            // A measurement that has begun is completed.
            assert!(took < seconds.max(2.5) + 1.5, "{profile:?}: {took} s instead of {seconds}");
            assert_eq!(disk.omitted.is_empty(), seconds == 20.0, "{profile:?}, {seconds} s");
            assert_eq!(disk.write_cache.is_none(), disk.omitted.contains(&"writes"));
        }
    }
}

/// As through a kernel under other load.
#[test]
fn late_requests_change_no_result() {
    let mut missed = Vec::new();
    for profile in DISKS {
        for seed in 1..=40 {
            let mut drive = disk_of(profile);
            (drive.late, drive.random) = (5, Random::new(seed));
            let disk = measure(&mut drive, &Writable::Disk, f64::INFINITY).expect("measured");
            let mut faults = faults(profile, &disk);
            if disk.write_cache != Some(profile.has_write_cache()) {
                faults.push(format!("{profile:?}: write cache {:?}", disk.write_cache));
            }
            missed.extend(faults.into_iter().map(|fault| format!("seed {seed}: {fault}")));
            if drive.now() > SECONDS_MAX {
                missed.push(format!("seed {seed}: {profile:?}: {:.1} s", drive.now()));
            }
        }
    }
    assert!(missed.is_empty(), "{missed:#?}");
}

/// Counts the requests to a drive of the kernel.
struct Counted {
    drive: FileDrive,
    reads: u64,
    writes: u64,
}

impl Drive for Counted {
    fn size_bytes(&self) -> u64 {
        self.drive.size_bytes()
    }

    fn unit(&self) -> usize {
        self.drive.unit()
    }

    fn read(&mut self, offset: u64, bytes: usize) -> io::Result<Vec<u8>> {
        self.reads += 1;
        self.drive.read(offset, bytes)
    }

    fn write(&mut self, offset: u64, contents: &[u8]) -> io::Result<()> {
        self.writes += 1;
        self.drive.write(offset, contents)
    }

    fn now(&self) -> f64 {
        self.drive.now()
    }

    fn idle(&mut self, seconds: f64) {
        self.drive.idle(seconds);
    }

    fn is_flushed(&self) -> Option<bool> {
        self.drive.is_flushed()
    }
}

/// In real time, so it only checks properties that hold on a busy machine: `make place-disk` shows the
/// accuracy on an idle one.
#[test]
fn requests_through_the_kernel_reach_the_disk() {
    if !rustix::process::geteuid().is_root() {
        eprintln!("not run: loop devices need root");
        return;
    }
    let _turn = turn();
    for profile in [Profile::AtlasIi, Profile::Hdd7200] {
        let served = Served::start(profile, Path::new("/dev/shm")).expect("a disk");
        let drive = FileDrive::open(served.path(), &Writable::Disk).expect("opened");
        let mut drive = Counted { drive, reads: 0, writes: 0 };
        let before = served.counters();
        let disk = measure(&mut drive, &Writable::Disk, f64::INFINITY).expect("measured");
        let reached = served.counters().since(&before);
        println!("{profile:?} in {:.1} s: {disk:#?}", drive.now());
        assert_eq!((drive.size_bytes(), drive.unit()), (size_of(profile), disk_of(profile).unit));
        // Another program (udev) may read a new device.
        assert!(reached.reads >= drive.reads, "{} reads, {reached:?}", drive.reads);
        // Without rotation a cache cannot be detected, so nothing is written.
        let writes = if disk.rotation_ms.is_some() { 24 } else { 0 };
        assert_eq!((reached.writes, drive.writes), (writes, writes));
        assert_eq!(disk.write_cache_flushed, Some(profile.has_write_cache()));
        drop(drive);
        served.stop().expect("stopped");
    }
}

#[test]
fn a_device_without_rotation_is_no_disk() {
    for profile in [Profile::Net3000, Profile::None] {
        let (disk, _) = found(profile);
        assert_eq!(disk.rotation_ms, None, "{profile:?}: {disk:?}");
        assert!(disk.seeks.is_empty());
        assert_eq!(disk.write_cache, None, "nothing shows it");
    }
}

#[test]
fn nothing_is_written_by_default() {
    let mut drive = disk_of(Profile::Hdd7200);
    let found = measure(&mut drive, &Writable::Nothing, f64::INFINITY).expect("measured");
    assert_eq!(drive.written, [0; 0]);
    assert_eq!(found.write_cache, None);
}

#[test]
fn only_the_given_bytes_are_written() {
    for profile in [Profile::St31200, Profile::Hdd7200, Profile::Hdd7200WriteThrough] {
        let mut drive = disk_of(profile);
        let unit = drive.unit as u64;
        for (first, units) in [(7, 1), (100, 3), (5000, 1000)] {
            drive.written.clear();
            // Neither end is aligned to a unit.
            let named = first * unit - 1..(first + units) * unit + 1;
            let found =
                measure(&mut drive, &Writable::Bytes(named), f64::INFINITY).expect("measured");
            let allowed = |at: &u64| (first..first + units).contains(&(at / unit));
            assert!(!drive.written.is_empty() && drive.written.iter().all(allowed));
            assert_eq!(found.write_cache, Some(profile.has_write_cache()), "{profile:?}, {units}");
        }
        let size = drive.size_bytes();
        for named in [5 * unit + 1..7 * unit - 1, size - unit..size + unit, 0..0] {
            drive.written.clear();
            let refused =
                measure(&mut drive, &Writable::Bytes(named), f64::INFINITY).expect_err("refused");
            assert_eq!(refused.kind(), io::ErrorKind::InvalidInput);
            assert_eq!(drive.written, [0; 0]);
        }
    }
}

#[test]
fn writes_leave_the_contents_as_they_were() {
    let mut drive = disk_of(Profile::St31200);
    let (size, unit) = (drive.size_bytes(), drive.unit as u64);
    // Each sector begins with its number, so a sector written to another place is detected, too.
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
    measure(&mut drive, &Writable::Disk, f64::INFINITY).expect("measured");
    assert!(!drive.written.is_empty());
    for first in firsts() {
        let found = drive.read(first * unit, 1 << 20).expect("read");
        assert!(found == chunk(first), "contents differ in the MiB from sector {first}");
    }
}
