//! The control interface: commands communicate with a server through the mount.
//!
//! They query the server by reading extended attributes below `system.cffs.`, and send requests by setting
//! them. This needs no socket and no file that could outlive the server. It works in every mount namespace,
//! on any file of the volume. The attributes are never listed, so programs do not copy them. Answers are
//! JSON. A server without a mount accepts the same names on its socket (`crate::unmounted`).
//!
//! | name | |
//! | --- | --- |
//! | `system.cffs.info` | read: the mounted volume, and its server |
//! | `system.cffs.stats` | read: counters |
//! | `system.cffs.explain` | read: the placement of the file |
//! | `system.cffs.sync` | read: returns when everything is durable, or describes the losses |
//! | `system.cffs.restart` | read: replaces the server's program, or gives the reason against it |
//! | `system.cffs.shutdown.N` | read: the server connects to socket N ([`shutdown`](super::shutdown)) |
//! | `system.cffs.scrub` | read: the status of a scrub; set to `start RATE` or `stop` |
//! | `system.cffs.fsck` | read: the status of a check; set to `start` or `start contents` |
//! | `system.cffs.layout.TOKEN.N` | read: piece N of a report of a tree's layout (`reporting.rs`) |
//! | `system.cffs.changes.TOKEN.N.MARK` | read: piece N of the list of what changed in a tree since a mark |
//! | `system.cffs.quota` | read: the quota of the file; set to `set BYTES FILES` (`-` keeps a limit) or `remove` |
//! | `system.cffs.quotas.TOKEN.N` | read: piece N of the list of quotas |
//! | `system.cffs.mark` | read: the marks; set to `set NAME` or `remove NAME` |
//! | `system.cffs.regroup` | read: the status of a regrouping; set to `move`, `count` or `stop`, the first two with `tree`, `used` or inode numbers |
//! | `system.cffs.clone`, `.TOKEN` | set twice to clone a tree, by any user; read: the status ([`cloning`](super::CloneStatus)) |
//! | `system.cffs.attach`, `.NUMBER` | set, then read: a ticket for a call by the socket ([`attached`](crate::attached)), for any user |
//! | `system.cffs.trace.causes`, `.all` | read: starts a recording ([`recording`](super::recording)) |
//! | `system.cffs.trace.next`, `.stop` | read: fetches the records, ends the recording |
//! | `system.cffs.export` | read: the NFS exports and their clients; set to `add PATH[:OPTIONS]` or `remove PATH` |
//! | `system.cffs.trim.LEAST` | read: discards free space in runs of at least this many bytes, and returns how much |
//! | `system.cffs.grow` | set to a size in bytes, to `+` and an increase, or to `device` |
//! | `system.cffs.tune` | set to the changes |
//! | `system.cffs.refusals` | read: why requests were refused, since the kernel passes on only an error number |

use std::ops::Range;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use cffs::error::{Error, Result};
use cffs::units::InodeNo;
use cffs::vfs::{Mark, Marks, Quota, Quotas, Volume};
use serde::{Deserialize, Serialize};

pub(crate) use super::CloneRequest;
pub use super::CloneStatus;
use super::identity::{check_owner, is_owner};
pub use super::{CheckStatus, Pace, RegroupRequest, RegroupStatus, ScrubStatus, Stage, Which};
use super::{Identity, Served};
use crate::access::User;
use crate::describe;
use crate::shared::{Exports, Observer, is_fault};

mod client;
mod refusals;
mod reporting;
mod request;

use client::TRIM;
pub(super) use client::call_server;
pub use client::{
    AskError, CloneAtServer, ask, ask_server_of, changes, check_permitted, check_status,
    check_status_of_server, identity, identity_of_server, layout, marks, quota, quotas,
    regroup_status, request, request_of_server, restart, scrub_status, scrub_status_of_server,
    sync, trim,
};
use refusals::Refusals;
pub(crate) use refusals::text as refusal_text;
pub(crate) use reporting::Piece;
use reporting::Reports;
pub use request::Request;
use request::{EXPORT_NAME, FSCK_NAME, MARK_NAME, QUOTA_NAME, REGROUP_NAME, SCRUB_NAME};

/// The longest value of an attribute, as in the kernel.
pub(super) const VALUE_BYTES_MAX: usize = 64 << 10;

/// A query to a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Question {
    /// The mounted volume and its server: [`Identity`].
    Info,
    /// The counters of the volume.
    Stats,
    /// The placement of the file.
    Explain,
    /// The status of a scrub: [`ScrubStatus`].
    Scrub,
    /// The status of a check: [`CheckStatus`].
    Fsck,
    /// The status of a regrouping: [`RegroupStatus`].
    Regroup,
    /// The NFS exports and their clients; null without an NFS server.
    Exports,
    /// The marks of the volume: a list of [`MarkStatus`].
    Marks,
    /// The quota that the file belongs to: [`QuotaStatus`], or null.
    Quota,
    /// Makes everything durable, or describes the losses.
    Sync,
    /// Replaces the server's program, or gives the reason against it.
    Restart,
    /// The reasons why recent requests failed.
    Refusals,
}

/// The answer to [`Question::Restart`].
#[derive(Serialize, Deserialize)]
struct RestartAnswer {
    /// Why the program is not replaced.
    refused: Option<String>,
}

/// A mark, in the answer to [`Question::Marks`].
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct MarkStatus {
    pub name: String,
    /// When it was set, in seconds since 1970.
    pub set_at: i64,
    /// Nothing can be listed since this mark.
    pub is_damaged: bool,
}

impl From<&Mark> for MarkStatus {
    fn from(mark: &Mark) -> MarkStatus {
        let Mark { name, count, set_at } = mark;
        MarkStatus { name: name.clone(), set_at: set_at.seconds, is_damaged: count.is_none() }
    }
}

/// A quota, in the answer to [`Question::Quota`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct QuotaStatus {
    /// The directory, from the root of the volume; bytes that are not UTF-8 become U+FFFD.
    pub directory: String,
    /// The most bytes; null for no limit.
    pub limit_bytes: Option<u64>,
    /// The most files; null for no limit.
    pub limit_files: Option<u64>,
    /// Bytes in use.
    pub used_bytes: u64,
    /// Files in use.
    pub used_files: u64,
}

impl From<&Quota> for QuotaStatus {
    fn from(quota: &Quota) -> QuotaStatus {
        let limit = |limit: u64| (limit != u64::MAX).then_some(limit);
        QuotaStatus {
            directory: format!("/{}", String::from_utf8_lossy(&quota.path)),
            limit_bytes: limit(quota.limits.bytes),
            limit_files: limit(quota.limits.files),
            used_bytes: quota.used.bytes,
            used_files: quota.used.files,
        }
    }
}

/// The quotas of a volume.
///
/// # Errors
///
/// Those of reading their directories.
pub fn quotas_of(volume: &Volume) -> Result<Vec<QuotaStatus>> {
    Ok(Quotas::of(volume).list()?.iter().map(QuotaStatus::from).collect())
}

/// The answer to [`Question::Sync`].
#[derive(Serialize, Deserialize)]
struct Durability {
    /// Why not everything is durable, and which changes are lost.
    failure: Option<String>,
}

impl Question {
    const ALL: [Question; 12] = [
        Question::Info,
        Question::Stats,
        Question::Explain,
        Question::Scrub,
        Question::Fsck,
        Question::Regroup,
        Question::Exports,
        Question::Marks,
        Question::Quota,
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
            Question::Marks => MARK_NAME,
            Question::Quota => QUOTA_NAME,
            Question::Sync => "system.cffs.sync",
            Question::Restart => "system.cffs.restart",
            Question::Refusals => "system.cffs.refusals",
        }
    }
}

/// A server whose program can be replaced while it serves.
pub(crate) trait Restart: Send + Sync {
    /// Begins to replace the program.
    ///
    /// # Errors
    ///
    /// Why that is impossible; nothing has changed then.
    fn begin(&self, volume: &Volume) -> std::result::Result<(), String>;

    /// The server's identity, with the failure of the last attempt if the server continued after it.
    fn show(&self, identity: Identity) -> Identity;
}

/// Set when a mount is served; a server without a mount never sets it.
pub(crate) type Restarter = Arc<OnceLock<Box<dyn Restart>>>;

/// The server's side of the interface.
pub(crate) struct Control {
    served: Arc<Served>,
    restarter: Restarter,
    reports: Reports,
    /// Held while the volume grows, so that concurrent increases add up.
    growing: Mutex<()>,
    refusals: Refusals,
}

impl Control {
    pub fn new(served: Arc<Served>, restarter: Restarter) -> Control {
        let (reports, growing, refusals) = Default::default();
        Control { served, restarter, reports, growing, refusals }
    }

    /// The shortest run of free space that a reader of this attribute wants to be discarded.
    pub fn trim_asked_by(name: &[u8]) -> Option<u64> {
        std::str::from_utf8(name.strip_prefix(TRIM.as_bytes())?).ok()?.parse().ok()
    }

    /// The query with this attribute name.
    pub fn question(name: &[u8]) -> Option<Question> {
        Question::ALL.into_iter().find(|question| question.name().as_bytes() == name)
    }

    /// The answer for the user `uid`, about the file `ino` if the query concerns a file.
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
                let identity = self.served.identity_now().map(|identity| identity.shown_to(uid));
                let page_failure = self.served.page_failure.get().cloned();
                let identity =
                    identity.map(|identity| Identity { nfs_failure, page_failure, ..identity });
                let identity = identity.map(|identity| match self.restarter.get() {
                    Some(restarter) => restarter.show(identity),
                    None => identity,
                });
                describe::mounted(volume, &identity)
            }
            Question::Stats if is_owner(uid) => self.served.stats_with_paths(),
            Question::Stats => self.served.stats(),
            Question::Explain => describe::placement(&volume.admin().explain(ino)?),
            Question::Scrub => serde_json::json!(self.served.scrub()),
            Question::Fsck => serde_json::json!(self.served.check()),
            Question::Regroup => serde_json::json!(self.served.regroup()),
            Question::Exports => {
                check_owner(uid)?;
                self.served.exports().map_or(serde_json::Value::Null, |exports| exports.describe())
            }
            Question::Marks => {
                let marks = Marks::of(volume).list()?;
                serde_json::json!(marks.iter().map(MarkStatus::from).collect::<Vec<_>>())
            }
            Question::Quota => {
                check_owner(uid)?;
                match Quotas::of(volume).get(ino) {
                    Err(Error::NoAttribute) => serde_json::Value::Null,
                    quota => serde_json::json!(QuotaStatus::from(&quota?)),
                }
            }
            Question::Sync => serde_json::json!(Durability { failure: self.served.sync().err() }),
            Question::Refusals => {
                check_owner(uid)?;
                self.refusals.describe()
            }
            Question::Restart => {
                check_owner(uid)?;
                serde_json::json!(RestartAnswer { refused: self.begin_restart(volume).err() })
            }
        };
        let bytes = value.to_string().into_bytes();
        if bytes.len() > VALUE_BYTES_MAX { Err(Error::Range) } else { Ok(bytes) }
    }

    fn begin_restart(&self, volume: &Volume) -> Result<(), String> {
        self.served.end_idle_regroup();
        let restarter = self.restarter.get().ok_or("the volume is about to be mounted")?;
        self.served.forbid_jobs().map_err(|job| format!("{job} is under way"))?;
        restarter.begin(volume).inspect_err(|_| self.served.allow_jobs())
    }

    /// Fails if a job is changing the volume; ends one that is idle. Only for root and the user who mounted
    /// the volume.
    pub fn check_unchanged(&self, uid: u32) -> Result<()> {
        check_owner(uid)?;
        self.served.check_unchanged()
    }

    /// The answer about free space that was discarded in runs of at least `least` bytes.
    pub fn trim_all(&self, volume: &Volume, least: u64, uid: u32) -> Result<Vec<u8>> {
        let trimmed = self.trim(volume, 0..u64::MAX, least, uid)?;
        Ok(trimmed.to_string().into_bytes())
    }

    /// Discards the free space in a range of the volume, in runs of at least `least` bytes, and returns how
    /// much. Only for root and the user who mounted the volume.
    pub fn trim(&self, volume: &Volume, range: Range<u64>, least: u64, uid: u32) -> Result<u64> {
        check_owner(uid)?;
        let trimmed = self.served.trim(volume, range, least)?;
        tracing::info!(bytes = trimmed.bytes, requests = trimmed.requests, "trimmed");
        Ok(trimmed.bytes)
    }

    /// Carries out a request of any user about a clone of a tree, with the rights of that user, and tells
    /// `observer` about the new names. If the clone fails later, its status has the reason.
    ///
    /// # Errors
    ///
    /// [`Error::Invalid`] if the user has not named a source, the clone has already begun, or too many clones
    /// are under way; [`Error::InUse`] while the program is about to be replaced; [`Error::ReadOnly`] on a
    /// read-only mount.
    pub fn clone_tree(
        &self,
        ino: InodeNo,
        request: CloneRequest,
        user: User,
        observer: Box<dyn Observer>,
    ) -> Result<()> {
        let starts = matches!(request, CloneRequest::To(..));
        let _starting = starts.then(|| self.served.start_job()).transpose()?;
        self.served.cloning.carry_out(&self.served.volume(), ino, request, user, observer)
    }

    /// The status of a user's clone.
    pub fn clone_status(&self, token: u64, uid: u32) -> Result<Vec<u8>> {
        Ok(serde_json::json!(self.served.cloning.status(token, uid)?).to_string().into_bytes())
    }

    /// A piece of a report about a directory, only for root and the user who mounted the volume: the report
    /// names files that other users might not see, and callers wait while it is generated.
    pub fn report(
        &self,
        volume: &Volume,
        dir: InodeNo,
        piece: Piece<'_>,
        uid: u32,
    ) -> Result<Vec<u8>> {
        check_owner(uid)?;
        logged("reporting about a tree", self.reports.piece(volume, dir, piece))
    }

    /// Connects to the socket with this number; all later shutdown reports are sent to it.
    pub fn send_shutdown_reports(&self, number: u32, uid: u32) -> Result<()> {
        check_owner(uid)?;
        Ok(self.served.shutdown.connect(number)?)
    }

    /// Executes a request of root or of the user who mounted the volume, and records the reason of a failure
    /// for [`Question::Refusals`]. Other users get an error.
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
            Request::StartScrub(bytes_per_sec) => self.served.start_scrub(bytes_per_sec)?,
            Request::StopScrub => self.served.stop_scrub(),
            Request::StartCheck { contents } => self.served.start_check(contents)?,
            Request::Regroup(request) => self.served.start_regroup(ino, request)?,
            Request::StopRegroup => self.served.stop_regroup(),
            Request::Grow(size_bytes) => {
                let _turn = self.growing.lock().unwrap_or_else(PoisonError::into_inner);
                logged("growing", volume.admin().grow(size_bytes))?;
            }
            Request::GrowBy(bytes) => {
                let _turn = self.growing.lock().unwrap_or_else(PoisonError::into_inner);
                let superblock = volume.writer().superblock.get();
                let now = superblock.blocks * u64::from(superblock.block_bytes);
                logged("growing", volume.admin().grow(Some(now.saturating_add(bytes))))?;
            }
            Request::Tune(changes) => drop(logged("tuning", volume.tune(&changes))?),
            Request::AddExport(export) => {
                self.change_exports(|exports| exports.add(&export))?;
            }
            Request::SetMark(name) => drop(logged("setting a mark", Marks::of(volume).set(&name))?),
            Request::RemoveMark(name) => {
                logged("removing a mark", Marks::of(volume).remove(&name))?
            }
            Request::SetQuota { bytes, files } => {
                drop(logged("setting a quota", Quotas::of(volume).change(ino, bytes, files))?)
            }
            Request::RemoveQuota => {
                logged("removing a quota", Quotas::of(volume).remove(ino))?;
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
        const WITHOUT: Error =
            Error::Invalid("not served by NFS; exports need a server that was started with --nfs");
        let exports = self.served.exports().ok_or(WITHOUT)?;
        change(exports).map_err(|why| {
            tracing::info!("the exports stay as they are: {why}");
            Error::Invalid("the server's log says what is wrong with the export")
        })
    }
}

/// Logs why a request failed. A request that the volume cannot fulfil is not a fault of the volume.
fn logged<T>(what: &str, result: Result<T>) -> Result<T> {
    result.inspect_err(|error| match is_fault(error) {
        true => tracing::error!(%error, "{what} failed"),
        false => tracing::info!(%error, "{what} was refused"),
    })
}
