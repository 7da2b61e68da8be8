//! The exclusive claim on a block device, as a mount by the kernel has it.
//!
//! It keeps the kernel's own file systems away for as long as the volume is open. The one mount that
//! has to get past it is that of the volume itself: then the claim is lent to the kernel, while the
//! lock on the device keeps other programs of C-FFS away.

use std::fs::File;
use std::io;

use rustix::fs::OFlags;

use super::{Access, reopen};

/// A descriptor that does nothing but claim its device.
#[derive(Debug)]
pub(super) struct Claim(#[allow(dead_code, reason = "it is kept, not used")] File);

impl Claim {
    /// Claims the block device that is open; `EBUSY` if another program or a mount has claimed it.
    pub(super) fn on(device: &File) -> io::Result<Claim> {
        // Without O_CREAT, O_EXCL on a block device claims it, for reading, too.
        reopen::again(device, Access::ReadOnly, OFlags::EXCL).map(Claim)
    }
}
