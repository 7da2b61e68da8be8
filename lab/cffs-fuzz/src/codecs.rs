//! Every structure of the format except the sector, with arbitrary contents or as a damaged copy of a valid
//! one: the decoder refuses it, or it can be used, and encodes to the same bytes.

use cffs::format::checksum::Checksum;
use cffs::format::cylinder_group::CgHeader;
use cffs::format::extent::{Child, Extent, MAP_DEPTH_MAX, Node};
use cffs::format::inode::{DiskInode, InodeFlags, LinkTag, LinkTagKind, Record};
use cffs::format::superblock::{
    Damage, ErrorsPolicy, Holder, Incompat, JournalArea, Policy, Reserve, RoCompat,
    SUPERBLOCK_BYTES, State, Superblock, VERSION,
};
use cffs::format::{
    Layout, index as buckets, locator as table, quota, superblock as volume, xattr,
};
use cffs::units::{BlockNo, CgIndex, Container, EpochNo, FragNo, FragRun, InodeNo, SectorIndex};
use zerocopy::FromZeros;

use crate::input::Input;

const BLOCK_BYTES: u32 = 4096;
const OWNER: InodeNo = InodeNo(1000);
const GENERATION: u32 = 7;
/// Every structure but the superblock's begins with a magic and a checksum of four bytes each.
const CHECKSUM_AT: usize = 4;

fn checksum() -> Checksum {
    Checksum::new(&[1; 16])
}

/// A damaged copy of a valid block, or a block with a valid header of `header_bytes` followed by the input.
fn sealed(valid: &[u8], header_bytes: usize, input: &mut Input<'_>) -> Vec<u8> {
    let mut block = valid.to_vec();
    match input.byte() % 4 {
        0 => {
            let contents = input.rest();
            block[header_bytes..].iter_mut().zip(contents).for_each(|(byte, new)| *byte = *new);
        }
        1 => input.damage(&mut block[..header_bytes]),
        2 => input.damage(&mut block[header_bytes..header_bytes + 256]),
        _ => input.damage(&mut block),
    }
    checksum().seal(&mut block, CHECKSUM_AT);
    block
}

/// A superblock, and the layout computed from it.
pub fn superblock(data: &[u8]) {
    let mut input = Input::new(data);
    let mut bytes = [0; SUPERBLOCK_BYTES];
    if input.byte().is_multiple_of(4) {
        let contents = input.bytes(SUPERBLOCK_BYTES);
        bytes[..contents.len()].copy_from_slice(contents);
        bytes[..8].copy_from_slice(&volume::MAGIC);
        bytes[12..16].copy_from_slice(&VERSION.to_le_bytes());
    } else {
        bytes = valid_superblock().encode();
        // Reserved bytes at its end are ignored.
        input.damage(&mut bytes[..420]);
    }
    let uuid: [u8; 16] = std::array::from_fn(|at| bytes[16 + at]);
    Checksum::new(&uuid).seal(&mut bytes, 8);
    let Ok(superblock) = Superblock::decode(&bytes, 0) else { return };
    let again = Superblock::decode(&superblock.encode(), 0);
    assert_eq!(again.expect("a decoded structure encodes").encode(), superblock.encode());

    let layout = Layout::new(&superblock);
    let last = CgIndex(layout.cgs() - 1);
    for cg in [CgIndex(0), CgIndex(last.0 / 2), last] {
        let end = layout.cg_start(cg).0 + u64::from(layout.cg_len_blocks(cg));
        assert!(end <= layout.blocks);
        assert_eq!(layout.cg_of(BlockNo(end - 1)), cg);
        assert!(layout.cg_header(cg).0 < end && layout.cg_bitmap(cg).0 < end);
        assert!(layout.is_reserved(layout.cg_header(cg)));
    }
    assert!(layout.superblock_copies().iter().all(|copy| copy.0 < layout.blocks));
    assert!(layout.allocatable_fragments() < layout.fragments());
    for fragment in [0, layout.fragments() - 1, layout.fragments(), u64::MAX] {
        layout.is_allocatable(FragNo(fragment), u32::MAX);
    }
}

fn valid_superblock() -> Superblock {
    let mut superblock = Superblock {
        uuid: [3; 16],
        label: b"label".to_vec(),
        compat: 0,
        ro_compat: RoCompat::all(),
        incompat: Incompat::all(),
        block_bytes: BLOCK_BYTES,
        fragment_bytes: 1024,
        sector_bytes: 4096,
        segment_bytes: 65536,
        inline_bytes_max: 512,
        blocks: 100_000,
        cg_blocks: 32_768,
        cgs_made: 2,
        policy: Policy::Directory,
        state: State::Clean,
        generation: 9,
        epoch: 12,
        free_fragments: 1000,
        inodes: 5,
        inode_rotor: 8,
        cg_rotor: 1,
        hash_seed: [4; 16],
        made_at: 1,
        mounted_at: 2,
        mounts: 3,
        checksum_seed: [5; 16],
        holder: Some(Holder { name: b"host".to_vec(), pid: 7, ..Holder::default() }),
        errors_policy: ErrorsPolicy::RemountReadOnly,
        damage: Some(Damage { code: 201, count: 1, ..Damage::default() }),
        reserve: Reserve { fragments: 100, uid: 1, gid: 2 },
        journal: JournalArea::default(),
        object_id: [6; 16],
        intent_log_blocks: 16,
        compression: Default::default(),
        marks: 3,
        marks_walked: 1,
    };
    let layout = Layout::new(&superblock);
    let start = layout.journal_start(CgIndex(layout.cgs() / 2)).0;
    superblock.journal = JournalArea { start, blocks: 64, ..JournalArea::default() };
    debug_assert!(Superblock::decode(&superblock.encode(), 0).is_ok(), "or nothing is tried");
    superblock
}

pub fn cylinder_group(data: &[u8]) {
    let mut input = Input::new(data);
    let cg = CgIndex(5);
    let header = CgHeader {
        cg,
        free_fragments: 9,
        rotor: 1,
        bitmap_checksum: 0,
        generation: 0,
        clusters: 0,
        counts_checksum: 0,
    };
    let mut bytes = vec![0; BLOCK_BYTES as usize];
    header.encode_into(&mut bytes, checksum());
    let bytes = sealed(&bytes, 12, &mut input);
    if let Ok(header) = CgHeader::decode(&bytes, cg, checksum()) {
        let mut again = vec![0; BLOCK_BYTES as usize];
        header.encode_into(&mut again, checksum());
        assert_eq!(CgHeader::decode(&again, cg, checksum()), Ok(header));
    }
}

/// A node of an extent tree, and a list of extents.
pub fn extents(data: &[u8]) {
    let mut input = Input::new(data);
    let block = BlockNo(99);
    let depth = input.byte() % (MAP_DEPTH_MAX + 2);
    let extent = |at: u64| {
        let start = FragNo(1000 + at * 4);
        Extent { unwritten: at.is_multiple_of(2), ..Extent::new(at * 4, FragRun::new(start, 4)) }
    };
    let valid = match depth {
        0 => Node::Leaf((0..9).map(extent).collect()),
        _ => Node::Inner((0..9).map(|at| Child { logical: at * 4, block: BlockNo(at) }).collect()),
    };
    let valid = valid.encode(OWNER, GENERATION, depth, block, BLOCK_BYTES, checksum());
    let bytes = sealed(&valid, 48, &mut input);
    if let Ok(node) = Node::decode(&bytes, OWNER, GENERATION, depth, block, checksum()) {
        let again = node.encode(OWNER, GENERATION, depth, block, BLOCK_BYTES, checksum());
        let again = Node::decode(&again, OWNER, GENERATION, depth, block, checksum());
        assert_eq!(again.expect("a decoded structure encodes"), node);
    }
    for extent in Extent::decode_list(data) {
        assert_eq!(Extent::decode(&extent.encode()), extent);
        extent.run();
    }
}

/// A block of extended attributes, and a list of them.
pub fn attributes(data: &[u8]) {
    let mut input = Input::new(data);
    let start = FragNo(77);
    let mut list = Vec::new();
    xattr::push(&mut list, b"user.small", b"value");
    xattr::push(&mut list, b"user.large", &[5; 1000]);
    let bytes = BLOCK_BYTES as usize;
    let valid = xattr::encode_block(&list, OWNER, GENERATION, start, bytes, checksum());
    let bytes = sealed(&valid, xattr::HEADER_BYTES, &mut input);
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

/// A list of quotas: those that it has room for are decoded, and encode to the same bytes.
pub fn quotas(data: &[u8]) {
    let again = quota::encode(&quota::decode(data));
    assert!(data.starts_with(&again));
    let is_full = again.len() == quota::QUOTAS_MAX * quota::RECORD_BYTES;
    assert!(is_full || data.len() - again.len() < quota::RECORD_BYTES);
}

/// A block of the locator table.
pub fn locator(data: &[u8]) {
    let mut input = Input::new(data);
    let mut bytes = vec![0; BLOCK_BYTES as usize];
    table::init(&mut bytes, 3);
    for position in 0..5 {
        let container = Some(Container { file: OWNER, sector: SectorIndex(position as u32) });
        table::set(&mut bytes, position * 2, table::Entry { container, generation: GENERATION });
    }
    let bytes = sealed(&bytes, 32, &mut input);
    if table::verify(&bytes, 3, checksum()).is_ok() {
        let entries = table::entries_per_block(BLOCK_BYTES) as usize;
        let used = (0..entries).filter(|at| table::get(&bytes, *at).container.is_some()).count();
        assert_eq!(table::used_count(&bytes), used);
        assert!(table::find_free(&bytes, 0).is_none_or(|position| position < entries));
    }
}

/// A bucket of a directory's index.
pub fn index(data: &[u8]) {
    let mut input = Input::new(data);
    let mut bytes = vec![0; BLOCK_BYTES as usize];
    buckets::init(&mut bytes, OWNER, GENERATION, 2);
    let full = input.byte().is_multiple_of(4);
    for hash in 0..if full { 600 } else { 9 } {
        buckets::insert(&mut bytes, hash, SectorIndex(hash / 2));
    }
    let mut bytes = sealed(&bytes, 32, &mut input);
    if buckets::verify(&bytes, OWNER, GENERATION, 2, checksum()).is_err() {
        return;
    }
    let listed: Vec<(u32, SectorIndex)> = buckets::entries(&bytes).collect();
    assert_eq!(listed.len(), buckets::count(&bytes));
    assert!(listed.len() <= buckets::bucket_capacity(BLOCK_BYTES));
    for (hash, sector) in &listed {
        assert!(buckets::find(&bytes, *hash).any(|found| found == *sector));
    }
    for (hash, sector) in listed {
        assert!(buckets::remove(&mut bytes, hash, sector));
    }
    assert_eq!(buckets::count(&bytes), 0);
    buckets::insert(&mut bytes, 1, SectorIndex(1));
}

/// An inode with its attributes and linktags.
pub fn inode(data: &[u8]) {
    let mut input = Input::new(data);
    if input.byte().is_multiple_of(4) {
        check_record(input.rest());
        return;
    }
    let mut xattrs = Vec::new();
    xattr::push(&mut xattrs, b"user.name", b"value");
    let mut tags = Vec::new();
    let tag = LinkTag {
        epoch: EpochNo(1),
        kind: LinkTagKind::Unlinked,
        place: Container { file: OWNER, sector: SectorIndex(2) },
        count: 2,
    };
    tag.encode(&mut tags);
    let mut file = DiskInode::new_zeroed();
    file.ino = 20.into();
    file.mode = 0o100_644.into();
    let inline = input.byte() & 1 != 0;
    let list = Extent::new(0, FragRun::new(FragNo(400), 3)).encode();
    let contents: &[u8] = if inline { b"hello" } else { &list };
    if inline {
        file.flags = InodeFlags::INLINE.bits().into();
    }
    file.size = if inline { 5 } else { 3000 }.into();
    let record = Record { inode: &file, data: contents, xattrs: &xattrs, tags: &tags };
    let mut bytes = vec![0; record.len()];
    record.encode_into(&mut bytes);
    input.damage(&mut bytes);
    check_record(&bytes);
}

fn check_record(bytes: &[u8]) {
    let Ok(record) = Record::decode(bytes) else { return };
    if record.check().is_err() {
        return;
    }
    let mut again = vec![0; record.len()];
    record.encode_into(&mut again);
    let again = Record::decode(&again).expect("a decoded structure encodes");
    assert_eq!(again.data, record.data);
    assert_eq!(again.xattrs, record.xattrs);
    record.link_tags().for_each(drop);
    xattr::iter(record.xattrs).for_each(drop);
}
