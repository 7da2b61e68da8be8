//! Tests of opening, and of what the host does with an image.

use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;
use std::time::Instant;

use super::*;
use crate::device::LongBuffer;

mod exclusion;

struct Scratch {
    directory: tempfile::TempDir,
}

impl Scratch {
    fn new() -> Scratch {
        Scratch { directory: tempfile::tempdir().unwrap() }
    }

    fn path(&self) -> PathBuf {
        self.directory.path().join("volume")
    }

    fn create(&self, size_bytes: u64) -> FileDevice {
        FileDevice::create(&self.path(), size_bytes).unwrap()
    }
}

fn pattern(len: usize) -> Vec<u8> {
    (0..len).map(|at| (at % 251) as u8).collect()
}

#[test]
fn a_new_image_is_sparse_and_has_sectors_of_4_kib() {
    let scratch = Scratch::new();
    let device = scratch.create(1 << 40);
    assert_eq!(device.geometry(), Geometry { size_bytes: 1 << 40, sector_bytes: 4096 });
    assert!(!device.is_block_device());
    assert_eq!(std::fs::metadata(scratch.path()).unwrap().blocks(), 0);
}

#[test]
fn creating_over_an_old_image_leaves_nothing_of_it() {
    let scratch = Scratch::new();
    std::fs::write(scratch.path(), pattern(10_000)).unwrap();
    let device = scratch.create(20_000);
    let mut bytes = vec![1; 20_000];
    device.read_at(0, &mut bytes).unwrap();
    assert!(bytes.iter().all(|byte| *byte == 0));
}

#[test]
fn a_new_image_replaces_nothing_and_a_failure_leaves_nothing() {
    let scratch = Scratch::new();
    let refused = FileDevice::create_new(&scratch.path(), u64::MAX);
    assert!(matches!(refused, Err(OpenError::Io { .. })));
    assert!(!scratch.path().exists());
    std::fs::write(scratch.path(), pattern(10_000)).unwrap();
    let refused = FileDevice::create_new(&scratch.path(), 20_000);
    assert!(matches!(refused, Err(OpenError::Io { .. })));
    assert!(std::fs::read(scratch.path()).unwrap() == pattern(10_000));
}

#[test]
fn writes_survive_reopening_the_image() {
    let scratch = Scratch::new();
    let device = scratch.create(1 << 20);
    device.write_at(4096, &[IoSlice::new(&pattern(8192))]).unwrap();
    device.sync().unwrap();
    drop(device);
    let device = FileDevice::open(&scratch.path(), Access::ReadOnly).unwrap();
    assert_eq!(device.geometry().size_bytes, 1 << 20);
    let mut bytes = vec![0; 8192];
    device.read_at(4096, &mut bytes).unwrap();
    assert_eq!(bytes, pattern(8192));
}

#[test]
fn a_device_opened_for_reading_refuses_changes() {
    let scratch = Scratch::new();
    drop(scratch.create(8192));
    let device = FileDevice::open(&scratch.path(), Access::ReadOnly).unwrap();
    let write = device.write_at(0, &[IoSlice::new(b"x")]);
    assert_eq!(write.unwrap_err().kind(), io::ErrorKind::ReadOnlyFilesystem);
    assert_eq!(device.discard(0, 4096).unwrap_err().kind(), io::ErrorKind::ReadOnlyFilesystem);
    device.barrier().unwrap();
    device.sync().unwrap();
}

#[test]
fn one_writer_keeps_everyone_else_out() {
    let scratch = Scratch::new();
    let writer = scratch.create(8192);
    writer.write_at(0, &[IoSlice::new(b"kept")]).unwrap();
    for access in [Access::ReadOnly, Access::ReadWrite] {
        let error = FileDevice::open(&scratch.path(), access).unwrap_err();
        let OpenError::InUse { path, by: User::Writer(Some(process)) } = &error else {
            panic!("{error:?}");
        };
        assert_eq!((path, process.pid), (&scratch.path(), std::process::id()));
        let expected = format!("{}: in use by {process}", scratch.path().display());
        assert_eq!(error.to_string(), expected);
        assert_eq!(io::Error::from(error).kind(), io::ErrorKind::ResourceBusy);
    }
    let error = FileDevice::create(&scratch.path(), 4096).unwrap_err();
    assert!(matches!(error, OpenError::InUse { .. }));
    let mut bytes = [0; 4];
    writer.read_at(0, &mut bytes).unwrap();
    assert_eq!(&bytes, b"kept");
}

#[test]
fn readers_share_and_keep_writers_out() {
    let scratch = Scratch::new();
    drop(scratch.create(8192));
    let first = FileDevice::open(&scratch.path(), Access::ReadOnly).unwrap();
    let second = FileDevice::open(&scratch.path(), Access::ReadOnly).unwrap();
    let error = FileDevice::open(&scratch.path(), Access::ReadWrite).unwrap_err();
    assert!(matches!(error, OpenError::InUse { by: User::Reader(Some(_)), .. }), "{error:?}");
    drop((first, second));
    FileDevice::open(&scratch.path(), Access::ReadWrite).unwrap();
}

#[test]
fn waiting_gets_the_lock_when_it_comes_free() {
    let scratch = Scratch::new();
    let holder = scratch.create(8192);
    let timeout = Duration::from_secs(60);
    std::thread::scope(|threads| {
        let path = scratch.path();
        let waiter =
            threads.spawn(move || FileDevice::open_waiting(&path, Access::ReadWrite, timeout));
        std::thread::sleep(Duration::from_millis(50));
        assert!(!waiter.is_finished());
        drop(holder);
        waiter.join().unwrap().unwrap();
    });
}

#[test]
fn waiting_ends_when_the_time_is_over() {
    let scratch = Scratch::new();
    let _holder = scratch.create(8192);
    let timeout = Duration::from_millis(60);
    let begun = Instant::now();
    let error = FileDevice::open_waiting(&scratch.path(), Access::ReadOnly, timeout).unwrap_err();
    assert!(matches!(error, OpenError::InUse { .. }));
    assert!(begun.elapsed() >= timeout);
}

#[test]
fn a_file_that_is_not_a_device_is_refused_with_its_path() {
    let scratch = Scratch::new();
    let directory = scratch.directory.path();
    let error = FileDevice::open(directory, Access::ReadOnly).unwrap_err();
    assert!(matches!(&error, OpenError::NotADevice { path } if path == directory));
    let error = FileDevice::create(directory, 4096).unwrap_err();
    assert!(matches!(error, OpenError::NotADevice { .. }));
    let error = FileDevice::open(&scratch.path(), Access::ReadOnly).unwrap_err();
    assert!(error.to_string().starts_with(&scratch.path().display().to_string()));
    assert_eq!(io::Error::from(error).kind(), io::ErrorKind::NotFound);
}

#[test]
fn discarding_punches_a_hole_and_keeps_the_size() {
    let scratch = Scratch::new();
    let device = scratch.create(1 << 20);
    device.write_at(0, &[IoSlice::new(&pattern(1 << 20))]).unwrap();
    device.sync().unwrap();
    let before = std::fs::metadata(scratch.path()).unwrap();
    device.discard(4096, (1 << 20) - 8192).unwrap();
    let after = std::fs::metadata(scratch.path()).unwrap();
    assert!(after.blocks() < before.blocks() / 2);
    assert_eq!(after.len(), 1 << 20);
    let mut edge = [0; 1];
    device.read_at(4095, &mut edge).unwrap();
    assert_eq!(edge[0], pattern(4096)[4095]);
    device.discard(0, 0).unwrap();
}

#[test]
fn an_image_that_someone_cut_short_fails_to_read() {
    let scratch = Scratch::new();
    let device = scratch.create(1 << 20);
    File::options().write(true).open(scratch.path()).unwrap().set_len(4096).unwrap();
    let mut bytes = [0; 8192];
    let error = device.read_at(0, &mut bytes).unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::UnexpectedEof);
}

#[test]
fn the_rest_of_a_short_write_goes_to_its_place() {
    let scratch = Scratch::new();
    let data = pattern(100);
    let bufs = [IoSlice::new(&data[..30]), IoSlice::new(&data[30..31]), IoSlice::new(&data[31..])];
    for written in [0, 1, 29, 30, 31, 32, 99, 100] {
        let device = scratch.create(4096);
        device.write_at(10, &[IoSlice::new(&data[..written as usize])]).unwrap();
        write_rest(&device.open_descriptors().unwrap().file, 10, &bufs, written).unwrap();
        let mut bytes = [0; 100];
        device.read_at(10, &mut bytes).unwrap();
        assert_eq!(bytes, data[..], "after a write of {written} bytes");
    }
}

#[test]
fn a_full_host_is_an_error_of_the_write() {
    let open = || File::options().read(true).write(true).open("/dev/full").unwrap();
    let full = FileDevice {
        descriptors: RwLock::new(Some(Descriptors {
            file: open(),
            long: OnceLock::from(Some(long_requests(open()))),
        })),
        grown_bytes: AtomicU64::new(0),
        geometry: Geometry { size_bytes: 4 << 20, sector_bytes: 4096 },
        access: Access::ReadWrite,
        is_block_device: false,
        hold: Hold::default(),
        direct: None,
    };
    for len in [1, 4 << 20] {
        let error = full.write_at(0, &[IoSlice::new(&pattern(len))]).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::StorageFull, "{len} bytes");
    }
}

fn long_requests(file: File) -> LongRequests {
    let alignment = DirectAlignment::of(&file, false).unwrap();
    LongRequests::new(file, alignment)
}

#[test]
fn long_writes_are_gathered_piece_by_piece() {
    let scratch = Scratch::new();
    let device = scratch.create(32 << 20);
    let data = pattern(19 << 20);
    let pieces = [0, 1, 4096, 5000, 9 << 20, 9 << 20, 19 << 20];
    let bufs: Vec<_> = pieces.windows(2).map(|w| IoSlice::new(&data[w[0]..w[1]])).collect();
    let long = long_requests(device.reopen().unwrap());
    long.write(8192, &bufs).unwrap().unwrap();
    let mut bytes = vec![1; 20 << 20];
    device.read_at(0, &mut bytes).unwrap();
    assert!(bytes[8192..][..data.len()] == data);
    assert!(bytes[..8192].iter().chain(&bytes[8192 + data.len()..]).all(|byte| *byte == 0));
}

#[test]
fn writes_that_are_short_or_change_pages_in_part_go_through_the_hosts_memory() {
    let scratch = Scratch::new();
    let device = scratch.create(32 << 20);
    let long = long_requests(device.reopen().unwrap());
    let page = rustix::param::page_size();
    for (offset, len) in [(0, page), (512, 2 << 20), (0, (2 << 20) + 512)] {
        assert!(long.write(offset, &[IoSlice::new(&pattern(len))]).is_none(), "{len} at {offset}");
    }
    let mut bytes = vec![1; 4 << 20];
    device.read_at(0, &mut bytes).unwrap();
    assert!(bytes.iter().all(|byte| *byte == 0), "nothing was written");
}

/// Scratch files in the build directory: temporary directories are often in memory, where direct
/// requests mean nothing.
fn direct_scratch() -> Scratch {
    let beside_the_test = std::env::current_exe().unwrap().parent().unwrap().to_owned();
    Scratch { directory: tempfile::tempdir_in(beside_the_test).unwrap() }
}

#[test]
fn direct_requests_of_any_alignment_do_what_buffered_ones_do() {
    let scratch = direct_scratch();
    const SIZE_BYTES: usize = 256 * 1024;
    let options = OpenOptions { direct: true, ..OpenOptions::default() };
    let device = options.create(&scratch.path(), SIZE_BYTES as u64).unwrap();
    let mut model = vec![0; SIZE_BYTES];
    let requests =
        [(0, 4096), (4096, 65536), (1, 1), (511, 2), (1024, 1024), (5000, 70_001), (262_143, 1)];
    for (fill, (offset, len)) in requests.into_iter().enumerate() {
        let data: Vec<u8> = pattern(len).iter().map(|byte| byte ^ fill as u8).collect();
        let (head, tail) = data.split_at(len / 2);
        device.write_at(offset as u64, &[IoSlice::new(head), IoSlice::new(tail)]).unwrap();
        model[offset..offset + len].copy_from_slice(&data);
        let mut bytes = vec![0; len];
        device.read_at(offset as u64, &mut bytes).unwrap();
        assert!(bytes == data, "{len} bytes at {offset}");
    }
    device.sync().unwrap();
    assert!(std::fs::read(scratch.path()).unwrap() == model);
}

#[test]
fn direct_requests_reach_the_odd_end_of_an_image_only_for_reading() {
    let scratch = direct_scratch();
    std::fs::write(scratch.path(), pattern(10_000)).unwrap();
    let options = OpenOptions { direct: true, ..OpenOptions::default() };
    let device = options.open(&scratch.path()).unwrap();
    let mut bytes = vec![0; 9_000];
    device.read_at(1_000, &mut bytes).unwrap();
    assert!(bytes == pattern(10_000)[1_000..]);
    let error = device.write_at(9_999, &[IoSlice::new(b"x")]).unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::InvalidInput);
    assert_eq!(std::fs::metadata(scratch.path()).unwrap().len(), 10_000);
}

#[test]
fn direct_writes_side_by_side_do_not_undo_each_other() {
    let scratch = direct_scratch();
    let options = OpenOptions { direct: true, ..OpenOptions::default() };
    let device = options.create(&scratch.path(), 4096).unwrap();
    std::thread::scope(|threads| {
        for quarter in 0..4_u8 {
            let device = &device;
            threads.spawn(move || {
                for round in 1..=20 {
                    let data = [round; 128];
                    let offset = u64::from(quarter) * 128;
                    device.write_at(offset, &[IoSlice::new(&data)]).unwrap();
                }
            });
        }
    });
    let mut bytes = [0; 512];
    device.read_at(0, &mut bytes).unwrap();
    assert_eq!(bytes, [20; 512]);
}

/// A loop device over an image, detached when the test ends.
struct Loop {
    path: PathBuf,
}

impl Loop {
    fn over(image: &Path) -> Loop {
        let output = run("losetup", &["--find", "--show", "--sector-size", "512"], image);
        Loop { path: PathBuf::from(output.trim_end()) }
    }
}

impl Drop for Loop {
    fn drop(&mut self) {
        run("losetup", &["--detach"], &self.path);
    }
}

/// An image of 16 MiB.
fn image_of_16_mib() -> Scratch {
    let scratch = direct_scratch();
    drop(scratch.create(16 << 20));
    scratch
}

/// The same, and a loop device over it.
fn disk_of_16_mib() -> (Scratch, Loop) {
    let scratch = image_of_16_mib();
    let disk = Loop::over(&scratch.path());
    (scratch, disk)
}

/// Makes an ext4 on the disk, and returns a directory to mount it on.
fn formatted(scratch: &Scratch, disk: &Loop) -> PathBuf {
    run("mkfs.ext4", &["-q"], &disk.path);
    let mount_point = scratch.directory.path().join("mnt");
    std::fs::create_dir(&mount_point).unwrap();
    mount_point
}

fn run(program: &str, arguments: &[&str], path: &Path) -> String {
    let output = std::process::Command::new(program).args(arguments).arg(path).output().unwrap();
    assert!(output.status.success(), "{program}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

#[test]
#[ignore = "needs root, for a loop device"]
fn a_block_device_is_read_written_discarded_and_claimed() {
    let (_scratch, disk) = disk_of_16_mib();
    for direct in [false, true] {
        let options = OpenOptions { direct, ..OpenOptions::default() };
        let device = options.open(&disk.path).unwrap();
        assert!(device.is_block_device());
        let Geometry { size_bytes, sector_bytes } = device.geometry();
        assert_eq!(size_bytes, 16 << 20);
        assert!(matches!(sector_bytes, 512 | 4096), "{sector_bytes}");

        device.write_at(1000, &[IoSlice::new(&pattern(100_000))]).unwrap();
        device.sync().unwrap();
        device.discard(65_000, 20_000).unwrap();
        let mut bytes = vec![0; 64_000];
        device.read_at(1000, &mut bytes).unwrap();
        assert!(bytes == pattern(100_000)[..64_000]);
        let mut edge = vec![0; 16_000];
        device.read_at(85_000, &mut edge).unwrap();
        assert!(edge == pattern(100_000)[84_000..]);

        let error = FileDevice::open(&disk.path, Access::ReadWrite).unwrap_err();
        assert!(matches!(error, OpenError::InUse { by: User::Claim(None), .. }), "{error:?}");
    }
    assert!(matches!(FileDevice::create(&disk.path, 4096), Err(OpenError::NotADevice { .. })));
}

#[test]
#[ignore = "needs root, for a mount"]
fn a_block_device_that_the_kernel_has_mounted_is_in_use() {
    let (scratch, disk) = disk_of_16_mib();
    let mount_point = formatted(&scratch, &disk);
    run("mount", &[disk.path.to_str().unwrap()], &mount_point);
    let outcome = FileDevice::open(&disk.path, Access::ReadWrite);
    run("umount", &[], &mount_point);
    assert!(matches!(outcome, Err(OpenError::InUse { .. })), "{outcome:?}");
    FileDevice::open(&disk.path, Access::ReadWrite).unwrap();
}

#[test]
#[ignore = "needs root, for a loop device"]
fn a_claim_is_lent_and_taken_back_and_a_lent_device_is_still_locked() {
    let (_scratch, disk) = disk_of_16_mib();
    let device = FileDevice::open(&disk.path, Access::ReadWrite).unwrap();
    let claim = || {
        let flags = rustix::fs::OFlags::EXCL.bits() as i32;
        let mut options = std::fs::File::options();
        std::os::unix::fs::OpenOptionsExt::custom_flags(options.read(true), flags).open(&disk.path)
    };
    assert!(claim().is_err());
    device.lend_claim();
    let somebody = claim().unwrap();
    assert!(matches!(
        FileDevice::open(&disk.path, Access::ReadWrite),
        Err(OpenError::InUse { .. })
    ));
    assert!(matches!(device.reclaim(), Err(OpenError::InUse { .. })));
    drop(somebody);
    device.reclaim().unwrap();
    assert!(claim().is_err());
    device.control().expect_chosen_reads();
    assert!(!descriptors_of(&disk.path).is_empty());
    device.release().unwrap();
    assert_eq!(descriptors_of(&disk.path), Vec::<PathBuf>::new());
    FileDevice::open(&disk.path, Access::ReadWrite).unwrap();
}

/// The descriptors of this process that are open on a path.
fn descriptors_of(path: &Path) -> Vec<PathBuf> {
    let open = std::fs::read_dir("/proc/self/fd").unwrap().flatten().map(|entry| entry.path());
    open.filter(|link| std::fs::read_link(link).is_ok_and(|to| to == path)).collect()
}

/// The file system on which an image is could not be unmounted before the server's process had
/// ended, nor a loop device detached, though the unmount of the volume had returned.
#[test]
fn a_released_device_has_no_descriptor_and_is_free_for_others() {
    let scratch = Scratch::new();
    let device = scratch.create(1 << 20);
    device.write_at(0, &[IoSlice::new(&[1; 512])]).unwrap();
    assert_eq!(descriptors_of(&scratch.path()).len(), 1);
    device.release().unwrap();
    assert_eq!(descriptors_of(&scratch.path()), Vec::<PathBuf>::new());
    assert_eq!(
        device.read_at(0, &mut [0]).unwrap_err().kind(),
        io::ErrorKind::StaleNetworkFileHandle
    );
    assert!(device.sync().is_err() && device.reopen().is_err());
    device.release().unwrap();
    let next = FileDevice::open(&scratch.path(), Access::ReadWrite).unwrap();
    let error = device.write_at(0, &[IoSlice::new(&[2; 512])]).unwrap_err();
    assert_eq!(error.raw_os_error(), Some(Errno::STALE.raw_os_error()));
    let mut bytes = [0; 512];
    next.read_at(0, &mut bytes).unwrap();
    assert_eq!(bytes, [1; 512]);
}

/// Also data that was just written and is only in the host's memory.
#[test]
#[ignore = "needs root, for a loop device"]
fn long_reads_of_a_block_device_go_past_the_hosts_memory_once_they_are_chosen() {
    let (_scratch, disk) = disk_of_16_mib();
    let device = FileDevice::open(&disk.path, Access::ReadWrite).unwrap();
    let name = disk.path.file_name().unwrap().to_str().unwrap();
    let limit = std::fs::read_to_string(format!("/sys/block/{name}/queue/max_sectors_kb")).unwrap();
    assert_eq!(device.hints().request_bytes_max, Some(limit.trim().parse::<u64>().unwrap() << 10));
    let written = pattern(4 << 20);
    device.write_at(8192, &[IoSlice::new(&written)]).unwrap();

    let mut buffer = LongBuffer::new(4 << 20);
    assert!(device.open_descriptors().unwrap().long().is_none(), "not chosen yet");
    device.control().expect_chosen_reads();
    let open = device.open_descriptors().unwrap();
    let long = open.long().unwrap();
    assert!(long.read(8192, buffer.bytes()));
    assert!(buffer.bytes() == written);
    // Requests that direct I/O does not allow take the ordinary way.
    assert!(!long.read(8192, &mut buffer.bytes()[..4096]), "short");
    assert!(!long.read(8192, &mut buffer.bytes()[1..=1 << 20]), "misaligned");
    device.read_at(8192, &mut buffer.bytes()[1..=1 << 20]).unwrap();
    assert!(buffer.bytes()[1..=1 << 20] == written[..1 << 20]);
}

/// Bytes written to a block device in either way are read back in either way, always the newest ones.
#[test]
#[ignore = "needs root, for a loop device"]
fn long_writes_of_a_block_device_and_short_ones_see_each_other() {
    let (scratch, disk) = disk_of_16_mib();
    let device = FileDevice::open(&disk.path, Access::ReadWrite).unwrap();
    device.control().expect_chosen_reads();
    let mut model = vec![0; 16 << 20];
    let writes =
        [(0, 4 << 20), (4096, 8192), (1 << 20, 9 << 20), (5 << 20, 100_000), (5 << 20, 1 << 20)];
    for (fill, (offset, len)) in writes.into_iter().enumerate() {
        let data: Vec<u8> = pattern(len).iter().map(|byte| byte ^ fill as u8).collect();
        let bufs = [IoSlice::new(&data)];
        let past = device.open_descriptors().unwrap().long().unwrap().write(offset as u64, &bufs);
        match past {
            Some(written) => written.unwrap(),
            None => device.write_at(offset as u64, &bufs).unwrap(),
        }
        model[offset..offset + len].copy_from_slice(&data);
        let mut buffer = LongBuffer::new(16 << 20);
        for (way, piece_len) in [("through", 64 << 10), ("past", 1 << 20)] {
            for (at, piece) in buffer.bytes().chunks_mut(piece_len).enumerate() {
                device.read_at((at * piece_len) as u64, piece).unwrap();
            }
            assert!(buffer.bytes() == model, "{len} bytes at {offset}, {way} the host's memory");
        }
    }
    device.sync().unwrap();
    assert!(std::fs::read(scratch.path()).unwrap() == model);
}
