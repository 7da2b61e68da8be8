//! Servers, after Filebench's web server and web proxy (extµ §6.2).
//!
//! Threads choose files at random for a fixed time. The figure is operations per second, where
//! an operation is one file read, written or removed.

use std::fs::{self, OpenOptions};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::Result;

use super::contents::Contents;
use super::random::Random;
use super::{Session, Tally, tree};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A client reads ten files, then appends a line to the log.
    Web,
    /// A client reads five files for each file that it replaces. A fifth of the files do not exist at the
    /// beginning.
    Proxy,
}

/// The size of the benchmark.
#[derive(Clone, Copy, Debug)]
pub struct Server {
    pub kind: Kind,
    pub files: u64,
    pub size: usize,
    /// Concurrent clients.
    pub threads: u64,
    /// How long they work.
    pub duration: Duration,
    /// The seed of all random choices.
    pub seed: u64,
}

/// Bytes that a request adds to the log.
const LOG_LINE: usize = 512;

impl Server {
    pub fn run(&self, session: &mut Session) -> Result<()> {
        let contents = session.contents(self.seed, self.size.max(LOG_LINE));
        session.prepare("file set", |root, tally| {
            tree::directories(root, "s", self.files.div_ceil(100))?;
            for i in (0..self.files).filter(|i| self.kind != Kind::Proxy || i % 5 != 0) {
                tree::create(&root.join(name(i)), contents.of(i, self.size))?;
                tally.file(self.size as u64)?;
            }
            Ok(())
        })?;
        session.write_phase("serve", 0, true, |root, tally| {
            std::thread::scope(|scope| {
                let workers: Vec<_> = (0..self.threads)
                    .map(|thread| {
                        let contents = &contents;
                        scope.spawn(move || self.client(root, thread, contents, tally))
                    })
                    .collect();
                workers.into_iter().try_for_each(super::joined)
            })
        })
    }

    fn client(&self, root: &Path, thread: u64, contents: &Contents, tally: &Tally) -> Result<()> {
        let mut random = Random::new(self.seed ^ (thread + 1) << 32);
        let mut buffer = vec![0; self.size + LOG_LINE];
        while tally.elapsed() < self.duration {
            tally.go_on()?;
            match self.kind {
                Kind::Web => {
                    for _ in 0..10 {
                        self.read(root, &mut random, &mut buffer, tally)?;
                    }
                    log(root, contents.of(thread, LOG_LINE))?;
                }
                Kind::Proxy => {
                    let replaced = self.pick(&mut random);
                    let _ = fs::remove_file(root.join(&replaced));
                    self.write(root, &replaced, contents, tally)?;
                    for _ in 0..5 {
                        self.read(root, &mut random, &mut buffer, tally)?;
                    }
                    log(root, contents.of(thread, LOG_LINE))?;
                }
            }
        }
        Ok(())
    }

    fn pick(&self, random: &mut Random) -> PathBuf {
        name(random.below(self.files))
    }

    /// Reads a random file. If it is missing, another client has removed it, or it is a cache miss.
    fn read(
        &self,
        root: &Path,
        random: &mut Random,
        buffer: &mut [u8],
        tally: &Tally,
    ) -> Result<()> {
        let bytes = match tree::read(&root.join(self.pick(random)), buffer) {
            Ok(bytes) => bytes,
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => 0,
            Err(e) => return Err(e.into()),
        };
        tally.file(bytes)?;
        Ok(())
    }

    /// Appends the contents of one file to this one, which need not exist.
    fn write(&self, root: &Path, name: &Path, contents: &Contents, tally: &Tally) -> Result<()> {
        let mut file = OpenOptions::new().append(true).create(true).open(root.join(name))?;
        file.write_all(contents.of(tally.totals().0, self.size))?;
        tally.file(self.size as u64)?;
        Ok(())
    }
}

fn log(root: &Path, line: &[u8]) -> Result<()> {
    Ok(OpenOptions::new().append(true).create(true).open(root.join("log"))?.write_all(line)?)
}

fn name(i: u64) -> PathBuf {
    PathBuf::from(format!("s{:03}/p{i:06}", i / 100))
}
