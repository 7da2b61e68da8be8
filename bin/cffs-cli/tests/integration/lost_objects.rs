//! Objects of a volume in a store that are given up: any of them, and however they were damaged.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use crate::harness::{Scratch, succeed};

const NAMES: [&str; 3] = ["a", "b", "c"];
const REPAIRED: i32 = 1;
const LEFT: i32 = 4;
const REFUSED: i32 = 8;
/// The distance of the changed bytes of an object: one in each sealed frame.
const FRAME: usize = 64 << 10;
/// Shorter records have no bytes of the volume.
const RECORD_MIN: usize = 512;

/// A volume in a directory, with files in several objects.
struct Volume {
    scratch: Scratch,
    url: String,
    is_encrypted: bool,
    /// All objects as they were written.
    whole: BTreeMap<PathBuf, Vec<u8>>,
}

/// The damage to an object.
#[derive(Clone, Copy, Debug)]
enum Damage {
    Missing,
    /// Only its first bytes are left.
    Cut,
    /// The byte at this position is changed.
    Changed(usize),
}

/// The files below a directory, with their contents.
fn files_below(directory: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    let mut all = BTreeMap::new();
    for entry in fs::read_dir(directory).expect("listed") {
        let path = entry.expect("listed").path();
        if path.is_dir() {
            all.extend(files_below(&path));
        } else {
            let bytes = fs::read(&path).expect("read");
            all.insert(path, bytes);
        }
    }
    all
}

/// The contents of a file.
fn text(number: usize, name: &str) -> String {
    format!("{name} {number} ").repeat(2000)
}

fn said(output: &Output) -> String {
    [&output.stdout[..], &output.stderr[..]].map(String::from_utf8_lossy).concat()
}

impl Volume {
    fn new(is_encrypted: bool) -> Volume {
        let scratch = Scratch::new();
        let path = scratch.path();
        fs::write(path.join("key"), "0123456789abcdef".repeat(4)).expect("written");
        fs::set_permissions(path.join("key"), PermissionsExt::from_mode(0o600)).expect("set");
        let url = format!("file://{}/volume", path.display());
        let mut volume = Volume { scratch, url, is_encrypted, whole: BTreeMap::new() };
        let mut mkfs = volume.cffs(&["mkfs", "-q", "--size", "1G"]);
        if is_encrypted {
            mkfs.arg("--encrypt");
        }
        succeed(mkfs.arg(&volume.url));
        for number in 0..3 {
            let source = volume.scratch.path().join(format!("source{number}"));
            fs::create_dir(&source).expect("made");
            for name in NAMES {
                fs::write(source.join(name), text(number, name)).expect("written");
            }
            let to = format!("/in{number}");
            succeed(volume.cffs(&["import", "-q", &volume.url]).arg(&source).arg(to));
        }
        volume.whole = files_below(&volume.directory());
        volume
    }

    fn directory(&self) -> PathBuf {
        self.scratch.path().join("volume")
    }

    fn cffs(&self, arguments: &[&str]) -> Command {
        let mut command = self.scratch.cffs([]);
        if self.is_encrypted {
            command.arg("--key-file").arg(self.scratch.path().join("key"));
        }
        command.args(arguments);
        command
    }

    fn fsck(&self, options: &[&str]) -> (i32, String) {
        let output = self.cffs(&["fsck"]).args(options).arg(&self.url).output().expect("run");
        (output.status.code().expect("not killed"), said(&output))
    }

    /// The objects with bytes of the volume, the oldest first.
    fn with_bytes(&self) -> Vec<PathBuf> {
        let is_of_log = |path: &Path| path.parent().is_some_and(|folder| folder.ends_with("log"));
        let objects = self.whole.iter();
        let long = objects.filter(|(path, bytes)| is_of_log(path) && bytes.len() > RECORD_MIN);
        long.map(|(path, _)| path.clone()).collect()
    }

    fn damage(&self, object: &Path, damage: Damage) {
        let mut bytes = self.whole[object].clone();
        match damage {
            Damage::Missing => return fs::remove_file(object).expect("removed"),
            Damage::Cut => bytes.truncate(RECORD_MIN),
            Damage::Changed(at) => bytes[at] ^= 1,
        }
        fs::write(object, bytes).expect("written");
    }

    /// Puts the volume back as it was.
    fn restore(&self) {
        fs::remove_dir_all(self.directory()).expect("removed");
        for (path, bytes) in &self.whole {
            fs::create_dir_all(path.parent().expect("a folder")).expect("made");
            fs::write(path, bytes).expect("written");
        }
    }

    /// The number of files that can be read, wherever they are. Each is as it was written.
    fn readable(&self) -> usize {
        let target = self.scratch.path().join("exported");
        // It fails if a file cannot be read, and copies the others.
        let mut export = self.cffs(&["export", "-q", &self.url, "/"]);
        export.arg(&target).output().expect("run");
        let written: Vec<String> = (0..3).flat_map(|n| NAMES.map(|name| text(n, name))).collect();
        let found = files_below(&target);
        fs::remove_dir_all(&target).expect("removed");
        let is_right = |bytes: &&Vec<u8>| written.iter().any(|text| text.as_bytes() == **bytes);
        found.values().filter(is_right).count()
    }

    /// Removes all files, and checks that the volume then needs no object that was damaged.
    fn assert_clean_without_files(&self, what: &str) {
        let empty = self.scratch.path().join("empty");
        fs::create_dir_all(&empty).expect("made");
        let version = format!("{}@empty", self.url);
        succeed(self.cffs(&["publish", "-q"]).arg(&empty).arg(&version));
        let (code, text) = self.fsck(&["-n", "--contents"]);
        assert_eq!(code, 0, "{what}: {text}");
    }

    /// Checks the volume after a repair that ended with this code.
    fn assert_given_up(&self, code: i32, what: &str) {
        let (after, text) = self.fsck(&["-n", "--contents"]);
        match code {
            REPAIRED => assert_eq!(after, 0, "{what}: {text}"),
            LEFT => {
                assert_eq!(after, REFUSED, "{what}: {text}");
                self.assert_clean_without_files(what);
            }
            code => panic!("{what}: {code}"),
        }
    }
}

/// Regression: no command opened a volume without the object of its superblock, which is the newest one, and
/// no check gave that object up.
#[test]
fn the_object_of_the_superblock_is_given_up() {
    for is_encrypted in [false, true] {
        let volume = Volume::new(is_encrypted);
        let newest = volume.with_bytes().pop().expect("an object");
        let name = newest.file_name().expect("a name").to_string_lossy().into_owned();
        let len = volume.whole[&newest].len();
        let changed = [len / 2, len - 1].map(Damage::Changed);
        let mut damages = vec![Damage::Missing, Damage::Cut];
        damages.extend(changed.into_iter().filter(|_| is_encrypted));
        let ways = damages.into_iter().flat_map(|damage| [(damage, false), (damage, true)]);
        for (damage, contents) in ways {
            let what = format!("encrypted {is_encrypted}, {damage:?}, contents {contents}");
            let fsck = |options: &[&str]| match contents {
                true => volume.fsck(&[options, &["--contents"]].concat()),
                false => volume.fsck(options),
            };
            volume.damage(&newest, damage);
            for options in [["-n", "-f"], ["-p", "-f"], ["-y", "-f"]] {
                let (code, text) = fsck(&options);
                assert_eq!(code, REFUSED, "{what}, {options:?}: {text}");
                assert!(text.contains(&name) && text.contains("-y instead of -n"), "{text}");
            }
            let (code, text) = fsck(&["-n", "--without-objects"]);
            assert_eq!(code, LEFT, "{what}: {text}");
            assert!(text.contains("CF0101") && text.contains(&name), "{what}: {text}");
            let (code, text) = fsck(&["-y", "--without-objects"]);
            assert!(text.contains("CF0101") && text.contains(&name), "{what}: {text}");
            let readable = volume.readable();
            assert!(readable >= 6, "{what}: {readable} files are left: {text}");
            volume.assert_given_up(code, &what);
            volume.restore();
        }
        assert_eq!(volume.readable(), 9);
    }
}

/// Regression: a changed object of an encrypted volume stayed in the map of a repaired volume with its
/// readable bytes, and each later check of contents refused the volume.
#[test]
fn a_repaired_volume_needs_no_object_that_was_changed() {
    let volume = Volume::new(true);
    let mut complete = 0;
    for object in volume.with_bytes() {
        for at in (0..volume.whole[&object].len()).skip(100).step_by(FRAME) {
            for options in [&["--contents"][..], &[]] {
                let what = format!("{} changed at {at}, {options:?}", object.display());
                volume.damage(&object, Damage::Changed(at));
                // The volume may not need the object, and without --contents, its change is not noticed if no
                // metadata is there.
                let is_noticed = volume.fsck(&[options, &["-n"]].concat()).0 == REFUSED;
                let (code, text) = volume.fsck(&[options, &["-y", "--without-objects"]].concat());
                if is_noticed {
                    assert!(matches!(code, REPAIRED | LEFT), "{what}: {code} {text}");
                    volume.assert_given_up(code, &what);
                    complete += usize::from(code == REPAIRED);
                } else {
                    assert_eq!(code, 0, "{what}: {text}");
                }
                volume.restore();
            }
        }
    }
    assert!(complete > 5, "{complete}");
}
