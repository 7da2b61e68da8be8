//! Finds the server of a volume if it runs as another user, whose open files and mounts this user cannot see.
//!
//! The superblock has the mark of the process that has the volume open for writing, and all users can see the
//! numbers and arguments of a process.

use std::ffi::OsStr;
use std::fmt;
use std::fs::{self, File};
use std::io::Read;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use cffs::format::Superblock;
use cffs::format::superblock::SUPERBLOCK_BYTES;
use cffs::host::{Host, Standing, SystemHost};

use crate::mounts;

#[cfg(test)]
mod tests;

/// The use that a server makes of its volume, according to its arguments.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Mounts,
    Serves,
}

/// A server of another user.
pub struct HiddenServer {
    pid: u32,
    uid: u32,
    kind: Kind,
    image: PathBuf,
}

impl fmt::Display for HiddenServer {
    /// Describes the server's purpose, and how to end it.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let HiddenServer { pid, uid, kind, image } = self;
        let image = image.display();
        match kind {
            Kind::Mounts => write!(
                f,
                "{image} is mounted by user {uid} where you cannot see it, in another mount namespace or \
                 detached (process {pid}); that user or root can unmount it: nsenter -a -t {pid} cffs umount \
                 {image}"
            ),
            Kind::Serves => write!(
                f,
                "{image} is served by user {uid} (process {pid}), and its server answers only that user and \
                 root, who can stop it: cffs serve --stop {image}"
            ),
        }
    }
}

/// The server that has the volume on an image or a device open for writing, if it runs as another user.
pub fn find(image: &Path) -> Option<HiddenServer> {
    let mut bytes = [0; SUPERBLOCK_BYTES];
    File::open(image).ok()?.read_exact(&mut bytes).ok()?;
    let mark = Superblock::decode(&bytes, 0).ok()?.holder?;
    if SystemHost.standing(&mark) != Standing::Alive {
        return None;
    }
    let image = std::path::absolute(image).ok()?;
    let own = rustix::process::geteuid().as_raw();
    let processes = fs::read_dir("/proc").ok()?.flatten();
    let mut found = processes.filter_map(|process| {
        let pid: u32 = process.file_name().to_str()?.parse().ok()?;
        let kind = kind(&fs::read(process.path().join("cmdline")).ok()?)?;
        let uid = process.metadata().ok()?.uid();
        let is_it = uid != own && mounts::pid_inside(pid) == mark.pid;
        is_it.then(|| HiddenServer { pid, uid, kind, image: image.clone() })
    });
    found.next()
}

/// The kind of server that was started with these arguments, each of which ends with a zero byte.
fn kind(arguments: &[u8]) -> Option<Kind> {
    let mut arguments = arguments.split(|byte| *byte == 0);
    let program = Path::new(OsStr::from_bytes(arguments.next()?)).file_name()?;
    match (program.as_bytes(), arguments.next()?) {
        (b"mount.cffs" | b"mount.fuse.cffs" | b"mount.fuseblk.cffs", _) | (_, b"mount") => {
            Some(Kind::Mounts)
        }
        (_, b"serve") => Some(Kind::Serves),
        _ => None,
    }
}
