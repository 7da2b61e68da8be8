//! How long callers wait while a volume is regrouped.

use std::ops::ControlFlow;
use std::time::Duration;

use cffs::vfs::{IdleRegrouping, RegroupOptions, RegroupProgress, RenameMode, Scattered, Turns};

use super::super::trees::{files_of, read_all};
use super::*;

/// Calls in a burst without pauses: enough that a single one is less than a hundredth of them.
const BURST: usize = 1000;
/// Bytes that are moved while calls arrive without pauses: enough for many calls.
const STEADY_BYTES: u64 = 4 << 20;
/// The pause before each burst.
const PAUSE_MS: f64 = 2000.0;

/// Half of the calls that arrive during a step wait no longer than this: the step ends after the file that it
/// reads. A step takes a third of a second, most of which is reading.
const FILE_MS: f64 = 50.0;

/// A program that reads files at random; one call in ten changes a file and makes it durable.
struct User<'a> {
    volume: &'a Volume,
    disk: &'a Disk,
    files: Vec<InodeNo>,
    random: Random,
    buffer: Vec<u8>,
    /// The wait of each call.
    waits: Vec<Nanos>,
}

impl<'a> User<'a> {
    fn new(volume: &'a Volume, disk: &'a Disk) -> Result<User<'a>> {
        let files = files_of(volume, |_| true)?;
        let (random, buffer) = (Random::new(7), vec![0; 64 << 10]);
        Ok(User { volume, disk, files, random, buffer, waits: Vec::new() })
    }

    /// Makes a call that arrived at this time.
    fn call(&mut self, arrival: Nanos) {
        let file = self.files[self.random.index(self.files.len())];
        if self.waits.len().is_multiple_of(10) {
            let at = self.random.below(8000);
            self.volume.write(&Caller::ROOT, file, at, &self.buffer[..1000]).unwrap();
            self.volume.sync_file(file, false).unwrap();
        } else {
            read_all(self.volume, file, &mut self.buffer).unwrap();
        }
        self.waits.push(self.disk.now().since(arrival));
    }

    /// The 99th percentile of the waits, in milliseconds.
    fn p99(&self) -> f64 {
        part_of(&self.waits, 99)
    }
}

/// The given percentile of the waits, in milliseconds.
fn part_of(waits: &[Nanos], percent: usize) -> f64 {
    let mut sorted = waits.to_vec();
    sorted.sort();
    sorted[(sorted.len() * percent).div_ceil(100) - 1].as_ms()
}

/// The bar: within a tenth.
fn assert_near(regrouped: f64, plain: f64) {
    println!("99% within {regrouped:.2} ms, {plain:.2} ms without regrouping");
    assert!(regrouped <= plain * 1.1, "{regrouped} ms, {plain} ms without");
}

fn hdd() -> LibraryPlan {
    let (profile, stroke) = (Profile::Hdd7200, Stroke::Slice);
    LibraryPlan { profile, stroke, size: 512 << 20, ..plan(1) }
}

/// A volume of directories that grew in turn, and whose files were then moved to other directories.
fn scattered(directories: usize, files_each: usize) -> Result<Disk> {
    let disk = hdd().disk(Peer::Cffs)?;
    let name = |file: usize| format!("f{file:03}");
    phase(&disk, ("scatter", 0, 0), |volume| {
        let contents = Contents::new(1, 32 << 10);
        let dirs: Vec<InodeNo> = (0..directories)
            .map(|dir| make(volume, InodeNo::ROOT, &format!("d{dir:02}"), NewKind::Directory))
            .collect::<Result<_>>()?;
        for file in 0..files_each {
            for (number, dir) in dirs.iter().enumerate() {
                let made = make(volume, *dir, &name(file), NewKind::Regular)?;
                let bytes = 2000 + (file * 7 + number * 13) % 30 * 1000;
                volume.write(&Caller::ROOT, made, 0, contents.of(file as u64, bytes))?;
                volume.release(made, 1);
            }
            volume.sync()?;
        }
        for file in 0..files_each {
            for (number, dir) in dirs.iter().enumerate() {
                let to = dirs[(number * 7 + file * 3) % directories];
                let (from, moved) = (name(file), format!("m{number:02}-{file:03}"));
                volume.rename(
                    &Caller::ROOT,
                    *dir,
                    from.as_bytes(),
                    to,
                    moved.as_bytes(),
                    RenameMode::Replace,
                )?;
            }
        }
        dirs.iter().for_each(|dir| volume.release(*dir, 1));
        Ok(())
    })?;
    Ok(disk)
}

/// Opens the volume with a cache that is much smaller than the files.
fn opened(disk: &Disk) -> Result<Volume> {
    let options =
        OpenOptions { atime: AtimeMode::Never, cache_bytes: 16 << 20, ..OpenOptions::default() };
    Ok(Volume::open(disk.clone(), Arc::new(TestClock::default()), options)?)
}

fn look(volume: &Volume) {
    let dir = volume.lookup(InodeNo::ROOT, b"d00").unwrap();
    volume.release(dir.ino, 1);
}

/// Regroups until a call arrives; true if everything was moved before that.
fn regroup_until(
    arrival: Nanos,
    idle: &mut IdleRegrouping,
    caller: &User<'_>,
    moved: &mut RegroupProgress,
) -> bool {
    while caller.disk.now() < arrival {
        let done = idle.run(caller.volume, &mut |_| {
            if caller.disk.now() >= arrival {
                look(caller.volume);
            }
            ControlFlow::Continue(())
        });
        match done.unwrap() {
            Some(done) => *moved += &done,
            None => return true,
        }
    }
    false
}

/// Bursts of calls with pauses between them; returns their number, the 99th percentile of the waits,
/// and the median wait of the first calls. Without a given number, the volume is regrouped in the
/// pauses, and the bursts continue until that is done.
fn bursts(given: Option<u64>) -> Result<(u64, f64, f64)> {
    let disk = scattered(40, 150)?;
    let volume = opened(&disk)?;
    let mut caller = User::new(&volume, &disk)?;
    let mut idle = IdleRegrouping::new(Duration::ZERO);
    let mut moved = RegroupProgress::default();
    let mut bursts = 0;
    loop {
        let mut arrival = disk.now() + Nanos::from_ms(PAUSE_MS);
        let is_over = match given {
            Some(given) => bursts == given,
            None => regroup_until(arrival, &mut idle, &caller, &mut moved),
        };
        if is_over {
            break;
        }
        disk.idle(arrival.since(disk.now()));
        bursts += 1;
        for _ in 0..BURST {
            caller.call(arrival);
            arrival = disk.now();
        }
    }
    assert!(given.is_some() || bursts >= 3 && moved.moved_files > 1000, "{bursts}, {moved:?}");
    let firsts: Vec<Nanos> = caller.waits.iter().copied().step_by(BURST).collect();
    let (p99, first) = (caller.p99(), part_of(&firsts, 50));
    volume.close()?;
    Ok((bursts, p99, first))
}

#[test]
fn a_regrouping_in_idle_time_keeps_no_hundredth_of_calls_waiting() {
    let (count, regrouped, first) = bursts(None).unwrap();
    let (_, plain, plain_first) = bursts(Some(count)).unwrap();
    println!("{count} bursts, the first calls {first:.2} and {plain_first:.2} ms");
    assert_near(regrouped, plain);
    assert!(first <= plain_first + FILE_MS, "{first} ms, {plain_first} ms without");
}

/// Calls without pauses; returns their number and the 99th percentile of the waits. Without a given
/// number, the calls continue until some files were moved.
fn steady(given: Option<usize>) -> Result<(usize, f64)> {
    let disk = scattered(12, 100)?;
    let volume = opened(&disk)?;
    let mut caller = User::new(&volume, &disk)?;
    for _ in 0..given.unwrap_or(0) {
        caller.call(disk.now());
    }
    if given.is_none() {
        let mut turns = Turns::new(&volume, Duration::MAX);
        let mut last = RegroupProgress::default();
        let mut since = disk.now();
        let all = Scattered::Tree(InodeNo::ROOT);
        volume.regroup(all, &RegroupOptions::default(), &mut |progress| {
            // The caller has waited since it arrived, for the read of a file or for the rest of a step.
            caller.call(since);
            if *progress != last {
                last = progress.clone();
                turns.step_ended(&volume);
                while !turns.may_go_on(&volume) {
                    caller.call(disk.now());
                }
            }
            since = disk.now();
            let is_enough = last.moved_bytes >= STEADY_BYTES;
            if is_enough { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        })?;
        assert!(last.moved_bytes >= STEADY_BYTES, "{last:?}");
    }
    let (calls, p99) = (caller.waits.len(), caller.p99());
    volume.close()?;
    Ok((calls, p99))
}

#[test]
fn a_regrouping_delays_fewer_than_one_call_in_a_hundred() {
    let (count, regrouped) = steady(None).unwrap();
    let (_, plain) = steady(Some(count)).unwrap();
    println!("{count} calls");
    assert_near(regrouped, plain);
}
