//! Adds a journal to an existing volume, and removes it.
//!
//! ```text
//!   journal, empty │ block 0: as it will be, but damaged │ bitmap, copies │ block 0: clean
//!            sync                                  sync             sync            sync
//! ```
//!
//! Invariant: while the bitmap may not match what block 0 says of the journal, block 0 calls the volume
//! damaged, and the next opening for writing checks all of it.

use std::io::IoSlice;

use super::options::{place_external_journal, place_journal};
use crate::device::BlockDevice;
use crate::error::{Error, Result};
use crate::format::cylinder_group::{CgHeader, bitmap_checksum};
use crate::format::superblock::{Incompat, JournalArea, SUPERBLOCK_BYTES, State};
use crate::format::{Layout, Superblock};
use crate::journal::{erase, has_journal, is_external};
use crate::units::{BlockNo, CgIndex};

/// The free bitmap of a group in use, with its header.
struct Group {
    header: CgHeader,
    bitmap: Vec<u8>,
}

/// Adds a journal of `bytes` bytes to a clean volume, or removes its journal for `None`. If the journal goes
/// to [another device](BlockDevice::journal_device), the contents of that device are lost. Returns the new
/// superblock. After a crash the volume has its old journal or its new one.
///
/// # Errors
///
/// [`Error::Unsupported`], and nothing is changed, if the volume was not left clean, has a journal already,
/// or no group has enough free space after its head; errors of the device.
pub fn set_journal(device: &dyn BlockDevice, bytes: Option<u64>) -> Result<Superblock> {
    let superblock = read_clean(device)?;
    match (has_journal(&superblock), bytes) {
        (false, None) => Ok(superblock),
        (true, None) => take_journal(device, &superblock),
        (true, _) => {
            refuse("the volume has a journal; remove it first: cffs tune --journal none".into())
        }
        (false, Some(bytes)) => give_journal(device, &superblock, bytes),
    }
}

fn read_clean(device: &dyn BlockDevice) -> Result<Superblock> {
    let mut bytes = [0; SUPERBLOCK_BYTES];
    device.read_at(0, &mut bytes)?;
    let superblock = Superblock::decode(&bytes, 0)?;
    superblock.check_writable()?;
    if superblock.state != State::Clean || superblock.damage.is_some() {
        return refuse("the volume was not left clean; run cffs fsck -p on it first".into());
    }
    Ok(superblock)
}

fn give_journal(device: &dyn BlockDevice, old: &Superblock, bytes: u64) -> Result<Superblock> {
    let Some(medium) = device.journal_device() else {
        let (next, cg) = find_room(device, old, bytes)?;
        erase(device, &next)?;
        return change(device, old, next, Some(cg));
    };
    let mut next = old.clone();
    place_external_journal(&mut next, bytes, medium.geometry().size_bytes)?;
    next.check()?;
    erase(&*medium, &next)?;
    change(device, old, next, None)
}

fn take_journal(device: &dyn BlockDevice, old: &Superblock) -> Result<Superblock> {
    let mut next = old.clone();
    next.incompat.remove(Incompat::JOURNAL);
    next.journal = JournalArea::default();
    let cg = (!is_external(old)).then(|| Layout::new(old).journal_cg);
    change(device, old, next, cg)
}

/// The volume with a journal in the first group with room for it, the nearest to the middle first.
fn find_room(
    device: &dyn BlockDevice,
    superblock: &Superblock,
    bytes: u64,
) -> Result<(Superblock, CgIndex)> {
    let layout = Layout::new(superblock);
    let middle = layout.cgs() / 2;
    let mut groups: Vec<CgIndex> = (0..layout.cgs()).map(CgIndex).collect();
    groups.sort_by_key(|cg| cg.0.abs_diff(middle));
    let (mut refused, mut is_possible) = (None, false);
    for cg in groups {
        let mut next = superblock.clone();
        match place_journal(&mut next, bytes, cg) {
            Ok(()) if is_room_free(device, &next, cg)? => return Ok((next, cg)),
            Ok(()) => is_possible = true,
            Err(why) => refused = refused.or(Some(why)),
        }
    }
    match refused {
        Some(why) if !is_possible => Err(why),
        _ => refuse(format!(
            "no cylinder group has {bytes} free bytes after its head: choose a smaller journal, or let the \
             volume grow first (cffs grow), whose new groups are empty"
        )),
    }
}

/// Whether the blocks of a planned journal are free.
fn is_room_free(device: &dyn BlockDevice, next: &Superblock, cg: CgIndex) -> Result<bool> {
    let (first, count) = fragments(next);
    match Group::read(device, next, cg)? {
        Some(group) => Ok((first..first + count).all(|fragment| group.is_free(fragment))),
        None => Ok(true),
    }
}

/// The first fragment of the journal, counted from the start of its group, and its length in fragments.
fn fragments(superblock: &Superblock) -> (u32, u32) {
    let layout = Layout::new(superblock);
    let first = superblock.journal.start - layout.cg_start(layout.journal_cg).0;
    let per_block = layout.block_fragments();
    (first as u32 * per_block, superblock.journal.blocks * per_block)
}

/// Writes a superblock that differs from the old one in the journal, and the bitmap of the journal's group.
fn change(
    device: &dyn BlockDevice,
    old: &Superblock,
    mut next: Superblock,
    cg: Option<CgIndex>,
) -> Result<Superblock> {
    let gains = has_journal(&next);
    let (first, count) = match cg {
        Some(_) => fragments(if gains { &next } else { old }),
        None => (0, 0),
    };
    let mut group = match cg {
        Some(cg) => Group::read(device, old, cg)?,
        None => None,
    };
    next.free_fragments = match gains {
        true => old.free_fragments.saturating_sub(count.into()),
        false => old.free_fragments + u64::from(count),
    };
    super::check_reserve(&next, next.reserve.fragments)?;
    next.check()?;
    next.state = State::Damaged;
    write_superblock(device, &next, BlockNo(0))?;
    device.sync()?;
    if let Some(group) = &mut group {
        (first..first + count).for_each(|fragment| group.set(fragment, !gains));
        group.write(device, &next)?;
    }
    next.state = State::Clean;
    // The caller removes its mark from the superblock, not from the copies.
    let unmarked = Superblock { holder: None, ..next.clone() };
    for copy in Layout::new(&next).superblock_copies() {
        write_superblock(device, &unmarked, copy)?;
    }
    device.sync()?;
    write_superblock(device, &next, BlockNo(0))?;
    device.sync()?;
    Ok(next)
}

fn write_superblock(device: &dyn BlockDevice, superblock: &Superblock, at: BlockNo) -> Result<()> {
    let layout = Layout::new(superblock);
    let mut block = vec![0; layout.block_bytes as usize];
    let encoded = superblock.encode();
    block[..encoded.len()].copy_from_slice(&encoded);
    Ok(device.write_at(layout.block_offset(at), &[IoSlice::new(&block)])?)
}

impl Group {
    /// `None` for a group that was never used: all of it is free, and it has no bitmap on the device.
    fn read(
        device: &dyn BlockDevice,
        superblock: &Superblock,
        cg: CgIndex,
    ) -> Result<Option<Group>> {
        if cg.0 >= superblock.cgs_made {
            return Ok(None);
        }
        let layout = Layout::new(superblock);
        let mut block = vec![0; layout.block_bytes as usize];
        device.read_at(layout.block_offset(layout.cg_header(cg)), &mut block)?;
        let header = CgHeader::decode(&block, cg, superblock.checksum())?;
        let mut bitmap = vec![0; layout.bitmap_blocks() as usize * block.len()];
        device.read_at(layout.block_offset(layout.cg_bitmap(cg)), &mut bitmap)?;
        if bitmap_checksum(&bitmap) != header.bitmap_checksum {
            return refuse(format!("the bitmap of group {} is damaged; run cffs fsck", cg.0));
        }
        Ok(Some(Group { header, bitmap }))
    }

    fn is_free(&self, fragment: u32) -> bool {
        self.bitmap[fragment as usize / 8] >> (fragment % 8) & 1 == 1
    }

    fn set(&mut self, fragment: u32, is_free: bool) {
        let (byte, bit) = (&mut self.bitmap[fragment as usize / 8], 1 << (fragment % 8));
        *byte = if is_free { *byte | bit } else { *byte & !bit };
    }

    fn write(&mut self, device: &dyn BlockDevice, superblock: &Superblock) -> Result<()> {
        let (cg, layout) = (self.header.cg, Layout::new(superblock));
        self.header.bitmap_checksum = bitmap_checksum(&self.bitmap);
        self.header.free_fragments = self.bitmap.iter().map(|byte| byte.count_ones()).sum();
        let mut block = vec![0; layout.block_bytes as usize];
        self.header.encode_into(&mut block, superblock.checksum());
        let header = layout.block_offset(layout.cg_header(cg));
        device.write_at(header, &[IoSlice::new(&block)])?;
        let bitmap = layout.block_offset(layout.cg_bitmap(cg));
        Ok(device.write_at(bitmap, &[IoSlice::new(&self.bitmap)])?)
    }
}

fn refuse<T>(why: String) -> Result<T> {
    Err(Error::Unsupported(why))
}
