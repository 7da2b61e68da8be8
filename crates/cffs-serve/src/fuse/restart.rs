//! Replacing the program that serves a mounted volume, without unmounting (decisions/018).
//!
//! ```text
//!   Restarter::begin          Server::serve                        Server::resume
//!   can it be done?  ───▶     requests answered, volume    ───▶    the volume opened anew, by another
//!   then suspend              closed: Suspended                    program in the same process
//! ```
//!
//! What goes from one to the other is [`Suspended`]; [`State`] is its form outside of a program. The kernel
//! keeps everything else: open files, names, pages, and the requests of callers that wait.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::Arc;

use cffs::device::file::inherited_descriptor;
use cffs::units::InodeNo;
use cffs::vfs::{Handover, Volume};
use fuse_ring::protocol::{Features, Granted};
use fuse_ring::{Connection, Suspender};
use rustix::io::{FdFlags, fcntl_setfd};
use serde::{Deserialize, Serialize};

use super::closing::Closing;

/// The version of [`State`], and of what a front end beside the mount leaves, that this program writes and
/// understands.
pub const VERSION: u32 = 2;

/// The argument with which a program is asked for the version that it understands.
pub const VERSION_COMMAND: &str = "resume-version";

/// A mount without a server, and what was in use of its volume.
#[derive(Debug)]
pub struct Suspended {
    device: OwnedFd,
    directory: PathBuf,
    granted: Granted,
    handover: Handover,
    mount_type: String,
}

/// The same for another program, which has the descriptor under the same number.
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
}

impl Suspended {
    pub(super) fn new(connection: Connection, handover: Handover, mount_type: String) -> Suspended {
        let (device, directory, granted) = connection.into_parts();
        Suspended { device, directory, granted, handover, mount_type }
    }

    /// Has the connection outlive an `exec`, or no longer do so.
    ///
    /// # Errors
    ///
    /// Those of `fcntl(2)`.
    pub fn outlive_exec(&self, outlive: bool) -> io::Result<()> {
        let flags = if outlive { FdFlags::empty() } else { FdFlags::CLOEXEC };
        Ok(fcntl_setfd(&self.device, flags)?)
    }

    pub(super) fn into_parts(self) -> (Connection, Handover, String) {
        let connection = Connection::from_parts(self.device, self.directory, self.granted);
        (connection, self.handover, self.mount_type)
    }

    /// What the program needs that takes this one's place.
    pub fn state(&self) -> State {
        let references = self.handover.references.iter();
        State {
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
        }
    }

    /// What the program before this one left.
    ///
    /// # Errors
    ///
    /// `EBADF` if the descriptor is not open.
    pub fn from_state(state: State) -> io::Result<Suspended> {
        let references = state.references.iter();
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
        })
    }
}

/// Begins the replacement of a server.
pub(super) struct Restarter {
    /// The program that takes over; none where this one cannot be replaced.
    pub(super) program: Option<PathBuf>,
    /// None over io_uring.
    pub(super) suspender: Option<Suspender>,
    /// What serves the volume beside the mount, and has to pause before.
    pub(super) closing: Arc<Closing>,
}

impl Restarter {
    /// Suspends the session, if what comes after can be expected to work; otherwise says why not, and
    /// nothing has changed.
    pub(super) fn begin(&self, volume: &Volume) -> Result<(), String> {
        let program = self.program.as_ref().ok_or(
            "the volume lies in an object store, where no other program can take it over; unmount and mount",
        )?;
        let suspender = self.suspender.as_ref().ok_or(
            "requests arrive by io_uring, which no other program can take over; unmount and mount, \
             or use -o transport=dev where this matters",
        )?;
        check_writable(volume)?;
        let shown = program.display();
        let answer = Command::new(program)
            .arg(VERSION_COMMAND)
            .stdin(Stdio::null())
            .stderr(Stdio::null())
            .output()
            .map_err(|error| format!("{shown}: {error}"))?;
        if answer.stdout.trim_ascii() != VERSION.to_string().as_bytes() {
            return Err(format!("{shown} cannot take over from this version"));
        }
        // Its threads may wait for programs whose requests the mount has to answer.
        self.closing.pause_beside()?;
        if let Err(why) = check_writable(volume) {
            self.closing.beside_goes_on();
            return Err(why);
        }
        suspender.suspend();
        Ok(())
    }
}

fn check_writable(volume: &Volume) -> Result<(), String> {
    let latched = volume.latched();
    latched.map_or(Ok(()), |why| Err(format!("what is in memory could not be written ({why})")))
}
