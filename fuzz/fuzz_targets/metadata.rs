//! The other structures of the format, where they refuse some contents, with arbitrary ones: each is
//! refused, or can be used.
//!
//! What identifies a block and its checksum are made right where that is possible from outside,
//! because otherwise no input would ever get past them.
#![no_main]

use cffs::format::Layout;
use cffs::format::checksum::Checksum;
use cffs::format::cylinder_group::CgHeader;
use cffs::format::extent::{Extent, MAP_DEPTH_MAX, Node};
use cffs::format::inode::Record;
use cffs::format::superblock::{SUPERBLOCK_BYTES, Superblock};
use cffs::format::{index, locator, superblock, xattr};
use cffs::units::{BlockNo, CgIndex, FragNo, InodeNo};
use libfuzzer_sys::fuzz_target;

const BLOCK_BYTES: u32 = 4096;
const OWNER: InodeNo = InodeNo(1000);
const GENERATION: u32 = 7;
/// Every structure but the superblock's begins with a magic and a checksum of four bytes each.
const CHECKSUM_AT: usize = 4;

fuzz_target!(|input: (u8, &[u8])| {
    let (which, data) = input;
    match which % 7 {
        0 => superblock(data),
        1 => extents(data),
        2 => attributes(data),
        3 => locator_block(data),
        4 => index_block(data),
        5 => cylinder_group(data),
        _ => record(data),
    }
});

fn checksum() -> Checksum {
    Checksum::new(&[1; 16])
}

/// A block that begins as `valid` does and goes on, from byte `from`, with the input.
fn sealed(valid: &[u8], from: usize, data: &[u8]) -> Vec<u8> {
    let mut block = valid.to_vec();
    let len = data.len().min(block.len() - from);
    block[from..from + len].copy_from_slice(&data[..len]);
    checksum().seal(&mut block, CHECKSUM_AT);
    block
}

fn superblock(data: &[u8]) {
    let mut bytes = [0; SUPERBLOCK_BYTES];
    let len = data.len().min(SUPERBLOCK_BYTES);
    bytes[..len].copy_from_slice(&data[..len]);
    bytes[..8].copy_from_slice(&superblock::MAGIC);
    bytes[12..16].copy_from_slice(&superblock::VERSION.to_le_bytes());
    let uuid: [u8; 16] = std::array::from_fn(|at| bytes[16 + at]);
    Checksum::new(&uuid).seal(&mut bytes, 8);
    if let Ok(superblock) = Superblock::decode(&bytes, 0) {
        let again = Superblock::decode(&superblock.encode(), 0);
        assert_eq!(again.expect("what was decoded encodes").encode(), superblock.encode());
        Layout::new(&superblock);
    }
}

fn extents(data: &[u8]) {
    let (block, depth) = (BlockNo(99), data.first().map_or(0, |byte| byte % MAP_DEPTH_MAX));
    let none = if depth == 0 { Node::Leaf(Vec::new()) } else { Node::Inner(Vec::new()) };
    let valid = none.encode(OWNER, GENERATION, depth, block, BLOCK_BYTES, checksum());
    let count_at = 20;
    let mut bytes = sealed(&valid, count_at, data.get(1..3).unwrap_or_default());
    bytes = sealed(&bytes, 48, data.get(3..).unwrap_or_default());
    if let Ok(node) = Node::decode(&bytes, OWNER, GENERATION, depth, block, checksum()) {
        let again = node.encode(OWNER, GENERATION, depth, block, BLOCK_BYTES, checksum());
        let again = Node::decode(&again, OWNER, GENERATION, depth, block, checksum());
        assert_eq!(again.expect("what was decoded encodes"), node);
    }
    for extent in Extent::decode_list(data) {
        assert_eq!(Extent::decode(&extent.encode()), extent);
        extent.run();
    }
}

fn attributes(data: &[u8]) {
    let start = FragNo(77);
    let bytes_total = BLOCK_BYTES as usize;
    let valid = xattr::encode_block(&[], OWNER, GENERATION, start, bytes_total, checksum());
    let list_bytes_at = 20;
    let mut bytes = sealed(&valid, list_bytes_at, data.get(..4).unwrap_or_default());
    bytes = sealed(&bytes, xattr::HEADER_BYTES, data.get(4..).unwrap_or_default());
    if let Ok(list) = xattr::decode_block(&bytes, OWNER, GENERATION, start, checksum()) {
        xattr::iter(list).for_each(drop);
    }
    let mut again = Vec::new();
    for pair in xattr::iter(data) {
        match pair {
            Ok((name, value)) => xattr::push(&mut again, name, value),
            Err(_) => return,
        }
    }
    assert_eq!(again, data);
}

fn locator_block(data: &[u8]) {
    let mut bytes = vec![0; BLOCK_BYTES as usize];
    locator::init(&mut bytes, 3);
    let bytes = sealed(&bytes, 32, data);
    if locator::verify(&bytes, 3, checksum()).is_ok() {
        let entries = locator::entries_per_block(BLOCK_BYTES) as usize;
        for position in 0..entries {
            locator::get(&bytes, position);
        }
        assert!(locator::used_count(&bytes) <= entries);
        assert!(locator::find_free(&bytes, 0).is_none_or(|position| position < entries));
    }
}

fn index_block(data: &[u8]) {
    let mut bytes = vec![0; BLOCK_BYTES as usize];
    index::init(&mut bytes, OWNER, GENERATION, 2);
    let bytes = sealed(&bytes, 24, data);
    if index::verify(&bytes, OWNER, GENERATION, 2, checksum()).is_ok() {
        assert_eq!(index::entries(&bytes).count(), index::count(&bytes));
        index::find(&bytes, 0).for_each(drop);
    }
}

fn cylinder_group(data: &[u8]) {
    let cg = CgIndex(5);
    let header = CgHeader { cg, free_fragments: 0, rotor: 0, bitmap_checksum: 0, generation: 0 };
    let mut bytes = vec![0; BLOCK_BYTES as usize];
    header.encode_into(&mut bytes, checksum());
    let bytes = sealed(&bytes, 12, data);
    if let Ok(header) = CgHeader::decode(&bytes, cg, checksum()) {
        let mut again = vec![0; BLOCK_BYTES as usize];
        header.encode_into(&mut again, checksum());
        assert_eq!(CgHeader::decode(&again, cg, checksum()), Ok(header));
    }
}

fn record(data: &[u8]) {
    if let Ok(record) = Record::decode(data) {
        if record.check().is_ok() {
            let mut again = vec![0; record.len()];
            record.encode_into(&mut again);
            let again = Record::decode(&again).expect("what was decoded encodes");
            assert_eq!(again.data, record.data);
            assert_eq!(again.xattrs, record.xattrs);
            record.link_tags().for_each(drop);
            xattr::iter(record.xattrs).for_each(drop);
        }
    }
}
