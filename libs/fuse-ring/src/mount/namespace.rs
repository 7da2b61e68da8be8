//! Identifies the mount namespace of this process.
//!
//! When the last process of a mount namespace ends, the kernel unmounts its mounts. It does this in that
//! process, before it closes the process's descriptors. For a mount on a block device it sends `DESTROY` and
//! waits for the answer. If that process is the server, the answer never arrives, and sync(2) of the whole
//! machine waits for it. A mount without a block device is unmounted without a request.
//!
//! The machine's initial namespace never ends: the kernel's own threads are in it.

use std::io;
use std::os::unix::fs::MetadataExt;

/// The process that starts all kernel threads. In another PID namespace, this number belongs to another
/// process.
const KTHREADD: &str = "/proc/2";

/// `PF_KTHREAD`, among a process's flags.
const IS_KERNEL_THREAD: u64 = 0x0020_0000;

/// Fails unless the mount namespace outlives this process, whichever processes are killed with it.
pub(super) fn check_outlives_us() -> io::Result<()> {
    if sees_all_processes()
        && namespace_of(KTHREADD).is_some_and(|its| namespace_of("/proc/thread-self") == Some(its))
    {
        return Ok(());
    }
    Err(io::Error::new(
        io::ErrorKind::Unsupported,
        "the mount namespace is not the machine's, so it may end with the server",
    ))
}

/// Whether every process of the machine is visible here: whether this is the initial PID namespace.
pub fn sees_all_processes() -> bool {
    let stat = std::fs::read_to_string(format!("{KTHREADD}/stat")).unwrap_or_default();
    is_kernel_thread(&stat)
}

fn namespace_of(process: &str) -> Option<(u64, u64)> {
    let namespace = std::fs::metadata(format!("{process}/ns/mnt")).ok()?;
    Some((namespace.dev(), namespace.ino()))
}

/// Whether a process is a kernel thread, given its line of `/proc/PID/stat`. Its name may contain any
/// character, so fields are counted from after the name.
fn is_kernel_thread(stat: &str) -> bool {
    const FLAGS: usize = 6;
    let fields = stat.rsplit_once(')').map(|(_, fields)| fields);
    let flags = fields.and_then(|fields| fields.split_ascii_whitespace().nth(FLAGS));
    let flags: Option<u64> = flags.and_then(|flags| flags.parse().ok());
    flags.is_some_and(|flags| flags & IS_KERNEL_THREAD != 0)
}

#[cfg(test)]
mod tests;
