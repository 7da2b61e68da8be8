//! What follows `-o`.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{anyhow, bail};
use cffs::vfs::types::{AtimeMode, ErrorsPolicy, OpenOptions, StableLog};

use cffs_serve::fuse::{STALL, TransportChoice};

use crate::size;

mod fixed;
#[cfg(test)]
mod tests;

/// The options of a mount.
#[derive(Clone, Debug)]
pub struct MountOptions {
    /// How the volume is opened.
    pub open: OpenOptions,
    /// Users other than the mounter may enter.
    pub allow_other: bool,
    /// What the kernel watches over.
    pub flags: Flags,
    /// When a read sets the time of access, if that was asked for.
    pub atime: Option<AtimeMode>,
    is_root: bool,
    /// The mount is there already; the kernel's options of it change.
    pub remount: bool,
    /// Whether to mount a block device where that can be had.
    pub block_device: bool,
    /// How requests are to arrive.
    pub transport: TransportChoice,
    /// How long something may take before the log says what waits for what.
    pub stall: Duration,
    /// How long a commit to an object store is tried, instead of for ever.
    pub soft: Option<Duration>,
    /// How often to ask an object store for what another program wrote to the volume, if it is followed.
    pub follow: Option<Duration>,
    /// Where on a local disk to keep what was read of an object store, and how much.
    pub cache_dir: Option<(PathBuf, u64)>,
    /// Where on a local disk what is synced waits until an object store has it.
    pub staging: Option<PathBuf>,
    /// The device that has the volume's stable log, instead of one that is searched for.
    pub log_device: Option<PathBuf>,
    /// How long nobody must have used the volume before it is regrouped; `None` for never.
    pub regroup_after: Option<Duration>,
    /// Where to log, instead of the system's log.
    pub log: Option<PathBuf>,
    /// The names of the options asked for that a remount cannot change.
    asked: BTreeSet<&'static str>,
}

/// How often a volume is asked for what is new.
const FOLLOW: Duration = Duration::from_secs(10);
/// How long a volume is not used before it counts as idle.
const IDLE: Duration = Duration::from_secs(60);

/// Less memory than this serves no volume: a number without its unit, most likely.
const CACHE_BYTES_MIN: u64 = 1 << 20;
const DIRTY_BYTES_MIN: u64 = 64 << 10;

/// What the kernel watches over, as far as it was asked for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Flags {
    /// No writes.
    pub read_only: Option<bool>,
    /// Set-id bits are honoured; by default on root's mounts.
    pub suid: Option<bool>,
    /// Device files work; by default on root's mounts.
    pub dev: Option<bool>,
    /// Programs can be executed, which is the default.
    pub exec: Option<bool>,
    /// Symbolic links are followed, which is the default.
    pub symlink_follow: Option<bool>,
}

impl MountOptions {
    /// The defaults: for root those of mount(8), for others those of fusermount3.
    pub fn for_user(is_root: bool) -> MountOptions {
        MountOptions {
            open: OpenOptions::default(),
            allow_other: is_root,
            flags: Flags::default(),
            atime: None,
            is_root,
            remount: false,
            block_device: is_root,
            transport: TransportChoice::Auto,
            stall: STALL,
            soft: None,
            follow: None,
            cache_dir: None,
            staging: None,
            log_device: None,
            regroup_after: None,
            log: None,
            asked: BTreeSet::new(),
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

    /// Takes over lists of options; later ones win. Unless `sloppy`, an option that is not known
    /// is an error.
    pub fn apply(&mut self, lists: &[String], sloppy: bool) -> anyhow::Result<()> {
        for option in lists.iter().flat_map(|list| list.split(',')).filter(|o| !o.is_empty()) {
            let (name, value) = match option.split_once('=') {
                Some((name, value)) => (name, Some(value)),
                None => (option, None),
            };
            if !self.apply_one(name, value)? && !is_for_others(name) && !sloppy {
                bail!("unknown mount option '{option}'; `cffs mount --help` lists those there are");
            }
            self.asked.extend(fixed::name_of(name));
        }
        Ok(())
    }

    /// What follows from what was asked for, of a volume in a store or not.
    ///
    /// # Errors
    ///
    /// Options that do not go together.
    pub fn settle(&mut self, is_in_store: bool) -> anyhow::Result<()> {
        if self.cache_dir.is_some() && !is_in_store {
            bail!("mount option 'cache-dir' is for a volume in an object store, given by its URL");
        }
        if self.staging.is_some() && (!is_in_store || self.open.read_only) {
            bail!(
                "mount option 'staging' is for a volume in an object store that is written, given by its URL"
            );
        }
        // A scan of such a volume would send the names and inodes of all that it reads (decision 013).
        if is_in_store && self.atime.is_none() {
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
                "mount option 'follow' is for reading what another program writes: leave 'rw' out"
            );
        }
        self.open.read_only = true;
        Ok(())
    }

    /// Takes over `DIR=SIZE` of the option `cache-dir`.
    pub fn set_cache_dir(&mut self, value: &str) -> anyhow::Result<()> {
        self.cache_dir = Some(directory_of_size("cache-dir", value)?);
        self.asked.insert("cache-dir");
        Ok(())
    }

    /// Takes over the directory of the option `staging`.
    pub fn set_staging(&mut self, directory: &Path) -> anyhow::Result<()> {
        // The server leaves the directory in which it was started.
        self.staging = Some(std::path::absolute(directory)?);
        self.asked.insert("staging");
        Ok(())
    }

    fn set_atime(&mut self, mode: AtimeMode) {
        self.open.atime = mode;
        self.atime = Some(mode);
    }

    /// Applies one option; false if it is not known.
    fn apply_one(&mut self, name: &str, value: Option<&str>) -> anyhow::Result<bool> {
        let needed = || value.ok_or_else(|| anyhow!("mount option '{name}' needs a value"));
        match name {
            "ro" | "rw" => {
                self.open.read_only = name == "ro";
                self.flags.read_only = Some(self.open.read_only);
            }
            "noatime" => self.set_atime(AtimeMode::Never),
            "relatime" | "atime" => self.set_atime(AtimeMode::Relative),
            "strictatime" => self.set_atime(AtimeMode::Strict),
            "sync" | "dirsync" => self.open.sync = true,
            "async" => self.open.sync = false,
            "discard" => self.open.discard = true,
            "nodiscard" => self.open.discard = false,
            "suid" | "dev" | "nosymfollow" if !self.is_root => bail!(
                "mount option '{name}' is for root: a mount of an ordinary user cannot have it"
            ),
            "suid" | "nosuid" => self.flags.suid = Some(name == "suid"),
            "dev" | "nodev" => self.flags.dev = Some(name == "dev"),
            "exec" | "noexec" => self.flags.exec = Some(name == "exec"),
            "symfollow" | "nosymfollow" => self.flags.symlink_follow = Some(name == "symfollow"),
            "allow_other" => self.allow_other = true,
            "noallow_other" => self.allow_other = false,
            // The kernel always checks permissions here.
            "default_permissions" => {}
            "cache" => self.open.cache_bytes = at_least(CACHE_BYTES_MIN, name, needed()?)?,
            "dirty" => self.open.dirty_bytes_max = at_least(DIRTY_BYTES_MIN, name, needed()?)?,
            "commit" => self.open.epoch_interval = fraction(name, needed()?)?,
            "stall" => self.stall = seconds(name, needed()?)?,
            "soft" => self.soft = Some(seconds(name, needed()?)?),
            "follow" => self.follow = Some(value.map_or(Ok(FOLLOW), |value| seconds(name, value))?),
            "cache-dir" => self.cache_dir = Some(directory_of_size(name, needed()?)?),
            "staging" => self.set_staging(Path::new(needed()?))?,
            "remount" => self.remount = true,
            "takeover" => self.open.take_over = true,
            "clean" if value == Some("never") => self.open.clean_after = Duration::MAX,
            "clean" => self.open.clean_after = seconds(name, needed()?)?,
            "clean_share" => self.open.clean_share_percent = percent(name, needed()?)?,
            "errors" => {
                self.open.errors = match needed()? {
                    "continue" => ErrorsPolicy::Continue,
                    "remount-ro" => ErrorsPolicy::RemountReadOnly,
                    other => {
                        bail!("mount option 'errors' is 'continue' or 'remount-ro', not '{other}'")
                    }
                }
            }
            "stable" => self.open.stable = stable(needed()?)?,
            // The server leaves the directory in which it was started.
            "log-device" => self.log_device = Some(std::path::absolute(needed()?)?),
            "regroup" => self.regroup_after = idle_time(name, needed()?)?,
            "log" => self.log = Some(PathBuf::from(needed()?)),
            "transport" => {
                self.transport = match needed()? {
                    "auto" => TransportChoice::Auto,
                    "rings" => TransportChoice::Uring,
                    "dev" => TransportChoice::Dev,
                    other => {
                        bail!("mount option 'transport' is 'auto', 'rings' or 'dev', not '{other}'")
                    }
                }
            }
            "fuseblk" => {
                self.block_device &= match needed()? {
                    "auto" => true,
                    "no" => false,
                    other => bail!("mount option 'fuseblk' is 'auto' or 'no', not '{other}'"),
                }
            }
            // What mount(8) implies by these, unless later options say otherwise.
            "user" | "users" | "owner" | "group" => {
                (self.flags.suid, self.flags.dev) = (Some(false), Some(false));
                if matches!(name, "user" | "users") {
                    self.flags.exec = Some(false);
                }
            }
            _ => return Ok(false),
        }
        Ok(true)
    }
}

/// Options that are meant for mount(8), systemd and the like, which pass them on all the same.
fn is_for_others(name: &str) -> bool {
    let known = [
        "defaults",
        "auto",
        "noauto",
        "nouser",
        "nousers",
        "noowner",
        "nogroup",
        "_netdev",
        "nofail",
        "comment",
        "nodiratime",
        "diratime",
        "norelatime",
        "nostrictatime",
        "subtype",
        "fsname",
        // What the kernel shows of a FUSE mount, which mount(8) hands back at a remount.
        "user_id",
        "group_id",
        "max_read",
        "blksize",
        "silent",
        "loud",
        "iversion",
        "noiversion",
        "lazytime",
        "nolazytime",
    ];
    known.contains(&name) || name.starts_with("x-") || name.starts_with("X-")
}

fn stable(value: &str) -> anyhow::Result<StableLog> {
    match value {
        "on" => Ok(StableLog::On),
        "off" => Ok(StableLog::Off),
        "none" => Ok(StableLog::None),
        other => bail!("mount option 'stable' is 'on', 'off' or 'none', not '{other}'"),
    }
}

fn bytes(name: &str, value: &str) -> anyhow::Result<u64> {
    size::parse(value).map_err(|why| anyhow!("mount option '{name}': {why}"))
}

fn at_least(min: u64, name: &str, value: &str) -> anyhow::Result<u64> {
    match bytes(name, value)? {
        bytes if bytes < min => bail!(
            "mount option '{name}' is a size of {} or more, such as 64M, not '{value}'",
            size::show(min)
        ),
        bytes => Ok(bytes),
    }
}

fn directory_of_size(name: &str, value: &str) -> anyhow::Result<(PathBuf, u64)> {
    let wrong = || anyhow!("mount option '{name}' is DIR=SIZE, not '{value}'");
    let (directory, size) = value.rsplit_once('=').ok_or_else(wrong)?;
    if directory.is_empty() {
        return Err(wrong());
    }
    // The server leaves the directory in which it was started.
    Ok((std::path::absolute(directory)?, bytes(name, size)?))
}

fn seconds(name: &str, value: &str) -> anyhow::Result<Duration> {
    match value.parse() {
        Ok(seconds @ 1..=3600) => Ok(Duration::from_secs(seconds)),
        _ => bail!("mount option '{name}' is a number of seconds from 1 to 3600, not '{value}'"),
    }
}

/// Seconds with a fraction, down to a millisecond: tests of epochs that follow each other closely need it.
fn fraction(name: &str, value: &str) -> anyhow::Result<Duration> {
    match value.parse() {
        Ok(seconds @ 0.001..=3600.0) => Ok(Duration::from_secs_f64(seconds)),
        _ => {
            bail!("mount option '{name}' is a number of seconds from 0.001 to 3600, not '{value}'")
        }
    }
}

fn idle_time(name: &str, value: &str) -> anyhow::Result<Option<Duration>> {
    Ok(match value {
        "never" => None,
        "idle" => Some(IDLE),
        value => Some(seconds(name, value)?),
    })
}

fn percent(name: &str, value: &str) -> anyhow::Result<u32> {
    match value.parse() {
        Ok(percent @ 1..=100) => Ok(percent),
        _ => bail!("mount option '{name}' is a number from 1 to 100, not '{value}'"),
    }
}
