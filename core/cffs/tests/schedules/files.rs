//! The model: a thread's knowledge of a directory that only it changes.

use std::collections::BTreeMap;

use cffs::error::Error;
use cffs::units::InodeNo;
use cffs::vfs::Volume;

/// The contents and the attributes of a file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct File {
    pub bytes: Vec<u8>,
    pub attributes: BTreeMap<Vec<u8>, Vec<u8>>,
}

/// Names and files. Two names of one file have the same number.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Files {
    pub names: BTreeMap<Vec<u8>, InodeNo>,
    pub files: BTreeMap<InodeNo, File>,
}

impl Files {
    /// Removes a name, and the file with its last name.
    pub fn unlink(&mut self, name: &[u8]) {
        let Some(ino) = self.names.remove(name) else { return };
        if !self.names.values().any(|other| *other == ino) {
            self.files.remove(&ino);
        }
    }

    /// A file that has a name.
    pub fn of_mut(&mut self, ino: InodeNo) -> &mut File {
        self.files.get_mut(&ino).expect("each name has a file")
    }

    /// The files of a directory of a volume.
    pub fn of(volume: &Volume, dir: InodeNo) -> Files {
        let mut found = Files::default();
        let listed = volume.read_dir(dir, 0, false, &mut |entry| {
            let before = found.names.insert(entry.name.to_vec(), entry.ino);
            assert_eq!(before, None, "a name is listed twice");
            true
        });
        listed.expect("listed");
        for ino in found.names.values() {
            found.files.insert(*ino, File::of(volume, *ino));
        }
        found
    }
}

impl File {
    /// Writes bytes, which may extend the file.
    pub fn put(&mut self, at: usize, bytes: &[u8]) {
        self.bytes.resize(self.bytes.len().max(at + bytes.len()), 0);
        self.bytes[at..at + bytes.len()].copy_from_slice(bytes);
    }

    /// A file of a volume.
    pub fn of(volume: &Volume, ino: InodeNo) -> File {
        let size = volume.attr(ino).expect("attr").size as usize;
        let mut bytes = vec![0; size + 1];
        let len = volume.read(ino, 0, &mut bytes).expect("read");
        bytes.truncate(len);
        let names = volume.xattr_names(ino).expect("names of attributes");
        let value = |name: Vec<u8>| {
            let value = volume.xattr(ino, &name).expect("an attribute");
            (name, value)
        };
        File { bytes, attributes: names.into_iter().map(value).collect() }
    }
}

/// Whether all bytes are equal, as in a file that several threads overwrite as a whole.
pub fn is_uniform(bytes: &[u8]) -> bool {
    bytes.windows(2).all(|pair| pair[0] == pair[1])
}

/// Ignores errors that occur if other threads change the same names, or use the space.
pub fn allow_races<T>(result: Result<T, Error>) -> Option<T> {
    match result {
        Ok(value) => Some(value),
        Err(Error::NotFound | Error::Exists | Error::Stale | Error::NoAttribute) => None,
        Err(Error::EpochNeeded | Error::NoSpace) => None,
        Err(Error::QuotaExceeded(_) | Error::OtherQuota) => None,
        Err(error) => panic!("{error}"),
    }
}
