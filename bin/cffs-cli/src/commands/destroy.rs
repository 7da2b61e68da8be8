//! `cffs destroy`: deletes a volume in an object store.

use std::io::{self, IsTerminal};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, bail};
use cffs_object::destroy::{self, DestroyOptions, Destroyed, Doomed};
use cffs_object::{Error, Location};
use clap::Args;

use crate::output::{self, counted, note, printable, say};
use crate::{image, names, size};

#[cfg(test)]
mod tests;

/// Delete a volume in an object store, with all of its files and versions
///
/// Asks for confirmation on a terminal, and needs --yes elsewhere. Deletes only the objects of the volume:
/// others below its prefix stay. Refuses a volume that a program has open for writing or has not closed, one
/// whose objects a clone reads, and one with other objects among its versions. Does not notice programs on
/// other machines that only read the volume: their reads fail.
///
/// If the command is interrupted, the volume may be unchanged, or claimed, so that the next program needs
/// --take-over. Otherwise it is partly deleted: other commands refuse the place, and the same command deletes
/// the rest. A bucket that keeps old versions of objects keeps those of the volume until its own rules delete
/// them. Local directories (--cache and --staging of cffs mount) stay.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  cffs ls s3://bucket              the volumes in a bucket
  cffs destroy s3://bucket/tree
  cffs destroy --yes s3://bucket/experiment
  cffs snapshot rm s3://bucket/tree@monday     deletes one version")]
pub struct Destroy {
    /// The volume.
    #[arg(value_name = "URL")]
    url: PathBuf,
    /// Do not ask.
    #[arg(short, long)]
    yes: bool,
    /// Also delete a volume that a program has not closed. If that program still runs, end it first: it may
    /// not notice, and what it syncs later is lost and leaves objects behind.
    #[arg(long)]
    take_over: bool,
    /// Also delete a volume that cannot be read, since it is damaged or was not completed, or its key is
    /// lost. Whether a program has it open is then unknown.
    #[arg(long)]
    force: bool,
    /// Print nothing but errors.
    #[arg(short, long)]
    quiet: bool,
}

impl Destroy {
    /// Deletes the volume.
    pub fn run(self) -> anyhow::Result<ExitCode> {
        let Some(location) = image::location(&self.url)? else {
            bail!(
                "{}: this command deletes volumes in object stores, named by their URL; remove an image with \
                 rm",
                self.url.display()
            );
        };
        let place = || printable(self.url.as_os_str().as_encoded_bytes());
        let doomed = match destroy::look(&location) {
            Err(Error::NoVolume { .. }) => bail!(
                "no volume at {url}; cffs ls {url} lists the volumes below it, if there are any",
                url = place()
            ),
            doomed => doomed.with_context(place)?,
        };
        self.check_use(&doomed)?;
        if !self.yes && !self.is_confirmed(&doomed)? {
            bail!("{} stays", place());
        }
        let (take_over, force) = (self.take_over, self.force);
        let options = DestroyOptions { take_over, force, note: Some(|what| note!("cffs: {what}")) };
        let destroyed = destroy::destroy(&location, &options).with_context(place)?;
        self.report(&destroyed)?;
        Ok(ExitCode::SUCCESS)
    }

    /// Fails if the volume or a version of it is mounted or served on this machine, even only for reading.
    fn check_use(&self, doomed: &Doomed) -> anyhow::Result<()> {
        let version = |name: &String| {
            let mut url = self.url.clone().into_os_string();
            url.push(format!("@{name}"));
            PathBuf::from(url)
        };
        let versions = doomed.versions.iter().map(version);
        [self.url.clone()].into_iter().chain(versions).try_for_each(|url| names::check_unused(&url))
    }

    /// Asks on a terminal.
    fn is_confirmed(&self, doomed: &Doomed) -> anyhow::Result<bool> {
        let url = printable(self.url.as_os_str().as_encoded_bytes());
        let versions = match &doomed.versions[..] {
            [] => String::new(),
            versions => {
                let count = counted(versions.len() as u64, "version");
                format!(" and {count} ({})", in_short(versions))
            }
        };
        let rest = if doomed.was_begun { "the rest of " } else { "" };
        if !io::stdin().is_terminal() || !output::is_watched() {
            bail!("{url}: to delete {rest}this volume with all of its files{versions}, add --yes");
        }
        let name = name_of(&self.url);
        note!("This deletes {rest}the volume {url} with all of its files{versions}, for good.");
        note!("Type its name ({}) or y to go on:", printable(name.as_bytes()));
        let mut answer = String::new();
        io::stdin().read_line(&mut answer).context("standard input")?;
        let answer = answer.trim();
        Ok([name.as_str(), "y", "yes"].contains(&answer) || Path::new(answer) == self.url)
    }

    fn report(&self, destroyed: &Destroyed) -> anyhow::Result<()> {
        if destroyed.had_staging {
            note!(
                "cffs destroy: the last program that wrote the volume had a staging directory (--staging); \
                 remove that directory if no other volume uses it"
            );
        }
        if self.quiet {
            return Ok(());
        }
        let objects = counted(destroyed.objects, "object");
        say!("deleted {objects} ({})", size::show(destroyed.bytes))
    }
}

/// The last part of a URL; for a volume in the root of a bucket, the bucket.
fn name_of(url: &Path) -> String {
    let url = Location::url_of(url).unwrap_or_default().into_owned();
    let url = url.trim_end_matches('/');
    url.rsplit('/').next().unwrap_or(url).to_owned()
}

/// The first names of a list. Names of versions have no special characters.
fn in_short(names: &[String]) -> String {
    const SHOWN: usize = 4;
    let mut shown = names.iter().take(SHOWN).cloned().collect::<Vec<_>>().join(", ");
    if names.len() > SHOWN {
        shown += ", …";
    }
    shown
}
