//! Replacing the program that serves a mounted volume, without unmounting (decision 019).
//!
//! ```text
//!   Restarter::begin          Server::serve                        Server::resume
//!   can it be done?  ───▶     requests answered, volume    ───▶    the volume opened again, by another
//!   then suspend              closed: Suspended                    program in the same process
//! ```
//!
//! [`Suspended`] is the state that is handed over; [`State`] is its serialised form. The kernel keeps
//! everything else: open files, names, pages, and the requests of waiting callers.

use std::io::{self, Read};
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};
use std::process::{ChildStdin, ChildStdout, Command, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use cffs::device::file::inherited_descriptor;
use cffs::units::InodeNo;
use cffs::vfs::{Handover, Volume};
use fuse_ring::protocol::{Features, Granted};
use fuse_ring::{Connection, HeldEntry, Rings, Suspender};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::{FdFlags, fcntl_setfd, retry_on_intr};
use serde::{Deserialize, Serialize};

use super::closing::Closing;
use crate::served::Identity;
use crate::served::control::Restart;

/// The version of [`State`] and of the companion server's state that this program reads and writes.
pub const VERSION: u32 = 3;

/// The command that prints the [`VERSION`] of a program.
pub const VERSION_COMMAND: &str = "resume-version";

/// The option of that command for volumes in stores, which earlier programs cannot take over.
const STORE_OPTION: &str = "--store";

/// How long a program may take to print its version.
const ANSWER_PATIENCE: Duration = Duration::from_secs(10);

/// The command that makes the requests needed to suspend a session.
pub const FILL_COMMAND: &str = "fill-requests";

/// A mount without a server, and the files of its volume that are in use.
#[derive(Debug)]
pub struct Suspended {
    device: OwnedFd,
    directory: PathBuf,
    granted: Granted,
    rings: Option<Rings>,
    handover: Handover,
    mount_type: String,
}

/// The serialised form for the next program, in which the descriptor has the same number.
#[derive(Debug, Serialize, Deserialize)]
pub struct State {
    device: RawFd,
    directory: Vec<u8>,
    minor: u32,
    features: u64,
    max_write: u32,
    max_readahead: u32,
    elide_open: bool,
    elide_opendir: bool,
    references: Vec<(u64, u64)>,
    has_nameless: bool,
    mount_type: String,
    /// The entries of its rings, if it uses any. A program without this field lacks [`FILL_COMMAND`] as well.
    #[serde(default)]
    rings: Option<Vec<RingEntry>>,
}

/// An entry of a ring; its request is handed over separately.
#[derive(Debug, Serialize, Deserialize)]
struct RingEntry {
    core: usize,
    thread: usize,
    queue: u16,
    address: usize,
    len: usize,
    request_len: usize,
}

impl Suspended {
    pub(super) fn new(
        mut connection: Connection,
        handover: Handover,
        mount_type: String,
    ) -> Suspended {
        let rings = connection.take_rings();
        let (device, directory, granted) = connection.into_parts();
        Suspended { device, directory, granted, rings, handover, mount_type }
    }

    /// Sets whether the connection stays open over an `exec`.
    ///
    /// # Errors
    ///
    /// Errors of `fcntl(2)`.
    pub fn outlive_exec(&self, outlive: bool) -> io::Result<()> {
        let flags = if outlive { FdFlags::empty() } else { FdFlags::CLOEXEC };
        Ok(fcntl_setfd(&self.device, flags)?)
    }

    pub(super) fn into_parts(self) -> (Connection, Handover, String) {
        let connection = Connection::from_parts(self.device, self.directory, self.granted);
        let connection = connection.with_rings(self.rings);
        (connection, self.handover, self.mount_type)
    }

    /// The state for the next program, and the waiting requests.
    pub fn state(&self) -> (State, Vec<u8>) {
        let references = self.handover.references.iter();
        let mut requests = Vec::new();
        let rings = self.rings.as_ref().map(|rings| {
            let entries = rings.to_entries().into_iter();
            entries.map(|entry| RingEntry::of(&entry, &mut requests)).collect()
        });
        let state = State {
            device: self.device.as_raw_fd(),
            directory: self.directory.as_os_str().as_bytes().to_vec(),
            minor: self.granted.minor,
            features: self.granted.features.bits(),
            max_write: self.granted.max_write,
            max_readahead: self.granted.max_readahead,
            elide_open: self.granted.elide_open,
            elide_opendir: self.granted.elide_opendir,
            references: references.map(|(ino, count)| (ino.0, *count)).collect(),
            has_nameless: self.handover.has_nameless,
            mount_type: self.mount_type.clone(),
            rings,
        };
        (state, requests)
    }

    /// Rebuilds the state that the previous program handed over.
    ///
    /// # Errors
    ///
    /// `EBADF` if the descriptor is not open, and errors of mapping the requests at their addresses.
    pub fn from_state(state: State, mut requests: &[u8]) -> io::Result<Suspended> {
        let references = state.references.iter();
        let rings = state.rings.map(|entries| {
            let entries = entries.into_iter().map(|entry| entry.with_request(&mut requests));
            Rings::from_entries(entries.collect::<io::Result<_>>()?)
        });
        Ok(Suspended {
            device: inherited_descriptor(state.device)?,
            directory: std::ffi::OsString::from_vec(state.directory).into(),
            granted: Granted {
                minor: state.minor,
                features: Features::from_bits_retain(state.features),
                max_write: state.max_write,
                max_readahead: state.max_readahead,
                elide_open: state.elide_open,
                elide_opendir: state.elide_opendir,
            },
            handover: Handover {
                references: references.map(|(ino, count)| (InodeNo(*ino), *count)).collect(),
                has_nameless: state.has_nameless,
            },
            mount_type: state.mount_type,
            rings: rings.transpose()?,
        })
    }
}

impl RingEntry {
    /// Converts an entry, and appends its request to `requests`.
    fn of(entry: &HeldEntry, requests: &mut Vec<u8>) -> RingEntry {
        let HeldEntry { core, thread, queue, address, len, ref request } = *entry;
        requests.extend_from_slice(request);
        RingEntry { core, thread, queue, address, len, request_len: request.len() }
    }

    /// Converts back, taking the request from the front of `requests`.
    fn with_request(self, requests: &mut &[u8]) -> io::Result<HeldEntry> {
        let RingEntry { core, thread, queue, address, len, request_len } = self;
        let request = requests.split_off(..request_len).ok_or(io::ErrorKind::InvalidData)?.to_vec();
        Ok(HeldEntry { core, thread, queue, address, len, request })
    }
}

/// Starts the replacement of a server.
pub(super) struct Restarter {
    /// The next program, or why this one cannot be replaced.
    pub(super) program: Result<PathBuf, String>,
    pub(super) suspender: Suspender,
    /// The mount's directory.
    pub(super) directory: PathBuf,
    /// Whether the volume is in an object store.
    pub(super) is_in_store: bool,
    /// Closes the volume; here, pauses the companion server.
    pub(super) closing: Arc<Closing>,
    pub(super) went_on: Arc<Mutex<Option<WentOn>>>,
}

/// A pipe whose closing starts the requests, if the session needs any.
type Fill = Option<ChildStdin>;

/// A failed attempt, after which the server continued.
#[derive(Clone, Debug)]
pub(super) struct WentOn {
    /// A new value of [`Identity::started`].
    pub(super) at: u64,
    pub(super) why: String,
}

impl Restart for Restarter {
    /// Suspends the session, if the following steps are expected to succeed.
    fn begin(&self, volume: &Volume) -> Result<(), String> {
        let program = self.program.as_ref().map_err(String::clone)?;
        if let Some(obstacle) = self.suspender.obstacle() {
            return Err(format!(
                "requests that arrive by io_uring cannot be handed over: {obstacle}; unmount and mount, or \
                 use -o transport=dev where this matters"
            ));
        }
        check_writable(volume)?;
        // Another thread reads requests while this one waits.
        fuse_ring::will_wait();
        Handover::prepare(volume)?;
        let shown = program.display();
        let failed = |error| format!("{shown}: {error}");
        let version = version_of(program, self.is_in_store).map_err(failed)?;
        if version.trim_ascii() != VERSION.to_string().as_bytes() {
            return Err(format!("{shown} cannot take over from this version"));
        }
        let fill = self.prepare_fill(program).map_err(failed)?;
        let fill = fill.ok_or_else(|| {
            format!("{shown} cannot take over requests that arrive by io_uring; unmount and mount")
        })?;
        // Before the mount is suspended, since the companion's threads may wait for its answers.
        self.closing.pause_companion()?;
        if let Err(why) = check_writable(volume) {
            self.closing.resume_companion();
            return Err(why);
        }
        let (closing, went_on) = (Arc::clone(&self.closing), Arc::clone(&self.went_on));
        self.suspender.suspend_or(move |why| {
            tracing::error!(why, "the program was not replaced");
            closing.resume_companion();
            let at = Identity::now();
            *went_on.lock().unwrap_or_else(PoisonError::into_inner) = Some(WentOn { at, why });
        });
        drop(fill);
        Ok(())
    }

    fn show(&self, identity: Identity) -> Identity {
        let went_on = self.went_on.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let Some(WentOn { at, why }) = went_on else { return identity };
        Identity { started: at, restart_failure: Some(why), ..identity }
    }
}

impl Restarter {
    /// Starts a process that makes the requests needed by the session, if any, once the pipe is closed. It is
    /// not a child of this process, since it waits for the next program. `None` if the program cannot make
    /// requests.
    fn prepare_fill(&self, program: &Path) -> io::Result<Option<Fill>> {
        let cores = self.suspender.fill();
        if cores.is_empty() {
            return Ok(Some(None));
        }
        let mut command = Command::new(program);
        command.arg(FILL_COMMAND).arg(&self.directory);
        command.args(cores.iter().map(|(core, count)| format!("{core}:{count}")));
        let command = command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null());
        let mut starter = command.spawn()?;
        // Taken so that wait() does not close it.
        let pipe = starter.stdin.take();
        Ok(starter.wait()?.success().then_some(pipe))
    }
}

/// Asks a program for its version. A program that does not answer within [`ANSWER_PATIENCE`] is killed.
fn version_of(program: &Path, is_in_store: bool) -> io::Result<Vec<u8>> {
    let mut command = Command::new(program);
    command.arg(VERSION_COMMAND).args(is_in_store.then_some(STORE_OPTION));
    command.stdin(Stdio::null()).stderr(Stdio::null());
    let mut child = command.stdout(Stdio::piped()).spawn()?;
    let answer = child.stdout.take().map_or(Ok(Vec::new()), read_answer);
    // Fails if it has ended, as it should.
    let _ = child.kill();
    child.wait()?;
    answer
}

fn read_answer(mut output: ChildStdout) -> io::Result<Vec<u8>> {
    let patience = Timespec::try_from(ANSWER_PATIENCE).map_err(io::Error::other)?;
    let mut waits = [PollFd::new(&output, PollFlags::IN)];
    if retry_on_intr(|| poll(&mut waits, Some(&patience)))? == 0 {
        let why =
            format!("it did not print its version within {} seconds", ANSWER_PATIENCE.as_secs());
        return Err(io::Error::new(io::ErrorKind::TimedOut, why));
    }
    let mut answer = vec![0; 16];
    let len = output.read(&mut answer)?;
    answer.truncate(len);
    Ok(answer)
}

fn check_writable(volume: &Volume) -> Result<(), String> {
    let latched = volume.writer().health.latched();
    latched.map_or(Ok(()), |why| Err(format!("changes in memory could not be written ({why})")))
}
