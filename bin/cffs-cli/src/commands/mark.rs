//! `cffs mark`: sets, removes and lists marks, which `cffs changes` starts from.

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::thread;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::{Context, anyhow};
use cffs::clock::Timestamp;
use cffs::device::file::Access;
use cffs::error::Error;
use cffs::vfs::Marks;
use cffs::vfs::types::OpenOptions;
use cffs_serve::served::control::{self, MarkStatus, Request};
use clap::Args;
use rustix::fs::{Mode, OFlags};

use crate::output::{self, say};
use crate::{image, names};

/// How late the times of files can be: the kernel's clock for them advances in steps of up to 10 ms.
const LATENESS: Duration = Duration::from_millis(20);

/// Remember this moment, so that cffs changes can list what changed since then
///
/// Everything that was changed before the mark is durable when the command returns, in a later second than
/// that of the mark, so that cffs publish --since knows what came first. A mark takes a few bytes, and stays
/// until it is removed: restarts, crashes and growing keep it, and copies of the volume have it. On a volume
/// with marks, the first change below a directory since the last mark also writes the inodes of the
/// directories above it. Older programs, which do not know marks, can only read a volume that has one.
///
/// Without a name, the marks are listed, with the time (UTC) at which each was set.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  cffs mark mnt monday               before the backup of Monday
  cffs changes mnt --since monday    what to copy in the next one
  cffs mark mnt                      list the marks
  cffs mark --remove mnt monday")]
pub struct Mark {
    /// An image, a device, the URL of a volume in an object store, or a directory of a mounted volume.
    #[arg(value_name = "IMAGE|DEVICE|URL|DIR")]
    target: PathBuf,
    /// The mark's name: 1 to 64 letters, digits and characters of ._-+:@
    #[arg(value_name = "NAME")]
    name: Option<String>,
    /// Remove the mark.
    #[arg(long, requires = "name")]
    remove: bool,
    /// Print the list of marks as JSON.
    #[arg(long, conflicts_with = "name")]
    json: bool,
}

impl Mark {
    /// Sets or removes the mark, or lists all.
    pub fn run(self) -> anyhow::Result<ExitCode> {
        self.act().with_context(|| self.target.display().to_string())?;
        if self.name.is_some() && !self.remove {
            wait_for_next_second();
        }
        Ok(ExitCode::SUCCESS)
    }

    fn act(&self) -> anyhow::Result<()> {
        let Some(name) = &self.name else { return self.list(&marks(&self.target)?) };
        if let Some(mounted) = names::mounted(&self.target)? {
            return self.on_server(&mounted.path, name);
        }
        let device = image::open(&self.target, Access::ReadWrite, false)?;
        let volume = image::open_volume(&self.target, device, OpenOptions::default())?;
        let done = match self.remove {
            true => Marks::of(&volume).remove(name),
            false => Marks::of(&volume).set(name).map(drop),
        };
        let closed = volume.close();
        match done {
            Err(Error::Exists) => return Err(exists(name)),
            Err(Error::NoAttribute) => return Err(missing(name)),
            done => done?,
        }
        closed.context("the mark is set or removed, but closing the volume failed")
    }

    fn on_server(&self, path: &Path, name: &str) -> anyhow::Result<()> {
        let is_known = control::marks(path)?.iter().any(|mark| mark.name == name);
        let request = match (self.remove, is_known) {
            (true, true) => Request::RemoveMark(name.to_owned()),
            (true, false) => return Err(missing(name)),
            (false, true) => return Err(exists(name)),
            (false, false) => {
                // Changes that the kernel has not passed on yet would count as made after the mark.
                flush(path)?;
                Request::SetMark(name.to_owned())
            }
        };
        control::request(path, request).map_err(|error| met_another(error, name))
    }

    fn list(&self, marks: &[MarkStatus]) -> anyhow::Result<()> {
        if self.json {
            return output::json(&marks);
        }
        for MarkStatus { name, set_at, is_damaged } in marks {
            let set_at = Timestamp { seconds: *set_at, nanoseconds: 0 };
            let note = if *is_damaged { " (damaged: remove it)" } else { "" };
            say!("{set_at}  {}{note}", output::printable(name.as_bytes()))?;
        }
        Ok(())
    }
}

/// Waits until the second in which the mark was set has ended. A version that is published next is then
/// younger than the mark in whole seconds, which `cffs publish --since` compares.
fn wait_for_next_second() {
    let into_second = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let rest = Duration::from_secs(1) - Duration::from_nanos(into_second.subsec_nanos().into());
    thread::sleep(rest + LATENESS);
}

pub fn marks(target: &Path) -> anyhow::Result<Vec<MarkStatus>> {
    if let Some(mounted) = names::mounted(target)? {
        return Ok(control::marks(&mounted.path)?);
    }
    let device = image::open(target, Access::ReadOnly, false)?;
    let volume = image::open_volume(target, device, image::read_only())?;
    let marks = Marks::of(&volume).list()?;
    Ok(marks.iter().map(MarkStatus::from).collect())
}

/// Makes the kernel pass its cached changes on the mount of a directory on to the server.
pub fn flush(directory: &Path) -> anyhow::Result<()> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let opened = rustix::fs::open(directory, flags, Mode::empty())?;
    Ok(rustix::fs::syncfs(opened)?)
}

/// The error of a request, if another command has set or removed the mark since the check.
fn met_another(error: control::AskError, name: &str) -> anyhow::Error {
    match &error {
        control::AskError::Refused(why) if *why == Error::Exists.to_string() => exists(name),
        control::AskError::Refused(why) if *why == Error::NoAttribute.to_string() => missing(name),
        _ => error.into(),
    }
}

fn exists(name: &str) -> anyhow::Error {
    anyhow!("the mark {name} already exists; remove it first: cffs mark --remove")
}

/// The error of a mark that the volume does not have.
pub fn missing(name: &str) -> anyhow::Error {
    anyhow!("the mark {name} does not exist; cffs mark lists the marks of the volume")
}
