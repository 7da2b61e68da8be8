//! A damaged sector of a directory or of the external inode table: it is refused, or every entry
//! can be read, found again and removed.

use cffs::format::checksum::Checksum;
use cffs::format::inode::{DiskInode, FileType, InodeFlags, Record};
use cffs::format::sector::{self as codec, Body, Sector};
use cffs::units::{Container, EpochNo, InodeNo, SectorIndex};
use zerocopy::FromZeros;

use crate::input::Input;

const GENERATION: u32 = 7;

/// Verifies a damaged sector, and uses it if it is accepted.
pub fn sector(data: &[u8]) {
    let mut input = Input::new(data);
    let shape = input.byte();
    let (external, empty) = (shape & 1 != 0, shape & 2 != 0);
    let sector_bytes = if shape & 4 != 0 { 1024 } else { 4096 };
    let file = if external { InodeNo::EXTERNAL } else { InodeNo(1000) };
    let container = Container { file, sector: SectorIndex(3) };
    let checksum = Checksum::new(&[1; 16]);

    let mut image = vec![0; sector_bytes];
    codec::init(&mut image, container, GENERATION);
    if !empty {
        fill(&mut image, external);
    }
    // Most of a sector is free; its data is at the beginning.
    input.damage(&mut image[..sector_bytes / if shape & 8 != 0 { 1 } else { 4 }]);
    codec::seal(&mut image, EpochNo(1), checksum);
    // The image may be of any sector of a damaged volume.
    let _ = codec::identify(&image, checksum);
    if codec::verify(&image, container, GENERATION, checksum).is_err() {
        return;
    }

    let verified = Sector::new(&image);
    let room = sector_bytes - codec::SECTOR_HEADER_BYTES;
    assert_eq!(verified.entries().count(), verified.count());
    assert!(verified.free_bytes() <= room);
    for entry in verified.entries() {
        assert!(verified.find_name(entry.hash, entry.name).is_some());
        if let Body::Embedded(record) = &entry.body {
            assert!(verified.find_inode(entry.ino()).is_some());
            record.link_tags().for_each(drop);
        }
    }

    let slots: Vec<u16> = verified.entries().map(|entry| entry.slot).collect();
    for slot in slots {
        codec::remove(&mut image, slot);
        codec::seal(&mut image, EpochNo(2), checksum);
        let verdict = codec::verify(&image, container, GENERATION, checksum);
        verdict.expect("a valid sector without one of its entries is valid");
    }
    assert_eq!(Sector::new(&image).free_bytes(), room);
}

/// Puts one entry of each kind into an empty sector: those that the container may have.
fn fill(image: &mut [u8], external: bool) {
    let name = |name: &'static str| if external { b"" } else { name.as_bytes() };

    let mut file = DiskInode::new_zeroed();
    file.ino = 20.into();
    file.mode = 0o100_644.into();
    file.flags = InodeFlags::INLINE.bits().into();
    file.size = 5.into();
    let contents = Record { inode: &file, data: b"hello", xattrs: &[], tags: &[] };
    codec::insert(image, 1, name("file"), FileType::Regular, &Body::Embedded(contents));

    let mut directory = DiskInode::new_zeroed();
    directory.ino = 21.into();
    directory.mode = 0o040_755.into();
    let extents = Record { inode: &directory, data: &[0; 32], xattrs: &[], tags: &[] };
    codec::insert(image, 2, name("directory"), FileType::Directory, &Body::Embedded(extents));

    if !external {
        let reference = Body::Reference { ino: InodeNo(22), sector: SectorIndex(4) };
        codec::insert(image, 3, b"link", FileType::Regular, &reference);
    }
}
