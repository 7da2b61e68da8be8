//! Volumes: creating, opening, syncing and closing.

use std::ffi::{OsStr, c_char, c_int};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use cffs::device::{Access, FileDevice};
use cffs::error::{Error, Result};
use cffs::files::Files;
use cffs::mkfs::{self, MkfsOptions};
use cffs::vfs::types::OpenOptions;

use crate::error::status;
use crate::pointers::{bytes, hand_out, opened, place, take_back};

/// An open volume. Meanwhile another program can open it only for reading, and only if this one opened it for
/// reading. An attached volume is open at its server.
pub struct Volume {
    pub(crate) files: Files,
}

/// Options for opening a volume. Zero in every field except `size` selects the defaults. A later version of
/// the library may add fields at the end.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct Options {
    /// sizeof(cffs_options) in the caller. Fields beyond it count as zero.
    pub size: usize,
    /// 1 to open the volume read-only; other programs may then read it at the same time.
    pub read_only: u32,
    /// 1 to leave the access times of files unchanged when they are read.
    pub no_atime: u32,
    /// Size of the read cache in bytes; 0 for 256 MiB.
    pub cache_bytes: u64,
    /// Maximum memory for unwritten changes, in bytes, beyond which they are written immediately; 0 for 64
    /// MiB.
    pub dirty_bytes: u64,
}

/// A size larger than this cannot be that of any version's options, so the caller did not initialize it.
const SIZE_MAX: usize = 4096;

/// Sizes of a volume, in bytes and inodes.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct Sizes {
    /// Total space for files, in bytes.
    pub bytes: u64,
    /// Free space, in bytes.
    pub free_bytes: u64,
    /// The part of the free space that files can use, in bytes.
    pub available_bytes: u64,
    /// Inodes in use.
    pub inodes: u64,
}

/// The version of the library.
#[unsafe(no_mangle)]
pub extern "C" fn cffs_version() -> *const c_char {
    concat!(env!("CARGO_PKG_VERSION"), "\0").as_ptr().cast()
}

/// Creates an image of `size_bytes` bytes, which must not exist yet. `label` may be NULL. `cffs mkfs` has
/// more options.
///
/// # Safety
/// `image` and `label` are null or strings.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cffs_mkfs(
    image: *const c_char,
    size_bytes: u64,
    label: *const c_char,
) -> c_int {
    status(|| {
        // SAFETY: the caller's promise.
        let image = unsafe { bytes(image) }?;
        let label = match label.is_null() {
            true => Vec::new(),
            // SAFETY: the caller's promise.
            false => unsafe { bytes(label) }?.to_vec(),
        };
        let image = Path::new(OsStr::from_bytes(image));
        if image.symlink_metadata().is_ok() {
            return Err(Error::Exists);
        }
        let device = FileDevice::create(image, size_bytes)?;
        mkfs::make(&device, &MkfsOptions { label, ..MkfsOptions::default() })?;
        Ok(())
    })
}

/// Opens an image or a block device and sets *volume. `options` may be NULL. A volume that was not closed
/// cleanly is recovered first.
///
/// # Safety
/// `image` is null or a string, `options` null or readable for the bytes that its `size` says, `volume` null
/// or writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cffs_open(
    image: *const c_char,
    options: *const Options,
    volume: *mut *mut Volume,
) -> c_int {
    status(|| {
        // SAFETY: the caller's promise.
        let (image, volume) = unsafe { (bytes(image)?, place(volume)?) };
        // SAFETY: the caller's promise.
        let options = unsafe { Options::read(options) }?.translated();
        let files = Files::open_image(Path::new(OsStr::from_bytes(image)), options)?;
        *volume = hand_out(Volume { files });
        Ok(())
    })
}

/// Attaches to a directory of a mounted volume, and sets *volume: the directory is the root of all paths,
/// and the volume's server carries out the calls without the kernel. The program has the rights of its user,
/// as through the mount, which shows its changes at once. Threads wait for each other. Access times stay.
/// `options` may be NULL; of its fields, read_only alone counts: with it, the mount may be read-only.
///
/// Fails with EOPNOTSUPP if the directory is in no mounted volume, or the server refuses the program; then
/// cffs_error gives the reason. After the volume's server was restarted, and in a child after fork, calls
/// fail with ENOTCONN. cffs_close ends the session and makes nothing durable; before that, the volume cannot
/// be unmounted.
///
/// # Safety
/// `directory` is null or a string, `options` null or readable for the bytes that its `size` says, `volume`
/// null or writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cffs_attach(
    directory: *const c_char,
    options: *const Options,
    volume: *mut *mut Volume,
) -> c_int {
    status(|| {
        // SAFETY: the caller's promise.
        let (directory, volume) = unsafe { (bytes(directory)?, place(volume)?) };
        // SAFETY: the caller's promise.
        let options = unsafe { Options::read(options) }?;
        let access = if options.read_only != 0 { Access::ReadOnly } else { Access::ReadWrite };
        let files = Files::attach(Path::new(OsStr::from_bytes(directory)), access)?;
        *volume = hand_out(Volume { files });
        Ok(())
    })
}

impl Options {
    /// The options of a caller that was compiled with this version of the library, or an older or newer one.
    ///
    /// # Safety
    /// `options` is null, or its first field is readable, and so are the bytes whose number that field gives.
    unsafe fn read(options: *const Options) -> Result<Options> {
        const UNKNOWN: Error =
            Error::Invalid("cffs_options of a later version, with fields that are unknown here");
        if options.is_null() {
            return Ok(Options::default());
        }
        // SAFETY: the caller's promise. The size is the first field in every version.
        let size = unsafe { options.cast::<usize>().read() };
        if !(size_of::<usize>()..=SIZE_MAX).contains(&size) {
            return Err(Error::Invalid("cffs_options without their size: use CFFS_OPTIONS_INIT"));
        }
        // SAFETY: the caller's promise.
        let given = unsafe { std::slice::from_raw_parts(options.cast::<u8>(), size) };
        let (known, unknown) = given.split_at(size.min(size_of::<Options>()));
        if unknown.iter().any(|byte| *byte != 0) {
            return Err(UNKNOWN);
        }
        let mut read = Options::default();
        // SAFETY: `known` is no longer than `read`, and all bit patterns are valid for its fields.
        unsafe {
            let to = (&raw mut read).cast::<u8>();
            std::ptr::copy_nonoverlapping(known.as_ptr(), to, known.len());
        }
        Ok(read)
    }

    fn translated(self) -> OpenOptions {
        let mut options = OpenOptions { read_only: self.read_only != 0, ..OpenOptions::default() };
        if self.no_atime != 0 {
            options.atime = cffs::vfs::types::AtimeMode::Never;
        }
        if self.cache_bytes != 0 {
            options.cache_bytes = self.cache_bytes;
        }
        if self.dirty_bytes != 0 {
            options.dirty_bytes_max = self.dirty_bytes;
        }
        options
    }
}

/// Makes all changes durable.
///
/// # Safety
/// `volume` is null or open.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cffs_sync(volume: *const Volume) -> c_int {
    // SAFETY: the caller's promise.
    status(|| unsafe { opened(volume) }?.files.sync())
}

/// Gets the sizes of a volume.
///
/// # Safety
/// `volume` is null or open, `sizes` null or writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cffs_statvfs(volume: *const Volume, sizes: *mut Sizes) -> c_int {
    status(|| {
        // SAFETY: the caller's promise.
        let (volume, sizes) = unsafe { (opened(volume)?, place(sizes)?) };
        let found = volume.files.stat_fs()?;
        let in_bytes = |fragments: u64| fragments * u64::from(found.fragment_bytes);
        *sizes = Sizes {
            bytes: in_bytes(found.fragments),
            free_bytes: in_bytes(found.free_fragments),
            available_bytes: in_bytes(found.available_fragments),
            inodes: found.inodes,
        };
        Ok(())
    })
}

/// Makes all changes durable and closes the volume; NULL is allowed. The handle is invalid afterwards even if
/// this fails; then changes since the last sync may be lost. Calls on files and directories that are still
/// open fail from then on; they must still be closed.
///
/// # Safety
/// `volume` is null, or open and not used after this.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cffs_close(volume: *mut Volume) -> c_int {
    // SAFETY: the caller's promise.
    let volume = unsafe { take_back(volume) };
    status(|| close(volume))
}

fn close(volume: Option<Box<Volume>>) -> Result<()> {
    volume.map_or(Ok(()), |volume| volume.files.close())
}
