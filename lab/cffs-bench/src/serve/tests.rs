//! The pacer against the clock. Lower bounds are exact; upper ones allow for a loaded machine.

use std::time::{Duration, Instant};

use std::io::IoSlice;

use cffs::device::{BlockDevice, file};

use super::media::Media;
use super::pacer::Pacer;
use super::server::{DiskServer, LoopDevice};
use crate::disk::{Profile, Request, Run, Stroke};

fn read(at: u64) -> Request {
    Request::Read(Run::of_bytes(at, 4096))
}

#[test]
fn a_request_takes_at_least_its_time() {
    let pacer = Pacer::new(Profile::Net500, 1 << 30, Stroke::Whole);
    let started = Instant::now();
    for i in 0..50 {
        pacer.perform(read(i << 20));
    }
    let elapsed = started.elapsed();
    // One request at a time: each takes 2 ms for the quota and 1.5 ms of latency.
    assert!(elapsed >= Duration::from_micros(50 * 3500), "{elapsed:?}");
    assert_eq!(pacer.counters().reads, 50);
}

#[test]
fn concurrent_requests_share_the_device_and_none_is_forgotten() {
    for profile in [Profile::Net3000, Profile::Hdd7200, Profile::None] {
        let pacer = Pacer::new(profile, 1 << 30, Stroke::Whole);
        std::thread::scope(|scope| {
            for thread in 0..16u64 {
                let pacer = &pacer;
                scope.spawn(move || {
                    for i in 0..6 {
                        let at = (thread * 6151 + i * 911) << 12;
                        pacer.perform(Request::Write(Run::of_bytes(at, 8192)));
                        pacer.perform(read(at));
                    }
                    pacer.perform(Request::Flush);
                });
            }
        });
        let counters = pacer.counters();
        assert_eq!((counters.reads, counters.writes, counters.flushes), (96, 96, 16));
        assert_eq!(counters.write_bytes, 96 * 8192);
    }
}

#[test]
fn lateness_does_not_add_up() {
    // 300 requests in a queue of 16: the quota alone decides, even if threads wake late.
    let ideal = Duration::from_millis(16 * 19 * 2);
    let run = || {
        let pacer = Pacer::new(Profile::Net500, 1 << 30, Stroke::Whole);
        let started = Instant::now();
        std::thread::scope(|scope| {
            for thread in 0..16u64 {
                let pacer = &pacer;
                let work = move |i: u64| pacer.perform(read((thread + i * 16) << 12));
                scope.spawn(move || (0..19).for_each(work));
            }
        });
        started.elapsed()
    };
    // On a machine with other load, threads may not run for a while.
    let is_in_time = |elapsed: &Duration| {
        assert!(*elapsed >= ideal, "{elapsed:?}");
        *elapsed < ideal * 2
    };
    assert!((0..10).map(|_| run()).any(|elapsed| is_in_time(&elapsed)), "it was late ten times");
}

#[test]
fn a_device_can_be_exchanged_and_continues_counting() {
    let pacer = Pacer::new(Profile::Hdd7200, 1 << 30, Stroke::Whole);
    pacer.perform(read(900 << 20));
    pacer.become_profile(Profile::None);
    let started = Instant::now();
    for i in 0..1000 {
        pacer.perform(read(i << 19));
    }
    // With delays, this would take 8 s.
    assert!(started.elapsed() < Duration::from_secs(4), "a device without delays was slow");
    assert_eq!((pacer.counters().reads, pacer.counters().seeks), (1001, 1));
    assert_eq!(pacer.profile(), Profile::None);
}

/// Data is copied between submitting and waiting.
#[test]
fn a_device_is_kept_for_a_submitted_request_whose_thread_does_not_wait_yet() {
    let pacer = Pacer::new(Profile::Net500, 1 << 30, Stroke::Whole);
    let id = pacer.submit(read(0));
    std::thread::scope(|threads| {
        threads.spawn(|| pacer.become_profile(Profile::None));
        std::thread::sleep(Duration::from_millis(20));
        assert_eq!(pacer.profile(), Profile::Net500);
        pacer.wait(id);
    });
    assert_eq!((pacer.profile(), pacer.counters().reads), (Profile::None, 1));
}

#[test]
fn a_power_cut_loses_nothing_that_was_flushed_and_whole_sectors_of_the_rest() {
    let dir = tempfile::tempdir().expect("a directory");
    let (mut lost, mut kept) = (0, 0);
    for seed in 0..200 {
        let media = Media::open(&dir.path().join("disk"), 1 << 20).expect("media").volatile();
        media.write(0, &[1; 40_960]).expect("write");
        media.flush();
        media.write(4096, &[2; 12_288]).expect("write");
        media.write(6144, &[3; 4096]).expect("write");
        let cut = media.cut_power(seed).expect("a cut");
        assert_eq!((cut.unsynced_writes, cut.unsynced_sectors), (2, 5));
        let mut now = vec![0; 40_960];
        media.read(0, &mut now).expect("read");
        assert!(now[..4096].iter().chain(&now[16_384..]).all(|&byte| byte == 1));
        for sector in now[4096..16_384].chunks(4096) {
            // The second write covers halves of sectors.
            for half in sector.chunks(2048) {
                assert!(half.iter().all(|&byte| byte == half[0]), "a sector was torn: {seed}");
            }
        }
        lost += cut.lost_sectors;
        kept += cut.unsynced_sectors - cut.lost_sectors;
        assert_eq!(media.cut_power(seed).expect("a second cut").unsynced_writes, 0);
    }
    assert!(lost > 100 && kept > 100, "{lost} lost, {kept} kept");
    let steady = Media::open(&dir.path().join("disk"), 1 << 20).expect("media");
    assert!(steady.cut_power(1).is_err());
}

/// A file system on the disk relies on barriers and syncs: each barrier and each sync of an image
/// flushes the disk below it, after the earlier writes.
#[test]
fn barriers_and_syncs_of_an_image_reach_the_disk() {
    if std::fs::File::options().read(true).write(true).open("/dev/fuse").is_err() {
        println!("SKIPPED: /dev/fuse cannot be opened");
        return;
    }
    for direct in [false, true] {
        let dir = tempfile::tempdir().expect("a directory");
        let at = dir.path().join("disk");
        std::fs::create_dir(&at).expect("made");
        let media = Media::open(&dir.path().join("backing"), 1 << 20).expect("media").volatile();
        let server =
            DiskServer::start(Profile::None, Stroke::Whole, media, &at).expect("it starts");
        let options = file::OpenOptions { direct, ..file::OpenOptions::default() };
        let image = options.open(server.file()).expect("opened");
        for (round, call) in [FileCall::Barrier, FileCall::Sync].into_iter().enumerate() {
            let byte = round as u8 + 1;
            image.write_at(4096, &[IoSlice::new(&[byte; 8192])]).expect("written");
            let flushes = server.pacer().counters().flushes;
            match call {
                FileCall::Barrier => image.barrier().expect("a barrier"),
                FileCall::Sync => image.sync().expect("a sync"),
            }
            assert!(server.pacer().counters().flushes > flushes, "{call:?}, direct: {direct}");
            let cut = server.media().cut_power(0).expect("a cut");
            assert_eq!(cut.unsynced_writes, 0, "{call:?}, direct: {direct}");
            let mut found = [0; 8192];
            server.media().read(4096, &mut found).expect("read");
            assert_eq!(found, [byte; 8192], "{call:?}, direct: {direct}");
        }
        drop(image);
        server.stop().expect("unmounted");
    }
}

#[derive(Clone, Copy, Debug)]
enum FileCall {
    Barrier,
    Sync,
}

/// A benchmark left loop devices without a write cache. The kernel keeps that setting when a device is
/// detached, and drops the flushes of its next user.
#[test]
fn a_loop_device_is_left_with_a_write_cache() {
    let backing = tempfile::NamedTempFile::new_in(env!("CARGO_MANIFEST_DIR")).expect("made");
    backing.as_file().set_len(16 << 20).expect("room");
    let device = match LoopDevice::attach(backing.path(), Profile::Net500, 1 << 20) {
        Ok(device) => device,
        Err(error) => return eprintln!("not run: no loop device: {error:#}"),
    };
    let name = device.path().file_name().expect("a name").to_owned();
    let setting = std::path::Path::new("/sys/block").join(name).join("queue/write_cache");
    let cache = || std::fs::read_to_string(&setting).expect("readable");
    assert_eq!(cache().trim(), "write through", "the profile has no write cache");
    drop(device);
    assert_eq!(cache().trim(), "write back");
}
