//! The papers' small-file benchmark (USENIX'97 §4.2, thesis §4.2.2).
//!
//! Create and write many files of one size, read them, overwrite them, remove them; never more than
//! a hundred names in a directory. Reading is measured twice, in the order of creation and in a
//! random one: a cache of the disk's can guess the first, and only the file system the second.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::Result;

use super::random::{Contents, Random};
use super::{Session, tree};

/// Names per directory, as in the papers.
const PER_DIRECTORY: u64 = 100;

/// The size of the benchmark.
#[derive(Clone, Copy, Debug)]
pub struct SmallFile {
    /// How many files.
    pub files: u64,
    /// Bytes in each of them.
    pub size: usize,
    /// Where randomness starts.
    pub seed: u64,
}

impl SmallFile {
    /// Runs all phases.
    pub fn run(&self, session: &mut Session) -> Result<()> {
        let contents = Contents::new(self.seed, self.size);
        let names: Vec<PathBuf> = (0..self.files).map(name).collect();
        let mut shuffled = names.clone();
        Random::new(self.seed).shuffle(&mut shuffled);

        session.write_phase("create", self.files, true, |root, tally| {
            tree::directories(root, "d", self.files.div_ceil(PER_DIRECTORY))?;
            for (i, name) in names.iter().enumerate() {
                tree::create(&root.join(name), contents.of(i as u64, self.size))?;
                tally.file(self.size as u64)?;
            }
            Ok(())
        })?;
        session.read_phase("read", self.files, |root, tally| self.read(root, &names, tally))?;
        session.read_phase("read shuffled", self.files, |root, tally| {
            self.read(root, &shuffled, tally)
        })?;
        session.write_phase("overwrite", self.files, true, |root, tally| {
            for (i, name) in names.iter().enumerate() {
                tree::overwrite(&root.join(name), contents.of(i as u64 + 1, self.size))?;
                tally.file(self.size as u64)?;
            }
            Ok(())
        })?;
        session.write_phase("remove", self.files, true, |root, tally| {
            for name in &names {
                fs::remove_file(root.join(name))?;
                tally.file(0)?;
            }
            Ok(())
        })
    }

    fn read(&self, root: &Path, names: &[PathBuf], tally: &super::Tally) -> Result<()> {
        let mut buffer = vec![0; self.size + 1];
        for name in names {
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
