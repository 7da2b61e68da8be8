//! A shuffled reader: whole files of a data set, each once, in random order, by several threads,
//! as the training of a model reads its samples.

use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering};

use anyhow::Result;

use super::random::{Contents, LogNormal, Random};
use super::{Session, tree};

/// The size of the benchmark.
#[derive(Clone, Copy, Debug)]
pub struct Shuffled {
    /// Bytes in the data set. It should exceed the memory that can cache it.
    pub bytes: u64,
    /// Readers.
    pub threads: u64,
    /// Where randomness starts.
    pub seed: u64,
}

/// Samples per directory, one directory for each class of them.
const PER_DIRECTORY: usize = 1000;

impl Shuffled {
    /// Runs its one phase.
    pub fn run(&self, session: &mut Session) -> Result<()> {
        let sizes = LogNormal::new(80e3, 110e3, 1 << 20);
        let contents = Contents::new(self.seed, 1 << 20);
        let mut names = session.prepare("data set", |root, tally| {
            let (mut random, mut names, mut total) = (Random::new(self.seed), vec![], 0);
            while total < self.bytes {
                if names.len() % PER_DIRECTORY == 0 {
                    std::fs::create_dir(root.join(class(names.len())))?;
                }
                let size = sizes.sample(&mut random);
                let name = class(names.len()).join(format!("sample{:07}", names.len()));
                tree::create(&root.join(&name), contents.of(total, size as usize))?;
                tally.file(size)?;
                total += size;
                names.push(name);
            }
            Ok(names)
        })?;
        Random::new(self.seed + 1).shuffle(&mut names);
        session.read_phase("read shuffled", names.len() as u64, |root, tally| {
            let next = AtomicUsize::new(0);
            std::thread::scope(|scope| {
                let reader = || -> Result<()> {
                    let mut buffer = vec![0; 1 << 20];
                    while let Some(name) = names.get(next.fetch_add(1, Ordering::Relaxed)) {
                        let bytes = tree::read(&root.join(name), &mut buffer)?;
                        if !tally.file(bytes)? {
                            break;
                        }
                    }
                    Ok(())
                };
                let readers: Vec<_> = (0..self.threads).map(|_| scope.spawn(reader)).collect();
                readers.into_iter().try_for_each(super::joined)
            })
        })
    }
}

fn class(sample: usize) -> PathBuf {
    PathBuf::from(format!("class{:04}", sample / PER_DIRECTORY))
}
