//! Volumes in images and on block devices, and volumes in stores, which URLs name.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use cffs::clock::SystemClock;
use cffs::device::{Access, FileDevice, Geometry};
use cffs::error::{Error, Result};
use cffs::files::Files;
use cffs::host::SystemHost;
use cffs::mkfs::{self, MkfsOptions};
use cffs::vfs::types::OpenOptions;
use cffs_object::{Location, LogDevice};

/// The sector size of a volume in a store, as `cffs mkfs` sets it: records consist of whole sectors.
const SECTOR_BYTES: u32 = 4096;

/// An open volume.
pub struct Opened {
    /// Its files.
    pub files: Files,
    /// The device, for a volume in a store.
    device: Option<Arc<LogDevice>>,
    is_closed: AtomicBool,
}

impl Opened {
    /// Opens an image, a device, or a volume in a store, or attaches to a directory of a mounted volume.
    pub fn open(target: &Path, mut options: OpenOptions) -> Result<Opened> {
        if is_directory(target) {
            let access = if options.read_only { Access::ReadOnly } else { Access::ReadWrite };
            return Ok(Opened::new(Files::attach(target, access)?, None));
        }
        let Some(location) = location(target)? else {
            return Ok(Opened::new(Files::open_image(target, options)?, None));
        };
        options.host.get_or_insert_with(|| Arc::new(SystemHost));
        let wanted = cffs_object::OpenOptions {
            read_only: options.read_only,
            take_over: options.take_over,
            ..Default::default()
        };
        let device = Arc::new(LogDevice::open(&location, wanted).map_err(of_store)?);
        let volume = cffs::open(device.clone(), Arc::new(SystemClock), options)?;
        Ok(Opened::new(Files::new(Arc::new(volume)), Some(device)))
    }

    fn new(files: Files, device: Option<Arc<LogDevice>>) -> Opened {
        Opened { files, device, is_closed: AtomicBool::new(false) }
    }

    /// Whether the volume was closed, so that later calls fail.
    pub fn is_closed(&self) -> bool {
        self.is_closed.load(Ordering::Acquire)
    }

    /// Makes everything durable and closes the volume, so that another program may open it. A second call
    /// does nothing.
    pub fn close(&self) -> Result<()> {
        if self.is_closed.swap(true, Ordering::AcqRel) {
            return Ok(());
        }
        let closed = self.files.close();
        let released = self.device.as_ref().map_or(Ok(()), |device| device.release());
        closed?;
        released.map_err(of_store)
    }
}

/// Creates an image or a volume in a store; it must not exist.
pub fn make(target: &Path, size_bytes: u64, label: Vec<u8>) -> Result<()> {
    let options = MkfsOptions { label, ..MkfsOptions::default() };
    if let Some(location) = location(target)? {
        let geometry = Geometry { size_bytes, sector_bytes: SECTOR_BYTES };
        let device = LogDevice::create(&location, geometry).map_err(of_store)?;
        mkfs::make(&device, &options)?;
        return device.release().map_err(of_store);
    }
    if target.symlink_metadata().is_ok() {
        return Err(Error::Exists);
    }
    mkfs::make(&FileDevice::create(target, size_bytes)?, &options).map(drop)
}

/// The target as messages show it: without credentials, which a URL should not contain.
pub fn shown(target: &Path) -> PathBuf {
    let url = target.to_str().and_then(|text| text.split_once("://"));
    let Some((scheme, rest)) = url else { return target.to_owned() };
    let (host, path) = rest.split_at(rest.find('/').unwrap_or(rest.len()));
    let host = host.rsplit_once('@').map_or(host, |(_, host)| host);
    format!("{scheme}://{host}{path}").into()
}

/// Whether the target is a directory, of a mounted volume.
pub fn is_directory(target: &Path) -> bool {
    Location::url_of(target).is_none() && target.is_dir()
}

/// The same target for a process with another working directory.
pub fn absolute(target: PathBuf) -> PathBuf {
    match Location::url_of(&target) {
        Some(_) => target,
        None => std::path::absolute(&target).unwrap_or(target),
    }
}

/// The place in a store, if the target is a URL and not a path.
fn location(target: &Path) -> Result<Option<Location>> {
    Location::url_of(target).map(|url| Location::parse(&url)).transpose().map_err(of_store)
}

/// The store's error as an error of the volume, with the store's message.
fn of_store(error: cffs_object::Error) -> Error {
    match error {
        cffs_object::Error::Exists { .. } => Error::Exists,
        cffs_object::Error::Url { .. } => io::Error::new(io::ErrorKind::InvalidInput, error).into(),
        cffs_object::Error::NeedsSecret { url } => {
            let why = format!("{url} is encrypted; only the command cffs opens encrypted volumes");
            io::Error::new(io::ErrorKind::PermissionDenied, why).into()
        }
        _ => io::Error::from(error).into(),
    }
}
