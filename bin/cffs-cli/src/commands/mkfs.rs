//! `cffs mkfs`, `mkfs.cffs`: makes a volume.

use std::fs;
use std::path::PathBuf;
use std::process::ExitCode;
use std::str::FromStr;
use std::sync::Arc;

use anyhow::{Context, bail};
use cffs::clock::{Clock, SystemClock};
use cffs::device::file::{Access, FileDevice};
use cffs::device::{BlockDevice, Geometry, PairedDevice};
use cffs::error::Error;
use cffs::format::Superblock;
use cffs::format::superblock::{Compression, Incompat};
use cffs::host::SystemHost;
use cffs::mkfs::{self, MkfsOptions};
use cffs::vfs::{mark, read_superblock};
use cffs_object::{Location, LogDevice};
use clap::Args;

use crate::output::{self, note, say};
use crate::policies::{Errors, PolicyName};
use crate::size::Portion;
use crate::{host_space, image, keys, names, signatures, size};

/// The size of an atomic write to a store.
pub const STORE_SECTOR_BYTES: u32 = 4096;

/// Make a volume in an image file or on a block device
///
/// If the image does not exist, it is created, as a sparse file: it takes space only as the volume fills.
/// Only the superblock, its copies and the first cylinder group are written, so this takes the same time for
/// any size.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  cffs mkfs --size 4G tree.cffs
  cffs mkfs -L photos --reserve 5% /dev/sdb1
  cffs mkfs --size 1T s3://bucket/tree
  cffs mkfs --compress zstd --size 20G sources.cffs
  cffs mkfs --size 1G --features ^embed,^inline --policy none plain.cffs
      conventional allocation, for comparison")]
pub struct Mkfs {
    /// The image or the device, or a place in an object store: s3://bucket/prefix, file:///directory.
    #[arg(value_name = "IMAGE|DEVICE|URL")]
    target: PathBuf,
    /// The size of the image, for instance 4G; needed if it does not exist yet.
    #[arg(short, long, value_parser = size::parse)]
    size: Option<u64>,
    /// The volume's name, at most 64 bytes.
    #[arg(short = 'L', long, value_name = "LABEL")]
    label: Option<String>,
    /// The volume's UUID, instead of a random one.
    #[arg(short = 'U', long)]
    uuid: Option<uuid::Uuid>,
    /// Bytes per block: a power of two from 4k to 64k.
    #[arg(short, long, value_name = "SIZE", default_value = "4k", value_parser = size::parse_u32)]
    block_size: u32,
    /// Bytes per fragment, the unit of allocation: from 512 to the block size.
    #[arg(long, value_name = "SIZE", default_value = "1k", value_parser = size::parse_u32)]
    fragment_size: u32,
    /// Bytes per segment, in which neighbours are stored together: from the block size to 16M.
    #[arg(long, value_name = "SIZE", default_value = "64k", value_parser = size::parse_u32)]
    segment_size: u32,
    /// Bytes that the device writes atomically: from 512 to 4k; by default what a block device reports, and
    /// 4k for an image.
    #[arg(long, value_name = "SIZE", value_parser = size::parse_u32)]
    sector_size: Option<u32>,
    /// The longest contents that are stored in the inode, in bytes.
    #[arg(long, value_name = "BYTES", default_value_t = 512)]
    inline_max: u16,
    /// Features to switch on or, after a ^, off: embed, inline.
    #[arg(short = 'O', long, value_name = "LIST", value_delimiter = ',')]
    features: Vec<Feature>,
    /// How files find their neighbours.
    #[arg(long, value_enum, default_value_t = PolicyName::Directory)]
    policy: PolicyName,
    /// Compress the contents of neighbouring files together: zstd, zstd:LEVEL with a level from 1 to 19, or
    /// off. With off, only files with the flag of chattr +c are compressed, until cffs tune --compress turns
    /// compression on. Without this option, a volume can never compress contents. The flag of chattr +m keeps
    /// new contents of a file, or of new files in a directory, from being compressed.
    #[arg(long, value_name = "CODEC", value_parser = Compression::from_str)]
    compress: Option<Compression>,
    /// Space that only root may use, in bytes or as a percentage of the volume, for instance 1G or 5%; less
    /// than half of it.
    #[arg(long, value_name = "SIZE|PERCENT", default_value = "0", value_parser = Portion::parse)]
    reserve: Portion,
    /// How a mount reacts to damage, unless -o errors= says otherwise.
    #[arg(long, value_enum, default_value_t = Errors::Default)]
    errors: Errors,
    /// The size of the journal, in bytes or with a unit (K, M or G), for instance 60M; or none. With one, an
    /// fsync takes one write and one flush of the device, instead of two or more; programs older than the
    /// journal cannot use the volume. By default a disk that the kernel reports as rotating gets a journal of
    /// 60 MiB, or a 64th of a volume below 3.75 GiB; images, other disks, and volumes below 512 MiB get none.
    /// A volume in an object store cannot have one.
    #[arg(long, value_name = "SIZE|none", value_parser = size::parse_or_none)]
    journal: Option<u64>,
    /// Put the journal on another device, or in a file, which is created if it does not exist. Its size is
    /// 64M, unless --journal gives another. While the volume is mounted, it is complete only together with
    /// its journal.
    #[arg(long, value_name = "DEVICE")]
    journal_device: Option<PathBuf>,
    /// Encrypt the volume, which must be in an object store, with the key or passphrase of --key-file or
    /// --key-command. Without it, nothing in the volume can be read.
    #[arg(long)]
    encrypt: bool,
    /// Overwrite existing contents. A volume in an object store is not overwritten: delete it with cffs
    /// destroy.
    #[arg(short, long, visible_short_alias = 'F')]
    force: bool,
    /// Overwrite even a volume that is marked as in use by another host, or by a process without a lock. Only
    /// if that host or process is certainly gone.
    #[arg(long)]
    take_over: bool,
    /// Discard the whole device first.
    #[arg(long)]
    discard: bool,
    /// Print nothing but errors.
    #[arg(short, long)]
    quiet: bool,
    /// Print what was made as JSON.
    #[arg(long)]
    json: bool,
}

/// A volume that can be made.
struct Planned {
    options: MkfsOptions,
    /// The device of the journal, if that is separate.
    journal: Option<Arc<dyn BlockDevice>>,
}

#[derive(Clone, Copy, Debug)]
enum Feature {
    Embed(bool),
    Inline(bool),
}

impl std::str::FromStr for Feature {
    type Err = String;

    fn from_str(text: &str) -> Result<Feature, String> {
        let (name, on) = match text.strip_prefix('^') {
            Some(name) => (name, false),
            None => (text, true),
        };
        match name {
            "embed" => Ok(Feature::Embed(on)),
            "inline" => Ok(Feature::Inline(on)),
            _ => Err(format!("unknown feature '{name}'; the features are embed and inline")),
        }
    }
}

impl Mkfs {
    pub fn run(self) -> anyhow::Result<ExitCode> {
        if let Some(location) = image::location(&self.target)? {
            if self.journal_device.is_some() {
                bail!("a volume in an object store cannot have a journal on another device");
            }
            if self.journal.is_some_and(|bytes| bytes > 0) {
                bail!(
                    "a volume in an object store cannot have a journal; the store keeps a log of its own"
                );
            }
            return self.run_in_store(&location);
        }
        if self.encrypt || keys::are_named() {
            bail!(
                "only volumes in object stores are encrypted; put an image on an encrypted device (LUKS)"
            );
        }
        let mut is_new = false;
        let made = self.device(&mut is_new);
        let made = made.and_then(|(device, planned)| self.make(device, planned));
        if made.is_err() && is_new {
            // An image without a volume is of no use.
            let _ = fs::remove_file(&self.target);
        }
        self.print(&made?)?;
        if !self.quiet {
            host_space::warn("mkfs", &self.target);
        }
        Ok(ExitCode::SUCCESS)
    }

    /// Makes the volume on a device, with its journal there or on a device of its own.
    fn make(&self, device: FileDevice, planned: Planned) -> anyhow::Result<Superblock> {
        let Planned { mut options, journal } = planned;
        if self.journal.is_none() && journal.is_none() && device.is_rotational() {
            options.journal_bytes = default_journal_bytes(device.geometry().size_bytes);
        }
        let made = match journal {
            Some(journal) => mkfs::make(&PairedDevice::new(device, journal), &options),
            None => mkfs::make(&device, &options),
        };
        made.with_context(|| self.target.display().to_string())
    }

    /// Makes a volume in a store. Existing objects are not overwritten, even with --force: the store's own
    /// tools must remove them.
    fn run_in_store(&self, location: &Location) -> anyhow::Result<ExitCode> {
        if let Some(version) = location.version() {
            bail!(
                "{} names a version, {version}, which a new volume does not have; if the '@' belongs to \
                 the name, end it with '/'",
                self.target.display()
            );
        }
        let Some(size_bytes) = self.size else {
            bail!(
                "give the maximum size of the volume: --size 1T; the store keeps only written data"
            )
        };
        match (self.encrypt, location.secret().is_some()) {
            (true, false) => {
                bail!(
                    "name the key or passphrase of the volume: --key-file FILE or --key-command COMMAND"
                )
            }
            (false, true) => bail!("add --encrypt to use the key, or leave it out"),
            _ => keys::warn_of_weakness(location.secret().as_deref()),
        }
        names::check_unused(&self.target)?;
        let geometry = Geometry { size_bytes, sector_bytes: STORE_SECTOR_BYTES };
        let name = || self.target.display().to_string();
        let device = LogDevice::create(location, geometry).with_context(name)?;
        let superblock = mkfs::make(&device, &self.options(size_bytes)).with_context(name)?;
        device.release().with_context(name)?;
        self.print(&superblock)?;
        Ok(ExitCode::SUCCESS)
    }

    /// Opens or creates the device, once it is certain that a volume can be made on it. Sets `is_new` when
    /// this program has created the image.
    fn device(&self, is_new: &mut bool) -> anyhow::Result<(FileDevice, Planned)> {
        let target = &self.target;
        if target.exists() {
            let device = image::open_any(target, Access::ReadWrite)?;
            if let Some(what) = signatures::contents(&device)
                .with_context(|| target.display().to_string())?
                .filter(|_| !self.force)
            {
                bail!("{} already contains {what}; --force overwrites it", target.display());
            }
            self.check_mark(&device).with_context(|| target.display().to_string())?;
            let Some(size_bytes) = self.size.filter(|_| !device.is_block_device()) else {
                let device = self.check_size(device)?;
                let planned = self.plan(device.geometry())?;
                return Ok((device, planned));
            };
            let sector_bytes = device.geometry().sector_bytes;
            drop(device);
            // A refusal after this would leave neither the old contents nor a volume.
            let planned = self.plan(Geometry { size_bytes, sector_bytes })?;
            return Ok((FileDevice::create(target, size_bytes)?, planned));
        }
        if target.starts_with("/dev") && !target.starts_with("/dev/shm") {
            bail!("device {} does not exist", target.display());
        }
        match self.size {
            Some(size_bytes) => {
                let is_link = target.is_symlink();
                let device = match is_link {
                    true => FileDevice::create(target, size_bytes)?,
                    // Another program may be making the same image.
                    false => FileDevice::create_new(target, size_bytes)?,
                };
                *is_new = !is_link;
                let planned = self.plan(device.geometry())?;
                Ok((device, planned))
            }
            None => {
                bail!("{} does not exist; give its size to make it: --size 4G", target.display())
            }
        }
    }

    /// Opens the device of the journal, and fails as making the volume on this device would.
    fn plan(&self, device: Geometry) -> anyhow::Result<Planned> {
        let target = || self.target.display().to_string();
        let options = self.options(device.size_bytes);
        let Some(path) = &self.journal_device else {
            drop(options.plan(device).with_context(target)?);
            return Ok(Planned { options, journal: None });
        };
        let existed = path.exists();
        let bytes = options.journal_bytes;
        let (volume, remedy) = (&self.target, "--force overwrites it");
        let journal = signatures::open_for_journal(path, volume, bytes, self.force, remedy)?;
        if let Err(error) = options.plan_with_journal_on(journal.geometry(), device) {
            if !existed {
                let _ = fs::remove_file(path);
            }
            return Err(error).with_context(target);
        }
        Ok(Planned { options, journal: Some(journal) })
    }

    /// Refuses a volume that another host has open, even with --force.
    fn check_mark(&self, device: &FileDevice) -> Result<(), Error> {
        // An unreadable superblock does not belong to an open volume.
        let Ok(superblock) = read_superblock(device) else { return Ok(()) };
        match mark::user(&superblock, &SystemHost, device.hints().excludes) {
            Some(user) if !self.take_over => Err(Error::InUse(user)),
            _ => Ok(()),
        }
    }

    fn check_size(&self, device: FileDevice) -> anyhow::Result<FileDevice> {
        let size_bytes = device.geometry().size_bytes;
        if let Some(wanted) = self.size.filter(|wanted| *wanted != size_bytes) {
            bail!(
                "{} has {}, not {}; a volume takes the whole device",
                self.target.display(),
                size::show(size_bytes),
                size::show(wanted)
            );
        }
        if size_bytes == 0 {
            bail!("{} is empty; give its size: --size 4G", self.target.display());
        }
        Ok(device)
    }

    fn options(&self, size_bytes: u64) -> MkfsOptions {
        let mut options = MkfsOptions {
            label: self.label.clone().unwrap_or_default().into_bytes(),
            uuid: self.uuid.map(uuid::Uuid::into_bytes),
            block_bytes: self.block_size,
            fragment_bytes: self.fragment_size,
            sector_bytes: self.sector_size,
            segment_bytes: self.segment_size,
            inline_bytes_max: self.inline_max,
            reserve_bytes: self.reserve.of(size_bytes),
            errors: self.errors.policy(),
            journal_bytes: self.journal.unwrap_or(0),
            policy: self.policy.policy(),
            now: SystemClock.now(),
            root_uid: rustix::process::geteuid().as_raw(),
            root_gid: rustix::process::getegid().as_raw(),
            discard: self.discard,
            compression: self.compress,
            ..MkfsOptions::default()
        };
        for feature in &self.features {
            match *feature {
                Feature::Embed(on) => options.embed = on,
                Feature::Inline(on) => options.inline = on,
            }
        }
        options
    }

    fn print(&self, superblock: &Superblock) -> anyhow::Result<()> {
        if self.json {
            return output::json(&cffs_serve::describe::superblock(superblock));
        }
        if self.quiet {
            return Ok(());
        }
        let bytes = superblock.blocks * u64::from(superblock.block_bytes);
        let feature = |on: bool, name: &'static str| if on { name } else { "" };
        let features = [
            feature(superblock.incompat.contains(Incompat::EMBED), "embed"),
            feature(superblock.incompat.contains(Incompat::INLINE), "inline"),
        ];
        let mut features: Vec<_> =
            features.into_iter().filter(|name| !name.is_empty()).map(String::from).collect();
        if superblock.incompat.contains(Incompat::CLUSTERS) {
            features.push(format!("compression {}", superblock.compression));
        }
        if superblock.incompat.contains(Incompat::JOURNAL) {
            let bytes = u64::from(superblock.journal.blocks) * u64::from(superblock.block_bytes);
            features.push(format!("a journal of {}", size::show(bytes)));
        }
        say!(
            "{}: {} in blocks of {}, fragments of {}, segments of {}; {}; UUID {}",
            self.target.display(),
            size::show(bytes),
            size::show(superblock.block_bytes.into()),
            size::show(superblock.fragment_bytes.into()),
            size::show(superblock.segment_bytes.into()),
            if features.is_empty() { String::from("no features") } else { features.join(", ") },
            uuid::Uuid::from_bytes(superblock.uuid),
        )?;
        let sibling = cffs::files::journal_file(&self.target);
        if let Some(path) = self.journal_device.as_ref().filter(|path| path.is_file())
            && path.canonicalize().ok() != sibling.canonicalize().ok()
        {
            note!(
                "cffs mkfs: the journal is found by itself only in {}; elsewhere, name it when you mount: -o \
                 journal-device={}",
                sibling.display(),
                path.display()
            );
        }
        Ok(())
    }
}

/// The smallest and the largest default journal, in bytes.
const DEFAULT_JOURNAL_BYTES: std::ops::RangeInclusive<u64> = 8 << 20..=60 << 20;
/// The default journal is at most this fraction of the volume.
const DEFAULT_JOURNAL_SHARE: u64 = 64;

/// The default journal of a volume on a rotating disk; 0 for none.
fn default_journal_bytes(volume_bytes: u64) -> u64 {
    let share = volume_bytes / DEFAULT_JOURNAL_SHARE;
    if share < *DEFAULT_JOURNAL_BYTES.start() { 0 } else { share.min(*DEFAULT_JOURNAL_BYTES.end()) }
}
