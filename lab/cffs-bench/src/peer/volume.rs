//! One file system on one emulated disk, from its creation to its removal.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::time::Duration;

use anyhow::{Context, Result};
use serde_json::Value;
use tempfile::TempDir;

use super::{Peer, Transport, run};
use crate::disk::{Counters, Profile, Stroke};
use crate::processor::Used;
use crate::serve::media::Media;
use crate::serve::server::{DiskServer, LoopDevice};
use crate::workload::Site;

#[derive(Clone, Debug)]
pub struct VolumeSpec {
    /// The file system.
    pub peer: Peer,
    /// The device below it.
    pub profile: Profile,
    /// The placement of the volume on the device.
    pub stroke: Stroke,
    pub size: u64,
    /// The directory for backing files; should be fast and large enough.
    pub scratch: PathBuf,
    pub cffs: PathBuf,
    /// The transport of its requests, if it is served over FUSE.
    pub transport: Transport,
}

/// A mounted file system on an emulated disk.
///
/// The order of the fields matters: they are dropped in this order.
pub struct Volume {
    spec: VolumeSpec,
    cache_bytes: Option<u64>,
    mounted: bool,
    /// Whether the kernel passes syncfs(2) on to the file system's server.
    passes_syncfs: bool,
    /// The file system's server, if unmounting has to wait for it.
    server: Option<Child>,
    /// The process that serves the file system, if one does.
    server_pid: Option<u64>,
    work: PathBuf,
    device: Option<LoopDevice>,
    disk: Option<DiskServer>,
    places: TempDir,
}

impl Volume {
    /// Creates the disk, the block device and the file system, and mounts it. None of this takes disk time.
    pub fn make(spec: VolumeSpec) -> Result<Volume> {
        let places = TempDir::with_prefix_in("cffs-bench-", &spec.scratch)
            .with_context(|| format!("a directory in {}", spec.scratch.display()))?;
        let served = places.path().join("served");
        let mount_point = places.path().join("mnt");
        fs::create_dir(&served)?;
        fs::create_dir(&mount_point)?;
        let backing = places.path().join("backing");
        let media = Media::open(&backing, spec.size)?;
        let disk = DiskServer::start(spec.profile, spec.stroke, media, &served)?;
        let request_bytes = disk.request_bytes();
        let work = mount_point.join("work");
        let mut volume = Volume {
            spec,
            cache_bytes: None,
            mounted: false,
            passes_syncfs: false,
            server: None,
            server_pid: None,
            work,
            device: None,
            disk: Some(disk),
            places,
        };
        volume.set_free(true);
        let file = served.join(crate::serve::image::FILE_NAME);
        let device = LoopDevice::attach(&file, volume.spec.profile, request_bytes)?;
        volume.spec.peer.make(device.path(), &volume.journal(), &volume.spec.cffs)?;
        volume.device = Some(device);
        // A read-only file system is made of what the workload prepares in the directory.
        if !volume.spec.peer.is_read_only() {
            volume.mount()?;
        }
        fs::create_dir(&volume.work).context("make the directory to work in")?;
        volume.settle()?;
        volume.passes_syncfs = volume.stats().is_some_and(|stats| has_syncfs(&stats));
        volume.set_free(false);
        Ok(volume)
    }

    /// The longest request in KiB that reaches the disk.
    pub fn request_kib(&self) -> Result<u64> {
        self.device.as_ref().context("a block device")?.request_kib()
    }

    /// Unmounts the file system, and removes the disk.
    pub fn dismantle(mut self) -> Result<()> {
        self.set_free(true);
        self.unmount()?;
        self.device = None;
        self.disk.take().map_or(Ok(()), DiskServer::stop)
    }

    /// Unmounts the file system, checks it with its own program, and mounts it again.
    pub fn check(&mut self) -> Result<()> {
        let peer = self.spec.peer;
        peer.check(self.at_rest()?)?;
        self.mount()
    }

    /// Unmounts the file system; returns its device.
    pub fn at_rest(&mut self) -> Result<&Path> {
        self.unmount()?;
        Ok(self.device.as_ref().context("a block device")?.path())
    }

    /// Gives C-FFS a cache of this size, from its next mount on.
    pub fn set_cache(&mut self, bytes: u64) {
        self.cache_bytes = Some(bytes);
    }

    pub fn mount_point(&self) -> PathBuf {
        self.places.path().join("mnt")
    }

    /// The statistics of C-FFS; `None` for other file systems.
    fn stats(&self) -> Option<Value> {
        self.asked("stats")
    }

    /// The output of a command of C-FFS about its mount; `None` for other file systems.
    fn asked(&self, command: &str) -> Option<Value> {
        if !self.spec.peer.is_cffs() {
            return None;
        }
        let mut cffs = Command::new(&self.spec.cffs);
        let output = cffs.args([command, "--json"]).arg(self.mount_point()).output().ok()?;
        serde_json::from_slice(&output.stdout).ok()
    }

    /// The place of a journal on a separate device.
    fn journal(&self) -> PathBuf {
        self.places.path().join("journal")
    }

    fn mount(&mut self) -> Result<()> {
        let device = self.device.as_ref().context("a block device")?.path();
        let VolumeSpec { cffs, transport, .. } = &self.spec;
        let (at, cache) = (self.mount_point(), self.cache_bytes);
        self.server =
            self.spec.peer.mount(device, &at, cffs, &self.journal(), *transport, cache)?;
        self.mounted = true;
        self.server_pid = match &self.server {
            Some(server) => Some(server.id().into()),
            None => self.asked("info").and_then(|info| info["server"]["pid"].as_u64()),
        };
        Ok(())
    }

    fn unmount(&mut self) -> Result<()> {
        if std::mem::take(&mut self.mounted) {
            self.spec.peer.unmount(&self.mount_point(), &self.spec.cffs)?;
            if let Some(mut server) = self.server.take() {
                server.wait().context("wait for the server")?;
            }
        }
        Ok(())
    }
}

/// Whether a server of C-FFS was asked to make everything durable, according to its counters.
fn has_syncfs(stats: &Value) -> bool {
    stats["requests"]["syncfs"].as_u64().is_some_and(|count| count > 0)
}

impl Site for Volume {
    fn root(&self) -> &Path {
        &self.work
    }

    fn settle(&self) -> Result<()> {
        let root = File::open(self.mount_point())?;
        rustix::fs::syncfs(&root).context("syncfs")?;
        if self.spec.peer.is_cffs() && !self.passes_syncfs {
            // In this case, syncfs(2) only writes back the kernel's cache.
            run(Command::new(&self.spec.cffs).arg("sync").arg(self.mount_point()))?;
        }
        Ok(())
    }

    fn chill(&mut self) -> Result<()> {
        // Data in the memory of its server would be lost with the mount.
        let stays = self.spec.peer == Peer::Null;
        if self.spec.peer.is_read_only() && !self.mounted {
            let device = self.device.as_ref().context("a block device")?.path();
            self.spec.peer.pack(&self.mount_point(), device)?;
        } else if !stays {
            self.unmount()?;
        }
        fs::write("/proc/sys/vm/drop_caches", "3").context("drop the kernel's caches")?;
        if stays { Ok(()) } else { self.mount() }
    }

    fn counters(&self) -> Option<Counters> {
        self.disk.as_ref().map(|disk| disk.pacer().counters())
    }

    fn journal_home(&self) -> Option<Duration> {
        self.stats()?["journal"]["drain_us"].as_u64().map(Duration::from_micros)
    }

    fn server_secs(&self) -> Option<f64> {
        Used::by(self.server_pid?).map(|used| used.own)
    }

    fn set_free(&self, free: bool) {
        if let Some(disk) = &self.disk {
            let profile = if free { Profile::None } else { self.spec.profile };
            if disk.pacer().profile() != profile {
                disk.pacer().become_profile(profile);
            }
        }
    }

    fn volume_size(&self) -> Option<u64> {
        Some(self.spec.size)
    }
}

impl Drop for Volume {
    fn drop(&mut self) {
        self.set_free(true);
        if let Err(error) = self.unmount() {
            eprintln!("{} stays mounted: {error:#}", self.mount_point().display());
            // A lazy unmount at least prevents that new work begins there.
            let _ = run(Command::new("umount").arg("-l").arg(self.mount_point()));
        }
    }
}

#[cfg(test)]
mod tests;
