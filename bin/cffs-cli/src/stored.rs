//! A volume in an object store that a server opens, with its cache and its staging directory.

use std::os::fd::{BorrowedFd, OwnedFd};
use std::path::Path;
use std::sync::Arc;

use anyhow::Context;
use cffs_object::{Counter, DiskCache, Location, LogDevice, Predecessor, Staging, Succession};
use cffs_serve::served::{Counters, OUTAGE};
use serde_json::{Value, json};

use crate::mount_options::MountOptions;
use crate::output::note;

/// The place of a volume, with the local directories that its server uses.
pub struct Stored {
    /// The place.
    pub location: Location,
    staging: Option<Arc<Staging>>,
}

impl Stored {
    /// Opens the directories.
    ///
    /// # Errors
    ///
    /// One cannot be used.
    pub fn new(location: &Location, options: &MountOptions) -> anyhow::Result<Stored> {
        Self::with_lock(location, options, None)
    }

    /// The same, with the lock of the staging directory that the last program has handed over.
    ///
    /// # Errors
    ///
    /// Those of [`Stored::new`].
    pub fn with_lock(
        location: &Location,
        options: &MountOptions,
        lock: Option<OwnedFd>,
    ) -> anyhow::Result<Stored> {
        let mut location = location.clone();
        if let Some((directory, size_bytes)) = &options.cache_dir {
            location = location.with_cache(DiskCache::open(directory, *size_bytes)?);
        }
        let open = |directory| Staging::open_with(directory, lock).map(Arc::new);
        let staging = options.staging.as_deref().map(open).transpose()?;
        if let Some(staging) = &staging {
            location = location.with_staging(Arc::clone(staging));
        }
        Ok(Stored { location, staging })
    }

    /// Opens the volume, which the user calls `source`.
    ///
    /// # Errors
    ///
    /// Those of [`LogDevice::open`].
    pub fn open(&self, source: &Path, options: &MountOptions) -> anyhow::Result<LogDevice> {
        self.open_after(None, source, options)
    }

    /// Opens the volume that the last program handed over.
    ///
    /// # Errors
    ///
    /// Those of [`LogDevice::open`]. Failed requests are retried for up to `soft`.
    pub fn succeed(
        &self,
        last: &Succession,
        source: &Path,
        options: &MountOptions,
    ) -> anyhow::Result<LogDevice> {
        self.open_after(Some(last.predecessor), source, options)
    }

    fn open_after(
        &self,
        succeeds: Option<Predecessor>,
        source: &Path,
        options: &MountOptions,
    ) -> anyhow::Result<LogDevice> {
        let wanted = cffs_object::OpenOptions {
            read_only: options.open.read_only,
            take_over: options.open.take_over,
            patience: options.soft,
            succeeds,
            note: Some(|what| note!("cffs: {what}")),
            ..Default::default()
        };
        LogDevice::open(&self.location, wanted).with_context(|| source.display().to_string())
    }

    /// The lock of the staging directory, if there is one.
    pub fn lock(&self) -> Option<BorrowedFd<'_>> {
        self.staging.as_deref().map(Staging::lock)
    }

    /// The counters of staged records, if there is a staging directory.
    pub fn staged(&self) -> Option<Counters> {
        let staging = Arc::clone(self.staging.as_ref()?);
        Some(Box::new(move || {
            let waiting = staging.backlog();
            json!({ "records": waiting.records, "bytes": waiting.bytes })
        }))
    }
}

/// The counters of requests to a store, and its outage.
pub fn requests(counter: Counter) -> Counters {
    Box::new(move || {
        let requests = counter.requests().by_name().into_iter();
        let mut shown: Value =
            requests.map(|(name, count)| (String::from(name), Value::from(count))).collect();
        let outage = counter.outage();
        let seconds = outage.as_ref().map_or(0, |outage| outage.since.elapsed().as_secs());
        shown["outage_seconds"] = Value::from(seconds);
        if let Some(outage) = outage {
            shown[OUTAGE] = Value::from(outage.why);
        }
        shown
    })
}
