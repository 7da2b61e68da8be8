//! Makes an empty volume.
//!
//! Offers [`make`], and [`set_journal`] for a volume that exists. Stands only on `device`, `format` and
//! `journal`. It writes the superblock and the system area, their copies, whose number grows with the
//! logarithm of the size, and the head of the first cylinder group. Other groups are made by the first change
//! that uses them.
//!
//! An old superblock is erased before anything else changes, and the new one is written last: a half-made
//! volume does not count as a volume.

use std::io::IoSlice;

use zerocopy::FromZeros;

use crate::clock::Timestamp;
use crate::device::BlockDevice;
use crate::error::{Error, Result};
use crate::format::cylinder_group::{CgHeader, bitmap_checksum};
use crate::format::inode::{DiskInode, FileType, Record};
use crate::format::sector::{self, Body};
use crate::format::{Layout, Superblock};
use crate::journal::{erase, has_journal};
use crate::units::{BlockNo, CgIndex, Container, EpochNo, InodeNo, SectorIndex};

mod journal;
mod options;
#[cfg(test)]
mod tests;

pub use journal::set_journal;
pub use options::{LABEL_BYTES_MAX, MkfsOptions};
pub(crate) use options::{blocks_of, check_label, check_reserve};

/// The beginning of a device, which has the signature of any file system. Remains of another one would
/// mislead programs such as blkid(8).
const SIGNATURES_BYTES: u64 = 128 << 10;

/// Makes a volume of the whole device and returns its superblock. The device's contents are lost, and so are
/// those of a separate [device for the journal](BlockDevice::journal_device).
///
/// Fails with [`Error::Unsupported`], and leaves the device as it is, if the options contradict
/// each other or the device is too small.
pub fn make(device: &dyn BlockDevice, options: &MkfsOptions) -> Result<Superblock> {
    let medium = device.journal_device();
    let superblock = match &medium {
        Some(medium) => options.plan_with_journal_on(medium.geometry(), device.geometry())?,
        None => options.plan(device.geometry())?,
    };
    let layout = Layout::new(&superblock);
    let block_bytes = layout.block_bytes as usize;
    let write = |block: BlockNo, bytes: &[u8]| {
        device.write_at(layout.block_offset(block), &[IoSlice::new(bytes)])
    };

    write(BlockNo(0), &vec![0; block_bytes])?;
    device.barrier()?;
    let head = device.geometry().size_bytes.min(SIGNATURES_BYTES);
    write(BlockNo(1), &vec![0; (head as usize).saturating_sub(block_bytes)])?;
    device.barrier()?;
    if options.discard {
        // Discarded blocks may have any contents, but none may be taken for a superblock now.
        let from = block_bytes as u64;
        device.discard(from, device.geometry().size_bytes - from)?;
    }

    let mut superblock_block = vec![0; block_bytes];
    let encoded = superblock.encode();
    superblock_block[..encoded.len()].copy_from_slice(&encoded);
    let system_area = system_area(&superblock, options)?;
    write(layout.system_area(), &[&system_area[..], &first_group(&superblock)].concat())?;
    if has_journal(&superblock) {
        erase(medium.as_deref().unwrap_or(device), &superblock)?;
    }
    // The copies come last: one that is found belongs to a complete volume.
    device.barrier()?;
    let copy = [&superblock_block[..], &system_area].concat();
    for block in layout.superblock_copies() {
        write(block, &copy)?;
    }
    // A sync would commit a volume in a store without its superblock.
    device.barrier()?;
    write(BlockNo(0), &superblock_block)?;
    device.sync()?;
    Ok(superblock)
}

/// The block of the system area: sectors with the inodes of the root directory, the locator and
/// the external inode table.
fn system_area(superblock: &Superblock, options: &MkfsOptions) -> Result<Vec<u8>> {
    let layout = Layout::new(superblock);
    let mut block = vec![0; layout.block_bytes as usize];
    let sector_bytes = layout.sector_bytes as usize;
    for (image, index) in block.chunks_exact_mut(sector_bytes).zip(0..) {
        let container = Container { file: InodeNo::SYSTEM, sector: SectorIndex(index) };
        sector::init(image, container, 0);
        for ino in [InodeNo::ROOT, InodeNo::LOCATOR, InodeNo::EXTERNAL] {
            if layout.system_container(ino) != container {
                continue;
            }
            let (file_type, inode) = system_inode(ino, options);
            let record = Record { inode: &inode, data: &[], xattrs: &[], tags: &[] };
            sector::insert(image, 0, b"", file_type, &Body::Embedded(record))
                .ok_or_else(|| Error::Unsupported("no room for the system's inodes".into()))?;
        }
        sector::seal(image, EpochNo(superblock.epoch), superblock.checksum());
    }
    Ok(block)
}

fn system_inode(ino: InodeNo, options: &MkfsOptions) -> (FileType, DiskInode) {
    let (file_type, permissions, nlink, uid, gid, parent) = match ino {
        InodeNo::ROOT => {
            (FileType::Directory, 0o755, 2, options.root_uid, options.root_gid, InodeNo::ROOT)
        }
        _ => (FileType::Regular, 0o600, 1, 0, 0, InodeNo(0)),
    };
    let mut inode = DiskInode {
        ino: ino.0.into(),
        mode: ((file_type.mode_bits() | permissions) as u16).into(),
        uid: uid.into(),
        gid: gid.into(),
        nlink: nlink.into(),
        parent: parent.0.into(),
        ..DiskInode::new_zeroed()
    };
    let Timestamp { seconds, nanoseconds } = options.now;
    for field in [
        &mut inode.atime_seconds,
        &mut inode.mtime_seconds,
        &mut inode.ctime_seconds,
        &mut inode.btime_seconds,
    ] {
        *field = seconds.into();
    }
    for field in [
        &mut inode.atime_nanoseconds,
        &mut inode.mtime_nanoseconds,
        &mut inode.ctime_nanoseconds,
        &mut inode.btime_nanoseconds,
    ] {
        *field = nanoseconds.into();
    }
    (file_type, inode)
}

/// The blocks of group 0 after the system area: header, free bitmap and intent log.
fn first_group(superblock: &Superblock) -> Vec<u8> {
    let cg = CgIndex(0);
    let layout = Layout::new(superblock);
    let block_bytes = layout.block_bytes as usize;
    let mut bitmap = vec![0; layout.bitmap_blocks() as usize * block_bytes];
    let mut free_fragments = 0;
    for fragment in 0..layout.cg_fragments(cg) {
        let block = BlockNo(u64::from(fragment / layout.block_fragments()));
        if !layout.is_reserved(block) {
            bitmap[fragment as usize / 8] |= 1 << (fragment % 8);
            free_fragments += 1;
        }
    }
    let header = CgHeader {
        cg,
        free_fragments,
        rotor: 0,
        bitmap_checksum: bitmap_checksum(&bitmap),
        generation: superblock.generation,
        clusters: 0,
        counts_checksum: bitmap_checksum(&vec![0; layout.count_bytes()]),
    };
    let header_blocks = layout.cg_header(cg).0 as usize;
    let mut bytes = vec![0; layout.cg_reserved_blocks(cg) as usize * block_bytes];
    let (head, rest) = bytes.split_at_mut((header_blocks + 1) * block_bytes);
    header.encode_into(&mut head[header_blocks * block_bytes..], superblock.checksum());
    rest[..bitmap.len()].copy_from_slice(&bitmap);
    bytes.split_off(header_blocks * block_bytes)
}
