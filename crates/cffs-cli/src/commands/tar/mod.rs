//! `cffs tar`: writes a tree of an image as a tar archive, or extracts one, through a pipe.

use std::ffi::OsString;
use std::io::{self, IsTerminal, Write};
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context, bail};
use cffs::vfs::types::OpenOptions;
use clap::Args;

use crate::image;
use crate::output::{self, counted, note};

mod create;
mod extract;
mod rights;
mod sparse;
mod way;

/// Write a tree as a tar archive to standard output, or read one from standard input
///
/// The archive is in the POSIX (pax) format, with owners, modes, times to the nanosecond, hard links, ACLs
/// and extended attributes, as GNU tar (--acls, --xattrs) and bsdtar write and read them. Sockets are left
/// out, with a note. Holes take no space in the archive: files with holes are written as by `tar --sparse`,
/// which GNU tar, bsdtar and Python can read. Other programs extract such a file under another name;
/// --no-sparse writes zeros instead. Files are read in device order, a few megabytes ahead.
///
/// With --extract, everything in the archive is extracted below PATH, which is created if it does not exist;
/// holes of sparse files stay holes. The archive may have the format v7, ustar, pax or GNU. Names that lead
/// out of PATH, or through symbolic links, are refused. Users and groups that an ACL names without a number
/// are looked up on this machine; entries for unknown ones are omitted, with a message. Exits with 1 if
/// something is missing in the archive or in the image.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  cffs tar tree.cffs /src | zstd > src.tar.zst
  cffs tar tree.cffs /src | ssh host tar -x -C /srv
  curl -L https://example.org/src.tar.gz | gunzip | cffs tar --extract tree.cffs /src")]
pub struct Tar {
    /// Read an archive from standard input into the image.
    #[arg(short = 'x', long)]
    extract: bool,
    /// Leave out extended attributes and ACLs. The owning group then has its own permissions instead of the
    /// mask's.
    #[arg(long)]
    no_xattrs: bool,
    /// Write holes as zeros, for programs that do not support sparse files.
    #[arg(long, conflicts_with = "extract")]
    no_sparse: bool,
    /// With --extract: do not restore owners and groups, nor the rights that depend on them.
    #[arg(long, requires = "extract")]
    no_owner: bool,
    /// The image or the device, or the URL of a volume in an object store.
    #[arg(value_name = "IMAGE|DEVICE|URL")]
    image: PathBuf,
    /// The directory or file within the volume.
    #[arg(default_value = "/")]
    path: OsString,
}

impl Tar {
    /// The command's name, for messages.
    pub fn name(&self) -> &'static str {
        if self.extract { "tar --extract" } else { "tar" }
    }

    /// Writes or reads the archive.
    pub fn run(self) -> anyhow::Result<ExitCode> {
        let failures = if self.extract { self.extract()? } else { self.create()? };
        if failures > 0 {
            let what = if self.extract { "extracted" } else { "put into the archive" };
            note!("cffs: {} could not be {what}", counted(failures, "file"));
            return Ok(ExitCode::FAILURE);
        }
        Ok(ExitCode::SUCCESS)
    }

    fn create(&self) -> anyhow::Result<u64> {
        if io::stdout().is_terminal() {
            bail!("an archive is not written to a terminal: use a file or a pipe");
        }
        let files = image::open_files(&self.image, image::read_only())?;
        let mut out = output::stdout();
        let options = create::Options { xattrs: !self.no_xattrs, holes: !self.no_sparse };
        let failures = create::archive(&files, self.path.as_bytes(), options, &mut out)?;
        out.flush()?;
        Ok(failures)
    }

    fn extract(&self) -> anyhow::Result<u64> {
        if io::stdin().is_terminal() {
            bail!("an archive is not read from a terminal: use a file or a pipe");
        }
        let files = image::open_files(&self.image, OpenOptions::default())?;
        let options = extract::Options { owner: !self.no_owner, xattrs: !self.no_xattrs };
        let extracted =
            extract::archive(&files, self.path.as_bytes(), &options, io::stdin().lock());
        let closed = files.close();
        let failures = extracted?;
        closed.with_context(|| self.image.display().to_string())?;
        Ok(failures)
    }
}
