//! Any directory as a place to run a workload: how people measure their own storage.
//!
//! Caches can be emptied by root only; for others, phases that read find warm caches, and the
//! output says so. The counts of requests come from an emulated disk's control socket if there is
//! one, else from the kernel's statistics of the block device below the directory.

use std::fs::{self, File};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};
use tempfile::TempDir;

use crate::disk::Counters;
use crate::serve::control;
use crate::workload::Site;

/// Any directory.
pub struct Directory {
    /// A directory of our own in theirs; removed in the end.
    work: TempDir,
    /// The `cffs` binary, if the directory lies on C-FFS.
    cffs: Option<PathBuf>,
    counts: Counts,
    can_drop_caches: bool,
    volume_size: Option<u64>,
}

enum Counts {
    Socket(PathBuf),
    Sysfs(PathBuf),
    None,
}

impl Directory {
    /// Works in a new directory inside `directory`. `control` is the socket of the emulated disk
    /// below it, and `volume_size` the bytes that a workload may fill.
    pub fn new(
        directory: &Path,
        control: Option<PathBuf>,
        volume_size: Option<u64>,
        cffs: PathBuf,
    ) -> Result<Directory> {
        let work = TempDir::with_prefix_in("cffs-bench-", directory)
            .with_context(|| format!("make a directory in {}", directory.display()))?;
        let counts = match control {
            Some(socket) => Counts::Socket(socket),
            None => Counts::below(work.path())?,
        };
        let cffs = file_system_type(work.path())?.contains("cffs").then_some(cffs);
        let can_drop_caches = rustix::process::geteuid().is_root();
        Ok(Directory { work, cffs, counts, can_drop_caches, volume_size })
    }

    /// Whether caches can be emptied.
    pub fn is_cold(&self) -> bool {
        self.can_drop_caches
    }
}

impl Site for Directory {
    fn root(&self) -> &Path {
        self.work.path()
    }

    fn settle(&self) -> Result<()> {
        rustix::fs::syncfs(File::open(self.root())?).context("syncfs")?;
        if let Some(cffs) = &self.cffs {
            let status = Command::new(cffs).arg("sync").arg(self.root()).status()?;
            if !status.success() {
                bail!("cffs sync ended with {status}");
            }
        }
        Ok(())
    }

    fn chill(&mut self) -> Result<()> {
        self.settle()?;
        if self.can_drop_caches {
            fs::write("/proc/sys/vm/drop_caches", "3").context("drop the kernel's caches")?;
        }
        Ok(())
    }

    fn counters(&self) -> Option<Counters> {
        match &self.counts {
            Counts::Socket(socket) => {
                serde_json::from_str(&control::ask(socket, "counters").ok()?).ok()
            }
            Counts::Sysfs(stat) => parse_stat(&fs::read_to_string(stat).ok()?),
            Counts::None => None,
        }
    }

    fn volume_size(&self) -> Option<u64> {
        self.volume_size
    }
}

impl Counts {
    fn below(path: &Path) -> Result<Counts> {
        let device = fs::metadata(path)?.dev();
        let (major, minor) = (rustix::fs::major(device), rustix::fs::minor(device));
        let stat = PathBuf::from(format!("/sys/dev/block/{major}:{minor}/stat"));
        Ok(if stat.exists() { Counts::Sysfs(stat) } else { Counts::None })
    }
}

/// The kernel's `stat` of a block device (Documentation/block/stat.rst).
fn parse_stat(text: &str) -> Option<Counters> {
    let fields: Vec<u64> =
        text.split_whitespace().map(str::parse).collect::<Result<_, _>>().ok()?;
    let field = |i: usize| fields.get(i).copied();
    Some(Counters {
        reads: field(0)?,
        read_bytes: field(2)? * 512,
        writes: field(4)?,
        write_bytes: field(6)? * 512,
        busy_ns: field(9)? * 1_000_000,
        discards: field(11).unwrap_or_default(),
        flushes: field(15).unwrap_or_default(),
        ..Counters::default()
    })
}

/// The type of the file system that a directory lies on, as `/proc/self/mountinfo` has it.
fn file_system_type(path: &Path) -> Result<String> {
    let device = fs::metadata(path)?.dev();
    let wanted = format!("{}:{}", rustix::fs::major(device), rustix::fs::minor(device));
    let mounts = fs::read_to_string("/proc/self/mountinfo").context("read the mounts")?;
    let of_it = mounts.lines().find(|line| line.split(' ').nth(2) == Some(&wanted));
    let kind =
        of_it.and_then(|line| line.split_once(" - ")).and_then(|(_, rest)| rest.split(' ').next());
    Ok(kind.unwrap_or_default().to_owned())
}
