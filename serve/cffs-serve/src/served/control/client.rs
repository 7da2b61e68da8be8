//! The control interface from the side of commands.

use std::io;
use std::path::{Path, PathBuf};

use cffs::format::inode::FileType;
use rustix::fs::{
    StatVfsMountFlags, XattrFlags, getxattr, lgetxattr, lsetxattr, setxattr, statvfs,
};
use rustix::io::Errno;
use rustix::process::geteuid;
use serde::de::DeserializeOwned;
use serde_json::Value;

use super::reporting::{self, Piece, Report};
use super::{
    CloneRequest, CloneStatus, Durability, MarkStatus, Question, QuotaStatus, Request,
    RestartAnswer, VALUE_BYTES_MAX, refusals,
};
use crate::layout::LayoutReport;
use crate::served::{CheckStatus, Identity, RegroupStatus, ScrubStatus};
use crate::shared::user_name;
use crate::socket::{self, Message, Reply};

/// How often a request of several calls is made if the server is replaced between them.
const ATTEMPTS: u32 = 4;

/// Replaces the program that serves the volume of `path`, and waits until the new one serves.
///
/// # Errors
///
/// [`AskError::NotRestarted`] with the reason; the mount continues as before. [`AskError::WithoutNfs`] if it
/// continues without its NFS clients, and [`AskError::WithoutPage`] if it does without its page.
/// [`AskError::Dead`] if the server has ended.
pub fn restart(path: &Path) -> Result<(), AskError> {
    let refused = |why| Err(AskError::NotRestarted(why));
    let before = identity(path)?.started;
    if let RestartAnswer { refused: Some(why) } = decoded(ask(path, Question::Restart)?)? {
        return refused(why);
    }
    // Queries that the old server no longer answers wait for the new one.
    loop {
        let now = identity(path)?;
        match (now.restart_failure, now.nfs_failure) {
            _ if now.started == before => {}
            (Some(why), None) => return refused(why),
            (Some(why), Some(nfs)) => {
                return refused(format!("{why}; and NFS clients are no longer served: {nfs}"));
            }
            (None, Some(nfs)) => return Err(AskError::WithoutNfs(nfs)),
            (None, None) => {
                return now.page_failure.map_or(Ok(()), |why| Err(AskError::WithoutPage(why)));
            }
        }
    }
}

/// The beginning of the attribute that discards free space.
pub(super) const TRIM: &str = "system.cffs.trim.";

/// Discards free space of the volume of `directory`, in runs of at least `least_bytes`. Returns how many
/// bytes the server discarded. An ioctl, as fstrim(8) uses, would fail for root on a mount of another user,
/// who alone can open files there.
pub fn trim(directory: &Path, least_bytes: u64) -> Result<u64, AskError> {
    // The kernel passes this on from a read-only bind mount, too.
    if is_read_only(directory) {
        return Err(AskError::ReadOnly);
    }
    let mut value = vec![0; VALUE_BYTES_MAX];
    let len = getxattr(directory, format!("{TRIM}{least_bytes}"), &mut value)
        .map_err(AskError::of_owner_at(directory))?;
    serde_json::from_slice(&value[..len]).map_err(|_| AskError::NotMounted)
}

/// Whether a path is on a mount through which the kernel refuses changes.
fn is_read_only(path: &Path) -> bool {
    statvfs(path).is_ok_and(|stat| stat.f_flag.contains(StatVfsMountFlags::RDONLY))
}

/// Queries the server of the volume of `path`, or of the volume that is served without a mount from the image
/// at `path` or from the URL `path`. Does not follow the path's last component if that is a symbolic link.
pub fn ask(path: &Path, question: Question) -> Result<Value, AskError> {
    if socket::is_url(path) {
        return ask_server_of(path, question);
    }
    let mut value = vec![0; VALUE_BYTES_MAX];
    match lgetxattr(path, question.name(), &mut value).map_err(AskError::of_owner_at(path)) {
        Ok(len) => {
            value.truncate(len);
            serde_json::from_slice(&value).map_err(|_| AskError::NotMounted)
        }
        Err(AskError::NotMounted) => ask_server_of(path, question),
        Err(error) => Err(error),
    }
}

/// Queries the server of an image that is not mounted, wherever the image is.
///
/// # Errors
///
/// [`AskError::NotMounted`] if it has no server.
pub fn ask_server_of(image: &Path, question: Question) -> Result<Value, AskError> {
    call_server(image, question.name(), None)
}

/// Sends a request to the server of an image that is not mounted.
///
/// # Errors
///
/// [`AskError::NotMounted`] if it has no server.
pub fn request_of_server(image: &Path, request: Request) -> Result<(), AskError> {
    let (name, value) = request.to_attribute();
    call_server(image, name, Some(value)).map(drop)
}

pub(in crate::served) fn call_server(
    image: &Path,
    name: &str,
    value: Option<String>,
) -> Result<Value, AskError> {
    let message = Message { name: name.to_owned(), value };
    match socket::call(image, &message).map_err(AskError::Failed)? {
        None => Err(AskError::NotMounted),
        Some(Reply::Answer(answer)) => Ok(answer),
        Some(Reply::Error(why)) => Err(AskError::Failed(io::Error::other(why))),
    }
}

/// Makes everything durable. This also works on a mount that the kernel considers read-only: it may have been
/// writable a moment ago.
pub fn sync(path: &Path) -> Result<(), AskError> {
    match decoded(ask(path, Question::Sync)?)? {
        Durability { failure: None } => Ok(()),
        Durability { failure: Some(failure) } => Err(AskError::NotDurable(failure)),
    }
}

/// Queries the layout of the tree below a directory.
///
/// # Errors
///
/// [`AskError::NotMounted`] if no C-FFS volume is mounted there; the server's error.
pub fn layout(directory: &Path) -> Result<LayoutReport, AskError> {
    let report = report(directory, Report::Layout)?;
    serde_json::from_slice(&report).map_err(|_| AskError::NotMounted)
}

pub fn marks(path: &Path) -> Result<Vec<MarkStatus>, AskError> {
    decoded(ask(path, Question::Marks)?)
}

/// The quota that a file or directory of a mount belongs to.
pub fn quota(path: &Path) -> Result<Option<QuotaStatus>, AskError> {
    decoded(ask(path, Question::Quota)?)
}

/// Fails for users who may not use the volume of `path` as root and the user who mounted it may.
///
/// # Errors
///
/// [`AskError::NotPermitted`]; [`AskError::NotMounted`].
pub fn check_permitted(path: &Path) -> Result<(), AskError> {
    ask(path, Question::Refusals).map(drop)
}

/// The quotas of the volume of `path`.
///
/// # Errors
///
/// [`AskError::NotMounted`] if no C-FFS volume is mounted there; the server's error.
pub fn quotas(path: &Path) -> Result<Vec<QuotaStatus>, AskError> {
    serde_json::from_slice(&report(path, Report::Quotas)?).map_err(|_| AskError::NotMounted)
}

/// Passes the changes below a directory since a mark, which exists, to `visit`: the file's type and the path.
///
/// # Errors
///
/// [`AskError::NotMounted`] if no C-FFS volume is mounted there; [`AskError::Refused`] if the list is too
/// long; the server's error; that of `visit`.
pub fn changes<E: From<AskError>>(
    directory: &Path,
    mark: &str,
    visit: impl FnMut(FileType, &[u8]) -> Result<(), E>,
) -> Result<(), E> {
    let list = report(directory, Report::Changes(mark)).map_err(|error| match error {
        AskError::Failed(error) if error.raw_os_error() == Some(Errno::FBIG.raw_os_error()) => {
            AskError::Refused(String::from(
                "the names of the changes take more than 256 MiB: list directories one by one, or \
                 unmount the volume and list the changes of its image",
            ))
        }
        error => error,
    })?;
    reporting::decode(&list, visit)
}

fn report(directory: &Path, what: Report<'_>) -> Result<Vec<u8>, AskError> {
    let mut attempts = 1..ATTEMPTS;
    loop {
        match pieces(directory, what, random()?) {
            // A server that was replaced meanwhile does not know the report.
            Err(Errno::INVAL) if attempts.next().is_some() => {}
            Err(errno) => return Err(AskError::of_owner_at(directory)(errno)),
            Ok(report) => return Ok(report),
        }
    }
}

fn pieces(directory: &Path, what: Report<'_>, token: u64) -> Result<Vec<u8>, Errno> {
    let mut report = Vec::new();
    let mut buffer = vec![0; VALUE_BYTES_MAX];
    for number in 0.. {
        match lgetxattr(directory, Piece { what, token, number }.name(), &mut buffer)? {
            0 => break,
            len => report.extend_from_slice(&buffer[..len]),
        }
    }
    Ok(report)
}

/// A clone of a tree that a server makes.
pub struct CloneAtServer {
    token: u64,
    directory: PathBuf,
}

impl CloneAtServer {
    /// Asks the server of the mount with both paths to clone the tree at `source`; the copy gets a name in
    /// `directory`. A symbolic link at the end of `source` is not followed.
    ///
    /// # Errors
    ///
    /// [`AskError::NotMounted`] if no C-FFS volume is mounted there; [`AskError::ReadOnly`].
    pub fn begin(source: &Path, directory: &Path, name: &[u8]) -> Result<CloneAtServer, AskError> {
        let mut attempts = 1..ATTEMPTS;
        loop {
            let token = random()?;
            let clone = CloneAtServer { token, directory: directory.to_owned() };
            let from = CloneRequest::From(token).to_value();
            lsetxattr(source, CloneRequest::NAME, &from, XattrFlags::empty())
                .map_err(AskError::from_errno)?;
            match clone.request(&CloneRequest::To(token, name.to_vec())) {
                // A server that was replaced meanwhile does not know the source.
                Err(AskError::Failed(error))
                    if error.kind() == io::ErrorKind::InvalidInput && attempts.next().is_some() => {
                }
                asked => return asked.map(|()| clone),
            }
        }
    }

    pub fn status(&self) -> Result<CloneStatus, AskError> {
        let mut value = vec![0; VALUE_BYTES_MAX];
        let name = CloneRequest::status_name(self.token);
        let len = getxattr(&self.directory, name, &mut value).map_err(AskError::from_errno)?;
        serde_json::from_slice(&value[..len]).map_err(|_| AskError::NotMounted)
    }

    /// Ends the clone early.
    pub fn stop(&self) -> Result<(), AskError> {
        self.request(&CloneRequest::Stop(self.token))
    }

    fn request(&self, request: &CloneRequest) -> Result<(), AskError> {
        let (name, value) = (CloneRequest::NAME, request.to_value());
        let asked = setxattr(&self.directory, name, &value, XattrFlags::empty());
        asked.map_err(|errno| match errno {
            Errno::BUSY => {
                AskError::Refused(String::from("the server is being restarted; try again"))
            }
            errno => AskError::from_errno(errno),
        })
    }
}

fn decoded<T: DeserializeOwned>(answer: Value) -> Result<T, AskError> {
    serde_json::from_value(answer).map_err(|_| AskError::NotMounted)
}

fn random() -> Result<u64, AskError> {
    let mut random = [0; 8];
    rustix::rand::getrandom(&mut random, rustix::rand::GetRandomFlags::empty())
        .map_err(|errno| AskError::Failed(errno.into()))?;
    Ok(u64::from_ne_bytes(random))
}

/// The server of an image that is not mounted.
///
/// # Errors
///
/// [`AskError::NotMounted`] if it has no server.
pub fn identity_of_server(image: &Path) -> Result<Identity, AskError> {
    decoded(ask_server_of(image, Question::Info)?["server"].take())
}

/// The server of the volume of `path`.
pub fn identity(path: &Path) -> Result<Identity, AskError> {
    decoded(ask(path, Question::Info)?["server"].take())
}

/// Sends a request to the server of the volume of `path`.
pub fn request(path: &Path, request: Request) -> Result<(), AskError> {
    let (name, value) = request.to_attribute();
    let asked = setxattr(path, name, value.as_bytes(), XattrFlags::empty());
    asked.map_err(|errno| {
        if errno == Errno::ROFS && is_read_only(path) {
            // The kernel did not forward the request.
            return AskError::ReadOnly;
        }
        // The kernel passes on only the error number of the answer.
        let why = ask(path, Question::Refusals).ok();
        let why = why.and_then(|said| refusals::reason(&said, name, &value));
        why.map_or_else(|| AskError::of_owner_at(path)(errno), AskError::Refused)
    })
}

/// The status of the scrub of the volume of `path`.
pub fn scrub_status(path: &Path) -> Result<ScrubStatus, AskError> {
    decoded(ask(path, Question::Scrub)?)
}

/// The status of the scrub of an image that is not mounted.
pub fn scrub_status_of_server(image: &Path) -> Result<ScrubStatus, AskError> {
    decoded(ask_server_of(image, Question::Scrub)?)
}

/// The status of the regrouping of the volume of `path`.
pub fn regroup_status(path: &Path) -> Result<RegroupStatus, AskError> {
    decoded(ask(path, Question::Regroup)?)
}

/// The status of the check of the volume of `path`.
pub fn check_status(path: &Path) -> Result<CheckStatus, AskError> {
    decoded(ask(path, Question::Fsck)?)
}

/// The status of the check of an image that is not mounted.
pub fn check_status_of_server(image: &Path) -> Result<CheckStatus, AskError> {
    decoded(ask_server_of(image, Question::Fsck)?)
}

/// Why a query or request failed.
#[derive(Debug, thiserror::Error)]
pub enum AskError {
    /// No server has the volume of the path open.
    #[error("not a C-FFS volume that is mounted or served")]
    NotMounted,
    /// On a read-only mount, the kernel forwards no requests.
    #[error(
        "the volume is mounted read-only, and the kernel passes no requests on; if the command only reads, \
         name the image, the device or the URL"
    )]
    ReadOnly,
    /// The server refuses the request at present.
    #[error("{0}")]
    Refused(String),
    /// The device failed, and the changes are not durable.
    #[error("{0}")]
    NotDurable(String),
    /// The server's program was not replaced, and continues.
    #[error("not restarted: {0}")]
    NotRestarted(String),
    /// The server's program was replaced, and serves the mount, but no longer the NFS clients.
    #[error("restarted, but NFS clients are no longer served: {0}; another restart tries again")]
    WithoutNfs(String),
    /// The server's program was replaced, and serves the mount, but no longer the page.
    #[error("restarted, but the page has ended: {0}")]
    WithoutPage(String),
    /// Only root and this user, who mounted the volume, may make the query or request.
    #[error("{}", only_for(*.0))]
    NotPermitted(u32),
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

    /// The same for a query or request at `path` that may be only for root and the user who mounted the
    /// volume.
    pub(in crate::served) fn of_owner_at(path: &Path) -> impl Fn(Errno) -> AskError {
        move |errno| {
            let user = || server_user(path).filter(|uid| ![0, *uid].contains(&geteuid().as_raw()));
            match (errno == Errno::PERM).then(user).flatten() {
                Some(uid) => AskError::NotPermitted(uid),
                // Root and that user get this error for another reason, such as an immutable directory.
                None => AskError::from_errno(errno),
            }
        }
    }
}

/// The user that the server of the volume at `path` runs as.
fn server_user(path: &Path) -> Option<u32> {
    let mut value = vec![0; VALUE_BYTES_MAX];
    let len = lgetxattr(path, Question::Info.name(), &mut value).ok()?;
    let mut info: Value = serde_json::from_slice(&value[..len]).ok()?;
    Some(serde_json::from_value::<Identity>(info["server"].take()).ok()?.uid)
}

fn only_for(uid: u32) -> String {
    match uid {
        0 => String::from("only root, who mounted the volume, may do this"),
        uid => format!("only root and {}, who mounted the volume, may do this", user_name(uid)),
    }
}
