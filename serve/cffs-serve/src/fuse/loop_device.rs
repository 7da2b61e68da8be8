//! A loop device for an image, which the kernel mounts.
//!
//! The mount needs a block device, although all reads and writes go to the image directly. So the loop device
//! carries no requests of the server, and its size, the image's rounded down to 512 bytes, does not matter.
//! It is removed with the mount (*autoclear*), however that ends, and holds no lock: an image whose server
//! has died can be opened again.

use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, RawFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use cffs::device::file::LoopInfo;
use rustix::io::Errno;
use rustix::ioctl::{Ioctl, IoctlOutput, Opcode, Setter, ioctl};

/// How often to retry if another process takes the free device first.
const ATTEMPTS: usize = 16;

/// `LO_FLAGS_READ_ONLY`: nothing is written through the device.
const READ_ONLY: u32 = 1;
/// `LO_FLAGS_AUTOCLEAR`: the device is removed with its last user. `LO_FLAGS_PARTSCAN` is not set, so the
/// kernel does not search the image for partitions.
const AUTOCLEAR: u32 = 4;

/// A loop device, which exists until this is dropped and no mount uses it.
pub(super) struct LoopDevice {
    path: PathBuf,
    /// Keeps the device until it is mounted.
    _file: File,
}

impl LoopDevice {
    /// Attaches a loop device to an open image, shown under the name `image`.
    pub fn over(file: &File, image: &Path, read_only: bool) -> io::Result<LoopDevice> {
        let control = File::options().read(true).write(true).open("/dev/loop-control")?;
        for _ in 0..ATTEMPTS {
            // SAFETY: LOOP_CTL_GET_FREE takes no argument and returns a number.
            let number = unsafe { ioctl(&control, GetFree) }?;
            let path = PathBuf::from(format!("/dev/loop{number}"));
            let device = File::options().read(true).write(!read_only).open(&path)?;
            let request = Config::new(file.as_raw_fd(), image, read_only);
            // SAFETY: LOOP_CONFIGURE reads a `struct loop_config` through its argument, whose layout `Config`
            // has, and writes nothing.
            match unsafe { ioctl(&device, Setter::<CONFIGURE, Config>::new(request)) } {
                Ok(()) => return Ok(LoopDevice { path, _file: device }),
                Err(Errno::BUSY) => {}
                Err(errno) => return Err(errno.into()),
            }
        }
        Err(Errno::BUSY.into())
    }

    pub fn path(&self) -> &Path {
        &self.path
    }
}

/// `LOOP_CTL_GET_FREE`: returns the number of a free device, creating one if needed.
struct GetFree;

// SAFETY: the request passes no pointer, and its result is a plain number.
unsafe impl Ioctl for GetFree {
    type Output = i32;

    const IS_MUTATING: bool = false;

    fn opcode(&self) -> Opcode {
        0x4c82
    }

    fn as_ptr(&mut self) -> *mut rustix::ffi::c_void {
        std::ptr::null_mut()
    }

    unsafe fn output_from_ptr(
        number: IoctlOutput,
        _: *mut rustix::ffi::c_void,
    ) -> rustix::io::Result<i32> {
        Ok(number)
    }
}

/// `LOOP_CONFIGURE` (Linux 5.8).
const CONFIGURE: Opcode = 0x4c0a;

/// `struct loop_config` of `linux/loop.h`.
#[repr(C)]
struct Config {
    fd: RawFd,
    block_bytes: u32,
    info: LoopInfo,
    reserved: [u64; 8],
}

const _: () = assert!(size_of::<Config>() == 304);

impl Config {
    fn new(fd: RawFd, image: &Path, read_only: bool) -> Config {
        let mut file_name = [0; 64];
        let name = image.as_os_str().as_bytes();
        // The last byte stays zero. sysfs shows the whole name.
        let len = name.len().min(file_name.len() - 1);
        file_name[..len].copy_from_slice(&name[..len]);
        let flags = if read_only { AUTOCLEAR | READ_ONLY } else { AUTOCLEAR };
        Config { fd, block_bytes: 0, info: LoopInfo::whole(flags, file_name), reserved: [0; 8] }
    }
}
