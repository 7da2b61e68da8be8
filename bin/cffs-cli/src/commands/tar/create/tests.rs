use std::collections::BTreeMap;

use cffs::vfs::types::{NewFile, NewKind};

use super::*;
use crate::mirror::tests::{deep, volume};

/// The most lookups per directory and its file.
const LOOKUPS_MAX: u64 = 3;

/// Regression: each file was looked up by its whole path, which took time quadratic in the depth.
#[test]
fn the_work_for_a_file_does_not_depend_on_its_depth() {
    for depth in [100, 400] {
        let files = deep(depth);
        let before = files.volume().stats().lookups;
        let options = Options { xattrs: true, holes: true };
        assert_eq!(archive(&files, b"/", options, io::sink()).expect("written"), 0);
        let lookups = files.volume().stats().lookups - before;
        assert!(lookups <= LOOKUPS_MAX * depth as u64, "{lookups} lookups at a depth of {depth}");
    }
}

const NEW: NewFile<'_> =
    NewFile { kind: NewKind::Regular, permissions: 0o644, uid: 0, gid: 0, times: None };
/// Names around the lengths of a header's fields, as text and not as text.
const NAMES: [(u8, usize); 10] = [
    (b'n', 99),
    (b'n', 100),
    (b'n', 101),
    (b'n', 155),
    (b'n', 254),
    (b'n', 255),
    (b'\xff', 1),
    (b'\xdc', 100),
    (b'\xff', 101),
    (b'\xff', 255),
];
const TARGETS: [&[u8]; 12] =
    [b"/", b"//", b"a//b", b"./a", b"a/.", b"a/", b".", b"..", b"/a/../b", b" ", b"a\\b", b"\xff/"];

/// The names in an archive, each with its link target.
fn names_in(bytes: &[u8]) -> BTreeMap<Vec<u8>, Vec<u8>> {
    let mut archive = tar_wire::Archive::new(bytes);
    let mut names = BTreeMap::new();
    while let Some(entry) = archive.next_entry().expect("an archive") {
        assert_eq!(names.insert(entry.path, entry.link), None);
    }
    names
}

/// Regression: an archive ended at a path of more than 100 bytes with a first byte that is not UTF-8, and had
/// other targets for links such as `a//b`.
#[test]
fn an_archive_has_all_names_and_targets_byte_for_byte() {
    let long = [99, 100, 101, 255, 4095].map(|len| [vec![b'x'; len], vec![b'\xff'; len]]);
    let targets = TARGETS.into_iter().map(<[u8]>::to_vec).chain(long.into_iter().flatten());
    let targets: Vec<Vec<u8>> = targets.collect();
    let files = volume();
    let mut expected = BTreeMap::from([(b".".to_vec(), Vec::new())]);
    for dir in [&b""[..], b"d", b"\xdcbung", &[b'\xff'; 100]] {
        let mut top = files.root();
        let mut prefix = Vec::new();
        if !dir.is_empty() {
            top = top.make(dir, &NewFile { kind: NewKind::Directory, ..NEW }).expect("made");
            expected.insert(dir.to_vec(), Vec::new());
            prefix = [dir, b"/"].concat();
        }
        let path = |name: &[u8]| [&prefix, name].concat();
        for (byte, len) in NAMES {
            let name = vec![byte; len];
            top.make(&name, &NEW).expect("made");
            expected.insert(path(&name), Vec::new());
        }
        for (number, target) in targets.iter().enumerate() {
            let name = format!("link {number}").into_bytes();
            top.make(&name, &NewFile { kind: NewKind::Symlink(target), ..NEW }).expect("made");
            expected.insert(path(&name), target.clone());
        }
    }
    let mut bytes = Vec::new();
    let options = Options { xattrs: true, holes: true };
    assert_eq!(archive(&files, b"/", options, &mut bytes).expect("written"), 0);
    assert!(names_in(&bytes) == expected);
}

#[test]
fn a_hard_link_to_a_name_of_any_length_has_this_name() {
    for (byte, len) in NAMES {
        let (files, name) = (volume(), vec![byte; len]);
        let file = files.root().make(&name, &NEW).expect("made");
        // The order of the names in the archive is that of the directory.
        files.root().link(&file, b"again").expect("linked");
        let mut bytes = Vec::new();
        let options = Options { xattrs: true, holes: true };
        assert_eq!(archive(&files, b"/", options, &mut bytes).expect("written"), 0);
        let mut names = names_in(&bytes);
        let links = (names.remove(&name), names.remove(&b"again"[..]));
        let (first, second) = (Some(Vec::new()), Some(b"again".to_vec()));
        assert!(links == (first.clone(), Some(name)) || links == (second, first), "{links:?}");
    }
}
