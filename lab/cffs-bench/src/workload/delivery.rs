//! A mail server's delivery into a Maildir: a message is acknowledged only when no crash can lose it.

use std::fs::{self, File};
use std::io::Write;
use std::time::Duration;

use anyhow::Result;

use super::Session;

/// The size of the benchmark.
#[derive(Clone, Copy, Debug)]
pub struct Delivery {
    pub messages: u64,
    pub size: usize,
    /// The longest duration. The rate is valid even if not all messages are delivered.
    pub time_max: Duration,
    /// The seed of all random choices.
    pub seed: u64,
}

impl Delivery {
    /// Runs the only phase: write, fsync, rename, fsync of the directory.
    pub fn run(&self, session: &mut Session) -> Result<()> {
        let contents = session.contents(self.seed, self.size);
        session.prepare("directories", |root, _| {
            fs::create_dir(root.join("tmp"))?;
            Ok(fs::create_dir(root.join("new"))?)
        })?;
        session.write_phase("deliver", self.messages, true, |root, tally| {
            let (tmp, new) = (root.join("tmp"), root.join("new"));
            let directory = File::open(&new)?;
            for i in 0..self.messages {
                if tally.elapsed() >= self.time_max {
                    break;
                }
                let name = format!("m{i:06}");
                let mut file = File::create_new(tmp.join(&name))?;
                file.write_all(contents.of(i, self.size))?;
                file.sync_all()?;
                fs::rename(tmp.join(&name), new.join(&name))?;
                directory.sync_all()?;
                tally.file(self.size as u64)?;
            }
            Ok(())
        })
    }
}
