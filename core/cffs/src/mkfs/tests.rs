use super::*;
use crate::device::fault::{Effect, Fault, Strike, Target};
use crate::device::{
    FaultDevice, Geometry, MemoryDevice, RequestKind, TraceDevice, VolatileDevice,
};
use crate::format::Layout;
use crate::format::sector::Sector;
use crate::format::superblock::{Incompat, Policy, State};

const MIB: u64 = 1 << 20;

fn fixed() -> MkfsOptions {
    MkfsOptions {
        uuid: Some(*b"0123456789abcdef"),
        hash_seed: Some(*b"fedcba9876543210"),
        now: Timestamp { seconds: 1_700_000_000, nanoseconds: 7 },
        ..MkfsOptions::default()
    }
}

fn read(device: &dyn BlockDevice, offset: u64, len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len];
    device.read_at(offset, &mut bytes).unwrap();
    bytes
}

/// Reads back everything that a volume begins with and checks it against the superblock.
fn check(device: &dyn BlockDevice, superblock: &Superblock) {
    let layout = Layout::new(superblock);
    let checksum = superblock.checksum();
    let block_bytes = layout.block_bytes as usize;
    let block = |block: BlockNo, blocks: usize| {
        read(device, layout.block_offset(block), blocks * block_bytes)
    };
    for place in std::iter::once(BlockNo(0)).chain(layout.superblock_copies()) {
        let found = Superblock::decode(&block(place, 1), layout.block_offset(place)).unwrap();
        assert_eq!(found, *superblock);
        let area = block(BlockNo(place.0 + 1), 1);
        let mut found = Vec::new();
        for (image, index) in area.chunks_exact(layout.sector_bytes as usize).zip(0..) {
            let container = Container { file: InodeNo::SYSTEM, sector: SectorIndex(index) };
            sector::verify(image, container, 0, checksum).unwrap();
            for entry in Sector::new(image).entries() {
                assert_eq!(layout.system_container(entry.ino()), container);
                found.push(entry.ino());
            }
        }
        assert_eq!(found, [InodeNo::ROOT, InodeNo::LOCATOR, InodeNo::EXTERNAL]);
    }
    let cg = CgIndex(0);
    let header = CgHeader::decode(&block(layout.cg_header(cg), 1), cg, checksum).unwrap();
    let bitmap = block(layout.cg_bitmap(cg), layout.bitmap_blocks() as usize);
    assert_eq!(header.bitmap_checksum, bitmap_checksum(&bitmap));
    let free: u32 = bitmap.iter().map(|byte| byte.count_ones()).sum();
    assert_eq!(header.free_fragments, free);
    for (byte, index) in bitmap.iter().zip(0u64..) {
        for bit in 0..8 {
            let fragment = crate::units::FragNo(index * 8 + bit);
            let inside = fragment.0 < u64::from(layout.cg_fragments(cg));
            let allocatable = inside && layout.is_allocatable(fragment, 1);
            assert_eq!(byte >> bit & 1 == 1, allocatable, "fragment {fragment}");
        }
    }
    let log = block(layout.intent_log(), 2 * layout.intent_log_half_blocks as usize);
    assert!(log.iter().all(|byte| *byte == 0));
}

#[test]
fn a_volume_reads_back_in_every_geometry() {
    for (block_bytes, fragment_bytes, sector_bytes, size) in [
        (4096, 1024, 4096, 64 * MIB),
        (4096, 1024, 512, 64 * MIB),
        (4096, 1024, 1024, MIB),
        (4096, 512, 2048, 300 * MIB + 12345),
        (4096, 4096, 4096, 20 * MIB),
        (65536, 1024, 4096, 64 * MIB),
        (16384, 2048, 512, 1000 * MIB),
    ] {
        let device = MemoryDevice::with_geometry(Geometry { size_bytes: size, sector_bytes: 4096 });
        let options = MkfsOptions {
            block_bytes,
            fragment_bytes,
            sector_bytes: Some(sector_bytes),
            segment_bytes: 65536,
            ..fixed()
        };
        let superblock = make(&device, &options).unwrap();
        assert_eq!(superblock.sector_bytes, sector_bytes);
        assert_eq!(superblock.state, State::Clean);
        assert_eq!(superblock.cgs_made, 1);
        check(&device, &superblock);
    }
}

#[test]
fn the_same_options_make_the_same_bytes() {
    let make_image = || {
        let device = MemoryDevice::new(16 * MIB);
        make(&device, &fixed()).unwrap();
        device.snapshot()
    };
    assert_eq!(make_image(), make_image());
}

#[test]
fn identities_that_are_not_given_are_random() {
    let options = MkfsOptions::default();
    let first = make(&MemoryDevice::new(16 * MIB), &options).unwrap();
    let second = make(&MemoryDevice::new(16 * MIB), &options).unwrap();
    assert_ne!(first.uuid, second.uuid);
    assert_ne!(first.hash_seed, second.hash_seed);
    assert_ne!(first.uuid, first.hash_seed);
}

#[test]
fn the_root_directory_is_as_requested() {
    let device = MemoryDevice::new(16 * MIB);
    let options = MkfsOptions { root_uid: 1000, root_gid: 100, ..fixed() };
    let superblock = make(&device, &options).unwrap();
    let layout = Layout::new(&superblock);
    let image = read(&device, layout.block_offset(layout.system_area()), 4096);
    let entry = Sector::new(&image).find_inode(InodeNo::ROOT).unwrap();
    let Body::Embedded(record) = entry.body else { panic!("the root is a reference") };
    let inode = record.inode;
    assert_eq!(entry.file_type, FileType::Directory);
    assert_eq!(inode.mode.get(), 0o40755);
    assert_eq!((inode.uid.get(), inode.gid.get(), inode.nlink.get()), (1000, 100, 2));
    assert_eq!((inode.size.get(), inode.fragments.get()), (0, 0));
    assert_eq!(inode.parent.get(), 1);
    for time in [inode.atime(), inode.mtime(), inode.ctime(), inode.btime()] {
        assert_eq!(time, options.now);
    }
}

/// mkfs of 16 TiB must cost what mkfs of 1 GiB costs, but for the copies of the superblock.
#[test]
fn requests_do_not_grow_with_the_size() {
    let requests = |size: u64| {
        let device = TraceDevice::new(MemoryDevice::new(size));
        let superblock = make(&device, &fixed()).unwrap();
        let counts = device.counts();
        check(&device, &superblock);
        let copies = Layout::new(&superblock).superblock_copies().len() as u64;
        (counts.requests() - copies, counts.written_bytes - copies * 8192)
    };
    let (small, small_bytes) = requests(1 << 30);
    let (large, large_bytes) = requests(16 << 40);
    assert_eq!(small, large);
    assert_eq!(small_bytes, large_bytes);
}

#[test]
fn a_last_group_without_room_is_left_out() {
    let cg_bytes = 32768 * 4096;
    for (size, blocks) in [
        (cg_bytes, 32768),
        (cg_bytes + 4096, 32768),
        (cg_bytes + 14 * 4096, 32768),
        (cg_bytes + 15 * 4096, 32768 + 15),
        (cg_bytes + 15 * 4096 + 4095, 32768 + 15),
    ] {
        let device = MemoryDevice::new(size);
        let superblock = make(&device, &fixed()).unwrap();
        assert_eq!(superblock.blocks, blocks, "on {size} bytes");
        check(&device, &superblock);
    }
}

#[test]
fn the_features_and_the_policy_are_those_requested() {
    let options = MkfsOptions { embed: false, inline: false, policy: Policy::None, ..fixed() };
    let superblock = make(&MemoryDevice::new(16 * MIB), &options).unwrap();
    assert_eq!(superblock.incompat, Incompat::empty());
    assert_eq!(superblock.inline_bytes_max, 0);
    assert_eq!(superblock.policy, Policy::None);
    let superblock = make(&MemoryDevice::new(16 * MIB), &fixed()).unwrap();
    assert_eq!(superblock.incompat, Incompat::EMBED | Incompat::INLINE);
    assert_eq!(superblock.inline_bytes_max, 512);
}

#[test]
fn sectors_are_those_of_the_device_unless_said() {
    for (atomic, sector_bytes) in [(512, 512), (4096, 4096), (16384, 4096)] {
        let geometry = Geometry { size_bytes: 16 * MIB, sector_bytes: atomic };
        let superblock = fixed().plan(geometry).unwrap();
        assert_eq!(superblock.sector_bytes, sector_bytes);
        // The longest contents leave room for the header, an inode and a name of one byte.
        assert_eq!(superblock.inline_bytes_max, if sector_bytes == 512 { 291 } else { 512 });
    }
}

#[test]
fn impossible_options_are_refused_and_do_not_change_the_device() {
    let geometry = Geometry { size_bytes: 16 * MIB, sector_bytes: 512 };
    let label = |bytes: &[u8]| MkfsOptions { label: bytes.to_vec(), ..fixed() };
    for (options, message) in [
        (label(&[b'x'; 65]), "the label has 65 bytes, more than 64"),
        (label(b"a\0b"), "the label contains a zero byte"),
        (
            MkfsOptions { block_bytes: 5000, ..fixed() },
            "the block size must be a power of two from 4096 to 65536 bytes, not 5000",
        ),
        (
            MkfsOptions { block_bytes: 2048, ..fixed() },
            "the block size must be a power of two from 4096 to 65536 bytes, not 2048",
        ),
        (
            MkfsOptions { fragment_bytes: 8192, ..fixed() },
            "the fragment size must be a power of two from 512 to 4096 bytes, not 8192",
        ),
        (
            MkfsOptions { block_bytes: 65536, fragment_bytes: 512, ..fixed() },
            "the fragment size must be a power of two from 1024 to 65536 bytes, not 512",
        ),
        (
            MkfsOptions { segment_bytes: 32 << 20, ..fixed() },
            "the segment size must be a power of two from 4096 to 16777216 bytes, not 33554432",
        ),
        (
            MkfsOptions { sector_bytes: Some(8192), ..fixed() },
            "the sector size must be a power of two from 512 to 4096 bytes, not 8192",
        ),
        (
            MkfsOptions { sector_bytes: Some(4096), ..fixed() },
            "the device writes 512 bytes atomically, less than a sector of 4096",
        ),
        (
            MkfsOptions { cg_blocks: 100, ..fixed() },
            "the blocks of a cylinder group must be a power of two from 64 to 1048576, not 100",
        ),
        (
            MkfsOptions { cg_blocks: 64, segment_bytes: 1 << 20, ..fixed() },
            "a segment of 1048576 bytes is larger than a cylinder group of 64 blocks",
        ),
    ] {
        let device = MemoryDevice::with_geometry(geometry);
        device.write_at(0, &[IoSlice::new(b"precious")]).unwrap();
        let before = device.snapshot();
        assert_eq!(make(&device, &options).unwrap_err().to_string(), message);
        assert_eq!(device.snapshot(), before);
    }
}

#[test]
fn a_device_may_be_too_small_or_too_large() {
    let plan = |size_bytes| fixed().plan(Geometry { size_bytes, sector_bytes: 4096 });
    for size in [0, 4096, 63 * 4096] {
        let refused = plan(size).unwrap_err().to_string();
        assert!(refused.contains("too small for a volume; the minimum is 256 KiB"), "{refused}");
    }
    assert_eq!(plan(64 * 4096).unwrap().blocks, 64);
    assert!(plan(1 << 52).unwrap_err().to_string().contains("more than a volume can have"));
    assert!(plan(u64::MAX).unwrap_err().to_string().contains("more than a volume can have"));
}

/// Wherever mkfs fails and whatever a crash then leaves, the device has the old volume untouched,
/// the new one whole, or none.
#[test]
fn a_volume_that_was_half_made_is_none() {
    let device = MemoryDevice::new(16 * MIB);
    let old = make(&device, &fixed()).unwrap();
    let old_image = device.snapshot();
    let again = MkfsOptions { uuid: Some([7; 16]), discard: true, ..fixed() };
    let (mut none, mut whole) = (0, 0);
    for step in 0.. {
        let volatile = VolatileDevice::new(old_image.clone());
        let faulty = FaultDevice::new(&volatile, 0);
        let kinds =
            vec![RequestKind::Write, RequestKind::Barrier, RequestKind::Sync, RequestKind::Discard];
        faulty.arm(Fault {
            target: Target { kinds, bytes: None },
            strike: Strike::From(step),
            effect: Effect::IO_ERROR,
        });
        let made = make(&faulty, &again);
        for seed in 0..50 {
            let crashed = volatile.crash_seeded(seed).unwrap();
            let survivor = MemoryDevice::from_image(crashed.clone());
            match Superblock::decode(&read(&survivor, 0, 512), 0) {
                Ok(superblock) if superblock == old => assert_eq!(crashed, old_image),
                Ok(superblock) => {
                    check(&survivor, &superblock);
                    whole += 1;
                }
                Err(_) => none += 1,
            }
        }
        if made.is_ok() {
            break;
        }
    }
    assert!(none > 0 && whole > 0);
}
