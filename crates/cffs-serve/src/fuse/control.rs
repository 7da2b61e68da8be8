//! Talking to the server through the mount itself.
//!
//! Other programs ask the server by reading extended attributes with names of our own below
//! `system.`, and have it do something by setting one. That needs no socket that lies about and no
//! file that outlives the server; it follows the mount into every name space, reaches the very
//! volume that a path leads to, and works on any file of it. The attributes are never listed, so
//! that nothing copies them. Answers are JSON.
//!
//! | name | |
//! | --- | --- |
//! | `system.cffs.info` | read: what is mounted, and its server |
//! | `system.cffs.stats` | read: counters |
//! | `system.cffs.explain` | read: where the file lies |
//! | `system.cffs.sync` | read: returns when everything is durable, or says what is lost |
//! | `system.cffs.restart` | read: has the server replace its program, or says why not |
//! | `system.cffs.farewell.N` | read: has the server connect to socket N ([`farewell`](super::farewell)) |
//! | `system.cffs.scrub` | read: how a scrub stands; set to `start RATE` or `stop` |
//! | `system.cffs.fsck` | read: how a check stands; set to `start` or `start contents` |
//! | `system.cffs.layout.TOKEN.N` | read: piece N of a report of where a tree lies (`reporting.rs`) |
//! | `system.cffs.regroup` | read: how a regrouping stands; set to `move`, `count` or `stop`, the first two with `tree` or inode numbers |
//! | `system.cffs.trace.causes`, `.all` | read: starts a recording ([`recording`](super::recording)) |
//! | `system.cffs.trace.next`, `.stop` | read: fetches what was recorded, ends the recording |
//! | `system.cffs.export` | read: what is exported by NFS, to which clients; set to `add PATH[:OPTIONS]` or `remove PATH` |
//! | `system.cffs.grow` | set to a size in bytes, to `+` and an increase, or to `device` |
//! | `system.cffs.tune` | set to what is to change |
//! | `system.cffs.refusals` | read: why requests were refused, of which the kernel passes on a number alone |

use std::collections::BTreeMap;
use std::io;
use std::path::Path;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use cffs::error::{Error, Result};
use cffs::units::InodeNo;
use cffs::vfs::Volume;
use fuse_ring::protocol::Opcode;
use rustix::fs::{
    Mode, OFlags, StatVfs, StatVfsMountFlags, XattrFlags, lgetxattr, open, setxattr, statvfs,
};
use rustix::io::Errno;
use rustix::ioctl;
use serde::{Deserialize, Serialize};

use super::farewell::Farewells;
pub use super::identity::Identity;
use super::ioctl::FstrimRange;
use super::refusals::{self, Refusals};
use super::reporting::{Piece, Reports};
use super::restart::{self, Restarter};
use crate::describe;
use crate::layout::LayoutReport;
use crate::served::Served;
pub use crate::served::{CheckStatus, Pace, RegroupRequest, RegroupStatus, ScrubStatus, Stage};
use crate::shared::Exports;
use crate::socket::{self, Message, Reply};

mod request;

pub use request::Request;
use request::{EXPORT_NAME, FSCK_NAME, REGROUP_NAME, SCRUB_NAME};

/// The longest value of an attribute, which is the kernel's.
pub(super) const VALUE_BYTES_MAX: usize = 64 << 10;

/// What can be asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Question {
    /// What is mounted, and its server: [`Identity`].
    Info,
    /// The counters of the volume.
    Stats,
    /// Where the file lies.
    Explain,
    /// How a scrub stands: [`ScrubStatus`].
    Scrub,
    /// How a check stands: [`CheckStatus`].
    Fsck,
    /// How a regrouping stands: [`RegroupStatus`].
    Regroup,
    /// What is exported by NFS, and its clients; null without an NFS server.
    Exports,
    /// Whether everything is durable, which it is made before: [`Durability`].
    Sync,
    /// Whether the server's program is replaced, which begins with this: [`Restart`].
    Restart,
    /// Why the last requests that failed did.
    Refusals,
}

/// Whether a server's program is being replaced.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Restart {
    /// Why not.
    pub refused: Option<String>,
}

/// Whether everything is durable.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Durability {
    /// Why not, and what is lost.
    pub failure: Option<String>,
}

impl Question {
    const ALL: [Question; 10] = [
        Question::Info,
        Question::Stats,
        Question::Explain,
        Question::Scrub,
        Question::Fsck,
        Question::Regroup,
        Question::Exports,
        Question::Sync,
        Question::Restart,
        Question::Refusals,
    ];

    fn name(self) -> &'static str {
        match self {
            Question::Info => "system.cffs.info",
            Question::Stats => "system.cffs.stats",
            Question::Explain => "system.cffs.explain",
            Question::Scrub => SCRUB_NAME,
            Question::Fsck => FSCK_NAME,
            Question::Regroup => REGROUP_NAME,
            Question::Exports => EXPORT_NAME,
            Question::Sync => "system.cffs.sync",
            Question::Restart => "system.cffs.restart",
            Question::Refusals => "system.cffs.refusals",
        }
    }
}

impl Identity {
    /// Where the image and the log lie, and under which path it is mounted, is for root and the user who
    /// mounted it: a mount can be seen from containers that must not know.
    fn shown_to(&self, uid: u32) -> Identity {
        match is_owner(uid) {
            true => self.clone(),
            false => self.without_paths(),
        }
    }

    /// What everybody may know.
    pub(crate) fn without_paths(&self) -> Identity {
        Identity { image: None, directory: None, fixed_options: BTreeMap::new(), ..self.clone() }
    }
}

/// The server's side.
pub(crate) struct Control {
    served: Arc<Served>,
    farewells: Arc<Farewells>,
    restarter: Arc<OnceLock<Restarter>>,
    reports: Reports,
    /// One volume grows once at a time, so that increases add up.
    growing: Mutex<()>,
    refusals: Refusals,
}

impl Control {
    /// A control of this volume.
    pub(super) fn new(
        served: Arc<Served>,
        farewells: Arc<Farewells>,
        restarter: Arc<OnceLock<Restarter>>,
    ) -> Control {
        let (reports, growing, refusals) = Default::default();
        Control { served, farewells, restarter, reports, growing, refusals }
    }

    /// That of a volume that is not mounted.
    pub fn unmounted(served: Arc<Served>) -> Control {
        Control::new(served, Arc::default(), Arc::default())
    }

    /// Counts a request of the kernel.
    pub fn count(&self, opcode: Opcode) {
        self.served.requests.count(opcode);
    }

    /// The question that has this attribute's name.
    pub fn question(name: &[u8]) -> Option<Question> {
        Question::ALL.into_iter().find(|question| question.name().as_bytes() == name)
    }

    /// The answer for the user `uid`, about the file `ino` if it is about a file.
    pub fn answer(
        &self,
        volume: &Volume,
        ino: InodeNo,
        question: Question,
        uid: u32,
    ) -> Result<Vec<u8>> {
        let value = match question {
            Question::Info => {
                let nfs_failure = self.served.nfs_failure.get().cloned();
                let identity = self.served.identity().map(|identity| identity.shown_to(uid));
                let identity = identity.map(|identity| Identity { nfs_failure, ..identity });
                let identity = identity.map(|identity| restart::show(&self.restarter, identity));
                describe::mounted(volume, identity.as_ref())
            }
            Question::Stats => self.served.stats(),
            Question::Explain => describe::placement(&volume.explain(ino)?),
            Question::Scrub => serde_json::json!(self.served.scrub()),
            Question::Fsck => serde_json::json!(self.served.check()),
            Question::Regroup => serde_json::json!(self.served.regroup()),
            Question::Exports => {
                check_owner(uid)?;
                self.served.exports().map_or(serde_json::Value::Null, |exports| exports.describe())
            }
            Question::Sync => serde_json::json!(Durability { failure: self.served.sync().err() }),
            Question::Refusals => {
                check_owner(uid)?;
                self.refusals.describe()
            }
            Question::Restart => {
                check_owner(uid)?;
                serde_json::json!(Restart { refused: self.begin_restart(volume).err() })
            }
        };
        let bytes = value.to_string().into_bytes();
        if bytes.len() > VALUE_BYTES_MAX { Err(Error::Range) } else { Ok(bytes) }
    }

    fn begin_restart(&self, volume: &Volume) -> Result<(), String> {
        self.served.end_idle_regroup();
        if let Some(job) = self.served.job_under_way() {
            return Err(format!("{job} is under way"));
        }
        self.restarter.get().ok_or("the volume is about to be mounted")?.begin(volume)
    }

    /// A piece of a report about a directory. It names files that the asker might not see, and callers
    /// wait while it is made: so it is for root and the user who mounted the volume.
    pub(super) fn report(
        &self,
        volume: &Volume,
        dir: InodeNo,
        piece: Piece,
        uid: u32,
    ) -> Result<Vec<u8>> {
        check_owner(uid)?;
        logged("looking at the layout", self.reports.piece(volume, dir, piece))
    }

    /// Promises a listener at the socket with this number to say what becomes of the volume.
    pub fn promise_farewell(&self, number: u32, uid: u32) -> Result<()> {
        check_owner(uid)?;
        Ok(self.farewells.connect(number)?)
    }

    /// Does what the user `uid` asks, and keeps the reason if that fails. Every user may have a volume
    /// synced, as by sync(2); what keeps the device busy, or others waiting, is for root and the user who
    /// mounted it.
    pub fn carry_out(
        &self,
        volume: &Arc<Volume>,
        ino: InodeNo,
        request: Request,
        uid: u32,
    ) -> Result<()> {
        check_owner(uid)?;
        let (name, value) = request.to_attribute();
        let done = self.try_carry_out(volume, ino, request);
        done.inspect_err(|error| self.refusals.add(name, &value, error))
    }

    fn try_carry_out(&self, volume: &Arc<Volume>, ino: InodeNo, request: Request) -> Result<()> {
        match request {
            Request::StartScrub(bytes_per_sec) => self.served.start_scrub(bytes_per_sec),
            Request::StopScrub => self.served.stop_scrub(),
            Request::StartCheck { contents } => self.served.start_check(contents),
            Request::Regroup(request) => self.served.start_regroup(ino, request)?,
            Request::StopRegroup => self.served.stop_regroup(),
            Request::Grow(size_bytes) => {
                let _turn = self.growing.lock().unwrap_or_else(PoisonError::into_inner);
                logged("growing", volume.grow(size_bytes))?;
            }
            Request::GrowBy(bytes) => {
                let _turn = self.growing.lock().unwrap_or_else(PoisonError::into_inner);
                let superblock = volume.superblock();
                let now = superblock.blocks * u64::from(superblock.block_bytes);
                logged("growing", volume.grow(Some(now.saturating_add(bytes))))?;
            }
            Request::Tune(changes) => drop(logged("tuning", volume.tune(&changes))?),
            Request::AddExport(export) => {
                self.change_exports(|exports| exports.add(&export))?;
            }
            Request::RemoveExport(path) => {
                self.change_exports(|exports| exports.remove(&path))?;
            }
        }
        Ok(())
    }
}

impl Control {
    fn change_exports(
        &self,
        change: impl FnOnce(&dyn Exports) -> std::result::Result<(), String>,
    ) -> Result<()> {
        const WITHOUT: Error = Error::Invalid("the volume is not served by NFS");
        let exports = self.served.exports().ok_or(WITHOUT)?;
        change(exports).map_err(|why| {
            tracing::error!("the exports stay as they are: {why}");
            Error::Invalid("the server's log says what is wrong with the export")
        })
    }
}

/// Logs why something failed: an error number says too little of it.
fn logged<T>(what: &str, result: Result<T>) -> Result<T> {
    if let Err(error) = &result {
        tracing::error!(%error, "{what} failed");
    }
    result
}

/// Whether the user is root, or the one who mounted the volume.
pub(super) fn is_owner(uid: u32) -> bool {
    uid == 0 || uid == rustix::process::geteuid().as_raw()
}

pub(super) fn check_owner(uid: u32) -> Result<()> {
    if is_owner(uid) { Ok(()) } else { Err(Error::NotPermitted) }
}

/// Has the server of the volume to which `path` belongs replace its program, and waits until the new one
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
    if let Restart { refused: Some(why) } = answer.map_err(|_| AskError::NotMounted)? {
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

/// Has the server of the volume to which `directory` belongs discard what is free, in runs of at least
/// `least_bytes`, as fstrim(8) does. Returns how many bytes it discarded.
pub fn trim(directory: &Path, least_bytes: u64) -> Result<u64, AskError> {
    // Another file system would carry out the command as well.
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

/// Has the server of an image that is not mounted do something.
///
/// # Errors
///
/// [`AskError::NotMounted`] if it has none.
pub fn request_of_server(image: &Path, request: Request) -> Result<(), AskError> {
    let (name, value) = request.to_attribute();
    call_server(image, name, Some(value)).map(drop)
}

pub(super) fn call_server(
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

/// Has the server make everything durable. This reaches a mount that the kernel takes for read-only, too:
/// it may have been mounted for writing a moment ago.
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

/// Has the server do something.
pub fn request(path: &Path, request: Request) -> Result<(), AskError> {
    let (name, value) = request.to_attribute();
    let asked = setxattr(path, name, value.as_bytes(), XattrFlags::empty());
    asked.map_err(|errno| {
        let is_read_only = |stat: StatVfs| stat.f_flag.contains(StatVfsMountFlags::RDONLY);
        if errno == Errno::ROFS && statvfs(path).is_ok_and(is_read_only) {
            // The kernel has not asked the server.
            return AskError::ReadOnly;
        }
        // Of the server's answer, the kernel passes on the number alone.
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

/// How the scrub of an image that is not mounted stands, of which the server has the image.
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
    /// The path is no name of a volume that a server has open.
    #[error("not a C-FFS volume that is mounted or served")]
    NotMounted,
    /// The kernel lets nothing be asked of a server on a read-only mount.
    #[error("the volume is mounted read-only; remount it read-write first")]
    ReadOnly,
    /// The server does not do this now.
    #[error("{0}")]
    Refused(String),
    /// The device failed, and what was changed is not on it.
    #[error("{0}")]
    NotDurable(String),
    /// The server's program was not replaced, and serves as before.
    #[error("not restarted: {0}")]
    NotRestarted(String),
    /// The server's program was replaced, and serves the mount, but NFS clients no longer.
    #[error("restarted, but NFS clients are no longer served: {0}; another restart tries again")]
    WithoutNfs(String),
    /// The server has ended without an unmount.
    #[error("its server has ended; take the mount away with cffs umount")]
    Dead,
    /// The path cannot be reached, or the server failed.
    #[error("{0}")]
    Failed(io::Error),
}

impl AskError {
    pub(super) fn from_errno(errno: Errno) -> AskError {
        match errno {
            Errno::NOTCONN | Errno::CONNABORTED => AskError::Dead,
            Errno::NODATA | Errno::OPNOTSUPP => AskError::NotMounted,
            Errno::ROFS => AskError::ReadOnly,
            errno => AskError::Failed(errno.into()),
        }
    }
}
