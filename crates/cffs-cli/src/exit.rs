//! How the program ends: messages of failures, and exit codes by the convention of each kind.

use std::ffi::OsStr;
use std::io;
use std::process::ExitCode;

/// The convention that a command's exit codes follow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// 0, 1 for failure, 2 for wrong usage.
    Ordinary,
    /// As mount(8): 1 for wrong usage, 32 for failure.
    Mount,
    /// As fsck(8): 8 for failure, 16 for wrong usage; problems found have codes of their own.
    Fsck,
}

impl Kind {
    /// The convention to follow where the arguments made no sense.
    pub fn of_arguments(called_as: &OsStr, first: Option<&OsStr>) -> Kind {
        match (called_as.as_encoded_bytes(), first.map(OsStr::as_encoded_bytes)) {
            (b"mount.cffs" | b"mount.fuse.cffs", _) => Kind::Mount,
            (b"fsck.cffs", _) | (b"cffs", Some(b"fsck" | b"scrub")) => Kind::Fsck,
            (b"cffs", Some(b"mount")) => Kind::Mount,
            _ => Kind::Ordinary,
        }
    }

    /// The exit code for wrong usage.
    pub fn usage_code(self) -> ExitCode {
        ExitCode::from(match self {
            Kind::Ordinary => 2,
            Kind::Mount => 1,
            Kind::Fsck => 16,
        })
    }

    fn failure_code(self) -> ExitCode {
        ExitCode::from(match self {
            Kind::Ordinary => 1,
            Kind::Mount => 32,
            Kind::Fsck => 8,
        })
    }
}

/// Tells why the command failed and returns its exit code. A reader that closed the pipe has what
/// it wanted: that is no failure to speak of.
pub fn report(called_as: &OsStr, command: &str, kind: Kind, error: &anyhow::Error) -> ExitCode {
    if error.downcast_ref::<Reported>().is_none() && !is_broken_pipe(error) {
        if called_as == "cffs" {
            eprintln!("cffs {command}: {error:#}");
        } else {
            eprintln!("{}: {error:#}", called_as.display());
        }
    }
    kind.failure_code()
}

/// A failure whose message is already on standard error.
#[derive(Debug)]
pub struct Reported;

impl std::fmt::Display for Reported {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("failed")
    }
}

impl std::error::Error for Reported {}

fn is_broken_pipe(error: &anyhow::Error) -> bool {
    error.chain().any(|cause| {
        cause.downcast_ref::<io::Error>().is_some_and(|e| e.kind() == io::ErrorKind::BrokenPipe)
    })
}
