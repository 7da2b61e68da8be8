//! The end of the program: error messages, and exit codes by the convention of each kind of command.

use std::ffi::OsStr;
use std::fs::File;
use std::io;
use std::process::ExitCode;

use cffs::device::Failure;
use cffs::device::file::OpenError;
use cffs::error::{Corruption, Error};
use cffs::files::{CopyCause, CopyError};
use cffs_object::Error as Store;
use rustix::process::geteuid;

use crate::mounts;
use crate::output::note;

#[cfg(test)]
mod tests;

/// The convention for a command's exit codes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// 0, 1 for failure, 2 for wrong usage.
    Ordinary,
    /// As mount(8): 1 for wrong usage, 32 for failure.
    Mount,
    /// As fsck(8): 8 for failure, 16 for wrong usage; separate codes for problems found.
    Fsck,
}

impl Kind {
    /// The convention if the arguments cannot be parsed.
    pub fn of_arguments(called_as: &OsStr, first: Option<&OsStr>) -> Kind {
        match (called_as.as_encoded_bytes(), first.map(OsStr::as_encoded_bytes)) {
            (b"mount.cffs" | b"mount.fuse.cffs" | b"mount.fuseblk.cffs", _) => Kind::Mount,
            (b"fsck.cffs", _) | (b"cffs", Some(b"fsck" | b"scrub")) => Kind::Fsck,
            (b"cffs", Some(b"mount")) => Kind::Mount,
            _ => Kind::Ordinary,
        }
    }

    pub fn usage_code(self) -> ExitCode {
        ExitCode::from(match self {
            Kind::Ordinary => 2,
            Kind::Mount => 1,
            Kind::Fsck => 16,
        })
    }

    /// Every exit code with its meaning.
    pub fn statuses(self) -> &'static [(u8, &'static str)] {
        match self {
            Kind::Ordinary => &[(0, "Success."), (1, "Failure."), (2, "Wrong usage.")],
            Kind::Mount => &[(0, "Success."), (1, "Wrong usage."), (32, "Failure.")],
            Kind::Fsck => &[
                (0, "No problem was found."),
                (1, "All problems were repaired."),
                (4, "Problems are left."),
                (8, "The check could not be made."),
                (16, "Wrong usage."),
            ],
        }
    }

    fn failure_code(self) -> ExitCode {
        ExitCode::from(match self {
            Kind::Ordinary => 1,
            Kind::Mount => 32,
            Kind::Fsck => 8,
        })
    }
}

/// Prints why the command failed and returns its exit code. A closed pipe causes no message: its reader has
/// read enough.
pub fn report(called_as: &OsStr, command: &str, kind: Kind, error: &anyhow::Error) -> ExitCode {
    if error.downcast_ref::<Reported>().is_none() && !is_broken_pipe(error) {
        if called_as == "cffs" {
            note!("cffs {command}: {}", message(kind, command, error));
        } else {
            note!("{}: {}", called_as.display(), message(kind, command, error));
        }
    }
    kind.failure_code()
}

/// The causes of a failure, from the place to the root cause, with advice. A cause that the preceding text
/// contains is printed once. The library's own advice is printed only without better advice.
fn message(kind: Kind, command: &str, error: &anyhow::Error) -> String {
    let mut parts: Vec<String> = Vec::new();
    let mut own_advice = None;
    for cause in error.chain() {
        let text = match cause.downcast_ref::<Error>() {
            Some(error) => {
                own_advice = own_advice.or(error.advice());
                error.without_advice()
            }
            None => cause.to_string(),
        };
        match parts.last() {
            Some(last) if last.ends_with(&text) => {}
            Some(last) if begins_with(&text, last) => {
                parts.pop();
                parts.push(text);
            }
            _ => parts.push(text),
        }
    }
    let text = parts.join(": ");
    let find = |cause| advice(kind, command, cause).or_else(|| what_is_lost(command, cause));
    match error.chain().find_map(find).or(own_advice) {
        Some(advice) => format!("{text}; {advice}"),
        None => text,
    }
}

/// Whether a text repeats another and continues, not counting a name that is only a prefix of a word.
fn begins_with(text: &str, beginning: &str) -> bool {
    let rest = text.strip_prefix(beginning);
    rest.is_some_and(|rest| !rest.starts_with(|c: char| c.is_alphanumeric()))
}

/// The state in which a command leaves a device that failed, and the remedy.
fn what_is_lost(command: &str, cause: &(dyn std::error::Error + 'static)) -> Option<&'static str> {
    let of_copy =
        cause.downcast_ref::<CopyError>().and_then(|error| match error.cause.innermost() {
            CopyCause::Volume(cause) => Some(cause),
            _ => None,
        });
    match of_copy.or_else(|| cause.downcast_ref::<Error>())? {
        Error::Io(_) | Error::Latched(_) => {}
        _ => return None,
    }
    match command {
        "mkfs" => {
            Some("it does not contain a complete volume: make it again when the device works")
        }
        "import" => Some(
            "the copied files may be lost, but no earlier ones: when the device works \
             again, run cffs fsck -p, then import again",
        ),
        "publish" => Some(
            "sent data may be lost, but no version is: when the store works again, publish it again",
        ),
        "tar --extract" => Some(
            "the extracted files may be lost, but no earlier ones: when the device works \
             again, run cffs fsck -p, then extract again",
        ),
        "tune" | "grow" | "mark" | "quota" => Some(
            "the change may be lost, but no file is: when the device works again, run cffs fsck -p, then \
             try again",
        ),
        "trim" | "regroup" => {
            Some("no file is lost: when the device works again, run cffs fsck -p, then try again")
        }
        "fsck" => Some(
            "the check is not complete, and repairs may be lost: when the device works again, run \
             cffs fsck again",
        ),
        _ => None,
    }
}

fn advice(
    kind: Kind,
    command: &str,
    cause: &(dyn std::error::Error + 'static),
) -> Option<&'static str> {
    let open = cause.downcast_ref::<OpenError>();
    if let Some(OpenError::Io { path, source }) = open {
        return match source.kind() {
            io::ErrorKind::PermissionDenied if kind == Kind::Mount && File::open(path).is_ok() => {
                Some(
                    "only its owner and root may write to it; others can mount it read-only: -o ro",
                )
            }
            // Images on a mounted volume are rare.
            io::ErrorKind::NotFound if mounts::holding_file(path).is_some() => None,
            io::ErrorKind::NotFound => Some("cffs mkfs makes an image"),
            io::ErrorKind::PermissionDenied if geteuid().is_root() => Some(
                "if it is on a mount of another user without -o allow_other, run this command as that user",
            ),
            io::ErrorKind::PermissionDenied => Some("only its owner and root may open it"),
            _ => None,
        };
    }
    if let Some(OpenError::NotADevice { .. }) = open {
        return Some("name the image, or the device with the volume");
    }
    if let Some(OpenError::WriteProtected { .. }) = open {
        return Some(match kind {
            Kind::Mount => "mount it read-only: -o ro",
            Kind::Fsck => "cffs fsck -n checks it without writing",
            Kind::Ordinary => "it can be read, or mounted with -o ro",
        });
    }
    if let Some(Store::Claimed { has_ended, .. }) = cause.downcast_ref() {
        return Some(of_claim(kind, command, *has_ended));
    }
    if command == "destroy"
        && let Some(Store::NeedsSecret { .. } | Store::Secret { .. } | Store::Damaged { .. }) =
            cause.downcast_ref()
    {
        return Some("to delete the volume nevertheless: --force");
    }
    let is_restorable = match cause.downcast_ref::<Error>() {
        Some(Error::Io(error)) => Failure::of(error) == Failure::Restorable,
        _ => matches!(cause.downcast_ref(), Some(Store::Damaged { .. })),
    };
    if is_restorable && command != "fsck" {
        return Some("cffs fsck -n names all missing and damaged objects, and the remedy");
    }
    match cause.downcast_ref::<Error>()? {
        Error::InUse(_) => Some(match kind {
            Kind::Mount => "if that is certainly gone, or this is a copy: -o takeover",
            Kind::Fsck => "if that is certainly gone, or this is a copy: --take-over",
            Kind::Ordinary => {
                "if that is certainly gone, or this is a copy: cffs fsck -p --take-over"
            }
        }),
        Error::Corruption(Corruption::SuperblockMagic { .. }) => Some(match kind {
            Kind::Fsck => "no copy of one was found either: this is not a C-FFS volume",
            _ => {
                "this is not a C-FFS volume, or its beginning is lost (cffs fsck looks for a copy)"
            }
        }),
        _ => None,
    }
}

/// How to take over a volume that its last writer has not released.
fn of_claim(kind: Kind, command: &str, has_ended: bool) -> &'static str {
    match (kind, command, has_ended) {
        (Kind::Mount, _, true) => "to take it over: -o takeover; to read only: -o ro",
        (Kind::Mount, ..) => {
            "if that program has ended or should stop: -o takeover; to read only: -o ro"
        }
        (Kind::Fsck, _, true) => "to take it over: --take-over; to check only: cffs fsck -n",
        (Kind::Fsck, ..) => {
            "if that program has ended or should stop: --take-over; to check only: cffs fsck -n"
        }
        (_, "publish" | "destroy", true) => "to take it over: --take-over",
        (_, "publish", _) => "if that program has ended or should stop: --take-over",
        (_, "destroy", _) => "end that program first; if it has ended: --take-over",
        (.., true) => "to take it over: cffs fsck -p --take-over",
        _ => "if that program has ended or should stop: cffs fsck -p --take-over",
    }
}

/// A failure whose message has already been printed.
#[derive(Debug)]
pub struct Reported;

impl std::fmt::Display for Reported {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("failed")
    }
}

impl std::error::Error for Reported {}

/// Ignores a closed pipe when printing a result that the exit code reports as well: a reader such as head(1)
/// may close it.
pub fn unless_unread(printed: anyhow::Result<()>) -> anyhow::Result<()> {
    printed.or_else(|error| if is_broken_pipe(&error) { Ok(()) } else { Err(error) })
}

fn is_broken_pipe(error: &anyhow::Error) -> bool {
    error.chain().any(|cause| {
        cause.downcast_ref::<io::Error>().is_some_and(|e| e.kind() == io::ErrorKind::BrokenPipe)
    })
}
