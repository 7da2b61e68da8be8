//! A served volume, independent of the protocol: its description, its counters, and its long-running jobs.
//!
//! Commands access it through the mount or a socket ([`control`]), browsers through `cffs-web`. All see the
//! same counters and jobs. A front end ([`fuse`](crate::fuse), [`nfs`](crate::nfs)) uses this module; this
//! module uses no front end.

use std::ops::Range;
use std::sync::mpsc::{Receiver, TryRecvError};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use cffs::error::{Error, Result};
use cffs::format::superblock::Incompat;
use cffs::units::InodeNo;
use cffs::vfs::{Trimmed, Volume};
use serde_json::{Map, Value};

use crate::describe;
use crate::shared::{Current, Exports};

mod checking;
mod cloning;
pub(crate) mod closing;
pub mod control;
pub(crate) mod fstrim;
pub(crate) mod identity;
mod job;
pub mod recording;
mod regrouping;
mod scrubbing;
pub mod shutdown;

pub use checking::CheckStatus;
use checking::Checking;
pub(crate) use cloning::CloneRequest;
pub use cloning::CloneStatus;
use cloning::Cloning;
use closing::failure;
pub use identity::Identity;
use regrouping::Regrouping;
pub use regrouping::{RegroupRequest, RegroupStatus, Which};
use scrubbing::Scrubbing;
pub use scrubbing::{Pace, ScrubStatus, Stage};
use shutdown::ShutdownReports;

/// Counters that a front end or a device keeps, by name.
pub type Counters = Box<dyn Fn() -> Value + Send + Sync>;

/// The reason of an outage, in the counters of a store.
pub const OUTAGE: &str = "outage";

/// A volume that is being served.
pub struct Served {
    volume: Current,
    /// Set when serving begins.
    pub(crate) identity: OnceLock<Identity>,
    /// Set for a mount: whether the kernel refuses changes through it at present.
    pub(crate) mount_is_read_only: OnceLock<Box<dyn Fn() -> bool + Send + Sync>>,
    /// Set if NFS clients are served.
    pub(crate) exports: OnceLock<Arc<dyn Exports>>,
    /// Set if NFS clients are no longer served since a restart.
    pub(crate) nfs_failure: OnceLock<String>,
    /// Set if the page is no longer served since a restart.
    pub(crate) page_failure: OnceLock<String>,
    /// Counters of requests to the object store that contains the volume.
    pub(crate) store: OnceLock<Counters>,
    /// Counters of staged records that wait for the object store.
    pub(crate) staging: OnceLock<Counters>,
    /// Counters of the kernel's requests.
    pub(crate) requests: OnceLock<Counters>,
    pub(crate) shutdown: ShutdownReports,
    scrubbing: Arc<Scrubbing>,
    checking: Arc<Checking>,
    regrouping: Arc<Regrouping>,
    cloning: Cloning,
    /// Whether jobs are forbidden, since the program is about to be replaced. Locked while one starts.
    no_jobs: Mutex<bool>,
}

impl Served {
    /// A volume without running jobs.
    pub fn new(volume: Current) -> Served {
        Served {
            volume,
            identity: OnceLock::new(),
            mount_is_read_only: OnceLock::new(),
            exports: OnceLock::new(),
            nfs_failure: OnceLock::new(),
            page_failure: OnceLock::new(),
            store: OnceLock::new(),
            staging: OnceLock::new(),
            requests: OnceLock::new(),
            shutdown: ShutdownReports::default(),
            scrubbing: Arc::default(),
            checking: Arc::default(),
            regrouping: Arc::default(),
            cloning: Cloning::default(),
            no_jobs: Mutex::default(),
        }
    }

    /// A volume without a mount, given its server's identity and NFS exports.
    pub fn unmounted(
        volume: Arc<Volume>,
        identity: Identity,
        exports: Option<Arc<dyn Exports>>,
    ) -> Served {
        let served = Served::new(Current::new(volume));
        let exports = exports.map_or_else(OnceLock::new, OnceLock::from);
        Served { identity: OnceLock::from(identity), exports, ..served }
    }

    /// Adds the counters of requests to the object store that contains the volume.
    pub fn set_store(&self, requests: Counters) {
        // A volume has at most one.
        let _ = self.store.set(requests);
    }

    /// Adds the counters of staged records that wait for the object store.
    pub fn set_staging(&self, waiting: Counters) {
        // A volume has at most one.
        let _ = self.staging.set(waiting);
    }

    pub fn volume(&self) -> Arc<Volume> {
        self.volume.get()
    }

    /// The server, once serving has begun.
    pub fn identity(&self) -> Option<&Identity> {
        self.identity.get()
    }

    /// The server as it is now, with all paths.
    pub(crate) fn identity_now(&self) -> Option<Identity> {
        let identity = self.identity.get()?.clone();
        let read_only = self.is_read_only() || self.volume().admin().refusal().is_some();
        Some(Identity { read_only, ..identity })
    }

    /// Whether changes are refused at present: the volume was opened for reading only, or the mount was
    /// remounted read-only.
    pub fn is_read_only(&self) -> bool {
        match self.mount_is_read_only.get() {
            Some(is_read_only) => is_read_only(),
            None => self.identity.get().is_some_and(|server| server.read_only),
        }
    }

    /// Fails on a mount that is read-only at present. The kernel passes on no requests of commands there, so
    /// nothing else begins work or changes the volume either.
    ///
    /// # Errors
    ///
    /// [`Error::ReadOnly`].
    pub fn check_mount(&self) -> Result<()> {
        let is_read_only = self.mount_is_read_only.get().is_some_and(|is_read_only| is_read_only());
        if is_read_only { Err(Error::ReadOnly) } else { Ok(()) }
    }

    /// The NFS exports, if NFS clients are served.
    pub fn exports(&self) -> Option<&dyn Exports> {
        self.exports.get().map(|exports| &**exports)
    }

    /// The outage of the volume's store, in words for the owner.
    pub(crate) fn outage(&self) -> Option<String> {
        let store = self.store.get()?();
        let (why, seconds) = (store[OUTAGE].as_str()?, &store["outage_seconds"]);
        Some(format!("waiting for the store, which has not answered for {seconds} s: {why}"))
    }

    /// The counters of the volume and of its server, for all users: without the reason of an outage of the
    /// store, which contains paths of the host.
    pub fn stats(&self) -> Value {
        let mut shown = self.stats_with_paths();
        if let Some(store) = shown["store"].as_object_mut() {
            store.remove(OUTAGE);
        }
        shown
    }

    /// The same for the owner, with paths.
    pub(crate) fn stats_with_paths(&self) -> Value {
        let volume = self.volume();
        let (stats, memory) = (volume.stats(), volume.memory());
        let requests =
            self.requests.get().map_or_else(|| Value::Object(Map::new()), |count| count());
        let mut shown = describe::stats(&stats, &memory, requests);
        shown["transport"] = self.identity().map(|server| server.transport.as_str()).into();
        if volume.writer().superblock.get().incompat.contains(Incompat::CLUSTERS) {
            let clusters = volume.admin().clusters().ok().flatten();
            shown["compression"] = describe::compression(&stats, clusters);
        }
        if let Some(exports) = self.exports() {
            shown["nfs"] = exports.calls();
        }
        if let Some(store) = self.store.get() {
            shown["store"] = store();
        }
        if let Some(staging) = self.staging.get() {
            shown["staging"] = staging();
        }
        shown
    }

    /// The description of the volume and its server for all users: without paths of the host.
    pub fn info(&self) -> Value {
        let identity = self.identity_now().map(|server| server.without_paths());
        describe::mounted(&self.volume(), &identity)
    }

    /// The same for the owner, with paths.
    pub fn info_with_paths(&self) -> Value {
        describe::mounted(&self.volume(), &self.identity_now())
    }

    /// Forbids jobs to start, since the program is about to be replaced.
    ///
    /// # Errors
    ///
    /// The job that is under way.
    pub(crate) fn forbid_jobs(&self) -> std::result::Result<(), &'static str> {
        let mut is_forbidden = self.no_jobs.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(job) = self.job_under_way() {
            return Err(job);
        }
        *is_forbidden = true;
        Ok(())
    }

    /// Allows jobs again: the program was not replaced.
    pub(crate) fn allow_jobs(&self) {
        *self.no_jobs.lock().unwrap_or_else(PoisonError::into_inner) = false;
    }

    /// Keeps the program from being replaced, and the mount from becoming read-only, until the result is
    /// dropped. By then, the status must show the job as running.
    fn start_job(&self) -> Result<MutexGuard<'_, bool>> {
        let is_forbidden = self.no_jobs.lock().unwrap_or_else(PoisonError::into_inner);
        if *is_forbidden {
            return Err(Error::InUse(String::from("the server is being restarted; try again")));
        }
        self.check_mount()?;
        Ok(is_forbidden)
    }

    /// Starts to verify all checksums, at no more than this many bytes per second; 0 for no limit. Does
    /// nothing during a scrub.
    ///
    /// # Errors
    ///
    /// [`Error::InUse`] while the program is about to be replaced; [`Error::ReadOnly`] on a read-only mount.
    pub fn start_scrub(&self, bytes_per_sec: u64) -> Result<()> {
        let _starting = self.start_job()?;
        self.scrubbing.start(&self.volume(), bytes_per_sec);
        Ok(())
    }

    /// Ends the current scrub.
    pub fn stop_scrub(&self) {
        self.scrubbing.stop();
    }

    pub fn scrub(&self) -> ScrubStatus {
        self.scrubbing.status()
    }

    /// Starts a check. Does nothing while one is running.
    ///
    /// # Errors
    ///
    /// [`Error::InUse`] while the program is about to be replaced; [`Error::ReadOnly`] on a read-only mount.
    pub fn start_check(&self, contents: bool) -> Result<()> {
        let _starting = self.start_job()?;
        self.checking.start(&self.volume(), contents);
        Ok(())
    }

    pub fn check(&self) -> CheckStatus {
        self.checking.status()
    }

    /// Starts a regrouping of files, of the tree below a directory, or of files that are read together.
    ///
    /// # Errors
    ///
    /// [`Error::Invalid`] during another one; [`Error::InUse`] while the program is about to be replaced;
    /// [`Error::ReadOnly`] on a read-only mount.
    pub fn start_regroup(&self, dir: InodeNo, request: RegroupRequest) -> Result<()> {
        let _starting = self.start_job()?;
        self.regrouping.start(&self.volume(), dir, request)
    }

    /// Ends the current regrouping.
    pub fn stop_regroup(&self) {
        self.regrouping.stop();
    }

    /// Ends a regrouping that the server began because the volume was idle.
    pub(crate) fn end_idle_regroup(&self) {
        self.regrouping.end_idle();
    }

    /// Regroups whenever the volume has been idle for `after` and is writable, until the sender of `ended` is
    /// dropped.
    pub(crate) fn regroup_when_idle(&self, volume: &Volume, after: Duration, ended: &Receiver<()>) {
        let may_go_on = || {
            let has_ended = ended.try_recv() == Err(TryRecvError::Disconnected);
            !has_ended && !self.is_read_only()
        };
        self.regrouping.run_when_idle(volume, after, ended, &may_go_on);
    }

    /// Discards the free space in a range of the volume, in runs of at least `least` bytes.
    ///
    /// # Errors
    ///
    /// [`Error::ReadOnly`] on a mount that is read-only; errors of the device.
    pub fn trim(&self, volume: &Volume, range: Range<u64>, least: u64) -> Result<Trimmed> {
        self.check_mount()?;
        volume.admin().trim(range, least)
    }

    pub fn regroup(&self) -> RegroupStatus {
        self.regrouping.status()
    }

    /// The running job, in words.
    pub fn job_under_way(&self) -> Option<&'static str> {
        let is_running = |stage| stage == Stage::Running;
        let job = is_running(self.scrub().stage).then_some("a scrub");
        let job = job.or_else(|| is_running(self.check().stage).then_some("a check"));
        job.or_else(|| self.change_under_way())
    }

    /// Fails if a job is changing the volume; ends one that is idle. If the mount is already read-only, none
    /// begins afterwards.
    pub(crate) fn check_unchanged(&self) -> Result<()> {
        self.end_idle_regroup();
        let _starting = self.no_jobs.lock().unwrap_or_else(PoisonError::into_inner);
        match self.change_under_way() {
            Some(job) => Err(Error::InUse(format!("{job} is under way"))),
            None => Ok(()),
        }
    }

    /// The running job that changes the volume, in words.
    pub fn change_under_way(&self) -> Option<&'static str> {
        let job = (self.regroup().stage == Stage::Running).then_some("a regrouping");
        job.or_else(|| self.cloning.is_running().then_some("a clone"))
    }

    /// Makes everything durable; on failure, the reason and the losses. Does nothing on a volume that was
    /// opened read-only.
    pub fn sync(&self) -> std::result::Result<(), String> {
        let volume = self.volume();
        match volume.sync() {
            Ok(()) | Err(Error::ReadOnly) => Ok(()),
            Err(error) => Err(failure(&volume, &error)),
        }
    }
}
