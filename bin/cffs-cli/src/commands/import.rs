//! `cffs import`: copies a tree into an image, or into a mounted volume.

use std::ffi::{OsStr, OsString};
use std::fs;
use std::io::Write;
use std::num::NonZeroUsize;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, bail};
use cffs::files::{self, CopyError, CopyOptions, Files, Observer, Summary, SurveyedVolume};
use cffs_serve::served::control::{self, Question};
use clap::Args;
use indicatif::ProgressBar;
use rustix::fs::statvfs;
use serde_json::{Value, json};

use crate::names::{self, OnMount};
use crate::output::{self, counted, note, say};
use crate::tree::{self, Target};
use crate::{image, progress, size};

/// Copy a tree into an image, without mounting it, or into a mounted directory
///
/// Copies owners, modes, times, extended attributes and ACLs, hard links and holes, with several threads. The
/// contents of SOURCE are copied into TARGET, which is created if it does not exist; other files there stay.
///
/// In a mounted volume, the server makes the files, with the rights of the caller. Owners are copied only if
/// the caller has CAP_CHOWN and CAP_FOWNER, as root usually has. The server makes no devices, sets no
/// attributes of `trusted.`, and of `security.` only capabilities: root gets a message about the others. The
/// labels of SELinux, Smack, AppArmor, IMA and EVM are left out. The mount shows the files when the command
/// returns, and they may be only in memory. A directory in which something is mounted is refused.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  cffs import tree.cffs ~/src              into the root
  cffs import tree.cffs ~/src /home/src
  cffs import tree.cffs notes.txt /home    one file into a directory
  cffs import mnt/src ~/src                into a directory of a mounted volume
  cffs import --dry-run tree.cffs ~/src    show what it would do, and whether it fits")]
pub struct Import {
    /// The image or the device, or the URL of a volume in an object store, mounted or not; or a directory of
    /// a mounted volume, which then counts as the root.
    #[arg(value_name = "IMAGE|DEVICE|URL|DIR")]
    image: PathBuf,
    /// The file or directory to copy.
    source: PathBuf,
    /// The destination within the volume or the directory.
    #[arg(default_value = "/")]
    target: OsString,
    /// Change nothing: print what would be copied, what could not be copied and why, and the space needed.
    /// Exits with 1 if something could not be copied or would not fit. In a mounted volume, the rights to
    /// write are not checked.
    #[arg(short = 'n', long)]
    dry_run: bool,
    #[command(flatten)]
    how: CopyFlags,
}

/// The flags that copying has in either direction.
#[derive(Debug, Args)]
pub struct CopyFlags {
    /// The number of threads that copy; one per core by default.
    #[arg(short = 'j', long)]
    threads: Option<NonZeroUsize>,
    /// Do not copy extended attributes and ACLs.
    #[arg(long)]
    no_xattrs: bool,
    /// Do not copy owners and groups.
    #[arg(long)]
    no_owner: bool,
    /// Print nothing but errors.
    #[arg(short, long)]
    quiet: bool,
    /// Print the counts of copied files as JSON.
    #[arg(long)]
    json: bool,
}

impl Import {
    /// Copies the tree, and closes the image.
    pub fn run(self) -> anyhow::Result<ExitCode> {
        if self.dry_run {
            return self.survey();
        }
        let opened = Target::open(&self.image)?;
        opened.directory().map_or(Ok(()), |directory| self.check_outside(directory))?;
        let watcher = Watcher::new("importing", self.how.is_silent());
        let mut options = self.how.options();
        options.owner &= opened.directory().is_none() || image::may_give_files_away();
        let (source, target) = (&self.source, self.target.as_bytes());
        let copied = files::import_into(&opened.root, source, target, &options, &watcher);
        watcher.finish();
        let closed = opened.close();
        let summary = copied?;
        closed.with_context(|| self.image.display().to_string())?;
        self.how.print(&summary)
    }

    /// Fails if the source is a directory that contains the destination, below this directory of a mount.
    fn check_outside(&self, directory: &Path) -> anyhow::Result<()> {
        let identity = |path: &Path| fs::metadata(path).ok().map(|it| (it.dev(), it.ino()));
        let source = identity(&self.source).filter(|_| self.source.is_dir());
        let existing = self.existing_target(directory);
        if source.is_some() && existing.ancestors().any(|path| identity(path) == source) {
            bail!(
                "cannot copy {} into itself: {} is in it",
                self.source.display(),
                self.image.display()
            );
        }
        Ok(())
    }

    /// The destination below this directory of a mount, or the last directory on the way that exists: there,
    /// the rest is made.
    fn existing_target(&self, directory: &Path) -> PathBuf {
        let inside = self.target.as_bytes();
        let inside =
            inside.iter().position(|byte| *byte != b'/').map_or(&b""[..], |at| &inside[at..]);
        let target = directory.join(OsStr::from_bytes(inside));
        target.ancestors().find_map(|path| path.canonicalize().ok()).unwrap_or_default()
    }

    /// The volume of a dry run, and how it stores files.
    fn surveyed(&self) -> anyhow::Result<(Files, SurveyedVolume)> {
        let Some(OnMount { path: directory, .. }) = names::mounted(&self.image)? else {
            let files = image::open_files(&self.image, image::read_only())?;
            let volume = SurveyedVolume::from(&**files.volume());
            return Ok((files, volume));
        };
        self.check_outside(&directory)?;
        let files = tree::attach_to_read(&directory, true)?;
        let superblock = control::ask(&directory, Question::Info)?["superblock"].take();
        let number = |name: &str| {
            superblock[name].as_u64().with_context(|| format!("its server does not report {name}"))
        };
        let mut features = superblock["features"].as_array().into_iter().flatten();
        let has_inline = features.any(|feature| feature == "inline");
        // The space that a quota leaves, if the target has one.
        let space = statvfs(self.existing_target(&directory))?;
        let volume = SurveyedVolume {
            fragment_bytes: number("fragment_bytes")?,
            sector_bytes: number("sector_bytes")?,
            inline_bytes_max: if has_inline { number("inline_bytes_max")? } else { 0 },
            available_bytes: space.f_bavail * space.f_frsize,
        };
        Ok((files, volume))
    }

    fn survey(&self) -> anyhow::Result<ExitCode> {
        let (files, volume) = self.surveyed()?;
        let watcher = Watcher::new("looking", self.how.is_silent());
        let (options, target) = (self.how.options(), self.target.as_bytes());
        let surveyed = files::survey(&files, volume, &self.source, target, &options, &watcher);
        watcher.finish();
        let survey = surveyed?;
        if self.how.json {
            let mut shown = as_json(&survey.summary);
            shown["replaced"] = survey.replaced.into();
            shown["needed_bytes"] = survey.needed_bytes.into();
            shown["available_bytes"] = survey.available_bytes.into();
            shown["fits"] = survey.fits().into();
            output::json(&shown)?;
        } else if !self.how.quiet {
            say!(
                "would copy {}; would replace {}",
                shown(&survey.summary),
                counted(survey.replaced, "file")
            )?;
            say!(
                "takes about {} of {} that are free: {}",
                size::show(survey.needed_bytes),
                size::show(survey.available_bytes),
                if survey.fits() { "fits" } else { "does not fit" }
            )?;
        }
        let is_well = survey.fits() && survey.summary.failures == 0;
        if survey.summary.failures > 0 {
            let failed = counted(survey.summary.failures, "file");
            note!("cffs: {failed} could not be copied");
        }
        Ok(if is_well { ExitCode::SUCCESS } else { ExitCode::FAILURE })
    }
}

impl CopyFlags {
    pub fn options(&self) -> CopyOptions {
        CopyOptions { threads: self.threads, xattrs: !self.no_xattrs, owner: !self.no_owner }
    }

    /// Whether to hide the progress.
    pub fn is_silent(&self) -> bool {
        self.quiet || self.json
    }

    /// Prints the counts; fails if a file was not copied.
    pub fn print(&self, summary: &Summary) -> anyhow::Result<ExitCode> {
        if self.json {
            output::json(&as_json(summary))?;
        } else if !self.quiet {
            let mut out = output::stdout();
            writeln!(out, "{}", shown(summary))?;
            out.flush()?;
        }
        if summary.failures > 0 {
            let failed = counted(summary.failures, "file");
            note!("cffs: {failed} could not be copied completely");
            return Ok(ExitCode::FAILURE);
        }
        Ok(ExitCode::SUCCESS)
    }
}

/// The counts of a copy as a line.
pub fn shown(summary: &Summary) -> String {
    format!(
        "{} ({}), {}, {}, {}, {} special",
        counted(summary.files, "file"),
        size::show(summary.bytes),
        counted(summary.directories, "directory"),
        counted(summary.symlinks, "symbolic link"),
        counted(summary.hard_links, "further name"),
        summary.special
    )
}

fn as_json(summary: &Summary) -> Value {
    json!({
        "files": summary.files,
        "directories": summary.directories,
        "symlinks": summary.symlinks,
        "hard_links": summary.hard_links,
        "special": summary.special,
        "bytes": summary.bytes,
        "failures": summary.failures,
    })
}

/// Shows the progress of the copy, and each failure.
pub struct Watcher(ProgressBar);

impl Watcher {
    /// A watcher that shows no progress if `silent`.
    pub fn new(label: &str, silent: bool) -> Watcher {
        // "Entries" includes directories and links.
        Watcher(progress::counter(label, None, "entries", silent))
    }

    /// Removes the progress from the screen.
    pub fn finish(&self) {
        self.0.finish_and_clear();
    }
}

impl Observer for Watcher {
    fn copied(&self, _: &Path, _: u64) {
        self.0.inc(1);
    }

    fn failed(&self, error: &CopyError) {
        self.0.suspend(|| note!("cffs: {error}"));
    }
}
