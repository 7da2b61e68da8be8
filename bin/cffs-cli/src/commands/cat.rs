//! `cffs cat`: the contents of files in an image.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs;
use std::io::{self, Read, Write};
use std::num::NonZeroUsize;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Mutex;

use anyhow::Context;
use cffs::error::Result;
use cffs::files::Files;
use clap::Args;

use crate::output::{self, printable};
use crate::tree;

/// The number of files of a list that are read together, in device order.
const BATCH_FILES: usize = 1024;
/// Longer files are read one at a time, piece by piece.
const SMALL_BYTES: u64 = 256 << 10;
const PIECE_BYTES: usize = 1 << 20;

/// Print files of a volume, without mounting it
///
/// Files are printed one after the other, in the given order. With --files-from, up to a thousand files at a
/// time are read in device order, which is many times as fast for a long list.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  cffs cat tree.cffs /src/main.rs | less
  cffs ls -R tree.cffs /logs | grep 2026-11 | cffs cat --files-from - tree.cffs | wc -l
  find . -name '*.txt' -print0 | cffs cat --null --files-from - tree.cffs")]
pub struct Cat {
    /// Also print the files named in this file, one per line; - for standard input.
    #[arg(long, value_name = "FILE")]
    files_from: Option<PathBuf>,
    /// Names in --files-from end with a zero byte instead of a newline.
    #[arg(short = '0', long, requires = "files_from")]
    null: bool,
    /// The image or the device, or the URL of a volume in an object store. If the volume is mounted, its
    /// server reads the files; a directory of the mount then counts as the root.
    #[arg(value_name = "IMAGE|DEVICE|URL|DIR")]
    image: PathBuf,
    /// The files, by their paths within the volume.
    #[arg(value_name = "PATH", required_unless_present = "files_from")]
    paths: Vec<OsString>,
}

impl Cat {
    /// Prints one file after the other.
    pub fn run(self) -> anyhow::Result<ExitCode> {
        let list = self.list()?;
        let files = tree::open_to_read(&self.image)?;
        let mut out = output::stdout();
        for path in &self.paths {
            print(&files, path.as_bytes(), &mut out)?;
        }
        let end = if self.null { 0 } else { b'\n' };
        let named: Vec<&[u8]> =
            list.split(|byte| *byte == end).filter(|path| !path.is_empty()).collect();
        for batch in named.chunks(BATCH_FILES) {
            let mut read = read(&files, batch);
            for (position, path) in batch.iter().enumerate() {
                match read.remove(&position) {
                    Some(contents) => out.write_all(&contents.with_context(|| printable(path))?)?,
                    None => print(&files, path, &mut out)?,
                }
            }
        }
        out.flush()?;
        Ok(ExitCode::SUCCESS)
    }

    fn list(&self) -> anyhow::Result<Vec<u8>> {
        let Some(from) = &self.files_from else { return Ok(Vec::new()) };
        if from.as_os_str() == "-" {
            let mut list = Vec::new();
            io::stdin().lock().read_to_end(&mut list).context("standard input")?;
            return Ok(list);
        }
        fs::read(from).with_context(|| from.display().to_string())
    }
}

/// The contents of the small files of a list, by position.
fn read(files: &Files, paths: &[&[u8]]) -> BTreeMap<usize, Result<Vec<u8>>> {
    let is_small = |path: &&[u8]| files.stat(path).is_ok_and(|attr| attr.size <= SMALL_BYTES);
    // Sorted by name, so that each directory is read once.
    let mut named: Vec<(usize, &[u8])> = paths.iter().copied().enumerate().collect();
    named.sort_unstable_by_key(|(_, path)| *path);
    let (positions, small): (Vec<usize>, Vec<&[u8]>) =
        named.into_iter().filter(|(_, path)| is_small(path)).unzip();
    let found = Mutex::new(BTreeMap::new());
    files.read_many(&small, NonZeroUsize::MIN, |number, read| {
        if let Ok(mut found) = found.lock() {
            found.insert(positions[number], read.map(<[u8]>::to_vec));
        }
    });
    found.into_inner().unwrap_or_default()
}

/// Prints a file, with at most one piece of it in memory.
fn print(files: &Files, path: &[u8], out: &mut impl Write) -> anyhow::Result<()> {
    let file = files.open(path).with_context(|| printable(path))?;
    let mut piece = vec![0; PIECE_BYTES];
    let mut offset = 0;
    loop {
        match file.read_at(offset, &mut piece).with_context(|| printable(path))? {
            0 => return Ok(()),
            count => {
                out.write_all(&piece[..count])?;
                offset += count as u64;
            }
        }
    }
}
