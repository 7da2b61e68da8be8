//! Replaces the program of this process while a volume stays mounted, and resumes as the new program.
//!
//! The handover state is in a file in memory, whose descriptor number is in the environment: a line of JSON,
//! then the waiting requests, then the replies for calls that NFS clients may repeat.

use std::convert::Infallible;
use std::ffi::OsString;
use std::fs::File;
use std::io::{self, Read, Seek, Write};
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;

use anyhow::{Context, bail};
use cffs::device::file::{Access, FileDevice, Inheritance, inherited_descriptor};
use cffs_object::Succession;
use cffs_serve::fuse::restart::{State, Suspended};
use cffs_serve::nfs;
use rustix::fs::{MemfdFlags, memfd_create};
use rustix::io::{FdFlags, fcntl_setfd};
use serde::{Deserialize, Serialize};
use zeroize::Zeroizing;

use crate::{keys, working_directory};

const VARIABLE: &str = "CFFS_HANDOVER";

#[derive(Serialize, Deserialize)]
struct HandoverState {
    source: OsString,
    /// The image or device, unless the volume is in a store.
    device: Option<Inheritance>,
    journal: Option<Inheritance>,
    /// The encoded [`Succession`] of a volume in a store.
    #[serde(default)]
    store: Option<Vec<u8>>,
    /// The lock of its staging directory.
    #[serde(default)]
    staging: Option<RawFd>,
    state: State,
    /// The length of the waiting requests.
    requests_bytes: usize,
    /// The companion NFS server.
    nfs: Option<nfs::State>,
}

/// The place of a volume that is handed over.
#[derive(Clone, Copy)]
pub enum Base<'a> {
    /// An image or a device, and the device of the journal if that is separate.
    Files(&'a FileDevice, Option<&'a FileDevice>),
    /// A store, and the lock of the staging directory if there is one.
    Store(&'a Succession, Option<BorrowedFd<'a>>),
}

impl Base<'_> {
    fn files(&self) -> impl Iterator<Item = &FileDevice> {
        let files = match self {
            Base::Files(device, journal) => [Some(*device), *journal],
            Base::Store(..) => [None, None],
        };
        files.into_iter().flatten()
    }

    fn lock(&self) -> Option<BorrowedFd<'_>> {
        match self {
            Base::Files(..) => None,
            Base::Store(_, lock) => *lock,
        }
    }
}

/// The place of the volume in the next program: files are open and locked.
pub enum InheritedBase {
    Files(Arc<FileDevice>, Option<Arc<FileDevice>>),
    Store(Succession, Option<OwnedFd>),
}

/// The state that the previous program handed over.
pub struct Inherited {
    /// The image, device or URL.
    pub source: PathBuf,
    pub base: InheritedBase,
    pub suspended: Suspended,
    /// The companion NFS server. The mount can be served without it.
    pub nfs: Option<io::Result<nfs::Handover>>,
}

/// Whether this program replaces another one.
pub fn is_one() -> bool {
    std::env::var_os(VARIABLE).is_some()
}

/// Takes over the handover state if this program replaces another. Must be called before anything is opened.
pub fn inherited(access: Access) -> anyhow::Result<Option<Inherited>> {
    let Some(number) = std::env::var_os(VARIABLE) else { return Ok(None) };
    let number = number.to_str().and_then(|number| number.parse().ok()).context(VARIABLE)?;
    let mut file = File::from(inherited_descriptor(number)?);
    let mut bytes = Zeroizing::new(Vec::new());
    file.rewind()?;
    file.read_to_end(&mut bytes)?;
    let end = bytes.iter().position(|byte| *byte == b'\n').unwrap_or(bytes.len());
    let (line, rest) = bytes.split_at(end);
    let handover: HandoverState = serde_json::from_slice(line).context("the handover state")?;
    let HandoverState { source, device, journal, store, staging, state, requests_bytes, nfs } =
        handover;
    let source = PathBuf::from(source);
    let file = |it: Inheritance| FileDevice::inherit(&it, access).map(Arc::new);
    let base = match (device, store.map(Zeroizing::new)) {
        (Some(device), _) => InheritedBase::Files(file(device)?, journal.map(file).transpose()?),
        (None, Some(store)) => {
            let succession = Succession::decode(&store).map_err(anyhow::Error::msg)?;
            succession.secret().map_or(Ok(()), keys::inherit)?;
            InheritedBase::Store(succession, staging.map(inherited_descriptor).transpose()?)
        }
        (None, None) => bail!("the handover state has no volume"),
    };
    let rest = rest.strip_prefix(b"\n").unwrap_or_default();
    let (requests, replies) = rest.split_at_checked(requests_bytes).context("it is cut off")?;
    let nfs = nfs.map(|state| nfs::Handover::from_state(state, replies.to_vec()));
    let suspended = Suspended::from_state(state, requests)?;
    Ok(Some(Inherited { source, base, suspended, nfs }))
}

/// This command line, executed by `program`.
pub fn this_command(program: &Path) -> Command {
    let mut arguments = std::env::args_os();
    let mut command = Command::new(program);
    if let Some(name) = arguments.next() {
        // The program's name selects its function.
        command.arg0(name);
    }
    command.args(arguments);
    command
}

/// Executes `program`, with this one's arguments. Returns only on failure.
pub fn become_program(
    program: &Path,
    source: &Path,
    base: Base<'_>,
    suspended: &Suspended,
    nfs: Option<&nfs::Handover>,
) -> anyhow::Error {
    let failed = |outcome: anyhow::Result<Infallible>| match outcome {
        Ok(never) => match never {},
        Err(error) => error,
    };
    let error = failed(try_become(program, source, base, suspended, nfs));
    // Programs that this one starts must not inherit the descriptors.
    base.files().for_each(|file| drop(file.outlive_exec(false)));
    let _ = base.lock().map(|lock| fcntl_setfd(lock, FdFlags::CLOEXEC));
    let _ = suspended.outlive_exec(false);
    let _ = nfs.map(|nfs| nfs.outlive_exec(false));
    error
}

fn try_become(
    program: &Path,
    source: &Path,
    base: Base<'_>,
    suspended: &Suspended,
    nfs: Option<&nfs::Handover>,
) -> anyhow::Result<Infallible> {
    let mut files = base.files().map(|file| file.outlive_exec(true));
    let (device, journal) = (files.next().transpose()?, files.next().transpose()?);
    let store = match base {
        Base::Files(..) => None,
        Base::Store(succession, _) => Some(succession.encode().to_vec()),
    };
    let staging = base.lock();
    staging.map_or(Ok(()), |lock| fcntl_setfd(lock, FdFlags::empty()))?;
    let staging = staging.map(|lock| lock.as_raw_fd());
    suspended.outlive_exec(true)?;
    nfs.map_or(Ok(()), |nfs| nfs.outlive_exec(true))?;
    let (state, requests) = suspended.state();
    let (source, requests_bytes) = (source.as_os_str().to_owned(), requests.len());
    let nfs_state = nfs.map(nfs::Handover::state);
    let handover = HandoverState {
        source,
        device,
        journal,
        store,
        staging,
        state,
        requests_bytes,
        nfs: nfs_state,
    };
    let mut memory = File::from(memfd_create(c"cffs-handover", MemfdFlags::CLOEXEC)?);
    memory.write_all(&Zeroizing::new(serde_json::to_vec(&handover)?))?;
    memory.write_all(b"\n")?;
    memory.write_all(&requests)?;
    memory.write_all(nfs.map_or(&[], nfs::Handover::replies))?;
    fcntl_setfd(&memory, FdFlags::empty())?;
    let mut command = this_command(program);
    command.env(VARIABLE, memory.as_raw_fd().to_string());
    working_directory::hand_over(&mut command);
    Err(command.exec()).with_context(|| program.display().to_string())
}
