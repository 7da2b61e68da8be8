//! The papers' small-file benchmark (USENIX'97 §4.2, thesis §4.2.2).
//!
//! Create and write many files of one size, read them, overwrite them, remove them; never more than
//! a hundred names in a directory. Reading is measured twice, in the order of creation and in a
//! random one: a cache of the disk's can guess the first, and only the file system the second.

use std::path::PathBuf;

use anyhow::Result;

use super::Session;
use super::random::{Contents, Random};
use super::store::{Collection, Store};

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
    /// How the contents are kept.
    pub store: Store,
}

impl SmallFile {
    /// Runs all phases.
    pub fn run(&self, session: &mut Session) -> Result<()> {
        let contents = Contents::new(self.seed, self.size);
        let names: Vec<PathBuf> = (0..self.files).map(name).collect();
        let in_order: Vec<usize> = (0..names.len()).collect();
        let mut shuffled = in_order.clone();
        Random::new(self.seed).shuffle(&mut shuffled);
        let (names, size) = (&names, self.size);
        let all = Collection { store: self.store, names, size, contents: &contents };

        session.write_phase("create", self.files, true, |root, t| all.create(root, t))?;
        session.read_phase("read", self.files, |root, t| all.read(root, &in_order, t))?;
        session.read_phase("read shuffled", self.files, |root, t| all.read(root, &shuffled, t))?;
        if all.is_mutable() {
            session.write_phase("overwrite", self.files, true, |root, t| all.overwrite(root, t))?;
            session.write_phase("remove", self.files, true, |root, t| all.remove(root, t))?;
        }
        Ok(())
    }
}

fn name(i: u64) -> PathBuf {
    PathBuf::from(format!("d{:03}/f{i:06}", i / PER_DIRECTORY))
}
