//! Clones of trees of a served volume, each in a thread of the server. A command starts a clone, reads its
//! status, and can end it.
//!
//! The command names the tree and the new directory by setting `system.cffs.clone` twice: on the source, and
//! on the directory in which the copy gets its name. So the kernel has resolved both paths with the rights of
//! the caller. A token that the command chooses connects the requests.

use std::collections::VecDeque;
use std::ops::ControlFlow;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use cffs::error::{Error, Result};
use cffs::files::{CloneError, CloneStep, Cloned, Files, Need, clone_tree};
use cffs::units::InodeNo;
use cffs::vfs::Volume;
use cffs::vfs::types::Attr;
use serde::{Deserialize, Serialize};

use super::{Stage, job};
use crate::access::{EXECUTE, READ, User, WRITE};
use crate::shared::{Change, Observer};

#[cfg(test)]
mod tests;

const ATTRIBUTE: &str = "system.cffs.clone";
/// The server keeps the status of at most this many clones: those in progress, and the last ones that ended.
const CLONES_MAX: usize = 64;
/// The most of them that belong to one user.
const CLONES_OF_USER_MAX: usize = 8;
/// A running caller queries the status of its clone at least this often.
const ASKED_WITHIN: Duration = Duration::from_secs(1);
/// The longest failure in a status: a path of the longest length, escaped, and a reason. It fits in the
/// attribute.
const FAILURE_CHARS_MAX: usize = 20_000;

const UNKNOWN: Error = Error::Invalid("no source of a clone was named");

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum CloneRequest {
    /// The file is the source of the clone with this token.
    From(u64),
    /// Begin the clone: the copy gets this name in the directory.
    To(u64, Vec<u8>),
    /// End the clone early.
    Stop(u64),
}

impl CloneRequest {
    /// The name of the attribute that a caller sets to make a request.
    pub const NAME: &str = ATTRIBUTE;

    /// The value that makes the request.
    pub fn to_value(&self) -> Vec<u8> {
        match self {
            CloneRequest::From(token) => format!("from {token}").into_bytes(),
            CloneRequest::To(token, name) => [format!("to {token} ").as_bytes(), name].concat(),
            CloneRequest::Stop(token) => format!("stop {token}").into_bytes(),
        }
    }

    /// The request of a caller that sets this attribute to this value; `None` for other attributes, and an
    /// error for an invalid value.
    pub fn from_attribute(name: &[u8], value: &[u8]) -> Option<Result<CloneRequest>> {
        if name != ATTRIBUTE.as_bytes() {
            return None;
        }
        let mut words = value.splitn(3, |byte| *byte == b' ');
        let (verb, token, name) = (words.next(), words.next(), words.next());
        let token = token.and_then(|token| std::str::from_utf8(token).ok()?.parse().ok());
        let request = match (verb, token, name) {
            (_, _, Some(b"." | b"..")) => None,
            (Some(b"from"), Some(token), None) => Some(CloneRequest::From(token)),
            (Some(b"to"), Some(token), Some(name)) => Some(CloneRequest::To(token, name.to_vec())),
            (Some(b"stop"), Some(token), None) => Some(CloneRequest::Stop(token)),
            _ => None,
        };
        Some(request.ok_or(Error::Invalid("neither 'from', 'to' nor 'stop'")))
    }

    /// The name of the attribute with the status of a clone.
    pub fn status_name(token: u64) -> String {
        format!("{ATTRIBUTE}.{token}")
    }

    /// The token in the name of an attribute with the status of a clone.
    pub fn asked_by(name: &[u8]) -> Option<u64> {
        let name = name.strip_prefix(ATTRIBUTE.as_bytes())?.strip_prefix(b".")?;
        std::str::from_utf8(name).ok()?.parse().ok()
    }
}

#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct CloneStatus {
    pub stage: Stage,
    #[serde(flatten)]
    pub cloned: Cloned,
    /// The reason if it failed, with the path below the source.
    pub failure: Option<String>,
}

struct Clone {
    token: u64,
    uid: u32,
    source: (InodeNo, u32),
    status: Mutex<CloneStatus>,
    stop: AtomicBool,
    /// The time of its end, until it was reported to the caller.
    untold: Mutex<Option<Instant>>,
}

impl Clone {
    fn new(token: u64, uid: u32, source: (InodeNo, u32)) -> Clone {
        let (status, stop, untold) = Default::default();
        Clone { token, uid, source, status, stop, untold }
    }

    fn status(&self) -> MutexGuard<'_, CloneStatus> {
        self.status.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn untold(&self) -> MutexGuard<'_, Option<Instant>> {
        self.untold.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The clones of a server's volume.
#[derive(Default)]
pub(super) struct Cloning(Mutex<VecDeque<Arc<Clone>>>);

impl Cloning {
    /// Carries out a request of a user about a file or directory. Tells `observer` about the new names.
    ///
    /// # Errors
    ///
    /// [`Error::Invalid`] if no source was named, the clone has already begun, or too many clones are under
    /// way.
    pub fn carry_out(
        &self,
        volume: &Arc<Volume>,
        ino: InodeNo,
        request: CloneRequest,
        user: User,
        observer: Box<dyn Observer>,
    ) -> Result<()> {
        match request {
            CloneRequest::From(token) => {
                let source = (ino, volume.attr(ino)?.generation);
                self.add(Clone::new(token, user.uid, source))
            }
            CloneRequest::Stop(token) => {
                // Root may end the clones of others.
                let is_stopped = |clone: &&Arc<Clone>| {
                    clone.token == token && (user.uid == 0 || clone.uid == user.uid)
                };
                let clones = self.lock();
                let clone = clones.iter().find(is_stopped).ok_or(UNKNOWN)?;
                clone.stop.store(true, Ordering::Release);
                Ok(())
            }
            CloneRequest::To(token, name) => {
                let clone = self.begin(token, user.uid)?;
                let status = Arc::clone(&clone);
                let run = move |volume: &Arc<Volume>| {
                    clone.end(clone.run(volume, ino, &name, &user, &*observer));
                };
                job::spawn(volume, run, move || {
                    let mut status = status.status();
                    (status.stage, status.failure) = (Stage::Stopped, Some(job::PANICKED.into()));
                });
                Ok(())
            }
        }
    }

    /// The status of a user's clone.
    pub fn status(&self, token: u64, uid: u32) -> Result<CloneStatus> {
        let clone = self.find(token, uid)?;
        let status = clone.status().clone();
        if status.stage != Stage::Running {
            clone.untold().take();
        }
        Ok(status)
    }

    /// Whether a clone is in progress, or its result has not been reported to its caller yet.
    pub fn is_running(&self) -> bool {
        self.lock().iter().any(|clone| {
            clone.status().stage == Stage::Running
                || clone.untold().is_some_and(|ended| ended.elapsed() < ASKED_WITHIN)
        })
    }

    /// Adds a clone, and removes the oldest one that is not running if there are too many: one of the same
    /// user if possible.
    fn add(&self, clone: Clone) -> Result<()> {
        let mut clones = self.lock();
        let is_own = |other: &Arc<Clone>| other.uid == clone.uid;
        let own = clones.iter().filter(|other| is_own(other)).count();
        if own == CLONES_OF_USER_MAX || clones.len() == CLONES_MAX {
            let is_idle = |other: &Arc<Clone>| other.status().stage != Stage::Running;
            let oldest = match clones.iter().position(|other| is_own(other) && is_idle(other)) {
                None if own < CLONES_OF_USER_MAX => clones.iter().position(is_idle),
                oldest => oldest,
            };
            clones.remove(oldest.ok_or(Error::Invalid("too many clones are under way"))?);
        }
        clones.push_back(Arc::new(clone));
        Ok(())
    }

    /// Marks a clone as running, while the list is locked: [`Cloning::add`] removes none that runs.
    fn begin(&self, token: u64, uid: u32) -> Result<Arc<Clone>> {
        let clones = self.lock();
        let clone = find(&clones, token, uid)?;
        let mut status = clone.status();
        if status.stage != Stage::Never {
            return Err(Error::Invalid("the clone has already begun"));
        }
        status.stage = Stage::Running;
        Ok(Arc::clone(clone))
    }

    fn find(&self, token: u64, uid: u32) -> Result<Arc<Clone>> {
        find(&self.lock(), token, uid).cloned()
    }

    fn lock(&self) -> MutexGuard<'_, VecDeque<Arc<Clone>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn find(clones: &VecDeque<Arc<Clone>>, token: u64, uid: u32) -> Result<&Arc<Clone>> {
    let found = clones.iter().find(|clone| clone.token == token && clone.uid == uid);
    found.ok_or(UNKNOWN)
}

impl Clone {
    /// Notes how the clone ended.
    fn end(&self, done: std::result::Result<Cloned, CloneError>) {
        let mut status = self.status();
        *self.untold() = Some(Instant::now());
        match done {
            Ok(cloned) => (status.stage, status.cloned) = (Stage::Done, cloned),
            Err(CloneError::Ended) => status.stage = Stage::Stopped,
            Err(error) => {
                let failure = error.to_string().chars().take(FAILURE_CHARS_MAX).collect();
                (status.stage, status.failure) = (Stage::Stopped, Some(failure));
            }
        }
    }

    fn run(
        &self,
        volume: &Arc<Volume>,
        dir: InodeNo,
        name: &[u8],
        user: &User,
        observer: &dyn Observer,
    ) -> std::result::Result<Cloned, CloneError> {
        let failed = |error| CloneError::Failed { path: Vec::new(), error };
        let files = Files::new(Arc::clone(volume));
        let (ino, generation) = self.source;
        let source = files.node_by_number(ino).map_err(failed)?;
        if source.attr().map_err(failed)?.generation != generation {
            return Err(failed(Error::Stale));
        }
        let dir = files.node_by_number(dir).map_err(failed)?;
        let may = |attr: &Attr, acl: Option<&[u8]>, need: Need| {
            let wanted = match need {
                Need::Read => READ,
                Need::List => READ | EXECUTE,
                Need::Change => WRITE | EXECUTE,
            };
            user.may(attr, acl, wanted)
        };
        let caller = user.caller(None);
        let mut watch = |step: CloneStep<'_>, cloned: &Cloned| {
            match step {
                CloneStep::Entry(dir, name, _) => observer.changed(Change::Name(dir, name)),
                CloneStep::Changed(ino) => observer.changed(Change::Contents(ino, 0, None)),
            }
            self.status().cloned = *cloned;
            match self.stop.load(Ordering::Acquire) {
                true => ControlFlow::Break(()),
                false => ControlFlow::Continue(()),
            }
        };
        clone_tree(&caller, &may, &source, &dir, name, &mut watch)
    }
}
