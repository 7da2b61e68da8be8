//! Recognises the contents of a device that a command is about to overwrite.

use std::path::Path;
use std::sync::Arc;

use anyhow::{Context, bail};
use cffs::device::BlockDevice;
use cffs::device::file::{Access, FileDevice};
use cffs::format::superblock::MAGIC;

use crate::image;

/// How many bytes at the beginning of a device are searched for signatures.
const SIGNATURE_BYTES: usize = 128 << 10;

/// The size of a file created for a journal.
const JOURNAL_BYTES: u64 = 64 << 20;

/// Opens a device that will contain a journal, or creates a file for it.
///
/// # Errors
///
/// The device has contents, unless `force`; the error ends with the `remedy`.
pub fn open_for_journal(
    path: &Path,
    volume: &Path,
    bytes: u64,
    force: bool,
    remedy: &str,
) -> anyhow::Result<Arc<dyn BlockDevice>> {
    if !path.exists() {
        if path.starts_with("/dev") && !path.starts_with("/dev/shm") {
            bail!("device {} does not exist", path.display());
        }
        let bytes = if bytes == 0 { JOURNAL_BYTES } else { bytes };
        return Ok(Arc::new(FileDevice::create(path, bytes)?));
    }
    if volume.exists() && path.canonicalize()? == volume.canonicalize()? {
        bail!(
            "{} is the volume itself; to put the journal on it, use --journal SIZE",
            path.display()
        );
    }
    let device = image::open_any(path, Access::ReadWrite)?;
    match contents(&device).with_context(|| path.display().to_string())? {
        Some(what) if !force => bail!("{} already contains {what}; {remedy}", path.display()),
        _ => Ok(Arc::new(device)),
    }
}

/// Signatures of valuable contents: their offset, and their type.
const SIGNATURES: [(usize, &[u8], &str); 18] = [
    (0, &MAGIC, "a C-FFS volume"),
    (0, b"CFlh", "the journal of a C-FFS volume"),
    (1024 + 56, &[0x53, 0xef], "an ext2, ext3 or ext4 file system"),
    (0, b"XFSB", "an XFS file system"),
    ((64 << 10) + 64, b"_BHRfS_M", "a btrfs file system"),
    (1024, &[0x10, 0x20, 0xf5, 0xf2], "an F2FS file system"),
    (0, b"hsqs", "a squashfs image"),
    (3, b"NTFS    ", "an NTFS file system"),
    (3, b"EXFAT   ", "an exFAT file system"),
    (54, b"FAT", "a FAT file system"),
    (82, b"FAT32", "a FAT file system"),
    ((32 << 10) + 1, b"CD001", "an ISO 9660 image"),
    (4086, b"SWAPSPACE2", "swap space"),
    (0, b"LUKS\xba\xbe", "an encrypted LUKS volume"),
    (512 + 24, b"LVM2 001", "a physical volume of LVM"),
    (4096, &[0xfc, 0x4e, 0x2b, 0xa9], "a member of a RAID"),
    (512, b"EFI PART", "a partition table"),
    (257, b"ustar", "a tar archive"),
];

/// The type of the device's contents, from its first bytes, where file systems have their signatures; `None`
/// if these are zeros.
pub fn contents(device: &FileDevice) -> anyhow::Result<Option<&'static str>> {
    let len = (device.geometry().size_bytes as usize).min(SIGNATURE_BYTES);
    let mut head = vec![0; len];
    device
        .read_at(0, &mut head)
        .context("nothing was written, since the present contents cannot be read")?;
    if head.iter().all(|byte| *byte == 0) {
        return Ok(None);
    }
    let is_there = |(at, signature, _): &&(usize, &[u8], &str)| {
        head.get(*at..).is_some_and(|bytes| bytes.starts_with(signature))
    };
    let known = SIGNATURES.iter().find(is_there).map(|(_, _, what)| *what);
    let boots = head.get(510..512) == Some(&[0x55, 0xaa]);
    let boots = boots.then_some("a partition table or a boot sector");
    Ok(known.or(boots).or(Some("something")))
}
