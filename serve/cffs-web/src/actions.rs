//! The actions of the page, each with its equivalent command.
//!
//! Scrub, check and regrouping are jobs of the server, shared with the commands. Sync and trim have their
//! status here, since the commands wait for them instead.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use axum::http::StatusCode;
use cffs::error::Error;
use cffs::format::superblock::{ErrorsPolicy, Reserve};
use cffs::mkfs::LABEL_BYTES_MAX;
use cffs::units::InodeNo;
use cffs::vfs::types::Attr;
use cffs::vfs::{SetVolume, Volume};
use cffs_serve::served::{RegroupRequest, Served, Stage, Which};
use cffs_serve::shared::{self, Exports};
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};

use crate::access::Refusal;
use crate::snapshots::checked_name;
use crate::{Options, RecentLog, Snapshots, Target};

/// The default rate of a scrub, the same as the command's.
const SCRUB_BYTES_PER_SEC: u64 = 50 << 20;
/// The bytes trimmed at once, so that progress is visible.
const TRIM_STEP_BYTES: u64 = 1 << 30;

/// An action: the path of the request names it, the body has its parameters.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Action {
    Sync,
    Scrub { bytes_per_second: u64 },
    StopScrub,
    Fsck { contents: bool },
    Regroup { path: String, dry_run: bool },
    StopRegroup,
    Trim,
    Label(String),
    Errors(ErrorsPolicy),
    Reserve { bytes: u64 },
    AddExport(String),
    RemoveExport(String),
    KeepSnapshot(String),
    RemoveSnapshot(String),
}

/// The fields of all bodies; each action uses some of them.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Body {
    bytes_per_second: Option<u64>,
    contents: bool,
    path: Option<String>,
    dry_run: bool,
    label: Option<String>,
    errors: Option<ErrorsPolicy>,
    reserve_bytes: Option<u64>,
    export: Option<String>,
    name: Option<String>,
}

impl Action {
    /// The action that a request names.
    pub fn new(name: &str, body: Body) -> Result<Action, Refusal> {
        let bad = |why: &str| Refusal::new(StatusCode::UNPROCESSABLE_ENTITY, why);
        Ok(match name {
            "sync" => Action::Sync,
            "scrub" => Action::Scrub {
                bytes_per_second: body.bytes_per_second.unwrap_or(SCRUB_BYTES_PER_SEC),
            },
            "scrub-stop" => Action::StopScrub,
            "fsck" => Action::Fsck { contents: body.contents },
            "regroup" => {
                let path = body.path.unwrap_or_else(|| String::from("/"));
                Action::Regroup { path, dry_run: body.dry_run }
            }
            "regroup-stop" => Action::StopRegroup,
            "trim" => Action::Trim,
            "label" => {
                let label = body.label.ok_or_else(|| bad("label is missing"))?;
                if label.len() > LABEL_BYTES_MAX || label.contains('\0') {
                    return Err(bad("a label has at most 64 bytes, none of them zero"));
                }
                Action::Label(label)
            }
            "errors" => Action::Errors(body.errors.ok_or_else(|| bad("errors is missing"))?),
            "reserve" => {
                let bytes = body.reserve_bytes;
                Action::Reserve { bytes: bytes.ok_or_else(|| bad("reserve_bytes is missing"))? }
            }
            "export-add" => {
                let export = body.export.ok_or_else(|| bad("export is missing"))?;
                Action::AddExport(export)
            }
            "export-remove" => {
                let path = body.path.ok_or_else(|| bad("path is missing"))?;
                Action::RemoveExport(path)
            }
            "snapshot-create" => Action::KeepSnapshot(checked_name(body.name)?),
            "snapshot-remove" => Action::RemoveSnapshot(checked_name(body.name)?),
            _ => return Err(Refusal::new(StatusCode::NOT_FOUND, "unknown action")),
        })
    }

    /// Whether a mount that is read-only refuses the action, as the kernel refuses its command there.
    fn needs_writable_mount(&self) -> bool {
        match self {
            Action::Sync
            | Action::StopScrub
            | Action::StopRegroup
            | Action::KeepSnapshot(_)
            | Action::RemoveSnapshot(_) => false,
            Action::Scrub { .. }
            | Action::Fsck { .. }
            | Action::Regroup { .. }
            | Action::Trim
            | Action::Label(_)
            | Action::Errors(_)
            | Action::Reserve { .. }
            | Action::AddExport(_)
            | Action::RemoveExport(_) => true,
        }
    }

    /// The equivalent command. Some commands do not work on an image that is being served.
    pub fn command(&self, target: &Target) -> String {
        let command = self.command_alone(target);
        let needs_it_alone = matches!(
            self,
            Action::Fsck { .. }
                | Action::Regroup { .. }
                | Action::Trim
                | Action::Label(_)
                | Action::Errors(_)
                | Action::Reserve { .. }
        );
        if target.directory.is_none() && needs_it_alone {
            format!("{command}  # after cffs serve --stop {}", quoted(&target.path()))
        } else {
            command
        }
    }

    fn command_alone(&self, target: &Target) -> String {
        let volume = quoted(&target.path());
        let version = |name: &str| quoted(&format!("{}@{name}", target.image.display()));
        let check = if target.directory.is_some() { "--online" } else { "-n" };
        match self {
            Action::Sync => format!("cffs sync {volume}"),
            Action::Scrub { bytes_per_second: SCRUB_BYTES_PER_SEC } => {
                format!("cffs scrub {volume}")
            }
            Action::Scrub { bytes_per_second } => {
                format!("cffs scrub --rate {bytes_per_second} {volume}")
            }
            Action::StopScrub => format!("cffs scrub --stop {volume}"),
            Action::Fsck { contents: false } => format!("cffs fsck {check} {volume}"),
            Action::Fsck { contents: true } => format!("cffs fsck {check} --contents {volume}"),
            Action::Regroup { path, dry_run } => {
                let option = if *dry_run { "--dry-run " } else { "" };
                let path = path.trim_matches('/');
                let at = match target.directory {
                    _ if path.is_empty() => volume,
                    Some(_) => format!("{}/{}", volume.trim_end_matches('/'), quoted(path)),
                    None => format!("{volume} {}", quoted(&format!("/{path}"))),
                };
                format!("cffs regroup {option}{at}")
            }
            Action::StopRegroup => String::from("Ctrl-C, in the terminal of cffs regroup"),
            Action::Trim => format!("cffs trim {volume}"),
            Action::Label(label) => format!("cffs tune --label {} {volume}", quoted(label)),
            Action::Errors(errors) => {
                let policy = serde_json::json!(errors);
                format!("cffs tune --errors {} {volume}", policy.as_str().unwrap_or_default())
            }
            Action::Reserve { bytes } => format!("cffs tune --reserve {bytes} {volume}"),
            Action::AddExport(export) => {
                format!("cffs serve --export-add {} {volume}", quoted(export))
            }
            Action::RemoveExport(path) => {
                format!("cffs serve --export-remove {} {volume}", quoted(path))
            }
            Action::KeepSnapshot(name) => {
                format!("cffs sync {volume} && cffs snapshot create {}", version(name))
            }
            Action::RemoveSnapshot(name) => format!("cffs snapshot rm {}", version(name)),
        }
    }
}

/// A word, quoted for a shell.
fn quoted(word: &str) -> String {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "/._-+,:@%".contains(c);
    if !word.is_empty() && !word.starts_with('-') && word.chars().all(is_plain) {
        return word.to_owned();
    }
    format!("'{}'", word.replace('\'', "'\\''"))
}

/// The status of an action whose caller does not wait for it.
#[derive(Clone, Debug, Default, Serialize)]
pub(crate) struct OnceStatus {
    pub stage: Stage,
    pub done_bytes: u64,
    pub total_bytes: u64,
    /// Bytes that the device reported as discarded.
    pub trimmed_bytes: u64,
    /// The reason if it failed.
    pub failure: Option<String>,
}

/// An action of which only one runs at a time.
#[derive(Debug, Default)]
pub(crate) struct Once(Mutex<OnceStatus>);

impl Once {
    pub fn status(&self) -> OnceStatus {
        self.0.lock().clone()
    }

    /// Begins, unless it is running.
    fn begin(&self, total_bytes: u64) -> Result<(), Refusal> {
        let mut status = self.0.lock();
        if status.stage == Stage::Running {
            return Err(Refusal::new(StatusCode::CONFLICT, "it is already running"));
        }
        *status = OnceStatus { stage: Stage::Running, total_bytes, ..OnceStatus::default() };
        Ok(())
    }

    /// Does the work and records its outcome, including a panic.
    fn complete(&self, log: &RecentLog, work: impl FnOnce() -> Result<(), String>) {
        let panicked = || Err(String::from("the server's log says what went wrong"));
        let ended = catch_unwind(AssertUnwindSafe(work)).unwrap_or_else(|_| panicked());
        let mut status = self.0.lock();
        status.stage = if ended.is_ok() { Stage::Done } else { Stage::Stopped };
        status.failure = ended.err().map(|why| log.clear(&why));
    }
}

/// The actions whose status is kept here.
#[derive(Debug)]
pub(crate) struct Actions {
    pub sync: Once,
    pub trim: Once,
    snapshots: Option<Arc<dyn Snapshots>>,
    log: RecentLog,
}

impl Actions {
    pub fn new(options: &Options) -> Actions {
        let (snapshots, log) = (options.snapshots.clone(), options.log.clone());
        Actions { sync: Once::default(), trim: Once::default(), snapshots, log }
    }

    /// Begins an action, in a thread if it waits for the device.
    pub fn start(self: &Arc<Self>, served: &Arc<Served>, action: &Action) -> Result<(), Refusal> {
        if action.needs_writable_mount() {
            served.check_mount().map_err(|error| conflict(&error))?;
        }
        match action {
            Action::Sync => {
                self.sync.begin(0)?;
                let (actions, served) = (Arc::clone(self), Arc::clone(served));
                in_thread(move || actions.sync.complete(&actions.log, || served.sync()));
            }
            Action::Trim => {
                let total_bytes = size_bytes(&served.volume());
                self.trim.begin(total_bytes)?;
                let (actions, served) = (Arc::clone(self), Arc::clone(served));
                in_thread(move || {
                    let trim = || actions.trim_all(&served, total_bytes);
                    actions.trim.complete(&actions.log, trim);
                });
            }
            Action::Scrub { bytes_per_second } => {
                served.start_scrub(*bytes_per_second).map_err(|error| conflict(&error))?;
            }
            Action::StopScrub => served.stop_scrub(),
            Action::Fsck { contents } => {
                served.start_check(*contents).map_err(|error| conflict(&error))?;
            }
            Action::Regroup { path, dry_run } => {
                let dir = find(&served.volume(), path).map_err(|error| self.refused(&error))?.ino;
                let request = RegroupRequest { dry_run: *dry_run, which: Which::Tree };
                served.start_regroup(dir, request).map_err(|error| conflict(&error))?;
            }
            Action::StopRegroup => served.stop_regroup(),
            Action::Label(label) => {
                let label = Some(label.clone().into_bytes());
                self.tune(served, SetVolume { label, ..SetVolume::default() })?;
            }
            Action::Errors(errors) => {
                let errors = Some(*errors);
                self.tune(served, SetVolume { errors, ..SetVolume::default() })?;
            }
            Action::Reserve { bytes } => {
                let superblock = served.volume().writer().superblock.get();
                let fragments = bytes.div_ceil(u64::from(superblock.fragment_bytes));
                let reserve = Some(Reserve { fragments, ..superblock.reserve });
                self.tune(served, SetVolume { reserve, ..SetVolume::default() })?;
            }
            Action::AddExport(export) => {
                self.change_exports(served, |exports| exports.add(export))?;
            }
            Action::RemoveExport(path) => {
                self.change_exports(served, |exports| exports.remove(path))?;
            }
            Action::KeepSnapshot(name) => self.change_snapshots(|snapshots| {
                // The version must contain everything visible at this time.
                served.sync().and_then(|()| snapshots.create(name))
            })?,
            Action::RemoveSnapshot(name) => {
                self.change_snapshots(|snapshots| snapshots.remove(name))?;
            }
        }
        Ok(())
    }

    fn tune(&self, served: &Served, changes: SetVolume) -> Result<(), Refusal> {
        let tuned = served.volume().tune(&changes);
        tuned.map(drop).map_err(|error| self.refused(&error))
    }

    fn change_snapshots(
        &self,
        change: impl FnOnce(&dyn Snapshots) -> Result<(), String>,
    ) -> Result<(), Refusal> {
        let conflict = |why: &str| Refusal::new(StatusCode::CONFLICT, self.log.clear(why));
        let without = || conflict("the device of this volume keeps no snapshots");
        let snapshots = self.snapshots.as_deref().ok_or_else(without)?;
        change(snapshots).map_err(|why| conflict(&why))
    }

    fn change_exports(
        &self,
        served: &Served,
        change: impl FnOnce(&dyn Exports) -> Result<(), String>,
    ) -> Result<(), Refusal> {
        let without = || Refusal::new(StatusCode::CONFLICT, "the volume is not served by NFS");
        let exports = served.exports().ok_or_else(without)?;
        let bad =
            |why: String| Refusal::new(StatusCode::UNPROCESSABLE_ENTITY, self.log.clear(&why));
        change(exports).map_err(bad)
    }

    fn trim_all(&self, served: &Served, total_bytes: u64) -> Result<(), String> {
        let (volume, mut from) = (served.volume(), 0);
        while from < total_bytes {
            let to = from.saturating_add(TRIM_STEP_BYTES).min(total_bytes);
            let trimmed = served.trim(&volume, from..to, 0).map_err(|error| error.to_string())?;
            let mut status = self.trim.0.lock();
            status.done_bytes = to;
            status.trimmed_bytes += trimmed.bytes;
            from = to;
        }
        Ok(())
    }

    /// The answer for an error of the volume.
    pub fn refused(&self, error: &Error) -> Refusal {
        let status = match error {
            Error::NotFound | Error::NotDirectory => StatusCode::NOT_FOUND,
            Error::ReadOnly => StatusCode::CONFLICT,
            Error::Invalid(_) | Error::Unsupported(_) => StatusCode::UNPROCESSABLE_ENTITY,
            _ => StatusCode::INTERNAL_SERVER_ERROR,
        };
        Refusal::new(status, self.log.clear(&error.to_string()))
    }
}

/// The refusal of a job that may not begin now.
fn conflict(error: &Error) -> Refusal {
    Refusal::new(StatusCode::CONFLICT, error.to_string())
}

fn size_bytes(volume: &Volume) -> u64 {
    let superblock = volume.writer().superblock.get();
    superblock.blocks * u64::from(superblock.block_bytes)
}

/// Starts work that records its own outcome.
fn in_thread(work: impl FnOnce() + Send + 'static) {
    std::thread::spawn(work);
}

/// The longest path, as in the kernel.
const PATH_BYTES_MAX: usize = 4096;

/// The file at a path of the volume.
pub(crate) fn find(volume: &Volume, path: &str) -> Result<Attr, Error> {
    if path.len() > PATH_BYTES_MAX {
        return Err(Error::Invalid("the path is too long"));
    }
    shared::find(volume, InodeNo::ROOT, path)
}

#[cfg(test)]
mod tests;
