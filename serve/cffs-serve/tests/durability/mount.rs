//! A mounted volume on a device that forgets unflushed writes.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use cffs::clock::SystemClock;
use cffs::device::{Counts, MemoryDevice, TraceDevice, VolatileDevice};
use cffs::files::Files;
use cffs::mkfs::{self, MkfsOptions};
use cffs::vfs::types::AtimeMode;
use cffs::vfs::{OpenOptions, Volume};
use cffs_serve::fuse::{Ended, Options, ServeError, Server, Stopper, TransportChoice};

/// Longer than any test: nothing is written to the device unless a caller requests it.
const NEVER: Duration = Duration::from_secs(3600);

/// How requests reach the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Transport {
    Dev,
    Rings,
}

/// A mount that ends when the value is dropped.
pub struct Mount {
    // Dropped before the directory, which cannot be removed while the volume is mounted.
    server: Option<JoinHandle<Result<Ended, ServeError>>>,
    stopper: Stopper,
    device: Arc<TraceDevice<VolatileDevice>>,
    volume: Arc<Volume>,
    directory: tempfile::TempDir,
}

impl Mount {
    /// Mounts a new volume; prints a line and returns `None` if this machine does not allow that.
    pub fn new(transport: Transport, size_bytes: u64) -> Option<Mount> {
        let has_rings = || {
            let switch = std::fs::read_to_string("/sys/module/fuse/parameters/enable_uring");
            switch.is_ok_and(|switch| switch.trim() == "Y")
        };
        if std::fs::File::options().read(true).write(true).open("/dev/fuse").is_err() {
            println!("SKIPPED: /dev/fuse cannot be opened");
            return None;
        }
        if transport == Transport::Rings && !has_rings() {
            println!("SKIPPED: the kernel offers no io_uring for FUSE");
            return None;
        }
        let blank = MemoryDevice::new(size_bytes);
        mkfs::make(&blank, &MkfsOptions::default()).expect("mkfs");
        let device = Arc::new(TraceDevice::new(VolatileDevice::new(blank.snapshot())));
        let options = OpenOptions {
            epoch_interval: NEVER,
            clean_after: NEVER,
            clean_every: NEVER,
            ..OpenOptions::default()
        };
        let volume = Volume::open(device.clone(), Arc::new(SystemClock), options).expect("open");
        let volume = Arc::new(volume);
        let directory = tempfile::tempdir().expect("a directory");
        let options = Options {
            source: "durability".into(),
            read_only: false,
            allow_other: true,
            suid: true,
            dev: true,
            exec: true,
            no_symlink_follow: false,
            device: None,
            journal: None,
            block_device: false,
            atime: AtimeMode::default(),
            fixed: BTreeMap::new(),
            transport: match transport {
                Transport::Dev => TransportChoice::Dev,
                Transport::Rings => TransportChoice::Uring,
            },
            watch: Arc::default(),
            program: Err(String::new()),
            caches: Default::default(),
            ttl: cffs_serve::fuse::TTL_ALONE,
            follow: None,
            regroup_after: None,
            cache_bytes: 0,
        };
        let server = Server::mount(volume.clone(), directory.path(), &options).expect("mounted");
        let says = server.transport();
        assert_eq!(says.starts_with("io_uring"), transport == Transport::Rings, "{says}");
        let stopper = server.stopper();
        let server = Some(std::thread::spawn(move || server.serve()));
        Some(Mount { server, stopper, device, volume, directory })
    }

    pub fn root(&self) -> &Path {
        self.directory.path()
    }

    /// The volume itself, without going through the mount.
    pub fn volume(&self) -> &Volume {
        &self.volume
    }

    /// The number of device requests up to now.
    pub fn counts(&self) -> Counts {
        self.device.counts()
    }

    /// The volume after a power cut at this moment, in the worst case: flushed writes only,
    /// recovered.
    pub fn after_a_power_cut(&self) -> Files {
        let device = Arc::new(MemoryDevice::from_image(self.device.inner().durable()));
        let clock = Arc::new(SystemClock);
        let volume = cffs::open(device, clock, OpenOptions::default()).expect("recovered");
        Files::new(Arc::new(volume))
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        let stopped = self.stopper.stop();
        let Some(server) = self.server.take() else { return };
        // After a failed test a file may still be open: then the server ends only with the process.
        if stopped.is_ok() && !std::thread::panicking() {
            let served = server.join().expect("no panic");
            served.expect("served and closed");
        }
    }
}
