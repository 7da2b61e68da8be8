//! Errors of stores and of the objects in them.

use std::io;

use object_store::Error as StoreError;

use crate::answer::{self, Place};
use crate::keys::Keys;

/// Why a volume in a store cannot be made, opened or committed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The URL names no store.
    #[error("{url}: {why}")]
    Url {
        /// The URL, without credentials.
        url: String,
        /// The reason.
        why: String,
    },
    /// A request failed.
    #[error("{object}: {}", answer::explain(cause, place))]
    Store {
        /// The object that was asked for.
        object: String,
        /// Where it was asked for.
        place: Box<Place>,
        /// The answer of the store or its client.
        cause: StoreError,
    },
    /// The bucket is gone, or never was.
    #[error("bucket {bucket} does not exist; create it first, or restore it if it was removed")]
    NoBucket {
        /// The bucket.
        bucket: String,
        /// The store's answer.
        cause: StoreError,
    },
    /// The prefix has no volume.
    #[error("no volume at {url} (create one with cffs mkfs{})", bucket_first(url))]
    NoVolume {
        /// The place, as a URL.
        url: String,
    },
    /// There is one already.
    #[error(
        "there is a volume at {url} already; choose another place, or remove its objects first"
    )]
    Exists {
        /// The place, as a URL.
        url: String,
    },
    /// An object is not what it should be.
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
    /// The last writer continues, and does not make way.
    #[error(
        "the program that has the volume open commits faster than it can be taken over, and did not give way \
         in {seconds} s: stop that program, or take away its right to write to the store"
    )]
    Busy {
        /// How long it was tried.
        seconds: u64,
    },
    /// The store lets two programs create one object.
    #[error(
        "the store let {created} of {tried} programs create one object; it has no conditional PUT, which a volume needs"
    )]
    NoConditionalPut {
        /// How many succeeded.
        created: usize,
        /// How many tried.
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
    /// A version has this name already.
    #[error(
        "there is a version {name} already; choose another name, or remove it: cffs snapshot rm"
    )]
    VersionExists {
        /// The name.
        name: String,
    },
    /// The volume was collected whenever a version was to be kept.
    #[error("the volume changes too quickly to keep the version {name}; try again")]
    Collecting {
        /// The name.
        name: String,
    },
    /// A clone was to lie in another store.
    #[error(
        "{url}: a clone shares the objects of its origin, so it must be in the same bucket, or in a \
         directory next to it, and names no version"
    )]
    OtherStore {
        /// Where it was to lie.
        url: String,
    },
    /// A clone of a clone of a clone.
    #[error("a volume has 254 origins at most; copy it with cffs export and cffs import")]
    TooManyOrigins,
    /// A version was to be written.
    #[error(
        "the version {name} is for reading alone; cffs clone makes a volume of it that can be written"
    )]
    VersionIsFixed {
        /// The name.
        name: String,
    },
    /// A version was to be followed.
    #[error("the version {name} does not change; to follow the volume, leave @{name} out")]
    NothingToFollow {
        /// The name.
        name: String,
    },
    /// An object is gone that the volume had when it was opened.
    #[error(
        "{object}: it was deleted, since the volume went on without it; open the volume again, or read a \
         version of it (cffs snapshot create)"
    )]
    Collected {
        /// The object.
        object: String,
        /// The store's answer.
        cause: StoreError,
    },
    /// The directory cannot be a cache.
    #[error("the cache {directory}: {why}")]
    Cache {
        /// The directory.
        directory: String,
        /// The reason, and what to do.
        why: String,
    },
    /// The directory cannot be used for staging, or what waits in it cannot be sent.
    #[error("the staging directory {directory}: {why}")]
    Staging {
        /// The directory.
        directory: String,
        /// The reason, and what to do.
        why: String,
    },
    /// Another program took the volume over before all that was staged was in the store.
    #[error(
        "another program took the volume over (slot {slot} of its log has that program's record) before \
         {records} staged records were sent; their syncs were acknowledged, and they are no part of the \
         volume: they are kept in {directory}"
    )]
    Rejected {
        /// Where they are.
        directory: String,
        /// How many there are.
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

    /// Whether there is an object of this name already.
    pub(crate) fn is_taken(&self) -> bool {
        matches!(self, Error::Store { cause: StoreError::AlreadyExists { .. }, .. })
    }

    /// Whether the store does not know the keys, or no longer.
    pub(crate) fn is_about_keys(&self) -> bool {
        matches!(self, Error::Store { cause, .. } if answer::is_about_keys(cause))
    }

    /// Whether to ask again is of no use.
    pub(crate) fn is_final(&self) -> bool {
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

    /// The error as a caller sees it that knows only errors of the system.
    fn kind(&self) -> io::ErrorKind {
        match self {
            Error::Store {
                cause: StoreError::PermissionDenied { .. } | StoreError::Unauthenticated { .. },
                ..
            } => io::ErrorKind::PermissionDenied,
            Error::Store { cause, .. } if answer::is_full(cause) => io::ErrorKind::StorageFull,
            Error::Store { .. } | Error::NoBucket { .. } | Error::Staging { .. } => {
                io::ErrorKind::HostUnreachable
            }
            Error::NoVolume { .. } | Error::NoVersion { .. } => io::ErrorKind::NotFound,
            Error::Exists { .. } => io::ErrorKind::AlreadyExists,
            Error::Claimed { .. } => io::ErrorKind::ResourceBusy,
            Error::Damaged { .. } => io::ErrorKind::InvalidData,
            Error::Fenced { .. } | Error::Rejected { .. } | Error::Collected { .. } => {
                io::ErrorKind::StaleNetworkFileHandle
            }
            _ => io::ErrorKind::Other,
        }
    }

    /// The error of a request to the device that this volume is. To its callers a right that is missing in
    /// the store is no right of theirs: the device cannot be reached ([`Failure`](cffs::device::Failure)).
    pub(crate) fn of_device(self) -> io::Error {
        let kind = match self.kind() {
            io::ErrorKind::PermissionDenied => io::ErrorKind::HostUnreachable,
            kind => kind,
        };
        io::Error::new(kind, self)
    }
}

fn claimed_by(term: u64, by: Option<&str>) -> String {
    by.map_or_else(
        || {
            format!(
                "a program that did not leave its name has the volume open for writing, or ended without \
                 closing it (its claim is slot {term} of the log)"
            )
        },
        str::to_owned,
    )
}

fn bucket_first(url: &str) -> &'static str {
    if url.starts_with("file:") { "" } else { "; the bucket must exist" }
}

/// The advice to read before a program with a staging directory is taken over.
fn staged_elsewhere(is_staging: bool) -> &'static str {
    match is_staging {
        true => {
            "; it has a staging directory, and syncs that wait there are lost to the volume then: \
             mounting it with that directory sends them, and needs no taking over"
        }
        false => "",
    }
}

impl From<Error> for io::Error {
    fn from(error: Error) -> io::Error {
        io::Error::new(error.kind(), error)
    }
}
