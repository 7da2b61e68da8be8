//! A damaged sector of a directory or of the external inode table: it is refused, or every entry
//! can be read, found again and removed.
//!
//! The checksum is made right, because otherwise no damage would ever get past it.
#![no_main]

use cffs::format::checksum::Checksum;
use cffs::format::inode::{DiskInode, FileType, InodeFlags, Record};
use cffs::format::sector::{self, Body, Sector};
use cffs::units::{Container, EpochNo, InodeNo, SectorIndex};
use libfuzzer_sys::fuzz_target;
use zerocopy::FromZeros;

const SECTOR_BYTES: usize = 4096;
const GENERATION: u32 = 7;

/// A byte, where it is changed, and what to.
type Damage = (u16, u8);

fuzz_target!(|input: (bool, bool, Vec<Damage>)| {
    let (external, empty, damages) = input;
    let file = if external { InodeNo::EXTERNAL } else { InodeNo(1000) };
    let container = Container { file, sector: SectorIndex(3) };
    let checksum = Checksum::new(&[1; 16]);

    let mut image = vec![0; SECTOR_BYTES];
    sector::init(&mut image, container, GENERATION);
    if !empty {
        fill(&mut image, external);
    }
    for (at, byte) in damages {
        image[usize::from(at) % SECTOR_BYTES] = byte;
    }
    sector::seal(&mut image, EpochNo(1), checksum);
    if sector::verify(&image, container, GENERATION, checksum).is_err() {
        return;
    }

    let verified = Sector::new(&image);
    assert_eq!(verified.entries().count(), verified.count());
    assert!(verified.free_bytes() <= SECTOR_BYTES - sector::SECTOR_HEADER_BYTES);
    for entry in verified.entries() {
        assert!(verified.find_name(entry.hash, entry.name).is_some());
        if let Body::Embedded(record) = &entry.body {
            assert!(verified.find_inode(entry.ino()).is_some());
            record.link_tags().for_each(drop);
        }
    }

    let slots: Vec<u16> = verified.entries().map(|entry| entry.slot).collect();
    for slot in slots {
        sector::remove(&mut image, slot);
        sector::seal(&mut image, EpochNo(2), checksum);
        let verdict = sector::verify(&image, container, GENERATION, checksum);
        verdict.expect("a valid sector without one of its entries is valid");
    }
    assert_eq!(Sector::new(&image).free_bytes(), SECTOR_BYTES - sector::SECTOR_HEADER_BYTES);
});

/// Puts one entry of each kind into an empty sector: those that the container may have.
fn fill(image: &mut [u8], external: bool) {
    let name = |name: &'static str| if external { b"" } else { name.as_bytes() };

    let mut file = DiskInode::new_zeroed();
    file.ino = 20.into();
    file.mode = 0o100_644.into();
    file.flags = InodeFlags::INLINE.bits().into();
    file.size = 5.into();
    let contents = Record { inode: &file, data: b"hello", xattrs: &[], tags: &[] };
    sector::insert(image, 1, name("file"), FileType::Regular, &Body::Embedded(contents));

    let mut directory = DiskInode::new_zeroed();
    directory.ino = 21.into();
    directory.mode = 0o040_755.into();
    let extents = Record { inode: &directory, data: &[0; 32], xattrs: &[], tags: &[] };
    sector::insert(image, 2, name("directory"), FileType::Directory, &Body::Embedded(extents));

    if !external {
        let reference = Body::Reference { ino: InodeNo(22), sector: SectorIndex(4) };
        sector::insert(image, 3, b"link", FileType::Regular, &reference);
    }
}
