//! Files that churn has scattered are brought together, once, and nothing else changes.

use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::Duration;

use super::{IdleRegrouping, RegroupOptions, RegroupProgress, Scattered, Turns};
use crate::clock::{TestClock, VirtualClock};
use crate::device::{MemoryDevice, TraceDevice};
use crate::error::Error;
use crate::files::{Files, layout};
use crate::format::inode::InodeFlags;
use crate::format::superblock::Policy;
use crate::fsck::{self, CheckOptions};
use crate::mkfs::{self, MkfsOptions};
use crate::units::InodeNo;
use crate::vfs::{Attr, OpenOptions, Volume};

mod keyed;
mod used;

type Device = Arc<TraceDevice<MemoryDevice>>;

const DIRECTORIES: usize = 24;
const FILES: usize = 60;

const MOVE: RegroupOptions = RegroupOptions { dry_run: false, gain: 2 };
const COUNT: RegroupOptions = RegroupOptions { dry_run: true, gain: 2 };

fn made(size_bytes: u64, options: &MkfsOptions) -> Device {
    let device = Arc::new(TraceDevice::new(MemoryDevice::new(size_bytes)));
    mkfs::make(&device, options).expect("made");
    device
}

fn open(device: &Device, read_only: bool) -> Files {
    let options = OpenOptions { read_only, ..OpenOptions::default() };
    let clock = Arc::new(TestClock::default());
    Files::new(Arc::new(crate::open(device.clone(), clock, options).expect("it opens")))
}

/// The volume at a time that the test decides.
fn open_with_clock(device: &Device) -> (Files, Arc<VirtualClock>) {
    let clock = Arc::new(VirtualClock::default());
    let volume = crate::open(device.clone(), clock.clone(), OpenOptions::default());
    (Files::new(Arc::new(volume.expect("it opens"))), clock)
}

/// Sizes of files as in a tree of sources: most are small, a few are not, some have holes or nothing.
fn write(files: &Files, path: &str, number: usize) {
    let len = match number % 40 {
        0 => 300_000,
        1..=4 => 40_000,
        5..=8 => 200,
        9 => 0,
        other => other * 400,
    };
    let contents: Vec<u8> = (0..len).map(|at| (at / 7 + number) as u8).collect();
    files.write(path, &contents).expect("written");
    if number % 40 == 20 {
        files.open(path).expect("opened").write_all_at(50_000, b"after a hole").expect("written");
    }
}

/// Directories that grew by turns, and files that were moved from one to another.
fn age(files: &Files) {
    for directory in 0..DIRECTORIES {
        files.make_dir(format!("/d{directory:02}")).expect("made");
    }
    for file in 0..FILES {
        for directory in 0..DIRECTORIES {
            write(files, &format!("/d{directory:02}/f{file}"), directory * 31 + file * 7);
        }
        files.volume().sync().expect("durable");
    }
    for step in 0..DIRECTORIES * FILES {
        let mixed = step * 7919 % (DIRECTORIES * FILES);
        let (file, directory) = (mixed / DIRECTORIES, mixed % DIRECTORIES);
        let to = (directory * 5 + file * 3) % DIRECTORIES;
        let from = format!("/d{directory:02}/f{file}");
        files.rename(from, format!("/d{to:02}/m{mixed}")).expect("moved");
    }
    for directory in 0..DIRECTORIES {
        let linked = files.read_dir(format!("/d{directory:02}")).expect("listed");
        let name = String::from_utf8_lossy(&linked[0].name).into_owned();
        let other = (directory + 1) % DIRECTORIES;
        let (name, new) =
            (format!("/d{directory:02}/{name}"), format!("/d{other:02}/link{directory}"));
        files.hard_link(name, new).expect("linked");
    }
    files.volume().sync().expect("durable");
}

fn regroup(volume: &Volume) -> RegroupProgress {
    let go_on = &mut |_: &RegroupProgress| ControlFlow::Continue(());
    volume.regroup(Scattered::Tree(InodeNo::ROOT), &MOVE, go_on).expect("regrouped")
}

/// Everything that a user sees of the tree.
fn contents(files: &Files) -> BTreeMap<Vec<u8>, (Attr, Vec<u8>)> {
    let entries = files.walk("/").expect("walked").map(|entry| entry.expect("listed"));
    entries
        .map(|entry| {
            // Space may become less or more where holes and ends of files are.
            let attr = Attr { atime: Default::default(), ..entry.attr };
            let contents = files.read(&entry.path).unwrap_or_default();
            (entry.path, (attr, contents))
        })
        .collect()
}

fn requests(device: &Device) -> u64 {
    layout::survey(device.clone(), InodeNo::ROOT).expect("looked at").requests()
}

/// The places at which the files of directories below the root are.
fn places(device: &Device) -> u64 {
    let layout = layout::survey(device.clone(), InodeNo::ROOT).expect("looked at");
    let below = layout.directories.iter().filter(|dir| !dir.path.is_empty());
    below.map(|dir| dir.places).sum()
}

/// The call of a user.
fn call(volume: &Volume) {
    let dir = volume.lookup(InodeNo::ROOT, b"d00").expect("it is there");
    volume.release(dir.ino, 1);
}

fn assert_clean(device: &Device) {
    let options = CheckOptions { force: true, contents: true, ..CheckOptions::default() };
    let report = fsck::check(&**device, &options, &()).expect("checked");
    assert!(report.problems.is_empty(), "{:?}", report.problems);
}

#[test]
fn an_aged_tree_takes_half_the_requests_and_is_not_moved_again() {
    let device = made(256 << 20, &MkfsOptions::default());
    let files = open(&device, false);
    age(&files);
    files.close().expect("closed");
    let before = requests(&device);
    let files = open(&device, false);
    let seen = contents(&files);
    let first = regroup(files.volume());
    assert!(first.moved_files > FILES as u64, "{first:?}");
    assert!(first.accesses_after * 2 < first.accesses_before, "{first:?}");
    assert_eq!((first.without_room, first.protected, first.damaged), (0, 0, 0));
    assert!(contents(&files) == seen, "what a user sees has changed");
    let second = regroup(files.volume());
    assert_eq!((second.moved_files, second.moved_bytes), (0, 0), "{second:?}");
    files.close().expect("closed");
    assert_clean(&device);
    let after = requests(&device);
    println!("{before} requests before, {after} after; {first:?}");
    assert!(after * 2 <= before, "{before} requests before, {after} after");

    // Nor after the volume was opened again, and a little was changed.
    let files = open(&device, false);
    assert!(contents(&files) == seen, "what a user sees has changed on the device");
    for directory in 0..DIRECTORIES {
        write(&files, &format!("/d{directory:02}/new"), directory);
    }
    assert_eq!(regroup(files.volume()).moved_files, 0);
    files.close().expect("closed");
    assert_clean(&device);
}

#[test]
fn a_dry_run_counts_and_changes_nothing() {
    let device = made(256 << 20, &MkfsOptions::default());
    let files = open(&device, false);
    age(&files);
    files.close().expect("closed");
    let files = open(&device, true);
    let before = device.counts();
    let go_on = &mut |_: &RegroupProgress| ControlFlow::Continue(());
    let dry = files.volume().regroup(Scattered::Tree(InodeNo::ROOT), &COUNT, go_on);
    let dry = dry.expect("looked at");
    assert_eq!((device.counts() - before).writes, 0);
    drop(files);
    let files = open(&device, false);
    let real = regroup(files.volume());
    assert_eq!(RegroupProgress { damaged: 0, ..dry }, real);
    files.close().expect("closed");
}

#[test]
fn files_that_are_read_together_are_moved_together() {
    let device = made(256 << 20, &MkfsOptions::default());
    let files = open(&device, false);
    age(&files);
    let walk = files.walk("/").expect("walked").map(|entry| entry.expect("listed"));
    let traced: Vec<InodeNo> = walk.skip(3).step_by(11).map(|entry| entry.attr.ino).collect();
    let go_on = &mut |_: &RegroupProgress| ControlFlow::Continue(());
    let mut run = || files.volume().regroup(Scattered::Files(&traced), &MOVE, go_on).expect("done");
    let first = run();
    assert!(
        first.moved_files > 20 && first.accesses_after * 2 < first.accesses_before,
        "{first:?}"
    );
    assert_eq!(run().moved_files, 0);
    files.close().expect("closed");
    assert_clean(&device);
}

#[test]
fn unchangeable_files_stay_and_are_counted() {
    let device = made(256 << 20, &MkfsOptions::default());
    let files = open(&device, false);
    age(&files);
    let items = files.read_dir("/d03").expect("listed");
    let kept: Vec<InodeNo> =
        items.iter().filter(|item| item.attr.size > 1000).map(|item| item.attr.ino).collect();
    for ino in &kept {
        files.volume().set_flags(*ino, InodeFlags::IMMUTABLE).expect("protected");
    }
    files.volume().sync().expect("durable");
    let places = || -> Vec<_> {
        kept.iter().map(|ino| files.volume().admin().places(*ino).expect("placed")).collect()
    };
    let before = places();
    let progress = regroup(files.volume());
    assert_eq!(progress.protected, kept.len() as u64);
    assert!(progress.moved_files > 0 && places() == before);
    files.close().expect("closed");

    let files = open(&device, true);
    let go_on = &mut |_: &RegroupProgress| ControlFlow::Continue(());
    let refused = files.volume().regroup(Scattered::Tree(InodeNo::ROOT), &MOVE, go_on);
    assert!(matches!(refused, Err(Error::ReadOnly)), "{refused:?}");

    let ungrouped = MkfsOptions { policy: Policy::None, ..MkfsOptions::default() };
    let files = open(&made(64 << 20, &ungrouped), false);
    let refused = files.volume().regroup(Scattered::Tree(InodeNo::ROOT), &MOVE, go_on);
    assert!(matches!(refused, Err(Error::Invalid(_))), "{refused:?}");
}

#[test]
fn a_full_volume_stays_as_it_is() {
    let device = made(40 << 20, &MkfsOptions::default());
    let files = open(&device, false);
    age(&files);
    let mut number = 0;
    while files.write(format!("/filler{number}"), &[1; 200_000]).is_ok() {
        number += 1;
    }
    for last in [number - 1, number] {
        files.remove_file(format!("/filler{last}")).expect("removed");
    }
    files.volume().sync().expect("durable");
    let seen = contents(&files);
    let progress = regroup(files.volume());
    assert!(progress.without_room > 0, "{progress:?}");
    assert!(contents(&files) == seen, "what a user sees has changed");
    files.write("/d00/goes-on", b"tiny").expect("the volume stays writable");
    files.close().expect("closed");
    assert_clean(&device);
}

/// The space of a full volume is in pieces: no run is as long as a unit, but many are worth an access.
#[test]
fn where_no_run_is_long_enough_shorter_ones_serve() {
    let device = made(256 << 20, &MkfsOptions::default());
    let files = open(&device, false);
    age(&files);
    // Three quarters full, and what is free is in pieces of 2.6 MB.
    let filler = vec![1; 2_600_000];
    let mut number = 0;
    while files.write(format!("/filler{number}"), &filler).is_ok() {
        number += 1;
    }
    files.remove_file(format!("/filler{number}")).expect("removed");
    for number in (0..number).step_by(4) {
        files.remove_file(format!("/filler{number}")).expect("removed");
    }
    files.close().expect("closed");
    let before = places(&device);
    let files = open(&device, false);
    let seen = contents(&files);
    let first = regroup(files.volume());
    assert!(contents(&files) == seen, "what a user sees has changed");
    let again = regroup(files.volume());
    files.close().expect("closed");
    assert_clean(&device);
    let after = places(&device);
    println!("{before} places before, {after} after; {first:?}, {again:?}");
    assert!(first.moved_files > FILES as u64, "{first:?}");
    assert!(after * 2 <= before, "{before} places before, {after} after");
    assert_eq!(again.moved_files, 0, "{again:?}");
}

#[test]
fn a_regrouping_can_be_ended_and_runs_concurrently_with_changes() {
    let device = made(256 << 20, &MkfsOptions::default());
    let files = open(&device, false);
    age(&files);
    let mut steps = 0;
    let stop = &mut |_: &RegroupProgress| {
        steps += 1;
        if steps == 3 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    };
    let progress = files.volume().regroup(Scattered::Tree(InodeNo::ROOT), &MOVE, stop);
    assert!(progress.expect("ended").directories < DIRECTORIES as u64);

    let other = files.clone();
    let writer = std::thread::spawn(move || {
        for round in 0..200_usize {
            let directory = round % DIRECTORIES;
            let items = other.read_dir(format!("/d{directory:02}")).expect("listed");
            let name = String::from_utf8_lossy(&items[round % items.len()].name).into_owned();
            let path = format!("/d{directory:02}/{name}");
            match round % 4 {
                0 => other.remove_file(&path).expect("removed"),
                1 => write(&other, &format!("/d{directory:02}/new{round}"), round),
                2 => write(&other, &path, round),
                _ => other.volume().sync().expect("durable"),
            }
        }
    });
    while !writer.is_finished() {
        regroup(files.volume());
    }
    writer.join().expect("the writer found no error");
    files.close().expect("closed");
    assert_clean(&device);
}

/// Regression: the regrouping ended with the error "not a directory".
#[test]
fn a_regrouping_passes_a_directory_whose_number_a_file_got_meanwhile() {
    let device = made(64 << 20, &MkfsOptions::default());
    let files = open(&device, false);
    for directory in 0..4 {
        files.make_dir(format!("/d{directory}")).expect("made");
        write(&files, &format!("/d{directory}/file"), 11);
    }
    files.volume().sync().expect("durable");
    let last = files.stat("/d3").expect("found").ino;
    let mut is_replaced = false;
    let replace = &mut |progress: &RegroupProgress| {
        if progress.directories > 0 && !is_replaced {
            is_replaced = true;
            files.remove_file("/d3/file").expect("removed");
            files.remove_dir("/d3").expect("removed");
            // Numbers are given in turn, and freed ones again after an epoch.
            let makes_it = |_| {
                files.volume().sync().expect("durable");
                write(&files, "/file", 11);
                let is_it = files.stat("/file").expect("found").ino == last;
                if !is_it {
                    files.remove_file("/file").expect("removed");
                }
                is_it
            };
            assert!((0..2000).any(makes_it), "the number is used again");
        }
        ControlFlow::Continue(())
    };
    let progress = files.volume().regroup(Scattered::Tree(InodeNo::ROOT), &MOVE, replace);
    assert_eq!(progress.expect("complete").directories, 4);
    assert!(is_replaced);
    files.close().expect("closed");
    assert_clean(&device);
}

/// The bar: a caller waits for the step under way while the volume is regrouped, and for no other.
#[test]
fn a_volume_that_is_used_is_not_regrouped() {
    let device = made(256 << 20, &MkfsOptions::default());
    let files = open(&device, false);
    age(&files);
    let volume = files.volume();
    let mut idle = IdleRegrouping::new(Duration::ZERO);
    let mut steps = 0;
    let mut progress = RegroupProgress::default();
    // Somebody calls whenever files have been moved.
    for _ in 0..100 {
        let mut after_call = 0;
        let mut called = false;
        let done = idle.run(volume, &mut |progress| {
            after_call += u64::from(called);
            if progress.moved_files > 0 {
                steps += 1;
                called = true;
                call(volume);
            }
            ControlFlow::Continue(())
        });
        assert_eq!(after_call, 0, "no step begins after a call");
        let Some(done) = done.expect("regrouped") else { continue };
        progress += &done;
        if idle.complete_at.is_some() {
            break;
        }
    }
    assert!(steps > 2, "it goes on where it was ended: {progress:?}");
    assert!(idle.complete_at.is_some(), "it comes to an end");
    assert!(progress.moved_files > 500, "{progress:?}");
    let again = |idle: &mut IdleRegrouping| {
        idle.run(volume, &mut |_| ControlFlow::Continue(())).expect("regrouped")
    };
    assert_eq!(again(&mut idle), None, "nothing has changed");
    // Moved files are not moved back, whichever files are examined again.
    files.write("/one more", b"a change").expect("written");
    let moved = again(&mut idle).map(|progress| progress.moved_files);
    assert_eq!(moved, Some(0));
    files.close().expect("closed");
}

/// A step can be given up while it reads: a caller waits for one file.
#[test]
fn a_step_that_has_only_read_is_given_up_for_a_caller() {
    let device = made(256 << 20, &MkfsOptions::default());
    let files = open(&device, false);
    age(&files);
    files.close().expect("closed");
    let files = open(&device, false);
    let volume = files.volume();
    let mut idle = IdleRegrouping::new(Duration::ZERO);
    let writes_before = device.counts().writes;
    let mut last = RegroupProgress::default();
    let mut read = 0;
    let done = idle.run(volume, &mut |progress| {
        // While files are read, nothing else is done.
        read = if *progress == last { read + 1 } else { 0 };
        last = progress.clone();
        if read == 5 {
            call(volume);
        }
        ControlFlow::Continue(())
    });
    assert_eq!(read, 5, "no other file is read after a call");
    assert_eq!(done.expect("regrouped").map(|done| done.moved_files), Some(0));
    assert_eq!(device.counts().writes, writes_before);
    // The unit is still to be moved.
    let mut moved = 0;
    while idle.complete_at.is_none() {
        let done = idle.run(volume, &mut |_| ControlFlow::Continue(())).expect("regrouped");
        moved += done.map_or(0, |done| done.moved_files);
    }
    assert!(moved > 500, "{moved} files were moved");
    assert_eq!(regroup(volume).moved_files, 0);
    files.close().expect("closed");
    assert_clean(&device);
}

#[test]
fn callers_have_their_turn_after_each_step() {
    let device = made(256 << 20, &MkfsOptions::default());
    let (files, clock) = open_with_clock(&device);
    age(&files);
    let volume = files.volume();
    let requests = || device.counts().reads + device.counts().writes;
    let mut turns = Turns::new(volume, Duration::MAX);
    let mut before = requests();
    let (mut last, mut steps) = (RegroupProgress::default(), 0);
    let progress = volume.regroup(Scattered::Tree(InodeNo::ROOT), &MOVE, &mut |progress| {
        if *progress == last {
            return ControlFlow::Continue(());
        }
        last = progress.clone();
        let made = requests() - before;
        turns.step_ended(volume);
        let mut calls = 0;
        while !turns.may_go_on(volume) {
            call(volume);
            calls += 1;
        }
        steps += u64::from(calls > 0);
        assert!(calls >= 200 * made, "{calls} calls after {made} requests");
        before = requests();
        ControlFlow::Continue(())
    });
    assert!(progress.expect("regrouped").moved_files > 500 && steps > 2, "{steps} steps");
    // Without callers, nothing waits.
    let mut turns = Turns::new(volume, Duration::from_secs(3));
    files.write("/more", &[1; 9000]).expect("written");
    volume.sync().expect("durable");
    turns.step_ended(volume);
    for passed in [0, 1, 2] {
        assert!(!turns.may_go_on(volume), "after {passed} s");
        clock.advance(Duration::from_secs(1));
    }
    assert!(turns.may_go_on(volume));
    files.close().expect("closed");
}

#[test]
fn a_volume_is_not_regrouped_before_it_was_idle_for_the_requested_time() {
    let device = made(64 << 20, &MkfsOptions::default());
    let (files, clock) = open_with_clock(&device);
    files.write("/f", &[1; 9000]).expect("written");
    let mut idle = IdleRegrouping::new(Duration::from_secs(3));
    let mut has_run_after = |seconds| {
        clock.advance(Duration::from_secs(seconds));
        let run = idle.run(files.volume(), &mut |_| ControlFlow::Continue(()));
        run.expect("no error").is_some()
    };
    assert!(!has_run_after(3600), "it counts from the last call");
    assert!(!has_run_after(2));
    files.write("/g", &[1; 9000]).expect("written");
    assert!(!has_run_after(1));
    assert!(!has_run_after(2));
    assert!(has_run_after(1));
}
