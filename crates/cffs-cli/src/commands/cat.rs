//! `cffs cat`: the contents of files in an image.

use std::ffi::OsString;
use std::io::Write;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Context;
use cffs::files::File;
use clap::Args;

use crate::{image, output};

const COPY_BYTES: usize = 1 << 20;

/// Print files of an image, without mounting it
#[derive(Debug, Args)]
#[command(after_help = "Example:\n  cffs cat tree.cffs /src/main.rs | less")]
pub struct Cat {
    /// The image or the device.
    #[arg(value_name = "IMAGE|DEVICE")]
    image: PathBuf,
    /// The files, by their paths within the volume.
    #[arg(value_name = "PATH", required = true)]
    paths: Vec<OsString>,
}

impl Cat {
    /// Prints one file after the other.
    pub fn run(self) -> anyhow::Result<ExitCode> {
        let files = image::open_files(&self.image, image::read_only())?;
        let mut out = output::stdout();
        for path in &self.paths {
            let file = files.open(path.as_bytes()).with_context(|| path.display().to_string())?;
            copy(&file, &mut out).with_context(|| path.display().to_string())?;
        }
        out.flush()?;
        Ok(ExitCode::SUCCESS)
    }
}

fn copy(file: &File, out: &mut impl Write) -> anyhow::Result<()> {
    let mut buf = vec![0; COPY_BYTES];
    let mut at = 0;
    loop {
        match file.read_at(at, &mut buf)? {
            0 => return Ok(()),
            read => {
                out.write_all(&buf[..read])?;
                at += read as u64;
            }
        }
    }
}
