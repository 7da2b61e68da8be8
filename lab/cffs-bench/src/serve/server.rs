//! The emulated disk as a mounted file, and as a block device over it.
//!
//! ```text
//!   file system ──► /dev/loopN ──► DIR/disk (FUSE) ──► Image ──► Pacer
//!                   direct I/O     direct I/O            └─► Media
//! ```

use std::fs;
use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::thread::JoinHandle;

use anyhow::{Context, Result, bail};
use fuse_ring::protocol::Features;
use fuse_ring::{Config, MountOptions, Session, TransportChoice, Unmount, Unmounter};

use super::image::{FILE_NAME, Image};
use super::media::Media;
use super::pacer::Pacer;
use super::pages::{DISK_REQUEST_BYTES, RaisedLimit};
use crate::disk::{Profile, Stroke};
use crate::placement::Placement;

/// The number of requests served at the same time: more than any disk's queue, and more than a loop device
/// sends.
const THREADS: NonZeroUsize = NonZeroUsize::new(48).expect("not zero");

/// A mounted disk. Dropping it unmounts.
pub struct DiskServer {
    pacer: Arc<Pacer>,
    media: Arc<Media>,
    file: PathBuf,
    request_bytes: u32,
    unmounter: Unmounter,
    thread: Option<JoinHandle<std::io::Result<()>>>,
}

impl DiskServer {
    /// Serves a disk of the size of `media`, which hold its data, as the file `disk` in the
    /// directory `at`.
    pub fn start(profile: Profile, stroke: Stroke, media: Media, at: &Path) -> Result<DiskServer> {
        let media = Arc::new(media);
        let pacer = Arc::new(Pacer::new(profile, media.size(), stroke));
        let options = MountOptions {
            fsname: "cffs-bench".into(),
            subtype: String::from("disk"),
            ..MountOptions::default()
        };
        let mut config =
            Config { transport: TransportChoice::Dev, threads: Some(THREADS), ..Config::default() };
        config.wishes.features -= Features::DO_READDIRPLUS | Features::READDIRPLUS_AUTO;
        // A disk has many requests in its queue, and flushes are separate requests.
        config.wishes.features |= Features::ASYNC_DIO;
        // Asynchronous direct I/O counts as background work, which the kernel would hold back.
        config.wishes.max_background = 512;
        config.wishes.congestion_threshold = 512;
        let limit = RaisedLimit::to(DISK_REQUEST_BYTES);
        let request_bytes = limit.bytes();
        config.wishes.max_write = request_bytes;
        let session =
            Session::mount(Image::new(pacer.clone(), media.clone()), at, &options, &config)
                .with_context(|| format!("mount on {}", at.display()))?;
        drop(limit);
        let unmounter = session.unmounter();
        let serve = move || {
            Placement::here().pin_disk();
            // Threads inherit this setting: they wake within a microsecond instead of 50.
            let _ = rustix::thread::set_current_timer_slack(NANOSECOND);
            session.serve().map(drop)
        };
        let thread = std::thread::Builder::new().name("disk".into()).spawn(serve)?;
        let file = at.join(FILE_NAME);
        Ok(DiskServer { pacer, media, file, request_bytes, unmounter, thread: Some(thread) })
    }

    /// The timing of the device.
    pub fn pacer(&self) -> &Arc<Pacer> {
        &self.pacer
    }

    /// The data of the device.
    pub fn media(&self) -> &Arc<Media> {
        &self.media
    }

    pub fn file(&self) -> &Path {
        &self.file
    }

    /// The longest request in bytes that reaches the disk.
    pub fn request_bytes(&self) -> u32 {
        self.request_bytes
    }

    /// Whether another program has unmounted the disk.
    pub fn is_over(&self) -> bool {
        self.thread.as_ref().is_none_or(JoinHandle::is_finished)
    }

    /// Unmounts and reports how serving ended. Fails while the file is in use.
    pub fn stop(mut self) -> Result<()> {
        if !self.is_over() {
            self.unmounter.unmount(Unmount::Now).context("unmount the disk")?;
        }
        match self.thread.take().map(JoinHandle::join) {
            Some(Ok(result)) => result.context("serve the disk"),
            Some(Err(_)) => bail!("the disk's server panicked"),
            None => Ok(()),
        }
    }
}

impl Drop for DiskServer {
    fn drop(&mut self) {
        if let Some(thread) = self.thread.take() {
            let _ = self.unmounter.unmount(Unmount::Lazy);
            // Joining could wait for users of the file; the thread ends with the last of them.
            drop(thread);
        }
    }
}

const NANOSECOND: Option<std::num::NonZeroU64> = std::num::NonZeroU64::new(1);

/// A loop device with direct I/O. Dropping it detaches it.
pub struct LoopDevice {
    path: PathBuf,
}

impl LoopDevice {
    /// Attaches a loop device to `file`, which takes requests of up to `request_bytes`. To the kernel, it
    /// looks like a disk of this profile.
    pub fn attach(file: &Path, profile: Profile, request_bytes: u32) -> Result<LoopDevice> {
        let sector = profile.sector_size().to_string();
        let mut losetup = Command::new("losetup");
        losetup.args(["--find", "--show", "--direct-io=on", "--sector-size", &sector]);
        let output = losetup.arg(file).output().context("run losetup")?;
        if !output.status.success() {
            bail!("losetup: {}", String::from_utf8_lossy(&output.stderr).trim());
        }
        let path = PathBuf::from(String::from_utf8_lossy(&output.stdout).trim());
        let device = LoopDevice { path };
        if device.attribute("loop/dio")? != "1" {
            bail!("the loop device refuses direct I/O: the page cache would hide the disk");
        }
        device.tune(profile, request_bytes)?;
        Ok(device)
    }

    /// The longest request in KiB that the kernel sends to it.
    pub fn request_kib(&self) -> Result<u64> {
        Ok(self.attribute("queue/max_sectors_kb")?.parse()?)
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Sets the queue parameters that the kernel would choose for such a disk, since file systems depend on
    /// them.
    fn tune(&self, profile: Profile, request_bytes: u32) -> Result<()> {
        let (rotational, scheduler) =
            if profile.is_rotational() { ("1", "mq-deadline") } else { ("0", "none") };
        self.set("rotational", rotational)?;
        self.set("scheduler", scheduler)?;
        self.set("add_random", "0")?;
        // The longest request of a disk, unless the loop driver or FUSE has a lower limit: FUSE would split
        // requests into unequal parts.
        let takes: u32 = self.attribute("queue/max_hw_sectors_kb")?.parse()?;
        self.set("max_sectors_kb", &takes.min(request_bytes >> 10).to_string())?;
        // A loop device keeps the settings of its previous disk: without the flushes that this disk needs,
        // making data durable would cost nothing.
        let cache = if profile.has_write_cache() { "write back" } else { "write through" };
        self.set("write_cache", cache)?;
        if self.attribute("queue/write_cache")? != cache {
            bail!("the loop device does not accept {cache}: it would flush too often, or never");
        }
        Ok(())
    }

    fn set(&self, attribute: &str, value: &str) -> Result<()> {
        let path = self.sysfs().join("queue").join(attribute);
        match fs::write(&path, value) {
            // Attributes differ between kernel versions; a missing one has no effect.
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => Ok(()),
            result => result.with_context(|| format!("write {value} to {}", path.display())),
        }
    }

    fn attribute(&self, attribute: &str) -> Result<String> {
        let path = self.sysfs().join(attribute);
        let value = fs::read_to_string(&path).with_context(|| format!("{}", path.display()))?;
        Ok(value.trim().to_owned())
    }

    fn sysfs(&self) -> PathBuf {
        Path::new("/sys/block").join(self.path.file_name().unwrap_or_default())
    }
}

impl Drop for LoopDevice {
    /// Detaches the device. The kernel keeps its queue's settings for the next user. With "write through", it
    /// would drop that user's flushes, and a power cut would lose the page cache.
    fn drop(&mut self) {
        if let Err(error) = self.set("write_cache", "write back") {
            eprintln!(
                "{error:#}; the kernel will drop the flushes of the next user of {}: write \"write \
                 back\" there",
                self.path.display()
            );
        }
        let _ = Command::new("losetup").arg("--detach").arg(&self.path).output();
    }
}
