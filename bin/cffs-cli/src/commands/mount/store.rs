//! Mounts a volume in an object store: for writing or reading, or to follow another program's changes.

use std::sync::{Arc, Mutex};

use anyhow::Context;
use cffs_object::Location;
use cffs_serve::fuse::{Follow, TTL_SHARED, Watch};

use super::{Mount, Mounted, fuse_options, open_served, switch_rings_on};
use crate::following::NewerVersion;
use crate::mount_options::MountOptions;
use crate::mounts;
use crate::stored::{self, Stored};

impl Mount {
    /// Mounts a volume in a store. It has no device that another program could take over.
    pub(super) fn mount_from_store(
        &self,
        location: &Location,
        options: &MountOptions,
    ) -> anyhow::Result<Mounted> {
        let source = &self.source;
        switch_rings_on(options);
        let stored = Stored::new(location, options)?;
        let location = &stored.location;
        if options.follow.is_some() {
            return self.mount_to_follow(location, options);
        }
        let device = stored.open(source, options)?;
        let watch = Arc::new(Watch::new(options.stall));
        let counter = device.counter();
        let volume = open_served(source, &Arc::new(device), None, &watch, options)?;
        let mut fuse_options = fuse_options(source, None, None, watch, options);
        mounts::set_service(&mut fuse_options.fixed, location);
        let mounted = self.mount_volume(&volume, fuse_options)?;
        mounted.server.set_store(stored::requests(counter));
        if let Some(staged) = stored.staged() {
            mounted.server.set_staging(staged);
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
        mounted.server.set_store(stored::requests(counter));
        Ok(mounted)
    }
}
