//! Aging: the effects of years of use on a file system, in minutes.
//!
//! [`Churn`] is the aging program of USENIX'97 §4.3: it fills the volume, then creates and deletes files with
//! a probability that keeps the volume about as full. It ends with the walks of [`super::scan`] with cold
//! caches, or with the small-file benchmark as in the paper.
//!
//! Everything is synced at intervals. Without that, a file that lives shorter than the write-back delay would
//! never reach the allocator, and nothing would age.

use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};

use super::contents::Contents;
use super::random::{LogNormal, Random};
use super::small_file::SmallFile;
use super::{Session, Tally, scan, tree};

/// Operations between two syncs.
const SYNC_EVERY: u64 = 1000;

/// The largest size of a file, in bytes.
const SIZE_MAX: usize = 8 << 20;

/// Creates and deletes at a given utilization.
#[derive(Clone, Copy, Debug)]
pub struct Churn {
    /// The fraction of the volume that is in use.
    pub full: f64,
    /// The number of creates and deletes at that utilization.
    pub operations: u64,
    /// The number of directories over which files are spread.
    pub directories: u64,
    /// The seed of all random choices.
    pub seed: u64,
    /// The benchmark that is run afterwards; `None` for the walks.
    pub then: Option<SmallFile>,
}

impl Churn {
    pub fn run(&self, session: &mut Session) -> Result<()> {
        let volume = session.volume_size().context("aging needs the size of the volume")?;
        let contents = session.contents(self.seed, SIZE_MAX);
        let aged = session.prepare("age", |root, tally| {
            fs::create_dir(root.join("aged"))?;
            let mut churner = Churner::new(&root.join("aged"), self, volume, contents)?;
            churner.fill(tally)?;
            churner.churn(self.operations, tally)?;
            Ok(churner.files.len() as u64)
        })?;
        match self.then {
            Some(benchmark) => benchmark.run(session),
            None => scan::walks(session, "aged", aged),
        }
    }
}

struct Churner {
    dirs: Vec<PathBuf>,
    files: Vec<(PathBuf, u64)>,
    random: Random,
    contents: Contents,
    sizes: LogNormal,
    target: u64,
    used: u64,
    made: u64,
}

impl Churner {
    fn new(root: &Path, plan: &Churn, volume: u64, contents: Contents) -> Result<Churner> {
        ensure!((0.0..1.0).contains(&plan.full), "a volume cannot be {} full", plan.full);
        Ok(Churner {
            dirs: tree::directories(root, "a", plan.directories)?,
            files: Vec::new(),
            random: Random::new(plan.seed),
            contents,
            sizes: LogNormal::churn(),
            target: (volume as f64 * plan.full) as u64,
            used: 0,
            made: 0,
        })
    }

    fn fill(&mut self, tally: &Tally) -> Result<()> {
        while self.used < self.target {
            if !self.create(tally)? {
                break;
            }
        }
        Ok(())
    }

    fn churn(&mut self, operations: u64, tally: &Tally) -> Result<()> {
        for _ in 0..operations {
            // The probability of a create is a half at the target. At 2% too full or too empty, the next
            // operation is certain.
            let excess = (self.used as f64 - self.target as f64) / self.target as f64;
            let create = self.random.fraction() < 0.5 - 25.0 * excess;
            if !create || !self.create(tally)? {
                self.delete(tally)?;
            }
        }
        Ok(())
    }

    /// Creates a file in a random directory. Returns false if there was no space.
    fn create(&mut self, tally: &Tally) -> Result<bool> {
        let size = self.sizes.sample(&mut self.random);
        let dir = self.random.index(self.dirs.len());
        self.made += 1;
        let path = self.dirs[dir].join(format!("f{:06}", self.made));
        match tree::create(&path, self.contents.of(self.made, size as usize)) {
            Ok(()) => {
                self.used += footprint(size);
                self.files.push((path, size));
                self.done(size, tally)?;
                Ok(true)
            }
            Err(e) if e.kind() == ErrorKind::StorageFull => {
                let _ = fs::remove_file(&path);
                Ok(false)
            }
            Err(e) => Err(e).with_context(|| format!("create {}", path.display())),
        }
    }

    fn delete(&mut self, tally: &Tally) -> Result<()> {
        if self.files.is_empty() {
            return Ok(());
        }
        let victim = self.random.index(self.files.len());
        let (path, size) = self.files.swap_remove(victim);
        fs::remove_file(&path).with_context(|| format!("remove {}", path.display()))?;
        self.used -= footprint(size);
        self.done(0, tally)
    }

    fn done(&mut self, bytes: u64, tally: &Tally) -> Result<()> {
        tally.file(bytes)?;
        if tally.totals().0.is_multiple_of(SYNC_EVERY) {
            sync_files_of(&self.dirs[0])?;
        }
        Ok(())
    }
}

/// The approximate space that a file takes on a volume: whole blocks, and an inode.
fn footprint(size: u64) -> u64 {
    size.div_ceil(4096) * 4096 + 256
}

fn sync_files_of(dir: &Path) -> Result<()> {
    let dir = fs::File::open(dir)?;
    rustix::fs::syncfs(&dir).context("sync while aging")
}
