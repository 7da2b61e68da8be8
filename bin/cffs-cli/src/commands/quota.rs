//! `cffs quota`: limits the space and the files of directory trees.

use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, anyhow};
use cffs::device::file::Access;
use cffs::error::Error;
use cffs::files::Files;
use cffs::units::InodeNo;
use cffs::vfs::types::OpenOptions;
use cffs::vfs::{Quotas, Volume};
use cffs_serve::served::control::{self, AskError, QuotaStatus, Request};
use clap::{ArgGroup, Args, Subcommand};

use crate::output::{self, printable, say};
use crate::{image, mounts, names, size};

/// Limit the space and the number of files of a directory tree
///
/// A quota belongs to a directory and counts it and everything below it: bytes as du(1) counts them, without
/// the savings of compression and shared copies, and files of any type. A change that would exceed a limit
/// fails with "disk quota exceeded", even for root; once the limit of bytes is reached, so does any new name,
/// since its directory may need a block for it. df(1) of the directory shows the quota as the size of the
/// file system.
///
/// A file that is moved into or out of the tree moves with its charge. A directory cannot be moved across the
/// border of a quota, nor can a file have names on both sides: rename(2) and link(2) fail with EXDEV, and
/// mv(1) copies. Quotas cannot be nested.
///
/// Extended attributes, up to 256 KiB for each file, are not counted: to limit the space completely, also
/// limit the number of files.
///
/// Only root and the user who mounted the volume can use this command on a mounted volume. Older programs,
/// which do not know quotas, can only read a volume that has had one.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  cffs quota set mnt/home/ann --size 10G --files 1M
  cffs quota get mnt/home/ann
  cffs quota list mnt
  cffs quota remove mnt/home/ann
  cffs quota set tree.cffs /home/ann --size 10G      a volume that is not mounted")]
pub struct QuotaCommand {
    #[command(subcommand)]
    what: What,
}

#[derive(Debug, Args)]
struct Target {
    /// A directory of a mounted volume; or an image or a device.
    #[arg(value_name = "DIR|IMAGE|DEVICE")]
    target: PathBuf,
    /// The directory in the image, or below DIR.
    #[arg(value_name = "PATH")]
    path: Option<PathBuf>,
}

#[derive(Debug, Subcommand)]
enum What {
    /// Set the quota of a directory, or change its limits
    ///
    /// The first time, the tree is counted, and changes of the volume wait meanwhile. A limit that is not
    /// given stays as it is. The limits may be less than what the tree uses.
    #[command(group = ArgGroup::new("limits").required(true).multiple(true).args(["size", "files"]))]
    Set {
        #[command(flatten)]
        target: Target,
        /// The most bytes, such as 10G, or none.
        #[arg(long, value_name = "SIZE|none", value_parser = parse_size)]
        size: Option<u64>,
        /// The most files, such as 1M for a million, or none.
        #[arg(long, value_name = "COUNT|none", value_parser = parse_count)]
        files: Option<u64>,
    },
    /// Show the quota that counts a directory or a file
    Get {
        #[command(flatten)]
        target: Target,
        /// Print JSON.
        #[arg(long)]
        json: bool,
    },
    /// List all quotas of a volume
    List {
        /// An image, a device, or a directory of a mounted volume.
        #[arg(value_name = "DIR|IMAGE|DEVICE")]
        target: PathBuf,
        /// Print JSON.
        #[arg(long)]
        json: bool,
    },
    /// Remove the quota of a directory
    Remove {
        #[command(flatten)]
        target: Target,
    },
}

impl QuotaCommand {
    pub fn run(self) -> anyhow::Result<ExitCode> {
        let target = match &self.what {
            What::Set { target, .. } | What::Get { target, .. } | What::Remove { target } => {
                &target.target
            }
            What::List { target, .. } => target,
        };
        self.act().with_context(|| target.display().to_string())?;
        Ok(ExitCode::SUCCESS)
    }

    fn act(&self) -> anyhow::Result<()> {
        match &self.what {
            What::Set { target, size, files } => {
                let request = Request::SetQuota { bytes: *size, files: *files };
                target.change(request, |volume, dir| {
                    Quotas::of(volume).change(dir, *size, *files).map(drop)
                })
            }
            What::Remove { target } => {
                target.change(Request::RemoveQuota, |volume, dir| Quotas::of(volume).remove(dir))
            }
            What::Get { target, json } => {
                let none = || {
                    target.named(anyhow!(
                        "neither it nor a directory above has a quota; cffs quota list shows all quotas"
                    ))
                };
                let quota = target.get()?.ok_or_else(none)?;
                if *json { output::json(&quota) } else { print(&[quota]) }
            }
            What::List { target, json } => {
                let quotas = list(target)?;
                if *json { output::json(&quotas) } else { print(&quotas) }
            }
        }
    }
}

impl Target {
    fn path(&self) -> &[u8] {
        self.path.as_ref().map_or(&b"/"[..], |path| path.as_os_str().as_bytes())
    }

    /// An error about the path, which is named if the target does not contain it.
    fn named(&self, error: anyhow::Error) -> anyhow::Error {
        match &self.path {
            Some(path) => error.context(printable(path.as_os_str().as_bytes())),
            None => error,
        }
    }

    /// The error of a request about the path.
    fn refusal(&self, error: Error) -> anyhow::Error {
        self.named(match error {
            Error::NoAttribute => anyhow!(
                "no quota was set on it; cffs quota list shows the directories that have one"
            ),
            Error::NotDirectory => anyhow!(
                "it is not a directory; a quota belongs to a directory and counts everything below it"
            ),
            error => error.into(),
        })
    }

    fn change(
        &self,
        request: Request,
        change: impl FnOnce(&Volume, InodeNo) -> cffs::error::Result<()>,
    ) -> anyhow::Result<()> {
        if let Some(mounted) = names::mounted(&self.target)? {
            let directory = mounted.join(self.path.as_deref())?;
            return match control::request(&directory, request) {
                Err(AskError::Refused(why)) => {
                    let mut known = [Error::NoAttribute, Error::NotDirectory].into_iter();
                    let known = known.find(|error| error.to_string() == why);
                    Err(known.map_or_else(|| anyhow!(why), |error| self.refusal(error)))
                }
                done => Ok(done?),
            };
        }
        let device = image::open(&self.target, Access::ReadWrite, false)?;
        let volume = image::open_volume(&self.target, device, OpenOptions::default())?;
        let files = Files::new(volume);
        let node = files.node(self.path()).with_context(|| printable(self.path()))?;
        let done = change(files.volume(), node.ino());
        drop(node);
        let closed = files.volume().close();
        done.map_err(|error| self.refusal(error))?;
        closed.context("the quota is changed, but closing the volume failed")
    }

    fn get(&self) -> anyhow::Result<Option<QuotaStatus>> {
        if let Some(mounted) = names::mounted(&self.target)? {
            return Ok(control::quota(&mounted.join(self.path.as_deref())?)?);
        }
        let opened = image::open_files(&self.target, image::read_only());
        if opened.is_err() && self.path.is_none() && mounts::holding_file(&self.target).is_some() {
            return Ok(control::quota(&self.target)?);
        }
        let files = opened?;
        let node = files.node(self.path()).with_context(|| printable(self.path()))?;
        match Quotas::of(files.volume()).get(node.ino()) {
            Err(Error::NoAttribute) => Ok(None),
            quota => Ok(Some(QuotaStatus::from(&quota?))),
        }
    }
}

fn list(target: &Path) -> anyhow::Result<Vec<QuotaStatus>> {
    if let Some(mounted) = names::mounted(target)? {
        return Ok(control::quotas(&mounted.path)?);
    }
    let device = image::open(target, Access::ReadOnly, false)?;
    let volume = image::open_volume(target, device, image::read_only())?;
    Ok(Quotas::of(&volume).list()?.iter().map(QuotaStatus::from).collect())
}

fn print(quotas: &[QuotaStatus]) -> anyhow::Result<()> {
    if quotas.is_empty() {
        return Ok(());
    }
    say!("{:>10} {:>10} {:>12} {:>12}  directory", "used", "limit", "files", "limit")?;
    for quota in quotas {
        let limit = |limit: Option<u64>, show: fn(u64) -> String| limit.map_or("-".into(), show);
        say!(
            "{:>10} {:>10} {:>12} {:>12}  {}",
            size::show(quota.used_bytes),
            limit(quota.limit_bytes, size::show),
            quota.used_files,
            limit(quota.limit_files, |count| count.to_string()),
            printable(quota.directory.as_bytes())
        )?;
    }
    Ok(())
}

/// Other file systems take 0 for no limit.
const ZERO: &str = "a limit of 0 is not possible; for no limit, write none";

fn parse_size(text: &str) -> Result<u64, String> {
    match text {
        "none" => Ok(u64::MAX),
        size => not_zero(size::parse(size)?),
    }
}

fn not_zero(limit: u64) -> Result<u64, String> {
    if limit == 0 { Err(String::from(ZERO)) } else { Ok(limit) }
}

/// Parses a count with a unit that is a power of 1000.
fn parse_count(text: &str) -> Result<u64, String> {
    if text == "none" {
        return Ok(u64::MAX);
    }
    let wrong = || format!("'{text}' is not a count; write it as 5000, 20k, 1M or none");
    let (number, factor) = match text.trim_end_matches(['k', 'K', 'M', 'G']) {
        number if number.len() == text.len() => (number, 1),
        number => match &text[number.len()..] {
            "k" | "K" => (number, 1_000),
            "M" => (number, 1_000_000),
            "G" => (number, 1_000_000_000),
            _ => return Err(wrong()),
        },
    };
    let number: u64 = number.parse().map_err(|_| wrong())?;
    not_zero(number.checked_mul(factor).ok_or_else(wrong)?)
}
