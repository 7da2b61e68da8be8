//! Another volume in the place of one that a program has open.

use std::path::{Path, PathBuf};

use object_store::path::Path as ObjectPath;

use super::*;
use crate::{Backlog, Staging};

/// Two volumes in directories; the second has more records than the first.
struct Two {
    scratch: tempfile::TempDir,
}

impl Two {
    fn make() -> Two {
        let two = Two { scratch: tempfile::tempdir().expect("made") };
        for (name, records) in [("one", 1), ("other", 8)] {
            let device = LogDevice::create(&two.location(name), GEOMETRY).expect("made");
            for number in 0..records {
                write(&device, number * 4096, &[0xaa; 4096]);
                device.sync().expect("synced");
            }
            device.release().expect("released");
        }
        two
    }

    fn path(&self, name: &str) -> PathBuf {
        self.scratch.path().join(name)
    }

    fn location(&self, name: &str) -> Location {
        let url = format!("file://{}", self.path(name).display());
        Location::parse(&url).expect("a URL").with_secret(encrypted::secret())
    }

    fn staged(&self) -> Location {
        let staging = Staging::open(&self.path("staging")).expect("made");
        self.location("one").with_staging(Arc::new(staging))
    }

    /// Moves the other volume to the place of the first.
    fn replace(&self) {
        self.rename("one", "kept");
        self.rename("other", "one");
    }

    fn put_back(&self) {
        self.rename("one", "other");
        self.rename("kept", "one");
    }

    fn rename(&self, from: &str, to: &str) {
        std::fs::rename(self.path(from), self.path(to)).expect("moved");
    }

    fn uuid(&self, name: &str) -> String {
        uuid_of(&std::fs::read(self.path(name).join("format")).expect("read"))
    }
}

fn uuid_of(identity: &[u8]) -> String {
    let encoded = crate::identity::Encoded::decode(identity).expect("an identity");
    uuid::Uuid::from_bytes(encoded.uuid()).to_string()
}

fn all_files(directory: &Path) -> Vec<(PathBuf, Vec<u8>)> {
    let mut files = Vec::new();
    for entry in std::fs::read_dir(directory).expect("listed") {
        let path = entry.expect("listed").path();
        match path.is_dir() {
            true => files.extend(all_files(&path)),
            false => files.push((path.clone(), std::fs::read(&path).expect("read"))),
        }
    }
    files.sort();
    files
}

/// Regression: if a directory with another volume was moved to the place of an open one, and that volume had
/// a record in the next slot, the writer took this for the claim of a program that had taken its volume over.
/// It lost the last changes, and the message named a wrong cause.
#[test]
fn another_volume_in_the_directory_is_an_outage() {
    let two = Two::make();
    let device = LogDevice::open(&two.location("one"), OpenOptions::default()).expect("opened");
    write(&device, 0, &[7; 4096]);
    two.replace();
    let before = all_files(&two.path("one"));
    std::thread::scope(|scope| {
        let syncing = scope.spawn(|| device.sync());
        std::thread::sleep(Duration::from_millis(300));
        assert!(!syncing.is_finished(), "the sync waits for the directory of its volume");
        assert_eq!(all_files(&two.path("one")), before, "the other volume stays as it was");
        two.put_back();
        syncing.join().expect("no panic").expect("writing goes on");
    });
    device.release().expect("released");
    let device = LogDevice::open(&two.location("one"), READ_ONLY).expect("opened");
    assert_eq!(read(&device, 0, 4096), [7; 4096]);
}

/// The error names the directory and both volumes.
#[test]
fn the_error_names_the_other_volume_in_the_directory() {
    let two = Two::make();
    let (one, other) = (two.uuid("one"), two.uuid("other"));
    let soft = OpenOptions { patience: Some(Duration::ZERO), ..OpenOptions::default() };
    let device = LogDevice::open(&two.location("one"), soft).expect("opened");
    write(&device, 0, &[7; 4096]);
    two.replace();
    let text = device.sync().expect_err("another volume is there").to_string();
    for part in [&two.path("one").display().to_string(), &one, &other] {
        assert!(text.contains(part), "{text}");
    }
    assert!(!text.contains("took the volume over"), "{text}");
    let text = device.sync().expect_err("writing has ended").to_string();
    assert!(text.contains(&other), "{text}");
    assert!(device.release().is_ok(), "there is nothing to release");
}

/// Staged changes wait until their volume is in its place again.
#[test]
fn staged_syncs_wait_while_another_volume_is_in_the_directory() {
    let two = Two::make();
    let device = LogDevice::open(&two.staged(), OpenOptions::default()).expect("opened");
    two.replace();
    write(&device, 0, &[7; 4096]);
    device.sync().expect("staged");
    std::thread::sleep(Duration::from_millis(300));
    assert!(!two.path("staging/rejected").exists());
    assert_eq!(std::fs::read_dir(two.path("staging")).expect("listed").count(), 3);
    two.put_back();
    device.release().expect("sent, and released");
    let device = LogDevice::open(&two.location("one"), READ_ONLY).expect("opened");
    assert_eq!(read(&device, 0, 4096), [7; 4096]);
}

/// Regression: reads returned the bytes of the other volume's objects, if these had the same names.
#[test]
fn reads_do_not_return_the_bytes_of_another_volume() {
    for options in [OpenOptions::default(), READ_ONLY] {
        let two = Two::make();
        let device = LogDevice::open(&two.location("one"), options).expect("opened");
        two.replace();
        let error = device.read_at(0, &mut [0; 4096]).expect_err("another volume is there");
        let text = error.to_string();
        assert!(text.contains(&two.uuid("one")) && text.contains(&two.uuid("kept")), "{text}");
        two.put_back();
        assert_eq!(read(&device, 0, 4096), [0xaa; 4096]);
    }
}

/// A bucket in which another volume replaces the open one, by a program that copies objects.
#[test]
fn another_volume_in_the_bucket_takes_nothing_over() {
    let scratch = tempfile::tempdir().expect("made");
    let path = scratch.path().join("staging");
    for is_staging in [false, true] {
        let store = Arc::new(InMemory::new());
        let from = |name: &str| located(store.clone(), name);
        make_zeros(&from("bucket/volume"), GEOMETRY);
        let device = LogDevice::create(&from("bucket/other"), GEOMETRY).expect("made");
        for number in 0..8 {
            write(&device, number * 4096, &[0xaa; 4096]);
            device.sync().expect("synced");
        }
        device.release().expect("released");
        let staging = is_staging.then(|| Arc::new(Staging::open(&path).expect("made")));
        let location = match &staging {
            Some(staging) => from("bucket/volume").with_staging(staging.clone()),
            None => from("bucket/volume"),
        };
        let device = LogDevice::open(&location, OpenOptions::default()).expect("opened");
        let identity = |name: &str| {
            let name = format!("{name}/format");
            let all = encrypted::all_of(&store);
            uuid_of(&all.into_iter().find(|(path, _)| path.as_ref() == name).expect("there").1)
        };
        let one = identity("bucket/volume");
        for (path, bytes) in encrypted::all_of(&store) {
            if let Some(rest) = path.as_ref().strip_prefix("bucket/other/") {
                let to = ObjectPath::from(format!("bucket/volume/{rest}"));
                encrypted::set(&store, &to, Some(&bytes));
            }
        }
        let other = identity("bucket/volume");
        write(&device, 0, &[7; 4096]);
        let synced = device.sync();
        // Only the next sync learns what became of a staged record.
        let error = match is_staging {
            false => synced.expect_err("another volume is there"),
            true => {
                synced.expect("staged");
                device.release().expect_err("not sent").into()
            }
        };
        let text = error.to_string();
        assert!(text.contains(&one) && text.contains(&other) && text.contains("test"), "{text}");
        assert!(!text.contains("took the volume over"), "{text}");
        if let Some(staging) = staging {
            assert!(matches!(staging.backlog(), Backlog { records: 1, .. }), "the change is kept");
            assert!(!path.join("rejected").exists());
        }
    }
}
