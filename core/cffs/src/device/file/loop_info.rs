//! The kernel's description of a loop device, and the parameters that set one up.

/// `struct loop_info64` of `linux/loop.h`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct LoopInfo {
    /// The number of the device of the file system on which the file is.
    pub device: u64,
    /// The file's inode.
    pub inode: u64,
    /// The number of the block device, if the loop device is over one.
    pub rdevice: u64,
    /// Where in the file the device begins, in bytes.
    pub offset: u64,
    /// How many bytes it has; 0 for all that follow.
    pub size_limit: u64,
    /// The number of the loop device.
    pub number: u32,
    encrypt_type: u32,
    encrypt_key_size: u32,
    /// `LO_FLAGS_...`.
    pub flags: u32,
    /// The displayed name of the file, with a zero at its end.
    pub file_name: [u8; 64],
    crypt_name: [u8; 64],
    encrypt_key: [u8; 32],
    init: [u64; 2],
}

const _: () = assert!(size_of::<LoopInfo>() == 232);

impl LoopInfo {
    /// The parameters of a device over the whole of a file.
    pub fn whole(flags: u32, file_name: [u8; 64]) -> LoopInfo {
        LoopInfo {
            device: 0,
            inode: 0,
            rdevice: 0,
            offset: 0,
            size_limit: 0,
            number: 0,
            encrypt_type: 0,
            encrypt_key_size: 0,
            flags,
            file_name,
            crypt_name: [0; 64],
            encrypt_key: [0; 32],
            init: [0; 2],
        }
    }
}
