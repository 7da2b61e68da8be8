//! Mounts a volume in an object store: for writing or reading, or to follow another program's changes.

use std::sync::{Arc, Mutex};

use anyhow::Context;
use cffs_object::{Counter, DiskCache, Location, LogDevice, Staging};
use cffs_serve::fuse::{Follow, Server, TTL_SHARED, Watch};
use serde_json::{Value, json};

use super::{Mount, Mounted, fuse_options, open_served, switch_rings_on};
use crate::following::NewerVersion;
use crate::mount_options::MountOptions;
use crate::mounts;
use crate::output::note;

impl Mount {
    /// Mounts a volume in a store. It has no device that another program could take over.
    pub(super) fn mount_from_store(
        &self,
        location: &Location,
        options: &MountOptions,
    ) -> anyhow::Result<Mounted> {
        let source = &self.source;
        switch_rings_on(options);
        let mut location = location.clone();
        if let Some((directory, size_bytes)) = &options.cache_dir {
            location = location.with_cache(DiskCache::open(directory, *size_bytes)?);
        }
        let staging = options.staging.as_deref().map(Staging::open).transpose()?.map(Arc::new);
        if let Some(staging) = &staging {
            location = location.with_staging(Arc::clone(staging));
        }
        let location = &location;
        if options.follow.is_some() {
            return self.mount_to_follow(location, options);
        }
        let wanted = cffs_object::OpenOptions {
            read_only: options.open.read_only,
            take_over: options.open.take_over,
            patience: options.soft,
            note: Some(|what| note!("cffs: {what}")),
            ..Default::default()
        };
        let device =
            LogDevice::open(location, wanted).with_context(|| source.display().to_string())?;
        let watch = Arc::new(Watch::new(options.stall));
        let counter = device.counter();
        let volume = open_served(source, &Arc::new(device), None, &watch, options)?;
        let mut fuse_options = fuse_options(source, None, None, watch, options);
        mounts::set_service(&mut fuse_options.fixed, location);
        let mounted = self.mount_volume(&volume, fuse_options)?;
        show_requests(&mounted.server, counter);
        if let Some(staging) = staging {
            mounted.server.set_staging(Box::new(move || {
                let waiting = staging.backlog();
                json!({ "records": waiting.records, "bytes": waiting.bytes })
            }));
        }
        Ok(mounted)
    }

    /// Mounts a volume that another program writes.
    fn mount_to_follow(
        &self,
        location: &Location,
        options: &MountOptions,
    ) -> anyhow::Result<Mounted> {
        let watch = Arc::new(Watch::new(options.stall));
        let open = options.open.clone();
        let (newer, volume, counter) = NewerVersion::first(location, open, Arc::clone(&watch))
            .with_context(|| self.source.display().to_string())?;
        let mut fuse_options = fuse_options(&self.source, None, None, watch, options);
        mounts::set_service(&mut fuse_options.fixed, location);
        fuse_options.ttl = TTL_SHARED;
        fuse_options.follow =
            options.follow.map(|every| Follow { every, source: Arc::new(Mutex::new(newer)) });
        let mounted = self.mount_volume(&volume, fuse_options)?;
        show_requests(&mounted.server, counter);
        Ok(mounted)
    }
}

/// Adds the requests to the store to the server's counters.
fn show_requests(server: &Server, counter: Counter) {
    server.set_store(Box::new(move || {
        let requests = counter.requests().by_name().into_iter();
        requests.map(|(name, count)| (String::from(name), Value::from(count))).collect()
    }));
}
