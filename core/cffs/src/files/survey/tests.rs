//! Dry runs, compared with the imports that follow.

use std::ffi::OsStr;
use std::fs::{self, File};
use std::os::unix::fs::{PermissionsExt, symlink};
use std::sync::{Arc, Mutex};

use rustix::fs::{CWD, XattrFlags, setxattr};

use super::*;
use crate::clock::TestClock;
use crate::device::MemoryDevice;
use crate::files::import;
use crate::mkfs::{self, MkfsOptions};
use crate::vfs::Volume;
use crate::vfs::types::OpenOptions;

fn files_of(size_bytes: u64) -> Files {
    let device = Arc::new(MemoryDevice::new(size_bytes));
    mkfs::make(&device, &MkfsOptions::default()).expect("the volume is made");
    let clock = Arc::new(TestClock::default());
    let volume = Volume::open(device, clock, OpenOptions::default()).expect("it opens");
    Files::new(Arc::new(volume))
}

/// Files of all kinds and of every size at which contents go elsewhere.
fn build_tree(root: &Path) {
    for dir in 0..12u32 {
        let path = root.join(format!("directory {dir}"));
        fs::create_dir(&path).expect("made");
        for file in 0..60u32 {
            let size = (dir * 60 + file).pow(2) % 40_000;
            let contents = vec![7; if file % 5 == 0 { 3 } else { size as usize }];
            fs::write(path.join(format!("file-{file:03}")), contents).expect("written");
        }
        fs::hard_link(path.join("file-000"), path.join("second name")).expect("linked");
        symlink("../somewhere", path.join("link")).expect("linked");
    }
    let sparse = File::create(root.join("sparse")).expect("made");
    sparse.set_len(1 << 30).expect("grown");
    rustix::fs::mkfifoat(CWD, root.join("pipe"), 0o600.into()).expect("made");
    // Not every file system that tests run on has them.
    let _ = setxattr(root.join("sparse"), c"user.name", &[1; 300], XattrFlags::empty());
}

/// Keeps what could not be copied, and why.
#[derive(Default)]
struct Failures(Mutex<Vec<String>>);

impl Observer for Failures {
    fn failed(&self, error: &CopyError) {
        let name = error.path.file_name().unwrap_or_default().display().to_string();
        let text = format!("{name}: {}", error.cause);
        self.0.lock().expect("no test has failed").push(text);
    }
}

fn look(
    files: &Files,
    source: &Path,
    target: &[u8],
    options: &CopyOptions,
    observer: &dyn Observer,
) -> Result<Survey, CopyError> {
    survey(files, SurveyedVolume::from(&**files.volume()), source, target, options, observer)
}

fn free_bytes(files: &Files) -> u64 {
    files.volume().sync().expect("synced");
    let stat = files.volume().stat_fs();
    stat.free_fragments * u64::from(stat.fragment_bytes)
}

#[test]
fn a_survey_counts_what_the_import_copies_and_reckons_what_it_takes() {
    let outside = tempfile::tempdir().expect("a directory");
    build_tree(outside.path());
    let files = files_of(256 << 20);
    let options = CopyOptions::default();
    let before = free_bytes(&files);
    let surveyed = look(&files, outside.path(), b"/in", &options, &()).expect("surveyed");
    assert_eq!(free_bytes(&files), before, "nothing is changed");
    assert!(matches!(files.stat("/in"), Err(Error::NotFound)));

    let copied = import(&files, outside.path(), b"/in", &options, &()).expect("copied");
    assert_eq!(surveyed.summary, copied);
    assert_eq!((surveyed.replaced, surveyed.fits()), (0, true));
    let taken = before - free_bytes(&files);
    let difference = surveyed.needed_bytes.abs_diff(taken);
    assert!(difference * 100 <= taken * 3, "{} reckoned, {taken} taken", surveyed.needed_bytes);

    let again = look(&files, outside.path(), b"/in", &options, &()).expect("surveyed");
    let names = copied.files + copied.symlinks + copied.hard_links + copied.special;
    assert_eq!(again.replaced, names, "everything but directories would give way");
}

#[test]
fn files_that_cannot_be_copied_are_named_with_the_reason() {
    let outside = tempfile::tempdir().expect("a directory");
    for name in ["a", "b", "c"] {
        fs::write(outside.path().join(name), b"contents").expect("written");
    }
    fs::create_dir(outside.path().join("d")).expect("made");
    let secret = outside.path().join("c");
    fs::set_permissions(&secret, fs::Permissions::from_mode(0o000)).expect("changed");
    let files = files_of(64 << 20);
    files.make_dir_all("/in/b").expect("made");
    files.write("/in/d", b"a file").expect("written");
    let failures = Failures::default();
    let options = CopyOptions::default();
    let surveyed = look(&files, outside.path(), b"/in", &options, &failures).expect("surveyed");
    let mut expected =
        vec![format!("b: {}", Error::IsDirectory), format!("d: {}", Error::NotDirectory)];
    if !rustix::process::geteuid().is_root() {
        expected.insert(1, String::from("c: Permission denied (os error 13)"));
    }
    assert_eq!(*failures.0.lock().expect("no test has failed"), expected);
    assert_eq!(surveyed.summary.failures, expected.len() as u64);

    let failures = Failures::default();
    let copied = import(&files, outside.path(), b"/in", &options, &failures).expect("copied");
    assert_eq!(copied, surveyed.summary, "and the import fails the same way");

    let missing = look(&files, &outside.path().join("missing"), b"/", &options, &());
    assert!(missing.unwrap_err().to_string().contains("missing"));
    let onto_file = look(&files, outside.path(), b"/in/d", &options, &());
    assert!(matches!(
        onto_file,
        Err(CopyError { cause: CopyCause::Volume(Error::NotDirectory), .. })
    ));
}

#[test]
fn a_tree_that_does_not_fit_is_detected() {
    let outside = tempfile::tempdir().expect("a directory");
    let files = files_of(64 << 20);
    let options = CopyOptions::default();
    let mut outcomes = Vec::new();
    for (name, size) in [("half", 32 << 20), ("more", 80 << 20)] {
        let path = outside.path().join(name);
        fs::write(&path, vec![1; size]).expect("written");
        let surveyed = look(&files, &path, b"/", &options, &()).expect("surveyed");
        let copied = import(&files, &path, b"/", &options, &());
        outcomes.push((surveyed.fits(), copied.is_ok()));
    }
    assert_eq!(outcomes, [(true, true), (false, false)]);
}

/// Regression: a survey looked up each whole path, which took time quadratic in the depth of the tree, and
/// failed for paths that are longer than the kernel takes.
#[test]
fn a_survey_counts_files_with_long_paths() {
    let outside = tempfile::tempdir().expect("a directory");
    let name = "n".repeat(200);
    let mut dir = Entry::dir_at(outside.path()).expect("opened");
    for _ in 0..60 {
        let file = dir.make_file(OsStr::new("file")).expect("made");
        file.file().set_len(3).expect("grown");
        dir.make_dir(OsStr::new(&name)).expect("made");
        dir = dir.dir(OsStr::new(&name)).expect("opened");
    }
    let (files, options) = (files_of(64 << 20), CopyOptions::default());
    let surveyed = look(&files, outside.path(), b"/in", &options, &()).expect("surveyed");
    assert_eq!((surveyed.summary.files, surveyed.summary.failures), (60, 0));
    let copied = import(&files, outside.path(), b"/in", &options, &()).expect("copied");
    assert_eq!(surveyed.summary, copied);
}
