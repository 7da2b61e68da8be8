//! Reading a directory entry by entry, while other threads rename, create and remove files in it.

use std::collections::BTreeMap;
use std::sync::Arc;

use cffs::clock::TestClock;
use cffs::device::MemoryDevice;
use cffs::error::Error;
use cffs::mkfs::{self, MkfsOptions};
use cffs::units::InodeNo;
use cffs::vfs::{Access, AtimeMode, Caller, OpenOptions, RenameMode, Volume};

use cffs_testing::setup::FILE;

const ROOT: InodeNo = InodeNo::ROOT;

fn volume(options: &MkfsOptions) -> Volume {
    let device = MemoryDevice::new(64 << 20);
    mkfs::make(&device, options).expect("mkfs");
    let (clock, options) = (Arc::new(TestClock::default()), OpenOptions::default());
    Volume::open(Arc::new(device), clock, options).expect("open")
}

fn make(volume: &Volume, name: &str) -> InodeNo {
    let attr = volume.make(&Caller::ROOT, ROOT, name.as_bytes(), &FILE).expect("make");
    volume.release(attr.ino, 1);
    attr.ino
}

fn rename(volume: &Volume, from: &str, to: &str) {
    volume
        .rename(&Caller::ROOT, ROOT, from.as_bytes(), ROOT, to.as_bytes(), RenameMode::Replace)
        .expect("rename");
}

/// Reads to the end, entry by entry, with a change after each; returns the count of each name.
fn read_while(volume: &Volume, mut change: impl FnMut(usize)) -> BTreeMap<InodeNo, usize> {
    let mut seen = BTreeMap::new();
    let mut at = 0;
    for round in 0.. {
        assert!(round < 20_000, "the directory does not end");
        let mut next = None;
        let visit = &mut |entry: &cffs::vfs::DirEntry<'_>| {
            let is_first = next.is_none();
            if is_first {
                next = Some((entry.cookie, entry.ino));
            }
            is_first
        };
        volume.read_dir(ROOT, at, false, visit).expect("read");
        let Some((cookie, ino)) = next else { break };
        at = cookie;
        *seen.entry(ino).or_default() += 1;
        change(round);
    }
    seen
}

/// Volumes with embedded and external inodes, and enough files to fill several sectors.
fn on_volumes_with_files(test: impl Fn(&Volume, &[InodeNo])) {
    for (embed, count) in [(true, 10), (true, 200), (false, 10), (false, 500)] {
        let volume = volume(&MkfsOptions { embed, ..MkfsOptions::default() });
        let files: Vec<InodeNo> = (0..count).map(|i| make(&volume, &format!("a{i:03}"))).collect();
        volume.sync().expect("sync");
        test(&volume, &files);
        volume.close().expect("close");
    }
}

/// Regression: a reader that continued after the last entry found the files again under their new names, for
/// as long as other threads renamed them.
#[test]
fn each_file_comes_once_while_all_are_renamed() {
    on_volumes_with_files(|volume, files| {
        let seen = read_while(volume, |round| {
            let (from, to) = (b'a' + (round % 20) as u8, b'a' + ((round + 1) % 20) as u8);
            if round < 40 {
                for number in 0..files.len() {
                    let (from, to) = (char::from(from), char::from(to));
                    rename(volume, &format!("{from}{number:03}"), &format!("{to}{number:03}"));
                }
            }
        });
        assert_eq!(seen, files.iter().map(|ino| (*ino, 1)).collect());
    });
}

/// A file that is written under another name and renamed over the old one gets its slot.
#[test]
fn a_name_that_is_replaced_comes_once() {
    on_volumes_with_files(|volume, files| {
        let count = files.len();
        let mut names = BTreeMap::new();
        let mut at = 0;
        loop {
            let mut next = None;
            let visit = &mut |entry: &cffs::vfs::DirEntry<'_>| {
                let is_first = next.is_none();
                if is_first {
                    next = Some((entry.cookie, entry.name.to_vec()));
                }
                is_first
            };
            volume.read_dir(ROOT, at, false, visit).expect("read");
            let Some((cookie, name)) = next else { break };
            at = cookie;
            *names.entry(name).or_insert(0) += 1;
            for number in (0..count).step_by(count / 5) {
                make(volume, "new");
                rename(volume, "new", &format!("a{number:03}"));
            }
        }
        let expected = (0..count).map(|i| (format!("a{i:03}").into_bytes(), 1));
        assert_eq!(names, expected.collect());
    });
}

/// A writer that creates and removes files cannot keep a reader busy forever, nor one that only creates
/// files.
#[test]
fn a_reader_reaches_the_end_while_others_make_files() {
    on_volumes_with_files(|volume, files| {
        let seen = read_while(volume, |_| {
            make(volume, "for a moment");
            volume.unlink(&Caller::ROOT, ROOT, b"for a moment").expect("unlink");
        });
        assert!(files.iter().all(|ino| seen.get(ino) == Some(&1)));
        assert!(seen.len() < files.len() + 200, "{} entries", seen.len());

        let seen = read_while(volume, |round| {
            make(volume, &format!("{round} more"));
        });
        assert!(files.iter().all(|ino| seen.get(ino) == Some(&1)));
        assert!(seen.len() < files.len() + 200, "{} entries", seen.len());
    });
}

/// Names that do not fit in their place move after the reader's position.
#[test]
fn names_that_grow_do_not_keep_a_reader_busy() {
    on_volumes_with_files(|volume, files| {
        let mut names: BTreeMap<usize, String> =
            (0..files.len()).map(|i| (i, format!("a{i:03}"))).collect();
        let seen = read_while(volume, |round| {
            let name = names.get_mut(&(round % files.len())).expect("a name");
            if name.len() < 200 {
                let longer = format!("{name}{}", "x".repeat(50));
                rename(volume, name, &longer);
                *name = longer;
            }
        });
        assert!(files.iter().all(|ino| seen.contains_key(ino)));
        assert!(seen.values().all(|times| *times <= 4), "{seen:?}");
        let gone = volume.lookup(ROOT, b"a000").map(|attr| attr.ino);
        assert!(matches!(gone, Err(Error::NotFound)), "{gone:?}");
    });
}

/// The cookies of a directory, in entry order.
fn cookies(volume: &Volume) -> Vec<u64> {
    let mut cookies = Vec::new();
    let visit = &mut |entry: &cffs::vfs::DirEntry<'_>| {
        cookies.push(entry.cookie);
        true
    };
    volume.read_dir(ROOT, 0, false, visit).expect("read");
    cookies
}

/// Regression: 32-bit programs could not list a directory of more than one sector: its cookies were above
/// 2^31.
#[test]
fn cookies_ascend_and_fit_programs_of_32_bits() {
    on_volumes_with_files(|volume, files| {
        let cookies = cookies(volume);
        assert_eq!(cookies.len(), files.len());
        assert!(cookies.is_sorted_by(|a, b| a < b), "{cookies:x?}");
        // Front ends add 2 for the entries `.` and `..`.
        assert!(cookies.iter().all(|cookie| *cookie <= i32::MAX as u64 - 2), "{cookies:x?}");
    });
}

/// Regression: seeking to a position that no listing has returned read as the end of the directory.
#[test]
fn an_invented_position_finds_an_entry() {
    on_volumes_with_files(|volume, files| {
        // In a directory before and after it has grown.
        for round in 0..2 {
            let cookies = cookies(volume);
            let [.., before_last, _] = cookies[..] else { panic!("two files") };
            let step = (before_last / 5000).max(1) as usize;
            for cookie in (0..before_last).step_by(step) {
                let mut next = None;
                let visit = &mut |entry: &cffs::vfs::DirEntry<'_>| {
                    let is_first = next.is_none();
                    next.get_or_insert(entry.cookie);
                    is_first
                };
                volume.read_dir(ROOT, cookie, false, visit).expect("read");
                assert!(next.is_some(), "{round}: nothing after {cookie:x} of {cookies:x?}");
            }
            for number in 0..files.len() {
                make(volume, &format!("{round} {number}"));
            }
        }
    });
}

/// Regression: `O_NOATIME` was ignored.
#[test]
fn an_access_is_noted_unless_the_reader_asks_otherwise() {
    let device = MemoryDevice::new(64 << 20);
    mkfs::make(&device, &MkfsOptions::default()).expect("mkfs");
    let clock = Arc::new(TestClock::default());
    let options = OpenOptions { atime: AtimeMode::Strict, ..OpenOptions::default() };
    let volume = Volume::open(Arc::new(device), clock.clone(), options).expect("open");
    let file = make(&volume, "file");
    volume.write(&Caller::ROOT, file, 0, b"contents").expect("written");
    let mut buf = [0; 8];
    let mut read = |access| {
        let before = [file, ROOT].map(|ino| volume.attr(ino).expect("attr").atime);
        assert_eq!(volume.read_with(file, 0, &mut buf, access).expect("read"), 8);
        volume.read_dir_plus(ROOT, 0, None, access, &mut |_| true).expect("read");
        [file, ROOT].map(|ino| volume.attr(ino).expect("attr").atime) == before
    };
    assert!(read(Access::Unnoted));
    assert!(!read(Access::Noted));
    volume.close().expect("close");
}
