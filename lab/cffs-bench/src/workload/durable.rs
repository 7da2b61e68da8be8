//! Small files that are made durable one by one, as by mail servers and package managers.

use std::fs::OpenOptions;
use std::io::Write;

use anyhow::Result;

use super::{Session, tree};

/// The size of the benchmark.
#[derive(Clone, Copy, Debug)]
pub struct Durable {
    /// The number of files, over all threads.
    pub files: u64,
    pub size: usize,
    /// Threads that write at the same time, each into a directory of its own.
    pub threads: u64,
    /// The seed of all random choices.
    pub seed: u64,
}

impl Durable {
    /// Runs the only phase: create, write, fsync, close.
    pub fn run(&self, session: &mut Session) -> Result<()> {
        let contents = session.contents(self.seed, self.size);
        session.prepare("directories", |root, _| tree::directories(root, "t", self.threads))?;
        session.write_phase("write+fsync", self.files, true, |root, tally| {
            std::thread::scope(|scope| {
                let workers: Vec<_> = (0..self.threads)
                    .map(|thread| {
                        let contents = &contents;
                        scope.spawn(move || -> Result<()> {
                            let dir = root.join(format!("t{thread:03}"));
                            for i in 0..self.files / self.threads {
                                let mut file = OpenOptions::new()
                                    .write(true)
                                    .create_new(true)
                                    .open(dir.join(format!("m{i:06}")))?;
                                file.write_all(contents.of(i, self.size))?;
                                file.sync_all()?;
                                tally.file(self.size as u64)?;
                            }
                            Ok(())
                        })
                    })
                    .collect();
                workers.into_iter().try_for_each(super::joined)
            })
        })
    }
}
