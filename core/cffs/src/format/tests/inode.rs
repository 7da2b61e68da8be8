use super::*;
use crate::error::Corruption;
use crate::format::inode::{DATA_AREA_BYTES_MIN, DISK_INODE_BYTES, LINK_TAG_BYTES, LINK_TAGS_MAX};
use crate::format::{FILE_BYTES_MAX, INODE_NO_MAX, SYMLINK_BYTES_MAX};

fn encoded(record: &Record<'_>) -> Vec<u8> {
    let mut bytes = vec![0xee; record.len()];
    record.encode_into(&mut bytes);
    bytes
}

proptest! {
    #[test]
    fn the_parts_come_back(
        data in prop::collection::vec(any::<u8>(), 0..100),
        xattrs in prop::collection::vec(any::<u8>(), 0..100),
        tags in 0..=LINK_TAGS_MAX,
    ) {
        let mut tag_bytes = Vec::new();
        (0..tags).for_each(|_| link_tag().encode(&mut tag_bytes));
        let inode = disk_inode(20);
        let record = Record { inode: &inode, data: &data, xattrs: &xattrs, tags: &tag_bytes };
        prop_assert_eq!(record.len(), Record::encoded_len(data.len(), xattrs.len(), tags));
        let bytes = encoded(&record);
        let found = Record::decode(&bytes).unwrap();
        prop_assert_eq!(found.inode.number(), InodeNo(20));
        prop_assert_eq!(found.data, &data[..]);
        prop_assert_eq!(found.xattrs, &xattrs[..]);
        let found: Vec<LinkTag> = found.link_tags().collect();
        prop_assert_eq!(found, vec![link_tag(); tags]);
        // A byte more or less does not pass.
        prop_assert!(Record::decode(&bytes[..bytes.len() - 1]).is_err());
        prop_assert!(Record::decode(&[&bytes[..], &[0]].concat()).is_err());
    }

    #[test]
    fn any_bytes_are_refused_or_usable(bytes in prop::collection::vec(any::<u8>(), 0..400)) {
        if let Ok(record) = Record::decode(&bytes) {
            let _ = record.check();
            prop_assert!(record.link_tags().count() <= LINK_TAGS_MAX);
        }
    }
}

#[test]
fn the_data_area_always_has_room_for_two_extents() {
    let inode = disk_inode(20);
    let record = Record { inode: &inode, data: b"abc", xattrs: b"", tags: b"" };
    let bytes = encoded(&record);
    assert_eq!(bytes.len(), DISK_INODE_BYTES + DATA_AREA_BYTES_MIN);
    // Earlier bytes there do not show.
    assert!(bytes[DISK_INODE_BYTES + 3..].iter().all(|byte| *byte == 0));
    let mut rest = bytes.clone();
    Record { data: b"", ..record }.encode_into(&mut rest);
    assert!(rest[DISK_INODE_BYTES..].iter().all(|byte| *byte == 0));
}

#[test]
fn a_linktag_of_an_unknown_kind_ends_the_list() {
    let mut tags = Vec::new();
    (0..3).for_each(|_| link_tag().encode(&mut tags));
    tags[LINK_TAG_BYTES + 24] = 200;
    let inode = disk_inode(20);
    let record = Record { inode: &inode, data: b"", xattrs: b"", tags: &tags };
    assert_eq!(record.link_tags().count(), 1);
}

#[test]
fn too_many_linktags_are_refused() {
    let inode = disk_inode(20);
    let tags = vec![0; (LINK_TAGS_MAX + 1) * LINK_TAG_BYTES];
    let bytes = encoded(&Record { inode: &inode, data: b"", xattrs: b"", tags: &tags });
    assert_eq!(Record::decode(&bytes).err(), Some("too many linktags"));
}

#[test]
fn each_contradiction_is_refused() {
    let refusal = |change: &dyn Fn(&mut DiskInode), data: &[u8]| {
        let mut inode = disk_inode(20);
        change(&mut inode);
        match (Record { inode: &inode, data, xattrs: b"", tags: b"" }).check() {
            Err(Corruption::Inode { ino: InodeNo(20), what }) => what,
            other => panic!("{other:?}"),
        }
    };
    let flagged = |flags: InodeFlags, mode: u16| {
        move |inode: &mut DiskInode| {
            inode.flags = flags.bits().into();
            inode.mode = mode.into();
        }
    };
    for ino in [0, INODE_NO_MAX.0 + 1, u64::MAX] {
        let inode = disk_inode(ino);
        let found = Record { inode: &inode, data: b"", xattrs: b"", tags: b"" }.check();
        let what = "there is no such number";
        assert_eq!(found, Err(Corruption::Inode { ino: InodeNo(ino), what }));
    }
    for mode in [0, 0o30000, 0o110_000, 0o170_000u16] {
        assert_eq!(refusal(&|i| i.mode = mode.into(), b""), "the mode has no file type");
    }
    assert_eq!(refusal(&|i| i.flags = 128.into(), b""), "unknown flags");
    let both = flagged(InodeFlags::COMPRESSION, 0o100_644);
    assert_eq!(refusal(&both, b""), "both flags of compression are set");
    let times = "a time has 1,000,000,000 nanoseconds or more";
    assert_eq!(refusal(&|i| i.atime_nanoseconds = 1_000_000_000.into(), b""), times);
    assert_eq!(refusal(&|i| i.mtime_nanoseconds = 1_000_000_000.into(), b""), times);
    assert_eq!(refusal(&|i| i.ctime_nanoseconds = 1_000_000_000.into(), b""), times);
    assert_eq!(refusal(&|i| i.btime_nanoseconds = u32::MAX.into(), b""), times);
    let large = refusal(&|i| i.size = (FILE_BYTES_MAX + 1).into(), b"");
    assert_eq!(large, "larger than the largest file");
    let inline = InodeFlags::INLINE;
    assert_eq!(
        refusal(&flagged(inline, 0o40755), b""),
        "only files and symbolic links have their contents inline"
    );
    assert_eq!(
        refusal(&flagged(inline, 0o100_644), b"x"),
        "the size is not that of the inline contents"
    );
    let both = |i: &mut DiskInode| {
        flagged(inline, 0o100_644)(i);
        i.map_root = 5.into();
    };
    assert_eq!(refusal(&both, b""), "both inline contents and an extent tree");
    assert_eq!(refusal(&|_| {}, b"0123456789"), "the data area is not a list of extents");
    assert_eq!(
        refusal(&flagged(InodeFlags::CONTENT_CHECKSUM, 0o120_777), b""),
        "only a regular file has a checksum of its contents"
    );
    assert_eq!(
        refusal(&flagged(InodeFlags::INDEXED, 0o100_644), b""),
        "only a directory has an index"
    );
    let long = |i: &mut DiskInode| {
        i.mode = 0o120_777.into();
        i.size = (SYMLINK_BYTES_MAX as u64 + 1).into();
    };
    assert_eq!(refusal(&long, b""), "the target of the symbolic link is too long");
}

#[test]
fn every_type_has_its_bits() {
    for (bits, file_type) in [
        (0o010_000, FileType::Fifo),
        (0o020_000, FileType::CharDevice),
        (0o040_000, FileType::Directory),
        (0o060_000, FileType::BlockDevice),
        (0o100_000, FileType::Regular),
        (0o120_000, FileType::Symlink),
        (0o140_000, FileType::Socket),
    ] {
        assert_eq!(file_type.mode_bits(), bits);
        assert_eq!(FileType::of_mode(bits | 0o7777), Some(file_type));
        assert_eq!(FileType::from_byte((bits >> 12) as u8), Some(file_type));
    }
}
