//! One way to damage a volume for each problem.

use std::io::IoSlice;

use super::image::Image;
use crate::device::BlockDevice;
use crate::format::checksum::name_hash;
use crate::format::extent::{EXTENT_BYTES, Extent};
use crate::format::inode::{FileType, InodeFlags};
use crate::format::intent_log::{self, Position, Record};
use crate::format::quota::{self, QUOTAS_NAME, QuotaRecord};
use crate::format::sector::{self, Body, Sector};
use crate::format::superblock::{Compression, RoCompat};
use crate::format::{cylinder_group, index, locator, xattr};
use crate::fsck::Code::{self, *};
use crate::fsck::Place;
use crate::fsck::fix::Patch;
use crate::fsck::inventory::pieces;
use crate::fsck::walk::Walk;
use crate::units::{BlockNo, CgIndex, Container, FragNo, InodeNo, SectorIndex};

pub(super) struct Case {
    pub name: &'static str,
    pub embed: bool,
    pub compression: Option<Compression>,
    pub codes: &'static [Code],
    /// Damages the volume and returns what is to be reported.
    pub inject: fn(&Image) -> Vec<(Code, Place)>,
    /// Paths that may be gone or changed after the repair.
    pub lost: &'static [&'static str],
}

macro_rules! cases {
    (@) => { None };
    (@ compressed) => { Some(Compression::Zstd(1)) };
    ($($name:ident $embed:literal [$($code:ident),*] [$($lost:literal),*] $($compressed:ident)?;)*) => {
        pub(super) static CASES: &[Case] = &[
            $(Case {
                name: stringify!($name),
                embed: $embed,
                compression: cases!(@ $($compressed)?),
                codes: &[$($code),*],
                inject: $name,
                lost: &[$($lost),*],
            },)*
        ];
    };
}

cases! {
    superblock_lost true [SuperblockLost] [];
    superblock_copy true [SuperblockCopy] [];
    system_copy true [SystemCopy] [];
    system_area true [SystemArea] [];
    system_inode true [SystemInode] [];
    writes_lost true [WritesLost] [];
    sector_lost true [SectorLost, LostDirectory] ["/dir/"];
    table_sector_lost true [TableSectorLost, Dangling] ["/two", "/four", "/links"];
    bad_entry true [BadEntry] [];
    name_hash_wrong true [NameHash] [];
    directory_size true [DirectorySize] [];
    bad_number true [BadNumber] ["/dir/tiny"];
    two_places true [TwoPlaces] [];
    name_twice true [NameTwice] [];
    reference_sector true [ReferenceSector] [];
    entry_type true [EntryType] [];
    embedded_forbidden false [EmbeddedForbidden] [];
    extent_range true [ExtentRange] ["/dir/a"];
    extent_overlap true [ExtentOverlap] ["/dir/a"];
    extent_block true [ExtentBlock] ["/tree"];
    shared_fragments true [SharedFragments] ["/dir/a"];
    fragment_count true [FragmentCount] [];
    contents_changed true [Contents] ["/dir/a"];
    cluster_damaged true [Contents] ["/dir/", "/attributes", "/links/one", "/two", "/long"] compressed;
    cluster_too_short true [Contents] ["/dir/a"] compressed;
    cluster_after_end true [Contents] ["/dir/a"] compressed;
    unexpected_space true [UnexpectedSpace] [];
    fields true [Fields] [];
    symlink_target true [SymlinkTarget] ["/symlink"];
    symlink_target_in_block true [SymlinkTarget] ["/long"];
    symlink_without_target true [SymlinkTarget] ["/symlink"];
    attribute_name true [AttributeList] ["/small"];
    attribute_name_in_block true [AttributeList] ["/attributes"];
    lost_blocks true [SectorLost, DirectorySize, LostBlocks] [];
    stale_inode true [SharedFragments, Contents] ["/dir/a"];
    attribute_list true [AttributeList] ["/small"];
    attribute_block true [AttributeBlock] ["/attributes"];
    link_count true [LinkCount] [];
    directory_counts true [DirectoryCounts] [];
    parent true [Parent] [];
    nameless true [Nameless] ["/two", "/links/one"];
    directory_names false [DirectoryNames] [];
    directory_loop true [DirectoryLoop] [];
    locator_size true [LocatorSize] [];
    locator_block true [LocatorBlock] [];
    locator_entry true [LocatorEntry] [];
    index_wrong true [Index] [];
    group_header true [GroupHeader] [];
    bitmap true [Bitmap] [];
    free_count true [FreeCount] [];
    cluster_references true [ClusterReferences] [];
    groups_made true [GroupsMade] [];
    counters true [Counters] [];
    quota_account true [QuotaAccount] [];
}

fn write(image: &Image, offset: u64, bytes: &[u8]) {
    image.device.write_at(offset, &[IoSlice::new(bytes)]).expect("write");
}

fn flip(image: &Image, offset: u64) {
    let mut byte = [0];
    image.device.read_at(offset, &mut byte).expect("read");
    write(image, offset, &[byte[0] ^ 0x55]);
}

fn home(c: &Walk<'_>, ino: InodeNo) -> (Container, u16) {
    let found = c.meta.inventory.get(ino).expect("an inode");
    (found.container, found.slot)
}

fn inode(image: &Image, path: &str) -> Place {
    Place::Inode(image.ino(path))
}

/// Where a sector is.
fn sector_offset(c: &Walk<'_>, container: Container) -> u64 {
    c.meta.inventory.sector_pieces(container, &c.meta.layout)[0].offset
}

fn superblock_lost(image: &Image) -> Vec<(Code, Place)> {
    flip(image, 100);
    vec![(SuperblockLost, Place::Volume)]
}

fn superblock_copy(image: &Image) -> Vec<(Code, Place)> {
    let (block, offset) = image.with(|c| {
        let block = c.meta.layout.superblock_copies()[0];
        (block, c.meta.layout.block_offset(block))
    });
    flip(image, offset + 100);
    vec![(SuperblockCopy, Place::Block(block))]
}

fn system_copy(image: &Image) -> Vec<(Code, Place)> {
    let (block, offset) = image.with(|c| {
        let block = BlockNo(c.meta.layout.superblock_copies()[0].0 + 1);
        (block, c.meta.layout.block_offset(block))
    });
    flip(image, offset + 100);
    vec![(SystemCopy, Place::Block(block))]
}

fn system_area(image: &Image) -> Vec<(Code, Place)> {
    let container = Container { file: InodeNo::SYSTEM, sector: SectorIndex(0) };
    let offset = image.with(|c| sector_offset(c, container));
    flip(image, offset + 60);
    vec![(SystemArea, Place::Sector(container))]
}

fn system_inode(image: &Image) -> Vec<(Code, Place)> {
    image.with(|c| {
        let (container, slot) = home(c, InodeNo::EXTERNAL);
        c.meta.edit(container, |image| sector::remove(image, slot));
    });
    vec![(SystemInode, Place::Inode(InodeNo::EXTERNAL))]
}

fn sector_lost(image: &Image) -> Vec<(Code, Place)> {
    let dir = image.ino("/dir");
    let container = Container { file: dir, sector: SectorIndex(0) };
    let offset = image.with(|c| sector_offset(c, container));
    flip(image, offset + 200);
    vec![(SectorLost, Place::Sector(container)), (LostDirectory, inode(image, "/dir/inner"))]
}

fn table_sector_lost(image: &Image) -> Vec<(Code, Place)> {
    let container = Container { file: InodeNo::EXTERNAL, sector: SectorIndex(0) };
    let (offset, names) = image.with(|c| {
        let mut names = Vec::new();
        for path in ["/two", "/four", "/links/one", "/links/three"] {
            let ino = image.ino(path);
            let of = |r: &&crate::fsck::inventory::Reference| r.ino == ino;
            names.extend(
                c.meta.inventory.references.iter().filter(of).map(|r| (r.container, r.slot)),
            );
        }
        names.sort_by_key(|name| (sector_offset(c, name.0), name.1));
        names.dedup();
        (sector_offset(c, container), names)
    });
    flip(image, offset + 200);
    let mut expected = vec![(TableSectorLost, Place::Sector(container))];
    expected.extend(names.into_iter().map(|(c, slot)| (Dangling, Place::Entry(c, slot))));
    expected
}

fn bad_entry(image: &Image) -> Vec<(Code, Place)> {
    let ino = image.ino("/dir/tiny");
    let container = image.with(|c| {
        c.meta.edit_record(ino, |record| {
            record.inode.mtime_nanoseconds = u32::MAX.into();
            record.inode.flags |= InodeFlags::COMPRESSION.bits();
        });
        home(c, ino).0
    });
    vec![(BadEntry, Place::Sector(container))]
}

fn name_hash_wrong(image: &Image) -> Vec<(Code, Place)> {
    let ino = image.ino("/dir/tiny");
    let (container, slot) = image.with(|c| {
        let (container, slot) = home(c, ino);
        let record = c.meta.load_record(ino).expect("a record");
        let mut added = 0;
        c.meta.edit(container, |image| {
            sector::remove(image, slot);
            let body = Body::Embedded(record.as_record());
            added = sector::insert(image, 1, b"tiny", FileType::Regular, &body).expect("room");
        });
        (container, added)
    });
    vec![(NameHash, Place::Entry(container, slot))]
}

fn directory_size(image: &Image) -> Vec<(Code, Place)> {
    let ino = image.ino("/dir");
    image.with(|c| {
        c.meta
            .edit_record(ino, |record| record.inode.size = (record.inode.size.get() + 4096).into())
    });
    vec![(DirectorySize, Place::Inode(ino))]
}

fn bad_number(image: &Image) -> Vec<(Code, Place)> {
    let ino = image.ino("/dir/tiny");
    let (container, slot) = image.with(|c| {
        c.meta.edit_record(ino, |record| record.inode.ino = 7.into());
        home(c, ino)
    });
    vec![(BadNumber, Place::Entry(container, slot))]
}

/// Adds a name for a record to the first sector of a directory.
fn add_name(c: &mut Walk<'_>, dir: InodeNo, name: &[u8], ino: InodeNo) -> (Container, u16) {
    let record = c.meta.load_record(ino).expect("a record");
    let file_type = record.inode.file_type().expect("a type");
    let hash = name_hash(&c.meta.superblock.hash_seed, name);
    let container = Container { file: dir, sector: SectorIndex(0) };
    let mut slot = None;
    c.meta.edit(container, |image| {
        let body = Body::Embedded(record.as_record());
        slot = sector::insert(image, hash, name, file_type, &body);
    });
    (container, slot.expect("room"))
}

fn two_places(image: &Image) -> Vec<(Code, Place)> {
    let (ino, dir) = (image.ino("/dir/tiny"), image.ino("/dir/inner"));
    image.with(|c| {
        add_name(c, dir, b"again", ino);
        c.meta.patch(dir, &Patch { entries: Some(3), ..Patch::default() });
    });
    vec![(TwoPlaces, Place::Inode(ino))]
}

fn name_twice(image: &Image) -> Vec<(Code, Place)> {
    let dir = image.ino("/dir");
    let place = image.with(|c| {
        // An empty file of its own number, and a name that is there.
        let number =
            InodeNo(c.meta.inventory.inodes.iter().map(|f| f.ino.0).max().unwrap_or(0) + 1);
        let mut inode = c.meta.new_inode(number, FileType::Regular, 0o644);
        inode.parent = dir.0.into();
        let hash = name_hash(&c.meta.superblock.hash_seed, b"tiny");
        let container = Container { file: dir, sector: SectorIndex(0) };
        let mut slot = None;
        c.meta.edit(container, |image| {
            let record =
                crate::format::inode::Record { inode: &inode, data: &[], xattrs: &[], tags: &[] };
            slot = sector::insert(image, hash, b"tiny", FileType::Regular, &Body::Embedded(record));
        });
        Place::Entry(container, slot.expect("room"))
    });
    vec![(NameTwice, place)]
}

fn reference_sector(image: &Image) -> Vec<(Code, Place)> {
    let ino = image.ino("/two");
    let (container, slot) = image.with(|c| {
        let reference = *c.meta.inventory.references.iter().find(|r| r.ino == ino).expect("a name");
        let body = Body::Reference { ino, sector: SectorIndex(9) };
        c.meta.edit(reference.container, |image| {
            sector::replace(image, reference.slot, &body);
        });
        (reference.container, reference.slot)
    });
    vec![(ReferenceSector, Place::Entry(container, slot))]
}

fn entry_type(image: &Image) -> Vec<(Code, Place)> {
    let ino = image.ino("/two");
    let (container, slot) = image.with(|c| {
        let reference = *c.meta.inventory.references.iter().find(|r| r.ino == ino).expect("a name");
        let mut slot = None;
        c.meta.edit(reference.container, |image| {
            let sector = Sector::new(image);
            let entry = sector.entries().find(|e| e.slot == reference.slot).expect("an entry");
            let (hash, name) = (entry.hash, entry.name.to_vec());
            let body = entry.body;
            let (Body::Reference { ino, sector }, _) = (body, ()) else { panic!("a reference") };
            sector::remove(image, reference.slot);
            let body = Body::Reference { ino, sector };
            slot = sector::insert(image, hash, &name, FileType::Fifo, &body);
        });
        (reference.container, slot.expect("room"))
    });
    vec![(EntryType, Place::Entry(container, slot))]
}

fn embedded_forbidden(image: &Image) -> Vec<(Code, Place)> {
    let ino = image.ino("/dir/tiny");
    let (container, slot) = image.with(|c| {
        let reference = *c.meta.inventory.references.iter().find(|r| r.ino == ino).expect("a name");
        let record = c.meta.load_record(ino).expect("a record");
        let (table, slot) = home(c, ino);
        c.meta.edit(table, |image| sector::remove(image, slot));
        c.meta.edit(reference.container, |image| {
            let body = Body::Embedded(record.as_record());
            assert!(sector::replace(image, reference.slot, &body), "room");
        });
        (reference.container, reference.slot)
    });
    vec![(EmbeddedForbidden, Place::Entry(container, slot))]
}

fn set_extent(c: &mut Walk<'_>, ino: InodeNo, change: impl Fn(&mut Extent)) {
    c.meta.edit_record(ino, |record| {
        let mut extents: Vec<Extent> = Extent::decode_list(&record.data).collect();
        change(&mut extents[0]);
        record.data = extents.iter().flat_map(Extent::encode).collect();
    });
}

fn extent_range(image: &Image) -> Vec<(Code, Place)> {
    let ino = image.ino("/dir/a");
    image.with(|c| {
        let end = FragNo(c.meta.layout.fragments());
        set_extent(c, ino, |extent| extent.start = end);
    });
    vec![(ExtentRange, Place::Inode(ino))]
}

fn extent_overlap(image: &Image) -> Vec<(Code, Place)> {
    let ino = image.ino("/dir/a");
    image.with(|c| {
        c.meta.edit_record(ino, |record| {
            let first = Extent::decode_list(&record.data).next().expect("an extent");
            let (one, mut two) = (Extent { len: 12, ..first }, first);
            two.start = FragNo(first.start.0 + 12);
            two.logical = first.logical + 11;
            two.len = first.len - 12;
            record.data = [one.encode(), two.encode()].concat();
            assert_eq!(record.data.len(), 2 * EXTENT_BYTES);
            let flags = record.inode.inode_flags() - InodeFlags::CONTENT_CHECKSUM;
            record.inode.flags = flags.bits().into();
        });
    });
    vec![(ExtentOverlap, Place::Inode(ino))]
}

fn extent_block(image: &Image) -> Vec<(Code, Place)> {
    let ino = image.ino("/tree");
    let offset = image.with(|c| {
        let record = c.meta.load_record(ino).expect("a record");
        let tree = c.meta.collect_map(&record.as_record()).tree_blocks;
        c.meta.layout.block_offset(*tree.last().expect("a tree"))
    });
    flip(image, offset + 100);
    vec![(ExtentBlock, Place::Inode(ino))]
}

fn shared_fragments(image: &Image) -> Vec<(Code, Place)> {
    let (a, b) = (image.ino("/dir/a"), image.ino("/dir/b"));
    image.with(|c| {
        let record = c.meta.load_record(b).expect("a record");
        let start = Extent::decode_list(&record.data).next().expect("an extent").start;
        set_extent(c, a, |extent| extent.start = start);
        c.meta.patch(a, &Patch { clear_flags: InodeFlags::CONTENT_CHECKSUM, ..Patch::default() });
    });
    vec![(SharedFragments, Place::Inode(a))]
}

/// An inode from before another file was given its space: its checksum shows that the contents are
/// not its own. Once, the repair dropped the checksum and showed the other file's bytes.
fn stale_inode(image: &Image) -> Vec<(Code, Place)> {
    let (a, b) = (image.ino("/dir/a"), image.ino("/dir/b"));
    image.with(|c| {
        let record = c.meta.load_record(b).expect("a record");
        let start = Extent::decode_list(&record.data).next().expect("an extent").start;
        set_extent(c, a, |extent| extent.start = start);
    });
    vec![(Contents, Place::Inode(a)), (SharedFragments, Place::Inode(a))]
}

fn lost_blocks(image: &Image) -> Vec<(Code, Place)> {
    let ino = image.ino("/dir");
    image.with(|c| c.meta.patch(ino, &Patch { generation: Some(77), ..Patch::default() }));
    let sector = Container { file: ino, sector: SectorIndex(0) };
    vec![
        (SectorLost, Place::Sector(sector)),
        (DirectorySize, Place::Inode(ino)),
        (LostBlocks, Place::Inode(ino)),
    ]
}

fn symlink_target(image: &Image) -> Vec<(Code, Place)> {
    let ino = image.ino("/symlink");
    image.with(|c| c.meta.edit_record(ino, |record| record.data[700] = 0));
    vec![(SymlinkTarget, Place::Inode(ino))]
}

fn symlink_without_target(image: &Image) -> Vec<(Code, Place)> {
    let ino = image.ino("/symlink");
    image.with(|c| c.meta.edit_record(ino, |record| record.data[0] = 0));
    vec![(SymlinkTarget, Place::Inode(ino))]
}

fn symlink_target_in_block(image: &Image) -> Vec<(Code, Place)> {
    let ino = image.ino("/long");
    image.with(|c| {
        let record = c.meta.load_record(ino).expect("a record");
        assert!(!record.inode.inode_flags().contains(InodeFlags::INLINE));
        let start = Extent::decode_list(&record.data).next().expect("an extent").start;
        let offset = start.0 * u64::from(c.meta.layout.fragment_bytes);
        let mut bytes = c.meta.disk.read(offset, 1024);
        bytes[700] = 0;
        c.meta.disk.change(offset, &bytes);
    });
    vec![(SymlinkTarget, Place::Inode(ino))]
}

fn attribute_name(image: &Image) -> Vec<(Code, Place)> {
    let ino = image.ino("/small");
    image.with(|c| c.meta.edit_record(ino, |record| record.xattrs[9] = 0));
    vec![(AttributeList, Place::Inode(ino))]
}

fn attribute_name_in_block(image: &Image) -> Vec<(Code, Place)> {
    let ino = image.ino("/attributes");
    image.with(|c| {
        let record = c.meta.load_record(ino).expect("a record");
        let place = c.meta.run_place(record.inode.attribute_run().expect("a block"));
        let mut bytes = c.meta.disk.read(place.offset, place.len);
        bytes[xattr::HEADER_BYTES + 9] = 0;
        c.meta.checksum.seal(&mut bytes, 4);
        c.meta.disk.change(place.offset, &bytes);
    });
    vec![(AttributeList, Place::Inode(ino))]
}

fn fragment_count(image: &Image) -> Vec<(Code, Place)> {
    let ino = image.ino("/dir/a");
    image.with(|c| c.meta.patch(ino, &Patch { fragments: Some(1), ..Patch::default() }));
    vec![(FragmentCount, Place::Inode(ino))]
}

fn contents_changed(image: &Image) -> Vec<(Code, Place)> {
    let ino = image.ino("/dir/a");
    let offset = image.with(|c| {
        let record = c.meta.load_record(ino).expect("a record");
        assert!(record.inode.inode_flags().contains(InodeFlags::CONTENT_CHECKSUM));
        let start = Extent::decode_list(&record.data).next().expect("an extent").start;
        start.0 * u64::from(c.meta.layout.fragment_bytes)
    });
    flip(image, offset + 100);
    vec![(Contents, Place::Inode(ino))]
}

/// Changes a byte of the first cluster with contents of a file, and returns all files that use it.
fn damage_cluster(image: &Image, path: &str) -> Vec<(Code, Place)> {
    let ino = image.ino(path);
    let (offset, users) = image.with(|c| {
        let mut clusters = std::collections::BTreeMap::new();
        for ino in c.meta.inventory.inodes.iter().map(|found| found.ino).collect::<Vec<_>>() {
            let Some(record) = c.meta.load_record(ino) else { continue };
            let map = c.meta.collect_map(&record.as_record()).extents;
            clusters
                .insert(ino, map.into_iter().filter(|e| e.cluster.is_some()).collect::<Vec<_>>());
        }
        let start = clusters[&ino].first().expect("a cluster").start;
        clusters.retain(|_, map| map.iter().any(|extent| extent.start == start));
        (start.0 * u64::from(c.meta.layout.fragment_bytes), clusters)
    });
    flip(image, offset + 200);
    users.into_keys().map(|ino| (Contents, Place::Inode(ino))).collect()
}

fn cluster_damaged(image: &Image) -> Vec<(Code, Place)> {
    let users = damage_cluster(image, "/dir/a");
    assert!(users.len() > 1, "a cluster of one file");
    users
}

/// Moves the part of a file in its cluster after the cluster's end.
fn move_after_cluster(c: &mut Walk<'_>, ino: InodeNo) {
    set_extent(c, ino, |extent| {
        let part = extent.cluster.as_mut().expect("a cluster");
        part.offset = 250 - extent.len as u16;
    });
}

/// A file whose contents are after the end of its cluster.
fn cluster_too_short(image: &Image) -> Vec<(Code, Place)> {
    let ino = image.ino("/dir/a");
    image.with(|c| move_after_cluster(c, ino));
    vec![(Contents, Place::Inode(ino))]
}

/// An empty file with the checksum of other contents. Its extent is after the end of the file and after that
/// of its cluster: the wrong checksum was not reported.
fn cluster_after_end(image: &Image) -> Vec<(Code, Place)> {
    let ino = image.ino("/dir/a");
    image.with(|c| {
        move_after_cluster(c, ino);
        c.meta.patch(ino, &Patch { size: Some(0), ..Patch::default() });
    });
    vec![(Contents, Place::Inode(ino))]
}

fn unexpected_space(image: &Image) -> Vec<(Code, Place)> {
    let ino = image.ino("/pipe");
    image.with(|c| c.meta.patch(ino, &Patch { size: Some(17), ..Patch::default() }));
    vec![(UnexpectedSpace, Place::Inode(ino))]
}

fn fields(image: &Image) -> Vec<(Code, Place)> {
    let ino = image.ino("/dir/a");
    image.with(|c| c.meta.edit_record(ino, |record| record.inode.hint_start = u64::MAX.into()));
    vec![(Fields, Place::Inode(ino))]
}

fn attribute_list(image: &Image) -> Vec<(Code, Place)> {
    let ino = image.ino("/small");
    image.with(|c| c.meta.edit_record(ino, |record| record.xattrs[1] = 200));
    vec![(AttributeList, Place::Inode(ino))]
}

fn attribute_block(image: &Image) -> Vec<(Code, Place)> {
    let ino = image.ino("/attributes");
    let offset = image.with(|c| {
        let record = c.meta.load_record(ino).expect("a record");
        let run = record.inode.attribute_run().expect("a block");
        run.start.0 * u64::from(c.meta.layout.fragment_bytes)
    });
    flip(image, offset + 100);
    vec![(AttributeBlock, Place::Inode(ino))]
}

fn link_count(image: &Image) -> Vec<(Code, Place)> {
    let ino = image.ino("/two");
    image.with(|c| c.meta.patch(ino, &Patch { nlink: Some(5), ..Patch::default() }));
    vec![(LinkCount, Place::Inode(ino))]
}

fn directory_counts(image: &Image) -> Vec<(Code, Place)> {
    let ino = image.ino("/dir");
    image.with(|c| c.meta.patch(ino, &Patch { nlink: Some(9), ..Patch::default() }));
    vec![(DirectoryCounts, Place::Inode(ino))]
}

fn parent(image: &Image) -> Vec<(Code, Place)> {
    let ino = image.ino("/dir/inner");
    image.with(|c| c.meta.patch(ino, &Patch { parent: Some(InodeNo::ROOT), ..Patch::default() }));
    vec![(Parent, Place::Inode(ino))]
}

fn nameless(image: &Image) -> Vec<(Code, Place)> {
    let ino = image.ino("/two");
    image.with(|c| {
        let names: Vec<_> =
            c.meta.inventory.references.iter().filter(|r| r.ino == ino).copied().collect();
        for name in names {
            c.meta.edit(name.container, |image| sector::remove(image, name.slot));
            let dir = name.container.file;
            let entries = c.meta.inventory.containers[&dir].entries - 1;
            c.meta.patch(dir, &Patch { entries: Some(entries), ..Patch::default() });
        }
    });
    vec![(Nameless, Place::Inode(ino))]
}

fn directory_names(image: &Image) -> Vec<(Code, Place)> {
    let (ino, dir) = (image.ino("/dir/inner"), image.ino("/links"));
    let (container, slot) = image.with(|c| {
        let sector = home(c, ino).0.sector;
        let container = Container { file: dir, sector: SectorIndex(0) };
        let hash = name_hash(&c.meta.superblock.hash_seed, b"second");
        let mut slot = None;
        c.meta.edit(container, |image| {
            let body = Body::Reference { ino, sector };
            slot = sector::insert(image, hash, b"second", FileType::Directory, &body);
        });
        c.meta.patch(dir, &Patch { entries: Some(3), ..Patch::default() });
        (container, slot.expect("room"))
    });
    vec![(DirectoryNames, Place::Entry(container, slot))]
}

fn directory_loop(image: &Image) -> Vec<(Code, Place)> {
    let (outer, inner) = (image.ino("/dir"), image.ino("/dir/inner"));
    let (container, slot) = image.with(|c| add_name(c, inner, b"up", outer));
    vec![(DirectoryLoop, Place::Entry(container, slot))]
}

fn locator_size(image: &Image) -> Vec<(Code, Place)> {
    let ino = InodeNo::LOCATOR;
    image.with(|c| c.meta.patch(ino, &Patch { size: Some(100), ..Patch::default() }));
    vec![(LocatorSize, Place::Inode(ino))]
}

/// Where the block of the table with the entry of an inode is.
fn locator_offset(c: &Walk<'_>, ino: InodeNo) -> u64 {
    let len = u64::from(c.meta.layout.block_bytes);
    let (block, _) = locator::position(ino, c.meta.layout.block_bytes);
    pieces(&c.round.locator.extents, block * len, len, &c.meta.layout)[0].offset
}

fn locator_block(image: &Image) -> Vec<(Code, Place)> {
    let ino = image.ino("/dir");
    let offset = image.with(|c| locator_offset(c, ino));
    flip(image, offset + 100);
    vec![(LocatorBlock, Place::Inode(InodeNo::LOCATOR))]
}

fn locator_entry(image: &Image) -> Vec<(Code, Place)> {
    let ino = image.ino("/dir/a");
    image.with(|c| {
        let offset = locator_offset(c, ino);
        let mut bytes = c.meta.disk.read(offset, c.meta.layout.block_bytes as usize);
        let (_, position) = locator::position(ino, c.meta.layout.block_bytes);
        let mut entry = locator::get(&bytes, position);
        entry.container = Some(Container { file: InodeNo::ROOT, sector: SectorIndex(77) });
        locator::set(&mut bytes, position, entry);
        locator::seal(&mut bytes, c.meta.checksum);
        c.meta.disk.change(offset, &bytes);
    });
    vec![(LocatorEntry, Place::Inode(InodeNo::LOCATOR))]
}

fn index_wrong(image: &Image) -> Vec<(Code, Place)> {
    let dir = image.ino("/big");
    image.with(|c| {
        let len = u64::from(c.meta.layout.block_bytes);
        let map = c.meta.inventory.containers[&dir].map.clone();
        let place = pieces(&map, index::INDEX_OFFSET_BYTES, len, &c.meta.layout)[0];
        let mut bytes = c.meta.disk.read(place.offset, place.len);
        let (hash, sector) = index::entries(&bytes).next().expect("a name");
        index::remove(&mut bytes, hash, sector);
        index::seal(&mut bytes, c.meta.checksum);
        c.meta.disk.change(place.offset, &bytes);
    });
    vec![(Index, Place::Inode(dir))]
}

fn group_header(image: &Image) -> Vec<(Code, Place)> {
    let offset = image.with(|c| c.meta.layout.block_offset(c.meta.layout.cg_header(CgIndex(0))));
    flip(image, offset + 100);
    vec![(GroupHeader, Place::Cg(CgIndex(0)))]
}

/// Changes the header and the bitmap of the first group.
fn change_group(
    image: &Image,
    change: impl Fn(&mut cylinder_group::CgHeader, &mut [u8]),
) -> Vec<(Code, Place)> {
    let cg = CgIndex(0);
    image.with(|c| {
        let block = c.meta.layout.block_bytes as usize;
        let offset = c.meta.layout.block_offset(c.meta.layout.cg_header(cg));
        let mut bytes =
            c.meta.disk.read(offset, block * (1 + c.meta.layout.bitmap_blocks() as usize));
        let (head, bitmap) = bytes.split_at_mut(block);
        let mut header =
            cylinder_group::CgHeader::decode(head, cg, c.meta.checksum).expect("a header");
        change(&mut header, bitmap);
        header.bitmap_checksum = cylinder_group::bitmap_checksum(bitmap);
        header.encode_into(head, c.meta.checksum);
        c.meta.disk.change(offset, &bytes);
    });
    Vec::new()
}

fn bitmap(image: &Image) -> Vec<(Code, Place)> {
    change_group(image, |_, bitmap| bitmap[100] ^= 0x0f);
    vec![(Bitmap, Place::Cg(CgIndex(0)))]
}

fn free_count(image: &Image) -> Vec<(Code, Place)> {
    change_group(image, |header, _| header.free_fragments += 1);
    vec![(FreeCount, Place::Cg(CgIndex(0)))]
}

fn cluster_references(image: &Image) -> Vec<(Code, Place)> {
    change_group(image, |header, _| header.clusters += 1);
    vec![(ClusterReferences, Place::Cg(CgIndex(0)))]
}

fn set_superblock(image: &Image, change: impl Fn(&mut crate::format::Superblock)) {
    let bytes = image.with(|c| {
        change(&mut c.meta.superblock);
        c.meta.superblock.encode()
    });
    write(image, 0, &bytes);
}

fn groups_made(image: &Image) -> Vec<(Code, Place)> {
    set_superblock(image, |superblock| superblock.cgs_made = 0);
    vec![(GroupsMade, Place::Volume)]
}

fn counters(image: &Image) -> Vec<(Code, Place)> {
    set_superblock(image, |superblock| superblock.free_fragments += 3);
    vec![(Counters, Place::Volume)]
}

/// A quota on a directory, with the wrong number of bytes.
fn quota_account(image: &Image) -> Vec<(Code, Place)> {
    let dir = image.ino("/dir");
    set_superblock(image, |superblock| superblock.ro_compat.insert(RoCompat::QUOTAS));
    image.with(|c| {
        let mounts = c.meta.superblock.mounts;
        let generation = c.meta.inventory.get(dir).expect("a directory").generation;
        let (limit_bytes, limit_files) = (u64::MAX, u64::MAX);
        let (used_bytes, used_files) = (1, 8);
        let quota = QuotaRecord {
            dir,
            generation,
            mounts,
            limit_bytes,
            limit_files,
            used_bytes,
            used_files,
        };
        c.meta.edit_record(InodeNo::ROOT, |record| {
            xattr::push(&mut record.xattrs, QUOTAS_NAME, &quota::encode(&[quota]));
        });
    });
    vec![(QuotaAccount, Place::Inode(dir))]
}

/// A log of a generation to which the superblock has not come.
fn writes_lost(image: &Image) -> Vec<(Code, Place)> {
    image.with(|checker| {
        let generation = checker.meta.superblock.generation + 2;
        let mut sector = vec![0; checker.meta.layout.sector_bytes as usize];
        intent_log::init(&mut sector, Position { generation, ..Position::default() });
        intent_log::append(&mut sector, &Record::End);
        intent_log::seal(&mut sector, checker.meta.checksum);
        let at = checker.meta.layout.block_offset(checker.meta.layout.intent_log_half(generation));
        checker.meta.disk.change(at, &sector);
    });
    vec![(WritesLost, Place::Volume)]
}
