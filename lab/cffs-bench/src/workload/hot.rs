//! Single operations on warm caches: the cost of the software without a device.
//!
//! Clients work at the same time, each in a directory of its own, on any core or pinned to one. Nothing is
//! made durable: the costs are those of system calls, transports and locks.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::Result;

use super::contents::Contents;
use super::{Session, Tally, tree};
use crate::placement;

/// The size of a file, in bytes.
pub const SIZE: usize = 1024;

/// The names of the phases, in their order.
pub const PHASES: [&str; 5] = ["create", "create+write", "open+read", "stat", "unlink"];

/// The size of the benchmark.
#[derive(Clone, Copy, Debug)]
pub struct Hot {
    /// Operations of each kind, over all clients.
    pub operations: u64,
    pub clients: u64,
    /// Whether each client is pinned to a core of its own.
    pub pinned: bool,
    /// The seed of all random choices.
    pub seed: u64,
}

impl Hot {
    pub fn run(&self, session: &mut Session) -> Result<()> {
        let contents = session.contents(self.seed, SIZE);
        session.prepare("directories", |root, _| tree::directories(root, "c", self.clients))?;
        for name in PHASES {
            session.hot_phase(name, self.operations, |root, tally| {
                std::thread::scope(|scope| {
                    let clients: Vec<_> = (0..self.clients)
                        .map(|client| {
                            let (dir, contents) = (root.join(format!("c{client:03}")), &contents);
                            scope.spawn(move || {
                                if self.pinned {
                                    placement::pin(client as usize);
                                }
                                self.client(name, &dir, contents, tally)
                            })
                        })
                        .collect();
                    clients.into_iter().try_for_each(super::joined)
                })
            })?;
        }
        Ok(())
    }

    fn client(&self, phase: &str, dir: &Path, contents: &Contents, tally: &Tally) -> Result<()> {
        let mut buffer = vec![0; SIZE + 1];
        let path = |kind: &str, i: u64| -> PathBuf { dir.join(format!("{kind}{i:06}")) };
        for i in 0..self.operations / self.clients {
            let bytes = match phase {
                "create" => {
                    tree::create(&path("empty", i), b"")?;
                    0
                }
                "create+write" => {
                    tree::create(&path("full", i), contents.of(i, SIZE))?;
                    SIZE as u64
                }
                "open+read" => tree::read(&path("full", i), &mut buffer)?,
                "stat" => {
                    fs::symlink_metadata(path("full", i))?;
                    0
                }
                _ => {
                    fs::remove_file(path("empty", i))?;
                    0
                }
            };
            tally.file(bytes)?;
        }
        Ok(())
    }
}
