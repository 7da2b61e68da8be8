//! The place of a journal, the seals of its blocks, and the images in it.

use std::collections::BTreeMap;
use std::io::{self, IoSlice};
use std::sync::Arc;

use crate::device::BlockDevice;
use crate::format::journal::{HEADER_BLOCKS, Header, entries_max, gap_max};
use crate::format::superblock::JournalFlags;
use crate::format::{Checksum, Superblock};

/// The images of blocks, by their places.
pub(super) type Images = BTreeMap<u64, Arc<[u8]>>;

/// The header that a superblock records; all zeros if it records none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Noted {
    pub sequence: u64,
    pub era: u64,
}

impl Noted {
    pub fn of(superblock: &Superblock) -> Noted {
        Noted { sequence: superblock.journal.sequence, era: superblock.journal.era }
    }

    pub fn put(self, superblock: &mut Superblock) {
        (superblock.journal.sequence, superblock.journal.era) = (self.sequence, self.era);
    }
}

impl From<Header> for Noted {
    fn from(header: Header) -> Noted {
        Noted { sequence: header.sequence, era: header.era }
    }
}

/// A journal's place on the device that has it.
#[derive(Clone, Copy)]
pub(super) struct Area {
    pub start: u64,
    pub blocks: u32,
    pub block_bytes: usize,
    /// The blocks of the volume when it was opened.
    pub volume_blocks: u64,
    pub checksum: Checksum,
    pub hash_seed: [u8; 16],
    /// Distinguishes the journal from those of other volumes; zeros where it is on the volume itself.
    pub uuid: [u8; 16],
    /// The most blocks between two records.
    pub gap_max: u32,
    is_external: bool,
}

impl Area {
    pub fn of(superblock: &Superblock) -> Area {
        Area {
            start: superblock.journal.start,
            blocks: superblock.journal.blocks,
            block_bytes: superblock.block_bytes as usize,
            volume_blocks: superblock.blocks,
            checksum: superblock.checksum(),
            hash_seed: superblock.hash_seed,
            uuid: superblock.journal.uuid,
            gap_max: gap_max(superblock.block_bytes, superblock.journal.blocks),
            is_external: superblock.journal.flags.contains(JournalFlags::EXTERNAL),
        }
    }

    /// The byte at which a block of the journal is.
    pub fn offset(&self, block: u32) -> u64 {
        (self.start + u64::from(block)) * self.block_bytes as u64
    }

    /// Whether a block of a volume of `volume_blocks` may have an image in the journal: not the superblock,
    /// nor a block of the journal.
    pub fn is_home(&self, block: u64, volume_blocks: u64) -> bool {
        let is_journal =
            !self.is_external && (self.start..self.start + u64::from(self.blocks)).contains(&block);
        (1..volume_blocks).contains(&block) && !is_journal
    }

    /// The most images of a record.
    pub fn images_max(&self) -> u32 {
        entries_max(self.block_bytes as u32).min(self.blocks - HEADER_BLOCKS - 1)
    }

    /// The header that the superblock has noted.
    pub fn header(&self, noted: Noted) -> Header {
        let Noted { sequence, era } = noted;
        Header { sequence, era, previous: 0, blocks: self.blocks, uuid: self.uuid }
    }

    /// The header after another.
    pub fn next_header(&self, header: &Header, device: &dyn BlockDevice) -> Header {
        header.next(&self.hash_seed, device.nonce())
    }

    /// Writes both blocks with the header, in one request.
    pub fn write_headers(&self, device: &dyn BlockDevice, header: Header) -> io::Result<()> {
        let mut block = vec![0; self.block_bytes];
        header.encode_into(&mut block, self.checksum);
        device.write_at(self.offset(0), &[IoSlice::new(&block); HEADER_BLOCKS as usize])
    }
}
