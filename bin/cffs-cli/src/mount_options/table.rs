//! Every mount option: one entry has its names, its help, its parser, and its handling in a remount.
//!
//! Parsing, `remount`, `--help` and the man pages cffs-mount(1) and mount.cffs(8) read this table.

use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use cffs::vfs::types::{AtimeMode, ErrorsPolicy, JournalMode};
use cffs_serve::fuse::TransportChoice;

use super::given::Given;
use super::{Flags, MountOptions};
use crate::output::printable;
use crate::size;

/// The default polling interval of a followed volume.
const FOLLOW: Duration = Duration::from_secs(10);
/// The default delay of `regroup=idle`.
const IDLE: Duration = Duration::from_secs(60);
/// Smaller values probably lack a unit.
const CACHE_BYTES_MIN: u64 = 1 << 20;
const DIRTY_BYTES_MIN: u64 = 64 << 10;

/// An option of `-o`.
pub(super) struct MountOption {
    /// Its spellings. The first is the name under which a server reports it.
    pub names: &'static [&'static str],
    /// The left column of the help.
    pub term: &'static str,
    /// The right column; a newline begins a new line there.
    pub help: &'static str,
    /// Whether `cffs serve` uses it as well.
    pub for_serve: bool,
    pub effect: Effect,
}

/// The effect of an option, which determines its handling in a remount.
#[derive(Clone, Copy)]
pub(super) enum Effect {
    /// Sets a flag of the kernel's mount, given the spelling. A remount changes the flag at once.
    Flag(fn(&mut Flags, &str)),
    /// Configures the server, and does not change while it runs. A remount refuses values other than the one
    /// that `show` returned, in the option's syntax, when the server started.
    Kept { set: Set, show: fn(&MountOptions) -> String },
    /// Requests a remount.
    Remount,
}

type Set = fn(&mut MountOptions, &Given<'_>) -> anyhow::Result<()>;

impl MountOption {
    pub fn spelled(name: &str) -> Option<&'static MountOption> {
        TABLE.iter().find(|option| option.names.contains(&name))
    }

    pub fn name(&self) -> &'static str {
        self.names[0]
    }
}

/// The options that a remount changes, for messages.
pub fn changeable() -> String {
    let changeable = TABLE.iter().filter(|option| matches!(option.effect, Effect::Flag(_)));
    let terms: Vec<&str> = changeable.map(|option| option.term).collect();
    terms.join(", ")
}

/// Spellings that are refused for an ordinary user's mount.
pub(super) const FOR_ROOT: [&str; 3] = ["suid", "dev", "nosymfollow"];

const ERRORS: [(&str, ErrorsPolicy); 2] =
    [("continue", ErrorsPolicy::Continue), ("remount-ro", ErrorsPolicy::RemountReadOnly)];
const JOURNAL: [(&str, JournalMode); 3] =
    [("on", JournalMode::On), ("off", JournalMode::Off), ("none", JournalMode::None)];
const TRANSPORT: [(&str, TransportChoice); 3] = [
    ("auto", TransportChoice::Auto),
    ("rings", TransportChoice::Uring),
    ("dev", TransportChoice::Dev),
];
const FUSEBLK: [(&str, bool); 2] = [("auto", true), ("no", false)];

/// All options, in the order of the help.
pub(super) static TABLE: &[MountOption] = &[
    MountOption {
        names: &["ro", "rw"],
        term: "ro, rw",
        help: "read-only or read-write",
        for_serve: true,
        effect: Effect::Flag(|flags, name| flags.read_only = Some(name == "ro")),
    },
    MountOption {
        names: &["atime", "relatime", "strictatime", "noatime"],
        term: "relatime, strictatime, noatime",
        help: "when reading a file sets its access time (relatime; noatime for a volume in an object \
               store)",
        for_serve: true,
        effect: Effect::Kept {
            set: |options, given| {
                options.open.atime = match given.mount_flag()? {
                    "noatime" => AtimeMode::Never,
                    "strictatime" => AtimeMode::Strict,
                    _ => AtimeMode::Relative,
                };
                Ok(())
            },
            show: |options| options.open.atime.name().to_owned(),
        },
    },
    MountOption {
        names: &["sync", "dirsync", "async"],
        term: "sync",
        help: "every change is durable before its call returns",
        for_serve: true,
        effect: Effect::Kept {
            set: |options, given| {
                options.open.sync = given.flag()? != "async";
                Ok(())
            },
            show: |options| one_or_other(options.open.sync, "sync", "async"),
        },
    },
    MountOption {
        names: &["discard", "nodiscard"],
        term: "[no]discard",
        help: "discard freed blocks, so that an image shrinks on its host (nodiscard; cffs trim does it \
               once)",
        for_serve: true,
        effect: Effect::Kept {
            set: |options, given| {
                options.open.discard = given.flag()? == "discard";
                Ok(())
            },
            show: |options| one_or_other(options.open.discard, "discard", "nodiscard"),
        },
    },
    MountOption {
        names: &["cache"],
        term: "cache=SIZE",
        help: "memory for cached data (256M; 1M or more)",
        for_serve: true,
        effect: Effect::Kept {
            set: |options, given| {
                given.bytes_from(CACHE_BYTES_MIN).map(|it| options.open.cache_bytes = it)
            },
            show: |options| format!("cache={}", size::exact(options.open.cache_bytes)),
        },
    },
    MountOption {
        names: &["dirty"],
        term: "dirty=SIZE",
        help: "memory for changes, beyond which they are written immediately (64M; 64k or more)",
        for_serve: true,
        effect: Effect::Kept {
            set: |options, given| {
                given.bytes_from(DIRTY_BYTES_MIN).map(|it| options.open.dirty_bytes_max = it)
            },
            show: |options| format!("dirty={}", size::exact(options.open.dirty_bytes_max)),
        },
    },
    MountOption {
        names: &["commit"],
        term: "commit=SECONDS",
        help: "how many seconds changes stay in memory otherwise, from 0.001 (5)",
        for_serve: true,
        effect: Effect::Kept {
            set: |options, given| {
                given.fraction_of_seconds().map(|it| options.open.epoch_interval = it)
            },
            show: |options| seconds_or_never("commit", Some(options.open.epoch_interval)),
        },
    },
    MountOption {
        names: &["regroup"],
        term: "regroup=idle|use|SECONDS|use:SECONDS|never",
        help: "after this many seconds without use (idle: 60), move scattered files together until the \
               volume is used again (never; cffs regroup does it once); use: also observe which files are \
               read together, and move these together first",
        for_serve: false,
        effect: Effect::Kept {
            set: |options, given| {
                let text = given.text()?;
                let of_use = text.strip_prefix("use:");
                options.open.observe = text == "use" || of_use.is_some();
                options.regroup_after = match text {
                    "never" => None,
                    "idle" | "use" => Some(IDLE),
                    _ => {
                        let value = Some(of_use.unwrap_or(text).as_ref());
                        Some(Given { value, ..*given }.seconds()?)
                    }
                };
                Ok(())
            },
            show: |options| match (options.open.observe, options.regroup_after) {
                (true, Some(after)) => format!("regroup=use:{}", after.as_secs()),
                (_, after) => seconds_or_never("regroup", after),
            },
        },
    },
    MountOption {
        names: &["clean"],
        term: "clean=SECONDS|never",
        help: "how many seconds after the last change, from 1, the volume is completed and marked clean, so \
               that a crash leaves nothing to recover (10)",
        for_serve: true,
        effect: Effect::Kept {
            set: |options, given| {
                let is_never = given.value == Some("never".as_ref());
                options.open.clean_after =
                    if is_never { Duration::MAX } else { given.seconds()? };
                Ok(())
            },
            show: |options| seconds_or_never("clean", Some(options.open.clean_after)),
        },
    },
    MountOption {
        names: &["clean_share"],
        term: "clean_share=PERCENT",
        help: "the largest percentage of time that this may take (10)",
        for_serve: true,
        effect: Effect::Kept {
            set: |options, given| given.percent().map(|it| options.open.clean_share_percent = it),
            show: |options| format!("clean_share={}", options.open.clean_share_percent),
        },
    },
    MountOption {
        names: &["errors"],
        term: "errors=continue|remount-ro",
        help: "on damage, only the call that found it fails, or all changes are refused from then on (the \
               volume's own setting, otherwise continue)",
        for_serve: true,
        effect: Effect::Kept {
            set: |options, given| given.one_of(&ERRORS).map(|it| options.open.errors = it),
            show: |options| word_or("errors", "default", &ERRORS, options.open.errors),
        },
    },
    MountOption {
        names: &["journal"],
        term: "journal=on|off|none",
        help: "on (the default): an fsync writes to the journal, if the volume has one (cffs mkfs \
               --journal)\n\
               off: an fsync writes in phases, with two flushes or more\n\
               none: like off, and the journal's device may be missing if the journal is empty",
        for_serve: true,
        effect: Effect::Kept {
            set: |options, given| given.one_of(&JOURNAL).map(|it| options.open.journal = it),
            show: |options| word_or("journal", "on", &JOURNAL, options.open.journal),
        },
    },
    MountOption {
        names: &["journal-device"],
        term: "journal-device=DEVICE",
        help: "the device or file of the journal (by default a file with the name of the image and .journal \
               added, or the block device with the journal's UUID)",
        for_serve: true,
        effect: Effect::Kept {
            set: |options, given| given.path().map(|it| options.journal_device = Some(it)),
            show: |options| {
                path_or("journal-device=auto", "journal-device", &options.journal_device)
            },
        },
    },
    MountOption {
        names: &["allow_other", "noallow_other"],
        term: "[no]allow_other",
        help: "whether other users have access (for root's mounts yes, otherwise no)",
        for_serve: false,
        effect: Effect::Kept {
            set: |options, given| {
                options.allow_other = given.flag()? == "allow_other";
                Ok(())
            },
            show: |options| one_or_other(options.allow_other, "allow_other", "noallow_other"),
        },
    },
    MountOption {
        names: &["suid", "nosuid", "dev", "nodev", "exec", "noexec", "symfollow", "nosymfollow"],
        term: "[no]suid, [no]dev, [no]exec, [no]symfollow",
        help: "as for mount(8); suid, dev and nosymfollow only for root",
        for_serve: false,
        effect: Effect::Flag(|flags, name| {
            let (flag, is_on) = name.strip_prefix("no").map_or((name, true), |flag| (flag, false));
            let flag = match flag {
                "suid" => &mut flags.suid,
                "dev" => &mut flags.dev,
                "exec" => &mut flags.exec,
                _ => &mut flags.symlink_follow,
            };
            *flag = Some(is_on);
        }),
    },
    MountOption {
        names: &["user", "users", "owner", "group"],
        term: "user, users, owner, group",
        help: "imply nosuid and nodev, and user and users noexec, unless later options say otherwise",
        for_serve: false,
        effect: Effect::Flag(|flags, name| {
            (flags.suid, flags.dev) = (Some(false), Some(false));
            if matches!(name, "user" | "users") {
                flags.exec = Some(false);
            }
        }),
    },
    MountOption {
        names: &["takeover"],
        term: "takeover",
        help: "open the volume even if it is marked as in use by another host, or by a process without a \
                              lock: only if that host or process is certainly gone",
        for_serve: true,
        effect: Effect::Kept {
            set: |options, given| {
                given.flag()?;
                options.open.take_over = true;
                Ok(())
            },
            show: |options| one_or_other(options.open.take_over, "takeover", "no takeover"),
        },
    },
    MountOption {
        names: &["remount"],
        term: "remount",
        help: "change ro, rw, suid, dev, exec and symfollow of an existing mount (root); a new value of any \
               other option is refused, naming it",
        for_serve: false,
        effect: Effect::Remount,
    },
    MountOption {
        names: &["fuseblk"],
        term: "fuseblk=auto|no",
        help: "whether root's mount is on a block device, for an image on a loop device: then sync(2) and \
               syncfs(2) reach the volume (Linux 6.18), and umount(8) returns when the image is complete; in \
               a container the mount is not on a block device (auto)",
        for_serve: false,
        effect: Effect::Kept {
            set: |options, given| given.one_of(&FUSEBLK).map(|it| options.block_device &= it),
            show: |options| one_or_other(options.block_device, "fuseblk=auto", "fuseblk=no"),
        },
    },
    MountOption {
        names: &["logfile"],
        term: "logfile=FILE",
        help: "log to this file instead of the system's log",
        for_serve: true,
        effect: Effect::Kept {
            set: |options, given| given.path().map(|it| options.logfile = Some(it)),
            show: |options| path_or("logfile=system", "logfile", &options.logfile),
        },
    },
    MountOption {
        names: &["stall"],
        term: "stall=SECONDS",
        help: "after how many seconds the log reports a request that waits, and the reason (30)",
        for_serve: false,
        effect: Effect::Kept {
            set: |options, given| given.seconds().map(|it| options.stall = it),
            show: |options| seconds_or_never("stall", Some(options.stall)),
        },
    },
    MountOption {
        names: &["soft"],
        term: "soft=SECONDS",
        help: "give up a commit to an object store after this many seconds, from 1 to 3600; the fsync or \
               sync that waits for it fails with EIO, and all later changes fail with EROFS until the volume \
               is mounted again (retry forever)",
        for_serve: true,
        effect: Effect::Kept {
            set: |options, given| given.seconds().map(|it| options.soft = Some(it)),
            show: |options| seconds_or_never("soft", options.soft),
        },
    },
    MountOption {
        names: &["follow"],
        term: "follow[=SECONDS]",
        help: "read-only, show the changes of another program to a volume in an object store, and poll for \
               them at this interval in seconds (10)",
        for_serve: false,
        effect: Effect::Kept {
            set: |options, given| {
                let is_default = given.value.is_none();
                options.follow = Some(if is_default { FOLLOW } else { given.seconds()? });
                Ok(())
            },
            show: |options| seconds_or_never("follow", options.follow),
        },
    },
    MountOption {
        names: &["cache-dir"],
        term: "cache-dir=DIR=SIZE",
        help: "as --cache",
        for_serve: true,
        effect: Effect::Kept {
            set: |options, given| {
                given.directory_and_bytes().map(|it| options.cache_dir = Some(it))
            },
            show: |options| match &options.cache_dir {
                Some((path, bytes)) => {
                    format!("cache-dir={}={}", shown(path), size::exact(*bytes))
                }
                None => String::from("no cache-dir"),
            },
        },
    },
    MountOption {
        names: &["key-file"],
        term: "key-file=FILE",
        help: "as --key-file",
        for_serve: true,
        effect: Effect::Kept {
            set: |options, given| given.path().map(|it| options.key_file = Some(it)),
            show: |options| path_or("no key-file", "key-file", &options.key_file),
        },
    },
    MountOption {
        names: &["staging"],
        term: "staging=DIR",
        help: "as --staging",
        for_serve: true,
        effect: Effect::Kept {
            set: |options, given| given.path().map(|it| options.staging = Some(it)),
            show: |options| path_or("no staging", "staging", &options.staging),
        },
    },
    MountOption {
        names: &["transport"],
        term: "transport=auto|rings|dev",
        help: "how requests reach the server: by io_uring if the kernel supports it, always by io_uring, or \
               by /dev/fuse (auto; for a volume in an object store that is /dev/fuse, where programs that \
               wait for the store can be killed)",
        for_serve: false,
        effect: Effect::Kept {
            set: |options, given| given.one_of(&TRANSPORT).map(|it| options.transport = it),
            show: |options| word_or("transport", "auto", &TRANSPORT, options.transport),
        },
    },
];

fn one_or_other(is_on: bool, on: &str, off: &str) -> String {
    String::from(if is_on { on } else { off })
}

fn seconds_or_never(name: &str, time: Option<Duration>) -> String {
    match time {
        None | Some(Duration::MAX) => format!("{name}=never"),
        Some(time) => format!("{name}={}", time.as_secs_f64()),
    }
}

fn word_or<T: PartialEq>(name: &str, other: &str, words: &[(&str, T)], value: T) -> String {
    let word = words.iter().find(|(_, known)| *known == value).map_or(other, |(word, _)| word);
    format!("{name}={word}")
}

fn path_or(none: &str, name: &str, path: &Option<PathBuf>) -> String {
    match path {
        Some(path) => format!("{name}={}", shown(path)),
        None => String::from(none),
    }
}

/// A path as text, which differs for different paths.
fn shown(path: &Path) -> String {
    printable(path.as_os_str().as_bytes())
}

/// Whether an option is meant for mount(8), systemd or the kernel, which pass it on nevertheless.
pub(super) fn is_for_others(name: &str) -> bool {
    // The kernel always checks permissions on these mounts. It shows the options after `default_permissions`
    // for FUSE mounts, and mount(8) passes them back at a remount.
    const KNOWN: &str = "defaults auto noauto nouser nousers noowner nogroup _netdev nofail comment \
                         nodiratime diratime norelatime nostrictatime subtype fsname silent loud \
                         iversion noiversion lazytime nolazytime default_permissions user_id \
                         group_id max_read blksize";
    KNOWN.split(' ').any(|known| known == name) || name.starts_with("x-") || name.starts_with("X-")
}
