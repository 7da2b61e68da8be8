//! Errors of stores and of the objects in them.

use std::io;

use cffs::counted;
use object_store::Error as StoreError;
use uuid::Uuid;

use crate::answer::{self, Place};
use crate::home::Gone;
use crate::keys::Keys;
use crate::secret::WrongSecret;

/// Why a volume in a store cannot be made, opened or committed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The URL does not name a store.
    #[error("{url}: {why}")]
    Url {
        /// The URL, without credentials.
        url: String,
        /// The reason.
        why: String,
    },
    /// A request failed.
    #[error("{}: {}", answer::shown(object, place), answer::explain(cause, place))]
    Store {
        /// The requested object.
        object: String,
        /// The destination of the request.
        place: Box<Place>,
        /// The answer of the store or its client.
        cause: StoreError,
    },
    /// The bucket does not exist.
    #[error("bucket {bucket} does not exist; create it first, or restore it if it was removed")]
    NoBucket {
        /// The bucket.
        bucket: String,
        /// The store's answer.
        cause: StoreError,
    },
    /// The prefix has no volume.
    #[error("no volume at {url}; {}", if_none(url))]
    NoVolume {
        /// The place, as a URL.
        url: String,
    },
    /// The volume at the place is not complete.
    #[error(
        "{object}: the volume was not completed: a program is making it, or was interrupted; cffs mkfs or \
         cffs publish makes it again, and cffs destroy --force {url} removes its objects"
    )]
    Unmade {
        /// The object with the identity of the volume.
        object: String,
        /// The place, as a URL.
        url: String,
    },
    /// The place already has a volume.
    #[error(
        "{url} already has a volume; choose another place, or delete that volume first: cffs destroy {url}"
    )]
    Exists {
        /// The place, as a URL.
        url: String,
    },
    /// The volume is being deleted, or its deletion was interrupted.
    #[error(
        "{url} is being deleted, or its deletion was interrupted and has to be finished: cffs destroy {url}"
    )]
    Deleting {
        /// The volume, as a URL.
        url: String,
    },
    /// The deletion failed in part.
    #[error(
        "{cause}; a part of {url} is deleted, and the same command deletes the rest: cffs destroy {url}"
    )]
    Unfinished {
        /// The volume, as a URL.
        url: String,
        /// The failure.
        cause: Box<Error>,
    },
    /// Another volume was made in the place of one that was being deleted.
    #[error("another program has deleted {url}, and a new volume exists there now, which is kept")]
    Replaced {
        /// The volume, as a URL.
        url: String,
    },
    /// A volume cannot be deleted, since a clone reads its objects.
    #[error(
        "{url} has objects that its clone {clone} reads; delete the clone first (cffs destroy {clone}), or \
         copy it with cffs export and cffs import"
    )]
    HasClone {
        /// The volume, as a URL.
        url: String,
        /// The clone, as a URL.
        clone: String,
    },
    /// A volume cannot be deleted, since another one is among its versions.
    #[error(
        "{url}/snapshots is another volume, which would be damaged; copy it elsewhere with cffs export and \
         cffs import, and delete it first: cffs destroy {url}/snapshots"
    )]
    Contains {
        /// The volume, as a URL.
        url: String,
    },
    /// A version was named where a volume was expected.
    #[error(
        "{url}@{name} is a version: cffs snapshot rm deletes one; without @{name}, the URL is that of the \
         volume with all of its versions"
    )]
    IsVersion {
        /// The volume, as a URL.
        url: String,
        /// The name of the version.
        name: String,
    },
    /// The volume is encrypted, and no secret was given.
    #[error("{url} is encrypted; name its key or passphrase with --key-file or --key-command")]
    NeedsSecret {
        /// The volume, as a URL.
        url: String,
    },
    /// The secret does not open the volume.
    #[error("{url}: {why}")]
    Secret {
        /// The volume, as a URL.
        url: String,
        /// The reason.
        why: WrongSecret,
    },
    /// Another program replaced the secret, or the volume, at the same time.
    #[error(
        "{url}: another program replaced its key at the same time; try which key opens it, and repeat the \
         command with that one"
    )]
    Rekeyed {
        /// The volume, as a URL.
        url: String,
    },
    /// A secret was given for a volume that is not encrypted.
    #[error(
        "{url} is not encrypted, although a key was given: another volume may have been put in its place; if \
         not, leave the key out"
    )]
    NotEncrypted {
        /// The volume, as a URL.
        url: String,
    },
    /// An object has invalid contents.
    #[error("{object}: {why}")]
    Damaged {
        /// The object.
        object: String,
        /// The reason.
        why: String,
    },
    /// The last writer has not released the volume.
    #[error("{}{}", claimed_by(*term, by.as_deref()), staged_elsewhere(*is_staging))]
    Claimed {
        /// The slot of its claim.
        term: u64,
        /// The program that has it open, as a sentence about the volume, if its superblock names one.
        by: Option<String>,
        /// Whether that program certainly runs no more.
        has_ended: bool,
        /// Whether it has a staging directory.
        is_staging: bool,
    },
    /// Another writer has taken the volume over.
    #[error(
        "another program took the volume over (slot {slot} of its log has that program's record)"
    )]
    Fenced {
        /// The slot.
        slot: u64,
    },
    /// The last writer continues, and did not give way.
    #[error(
        "the program that has the volume open commits faster than it can be taken over, and did not give way \
         in {seconds} s: stop that program, or take away its right to write to the store"
    )]
    Busy {
        /// How long taking over was tried.
        seconds: u64,
    },
    /// The store allows two programs to create one object.
    #[error(
        "the store let {created} of {tried} programs create one object; it has no conditional PUT, which a volume needs"
    )]
    NoConditionalPut {
        /// How many requests succeeded.
        created: usize,
        /// How many requests there were.
        tried: usize,
    },
    /// No version has this name.
    #[error("{url} has no version {name}; cffs snapshot ls lists its versions")]
    NoVersion {
        /// The volume, as a URL.
        url: String,
        /// The name.
        name: String,
    },
    /// The location names no version.
    #[error("{url} names no version; write {url}@NAME")]
    NoName {
        /// The URL.
        url: String,
    },
    /// The name is taken.
    #[error("version {name} already exists; choose another name, or remove it: cffs snapshot rm")]
    VersionExists {
        /// The name.
        name: String,
    },
    /// The volume was collected during every attempt to keep a version.
    #[error("the volume changes too quickly to keep the version {name}; try again")]
    Collecting {
        /// The name.
        name: String,
    },
    /// A clone was to be made in another store.
    #[error(
        "{url}: a clone shares the objects of its origin, so it must be in the same bucket, or in a \
         directory next to it, and names no version"
    )]
    OtherStore {
        /// The requested place.
        url: String,
    },
    /// A volume can have at most 254 origins.
    #[error("a volume has 254 origins at most; copy it with cffs export and cffs import")]
    TooManyOrigins,
    /// A version was opened for writing.
    #[error("version {name} is read-only; cffs clone makes a writable volume from it")]
    VersionIsFixed {
        /// The name.
        name: String,
    },
    /// A version was opened to be followed.
    #[error("version {name} does not change; to follow the volume, leave out @{name}")]
    NothingToFollow {
        /// The name.
        name: String,
    },
    /// An object that the volume contained when it was opened no longer exists.
    #[error(
        "{object} was deleted because newer states of the volume do not use it; open the volume again, or \
         read a version of it (cffs snapshot create)"
    )]
    Collected {
        /// The object.
        object: String,
        /// The store's answer.
        cause: StoreError,
    },
    /// The directory of the volume is not the one that was opened.
    #[error("{}", gone(_0))]
    Gone(Gone),
    /// Another volume has replaced this one in its bucket.
    #[error(
        "another volume is at {url} now: its store UUID is {there}, that of the open volume {ours} (cffs ls \
         --json shows store UUIDs); move that volume elsewhere, restore the objects of this one, and mount \
         it again"
    )]
    OtherVolume {
        /// The place, as a URL.
        url: String,
        /// The store UUID of the open volume.
        ours: Uuid,
        /// The store UUID of the other volume.
        there: Uuid,
    },
    /// The directory cannot be used as a cache.
    #[error("the cache {directory}: {why}")]
    Cache {
        /// The directory.
        directory: String,
        /// The reason, and what to do.
        why: String,
    },
    /// The directory cannot be used for staging, or its records cannot be sent.
    #[error("the staging directory {directory}: {why}")]
    Staging {
        /// The directory.
        directory: String,
        /// The reason, and what to do.
        why: String,
    },
    /// Another program took the volume over before all staged records were in the store.
    #[error(
        "another program took the volume over (slot {slot} of its log has that program's record) before \
         {} could be sent; these changes were acknowledged, but are not part of the volume: they are kept \
         in {directory}",
        counted(*records as u64, "staged record")
    )]
    Rejected {
        /// The directory of the rejected records.
        directory: String,
        /// Their number.
        records: usize,
        /// The slot.
        slot: u64,
    },
    /// The threads for requests could not be started.
    #[error("starting the threads for requests: {0}")]
    Runtime(#[source] io::Error),
}

impl Error {
    /// Whether the store has no such object.
    pub(crate) fn is_not_found(&self) -> bool {
        matches!(self, Error::Store { cause, .. } if answer::lacks_object(cause))
    }

    /// Whether an object with this name already exists.
    pub(crate) fn is_taken(&self) -> bool {
        matches!(self, Error::Store { cause: StoreError::AlreadyExists { .. }, .. })
    }

    /// Whether the store rejects the keys.
    pub(crate) fn is_about_keys(&self) -> bool {
        matches!(self, Error::Store { cause, .. } if answer::is_about_keys(cause))
    }

    /// Whether retrying is useless.
    pub(crate) fn is_final(&self) -> bool {
        if let Error::Gone(_) = self {
            return false;
        }
        let Error::Store { cause, place, .. } = self else { return true };
        if answer::is_about_keys(cause) {
            match place.keys {
                Keys::Environment => return true,
                Keys::Renewed(_) => return false,
                Keys::Client => {}
            }
        }
        let may_succeed = matches!(
            cause,
            StoreError::Generic { .. }
                | StoreError::JoinError { .. }
                | StoreError::AlreadyExists { .. }
                | StoreError::Precondition { .. }
                | StoreError::NotFound { .. }
        );
        answer::is_full(cause) || !may_succeed
    }

    /// The closest I/O error kind.
    fn kind(&self) -> io::ErrorKind {
        match self {
            Error::Store {
                cause: StoreError::PermissionDenied { .. } | StoreError::Unauthenticated { .. },
                ..
            } => io::ErrorKind::PermissionDenied,
            Error::Store { cause, .. } if answer::is_full(cause) => io::ErrorKind::StorageFull,
            Error::Store { .. }
            | Error::NoBucket { .. }
            | Error::Gone(_)
            | Error::OtherVolume { .. }
            | Error::Staging { .. } => io::ErrorKind::HostUnreachable,
            Error::NoVolume { .. }
            | Error::Unmade { .. }
            | Error::NoVersion { .. }
            | Error::Deleting { .. } => io::ErrorKind::NotFound,
            Error::NeedsSecret { .. } | Error::Secret { .. } => io::ErrorKind::PermissionDenied,
            Error::Exists { .. } => io::ErrorKind::AlreadyExists,
            Error::Claimed { .. } => io::ErrorKind::ResourceBusy,
            Error::Damaged { .. } => io::ErrorKind::InvalidData,
            Error::Fenced { .. } | Error::Rejected { .. } | Error::Collected { .. } => {
                io::ErrorKind::StaleNetworkFileHandle
            }
            _ => io::ErrorKind::Other,
        }
    }

    /// The error of a request to the device. A permission missing in the store is not reported as one missing
    /// to the caller: the device cannot be reached ([`Failure`](cffs::device::Failure)).
    pub(crate) fn of_device(self) -> io::Error {
        let kind = match self.kind() {
            io::ErrorKind::PermissionDenied => io::ErrorKind::HostUnreachable,
            kind => kind,
        };
        io::Error::new(kind, self)
    }
}

/// The state of a directory, and the remedy.
fn gone(Gone { directory, replaced }: &Gone) -> String {
    match replaced {
        None => format!(
            "directory {directory} of the volume is gone, or another one is in its place; restore it (was it \
             moved, or its file system unmounted?)"
        ),
        Some((ours, there)) => format!(
            "directory {directory} has another volume now: its store UUID is {there}, that of the open \
             volume {ours} (cffs ls --json shows store UUIDs); move it elsewhere, and restore the directory \
             of the open volume",
            there = Uuid::from_bytes(*there),
            ours = Uuid::from_bytes(*ours),
        ),
    }
}

fn claimed_by(term: u64, by: Option<&str>) -> String {
    by.map_or_else(
        || {
            format!(
                "an unknown program has the volume open for writing, or ended without \
                 closing it (its claim is slot {term} of the log)"
            )
        },
        str::to_owned,
    )
}

/// The advice if no volume is at a URL.
fn if_none(url: &str) -> &'static str {
    match url.starts_with("file:") {
        true => {
            "if there should be one, check the URL, and whether its directory was moved or its file system \
             unmounted"
        }
        false => {
            "if there should be one, check the URL; cffs mkfs makes a new volume in a bucket that exists"
        }
    }
}

/// Advice for taking over from a program with a staging directory.
fn staged_elsewhere(is_staging: bool) -> &'static str {
    match is_staging {
        true => {
            "; it has a staging directory, and taking the volume over loses the syncs that wait there: \
             mount it with that directory instead, which sends them"
        }
        false => "",
    }
}

impl From<Error> for io::Error {
    fn from(error: Error) -> io::Error {
        io::Error::new(error.kind(), error)
    }
}
