//! Mounts a volume in an object store: for writing or reading, or to follow another program's changes.

use std::os::fd::{BorrowedFd, OwnedFd};
use std::path::Path;
use std::sync::{Arc, Mutex};

use anyhow::Context;
use cffs::device::Patient;
use cffs::vfs::Volume;
use cffs_object::{Location, LogDevice, Succession};
use cffs_serve::fuse::{self, Follow, Server, TTL_SHARED, Watch};

use super::{Mount, Mounted, fuse_options, open_served, switch_rings_on};
use crate::following::NewerVersion;
use crate::mount_options::MountOptions;
use crate::stored::{self, Stored};
use crate::{image, mounts};

/// The store of a volume that is open.
pub(super) struct OpenStore {
    stored: Stored,
    device: Arc<LogDevice>,
}

impl OpenStore {
    /// Opens the volume that the last program handed over. The kernel waits for this, so failed requests are
    /// retried.
    pub fn succeed(
        source: &Path,
        last: &Succession,
        lock: Option<OwnedFd>,
        watch: &Arc<Watch>,
        options: &MountOptions,
    ) -> anyhow::Result<(OpenStore, Arc<Volume>)> {
        let place = image::place(source)?.context("the volume is in no store")?;
        let place = place.with_secret(last.secret().map(Arc::new));
        let stored = Stored::with_lock(&place, options, lock)?;
        let device = Arc::new(stored.succeed(last, source, options)?);
        let store = OpenStore { stored, device };
        let volume = store.open_device(source, watch, options)?;
        Ok((store, volume))
    }

    /// Opens the volume again, since no other program took it over.
    pub fn reopen(
        &mut self,
        source: &Path,
        last: &Succession,
        watch: &Arc<Watch>,
        options: &MountOptions,
    ) -> anyhow::Result<Arc<Volume>> {
        self.stored.location =
            self.stored.location.clone().with_secret(last.secret().map(Arc::new));
        self.device = Arc::new(self.stored.succeed(last, source, options)?);
        self.open_device(source, watch, options)
    }

    fn open_device(
        &self,
        source: &Path,
        watch: &Arc<Watch>,
        options: &MountOptions,
    ) -> anyhow::Result<Arc<Volume>> {
        let _patient = Patient::begin();
        open_served(source, &self.device, None, watch, options)
    }

    /// The access to the closed volume for the next program.
    pub fn succession(&self) -> anyhow::Result<Succession> {
        self.device.succession().context("the volume was not handed over")
    }

    /// The lock of the staging directory, if there is one.
    pub fn lock(&self) -> Option<BorrowedFd<'_>> {
        self.stored.lock()
    }

    pub fn fuse_options(
        &self,
        source: &Path,
        watch: Arc<Watch>,
        options: &MountOptions,
    ) -> fuse::Options {
        let mut fuse_options = fuse_options(source, None, None, watch, options);
        mounts::set_service(&mut fuse_options.fixed, &self.stored.location);
        fuse_options
    }

    /// Adds the counters of the store to those of a server.
    pub fn show(&self, server: &Server) {
        server.set_store(stored::requests(self.device.counter()));
        if let Some(staged) = self.stored.staged() {
            server.set_staging(staged);
        }
    }
}

impl Mount {
    /// Mounts a volume in a store.
    pub(super) fn mount_from_store(
        &self,
        location: &Location,
        options: &MountOptions,
    ) -> anyhow::Result<Mounted> {
        let source = &self.source;
        switch_rings_on(options);
        let stored = Stored::new(location, options)?;
        if options.follow.is_some() {
            return self.mount_to_follow(&stored.location, options);
        }
        let device = Arc::new(stored.open(source, options)?);
        let watch = Arc::new(Watch::new(options.stall));
        let volume = open_served(source, &device, None, &watch, options)?;
        let store = OpenStore { stored, device };
        let fuse_options = store.fuse_options(source, watch, options);
        let mounted = self.mount_volume(&volume, fuse_options, options)?;
        Ok(Mounted { store: Some(store), ..mounted })
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
        let mounted = self.mount_volume(&volume, fuse_options, options)?;
        mounted.server.set_store(stored::requests(counter));
        Ok(mounted)
    }
}
