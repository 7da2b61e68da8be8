//! `cffs umount`: unmounts, and returns when the image is complete: fully written, marked clean and closed.

use std::path::{Path, PathBuf};
use std::process::{self, Command, ExitCode, Stdio};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, anyhow, bail};
use cffs_serve::served::Identity;
use cffs_serve::served::control::{self, AskError};
use cffs_serve::served::shutdown::{Heard, ShutdownListener};
use cffs_serve::shared::user_name;
use clap::Args;
use rustix::io::Errno;
use rustix::mount::UnmountFlags;

use crate::ending::{self, INTERVAL, NOTICE, Waiting};
use crate::mounts::{self, Mounted};
use crate::{image, output};

/// The name of this command in notes about waiting.
const NAME: &str = "umount";
/// The process name of cffs commands.
const OWN_NAME: &str = "cffs";
/// The maximum number of users of a mount that a message names.
const NAMED_MAX: usize = 5;
/// How long to retry a busy mount before reporting its users.
const GLANCE: Duration = Duration::from_millis(500);
/// The same if all users are cffs commands or processes that were killed, or none is found. A command that
/// searches for the mount of an image queries each server, and keeps the mount busy until it answers; a
/// killed process has its files open until its last call returns.
const PASSING: Duration = Duration::from_secs(10);
/// How fusermount3 says that a mount is busy.
const BUSY: &str = "Device or resource busy";
/// The longest interval between checks of a busy mount: finding its users reads every open file of the
/// machine.
const LONGEST_WAIT: Duration = Duration::from_millis(500);

/// Unmount a volume and return when its image is complete
///
/// An image is complete when it is fully written, marked clean and closed. Fails if a change is lost because
/// the device failed, and if the volume is still in use: through another mount of it, or in another mount
/// namespace. For mounts of type fuseblk, as root's are, umount(8) waits as well, but does not report whether
/// changes were lost.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  cffs umount mnt
  cffs umount tree.cffs   given its image
  cffs umount -l mnt      detach it now, even if it is in use; the image is complete when the last
                          file is closed")]
pub struct Umount {
    /// The directory that the volume is mounted on, or its image or device.
    #[arg(value_name = "DIR|IMAGE|DEVICE")]
    target: PathBuf,
    /// Detach the mount even if files are open: they stay usable, and the server ends when all are closed.
    #[arg(short, long)]
    lazy: bool,
}

impl Umount {
    /// Unmounts and waits.
    pub fn run(self) -> anyhow::Result<ExitCode> {
        let mounted = self.find()?;
        let directory = &mounted.directory;
        if self.lazy {
            unmount(&mounted, true)?;
            return Ok(ExitCode::SUCCESS);
        }
        mounts::answers(&mounted)?;
        let identity = control::identity(directory);
        let is_dead = matches!(identity, Err(AskError::Dead));
        let ask = |server: Identity| ShutdownListener::ask(directory, server.uid).ok();
        match identity.ok().and_then(ask) {
            Some(mut listener) => {
                let heard = unmount_heard(&mounted, &mut listener)?;
                let waiting = Waiting::new(NAME, &mounted.source);
                ending::last_report(waiting, &mut listener, heard, |waited| {
                    in_use(&mounted, waited)
                })?;
            }
            None => {
                unmount(&mounted, false)?;
                still_mounted(&mounted)?;
                last_state(&mounted, is_dead)?;
            }
        }
        Ok(ExitCode::SUCCESS)
    }

    fn find(&self) -> anyhow::Result<Mounted> {
        if let Some(mounted) = mounts::on(&self.target)? {
            return Ok(mounted);
        }
        let mut mounts = mounts::all_of_source(&self.target);
        mounts::check_one(&self.target, &mounts)?;
        if let Some(mounted) = mounts.pop() {
            return Ok(mounted);
        }
        image::not_mounted_elsewhere(&self.target)?;
        if let Ok(server) = control::identity_of_server(&self.target) {
            let (image, pid) = (self.target.display(), server.pid);
            bail!(
                "{image} is not mounted, but served by process {pid}; to end that: cffs serve --stop {image}"
            );
        }
        bail!("no C-FFS volume is mounted on {}", self.target.display())
    }
}

/// Unmounts, and returns the last shutdown report. The unmount of a block device waits in the kernel until
/// the volume is closed; meanwhile this prints the reason for waiting.
fn unmount_heard(mounted: &Mounted, listener: &mut ShutdownListener) -> anyhow::Result<Heard> {
    let (done, ended) = mpsc::channel();
    let ended_mount = mounted.clone();
    thread::spawn(move || done.send(unmount(&ended_mount, false)));
    let mut waiting = Waiting::new(NAME, &mounted.source);
    let mut heard = Heard::Nothing;
    loop {
        match ended.recv_timeout(INTERVAL) {
            Ok(unmounted) => return unmounted.map(|()| heard),
            Err(mpsc::RecvTimeoutError::Timeout) => {}
            Err(mpsc::RecvTimeoutError::Disconnected) => bail!("the unmount was not carried out"),
        }
        if heard.is_last() {
            continue;
        }
        match listener.listen(INTERVAL) {
            Heard::Nothing => {}
            report => heard = report,
        }
        waiting.hear(&heard);
        waiting.note();
    }
}

/// Fails if the volume is mounted elsewhere, or if its server should have noticed the unmount by now.
fn in_use(mounted: &Mounted, waited: Duration) -> anyhow::Result<()> {
    still_mounted(mounted)?;
    if waited > NOTICE {
        bail!(
            "{} is unmounted, but {} is still in use, and not fully written: by a mount that was detached \
             with -l and has open files, or in a mount namespace that you cannot see",
            mounted.directory.display(),
            mounted.source.display()
        );
    }
    Ok(())
}

/// Fails if the volume is mounted elsewhere; the error says where.
fn still_mounted(mounted: &Mounted) -> anyhow::Result<()> {
    // The number of a freed device may belong to another volume by now.
    if mounted.has_another_image() {
        return Ok(());
    }
    let is_same =
        |other: &Mounted| other.device == mounted.device && other.source == mounted.source;
    let same = mounts::all()?.into_iter().filter(is_same);
    let here = same.map(|other| other.directory.display().to_string());
    let there = mounts::in_other_namespaces(mounted.device).into_iter().map(|other| {
        let mounts::Elsewhere { pid, program, directory } = other;
        format!("{} in the mount namespace of process {pid} ({program})", directory.display())
    });
    let places: Vec<String> = here.chain(there).collect();
    if !places.is_empty() {
        bail!(
            "{} is unmounted, but {} is still mounted on {}; its image is complete when that is \
             unmounted, too",
            mounted.directory.display(),
            mounted.source.display(),
            places.join(", and on ")
        );
    }
    Ok(())
}

/// Checks the image of a volume whose server could not be queried.
fn last_state(mounted: &Mounted, is_dead: bool) -> anyhow::Result<()> {
    let image = &mounted.source;
    if mounted.is_read_only {
        // A read-only mount has nothing to complete.
        return ending::state_when_free(NAME, image).map(drop);
    }
    ending::last_state(NAME, image)?;
    if is_dead {
        bail!(
            "the server of {} had ended before the unmount: the image is whole, but changes \
             in the server's last seconds may be lost",
            image.display()
        );
    }
    Ok(())
}

/// Ends a mount. Fails if it is not the one that was unmounted.
pub fn unmount(mounted: &Mounted, lazy: bool) -> anyhow::Result<()> {
    let directory = &mounted.directory;
    let began = Instant::now();
    let mut wait = INTERVAL;
    while !try_unmount(directory, lazy)? {
        let users = mounts::users(directory);
        let is_passing = users.iter().all(|user| user.program == OWN_NAME || user.is_ending);
        let left = if is_passing { PASSING } else { GLANCE }.saturating_sub(began.elapsed());
        if left.is_zero() {
            return Err(busy(directory, users));
        }
        thread::sleep(wait.min(left));
        wait = (wait * 2).min(LONGEST_WAIT);
    }
    let is_it = |other: &Mounted| {
        (other.id, other.device) == (mounted.id, mounted.device) && other.directory == *directory
    };
    if mounts::all()?.iter().any(is_it) {
        bail!(
            "{} is still mounted on {}: another mount was on top of it, and was unmounted; repeat the \
             command",
            mounted.source.display(),
            directory.display()
        );
    }
    Ok(())
}

/// Unmounts a directory; false if it is busy.
fn try_unmount(directory: &Path, lazy: bool) -> anyhow::Result<bool> {
    let flags = if lazy { UnmountFlags::DETACH } else { UnmountFlags::empty() };
    match rustix::mount::unmount(directory, flags | UnmountFlags::NOFOLLOW) {
        Ok(()) => Ok(true),
        Err(Errno::BUSY) => Ok(false),
        Err(Errno::PERM) => {
            may_unmount(directory)?;
            by_helper(directory, lazy)
        }
        // Another program has unmounted it.
        Err(Errno::INVAL) => bail!("no C-FFS volume is mounted on {}", directory.display()),
        Err(errno) => Err(errno).with_context(|| directory.display().to_string()),
    }
}

/// The error that names the users of a mount.
fn busy(directory: &Path, mut users: Vec<mounts::User>) -> anyhow::Error {
    // Often, this command has the working directory of its shell.
    if users.len() > 1 {
        users.retain(|user| user.pid != process::id());
    }
    let named =
        users.iter().take(NAMED_MAX).map(|user| format!("{} (process {})", user.program, user.pid));
    let mut named: Vec<String> = named.collect();
    match users.len() {
        0 => named.push("a process that you cannot see".to_owned()),
        count if count > NAMED_MAX => named.push(format!("{} more", count - NAMED_MAX)),
        _ => {}
    }
    let directory = directory.display();
    let has = if named.len() > 1 { "have" } else { "has" };
    let named = named.join(", ");
    anyhow!(
        "{directory} is busy: {named} {has} files open or a working directory there; use cffs umount -l \
         to detach it anyway"
    )
}

/// Fails if another user has mounted a directory, which fusermount3 does not unmount.
fn may_unmount(directory: &Path) -> anyhow::Result<()> {
    let on_it = |mounted: &Mounted| mounted.directory == directory;
    let owner = mounts::all()?.into_iter().rfind(on_it).and_then(|mounted| mounted.user);
    let directory = directory.display();
    match owner {
        Some(0) if !rustix::process::getuid().is_root() => {
            bail!("root has mounted {directory}; only root may unmount it")
        }
        Some(uid) if uid != rustix::process::getuid().as_raw() => {
            let name = user_name(uid);
            bail!("{name} has mounted {directory}; only {name} and root may unmount it")
        }
        _ => Ok(()),
    }
}

/// Unmounts for an ordinary user, with a set-user-id program; false if the directory is busy.
fn by_helper(directory: &Path, lazy: bool) -> anyhow::Result<bool> {
    let mut command = Command::new("fusermount3");
    command.arg("-u");
    if lazy {
        command.arg("-z");
    }
    let ended = command.arg("--").arg(directory).stdin(Stdio::null()).output();
    let ended = ended.context("fusermount3 (package fuse3) unmounts for ordinary users")?;
    let said = String::from_utf8_lossy(&ended.stderr);
    // It exits with 1 for each failure.
    if !ended.status.success() && !said.contains(BUSY) {
        bail!("{}", output::printable(ended.stderr.trim_ascii()));
    }
    Ok(ended.status.success())
}
