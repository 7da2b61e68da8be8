//! Volumes without encryption whose objects were changed: the right length, and wrong bytes.

use std::collections::BTreeSet;
use std::fs;
use std::path::PathBuf;
use std::process::Output;

use crate::harness::{Scratch, can_mount, fail, succeed};

const CODE_LEFT: i32 = 4;
const CODE_REFUSED: i32 = 8;

/// A volume in a directory, with a tree whose directories are in several objects.
struct Plain {
    scratch: Scratch,
    url: String,
}

/// A sector of metadata in an object.
struct Sector {
    object: PathBuf,
    /// Its first byte.
    at: usize,
    /// The inode of which it is a sector.
    owner: u64,
}

const ROOT: u64 = 1;
/// The last number that no user's file has.
const SYSTEM: u64 = 4;

impl Plain {
    fn new() -> Plain {
        let scratch = Scratch::new();
        let url = format!("file://{}/volume", scratch.path().display());
        let volume = Plain { scratch, url };
        succeed(&mut volume.scratch.cffs(["mkfs", "-q", "--size", "1G", &volume.url]));
        for number in 0..3 {
            let source = volume.scratch.path().join(format!("source{number}"));
            fs::create_dir_all(source.join("d")).expect("made");
            for name in ["a", "d/b", "d/c"] {
                fs::write(source.join(name), format!("{name} {number}").repeat(20))
                    .expect("written");
            }
            let to = format!("/in{number}");
            let source = source.display().to_string();
            succeed(&mut volume.scratch.cffs(["import", "-q", &volume.url, &source, &to]));
        }
        volume
    }

    /// The same with the file `/large/big`, and the object with its contents, which were sent ahead of their
    /// record.
    fn with_large_file() -> (Plain, PathBuf) {
        let volume = Plain::new();
        let source = volume.scratch.path().join("large");
        fs::create_dir(&source).expect("made");
        fs::write(source.join("big"), vec![b'x'; 20 << 20]).expect("written");
        let source = source.display().to_string();
        succeed(&mut volume.scratch.cffs(["import", "-q", &volume.url, &source, "/large"]));
        let listed = fs::read_dir(volume.scratch.path().join("volume/data")).expect("listed");
        let objects = listed.map(|entry| entry.expect("listed").path());
        let largest = objects.max_by_key(|path| fs::metadata(path).expect("found").len());
        (volume, largest.expect("an object"))
    }

    fn fsck(&self, options: &[&str]) -> Output {
        let mut command = self.scratch.cffs(["fsck"]);
        command.args(options).arg(&self.url).output().expect("run")
    }

    /// All that the volume has, by one command.
    fn contents(&self) -> String {
        let names = succeed(&mut self.scratch.cffs(["ls", "-R", &self.url]));
        (0..3).fold(names, |text, number| {
            let paths = ["a", "d/b", "d/c"].map(|name| format!("/in{number}/{name}"));
            let read = |path: &String| succeed(&mut self.scratch.cffs(["cat", &self.url, path]));
            text + &paths.iter().map(read).collect::<String>()
        })
    }

    /// The sectors that its objects have, used or not.
    fn sectors(&self) -> Vec<Sector> {
        let mut sectors = Vec::new();
        for folder in ["log", "data"] {
            let listed = fs::read_dir(self.scratch.path().join("volume").join(folder));
            for entry in listed.into_iter().flatten() {
                let object = entry.expect("listed").path();
                let bytes = fs::read(&object).expect("read");
                let starts = (0..bytes.len().saturating_sub(512))
                    .filter(|at| bytes[*at..].starts_with(b"CFse"));
                sectors.extend(starts.map(|at| {
                    let owner = bytes[at + 8..at + 16].try_into().expect("8 bytes");
                    Sector { object: object.clone(), at, owner: u64::from_le_bytes(owner) }
                }));
            }
        }
        sectors
    }
}

/// Text of both outputs of a command.
fn said(output: &Output) -> String {
    [&output.stdout[..], &output.stderr[..]].map(String::from_utf8_lossy).concat()
}

/// Changes a byte of an object; the object's earlier bytes.
fn flip(sector: &Sector) -> Vec<u8> {
    let whole = fs::read(&sector.object).expect("read");
    let mut flipped = whole.clone();
    flipped[sector.at + 100] ^= 1;
    fs::write(&sector.object, flipped).expect("written");
    whole
}

/// Regression: `fsck -y` took a sector that the store had changed for ordinary damage, repaired it, and so
/// lost files that were there again with the object as it had been.
#[test]
fn a_check_repairs_no_sector_of_an_object_that_can_be_restored() {
    let volume = Plain::new();
    let contents = volume.contents();
    let (mut of_root, mut of_others) = (0, 0);
    for sector in volume.sectors() {
        let name = sector.object.file_name().expect("a name").to_string_lossy().into_owned();
        let whole = flip(&sector);
        let noticed = volume.fsck(&["-n"]);
        // Of several generations of a sector, one is in use.
        if noticed.status.code() != Some(0) {
            for options in [&["-n"][..], &["-n", "-f"], &["-y"], &["-p", "-f"]] {
                let output = volume.fsck(options);
                let text = said(&output);
                assert_eq!(output.status.code(), Some(CODE_REFUSED), "{options:?}: {text}");
                assert!(text.contains(&name) && text.contains("it was changed"), "{text}");
                assert!(text.contains("Put it back"), "{text}");
            }
            let without = volume.fsck(&["-n", "--without-objects"]);
            assert_eq!(without.status.code(), Some(CODE_LEFT), "{}", said(&without));
            assert!(said(&without).contains(&name), "{}", said(&without));
            if sector.owner == ROOT { of_root += 1 } else { of_others += 1 }
        }
        fs::write(&sector.object, &whole).expect("put back");
        assert_eq!(volume.contents(), contents, "{name} cost contents");
        assert_eq!(volume.fsck(&["-n", "--contents"]).status.code(), Some(0));
    }
    assert!(of_root > 0 && of_others > 1, "{of_root} of the root, {of_others} of others");
}

/// The server of a mounted volume names the object as well.
#[test]
fn a_check_of_a_mounted_volume_names_a_changed_object() {
    let volume = Plain::new();
    let contents = volume.contents();
    let point = volume.scratch.mountpoint().display().to_string();
    let of_users = |sector: &Sector| sector.owner > SYSTEM;
    let mut named = 0;
    for sector in volume.sectors().into_iter().filter(of_users) {
        let whole = flip(&sector);
        if named == 0 && can_mount() && volume.fsck(&["-n"]).status.code() != Some(0) {
            succeed(&mut volume.scratch.cffs(["mount", &volume.url, &point]));
            let text = fail(CODE_REFUSED, &mut volume.scratch.cffs(["fsck", "--online", &point]));
            let name = sector.object.file_name().expect("a name").to_string_lossy().into_owned();
            assert!(text.contains(&name) && text.contains("it was changed"), "{text}");
            volume.scratch.umount();
            named += 1;
        }
        fs::write(&sector.object, &whole).expect("put back");
    }
    assert!(named > 0 || !can_mount());
    assert_eq!(volume.contents(), contents);
    assert_eq!(volume.fsck(&["-n", "-f"]).status.code(), Some(0));
}

/// A scrub names missing objects, on a volume that is mounted or not, and changes nothing.
#[test]
fn a_scrub_names_missing_objects() {
    let volume = Plain::new();
    let contents = volume.contents();
    let scrub = |target: &str| {
        let output = volume.scratch.cffs(["scrub", "--rate", "0", target]).output().expect("run");
        (output.status.code(), said(&output))
    };
    let point = volume.scratch.mountpoint().display().to_string();
    let (mut named, mut named_mounted, mut refused) = (0, 0, 0);
    let objects: BTreeSet<_> = volume.sectors().into_iter().map(|sector| sector.object).collect();
    for object in objects {
        let name = object.file_name().expect("a name").to_string_lossy().into_owned();
        let away = volume.scratch.path().join("away");
        fs::rename(&object, &away).expect("removed");
        let (code, text) = scrub(&volume.url);
        let is_in_use = match code {
            Some(0) => false,
            // The volume cannot be opened without the objects of its beginning.
            Some(CODE_REFUSED) => {
                refused += 1;
                let advice = "; cffs fsck -n names all missing and damaged objects, and the remedy";
                let listed = fail(1, &mut volume.scratch.cffs(["ls", &volume.url]));
                assert!(text.contains(advice) && listed.contains(advice), "{text}{listed}");
                if can_mount() {
                    let mount = ["mount", &volume.url, &point];
                    let mounted = fail(32, &mut volume.scratch.cffs(mount));
                    assert!(mounted.contains(advice), "{mounted}");
                }
                false
            }
            code => {
                assert_eq!(code, Some(CODE_LEFT), "{text}");
                true
            }
        };
        if code != Some(0) {
            assert!(text.contains(&name), "{text}");
        }
        named += i32::from(is_in_use);
        let mut mount = volume.scratch.cffs(["mount", &volume.url, &point]);
        if is_in_use && can_mount() && mount.output().expect("run").status.success() {
            let (code, text) = scrub(&point);
            volume.scratch.umount();
            if code != Some(0) {
                assert!(text.contains(&name), "{text}");
                named_mounted += 1;
            }
        }
        fs::rename(&away, &object).expect("put back");
    }
    assert!(named > 0, "no scrub named an object");
    assert!(refused > 0, "no object was needed to open the volume");
    assert!(named_mounted > 0 || !can_mount(), "no scrub of a mounted volume named an object");
    assert_eq!(volume.contents(), contents);
    assert_eq!(scrub(&volume.url).0, Some(0));
}

/// Metadata that a program wrote wrongly can be repaired, with the option that gives up damaged objects.
#[test]
fn a_changed_sector_is_repaired_on_request() {
    let mut losses = 0;
    for owner in [ROOT, 0] {
        let volume = Plain::new();
        let is_wanted = |sector: &Sector| (sector.owner == ROOT) == (owner == ROOT);
        for sector in volume.sectors().into_iter().filter(is_wanted) {
            let whole = flip(&sector);
            if volume.fsck(&["-n"]).status.code() == Some(0) {
                fs::write(&sector.object, &whole).expect("put back");
                continue;
            }
            let repaired = volume.fsck(&["-y", "--without-objects"]);
            assert_eq!(repaired.status.code(), Some(1), "{}", said(&repaired));
            let name = sector.object.file_name().expect("a name").to_string_lossy().into_owned();
            assert!(said(&repaired).contains(&name), "{}", said(&repaired));
            let again = volume.fsck(&["-n", "--contents"]);
            assert_eq!(again.status.code(), Some(0), "{}", said(&again));
            losses += 1;
            break;
        }
    }
    assert_eq!(losses, 2);
}

/// Regression: a check without a missing object did not list a large file with contents in it, and called the
/// volume clean.
#[test]
fn a_check_lists_large_files_in_missing_objects() {
    let (volume, largest) = Plain::with_large_file();
    let whole = succeed(&mut volume.scratch.cffs(["cat", &volume.url, "/large/big"]));
    let away = volume.scratch.path().join("away");
    fs::rename(&largest, &away).expect("removed");
    for options in [["-n", "--without-objects"], ["-y", "--without-objects"]] {
        let output = volume.fsck(&options);
        assert_eq!(output.status.code(), Some(CODE_LEFT), "{options:?}: {}", said(&output));
        let text = said(&output);
        assert!(text.contains("CF0230") && text.contains("/large/big"), "{options:?}: {text}");
        assert!(text.contains("remove the files"), "{options:?}: {text}");
    }
    assert_eq!(volume.fsck(&["-n"]).status.code(), Some(CODE_REFUSED));
    fs::rename(&away, &largest).expect("put back");
    assert_eq!(succeed(&mut volume.scratch.cffs(["cat", &volume.url, "/large/big"])), whole);
    assert_eq!(volume.fsck(&["-n", "--contents"]).status.code(), Some(0));
}

/// Regression: after a repair without a missing object in which no file had contents, checks refused the
/// volume for ever.
#[test]
fn a_repaired_volume_no_longer_needs_a_missing_object() {
    let volume = Plain::new();
    let contents = volume.contents();
    // It has the metadata of the new volume.
    let object = volume.scratch.path().join("volume/log/00000000000000000002");
    fs::remove_file(object).expect("removed");
    assert_eq!(volume.fsck(&["-n"]).status.code(), Some(CODE_REFUSED));
    let repaired = volume.fsck(&["-y", "--without-objects"]);
    assert!(said(&repaired).contains("repaired"), "{}", said(&repaired));
    let again = volume.fsck(&["-n", "--contents"]);
    assert_eq!(again.status.code(), Some(0), "{}", said(&again));
    succeed(&mut volume.scratch.cffs(["scrub", "--rate", "0", &volume.url]));
    assert_eq!(volume.contents(), contents);
}

/// Regression: an object in which no file has contents was removed from the volume, but the command did not
/// say so if another one stayed.
#[test]
fn objects_that_are_given_up_are_counted_next_to_one_that_stays() {
    let (volume, largest) = Plain::with_large_file();
    fs::rename(largest, volume.scratch.path().join("away")).expect("moved");
    // It has the metadata of the new volume.
    let first = "00000000000000000002";
    fs::remove_file(volume.scratch.path().join("volume/log").join(first)).expect("removed");
    let repaired = volume.fsck(&["-y", "--without-objects"]);
    let text = said(&repaired);
    assert_eq!(repaired.status.code(), Some(CODE_LEFT), "{text}");
    assert!(text.contains("1 object removed from the volume"), "{text}");
    let again = volume.fsck(&["-n"]);
    assert_eq!(again.status.code(), Some(CODE_REFUSED), "{}", said(&again));
    assert!(!said(&again).contains(first), "{}", said(&again));
}
