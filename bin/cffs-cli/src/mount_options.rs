//! The options of a mount, after `-o`.
//!
//! [`table`] has one entry for each option: its names, help, parser, and what a remount does with it.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::bail;
use cffs::vfs::types::{AtimeMode, OpenOptions};
use cffs_serve::fuse::{STALL, TransportChoice};

use crate::output::printable;
use crate::working_directory::absolute_argument;
use crate::{image, keys};
use given::Given;
use table::{Effect, MountOption, TABLE};

mod given;
mod help;
mod table;
#[cfg(test)]
mod tests;

pub use help::{help, help_of_serve};
pub use table::changeable;

#[derive(Clone, Debug)]
pub struct MountOptions {
    /// The options for opening the volume.
    pub open: OpenOptions,
    /// Whether users other than the mounter have access.
    pub allow_other: bool,
    /// Flags of the kernel's mount.
    pub flags: Flags,
    is_root: bool,
    /// Whether to change an existing mount instead of mounting.
    pub remount: bool,
    /// Whether to mount a block device, if possible.
    pub block_device: bool,
    pub transport: TransportChoice,
    /// How long a request or the device may take before the log reports the wait and its cause.
    pub stall: Duration,
    /// How long a commit to an object store is retried; `None` for ever.
    pub soft: Option<Duration>,
    /// The interval of polling an object store for another program's changes, if the volume is followed.
    pub follow: Option<Duration>,
    /// The directory on a local disk that caches data read from an object store, and its size limit.
    pub cache_dir: Option<(PathBuf, u64)>,
    /// The file with the key of an encrypted volume in an object store.
    pub key_file: Option<PathBuf>,
    /// The directory on a local disk for staged syncs.
    pub staging: Option<PathBuf>,
    /// The device with the volume's journal; searched for if `None`.
    pub journal_device: Option<PathBuf>,
    /// How long the volume must be idle before it is regrouped; `None` for never.
    pub regroup_after: Option<Duration>,
    /// The file for messages, instead of the system's log.
    pub logfile: Option<PathBuf>,
    /// The [names](MountOption::name)s of the options that were given.
    given: BTreeSet<&'static str>,
}

/// Flags of the kernel's mount; `None` where an option was not given.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Flags {
    /// Whether writes are refused.
    pub read_only: Option<bool>,
    /// Whether set-id bits are honoured; by default on root's mounts.
    pub suid: Option<bool>,
    /// Whether device files work; by default on root's mounts.
    pub dev: Option<bool>,
    /// Whether programs can be executed; true by default.
    pub exec: Option<bool>,
    /// Whether symbolic links are followed; true by default.
    pub symlink_follow: Option<bool>,
}

impl MountOptions {
    /// The defaults: for root those of mount(8), for others those of fusermount3.
    pub fn for_user(is_root: bool) -> MountOptions {
        MountOptions {
            open: OpenOptions::default(),
            allow_other: is_root,
            flags: Flags::default(),
            is_root,
            remount: false,
            block_device: is_root,
            transport: TransportChoice::Auto,
            stall: STALL,
            soft: None,
            follow: None,
            cache_dir: None,
            key_file: None,
            staging: None,
            journal_device: None,
            regroup_after: None,
            logfile: None,
            given: BTreeSet::new(),
        }
    }

    /// Whether set-id bits are honoured.
    pub fn suid(&self) -> bool {
        self.flags.suid.unwrap_or(self.is_root)
    }

    /// Whether device files work.
    pub fn dev(&self) -> bool {
        self.flags.dev.unwrap_or(self.is_root)
    }

    /// Applies lists of options; later ones win. An unknown option is an error unless `sloppy`.
    pub fn apply(&mut self, lists: &[impl AsRef<OsStr>], sloppy: bool) -> anyhow::Result<()> {
        let lists = lists.iter().flat_map(|list| list.as_ref().as_bytes().split(|b| *b == b','));
        for option in lists.filter(|option| !option.is_empty()) {
            let given = Given::parse(option);
            match MountOption::spelled(given.name) {
                Some(option) => {
                    self.apply_one(option, &Given { term: option.term, ..given })?;
                }
                None if sloppy || table::is_for_others(given.name) => {}
                None => {
                    bail!(
                        "unknown mount option '{}'; `cffs mount --help` lists the options",
                        printable(option)
                    )
                }
            }
        }
        Ok(())
    }

    fn apply_one(&mut self, option: &MountOption, given: &Given<'_>) -> anyhow::Result<()> {
        if !self.is_root && table::FOR_ROOT.contains(&given.name) {
            bail!(
                "mount option '{}' is for root: a mount of an ordinary user cannot have it",
                given.name
            );
        }
        match option.effect {
            Effect::Flag(set) => {
                set(&mut self.flags, given.mount_flag()?);
                self.open.read_only = self.flags.read_only == Some(true);
            }
            Effect::Kept { set, .. } => set(self, given)?,
            Effect::Remount => {
                given.flag()?;
                self.remount = true;
            }
        }
        self.given.insert(option.name());
        Ok(())
    }

    /// Takes the directories of `--cache` and `--staging`, and completes the options for a source. A version
    /// of a volume is opened for reading.
    ///
    /// # Errors
    ///
    /// Invalid directories and URLs, and options that do not fit the source or each other.
    pub fn settle_for(
        &mut self,
        source: &Path,
        cache: Option<&OsStr>,
        staging: Option<&Path>,
    ) -> anyhow::Result<()> {
        if let Some(cache) = cache {
            self.set_cache_dir(cache)?;
        }
        if let Some(staging) = staging {
            self.set_staging(staging)?;
        }
        keys::name_by_option(self.key_file.as_deref())?;
        let location = image::place(source)?;
        if location.as_ref().is_some_and(|location| location.version().is_some()) {
            self.open.read_only = true;
        }
        self.settle(location.is_some())
    }

    /// Applies implied options for a volume in an object store or outside one.
    ///
    /// # Errors
    ///
    /// Fails for incompatible options.
    pub fn settle(&mut self, is_in_store: bool) -> anyhow::Result<()> {
        if self.cache_dir.is_some() && !is_in_store {
            bail!("mount option 'cache-dir' is for a volume in an object store, given by its URL");
        }
        if self.key_file.is_some() && !is_in_store {
            bail!("mount option 'key-file' is for a volume in an object store, given by its URL");
        }
        if !is_in_store {
            keys::check_none_named()?;
        }
        if self.staging.is_some() && (!is_in_store || self.open.read_only) {
            bail!(
                "mount option 'staging' is for a volume in an object store that is written, given by its URL"
            );
        }
        // A scan of such a volume would write the inodes of everything that it reads (decision 013).
        if is_in_store && !self.given.contains("atime") {
            self.open.atime = AtimeMode::Never;
        }
        if self.follow.is_none() {
            return Ok(());
        }
        if !is_in_store {
            bail!("mount option 'follow' is for a volume in an object store, given by its URL");
        }
        if self.flags.read_only == Some(false) {
            bail!(
                "mount option 'follow' is for reading a volume that another program writes: leave out 'rw'"
            );
        }
        self.open.read_only = true;
        Ok(())
    }

    /// Applies `DIR=SIZE`, the value of the option `cache-dir`.
    pub fn set_cache_dir(&mut self, value: &OsStr) -> anyhow::Result<()> {
        const NAME: &str = "cache-dir";
        let given = Given { name: NAME, value: Some(value), term: NAME };
        self.cache_dir = Some(given.directory_and_bytes()?);
        self.given.insert(NAME);
        Ok(())
    }

    /// Applies the directory of the option `staging`.
    pub fn set_staging(&mut self, directory: &Path) -> anyhow::Result<()> {
        // The server changes its working directory.
        self.staging = Some(absolute_argument(directory)?);
        self.given.insert("staging");
        Ok(())
    }

    /// All options that the server keeps while it runs, by name, in their syntax.
    pub fn kept(&self) -> BTreeMap<String, String> {
        let kept = TABLE.iter().filter_map(|option| match option.effect {
            Effect::Kept { show, .. } => Some((String::from(option.name()), show(self))),
            Effect::Flag(_) | Effect::Remount => None,
        });
        kept.collect()
    }

    /// The subset of [`MountOptions::kept`] that was given.
    pub fn kept_and_given(&self) -> BTreeMap<String, String> {
        let mut kept = self.kept();
        kept.retain(|name, _| self.given.contains(name.as_str()));
        kept
    }
}
