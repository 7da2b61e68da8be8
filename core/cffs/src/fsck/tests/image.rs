//! A volume with one of each kind of thing, to be damaged.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::volumes::{ROOT, contents, make, new_file, open};
use crate::device::{BlockDevice, MemoryDevice};
use crate::format::Superblock;
use crate::fsck::check::Check;
use crate::fsck::disk::Disk;
use crate::fsck::walk::Walk;
use crate::fsck::{CheckOptions, Report};
use crate::mkfs::MkfsOptions;
use crate::units::InodeNo;
use crate::vfs::{Caller, NewKind, Volume, XattrMode};

/// The file at a path: mode, link count, contents or target, attributes.
pub(super) type Seen = (u32, Vec<u8>, Vec<(Vec<u8>, Vec<u8>)>);

/// More than any file of the volume has.
const CONTENTS_BYTES_MAX: u64 = 1 << 20;

pub(super) struct Image {
    pub device: Arc<MemoryDevice>,
    pub inos: BTreeMap<String, InodeNo>,
    pub seen: BTreeMap<String, Seen>,
}

impl Image {
    pub fn new(options: &MkfsOptions) -> Image {
        let device = make(options);
        let volume = open(&device);
        fill(&volume);
        volume.close().expect("close");
        let volume = open(&device);
        let mut inos = BTreeMap::new();
        let seen = walk(&volume, &mut inos);
        volume.close().expect("close");
        Image { device, inos, seen }
    }

    pub fn ino(&self, path: &str) -> InodeNo {
        *self.inos.get(path).unwrap_or_else(|| panic!("no {path}"))
    }

    /// Lets `change` work on the volume with fsck's own tools.
    pub fn with<T>(&self, change: impl FnOnce(&mut Walk<'_>) -> T) -> T {
        let options = CheckOptions::default();
        let mut head = vec![0; 4096];
        self.device.read_at(0, &mut head).expect("read");
        let superblock = Superblock::decode(&head, 0).expect("superblock");
        let disk = Disk::new(&*self.device, 1);
        let mut check = Check::new(disk, superblock, &options, &(), Report::default());
        assert!(check.round(), "the volume is right before it is damaged");
        let result = change(&mut check.walk);
        check.walk.meta.disk.commit().expect("commit");
        result
    }
}

fn fill(volume: &Volume) {
    let dir = |parent, name: &str| {
        volume
            .make(&Caller::ROOT, parent, name.as_bytes(), &new_file(NewKind::Directory))
            .unwrap()
            .ino
    };
    let file = |parent, name: &str, bytes: &[u8]| {
        let ino = volume
            .make(&Caller::ROOT, parent, name.as_bytes(), &new_file(NewKind::Regular))
            .unwrap()
            .ino;
        volume.write(&Caller::ROOT, ino, 0, bytes).unwrap();
        ino
    };
    let outer = dir(ROOT, "dir");
    let inner = dir(outer, "inner");
    let deeper = dir(inner, "deeper");
    file(outer, "a", &contents(1, 20_000));
    file(outer, "b", &contents(2, 20_000));
    file(outer, "tiny", b"tiny");
    file(inner, "deep", &contents(3, 3000));
    file(deeper, "deepest", &contents(4, 30));
    volume
        .make(&Caller::ROOT, ROOT, b"symlink", &new_file(NewKind::Symlink(&[b'x'; 900])))
        .unwrap();
    volume.make(&Caller::ROOT, ROOT, b"long", &new_file(NewKind::Symlink(&[b'y'; 4000]))).unwrap();
    volume.make(&Caller::ROOT, ROOT, b"pipe", &new_file(NewKind::Fifo)).unwrap();
    let small = file(ROOT, "small", &contents(5, 300));
    volume.set_xattr(&Caller::ROOT, small, b"user.in", b"the inode", XattrMode::Any).unwrap();
    let attributes = file(ROOT, "attributes", &contents(6, 6000));
    volume
        .set_xattr(&Caller::ROOT, attributes, b"user.block", &contents(7, 9000), XattrMode::Any)
        .unwrap();
    let links = dir(ROOT, "links");
    let hard = file(links, "one", &contents(8, 5000));
    volume.link(hard, ROOT, b"two").unwrap();
    let other = file(links, "three", &contents(9, 100));
    volume.link(other, ROOT, b"four").unwrap();
    let tree = file(ROOT, "tree", b"");
    for index in 0..700u64 {
        volume.write(&Caller::ROOT, tree, index * 16_384, &contents(index, 1000)).unwrap();
    }
    let big = dir(ROOT, "big");
    for index in 0..900 {
        file(big, &format!("entry-{index}"), &contents(index, 40));
    }
    volume.sync().unwrap();
}

/// Everything that the volume shows.
pub(super) fn walk(
    volume: &Volume,
    inos: &mut BTreeMap<String, InodeNo>,
) -> BTreeMap<String, Seen> {
    let mut seen = BTreeMap::new();
    let mut dirs = vec![(ROOT, String::new())];
    while let Some((dir, path)) = dirs.pop() {
        let mut entries = Vec::new();
        let list = volume.read_dir(dir, 0, false, &mut |entry| {
            entries.push((entry.name.to_vec(), entry.ino));
            true
        });
        list.unwrap_or_else(|error| panic!("{path}: {error}"));
        for (name, ino) in entries {
            let path = format!("{path}/{}", String::from_utf8_lossy(&name));
            let found = volume.lookup(dir, &name).unwrap_or_else(|e| panic!("{path}: {e}"));
            assert_eq!(found.ino, ino, "{path}");
            seen.insert(path.clone(), look(volume, ino, &path));
            if found.file_type == crate::format::inode::FileType::Directory {
                dirs.push((ino, path.clone()));
            }
            inos.insert(path, ino);
            volume.release(ino, 1);
        }
    }
    seen
}

pub(super) fn look(volume: &Volume, ino: InodeNo, path: &str) -> Seen {
    let attr = volume.attr(ino).unwrap();
    let bytes = match attr.file_type {
        crate::format::inode::FileType::Regular => {
            // Damage can make a sparse file of any size.
            let mut bytes = vec![0; attr.size.min(CONTENTS_BYTES_MAX) as usize];
            let read = volume.read(ino, 0, &mut bytes);
            assert_eq!(read.unwrap_or_else(|e| panic!("{path}: {e}")), bytes.len());
            bytes
        }
        crate::format::inode::FileType::Symlink => volume.read_link(ino).unwrap(),
        _ => Vec::new(),
    };
    let names = volume.xattr_names(ino).unwrap();
    let attributes =
        names.into_iter().map(|name| (name.clone(), volume.xattr(ino, &name).unwrap())).collect();
    (attr.mode(), bytes, attributes)
}
