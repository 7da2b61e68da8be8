//! `cffs tar`: writes a tree of an image as a tar archive, or extracts one, through a pipe.

use std::ffi::OsString;
use std::io::{self, IsTerminal, Write};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, bail};
use clap::Args;
use rustix::fs::Mode;

use super::changes::{self, Tree};
use crate::image;
use crate::output::{self, counted, note};
use crate::tree::{self, Target};

mod append;
mod changed;
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
/// With --since, the archive has what changed since a mark, as cffs changes lists it, with each file as a
/// whole, and for each directory with changed names a list of its names. Extract the full archive, then each
/// incremental one in order, with `tar --extract --listed-incremental=/dev/null --xattrs --acls`, or with
/// --extract --incremental: directories then lose the names that were removed. GNU tar does not remove
/// extended attributes of directories. Set the next mark before each archive. A file with a name in a renamed
/// directory and another one elsewhere costs a walk of all names.
///
/// The volume can be mounted. Its server then reads or makes the files, with the rights of the caller, and a
/// directory of the mount counts as the root. As with tar(1), users other than root own what they extract,
/// and their umask applies; the same holds for root without CAP_CHOWN or CAP_FOWNER. The server makes no
/// devices, sets no attributes of `trusted.`, and of `security.` only capabilities: root gets a message about
/// the others. The labels of SELinux, Smack, AppArmor, IMA and EVM are left out.
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
  cffs tar mnt --since monday > tuesday.tar
  tar --extract --listed-incremental=/dev/null --xattrs --acls -C copy < tuesday.tar
  cffs tar --extract mnt/src < src.tar
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
    /// Write only what changed since this mark, which was set with cffs mark.
    #[arg(long, value_name = "NAME", conflicts_with = "extract")]
    since: Option<String>,
    /// With --extract: remove from the directories of an incremental archive what they no longer had.
    #[arg(long, requires = "extract")]
    incremental: bool,
    /// The image or the device, or the URL of a volume in an object store, mounted or not; or a directory of
    /// a mounted volume, which then counts as the root.
    #[arg(value_name = "IMAGE|DEVICE|URL|DIR")]
    image: PathBuf,
    /// The directory or file within the volume, or within the directory.
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
        // The server lists changes of a directory that the kernel finds, so that one is then the root.
        let directory = match &self.since {
            Some(_) => changes::mounted_directory(&self.image, Some(Path::new(&self.path)))?,
            None => None,
        };
        let (files, top) = match &directory {
            Some(directory) => (tree::attach_to_read(directory, self.image.is_dir())?, &b"/"[..]),
            None => (tree::open_to_read(&self.image)?, self.path.as_bytes()),
        };
        let mut out = output::stdout();
        let options = create::Options { xattrs: !self.no_xattrs, holes: !self.no_sparse };
        let failures = tree::reading_ahead(&files, || match &self.since {
            None => create::archive(&files, top, options, &mut out),
            Some(since) => {
                let mut listed = Vec::new();
                let add = |_, path: &[u8]| {
                    listed.push(path.to_vec());
                    Ok(())
                };
                let tree = match &directory {
                    Some(directory) => Tree::Mounted(directory),
                    None => Tree::Opened(&files, top),
                };
                tree.changes(since, add).with_context(|| self.image.display().to_string())?;
                create::archive_changes(&files, top, listed, options, &mut out)
            }
        })?;
        out.flush()?;
        Ok(failures)
    }

    fn extract(&self) -> anyhow::Result<u64> {
        if io::stdin().is_terminal() {
            bail!("an archive is not read from a terminal: use a file or a pipe");
        }
        let opened = Target::open(&self.image)?;
        let is_user = opened.directory().is_some() && !image::may_give_files_away();
        let options = extract::Options {
            owner: !self.no_owner && !is_user,
            xattrs: !self.no_xattrs,
            umask: if is_user { umask() } else { 0 },
            incremental: self.incremental,
        };
        let input = io::stdin().lock();
        let extracted = extract::archive(&opened.root, self.path.as_bytes(), &options, input);
        let closed = opened.close();
        let failures = extracted?;
        closed.with_context(|| self.image.display().to_string())?;
        Ok(failures)
    }
}

/// The umask of this process, which has no other thread yet: the call that reads it changes it for a moment.
fn umask() -> u32 {
    let mask = rustix::process::umask(Mode::empty());
    rustix::process::umask(mask);
    mask.bits()
}
