//! The papers' large-file benchmark (USENIX'97 §4.4): write, read and overwrite one file.
//!
//! Shows whether techniques for small files slow down large files.

use std::fs::{File, OpenOptions};
use std::io::{Read, Write};

use anyhow::Result;

use super::Session;

/// The size of one read or write.
const CHUNK: usize = 1 << 20;

/// The size of the benchmark.
#[derive(Clone, Copy, Debug)]
pub struct LargeFile {
    pub bytes: u64,
    /// The seed of all random choices.
    pub seed: u64,
}

impl LargeFile {
    pub fn run(&self, session: &mut Session) -> Result<()> {
        let contents = session.contents(self.seed, CHUNK);
        let chunks = self.bytes.div_ceil(CHUNK as u64);
        session.write_phase("write", 1, true, |root, tally| {
            let mut file = File::create(root.join("large"))?;
            for i in 0..chunks {
                file.write_all(contents.of(i, CHUNK))?;
                tally.bytes(CHUNK as u64)?;
            }
            tally.add(1, 0);
            Ok(())
        })?;
        session.read_phase("read", 1, |root, tally| {
            let mut file = File::open(root.join("large"))?;
            let mut buffer = vec![0; CHUNK];
            loop {
                let n = file.read(&mut buffer)?;
                if n == 0 || !tally.bytes(n as u64)? {
                    break;
                }
            }
            tally.add(1, 0);
            Ok(())
        })?;
        session.write_phase("overwrite", 1, true, |root, tally| {
            let mut file = OpenOptions::new().write(true).open(root.join("large"))?;
            for i in 0..chunks {
                file.write_all(contents.of(i + 1, CHUNK))?;
                tally.bytes(CHUNK as u64)?;
            }
            tally.add(1, 0);
            Ok(())
        })
    }
}
