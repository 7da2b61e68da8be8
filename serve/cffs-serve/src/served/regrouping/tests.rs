//! A requested regrouping lets other callers go first.

use cffs::clock::TestClock;
use cffs::device::MemoryDevice;
use cffs::files::Files;
use cffs::mkfs::{self, MkfsOptions};
use cffs::vfs::OpenOptions;

use super::*;

const DIRECTORIES: u64 = 10;

fn open(device: &Arc<MemoryDevice>) -> Files {
    let clock = Arc::new(TestClock::default());
    Files::new(Arc::new(cffs::open(device.clone(), clock, OpenOptions::default()).expect("opened")))
}

/// Starts a regrouping of a whole volume that is never idle.
fn start(files: &Files) -> (Arc<Regrouping>, thread::JoinHandle<()>) {
    let regrouping = Arc::new(Regrouping::default());
    regrouping.lock().stage = Stage::Running;
    let (job, files) = (Arc::clone(&regrouping), files.clone());
    let run = move || {
        job.run(files.volume(), InodeNo::ROOT, &RegroupRequest::default(), Duration::MAX);
    };
    (regrouping, thread::spawn(run))
}

/// Regression: a command waited forever for a regrouping whose thread had panicked, and the volume
/// still accepted changes.
#[test]
fn a_job_that_panics_ends_and_stops_the_volume() {
    let device = Arc::new(MemoryDevice::new(16 << 20));
    cffs::mkfs::make(&*device, &cffs::mkfs::MkfsOptions::default()).expect("made");
    let files = open(&device);
    let regrouping = Arc::new(Regrouping::default());
    regrouping.lock().stage = Stage::Running;
    let status = Arc::clone(&regrouping);
    job::spawn(files.volume(), |_| panic!("a fault"), move || status.panicked());
    while regrouping.status().stage == Stage::Running {
        thread::sleep(TURN_POLL);
    }
    assert_eq!(regrouping.status().failure.as_deref(), Some(job::PANICKED));
    assert!(files.volume().writer().health.latched().is_some());
}

#[test]
fn a_second_regrouping_is_refused_and_says_how_to_end_the_first() {
    let device = Arc::new(MemoryDevice::new(16 << 20));
    mkfs::make(&device, &MkfsOptions::default()).expect("made");
    let files = open(&device);
    let (regrouping, job) = start(&files);
    // The job may end before the second request.
    regrouping.lock().stage = Stage::Running;
    let second = regrouping.start(files.volume(), InodeNo::ROOT, RegroupRequest::default());
    let said = second.expect_err("refused").to_string();
    assert!(said.contains("under way") && said.contains("cffs regroup --stop"), "{said}");
    regrouping.stop();
    job.join().expect("it ended");
    files.close().expect("closed");
}

/// Regression: an idle volume was regrouped on a mount that was remounted read-only.
#[test]
fn an_idle_volume_that_is_read_only_stays_as_it_is() {
    let device = Arc::new(MemoryDevice::new(64 << 20));
    mkfs::make(&device, &MkfsOptions::default()).expect("made");
    let files = open(&device);
    files.make_dir("/d").expect("made");
    files.write("/d/f", &[1; 5000]).expect("written");
    let regrouping = Regrouping::default();
    let mut idle = IdleRegrouping::new(Duration::ZERO);
    let asked = std::cell::Cell::new(0);
    let mut run = |is_writable: bool| {
        let may_go_on = || {
            asked.set(asked.get() + 1);
            assert_eq!(regrouping.status().stage, Stage::Running, "a remount has to see it");
            is_writable
        };
        assert!(regrouping.run_idle(files.volume(), &mut idle, &may_go_on));
        (asked.get(), regrouping.status().stage)
    };
    // The first call notes that the volume was used.
    for _ in 0..3 {
        run(false);
    }
    let (asked_before, stage) = run(false);
    assert!(asked_before >= 3, "asked before anything is moved");
    assert_eq!(stage, Stage::Never);
    let (asked_by_now, stage) = run(true);
    assert!(asked_by_now > asked_before + 1, "asked before each step");
    assert_eq!(stage, Stage::Done);
    files.close().expect("closed");
}

#[test]
fn it_continues_when_callers_have_had_their_turn() {
    let device = Arc::new(MemoryDevice::new(64 << 20));
    mkfs::make(&device, &MkfsOptions::default()).expect("made");
    let files = open(&device);
    for dir in 0..DIRECTORIES {
        files.make_dir(format!("/d{dir}")).expect("made");
        for file in 0..5 {
            files.write(format!("/d{dir}/f{file}"), &[1; 5000]).expect("written");
        }
    }
    files.close().expect("closed");

    let files = open(&device);
    let (regrouping, job) = start(&files);
    thread::sleep(Duration::from_millis(300));
    let status = regrouping.status();
    assert_eq!(status.stage, Stage::Running, "no calls: {status:?}");
    let until = Instant::now() + Duration::from_secs(60);
    while regrouping.status().stage == Stage::Running {
        assert!(Instant::now() < until, "it waits for more calls");
        files.stat("/d0/f0").expect("it is there");
    }
    job.join().expect("it ended");
    let status = regrouping.status();
    assert_eq!((status.stage, status.progress.directories), (Stage::Done, DIRECTORIES + 1));

    files.close().expect("closed");
    let files = open(&device);
    let (regrouping, job) = start(&files);
    regrouping.stop();
    job.join().expect("it ended");
    assert_eq!(regrouping.status().stage, Stage::Stopped);
    files.close().expect("closed");
}
