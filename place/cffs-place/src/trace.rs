//! Finds the files that a command opens, in order.
//!
//! The kernel's fanotify reports each opening of a file on a mount. The command runs in a mount
//! namespace of its own, whose mounts no other program uses, so only the files that the command and
//! its descendants open are reported. Later mounts are not watched.

use std::collections::HashSet;
use std::ffi::OsString;
use std::fs;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus};
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::{Context, Result, bail};
use mount_list::Mount;
use nix::errno::Errno;
use nix::sched::{CloneFlags, unshare};
use nix::sys::fanotify::{EventFFlags, Fanotify, FanotifyEvent, InitFlags, MarkFlags, MaskFlags};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

#[cfg(test)]
mod tests;

/// The opened files.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Seen {
    /// Files, each once.
    pub files: u64,
    /// Files whose name no longer existed when they were reported.
    pub nameless: u64,
    /// Whether the kernel dropped events.
    pub overflowed: bool,
}

/// Runs a command, and reports each file on ext4, XFS or btrfs when it is opened for the first time.
pub fn trace(
    command: &[OsString],
    mut opened: impl FnMut(&Path) -> io::Result<()> + Send,
) -> Result<(ExitStatus, Seen)> {
    let [program, arguments @ ..] = command else { bail!("there is no command") };
    // A new thread gets the mount namespace; the rest of the process keeps its own.
    std::thread::scope(|scope| {
        let tracing = scope.spawn(move || {
            let watch = watch()?;
            let mut child = Command::new(program)
                .args(arguments)
                .spawn()
                .with_context(|| format!("start {}", program.display()))?;
            let is_over = AtomicBool::new(false);
            std::thread::scope(|scope| {
                let reading = scope.spawn(|| read(&watch, &is_over, &mut opened));
                let status = child.wait();
                is_over.store(true, Ordering::Release);
                let seen =
                    reading.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))?;
                Ok((status.context("wait for the command")?, seen))
            })
        });
        tracing.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })
}

/// Watches the mounts of a new namespace, which the calling thread enters.
fn watch() -> Result<Fanotify> {
    let root_only = "only root may watch opened files";
    unshare(CloneFlags::CLONE_NEWNS).context(root_only)?;
    let watch = Fanotify::init(
        InitFlags::FAN_CLASS_NOTIF
            | InitFlags::FAN_CLOEXEC
            | InitFlags::FAN_NONBLOCK
            | InitFlags::FAN_UNLIMITED_QUEUE
            | InitFlags::FAN_UNLIMITED_MARKS,
        EventFFlags::O_RDONLY | EventFFlags::O_LARGEFILE | EventFFlags::O_CLOEXEC,
    )
    .context(root_only)?;
    let mounts = fs::read("/proc/thread-self/mountinfo").context("/proc/thread-self/mountinfo")?;
    let mut watched = 0;
    for point in mount_list::parse(&mounts).filter_map(point_of) {
        let flags = MarkFlags::FAN_MARK_ADD | MarkFlags::FAN_MARK_MOUNT;
        // A mount hidden by another one, or inaccessible to us, cannot be reached by its path.
        if watch.mark(flags, MaskFlags::FAN_OPEN, current_directory(), Some(&point)).is_ok() {
            watched += 1;
        }
    }
    if watched == 0 {
        bail!("no mount of ext4, XFS or btrfs can be watched");
    }
    Ok(watch)
}

fn current_directory() -> BorrowedFd<'static> {
    rustix::fs::CWD
}

/// The mount point of a file system with a layout that is known.
fn point_of(mount: Mount<'_>) -> Option<PathBuf> {
    [&b"ext4"[..], b"ext3", b"ext2", b"xfs", b"btrfs"].contains(&mount.kind).then_some(mount.point)
}

/// Reads events until the command has ended and none is left.
fn read(
    watch: &Fanotify,
    is_over: &AtomicBool,
    opened: &mut impl FnMut(&Path) -> io::Result<()>,
) -> Result<Seen> {
    let mut seen = Seen::default();
    let mut known = HashSet::new();
    loop {
        // Checked before reading the queue, so that events from before the end are still read.
        let was_over = is_over.load(Ordering::Acquire);
        match watch.read_events() {
            Ok(events) => {
                for event in events {
                    note(&event, &mut known, &mut seen, opened)?;
                }
            }
            Err(Errno::EAGAIN) if was_over => return Ok(seen),
            Err(Errno::EAGAIN) => wait(watch),
            Err(Errno::EINTR) => {}
            // The kernel could not open the file for us, for example because the device fails.
            Err(_) if !was_over => seen.nameless += 1,
            Err(error) => return Err(error).context("read reports of opened files"),
        }
    }
}

/// Waits for an event or a short time, since the command's end causes no event.
fn wait(watch: &Fanotify) {
    let moment = Timespec { tv_sec: 0, tv_nsec: 20_000_000 };
    let _ = poll(&mut [PollFd::new(&watch.as_fd(), PollFlags::IN)], Some(&moment));
}

fn note(
    event: &FanotifyEvent,
    known: &mut HashSet<(u64, u64)>,
    seen: &mut Seen,
    opened: &mut impl FnMut(&Path) -> io::Result<()>,
) -> Result<()> {
    if event.mask().contains(MaskFlags::FAN_Q_OVERFLOW) {
        seen.overflowed = true;
        return Ok(());
    }
    let Some(fd) = event.fd() else { return Ok(()) };
    if event.pid() as u32 == std::process::id() {
        return Ok(());
    }
    let link = format!("/proc/self/fd/{}", fd.as_raw_fd());
    let status = fs::metadata(&link).context("look at an opened file")?;
    if !status.is_file() || !known.insert((status.dev(), status.ino())) {
        return Ok(());
    }
    if status.nlink() == 0 {
        seen.nameless += 1;
        return Ok(());
    }
    seen.files += 1;
    opened(&fs::read_link(&link).context("name an opened file")?).context("write the trace")
}
