//! The control interface: other programs talk to a server through the mount.
//!
//! They ask by reading extended attributes below `system.cffs.`, and request by setting one. This needs no
//! socket and no file that can outlive the server. It works in every mount namespace, on any file of the
//! volume. The attributes are never listed, so that no program copies them. Answers are JSON. A server
//! without a mount takes the same names over its socket (`crate::unmounted`).
//!
//! | name | |
//! | --- | --- |
//! | `system.cffs.info` | read: the mounted volume, and its server |
//! | `system.cffs.stats` | read: counters |
//! | `system.cffs.explain` | read: where the file lies |
//! | `system.cffs.sync` | read: returns when everything is durable, or says what is lost |
//! | `system.cffs.restart` | read: replaces the server's program, or says why not |
//! | `system.cffs.shutdown.N` | read: the server connects to socket N ([`shutdown`](super::shutdown)) |
//! | `system.cffs.scrub` | read: how a scrub stands; set to `start RATE` or `stop` |
//! | `system.cffs.fsck` | read: how a check stands; set to `start` or `start contents` |
//! | `system.cffs.layout.TOKEN.N` | read: piece N of a report of where a tree lies (`reporting.rs`) |
//! | `system.cffs.regroup` | read: how a regrouping stands; set to `move`, `count` or `stop`, the first two with `tree` or inode numbers |
//! | `system.cffs.trace.causes`, `.all` | read: starts a recording ([`recording`](super::recording)) |
//! | `system.cffs.trace.next`, `.stop` | read: fetches the records, ends the recording |
//! | `system.cffs.export` | read: the NFS exports and their clients; set to `add PATH[:OPTIONS]` or `remove PATH` |
//! | `system.cffs.grow` | set to a size in bytes, to `+` and an increase, or to `device` |
//! | `system.cffs.tune` | set to what is to change |
//! | `system.cffs.refusals` | read: why requests were refused, since the kernel passes on an error number alone |

use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use cffs::error::{Error, Result};
use cffs::units::InodeNo;
use cffs::vfs::Volume;
use serde::{Deserialize, Serialize};

use super::identity::check_owner;
pub use super::{CheckStatus, Pace, RegroupRequest, RegroupStatus, ScrubStatus, Stage};
use super::{Identity, Served};
use crate::describe;
use crate::shared::Exports;

mod client;
mod refusals;
mod reporting;
mod request;
mod tuning;

pub(super) use client::call_server;
pub use client::{
    AskError, ask, ask_server_of, check_status, identity, identity_of_server, layout,
    regroup_status, request, request_of_server, restart, scrub_status, scrub_status_of_server,
    sync, trim,
};
use refusals::Refusals;
pub(crate) use reporting::Piece;
use reporting::Reports;
pub use request::Request;
use request::{EXPORT_NAME, FSCK_NAME, REGROUP_NAME, SCRUB_NAME};

/// The longest value of an attribute, which is the kernel's.
pub(super) const VALUE_BYTES_MAX: usize = 64 << 10;

/// A question to a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Question {
    /// The mounted volume and its server: [`Identity`].
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
    /// The exports by NFS, and their clients; null without an NFS server.
    Exports,
    /// Makes everything durable, or says what is lost.
    Sync,
    /// Replaces the server's program, or says why not.
    Restart,
    /// Why the last requests that failed did.
    Refusals,
}

/// The answer to [`Question::Restart`].
#[derive(Serialize, Deserialize)]
struct RestartAnswer {
    /// Why the program is not replaced.
    refused: Option<String>,
}

/// The answer to [`Question::Sync`].
#[derive(Serialize, Deserialize)]
struct Durability {
    /// Why not everything is durable, and what is lost.
    failure: Option<String>,
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

/// Set when a mount is served; never for a server without a mount.
pub(crate) type Restarter = Arc<OnceLock<Box<dyn Restart>>>;

/// The server's side.
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
                let identity = identity.map(|identity| match self.restarter.get() {
                    Some(restarter) => restarter.show(identity),
                    None => identity,
                });
                describe::mounted(volume, &identity)
            }
            Question::Stats => self.served.stats(),
            Question::Explain => describe::placement(&volume.admin().explain(ino)?),
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
                serde_json::json!(RestartAnswer { refused: self.begin_restart(volume).err() })
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

    /// A piece of a report about a directory, for root and the user who mounted the volume: the report names
    /// files that other users might not see, and callers wait while it is made.
    pub fn report(&self, volume: &Volume, dir: InodeNo, piece: Piece, uid: u32) -> Result<Vec<u8>> {
        check_owner(uid)?;
        logged("looking at the layout", self.reports.piece(volume, dir, piece))
    }

    /// Connects to the socket with this number, which gets all shutdown reports from now on.
    pub fn send_shutdown_reports(&self, number: u32, uid: u32) -> Result<()> {
        check_owner(uid)?;
        Ok(self.served.shutdown.connect(number)?)
    }

    /// Does what root, or the user who mounted the volume, requests, and keeps the reason of a failure for
    /// [`Question::Refusals`]. Other users get an error.
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
                logged("growing", volume.admin().grow(size_bytes))?;
            }
            Request::GrowBy(bytes) => {
                let _turn = self.growing.lock().unwrap_or_else(PoisonError::into_inner);
                let superblock = volume.writer().superblock();
                let now = superblock.blocks * u64::from(superblock.block_bytes);
                logged("growing", volume.admin().grow(Some(now.saturating_add(bytes))))?;
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

/// Logs the reason of a failure, since the caller gets an error number alone.
fn logged<T>(what: &str, result: Result<T>) -> Result<T> {
    if let Err(error) = &result {
        tracing::error!(%error, "{what} failed");
    }
    result
}
