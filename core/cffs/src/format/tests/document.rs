//! `docs/FORMAT.md` against the code: a structure is encoded with a different value in every field,
//! and each row of its table must find the value at its offset. The rows must cover the structure
//! without gaps. So neither can change without the other.

use std::collections::BTreeMap;

use zerocopy::IntoBytes;

use super::{
    DiskInode, EpochNo, FileType, FromZeros, Incompat, InodeFlags, InodeNo, RoCompat, SectorIndex,
    checksum, container, link_tag, superblock,
};
use crate::format::cluster::CLUSTER_HEADER_BYTES;
use crate::format::cylinder_group::{CG_HEADER_BYTES, CgHeader};
use crate::format::extent::{self, Child, EXTENT_BYTES, Extent, Node};
use crate::format::sector::{self, Body};
use crate::format::superblock::SUPERBLOCK_BYTES;
use crate::format::{
    FILE_BYTES_MAX, INODE_NO_MAX, LINKS_MAX, NAME_BYTES_MAX, SYMLINK_BYTES_MAX, cluster, index,
    inode, intent_log, journal, locator, xattr,
};
use crate::units::{BlockNo, CgIndex, FragNo};

const DOCUMENT: &str = include_str!("../../../../../docs/FORMAT.md");

struct Row {
    offset: usize,
    bytes: usize,
    field: String,
}

struct Table {
    bytes: usize,
    rows: Vec<Row>,
}

/// The tables that have a caption "Table `name`, N bytes".
fn tables() -> BTreeMap<String, Table> {
    let mut tables = BTreeMap::new();
    let mut lines = DOCUMENT.lines();
    while let Some(line) = lines.next() {
        let Some(caption) = line.strip_prefix("Table `") else { continue };
        let (name, rest) = caption.split_once("`, ").unwrap();
        let bytes = rest.split(' ').next().unwrap().parse().unwrap();
        let rows = lines
            .by_ref()
            .skip_while(|line| !line.starts_with('|'))
            .take_while(|line| line.starts_with('|'))
            .filter_map(|line| {
                let cells: Vec<&str> = line.split('|').map(str::trim).collect();
                let offset = cells[1].parse().ok()?;
                Some(Row { offset, bytes: cells[2].parse().ok()?, field: cells[3].to_owned() })
            })
            .collect();
        assert!(tables.insert(name.to_owned(), Table { bytes, rows }).is_none(), "{name} twice");
    }
    tables
}

/// The fields of an encoded structure, by their names in the document.
struct Sample {
    encoded: Vec<u8>,
    bytes: usize,
    fields: BTreeMap<&'static str, Vec<u8>>,
}

impl Sample {
    fn new(encoded: Vec<u8>, bytes: usize) -> Sample {
        Sample { encoded, bytes, fields: BTreeMap::new() }
    }

    fn number(self, field: &'static str, value: u64) -> Sample {
        self.bytes(field, &value.to_le_bytes())
    }

    fn bytes(mut self, field: &'static str, value: &[u8]) -> Sample {
        self.fields.insert(field, value.to_vec());
        self
    }

    /// A field whose value the test does not know: only that it is not zero.
    fn any(mut self, field: &'static str) -> Sample {
        self.fields.insert(field, Vec::new());
        self
    }
}

fn check(name: &str, table: &Table, sample: &Sample) {
    assert_eq!(table.bytes, sample.bytes, "{name}");
    let mut end = 0;
    let mut fields: Vec<&str> = Vec::new();
    for Row { offset, bytes, field } in &table.rows {
        assert_eq!(*offset, end, "{name}.{field} leaves a gap or overlaps");
        end += bytes;
        let found = &sample.encoded[*offset..end];
        if matches!(field.as_str(), "reserved" | "pad") {
            assert!(found.iter().all(|byte| *byte == 0), "{name}.{field}");
            continue;
        }
        let expected = sample.fields.get(field.as_str());
        let expected = expected.unwrap_or_else(|| panic!("{name}.{field} is not in the code"));
        if expected.is_empty() {
            assert!(found.iter().any(|byte| *byte != 0), "{name}.{field}");
        } else {
            let mut padded = expected.clone();
            padded.resize(padded.len().max(*bytes), 0);
            assert_eq!(found, &padded[..*bytes], "{name}.{field}");
            assert!(padded[*bytes..].iter().all(|byte| *byte == 0), "{name}.{field} is too short");
        }
        fields.push(field);
    }
    assert_eq!(end, table.bytes, "{name}");
    fields.sort_unstable();
    assert_eq!(fields, sample.fields.keys().copied().collect::<Vec<_>>(), "{name}");
}

fn superblock_sample() -> Sample {
    let s = superblock();
    let (holder, damage) = (s.holder.clone().unwrap(), s.damage.unwrap());
    Sample::new(s.encode().to_vec(), SUPERBLOCK_BYTES)
        .bytes("magic", b"CFFS\r\n\x1a\n")
        .any("checksum")
        .number("version", 2)
        .bytes("uuid", &s.uuid)
        .bytes("label", &s.label)
        .number("compat", s.compat.into())
        .number("ro_compat", s.ro_compat.bits().into())
        .number("incompat", s.incompat.bits().into())
        .number("block_bytes", s.block_bytes.into())
        .number("fragment_bytes", s.fragment_bytes.into())
        .number("sector_bytes", s.sector_bytes.into())
        .number("segment_bytes", s.segment_bytes.into())
        .number("inline_bytes_max", s.inline_bytes_max.into())
        .number("policy", 2)
        .number("state", 2)
        .number("blocks", s.blocks)
        .number("cg_blocks", s.cg_blocks.into())
        .number("cgs_made", s.cgs_made.into())
        .number("generation", s.generation)
        .number("epoch", s.epoch)
        .number("free_fragments", s.free_fragments)
        .number("inodes", s.inodes)
        .number("inode_rotor", s.inode_rotor)
        .number("cg_rotor", s.cg_rotor.into())
        .number("mounts", s.mounts.into())
        .bytes("hash_seed", &s.hash_seed)
        .number("made_at", s.made_at)
        .number("mounted_at", s.mounted_at)
        .bytes("checksum_seed", &s.checksum_seed)
        .bytes("holder_host", &holder.host)
        .bytes("holder_boot", &holder.boot)
        .bytes("holder_name", &holder.name)
        .number("holder_pid", holder.pid.into())
        .number("holder_process_started", holder.process_started.into())
        .number("holder_started", holder.started)
        .number("errors_policy", 2)
        .number("error_flags", 1)
        .number("error_code", damage.code.into())
        .number("error_count", damage.count.into())
        .number("error_first_at", damage.first_at)
        .number("error_last_at", damage.last_at)
        .number("error_ino", damage.ino.0)
        .number("reserve_fragments", s.reserve.fragments)
        .number("reserve_uid", s.reserve.uid.into())
        .number("reserve_gid", s.reserve.gid.into())
        .number("journal_start", s.journal.start)
        .number("journal_blocks", s.journal.blocks.into())
        .number("journal_flags", s.journal.flags.bits().into())
        .bytes("journal_uuid", &s.journal.uuid)
        .bytes("object_id", &s.object_id)
        .number("intent_log_blocks", s.intent_log_blocks.into())
        .number("codec", 1)
        .number("compression_level", 7)
        .number("journal_sequence", s.journal.sequence)
        .number("journal_era", s.journal.era)
        .number("marks", s.marks.into())
        .number("marks_walked", s.marks_walked.into())
}

fn intent_log_sample() -> Sample {
    let mut sector = vec![0xee; 4096];
    let position = intent_log::Position {
        generation: 0x4142_4344_4546_4748,
        sequence: 0x2122_2324,
        previous: 0x3132_3334,
    };
    intent_log::init(&mut sector, position);
    assert!(intent_log::append(&mut sector, &intent_log::Record::Table { position: 7 }));
    intent_log::set_incomplete(&mut sector);
    intent_log::seal(&mut sector, checksum());
    Sample::new(sector, intent_log::HEADER_BYTES)
        .bytes("magic", b"CFbl")
        .any("checksum")
        .number("generation", 0x4142_4344_4546_4748)
        .number("sequence", 0x2122_2324)
        .number("used", 5)
        .number("flags", 1)
        .number("previous", 0x3132_3334)
}

fn journal_samples() -> [(&'static str, Sample); 3] {
    let header = journal::Header {
        sequence: 0x0102_0304,
        era: 0x1112_1314,
        previous: 0x4142_4344,
        blocks: 0x2122,
        uuid: *b"a journal's UUID",
    };
    let mut block = vec![0xee; 4096];
    header.encode_into(&mut block, checksum());
    let place = journal::Place { era: 0x3132_3334, sequence: 0x4142_4344, previous: 0x5152_5354 };
    let entry = journal::Entry { block: BlockNo(0x6162_6364), checksum: 0x7172_7374 };
    let record = journal::Record { place, entries: vec![entry; 2] };
    let mut head = vec![0xee; 4096];
    record.encode_into(&mut head, checksum());
    let entry = head[journal::RECORD_HEADER_BYTES..].to_vec();
    [
        (
            "journal header",
            Sample::new(block, journal::HEADER_BYTES)
                .bytes("magic", b"CFlh")
                .any("checksum")
                .number("sequence", 0x0102_0304)
                .number("era", 0x1112_1314)
                .number("blocks", 0x2122)
                .bytes("uuid", b"a journal's UUID")
                .number("previous", 0x4142_4344),
        ),
        (
            "journal record",
            Sample::new(head, journal::RECORD_HEADER_BYTES)
                .bytes("magic", b"CFlr")
                .any("checksum")
                .number("era", 0x3132_3334)
                .number("sequence", 0x4142_4344)
                .number("previous", 0x5152_5354)
                .number("count", 2),
        ),
        (
            "journal entry",
            Sample::new(entry, journal::ENTRY_BYTES)
                .number("block", 0x6162_6364)
                .number("checksum", 0x7172_7374),
        ),
    ]
}

fn cylinder_group_sample() -> Sample {
    let header = CgHeader {
        cg: CgIndex(0x0a0b),
        free_fragments: 0x1112_1314,
        rotor: 0x2122_2324,
        bitmap_checksum: 0x3132_3334,
        generation: 0x4142_4344_4546_4748,
        clusters: 0x5152_5354,
        counts_checksum: 0x6162_6364,
    };
    let mut block = vec![0xee; 4096];
    header.encode_into(&mut block, checksum());
    assert!(block[CG_HEADER_BYTES..].iter().all(|byte| *byte == 0));
    Sample::new(block, CG_HEADER_BYTES)
        .bytes("magic", b"CFcg")
        .any("checksum")
        .number("cg", 0x0a0b)
        .number("free_fragments", 0x1112_1314)
        .number("rotor", 0x2122_2324)
        .number("bitmap_checksum", 0x3132_3334)
        .number("generation", 0x4142_4344_4546_4748)
        .number("clusters", 0x5152_5354)
        .number("counts_checksum", 0x6162_6364)
}

fn cluster_sample() -> Sample {
    let raw = [7; 5000];
    let stored = cluster::Compressor::new(1).unwrap().encode(&raw, 4096, checksum()).unwrap();
    let len = stored.len() as u64;
    Sample::new(stored, CLUSTER_HEADER_BYTES)
        .bytes("magic", b"CFcl")
        .any("checksum")
        .number("codec", 1)
        .number("stored_bytes", len)
        .number("raw_bytes", 5000)
}

fn sector_samples() -> [(&'static str, Sample); 3] {
    let mut image = vec![0; 512];
    sector::init(&mut image, container(0x0102_0304, 0x11_1213), 0x2122_2324);
    let body = Body::Reference { ino: InodeNo(0x3132_3334), sector: SectorIndex(0x4142_4344) };
    sector::insert(&mut image, 0x5152_5354, b"name", FileType::Fifo, &body).unwrap();
    sector::seal(&mut image, EpochNo(0x6162_6364_6566), checksum());
    let used = sector::SECTOR_HEADER_BYTES + sector::entry_bytes(4, sector::REFERENCE_BYTES);
    let entry = image[sector::SECTOR_HEADER_BYTES..].to_vec();
    let reference = entry[sector::ENTRY_HEADER_BYTES + 4..].to_vec();
    [
        (
            "sector",
            Sample::new(image, sector::SECTOR_HEADER_BYTES)
                .bytes("magic", b"CFse")
                .any("checksum")
                .number("owner", 0x0102_0304)
                .number("generation", 0x2122_2324)
                .number("index", 0x11_1213)
                .number("epoch", 0x6162_6364_6566)
                .number("used", used as u64)
                .number("count", 1)
                .number("deferred", 0),
        ),
        (
            "entry",
            Sample::new(entry, sector::ENTRY_HEADER_BYTES)
                .number("len", 28)
                .number("slot", 1)
                .number("hash", 0x5152_5354)
                .number("name_len", 4)
                .number("kind", 2)
                .number("file_type", 1)
                .number("flags", 0),
        ),
        (
            "reference",
            Sample::new(reference, sector::REFERENCE_BYTES)
                .number("ino", 0x3132_3334)
                .number("sector", 0x4142_4344),
        ),
    ]
}

/// Every field of the inode gets the value of its own place in the list.
macro_rules! inode_sample {
    ($($field:ident)*) => {{
        let mut inode = DiskInode::new_zeroed();
        let mut fields = Vec::new();
        $(
            let value = fields.len() as u8 + 1;
            inode.$field.as_mut_bytes()[0] = value;
            fields.push((stringify!($field), value));
        )*
        let mut encoded = vec![0; 300];
        encoded[..inode::DISK_INODE_BYTES].copy_from_slice(inode.as_bytes());
        let sample = Sample::new(encoded, inode::DISK_INODE_BYTES);
        fields.into_iter().fold(sample, |sample, (field, value)| {
            sample.number(field, value.into())
        })
    }};
}

fn inode_samples() -> [(&'static str, Sample); 2] {
    let inode = inode_sample!(
        ino generation mode flags uid gid nlink content_checksum size
        atime_seconds mtime_seconds ctime_seconds btime_seconds
        atime_nanoseconds mtime_nanoseconds ctime_nanoseconds btime_nanoseconds
        parent key hint_start hint_len data_len xattr_len special fragments change
        xattr_block map_root map_depth tag_count changed below
    );
    let mut bytes = Vec::new();
    link_tag().encode(&mut bytes);
    let tag = Sample::new(bytes, inode::LINK_TAG_BYTES)
        .number("epoch", 0x0102_0304_0506)
        .number("file", 77)
        .number("sector", 88)
        .number("count", 99)
        .number("kind", 2);
    [("inode", inode), ("linktag", tag)]
}

fn extent_samples() -> [(&'static str, Sample); 3] {
    let extent = Extent {
        logical: 0x98_7654_3210,
        start: FragNo(0xbeef_1234_5678),
        len: 0xab_cdef,
        unwritten: true,
        cluster: None,
    };
    let extent = Sample::new(extent.encode().to_vec(), EXTENT_BYTES)
        .number("place", 0x98_7654_3210 | 0xab_cdef << 40)
        .number("start", 0xbeef_1234_5678 | 1 << 63);
    let child = Child { logical: 0x0102_0304_0506, block: BlockNo(0x1112_1314) };
    let node = Node::Inner(vec![child]);
    let block = BlockNo(0x2122_2324);
    let bytes = node.encode(InodeNo(0x3132_3334), 0x4142_4344, 2, block, 4096, checksum());
    let child = Sample::new(bytes[48..].to_vec(), EXTENT_BYTES)
        .number("logical", 0x0102_0304_0506)
        .number("block", 0x1112_1314);
    let block = Sample::new(bytes, 4096 - extent::node_capacity(4096) * EXTENT_BYTES)
        .bytes("magic", b"CFxt")
        .any("checksum")
        .number("owner", 0x3132_3334)
        .number("generation", 0x4142_4344)
        .number("count", 1)
        .number("depth", 2)
        .number("block", 0x2122_2324);
    [("extent", extent), ("extent block", block), ("child", child)]
}

fn table_samples() -> [(&'static str, Sample); 5] {
    let start = FragNo(0x0102_0304);
    let list = [9; 11];
    let (owner, generation) = (InodeNo(0x1112_1314), 0x2122_2324);
    let xattr = xattr::encode_block(&list, owner, generation, start, 1024, checksum());
    let xattr = Sample::new(xattr, xattr::HEADER_BYTES)
        .bytes("magic", b"CFxa")
        .any("checksum")
        .number("owner", owner.0)
        .number("generation", generation.into())
        .number("list_bytes", 11)
        .number("start", start.0);

    let mut bytes = vec![0; 4096];
    index::init(&mut bytes, owner, generation, 0x3132_3334);
    for _ in 0..=index::bucket_capacity(4096) {
        index::insert(&mut bytes, 0x4142_4344, SectorIndex(0x5152_5354));
    }
    index::seal(&mut bytes, checksum());
    let entry = Sample::new(bytes[32..].to_vec(), 8)
        .number("hash", 0x4142_4344)
        .number("sector", 0x5152_5354);
    let bucket = Sample::new(bytes, 4096 - 8 * index::bucket_capacity(4096))
        .bytes("magic", b"CFix")
        .any("checksum")
        .number("owner", owner.0)
        .number("generation", generation.into())
        .number("bucket", 0x3132_3334)
        .number("count", index::bucket_capacity(4096) as u64)
        .number("flags", 1);

    let mut bytes = vec![0; 4096];
    locator::init(&mut bytes, 0x6162_6364);
    let place = container(0x7172_7374, 0x0a0b_0c0d);
    locator::set(&mut bytes, 0, locator::Entry { container: Some(place), generation });
    locator::seal(&mut bytes, checksum());
    let locator_entry = Sample::new(bytes[32..].to_vec(), locator::ENTRY_BYTES)
        .number("file", 0x7172_7374)
        .number("sector", 0x0a0b_0c0d)
        .number("generation", generation.into());
    let header = 4096 - locator::ENTRY_BYTES * locator::entries_per_block(4096) as usize;
    let locator = Sample::new(bytes, header)
        .bytes("magic", b"CFlo")
        .any("checksum")
        .number("index", 0x6162_6364)
        .number("used", 1);
    [
        ("attribute block", xattr),
        ("index bucket", bucket),
        ("index entry", entry),
        ("locator block", locator),
        ("locator entry", locator_entry),
    ]
}

#[test]
fn every_table_is_what_the_code_writes() {
    let mut samples: BTreeMap<&str, Sample> = BTreeMap::new();
    samples.insert("superblock", superblock_sample());
    samples.insert("cylinder group", cylinder_group_sample());
    samples.insert("cluster", cluster_sample());
    samples.insert("intent log sector", intent_log_sample());
    samples.extend(journal_samples());
    samples.extend(sector_samples());
    samples.extend(inode_samples());
    samples.extend(extent_samples());
    samples.extend(table_samples());
    let tables = tables();
    let names: Vec<&str> = tables.keys().map(String::as_str).collect();
    assert_eq!(names, samples.keys().copied().collect::<Vec<_>>());
    for (name, sample) in &samples {
        check(name, &tables[*name], sample);
    }
}

#[test]
fn every_limit_is_that_of_the_code() {
    let limits: BTreeMap<&str, u64> = DOCUMENT
        .lines()
        .filter_map(|line| {
            let mut cells = line.strip_prefix("| `")?.split('|').map(str::trim);
            Some((cells.next()?.trim_end_matches('`'), cells.next()?.parse().ok()?))
        })
        .collect();
    let expected = BTreeMap::from([
        ("NAME_BYTES_MAX", NAME_BYTES_MAX as u64),
        ("SYMLINK_BYTES_MAX", SYMLINK_BYTES_MAX as u64),
        ("FILE_BYTES_MAX", FILE_BYTES_MAX),
        ("INODE_NO_MAX", INODE_NO_MAX.0),
        ("LINKS_MAX", LINKS_MAX.into()),
        ("XATTR_LIST_BYTES_MAX", xattr::XATTR_LIST_BYTES_MAX as u64),
        ("XATTR_VALUE_BYTES_MAX", xattr::XATTR_VALUE_BYTES_MAX as u64),
        ("LINK_TAGS_MAX", inode::LINK_TAGS_MAX as u64),
        ("MAP_DEPTH_MAX", extent::MAP_DEPTH_MAX.into()),
        ("EXTENT_FRAGMENTS_MAX", extent::EXTENT_FRAGMENTS_MAX.into()),
        ("CLUSTER_BYTES_MAX", cluster::CLUSTER_BYTES_MAX as u64),
        ("REFERENCES_MAX", cluster::REFERENCES_MAX.into()),
        ("INDEX_OFFSET_BYTES", index::INDEX_OFFSET_BYTES),
    ]);
    assert_eq!(limits, expected);
}

#[test]
fn every_feature_and_flag_is_named() {
    let row = |cells: &str| assert!(DOCUMENT.contains(cells), "no row {cells}");
    for (name, flag) in RoCompat::all().iter_names() {
        row(&format!("| ro_compat | {} | {name} |", flag.bits().trailing_zeros()));
    }
    for (name, flag) in Incompat::all().iter_names() {
        row(&format!("| incompat | {} | {name} |", flag.bits().trailing_zeros()));
    }
    for (name, flag) in InodeFlags::all().iter_names() {
        row(&format!("| {} | {name} |", flag.bits()));
    }
}
