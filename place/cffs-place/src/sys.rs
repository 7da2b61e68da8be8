//! The system calls that no library wraps: extents, exchange of extents, comparison and sharing.
//!
//! Each structure is the kernel's, with its size pinned, since the size is part of the request number.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd};
use std::ptr::null_mut;

use rustix::ioctl::{Getter, Updater, ioctl, opcode};
use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap, mmap_anonymous, munmap};

/// The most extents that one call returns.
pub const EXTENTS_PER_CALL: usize = 128;

/// `FIEMAP_FLAG_SYNC`: write the file back first, so that every block is allocated.
const FIEMAP_SYNC: u32 = 1;

/// `struct fiemap_extent`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct RawExtent {
    /// The offset in the file, in bytes.
    pub logical: u64,
    /// The offset on the device, in bytes.
    pub physical: u64,
    pub length: u64,
    reserved_64: [u64; 2],
    /// `FIEMAP_EXTENT_*`.
    pub flags: u32,
    reserved: [u32; 3],
}

#[repr(C)]
struct FiemapHeader {
    start: u64,
    length: u64,
    flags: u32,
    mapped: u32,
    count: u32,
    reserved: u32,
}

#[repr(C)]
struct Fiemap {
    header: FiemapHeader,
    extents: [RawExtent; EXTENTS_PER_CALL],
}

const _: () = assert!(size_of::<FiemapHeader>() == 32 && size_of::<RawExtent>() == 56);

/// Up to [`EXTENTS_PER_CALL`] extents of a file from `start` on. `sync` writes its contents back first.
pub fn fiemap(file: &File, start: u64, sync: bool) -> io::Result<Vec<RawExtent>> {
    let mut request = Fiemap {
        header: FiemapHeader {
            start,
            length: u64::MAX - start,
            flags: if sync { FIEMAP_SYNC } else { 0 },
            mapped: 0,
            count: EXTENTS_PER_CALL as u32,
            reserved: 0,
        },
        extents: [RawExtent::default(); EXTENTS_PER_CALL],
    };
    // SAFETY: FS_IOC_FIEMAP, whose number contains the size of the header alone. The kernel writes at most
    // `count` extents after the header, for which the structure has room.
    unsafe {
        let updater =
            Updater::<{ opcode::read_write::<FiemapHeader>(b'f', 11) }, Fiemap>::new(&mut request);
        ioctl(file, updater)?;
    }
    Ok(request.extents[..(request.header.mapped as usize).min(EXTENTS_PER_CALL)].to_vec())
}

/// `struct move_extent`, in blocks of the file system.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
struct MoveExtent {
    reserved: u32,
    donor_fd: u32,
    orig_start: u64,
    donor_start: u64,
    len: u64,
    moved_len: u64,
}

const _: () = assert!(size_of::<MoveExtent>() == 40);

/// ext4: exchanges `count` blocks of `file` from block `start` on with those of `donor` from `donor_start`
/// on, keeping the contents of `file`. Returns how many blocks were moved, which may be some even on failure.
/// Both files must be open for reading and writing.
pub fn move_extents(
    file: &File,
    start: u64,
    donor: &File,
    donor_start: u64,
    count: u64,
) -> (u64, io::Result<()>) {
    let mut request = MoveExtent {
        reserved: 0,
        donor_fd: donor.as_fd().as_raw_fd() as u32,
        orig_start: start,
        donor_start,
        len: count,
        moved_len: 0,
    };
    // SAFETY: EXT4_IOC_MOVE_EXT reads and writes one `struct move_extent`.
    let result = unsafe {
        let updater = Updater::<{ opcode::read_write::<MoveExtent>(b'f', 15) }, MoveExtent>::new(
            &mut request,
        );
        ioctl(file, updater)
    };
    (request.moved_len.min(count), result.map_err(io::Error::from))
}

/// `struct file_dedupe_range` with one `struct file_dedupe_range_info`.
#[repr(C)]
struct DedupeRange {
    head: DedupeHead,
    dest_fd: i64,
    dest_offset: u64,
    bytes_deduped: u64,
    status: i32,
    reserved: u32,
}

#[repr(C)]
struct DedupeHead {
    src_offset: u64,
    src_length: u64,
    dest_count: u16,
    reserved1: u16,
    reserved2: u32,
}

const _: () = assert!(size_of::<DedupeHead>() == 24 && size_of::<DedupeRange>() == 56);

/// The outcome of a request to share blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Dedupe {
    /// This many bytes are shared now.
    Shared(u64),
    /// The two differ.
    Differs,
}

/// XFS, btrfs: lets `dest` from `dest_offset` on share the blocks of `source`, if both have the same contents
/// there. The kernel compares them with both files locked.
pub fn dedupe(
    source: &File,
    source_offset: u64,
    length: u64,
    dest: &File,
    dest_offset: u64,
) -> io::Result<Dedupe> {
    let mut request = DedupeRange {
        head: DedupeHead {
            src_offset: source_offset,
            src_length: length,
            dest_count: 1,
            reserved1: 0,
            reserved2: 0,
        },
        dest_fd: i64::from(dest.as_fd().as_raw_fd()),
        dest_offset,
        bytes_deduped: 0,
        status: 0,
        reserved: 0,
    };
    // SAFETY: FIDEDUPERANGE, whose number contains the size of the header alone; the kernel reads and writes
    // `dest_count` structures after it, here one.
    unsafe {
        let updater = Updater::<{ opcode::read_write::<DedupeHead>(0x94, 54) }, DedupeRange>::new(
            &mut request,
        );
        ioctl(source, updater)?;
    }
    match request.status {
        0 => Ok(Dedupe::Shared(request.bytes_deduped)),
        1 => Ok(Dedupe::Differs),
        error => Err(io::Error::from_raw_os_error(-error)),
    }
}

/// A piece of a file; `offset` is a multiple of [`PAGE_BYTES`], and `length` is not zero.
#[derive(Clone, Copy, Debug)]
pub struct Piece<'a> {
    pub file: &'a File,
    pub offset: u64,
    pub length: u64,
}

/// The largest page size of the machines for which this is built.
pub const PAGE_BYTES: u64 = 4096;

/// Reads pieces of several files into the page cache, without waiting, as one request to the kernel: during
/// one call it collects its requests to the device and merges adjacent ones, which it does not do across
/// calls.
pub fn read_ahead(pieces: &[Piece<'_>]) -> io::Result<()> {
    let lengths = pieces.iter().map(|piece| piece.length.next_multiple_of(PAGE_BYTES) as usize);
    let total: usize = lengths.clone().sum();
    if total == 0 {
        return Ok(());
    }
    // SAFETY: the kernel chooses the address; no object is in the mapping, and its address has not been
    // passed on.
    let region =
        unsafe { mmap_anonymous(null_mut(), total, ProtFlags::empty(), MapFlags::PRIVATE)? };
    let mut at = 0;
    let mut result = Ok(());
    for (piece, length) in pieces.iter().zip(lengths) {
        // SAFETY: the piece is within the region, which this function owns and nothing refers to. Memory is
        // never accessed through the mapping, so changes to the file do not matter.
        let mapped = unsafe {
            let flags = MapFlags::SHARED | MapFlags::FIXED;
            mmap(region.byte_add(at), length, ProtFlags::READ, flags, piece.file, piece.offset)
        };
        result = result.and(mapped.map(drop));
        at += length;
    }
    // SAFETY: this function owns the region; the advice changes no memory, and no reference outlives the
    // mapping.
    unsafe {
        if result.is_ok() {
            result = madvise(region, total, Advice::WillNeed);
        }
        munmap(region, total)?;
    }
    Ok(result?)
}

/// `struct xfs_fsop_geom_v1`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct XfsGeometry {
    pub block_bytes: u32,
    realtime_extent_blocks: u32,
    /// The size of an allocation group, in blocks.
    pub group_blocks: u32,
    /// The number of allocation groups.
    pub groups: u32,
    journal_blocks: u32,
    sector_bytes: u32,
    pub inode_bytes: u32,
    inodes_percent_max: u32,
    others: [u64; 10],
}

const _: () = assert!(size_of::<XfsGeometry>() == 112);

/// XFS: the geometry of the volume of an open file.
pub fn xfs_geometry(file: &File) -> io::Result<XfsGeometry> {
    // SAFETY: XFS_IOC_FSGEOMETRY_V1 writes one `struct xfs_fsop_geom_v1`, for which all bytes are valid.
    let getter =
        unsafe { Getter::<{ opcode::read::<XfsGeometry>(b'X', 100) }, XfsGeometry>::new() };
    // SAFETY: as above.
    Ok(unsafe { ioctl(file, getter)? })
}

/// `struct xfs_ag_geometry`.
#[repr(C)]
struct XfsGroup {
    number: u32,
    blocks: u32,
    free_blocks: u32,
    others: [u32; 29],
}

const _: () = assert!(size_of::<XfsGroup>() == 128);

/// XFS: the free blocks of an allocation group.
pub fn xfs_group_free_blocks(file: &File, number: u32) -> io::Result<u64> {
    let mut group = XfsGroup { number, blocks: 0, free_blocks: 0, others: [0; 29] };
    // SAFETY: XFS_IOC_AG_GEOMETRY reads and writes one `struct xfs_ag_geometry`.
    unsafe {
        let updater =
            Updater::<{ opcode::read_write::<XfsGroup>(b'X', 61) }, XfsGroup>::new(&mut group);
        ioctl(file, updater)?;
    }
    Ok(u64::from(group.free_blocks))
}

/// `struct fsmap`: the owner of a run of the device.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct MapRecord {
    device: u32,
    flags: u32,
    /// In bytes, as is the length.
    pub physical: u64,
    /// One of `MAP_SUPERBLOCK`, `MAP_BLOCK_BITMAP` and others.
    pub owner: u64,
    offset: u64,
    pub length: u64,
    reserved: [u64; 3],
}

impl MapRecord {
    /// Whether it is the last of the device.
    pub fn is_last(&self) -> bool {
        self.flags & 0x8 != 0
    }
}

/// ext4: a superblock or a copy of it.
pub const MAP_SUPERBLOCK: u64 = (b'X' as u64) << 32 | 1;
/// ext4: block bitmaps of groups, joined if they are adjacent.
pub const MAP_BLOCK_BITMAP: u64 = (b'f' as u64) << 32 | 3;

const MAP_RECORDS: usize = 128;

#[repr(C)]
struct MapHead {
    in_flags: u32,
    out_flags: u32,
    count: u32,
    entries: u32,
    reserved: [u64; 6],
    keys: [MapRecord; 2],
}

#[repr(C)]
struct DeviceMap {
    head: MapHead,
    records: [MapRecord; MAP_RECORDS],
}

const _: () = assert!(size_of::<MapRecord>() == 64 && size_of::<MapHead>() == 192);

/// ext4: the records of the device's map that follow `last`; all from the beginning if that is zero.
pub fn device_map(file: &File, last: &MapRecord) -> io::Result<Vec<MapRecord>> {
    let all = u64::MAX;
    let end = MapRecord {
        device: u32::MAX,
        flags: u32::MAX,
        physical: all,
        owner: all,
        offset: all,
        ..MapRecord::default()
    };
    let head = MapHead {
        in_flags: 0,
        out_flags: 0,
        count: MAP_RECORDS as u32,
        entries: 0,
        reserved: [0; 6],
        keys: [*last, end],
    };
    let mut request = DeviceMap { head, records: [MapRecord::default(); MAP_RECORDS] };
    // SAFETY: FS_IOC_GETFSMAP, whose number contains the size of the head alone. The kernel writes at most
    // `count` records after the head, for which the structure has room.
    unsafe {
        let updater =
            Updater::<{ opcode::read_write::<MapHead>(b'X', 59) }, DeviceMap>::new(&mut request);
        ioctl(file, updater)?;
    }
    Ok(request.records[..(request.head.entries as usize).min(MAP_RECORDS)].to_vec())
}
