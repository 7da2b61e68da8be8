//! The search of the whole device finds directories that nothing refers to any more.

use std::collections::BTreeMap;
use std::io::IoSlice;

use super::image::{Image, Seen, walk};
use super::volumes::{ROOT, contents, make, new_file, open, run};
use crate::device::{BlockDevice, MemoryDevice};
use crate::error::Error;
use crate::fsck::{CheckOptions, Code, Repair, Report, check};
use crate::mkfs::MkfsOptions;
use crate::units::InodeNo;
use crate::vfs::{Caller, NewKind};

pub(super) fn salvage(device: &MemoryDevice, repair: Repair) -> Report {
    let options = CheckOptions { repair, salvage: true, contents: true, ..CheckOptions::default() };
    check(device, &options, &()).expect("check")
}

fn assert_clean(device: &MemoryDevice) {
    let report = run(device, Repair::No);
    assert!(report.problems.is_empty() && report.consistent, "{:#?}", report.problems);
}

/// The files of the volume below the directories in lost+found, by path.
fn seen_in_lost_found(image: &Image) -> BTreeMap<String, Seen> {
    let volume = open(&image.device);
    let seen = walk(&volume, &mut BTreeMap::new());
    volume.close().expect("close");
    seen.into_iter().filter(|(path, _)| path.starts_with("/lost+found/")).collect()
}

fn zero(image: &Image, offset: u64, len: usize) {
    image.device.write_at(offset, &[IoSlice::new(&vec![0; len])]).expect("write");
}

/// Thesis 2.1.5: an entry has the inode or the place of its sector.
#[test]
fn paths_are_walked_without_the_locator_table() {
    for embed in [true, false] {
        let image = Image::new(&MkfsOptions { embed, ..MkfsOptions::default() });
        let table = image.with(|c| {
            let runs = c.round.locator.extents.iter().map(|extent| c.meta.run_place(extent.run()));
            runs.map(|place| (place.offset, place.len)).collect::<Vec<_>>()
        });
        table.into_iter().for_each(|(offset, len)| zero(&image, offset, len));
        let volume = open(&image.device);
        assert_eq!(walk(&volume, &mut BTreeMap::new()), image.seen);
        volume.close().expect("close");
        let by_number = open(&image.device).find(image.ino("/dir"));
        assert!(matches!(by_number, Err(Error::Corruption(_))), "{by_number:?}");
    }
}

#[test]
fn directories_are_found_without_root_and_locator_table() {
    let image = Image::new(&MkfsOptions::default());
    let places = image.with(|c| {
        let root = c.meta.inventory.containers.get(&InodeNo::ROOT).expect("the root").map.clone();
        let locator = c.round.locator.extents.clone();
        let runs = root.into_iter().chain(locator).map(|extent| extent.run());
        runs.map(|run| c.meta.run_place(run))
            .map(|place| (place.offset, place.len))
            .collect::<Vec<_>>()
    });
    for (offset, len) in places {
        zero(&image, offset, len);
    }
    let found = salvage(&image.device, Repair::No);
    let lost = |report: &Report| {
        report.problems.iter().filter(|problem| problem.code == Code::LostDirectory).count()
    };
    assert!(lost(&found) >= 2, "{:#?}", found.problems);
    assert_eq!(found.write_requests, 0);
    let repaired = salvage(&image.device, Repair::Yes);
    assert_eq!((repaired.exit_code(), lost(&repaired)), (1, lost(&found)));
    assert_clean(&image.device);

    let seen = seen_in_lost_found(&image);
    for top in ["/dir", "/links"] {
        let home = format!("/lost+found/#{}", image.ino(top));
        let below = image.seen.iter().filter(|(path, _)| path.starts_with(&format!("{top}/")));
        let mut files = 0;
        for (path, was) in below {
            let now = seen.get(&path.replacen(top, &home, 1));
            assert_eq!(now, Some(was), "{path}");
            files += 1;
        }
        assert!(files > 0, "{top}");
    }
}

#[test]
fn a_deleted_directory_comes_back() {
    let device = make(&MkfsOptions::default());
    let volume = open(&device);
    let dir =
        volume.make(&Caller::ROOT, ROOT, b"dir", &new_file(NewKind::Directory)).expect("made").ino;
    let inner =
        volume.make(&Caller::ROOT, dir, b"inner", &new_file(NewKind::Directory)).expect("made").ino;
    let file =
        volume.make(&Caller::ROOT, inner, b"file", &new_file(NewKind::Regular)).expect("made").ino;
    volume.write(&Caller::ROOT, file, 0, &contents(1, 9000)).expect("written");
    volume.close().expect("closed");

    let volume = open(&device);
    volume.unlink(&Caller::ROOT, inner, b"file").expect("gone");
    volume.remove_dir(&Caller::ROOT, dir, b"inner").expect("gone");
    volume.remove_dir(&Caller::ROOT, ROOT, b"dir").expect("gone");
    volume.close().expect("closed");
    assert_clean(&device);

    let report = salvage(&device, Repair::Yes);
    assert_eq!(report.exit_code(), 1, "{:#?}", report.problems);
    assert_clean(&device);
    let volume = open(&device);
    let mut at = volume.lookup(ROOT, b"lost+found").expect("there").ino;
    for name in [format!("#{dir}"), String::from("inner"), String::from("file")] {
        at = volume.lookup(at, name.as_bytes()).expect("there").ino;
    }
    let mut bytes = vec![0; 9000];
    volume.read(at, 0, &mut bytes).expect("read");
    assert_eq!(bytes, contents(1, 9000));
    volume.close().expect("closed");
}

#[test]
fn nothing_is_found_where_nothing_is_lost() {
    let image = Image::new(&MkfsOptions::default());
    let report = salvage(&image.device, Repair::Yes);
    assert!(report.problems.is_empty(), "{:#?}", report.problems);
}

#[test]
fn old_sectors_that_contain_each_other_are_reached_by_one_of_them() {
    let inos = |numbers: &[u64]| numbers.iter().map(|ino| InodeNo(*ino)).collect();
    let children: BTreeMap<InodeNo, std::collections::BTreeSet<InodeNo>> = BTreeMap::from([
        (InodeNo(20), inos(&[21])),
        (InodeNo(21), inos(&[20, 22])),
        (InodeNo(22), inos(&[])),
        (InodeNo(30), inos(&[31, 99])),
        (InodeNo(31), inos(&[])),
    ]);
    assert_eq!(crate::fsck::salvage::tops(&children), [InodeNo(30), InodeNo(20)]);
}
