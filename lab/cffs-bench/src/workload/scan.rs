//! Directory scans: find, du, and reading everything.

use anyhow::Result;

use super::random::{LogNormal, Random};
use super::tree::Visit;
use super::{Session, tree};

/// Measures three ways to walk the tree `below` in the session's root.
pub fn walks(session: &mut Session, below: &str, files: u64) -> Result<()> {
    for (name, visit) in
        [("find", Visit::Names), ("du", Visit::Attributes), ("scan", Visit::Contents)]
    {
        session
            .read_phase(name, files, |root, tally| tree::walk(&root.join(below), visit, tally))?;
    }
    Ok(())
}

/// A freshly unpacked tree: files of mixed sizes, written directory by directory.
#[derive(Clone, Copy, Debug)]
pub struct FreshTree {
    pub files: u64,
    /// The number of directories over which they are spread.
    pub directories: u64,
    /// The seed of all random choices.
    pub seed: u64,
}

impl FreshTree {
    pub fn run(&self, session: &mut Session) -> Result<()> {
        let sizes = LogNormal::churn();
        let contents = session.contents(self.seed, 8 << 20);
        session.prepare("fresh tree", |root, tally| {
            let mut random = Random::new(self.seed);
            for dir in tree::directories(root, "d", self.directories)? {
                for i in 0..self.files / self.directories {
                    let size = sizes.sample(&mut random);
                    let path = dir.join(format!("f{i:05}"));
                    tree::create(&path, contents.of(i, size as usize))?;
                    tally.file(size)?;
                }
            }
            Ok(())
        })?;
        walks(session, "", self.files)
    }
}
