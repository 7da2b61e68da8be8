//! The control interface as commands use it.

use std::io;
use std::path::Path;

use rustix::fs::{
    Mode, OFlags, StatVfs, StatVfsMountFlags, XattrFlags, lgetxattr, open, setxattr, statvfs,
};
use rustix::io::Errno;
use rustix::ioctl;

use super::reporting::Piece;
use super::{Durability, Question, Request, RestartAnswer, VALUE_BYTES_MAX, refusals};
use crate::layout::LayoutReport;
use crate::served::fstrim::FstrimRange;
use crate::served::{CheckStatus, Identity, RegroupStatus, ScrubStatus};
use crate::socket::{self, Message, Reply};

/// Replaces the program of the server of the volume to which `path` belongs, and waits until the new one
/// serves.
///
/// # Errors
///
/// [`AskError::NotRestarted`] with the reason; the mount goes on as before. [`AskError::WithoutNfs`] if it
/// goes on without its NFS clients. [`AskError::Dead`] if there is no server any more.
pub fn restart(path: &Path) -> Result<(), AskError> {
    let refused = |why| Err(AskError::NotRestarted(why));
    let before = identity(path)?.started;
    let answer = serde_json::from_value(ask(path, Question::Restart)?);
    if let RestartAnswer { refused: Some(why) } = answer.map_err(|_| AskError::NotMounted)? {
        return refused(why);
    }
    // What the old server does not answer any more waits for the new one.
    loop {
        let now = identity(path)?;
        match (now.restart_failure, now.nfs_failure) {
            _ if now.started == before => {}
            (Some(why), None) => return refused(why),
            (Some(why), Some(nfs)) => {
                return refused(format!("{why}; and NFS clients are no longer served: {nfs}"));
            }
            (None, Some(nfs)) => return Err(AskError::WithoutNfs(nfs)),
            (None, None) => return Ok(()),
        }
    }
}

/// Discards free space of the volume to which `directory` belongs, in runs of at least `least_bytes`, as
/// fstrim(8) does. Returns how many bytes the server discarded.
pub fn trim(directory: &Path, least_bytes: u64) -> Result<u64, AskError> {
    // Another file system would execute the command, too.
    ask(directory, Question::Info)?;
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let directory = open(directory, flags, Mode::empty()).map_err(AskError::from_errno)?;
    let mut range = FstrimRange { start: 0, len: u64::MAX, least: least_bytes };
    // SAFETY: FITRIM reads and writes one `struct fstrim_range`, three u64, through its argument.
    unsafe {
        let request =
            ioctl::Updater::<{ FstrimRange::COMMAND as ioctl::Opcode }, _>::new(&mut range);
        ioctl::ioctl(&directory, request).map_err(AskError::from_errno)?;
    }
    Ok(range.len)
}

/// Asks the server of the volume to which `path` belongs, or of the image that it is. The path's last
/// component is not followed: a symbolic link can be asked about, too.
pub fn ask(path: &Path, question: Question) -> Result<serde_json::Value, AskError> {
    let mut value = vec![0; VALUE_BYTES_MAX];
    match lgetxattr(path, question.name(), &mut value).map_err(AskError::from_errno) {
        Ok(len) => {
            value.truncate(len);
            serde_json::from_slice(&value).map_err(|_| AskError::NotMounted)
        }
        Err(AskError::NotMounted) => ask_server_of(path, question),
        Err(error) => Err(error),
    }
}

/// Asks the server of an image that is not mounted, wherever the image lies.
///
/// # Errors
///
/// [`AskError::NotMounted`] if it has none.
pub fn ask_server_of(image: &Path, question: Question) -> Result<serde_json::Value, AskError> {
    call_server(image, question.name(), None)
}

/// Sends a request to the server of an image that is not mounted.
///
/// # Errors
///
/// [`AskError::NotMounted`] if it has none.
pub fn request_of_server(image: &Path, request: Request) -> Result<(), AskError> {
    let (name, value) = request.to_attribute();
    call_server(image, name, Some(value)).map(drop)
}

pub(in crate::served) fn call_server(
    image: &Path,
    name: &str,
    value: Option<String>,
) -> Result<serde_json::Value, AskError> {
    let message = Message { name: name.to_owned(), value };
    match socket::call(image, &message).map_err(AskError::Failed)? {
        None => Err(AskError::NotMounted),
        Some(Reply::Answer(answer)) => Ok(answer),
        Some(Reply::Error(why)) => Err(AskError::Failed(io::Error::other(why))),
    }
}

/// Makes everything durable. This also works on a mount that is read-only for the kernel: it may have been
/// mounted for writing a moment ago.
pub fn sync(path: &Path) -> Result<(), AskError> {
    let answer = serde_json::from_value(ask(path, Question::Sync)?);
    match answer.map_err(|_| AskError::NotMounted)? {
        Durability { failure: None } => Ok(()),
        Durability { failure: Some(failure) } => Err(AskError::NotDurable(failure)),
    }
}

/// Asks the server of a directory where the tree below it lies.
///
/// # Errors
///
/// [`AskError::NotMounted`] if no C-FFS volume is mounted there; what the server says.
pub fn layout(directory: &Path) -> Result<LayoutReport, AskError> {
    let mut random = [0; 8];
    rustix::rand::getrandom(&mut random, rustix::rand::GetRandomFlags::empty())
        .map_err(|errno| AskError::Failed(errno.into()))?;
    let token = u64::from_ne_bytes(random);
    let mut report = Vec::new();
    let mut buffer = vec![0; VALUE_BYTES_MAX];
    for number in 0.. {
        let len = lgetxattr(directory, Piece { token, number }.name(), &mut buffer);
        match len.map_err(AskError::from_errno)? {
            0 => break,
            len => report.extend_from_slice(&buffer[..len]),
        }
    }
    serde_json::from_slice(&report).map_err(|_| AskError::NotMounted)
}

/// The server of an image that is not mounted.
///
/// # Errors
///
/// [`AskError::NotMounted`] if it has none.
pub fn identity_of_server(image: &Path) -> Result<Identity, AskError> {
    let mut info = ask_server_of(image, Question::Info)?;
    serde_json::from_value(info["server"].take()).map_err(|_| AskError::NotMounted)
}

/// The server of the volume to which `path` belongs.
pub fn identity(path: &Path) -> Result<Identity, AskError> {
    let mut info = ask(path, Question::Info)?;
    serde_json::from_value(info["server"].take()).map_err(|_| AskError::NotMounted)
}

/// Sends a request to the server of the volume to which `path` belongs.
pub fn request(path: &Path, request: Request) -> Result<(), AskError> {
    let (name, value) = request.to_attribute();
    let asked = setxattr(path, name, value.as_bytes(), XattrFlags::empty());
    asked.map_err(|errno| {
        let is_read_only = |stat: StatVfs| stat.f_flag.contains(StatVfsMountFlags::RDONLY);
        if errno == Errno::ROFS && statvfs(path).is_ok_and(is_read_only) {
            // The kernel has not asked the server.
            return AskError::ReadOnly;
        }
        // The kernel passes on the error number of the answer alone.
        let why = ask(path, Question::Refusals).ok();
        let why = why.and_then(|said| refusals::reason(&said, name, &value));
        why.map_or_else(|| AskError::from_errno(errno), AskError::Refused)
    })
}

/// How the scrub of the volume to which `path` belongs stands.
pub fn scrub_status(path: &Path) -> Result<ScrubStatus, AskError> {
    let status = ask(path, Question::Scrub)?;
    serde_json::from_value(status).map_err(|_| AskError::NotMounted)
}

/// How the scrub of an image that is not mounted stands.
pub fn scrub_status_of_server(image: &Path) -> Result<ScrubStatus, AskError> {
    let status = ask_server_of(image, Question::Scrub)?;
    serde_json::from_value(status).map_err(|_| AskError::NotMounted)
}

/// How the regrouping of the volume to which `path` belongs stands.
pub fn regroup_status(path: &Path) -> Result<RegroupStatus, AskError> {
    let status = ask(path, Question::Regroup)?;
    serde_json::from_value(status).map_err(|_| AskError::NotMounted)
}

/// How the check of the volume to which `path` belongs stands.
pub fn check_status(path: &Path) -> Result<CheckStatus, AskError> {
    let status = ask(path, Question::Fsck)?;
    serde_json::from_value(status).map_err(|_| AskError::NotMounted)
}

/// Why a question got no answer.
#[derive(Debug, thiserror::Error)]
pub enum AskError {
    /// No server has the volume open to which the path belongs.
    #[error("not a C-FFS volume that is mounted or served")]
    NotMounted,
    /// The kernel lets nothing be asked of a server on a read-only mount.
    #[error("the volume is mounted read-only; remount it read-write first")]
    ReadOnly,
    /// The server does not do this now.
    #[error("{0}")]
    Refused(String),
    /// The device failed, and the changes are not on it.
    #[error("{0}")]
    NotDurable(String),
    /// The server's program was not replaced, and serves as before.
    #[error("not restarted: {0}")]
    NotRestarted(String),
    /// The server's program was replaced, and serves the mount, but NFS clients no longer.
    #[error("restarted, but NFS clients are no longer served: {0}; another restart tries again")]
    WithoutNfs(String),
    /// The server has ended without an unmount.
    #[error("its server has ended; remove the mount with cffs umount")]
    Dead,
    /// The path cannot be reached, or the server failed.
    #[error("{0}")]
    Failed(io::Error),
}

impl AskError {
    pub(in crate::served) fn from_errno(errno: Errno) -> AskError {
        match errno {
            Errno::NOTCONN | Errno::CONNABORTED => AskError::Dead,
            Errno::NODATA | Errno::OPNOTSUPP => AskError::NotMounted,
            Errno::ROFS => AskError::ReadOnly,
            errno => AskError::Failed(errno.into()),
        }
    }
}
