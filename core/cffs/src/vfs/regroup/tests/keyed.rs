//! Files with keys of their own come together with those of their key.

use super::*;
use crate::clock::Timestamp;
use crate::units::Key;
use crate::vfs::types::{AtimeMode, SetAttr, SetTime, XattrMode};
use crate::vfs::{Caller, SetVolume};

const KEYS: usize = 3;
const TURNS: usize = 40;
const HINT: &[u8] = b"user.cffs.key";

/// Gives a file a hint.
pub(super) fn hint(files: &Files, path: &str, value: String) {
    let ino = files.stat(path).expect("found").ino;
    files
        .volume()
        .set_xattr(&Caller::ROOT, ino, HINT, value.as_bytes(), XattrMode::Create)
        .expect("hinted");
}

/// Makes files in turns, which are a mebibyte apart: another directory had a file between them.
fn make_apart(files: &Files, make: impl Fn(usize)) {
    for turn in 0..TURNS {
        make(turn);
        files.make_dir(format!("/e{turn}")).expect("made");
        files.write(format!("/e{turn}/f"), &vec![1; 1_000_000]).expect("written");
        hint(files, &format!("/e{turn}/f"), format!("between {turn}"));
        files.volume().sync().expect("durable");
    }
    (0..TURNS).for_each(|turn| files.remove_file(format!("/e{turn}/f")).expect("removed"));
    files.volume().sync().expect("durable");
}

/// The key of a file.
pub(super) fn key_of(files: &Files, path: &str) -> Key {
    let ino = files.stat(path).expect("found").ino;
    files.volume().admin().placement_key(ino).expect("found")
}

/// Files of several keys that grew by turns in two directories, and small keys that are far apart.
fn keyed(files: &Files) {
    let write = |path: &str, key: usize, len: usize| {
        files.write(path, b"").expect("made");
        hint(files, path, format!("key {key}"));
        files.write(path, &vec![key as u8; len]).expect("written");
    };
    (0..2).for_each(|dir| files.make_dir(format!("/d{dir}")).expect("made"));
    make_apart(files, |turn| {
        for key in 0..KEYS {
            write(&format!("/d{}/large {key} {turn}", turn % 2), key, 9000);
        }
        write(&format!("/d{}/small {turn}", turn % 2), 100 + turn, 3000);
    });
}

/// The files of a large key, by their paths.
fn large(key: usize) -> impl Fn(&str) -> bool {
    move |path| path.contains(&format!("large {key} "))
}

/// The places of files, in the order of the device.
fn places_of(files: &Files, is_one: impl Fn(&str) -> bool) -> usize {
    let mut runs = Vec::new();
    for entry in files.walk("/").expect("walked").map(|entry| entry.expect("listed")) {
        if is_one(&String::from_utf8_lossy(&entry.path)) {
            runs.extend(files.volume().admin().places(entry.attr.ino).expect("placed"));
        }
    }
    crate::runs::merged(runs, 0).len()
}

#[test]
fn files_with_keys_are_moved_to_those_of_their_key_and_not_moved_again() {
    let device = made(256 << 20, &MkfsOptions::default());
    let files = open(&device, false);
    keyed(&files);
    assert!((0..KEYS).all(|key| places_of(&files, large(key)) > 1));
    assert!(places_of(&files, |path| path.contains("small")) > 20);
    let seen = contents(&files);
    let first = regroup(files.volume());
    assert!(first.accesses_after * 2 < first.accesses_before, "{first:?}");
    assert!(contents(&files) == seen, "what a user sees has changed");
    for key in 0..KEYS {
        assert_eq!(places_of(&files, large(key)), 1, "key {key}");
        let key = key_of(&files, &format!("/d0/large {key} 0"));
        assert!(files.volume().inodes().alloc.key_sizes.has_filled(key), "the size of a key stays");
    }
    let small = places_of(&files, |path| path.contains("small"));
    assert!(small <= 2 + KEYS, "{small} places of small keys");
    let mut asked = 0;
    let mut watch = |_: &RegroupProgress| {
        asked += 1;
        ControlFlow::Continue(())
    };
    let second = files.volume().regroup(Scattered::Tree(InodeNo::ROOT), &MOVE, &mut watch);
    let second = second.expect("regrouped");
    assert_eq!((second.moved_files, second.files), (0, first.files), "{second:?}");
    assert!(asked > second.files, "it can be ended before each file");
    files.close().expect("closed");
    assert_clean(&device);
}

/// Each step can look at `STEP` directories and files: that suffices for a unit of 17 files, but neither for
/// the directories nor for all units.
#[test]
fn regrouping_of_files_with_keys_continues_after_each_step() {
    const STEP: usize = 100;
    let device = made(256 << 20, &MkfsOptions::default());
    // A unit is a sixteenth of the cache.
    let options = OpenOptions { cache_bytes: 16 << 20, ..OpenOptions::default() };
    let opened = crate::open(device.clone(), Arc::new(TestClock::default()), options);
    let files = Files::new(Arc::new(opened.expect("it opens")));
    files.make_dir("/keyed").expect("made");
    make_apart(&files, |turn| {
        let path = format!("/keyed/{turn}");
        files.write(&path, &[turn as u8; 60_000]).expect("written");
        hint(&files, &path, format!("key {turn}"));
    });
    (0..2 * STEP).for_each(|number| files.make_dir(format!("/empty {number}")).expect("made"));
    let places = || places_of(&files, |path| path.starts_with("/keyed/"));
    assert!(places() > TURNS / 2);
    let mut idle = IdleRegrouping::new(Duration::ZERO);
    let mut steps = 0;
    while idle.complete_at.is_none() {
        let mut left = STEP;
        let mut watch = |_: &RegroupProgress| {
            left -= 1;
            if left == 0 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        };
        idle.run(files.volume(), &mut watch).expect("regrouped");
        steps += 1;
        assert!(steps < 20, "it does not end");
    }
    assert!(steps > 3, "it was interrupted");
    assert!(places() <= 3, "a place for each unit");
    assert_eq!(regroup(files.volume()).moved_files, 0);
    files.close().expect("closed");
    assert_clean(&device);
}

/// Files that are apart, half of them in each of two directories, with these attributes.
fn apart(files: &Files, attributes: impl Fn(usize) -> SetAttr) {
    let path = |turn| format!("/d{}/{turn}", turn % 2);
    (0..2).for_each(|dir| files.make_dir(format!("/d{dir}")).expect("made"));
    make_apart(files, |turn| {
        files.write(path(turn), &[turn as u8; 9000]).expect("written");
        hint(files, &path(turn), format!("key {turn}"));
    });
    for turn in 0..TURNS {
        let ino = files.stat(path(turn)).expect("found").ino;
        files.volume().remove_xattr(ino, HINT).expect("removed");
        files.volume().set_attr(&Caller::ROOT, ino, &attributes(turn)).expect("set");
    }
    files.volume().sync().expect("durable");
}

/// Asserts that regrouping brings the files of `apart` together by halves, which are in both directories.
fn come_together_by_halves(files: &Files, half_of: impl Fn(usize) -> usize) {
    let of = |half| {
        let half_of = &half_of;
        move |path: &str| {
            let turn = path.split('/').nth(2).and_then(|turn| turn.parse().ok());
            turn.is_some_and(|turn| half_of(turn) == half)
        }
    };
    assert!((0..2).all(|half| places_of(files, of(half)) > 10));
    regroup(files.volume());
    for half in 0..2 {
        assert_eq!(places_of(files, of(half)), 1, "half {half}");
    }
    assert_eq!(regroup(files.volume()).moved_files, 0);
}

#[test]
fn another_policy_is_followed_by_regrouping() {
    let device = made(256 << 20, &MkfsOptions::default());
    let files = open(&device, false);
    let half_of = |turn: usize| turn / 2 % 2;
    apart(&files, |turn| SetAttr { uid: Some(1000 + half_of(turn) as u32), ..SetAttr::default() });
    let policy = Some(Policy::Owner);
    files.volume().tune(&SetVolume { policy, ..SetVolume::default() }).expect("tuned");
    come_together_by_halves(&files, half_of);
    assert_eq!(key_of(&files, "/d0/0"), key_of(&files, "/d1/1"));
    assert_ne!(key_of(&files, "/d0/0"), key_of(&files, "/d0/2"));
    files.close().expect("closed");
    assert_clean(&device);
}

fn set_attr(files: &Files, path: &str, changes: &SetAttr) {
    let ino = files.stat(path).expect("found").ino;
    files.volume().set_attr(&Caller::ROOT, ino, changes).expect("set");
}

/// A change of the time of access, as by a read.
fn read_at(seconds: i64) -> SetAttr {
    let time = SetTime::To(Timestamp { seconds, nanoseconds: 0 });
    SetAttr { atime: Some(time), ..SetAttr::default() }
}

#[test]
fn files_that_were_read_in_the_same_minute_are_moved_together() {
    let policy = Policy::Access;
    let device = made(256 << 20, &MkfsOptions { policy, ..MkfsOptions::default() });
    let files = open(&device, false);
    let half_of = |turn: usize| turn / 2 % 2;
    apart(&files, |turn| read_at(60 * half_of(turn) as i64));
    come_together_by_halves(&files, half_of);
    files.close().expect("closed");
    assert_clean(&device);
}

#[test]
fn a_read_gives_the_key_of_its_minute_unless_there_is_a_hint() {
    let policy = Policy::Access;
    let device = made(64 << 20, &MkfsOptions { policy, ..MkfsOptions::default() });
    let options = OpenOptions { atime: AtimeMode::Strict, ..OpenOptions::default() };
    let clock = Arc::new(TestClock::default());
    let opened = crate::open(device.clone(), clock, options).expect("it opens");
    let files = Files::new(Arc::new(opened));
    for path in ["/now", "/before", "/hinted"] {
        files.write(path, &[1; 5000]).expect("written");
        let set = if path == "/now" { SetAttr::default() } else { read_at(0) };
        set_attr(&files, path, &set);
    }
    assert_ne!(key_of(&files, "/before"), key_of(&files, "/now"));
    hint(&files, "/hinted", String::from("a hint"));
    let hinted = key_of(&files, "/hinted");
    for path in ["/now", "/before", "/hinted"] {
        assert_eq!(files.read(path).expect("read").len(), 5000);
    }
    assert_eq!(key_of(&files, "/before"), key_of(&files, "/now"));
    assert_eq!(key_of(&files, "/hinted"), hinted);
    files.close().expect("closed");
}

#[test]
fn a_read_that_is_not_recorded_changes_neither_the_key_nor_the_device() {
    let policy = Policy::Access;
    let device = made(64 << 20, &MkfsOptions { policy, ..MkfsOptions::default() });
    let files = open(&device, false);
    files.write("/file", &[1; 5000]).expect("written");
    set_attr(&files, "/file", &read_at(0));
    let key = key_of(&files, "/file");
    files.close().expect("closed");
    for (read_only, atime) in [(false, AtimeMode::Never), (true, AtimeMode::Strict)] {
        let options = OpenOptions { read_only, atime, ..OpenOptions::default() };
        let opened = crate::open(device.clone(), Arc::new(TestClock::default()), options);
        let files = Files::new(Arc::new(opened.expect("it opens")));
        let before = device.counts().writes;
        assert_eq!(files.read("/file").expect("read").len(), 5000);
        files.volume().sync().expect("durable");
        assert_eq!(key_of(&files, "/file"), key);
        assert_eq!(device.counts().writes, before);
        files.close().expect("closed");
    }
}

#[test]
fn a_change_of_permissions_does_not_change_the_key() {
    let device = made(64 << 20, &MkfsOptions::default());
    let files = open(&device, false);
    files.write("/file", &[1; 5000]).expect("written");
    let policy = Some(Policy::Access);
    files.volume().tune(&SetVolume { policy, ..SetVolume::default() }).expect("tuned");
    let key = key_of(&files, "/file");
    set_attr(&files, "/file", &SetAttr { permissions: Some(0o600), ..SetAttr::default() });
    assert_eq!(key_of(&files, "/file"), key);
    set_attr(&files, "/file", &read_at(0));
    assert!(key_of(&files, "/file").is_own());
    files.close().expect("closed");
}
