//! `cffs ls`: lists names in a volume, or the volumes below a place in an object store.

use std::ffi::OsString;
use std::io::Write;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Context;
use cffs::clock::Timestamp;
use cffs::files::{Files, WalkEntry};
use cffs::format::inode::FileType;
use cffs::vfs::types::Attr;
use clap::Args;
use serde_json::{Value, json};

use crate::output::{self, Stdout, name_for, note, printable};
use crate::tree::{self, join};

mod volumes;

/// List names in a volume, without mounting it, or the volumes below a place in an object store
///
/// The URL of a volume, or of a version of it, lists names in the volume. A URL above volumes (a bucket, a
/// prefix, or a directory with the directories of volumes) lists the volumes directly below it: size,
/// encryption, the program that has each open for writing, and the time of the last sync, opening or closing
/// by the clock of the store. That takes a few small requests for each, and no key; the size of an encrypted
/// volume, and whether it is in use, is shown only with its key. Of the options, only --json applies to
/// volumes.
///
/// Names are listed in the order of their creation, which is their order on the device. On a terminal,
/// control characters, bytes that are not UTF-8, and backslashes are escaped, as in messages; other output
/// has the bytes of the names. A directory that cannot be read is reported, and the others are listed.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  cffs ls -l tree.cffs /src
  cffs ls -R tree.cffs | wc -l
  cffs ls s3://bucket              the volumes directly below the bucket
  cffs ls s3://bucket/tree /src    names in the volume tree")]
pub struct Ls {
    /// The image or the device, or the URL of a volume in an object store. If the volume is mounted, its
    /// server lists it; a directory of the mount then counts as the root. Or the URL of a bucket or a prefix
    /// with volumes below it.
    #[arg(value_name = "IMAGE|DEVICE|URL|DIR")]
    image: PathBuf,
    /// Paths within the volume.
    #[arg(value_name = "PATH", default_value = "/")]
    paths: Vec<OsString>,
    /// Show mode, links, owner, group, size and time of the last change (UTC).
    #[arg(short)]
    long: bool,
    /// Show inode numbers.
    #[arg(short)]
    inode: bool,
    /// Also list everything below directories, with paths.
    #[arg(short = 'R', long)]
    recursive: bool,
    /// Show a directory itself instead of its contents.
    #[arg(short, long)]
    directory: bool,
    /// Print one JSON object per line; bytes of names that are not UTF-8 become U+FFFD.
    #[arg(long)]
    json: bool,
}

impl Ls {
    /// Lists each path.
    pub fn run(self) -> anyhow::Result<ExitCode> {
        let files = match tree::open_to_read(&self.image) {
            Err(error) if self.paths == ["/"] && lacks_volume(&error) => {
                return volumes::list(&self.image, self.json, error);
            }
            files => files?,
        };
        let (out, failed) = (output::stdout(), Failed::default());
        let mut listing = Listing { of: &self, files: &files, out, failed };
        for path in &self.paths {
            let path = path.as_bytes();
            match listing.list(path).with_context(|| self.shown(path)) {
                Ok(()) => {}
                Err(error) => {
                    // Fails again if standard output is the cause.
                    listing.out.flush()?;
                    listing.failed.add(error);
                }
            }
        }
        listing.out.flush()?;
        listing.failed.0.map_or(Ok(ExitCode::SUCCESS), Err)
    }

    /// A path in messages. The root may be a directory of a mount, with another path for the caller.
    fn shown(&self, path: &[u8]) -> String {
        if path.iter().all(|byte| *byte == b'/') {
            return self.image.display().to_string();
        }
        printable(path)
    }
}

/// The printed list of names.
struct Listing<'a> {
    of: &'a Ls,
    files: &'a Files,
    out: Stdout,
    failed: Failed,
}

impl Listing<'_> {
    fn list(&mut self, path: &[u8]) -> anyhow::Result<()> {
        let attr = self.files.stat_itself(path)?;
        if attr.file_type != FileType::Directory || self.of.directory {
            return self.line(path, path, &attr);
        }
        if self.of.recursive {
            return self.list_below(path);
        }
        for item in self.files.read_dir(path)? {
            self.line(&join(path, &item.name), &item.name, &item.attr)?;
        }
        Ok(())
    }

    /// Lists a directory and everything below it. A directory that cannot be read is a failure, and the
    /// listing continues after it.
    fn list_below(&mut self, path: &[u8]) -> anyhow::Result<()> {
        let mut walk = self.files.walk(path)?;
        while let Some(found) = walk.next() {
            match found {
                Ok(WalkEntry { path, attr, .. }) => self.line(&path, &path, &attr)?,
                Err(error) => {
                    let unread = self.of.shown(walk.unread());
                    self.failed.add(anyhow::Error::from(error).context(unread));
                }
            }
        }
        Ok(())
    }

    /// Prints the file at a path, under the name `shown`.
    fn line(&mut self, path: &[u8], shown: &[u8], attr: &Attr) -> anyhow::Result<()> {
        let Ls { long, json, inode, .. } = *self.of;
        let target = match attr.file_type {
            FileType::Symlink if long || json => Some(self.files.read_link(path)?),
            _ => None,
        };
        let out = &mut self.out;
        if json {
            let line = as_json(shown, attr, target.as_deref());
            writeln!(out, "{line}")?;
            return Ok(());
        }
        if inode {
            write!(out, "{:>8} ", attr.ino)?;
        }
        if long {
            write!(
                out,
                "{} {:>3} {:>5} {:>5} {:>12} {} ",
                mode(attr),
                attr.nlink,
                attr.uid,
                attr.gid,
                size_or_device(attr),
                attr.mtime
            )?;
        }
        let is_terminal = output::stdout_is_terminal();
        out.write_all(&name_for(shown, is_terminal))?;
        if let Some(target) = target.filter(|_| long) {
            out.write_all(b" -> ")?;
            out.write_all(&name_for(&target, is_terminal))?;
        }
        out.write_all(b"\n")?;
        Ok(())
    }
}

/// Whether there is no volume at a URL.
fn lacks_volume(error: &anyhow::Error) -> bool {
    let is_so = |cause: &(dyn std::error::Error + 'static)| {
        matches!(cause.downcast_ref(), Some(cffs_object::Error::NoVolume { .. }))
    };
    error.chain().any(is_so)
}

/// The last failure. The others have been reported, and the listing continued.
#[derive(Default)]
struct Failed(Option<anyhow::Error>);

impl Failed {
    fn add(&mut self, error: anyhow::Error) {
        if let Some(earlier) = self.0.replace(error) {
            note!("cffs ls: {earlier:#}");
        }
    }
}

fn as_json(name: &[u8], attr: &Attr, target: Option<&[u8]>) -> Value {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let time = |time: Timestamp| time.seconds as f64 + f64::from(time.nanoseconds) / 1e9;
    json!({
        "name": text(name),
        "ino": attr.ino.0,
        "mode": format!("{:o}", attr.mode()),
        "nlink": attr.nlink,
        "uid": attr.uid,
        "gid": attr.gid,
        "size": attr.size,
        "allocated": attr.allocated_bytes,
        "mtime": time(attr.mtime),
        "target": target.map(text),
    })
}

/// The mode in the format of ls(1).
fn mode(attr: &Attr) -> String {
    let kind = match attr.file_type {
        FileType::Regular => '-',
        FileType::Directory => 'd',
        FileType::Symlink => 'l',
        FileType::Fifo => 'p',
        FileType::Socket => 's',
        FileType::CharDevice => 'c',
        FileType::BlockDevice => 'b',
    };
    let mut shown = String::from(kind);
    for (shift, special, letter) in [(6, 0o4000, 's'), (3, 0o2000, 's'), (0, 0o1000, 't')] {
        let bits = attr.permissions >> shift;
        shown.push(if bits & 4 != 0 { 'r' } else { '-' });
        shown.push(if bits & 2 != 0 { 'w' } else { '-' });
        shown.push(match (attr.permissions & special != 0, bits & 1 != 0) {
            (true, true) => letter,
            (true, false) => letter.to_ascii_uppercase(),
            (false, true) => 'x',
            (false, false) => '-',
        });
    }
    shown
}

fn size_or_device(attr: &Attr) -> String {
    match attr.file_type {
        FileType::CharDevice | FileType::BlockDevice => {
            format!("{}, {}", attr.device >> 32, attr.device as u32)
        }
        _ => attr.size.to_string(),
    }
}
