//! A web server's reads, for several layouts of its files and sizes of memory (PLACE, section 4.1).
//!
//! A log of visitors is replayed on a site of which only a part fits in memory. On ext4, the site is as it
//! was made, made in one group of the disk, packed by the demand of the previous week, or packed and read in
//! advance as far as memory allows. On C-FFS, it is as it was made, or regrouped by the demand of that week.
//!
//! - [`site`]: the site and its logs: pure;
//! - [`memory`]: a limit on the memory of programs and of the kernel's caches for them;
//! - [`report`]: the document.

pub mod memory;
pub mod report;
pub mod site;

#[cfg(test)]
mod tests;

use std::fs;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use anyhow::{Context, Result, bail};
use serde::Serialize;

use crate::disk::{Profile, Stroke};
use crate::peer::{Peer, Transport, Volume, VolumeSpec, run};
use crate::workload::Site as _;
use memory::MemoryGroup;
use site::{Extent, Site, by_demand};

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Layout {
    /// ext4, as the site was made.
    Plain,
    /// ext4, made in one group.
    Grouped,
    /// ext4, packed in the order of a log.
    Packed,
    /// ext4, packed, with the files in demand read before the first visitor arrives.
    Warm,
    /// C-FFS, as the site was made.
    Cffs,
    /// C-FFS, regrouped by a log.
    Regrouped,
}

impl Layout {
    /// All layouts, in the order of the report.
    pub const ALL: [Layout; 6] = [
        Layout::Plain,
        Layout::Grouped,
        Layout::Packed,
        Layout::Warm,
        Layout::Cffs,
        Layout::Regrouped,
    ];

    pub fn name(self) -> &'static str {
        match self {
            Layout::Plain => "ext4, as made",
            Layout::Grouped => "ext4, in one group",
            Layout::Packed => "ext4, packed",
            Layout::Warm => "ext4, packed and warm",
            Layout::Cffs => "C-FFS, as made",
            Layout::Regrouped => "C-FFS, regrouped",
        }
    }

    fn peer(self) -> Peer {
        match self {
            Layout::Cffs | Layout::Regrouped => Peer::Cffs,
            _ => Peer::Ext4,
        }
    }
}

/// The parameters of the study.
#[derive(Clone, Debug)]
pub struct Plan {
    /// The site and its log.
    pub extent: Extent,
    /// Sizes of memory in bytes.
    pub memory: Vec<u64>,
    pub profile: Profile,
    /// The directory for backing files; should be a tmpfs.
    pub scratch: PathBuf,
    /// The `cffs` binary. `place` is in the same directory.
    pub cffs: PathBuf,
}

#[derive(Clone, Debug, Serialize)]
pub struct Replay {
    pub layout: Layout,
    pub memory_bytes: u64,
    pub requests: u64,
    /// Seconds for which the device was busy.
    pub busy_seconds: f64,
    /// Seconds until the last file was read.
    pub seconds: f64,
}

#[derive(Clone, Debug, Serialize)]
pub struct Study {
    /// Pages, files and bytes of the site.
    pub site: (usize, usize, u64),
    /// Visits, and files read by them.
    pub log: (usize, usize),
    /// The replays, each layout with all sizes of memory.
    pub replays: Vec<Replay>,
}

/// Files with lists of paths from the root of the site.
struct Lists {
    log: PathBuf,
    /// The files that were read in the previous week, the most frequent first.
    demand: PathBuf,
}

/// The size of the volume: several of ext4's flex groups, so that a site can be in one or in many.
const VOLUME_BYTES: u64 = 8 << 30;
/// The days whose logs determine the packing.
const WEEK: Range<u64> = 0..7;
/// The day whose log is replayed.
const DAY: u64 = WEEK.end;

impl Plan {
    /// Replays the log on every layout with every size of memory.
    ///
    /// # Errors
    ///
    /// The first failure: a study without one of the layouts is useless.
    pub fn run(&self, interrupt: &AtomicBool) -> Result<Study> {
        let site = Site::new(self.extent);
        let log = site.log(DAY);
        let week: Vec<&str> = WEEK.flat_map(|day| site.log(day)).collect();
        let scratch = tempfile::tempdir().context("a place for lists")?;
        let list = |name: &str, paths: &[&str]| -> Result<PathBuf> {
            let path = scratch.path().join(name);
            fs::write(&path, paths.join("\n") + "\n").context("write a list")?;
            Ok(path)
        };
        let lists = Lists { log: list("log", &log)?, demand: list("demand", &by_demand(&week))? };
        let mut replays = Vec::new();
        for layout in Layout::ALL {
            self.replay(layout, &site, &lists, interrupt, &mut replays)
                .with_context(|| String::from(layout.name()))?;
        }
        Ok(Study {
            site: (self.extent.pages, site.file_count(), site.bytes()),
            log: (self.extent.visits, log.len()),
            replays,
        })
    }

    fn replay(
        &self,
        layout: Layout,
        site: &Site,
        lists: &Lists,
        interrupt: &AtomicBool,
        replays: &mut Vec<Replay>,
    ) -> Result<()> {
        let mut volume = Volume::make(VolumeSpec {
            peer: layout.peer(),
            profile: self.profile,
            stroke: Stroke::Whole,
            size: VOLUME_BYTES,
            scratch: self.scratch.clone(),
            cffs: self.cffs.clone(),
            transport: Transport::default(),
        })?;
        volume.set_free(true);
        self.make(layout, &volume, site)?;
        self.arrange(layout, &volume, &lists.demand)?;
        volume.settle()?;
        let group = MemoryGroup::new()?;
        for &memory_bytes in &self.memory {
            if interrupt.load(Ordering::Relaxed) {
                bail!("interrupted; no report was written");
            }
            eprintln!("web: {} with {} MiB", layout.name(), memory_bytes >> 20);
            // A server in user space caches in its own memory and in the kernel's.
            let of_reader = match layout.peer().is_cffs() {
                true => memory_bytes / 2,
                false => memory_bytes,
            };
            volume.set_cache(memory_bytes - of_reader);
            volume.set_free(true);
            volume.chill()?;
            group.set_limit(of_reader)?;
            volume.set_free(false);
            let counters = || volume.counters().context("an emulated disk counts");
            let (started, at_first) = (Instant::now(), counters()?);
            if layout == Layout::Warm {
                let mut place = group.command(&self.place());
                // The rest of the memory is for names, inodes and the reader itself.
                let limit = (memory_bytes / 4 * 3).to_string();
                place.args(["warm", "--limit", &limit, "-"]).stdin(fs::File::open(&lists.demand)?);
                run(place.current_dir(volume.root()))?;
            }
            let mut reader = group.command(Path::new("xargs"));
            reader.arg("-a").arg(&lists.log).args(["-d", "\\n", "cat"]).stdout(Stdio::null());
            run(reader.current_dir(volume.root()))?;
            let counted = counters()?.since(&at_first);
            replays.push(Replay {
                layout,
                memory_bytes,
                requests: counted.requests(),
                busy_seconds: counted.busy_secs(),
                seconds: started.elapsed().as_secs_f64(),
            });
        }
        drop(group);
        volume.dismantle()
    }

    fn place(&self) -> PathBuf {
        self.cffs.with_file_name("place")
    }

    fn make(&self, layout: Layout, volume: &Volume, site: &Site) -> Result<()> {
        let dirs: Vec<PathBuf> =
            site.directories().iter().map(|dir| volume.root().join(dir)).collect();
        if layout == Layout::Grouped {
            run(Command::new(self.place()).arg("init").arg(volume.mount_point()))?;
            run(Command::new(self.place()).args(["mkdir", "--outer"]).args(&dirs))?;
        } else {
            dirs.iter().try_for_each(fs::create_dir).context("make the directories")?;
        }
        site.make(volume.root())
    }

    /// Stores files that were read together next to each other, in the order of a list.
    fn arrange(&self, layout: Layout, volume: &Volume, list: &Path) -> Result<()> {
        let mut command = match layout {
            Layout::Plain | Layout::Grouped | Layout::Cffs => return Ok(()),
            Layout::Packed | Layout::Warm => {
                let mut command = Command::new(self.place());
                command.arg("pack");
                command
            }
            Layout::Regrouped => {
                let mut command = Command::new(&self.cffs);
                command.arg("regroup").arg(volume.root());
                command
            }
        };
        volume.settle()?;
        run(command.arg("--trace").arg(list).current_dir(volume.root()))
    }
}
