//! The papers' small-file benchmark (USENIX'97 §4.2, thesis §4.2.2).
//!
//! Creates and writes many files of one size, at most a hundred in a directory; then reads, overwrites and
//! removes them. Reading is measured twice, in the order of creation and in random order. The disk's own
//! cache helps with the first, and only the file system with the second.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use super::random::Random;
use super::{Session, Tally, tree};

/// Names per directory, as in the papers.
const PER_DIRECTORY: u64 = 100;

/// The size of the benchmark.
#[derive(Clone, Copy, Debug)]
pub struct SmallFile {
    pub files: u64,
    pub size: usize,
    /// The seed of all random choices.
    pub seed: u64,
}

impl SmallFile {
    pub fn run(&self, session: &mut Session) -> Result<()> {
        let contents = session.contents(self.seed, self.size);
        let names: Vec<PathBuf> = (0..self.files).map(name).collect();
        let mut shuffled: Vec<&PathBuf> = names.iter().collect();
        Random::new(self.seed).shuffle(&mut shuffled);
        let (files, size) = (self.files, self.size);
        let data = |i: usize| contents.of(i as u64, size);

        session.write_phase("create", files, true, |root, tally| {
            let directories: BTreeSet<_> = names.iter().filter_map(|name| name.parent()).collect();
            for directory in directories {
                fs::create_dir(root.join(directory))?;
            }
            self.each(&names, tally, |i, name| Ok(tree::create(&root.join(name), data(i))?))
        })?;
        session.read_phase("read", files, |root, tally| self.read(root, &names, tally))?;
        session.read_phase("read shuffled", files, |root, tally| {
            self.read(root, shuffled.iter().copied(), tally)
        })?;
        session.write_phase("overwrite", files, true, |root, tally| {
            self.each(&names, tally, |i, name| Ok(tree::overwrite(&root.join(name), data(i + 1))?))
        })?;
        session.write_phase("remove", files, true, |root, tally| {
            for name in &names {
                fs::remove_file(root.join(name))?;
                tally.file(0)?;
            }
            Ok(())
        })
    }

    fn each(
        &self,
        names: &[PathBuf],
        tally: &Tally,
        mut work: impl FnMut(usize, &Path) -> Result<()>,
    ) -> Result<()> {
        for (i, name) in names.iter().enumerate() {
            work(i, name).with_context(|| format!("{}", name.display()))?;
            tally.file(self.size as u64)?;
        }
        Ok(())
    }

    /// Reads the files in this order, until the phase's time is over.
    fn read<'a>(
        &self,
        root: &Path,
        order: impl IntoIterator<Item = &'a PathBuf>,
        tally: &Tally,
    ) -> Result<()> {
        let mut buffer = vec![0; self.size + 1];
        for name in order {
            let bytes = tree::read(&root.join(name), &mut buffer)?;
            if !tally.file(bytes)? {
                break;
            }
        }
        Ok(())
    }
}

fn name(i: u64) -> PathBuf {
    PathBuf::from(format!("d{:03}/f{i:06}", i / PER_DIRECTORY))
}
