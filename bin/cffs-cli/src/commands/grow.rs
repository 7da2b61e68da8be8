//! `cffs grow`: makes a volume larger.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, bail};
use cffs::device::file::Access;
use cffs::vfs::types::OpenOptions;
use cffs_serve::served::control::{self, Question, Request};
use clap::Args;
use serde_json::json;

use crate::names::OnMount;
use crate::output::{self, say};
use crate::{host_space, image, names, size};

/// Make a volume larger
///
/// Without a size, the volume grows to the size of its device or image file. With a size, an image file is
/// extended first, sparsely; a device must be enlarged beforehand (lvextend, losetup -c). A mounted volume is
/// grown by its server and can be used meanwhile. If this is interrupted, the volume has its old size or its
/// new one. Volumes cannot be shrunk.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  cffs grow tree.cffs +10G
  cffs grow mnt 1T               while it is mounted
  lvextend -L +100G /dev/vg/tree && cffs grow /dev/vg/tree")]
pub struct Grow {
    /// An image, a device, or a directory on a mounted volume.
    #[arg(value_name = "IMAGE|DEVICE|DIR")]
    target: PathBuf,
    /// The new size, or, after a +, the increase.
    #[arg(value_name = "SIZE", value_parser = parse)]
    size: Option<NewSize>,
    /// Print nothing but errors.
    #[arg(short, long)]
    quiet: bool,
    /// Print the result as JSON.
    #[arg(long)]
    json: bool,
}

/// The size on the command line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum NewSize {
    /// To this many bytes.
    To(u64),
    /// By this many bytes.
    By(u64),
}

fn parse(text: &str) -> Result<NewSize, String> {
    match text.strip_prefix('+') {
        Some(more) => size::parse(more).map(NewSize::By),
        None if text.starts_with('-') => Err(String::from("a volume cannot shrink")),
        None => size::parse(text).map(NewSize::To),
    }
}

/// The sizes of the volume before and after, in bytes.
struct Grown {
    from: u64,
    to: u64,
}

impl Grow {
    /// Grows the volume, and prints its size.
    pub fn run(self) -> anyhow::Result<ExitCode> {
        let mounted =
            names::mounted(&self.target).with_context(|| self.target.display().to_string())?;
        let image = mounted.as_ref().map_or(&self.target, |on| &on.mounted.source).clone();
        let grown = self.grow(mounted).with_context(|| self.target.display().to_string())?;
        if !self.quiet && grown.to > grown.from {
            host_space::warn("grow", &image);
        }
        if self.json {
            output::json(&json!({ "from_bytes": grown.from, "size_bytes": grown.to }))?;
        } else if !self.quiet {
            let (name, to) = (self.target.display(), size::show(grown.to));
            match grown.to.saturating_sub(grown.from) {
                0 => say!("{name}: already {}", self.limit(&to))?,
                gained => say!("{name}: {to}, {} more", size::show(gained))?,
            }
        }
        Ok(ExitCode::SUCCESS)
    }

    /// The reason why it cannot grow.
    fn limit(&self, size: &str) -> String {
        match self.size {
            None => format!("fills its image or device ({size})"),
            Some(_) => format!("has {size}"),
        }
    }

    fn grow(&self, mounted: Option<OnMount>) -> anyhow::Result<Grown> {
        if let Some(mounted) = mounted {
            return self.grow_mounted(&mounted.path);
        }
        let device = image::open_device(&self.target, Access::ReadWrite)?;
        let volume = image::open_volume(&self.target, device, OpenOptions::default())?;
        let superblock = volume.writer().superblock.get();
        let from = superblock.blocks * u64::from(superblock.block_bytes);
        let wanted = self.wanted(from);
        let grown = wanted.and_then(|wanted| Ok(volume.admin().grow(wanted)?));
        let closed = volume.close();
        let to = grown?;
        closed.context("the volume has grown, but closing it failed")?;
        Ok(Grown { from, to })
    }

    fn grow_mounted(&self, directory: &Path) -> anyhow::Result<Grown> {
        let from = size_of(directory)?;
        let wanted = self.wanted(from)?;
        // The server adds an increase to the current size, since others may have requested one as well.
        let request = match self.size {
            Some(NewSize::By(bytes)) => Request::GrowBy(bytes),
            _ => Request::Grow(wanted),
        };
        control::request(directory, request)?;
        Ok(Grown { from, to: size_of(directory)? })
    }

    /// The requested size of a volume that has `from` bytes.
    fn wanted(&self, from: u64) -> anyhow::Result<Option<u64>> {
        match self.size {
            Some(NewSize::To(bytes)) if bytes < from => bail!(
                "it has {}, and volumes do not shrink to {}; make a smaller one and copy the files",
                size::show(from),
                size::show(bytes)
            ),
            Some(NewSize::To(bytes)) => Ok(Some(bytes)),
            Some(NewSize::By(bytes)) => match from.checked_add(bytes) {
                Some(sum) => Ok(Some(sum)),
                None => bail!("more than 16 EiB"),
            },
            None => Ok(None),
        }
    }
}

/// The size of a mounted volume in bytes.
fn size_of(directory: &Path) -> anyhow::Result<u64> {
    let info = control::ask(directory, Question::Info)?;
    info["superblock"]["size_bytes"].as_u64().context("its server does not report its size")
}
