//! The versions of a volume in a store that another program writes, for a mount that follows them.

use std::sync::Arc;

use cffs::clock::SystemClock;
use cffs::trace::{RecordedDevice, Recorder};
use cffs::vfs::Volume;
use cffs::vfs::types::OpenOptions;
use cffs_object::{Counter, Follower, Location};
use cffs_serve::fuse::{LeaveSeat, Newer, Watch, WatchedDevice};

/// Opens each version as a separate volume.
pub struct NewerVersion {
    follower: Follower,
    open: OpenOptions,
    watch: Arc<Watch>,
    /// Whether the follower has read a state from which no volume was opened yet.
    is_due: bool,
}

impl NewerVersion {
    /// The current volume, and the counter of the requests of all versions.
    pub fn first(
        location: &Location,
        open: OpenOptions,
        watch: Arc<Watch>,
    ) -> anyhow::Result<(NewerVersion, Arc<Volume>, Counter)> {
        let follower = Follower::open(location)?;
        let counter = follower.device().counter();
        // Without a host: a version is consistent, even while another program has the volume open.
        let (waiter, recorder) = (Arc::new(LeaveSeat), Arc::new(Recorder::default()));
        let open = OpenOptions { waiter, recorder, host: None, ..open };
        let newer = NewerVersion { follower, open, watch, is_due: false };
        let volume = newer.volume()?;
        Ok((newer, volume, counter))
    }

    fn volume(&self) -> cffs::error::Result<Arc<Volume>> {
        let device = Arc::new(self.follower.device());
        let watched = WatchedDevice(device, Arc::clone(&self.watch));
        let recorded = RecordedDevice::new(watched, Arc::clone(&self.open.recorder));
        let volume = cffs::open(Arc::new(recorded), Arc::new(SystemClock), self.open.clone())?;
        Ok(Arc::new(volume))
    }
}

impl Newer for NewerVersion {
    fn newer(&mut self) -> Result<Option<Arc<Volume>>, String> {
        self.is_due |= self.follower.read_on().map_err(|error| error.to_string())?;
        if !self.is_due {
            return Ok(None);
        }
        let volume = self.volume().map_err(|error| error.to_string())?;
        self.is_due = false;
        Ok(Some(volume))
    }
}
