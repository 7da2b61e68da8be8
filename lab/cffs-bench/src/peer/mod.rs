//! The file systems that are compared: how each is created, mounted and made durable.
//!
//! Every peer gets the same emulated disk below the same kind of loop device. It is created with the defaults
//! of its tools, and mounted with `noatime` and its defaults otherwise. A read-only file system is made of
//! the files that a workload has prepared in memory. Offers [`Peer`], which names a file system, and
//! [`Volume`], a mounted one.

mod transport;
mod volume;

use std::fmt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::str::FromStr;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use serde::{Deserialize, Serialize};

use crate::disk::Profile;
pub use transport::Transport;
pub use volume::{Volume, VolumeSpec};

/// A file system, or a variant of C-FFS.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(into = "String", try_from = "String")]
pub enum Peer {
    /// C-FFS with the defaults of `cffs mkfs`.
    Cffs,
    /// C-FFS with inodes in a table of their own.
    CffsNoEmbed,
    /// C-FFS that keeps small contents in blocks.
    CffsNoInline,
    /// C-FFS that places each file by itself.
    CffsNoGroups,
    /// C-FFS with all of these switched off, and with the layout of a file server in use: the plain FFS that
    /// USENIX'97 compares with.
    CffsPlain,
    /// The same, but each file takes the first free place: the plain FFS that the thesis compares with.
    CffsFirstFit,
    /// C-FFS that compresses the contents of neighbouring files together.
    CffsCompressed,
    /// C-FFS without a journal.
    CffsNoJournal,
    /// C-FFS with a journal of 60 MiB on a device without delays.
    CffsJournalDevice,
    /// Linux ext4.
    Ext4,
    /// Linux XFS.
    Xfs,
    /// Linux btrfs.
    Btrfs,
    /// Linux btrfs, mounted with `compress=zstd:1`.
    BtrfsCompressed,
    /// Linux squashfs with Zstandard: read-only, so a bound for reading.
    Squashfs,
    /// Linux EROFS with LZ4 in clusters of 64 KiB: read-only, so a bound for reading.
    Erofs,
    /// A FUSE server in memory that does nothing else: an upper bound for every FUSE server.
    Null,
    /// C-FFS as a library inside the process: no system call per operation.
    Library,
}

impl Peer {
    /// All peers, in the order of the reports.
    pub const ALL: [Peer; 17] = [
        Peer::Cffs,
        Peer::CffsCompressed,
        Peer::Ext4,
        Peer::Xfs,
        Peer::Btrfs,
        Peer::BtrfsCompressed,
        Peer::Squashfs,
        Peer::Erofs,
        Peer::Null,
        Peer::Library,
        Peer::CffsNoEmbed,
        Peer::CffsNoInline,
        Peer::CffsNoGroups,
        Peer::CffsPlain,
        Peer::CffsFirstFit,
        Peer::CffsNoJournal,
        Peer::CffsJournalDevice,
    ];

    /// The peers that show the gain of a journal.
    pub const OF_THE_JOURNAL: [Peer; 6] = [
        Peer::Cffs,
        Peer::CffsNoJournal,
        Peer::CffsJournalDevice,
        Peer::Ext4,
        Peer::Xfs,
        Peer::Btrfs,
    ];

    /// The peers that have bars for a device.
    pub fn of_the_bars(profile: Profile) -> Vec<Peer> {
        match profile {
            Profile::None => vec![Peer::Cffs, Peer::Ext4, Peer::Null, Peer::Library],
            Profile::St31200 | Profile::AtlasIi => vec![
                Peer::Cffs,
                Peer::CffsNoEmbed,
                Peer::CffsNoInline,
                Peer::CffsNoGroups,
                Peer::CffsPlain,
            ],
            _ => vec![Peer::Cffs, Peer::Ext4, Peer::Xfs, Peer::Btrfs, Peer::Null],
        }
    }

    /// The name on the command line and in reports.
    pub fn name(self) -> &'static str {
        match self {
            Peer::Cffs => "cffs",
            Peer::CffsNoEmbed => "cffs^embed",
            Peer::CffsNoInline => "cffs^inline",
            Peer::CffsNoGroups => "cffs^groups",
            Peer::CffsPlain => "cffs-plain",
            Peer::CffsFirstFit => "cffs-first-fit",
            Peer::CffsCompressed => "cffs+zstd",
            Peer::CffsNoJournal => "cffs^journal",
            Peer::CffsJournalDevice => "cffs+journal-device",
            Peer::Ext4 => "ext4",
            Peer::Xfs => "xfs",
            Peer::Btrfs => "btrfs",
            Peer::BtrfsCompressed => "btrfs+zstd",
            Peer::Squashfs => "squashfs",
            Peer::Erofs => "erofs",
            Peer::Null => "null",
            Peer::Library => "library",
        }
    }

    /// Whether this file system counts for "the best of ext4, XFS and btrfs".
    pub fn is_mainstream(self) -> bool {
        matches!(self, Peer::Ext4 | Peer::Xfs | Peer::Btrfs | Peer::BtrfsCompressed)
    }

    /// Whether it is a form of C-FFS.
    pub fn is_cffs(self) -> bool {
        self.mkfs_arguments().is_some()
    }

    /// Whether its files can never be changed.
    pub fn is_read_only(self) -> bool {
        matches!(self, Peer::Squashfs | Peer::Erofs)
    }

    /// The arguments of `cffs mkfs` that make this variant; `None` for other file systems.
    fn mkfs_arguments(self) -> Option<&'static [&'static str]> {
        match self {
            Peer::Cffs => Some(&[]),
            Peer::CffsNoEmbed => Some(&["--features", "^embed"]),
            Peer::CffsNoInline => Some(&["--features", "^inline"]),
            Peer::CffsNoGroups => Some(&["--policy", "none"]),
            Peer::CffsPlain => Some(&[
                "--features",
                "^embed,^inline",
                "--policy",
                "scattered",
                "--journal",
                "none",
            ]),
            Peer::CffsFirstFit => {
                Some(&["--features", "^embed,^inline", "--policy", "none", "--journal", "none"])
            }
            Peer::CffsCompressed => Some(&["--compress", "zstd"]),
            Peer::CffsNoJournal => Some(&["--journal", "none"]),
            Peer::CffsJournalDevice => Some(&["--journal", "60M"]),
            _ => None,
        }
    }

    /// Creates the file system on a device, and its journal in the file `journal` if that is separate.
    fn make(self, device: &Path, journal: &Path, cffs: &Path) -> Result<()> {
        let mut command = match self {
            Peer::Null | Peer::Library | Peer::Squashfs | Peer::Erofs => return Ok(()),
            // Lazy initialization would run in the background of the measurement.
            Peer::Ext4 => {
                let mut c = Command::new("mkfs.ext4");
                c.args(["-q", "-F", "-E", "lazy_itable_init=0,lazy_journal_init=0,nodiscard"]);
                c
            }
            Peer::Xfs => {
                let mut c = Command::new("mkfs.xfs");
                c.args(["-q", "-f", "-K"]);
                c
            }
            Peer::Btrfs | Peer::BtrfsCompressed => {
                let mut c = Command::new("mkfs.btrfs");
                c.args(["-q", "-f", "-K"]);
                c
            }
            _ => {
                let mut c = Command::new(cffs);
                c.arg("mkfs").args(self.mkfs_arguments().unwrap_or_default());
                if self == Peer::CffsJournalDevice {
                    c.arg("--journal-device").arg(journal);
                }
                c
            }
        };
        run(command.arg(device))
    }

    /// Writes a read-only file system with the files of the directory `tree` to a device.
    fn pack(self, tree: &Path, device: &Path) -> Result<()> {
        let mut command = match self {
            Peer::Squashfs => {
                let mut c = Command::new("mksquashfs");
                c.arg(tree).arg(device);
                c.args(["-noappend", "-quiet", "-no-progress", "-comp", "zstd"]);
                c
            }
            Peer::Erofs => {
                let mut c = Command::new("mkfs.erofs");
                c.args(["--quiet", "-zlz4hc", "-C65536", "-Eztailpacking"]).arg(device).arg(tree);
                c
            }
            other => bail!("{other} is not made of a directory"),
        };
        run(&mut command)
    }

    /// Mounts the file system. Returns the server if it is a child of this process: the unmount is complete
    /// when the server ends.
    fn mount(
        self,
        device: &Path,
        at: &Path,
        cffs: &Path,
        journal: &Path,
        transport: Transport,
        cache_bytes: Option<u64>,
    ) -> Result<Option<Child>> {
        let mut command = match self {
            // `cargo build --release -p fuse-ring --example null` leaves it next to `cffs`.
            Peer::Null => {
                let mut c = Command::new(cffs.with_file_name("examples").join("null"));
                c.args(["--elide-open", transport.argument()]).arg(at);
                return serve(&c, at).map(Some);
            }
            Peer::Library => bail!("the library is not mounted"),
            Peer::Ext4 | Peer::Xfs | Peer::Btrfs => {
                let mut c = Command::new("mount");
                c.args(["-t", self.name(), "-o", "noatime"]);
                c
            }
            Peer::Squashfs | Peer::Erofs => {
                let mut c = Command::new("mount");
                c.args(["-t", self.name(), "-o", "ro"]);
                c
            }
            Peer::BtrfsCompressed => {
                let mut c = Command::new("mount");
                c.args(["-t", "btrfs", "-o", "noatime,compress=zstd:1"]);
                c
            }
            _ => {
                let mut c = Command::new(cffs);
                c.args(["mount", "-o", "noatime", "-o", transport.mount_option()]);
                c.args(cache_bytes.map(|bytes| format!("-ocache={bytes}")));
                if self == Peer::CffsJournalDevice {
                    c.arg("-o").arg(format!("journal-device={}", journal.display()));
                }
                c
            }
        };
        run(command.arg(device).arg(at)).map(|()| None)
    }

    /// Unmounts the file system; returns when everything is on the device. Retries for a second while it is
    /// busy: a child that another thread has just forked keeps files of this process open until it executes
    /// its program.
    fn unmount(self, at: &Path, cffs: &Path) -> Result<()> {
        let mut command = if self.is_cffs() {
            let mut c = Command::new(cffs);
            c.arg("umount");
            c
        } else {
            Command::new("umount")
        };
        command.arg(at);
        for _ in 0..50 {
            match run(&mut command) {
                Err(error) if error.to_string().contains("busy") => {
                    std::thread::sleep(Duration::from_millis(20));
                }
                result => return result,
            }
        }
        run(&mut command)
    }

    /// Checks an unmounted device with the file system's own program.
    pub fn check(self, device: &Path) -> Result<()> {
        let mut command = match self {
            Peer::Ext4 => {
                let mut c = Command::new("e2fsck");
                c.args(["-f", "-n"]);
                c
            }
            Peer::Xfs => {
                let mut c = Command::new("xfs_repair");
                c.arg("-n");
                c
            }
            Peer::Btrfs | Peer::BtrfsCompressed => {
                let mut c = Command::new("btrfs");
                c.args(["check", "--readonly"]);
                c
            }
            other => bail!("{other} has no program that checks it"),
        };
        run(command.arg(device))
    }

    /// The version of the measured program, for the report.
    pub fn version(self, cffs: &Path) -> String {
        let first_line = |command: &mut Command| {
            let output = command.output().ok()?;
            let text = if output.stdout.is_empty() { output.stderr } else { output.stdout };
            String::from_utf8_lossy(&text).lines().next().map(str::to_owned)
        };
        let made_by = match self {
            Peer::Ext4 => first_line(Command::new("mkfs.ext4").arg("-V")),
            Peer::Xfs => first_line(Command::new("mkfs.xfs").arg("-V")),
            Peer::Btrfs | Peer::BtrfsCompressed => first_line(Command::new("mkfs.btrfs").arg("-V")),
            Peer::Squashfs => first_line(Command::new("mksquashfs").arg("-version")),
            Peer::Erofs => first_line(Command::new("mkfs.erofs").arg("-V")),
            Peer::Null => Some(String::from("fuse-ring's example")),
            Peer::Library => Some(String::from(concat!("cffs ", env!("CARGO_PKG_VERSION")))),
            _ => first_line(Command::new(cffs).arg("--version")),
        };
        made_by.unwrap_or_else(|| String::from("not installed"))
    }
}

impl fmt::Display for Peer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl From<Peer> for String {
    fn from(peer: Peer) -> String {
        peer.name().to_owned()
    }
}

impl TryFrom<String> for Peer {
    type Error = String;
    fn try_from(name: String) -> Result<Peer, String> {
        name.parse()
    }
}

impl FromStr for Peer {
    type Err = String;
    fn from_str(name: &str) -> Result<Peer, String> {
        Peer::ALL.into_iter().find(|p| p.name() == name).ok_or_else(|| {
            let names: Vec<_> = Peer::ALL.iter().map(|p| p.name()).collect();
            format!("unknown file system {name}; the file systems are {}", names.join(", "))
        })
    }
}

/// Finds the `cffs` binary: next to this one, or on the search path.
pub fn find_cffs() -> PathBuf {
    let sibling = std::env::current_exe().ok().map(|exe| exe.with_file_name("cffs"));
    sibling.filter(|path| path.is_file()).unwrap_or_else(|| PathBuf::from("cffs"))
}

/// Starts a server in the foreground and waits until it has mounted.
///
/// The server gets a session of its own, like a server in the background. The kernel schedules each session
/// as a group (autogroup), and a request between two groups costs more than one within a group.
fn serve(command: &Command, at: &Path) -> Result<Child> {
    let before = std::fs::metadata(at)?.dev();
    let mut server = Command::new("setsid")
        .arg(command.get_program())
        .args(command.get_args())
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .with_context(|| format!("start {:?}", command.get_program()))?;
    for _ in 0..500 {
        if std::fs::metadata(at)?.dev() != before {
            return Ok(server);
        }
        if let Some(status) = server.try_wait()? {
            bail!("{command:?} ended with {status}");
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    server.kill()?;
    server.wait()?;
    bail!("{command:?} does not serve")
}

/// Runs a program that should succeed; otherwise the error contains its message.
pub(crate) fn run(command: &mut Command) -> Result<()> {
    let output = command.output().with_context(|| format!("start {:?}", command.get_program()))?;
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr);
        bail!("{command:?} ended with {}: {}", output.status, said.trim());
    }
    Ok(())
}
