//! A volume with a journal of arbitrary contents: opening it ends, and a later opening finds the records
//! written after that.

use std::sync::LazyLock;

use cffs::device::{BlockDevice, Image, Journal, MemoryDevice};
use cffs::format::Superblock;
use cffs::format::journal::{Entry, HEADER_BLOCKS, Header, Place, Record, image_checksum};
use cffs::format::superblock::State;
use cffs::journal::JournaledDevice;
use cffs::mkfs::{self, MkfsOptions};
use cffs::units::BlockNo;

use crate::input::Input;

const BLOCK_BYTES: usize = 4096;
const JOURNAL_BLOCKS: u64 = 20;
/// The block that is journaled after the damage.
const HOME: u64 = 200;
/// The checksum of a header, and of a record.
const CHECKSUM_AT: usize = 4;
/// The bytes of a header and of the head of a record that are damaged: the rest is zeros or images.
const DAMAGED_BYTES: usize = 64;

struct Sample {
    image: Image,
    superblock: Superblock,
    /// The block of the journal after its last record.
    end: u64,
}

/// A volume with two records in its journal.
static SAMPLE: LazyLock<Sample> = LazyLock::new(|| {
    let device = MemoryDevice::new(1 << 20);
    let options = MkfsOptions {
        cg_blocks: 256,
        uuid: Some([1; 16]),
        hash_seed: Some([2; 16]),
        journal_bytes: JOURNAL_BLOCKS * BLOCK_BYTES as u64,
        ..MkfsOptions::default()
    };
    let made = mkfs::make(&device, &options).expect("made");
    let superblock = Superblock { state: State::InUse, ..made };
    put(&device, 0, &superblock.encode());
    let (journaled, _) = JournaledDevice::open(&device, &superblock);
    for value in [1, 2] {
        let image = [value; BLOCK_BYTES];
        let blocks = [HOME, HOME + 1].map(|block| (block * BLOCK_BYTES as u64, &image[..]));
        assert!(journaled.commit(&blocks).expect("written"));
    }
    let end = u64::from(HEADER_BLOCKS) + 2 * 3;
    Sample { image: device.snapshot(), superblock, end }
});

fn put(device: &MemoryDevice, block: u64, bytes: &[u8]) {
    let at = block * BLOCK_BYTES as u64;
    device.write_at(at, &[std::io::IoSlice::new(bytes)]).expect("it lies on the device");
}

fn block_at(device: &dyn BlockDevice, block: u64) -> Vec<u8> {
    let mut bytes = vec![0; BLOCK_BYTES];
    device.read_at(block * BLOCK_BYTES as u64, &mut bytes).expect("it lies on the device");
    bytes
}

/// A valid third record at its right place, for the block that the input names.
fn add_record(device: &MemoryDevice, sample: &Sample, input: &mut Input<'_>) {
    let checksum = sample.superblock.checksum();
    let start = sample.superblock.journal.start;
    let header = Header::decode(&block_at(device, start), checksum).expect("valid");
    let (_, previous) = Record::decode(&block_at(device, start + 5), checksum).expect("valid");
    let image = [3; BLOCK_BYTES];
    let number = u64::from(input.byte()) << (input.byte() % 64);
    let entry = Entry { block: BlockNo(number), checksum: image_checksum(&image) };
    let place = Place { era: header.era, sequence: 2, previous };
    let mut head = vec![0; BLOCK_BYTES];
    Record { place, entries: vec![entry; 1 + usize::from(input.byte() % 4)] }
        .encode_into(&mut head, checksum);
    put(device, start + sample.end, &head);
    for block in sample.end + 1..JOURNAL_BLOCKS {
        put(device, start + block, &image);
    }
}

/// A damaged journal with valid checksums.
pub fn journal(data: &[u8]) {
    let sample = &*SAMPLE;
    let (superblock, start) = (&sample.superblock, sample.superblock.journal.start);
    let mut input = Input::new(data);
    let device = MemoryDevice::from_image(sample.image.clone());
    if input.byte().is_multiple_of(2) {
        add_record(&device, sample, &mut input);
    }
    let damages = input.byte() % 4;
    for _ in 0..damages {
        // Everything else is reached from the headers and the first record.
        let blocks = [JOURNAL_BLOCKS, 3][usize::from(input.byte() % 2)];
        let block = start + u64::from(input.byte()) % blocks;
        let mut bytes = block_at(&device, block);
        input.damage(&mut bytes[..DAMAGED_BYTES]);
        if !input.byte().is_multiple_of(4) {
            superblock.checksum().seal(&mut bytes, CHECKSUM_AT);
        }
        put(&device, block, &bytes);
    }

    let (journaled, doubt) = JournaledDevice::open(&device, superblock);
    assert_eq!(
        block_at(&journaled, 0),
        block_at(&device, 0),
        "the superblock is not in the journal"
    );
    for block in start..start + JOURNAL_BLOCKS {
        assert_eq!(
            block_at(&journaled, block),
            block_at(&device, block),
            "nor is the journal itself"
        );
    }
    let newest = block_at(&journaled, HOME)[0];
    assert!(newest <= 3, "an image is whole");
    let was_undamaged = damages == 0;
    assert!(!was_undamaged || doubt.is_none() && newest >= 2, "what is valid is found");
    if doubt.is_some()
        || !journaled.commit(&[(HOME * BLOCK_BYTES as u64, &[9; BLOCK_BYTES])]).expect("memory")
    {
        return;
    }
    let (again, doubt) = JournaledDevice::open(&device, superblock);
    assert_eq!((block_at(&again, HOME)[0], doubt), (9, None), "the journaled block is found");
}
