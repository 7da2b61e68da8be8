//! What can be wrong with a store or with the objects in it.

use std::io;

use object_store::Error as StoreError;

/// Why a volume in a store cannot be made, opened or committed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The URL names no store.
    #[error("{url}: {why}")]
    Url {
        /// What was given, without credentials.
        url: String,
        /// What is wrong with it.
        why: String,
    },
    /// A request failed.
    #[error("{object}: {}", explain(cause))]
    Store {
        /// The object that was asked for.
        object: String,
        /// What the store or its client answered.
        cause: StoreError,
    },
    /// The bucket is gone, or never was.
    #[error(
        "{object}: there is no such bucket; make it first, or if it was there before, restore it: what was \
         not synced is lost"
    )]
    NoBucket {
        /// The object that was to be put.
        object: String,
        /// What the store answered.
        cause: StoreError,
    },
    /// There is no volume at the prefix.
    #[error(
        "there is no volume at {prefix}; cffs mkfs makes one, and a bucket must exist before that"
    )]
    NoVolume {
        /// The prefix.
        prefix: String,
    },
    /// There is one already.
    #[error(
        "there is a volume at {prefix} already; choose another prefix, or remove its objects first"
    )]
    Exists {
        /// The prefix.
        prefix: String,
    },
    /// An object is not what it should be.
    #[error("{object}: {why}")]
    Damaged {
        /// The object.
        object: String,
        /// What is wrong.
        why: String,
    },
    /// The last writer has not released the volume.
    #[error(
        "the program that claimed the volume in slot {term} has not released it; if it is certainly \
         gone, or is to be stopped, take the volume over{}",
        staged_elsewhere(*is_staging)
    )]
    Claimed {
        /// The slot of its claim.
        term: u64,
        /// Whether it has a staging directory.
        is_staging: bool,
    },
    /// Another writer has taken the volume over.
    #[error(
        "another program took the volume over (slot {slot} of the log is not ours); nothing is \
         written any more, and what was not synced is lost"
    )]
    Fenced {
        /// The slot.
        slot: u64,
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
    /// There is no version of that name.
    #[error("{prefix} has no version {name}; cffs snapshot ls shows which there are")]
    NoVersion {
        /// The prefix.
        prefix: String,
        /// The name.
        name: String,
    },
    /// A version is to be named.
    #[error("{url} names no version; write {url}@NAME")]
    NoName {
        /// What was given.
        url: String,
    },
    /// There is a version of that name already.
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
        "{url}: a clone shares the objects of its origin, so it lies in the same bucket, or in a directory \
         beside it, and begins as no version"
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
        /// What the store answered.
        cause: StoreError,
    },
    /// The directory cannot be a cache.
    #[error("the cache {directory}: {why}")]
    Cache {
        /// The directory.
        directory: String,
        /// What is wrong with it, and what to do.
        why: String,
    },
    /// The directory cannot be used for staging, or what waits in it cannot be sent.
    #[error("the staging directory {directory}: {why}")]
    Staging {
        /// The directory.
        directory: String,
        /// What is wrong with it, and what to do.
        why: String,
    },
    /// Another program took the volume over before all that was staged was in the store.
    #[error(
        "another program took the volume over (slot {slot} of the log is not ours) before {records} \
         staged records were sent; their syncs were acknowledged, and they are no part of the volume: \
         they are kept in {directory}"
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
        matches!(self, Error::Store { cause: StoreError::NotFound { .. }, .. })
    }

    /// Whether there is an object of this name already.
    pub(crate) fn is_taken(&self) -> bool {
        matches!(self, Error::Store { cause: StoreError::AlreadyExists { .. }, .. })
    }

    /// Whether to ask again is of no use.
    pub(crate) fn is_final(&self) -> bool {
        let is_full = matches!(self, Error::Store { cause, .. } if is_full(cause));
        is_full
            || !matches!(
                self,
                Error::Store {
                    cause: StoreError::Generic { .. }
                        | StoreError::JoinError { .. }
                        | StoreError::AlreadyExists { .. }
                        | StoreError::Precondition { .. }
                        | StoreError::NotFound { .. },
                    ..
                }
            )
    }
}

/// What to know before a program with a staging directory is taken over.
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
        let kind = match &error {
            Error::Store { cause: StoreError::PermissionDenied { .. }, .. }
            | Error::Store { cause: StoreError::Unauthenticated { .. }, .. } => {
                io::ErrorKind::PermissionDenied
            }
            Error::NoVolume { .. } | Error::NoVersion { .. } => io::ErrorKind::NotFound,
            Error::Exists { .. } => io::ErrorKind::AlreadyExists,
            Error::Claimed { .. } => io::ErrorKind::ResourceBusy,
            Error::Damaged { .. } => io::ErrorKind::InvalidData,
            Error::Store { cause, .. } if is_full(cause) => io::ErrorKind::StorageFull,
            _ => io::ErrorKind::Other,
        };
        io::Error::new(kind, error)
    }
}

const UNKNOWN_CREDENTIALS: &str = "the store does not know these credentials: check AWS_ACCESS_KEY_ID and \
     AWS_SECRET_ACCESS_KEY or the profile in ~/.aws, for gs:// GOOGLE_APPLICATION_CREDENTIALS, for az:// \
     AZURE_STORAGE_ACCOUNT and AZURE_STORAGE_KEY";

/// Codes of answers to requests of which the keys or the token are not known.
const OF_CREDENTIALS: [&str; 4] =
    ["SignatureDoesNotMatch", "InvalidAccessKeyId", "InvalidToken", "ExpiredToken"];

/// What the store answered, in one line, with what to do about it.
fn explain(error: &StoreError) -> String {
    let text = error.to_string();
    let part = |tag: &str| {
        let (_, rest) = text.split_once(&format!("<{tag}>"))?;
        Some(rest.split_once(&format!("</{tag}>"))?.0)
    };
    let code = part("Code").unwrap_or_default();
    let said = match part("Message") {
        Some(message) => format!("the store answers {code}: {}", message.trim_end_matches('.')),
        None => text.clone(),
    };
    let advice = match error {
        _ if code == "RequestTimeTooSkewed" => "set the clock of this machine",
        _ if is_full(error) => "make room in the store, or have its quota raised",
        StoreError::Unauthenticated { .. } => UNKNOWN_CREDENTIALS,
        _ if OF_CREDENTIALS.contains(&code) => UNKNOWN_CREDENTIALS,
        StoreError::PermissionDenied { .. } => {
            "these credentials may not do that: a writer needs to get, put, list and delete, a reader to get \
             and list"
        }
        StoreError::NotImplemented { .. } | StoreError::NotSupported { .. } => {
            "the store lacks a request that a volume needs (a conditional PUT, with If-None-Match)"
        }
        _ => return said,
    };
    format!("{said}; {advice}")
}

/// Whether the store has no room: waiting makes none.
fn is_full(error: &StoreError) -> bool {
    let text = error.to_string();
    let signs = ["507 Insufficient Storage", "<Code>QuotaExceeded<", "<Code>XMinioStorageFull<"];
    signs.iter().any(|sign| text.contains(sign))
}
