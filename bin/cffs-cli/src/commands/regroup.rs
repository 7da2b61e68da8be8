//! `cffs regroup`: moves scattered files together.

use std::ffi::OsStr;
use std::fs;
use std::ops::ControlFlow;
use std::os::linux::fs::MetadataExt;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::thread;
use std::time::Duration;

use anyhow::{Context, bail};
use cffs::device::file::{Access, FileDevice};
use cffs::files::Files;
use cffs::units::InodeNo;
use cffs::vfs::types::OpenOptions;
use cffs::vfs::{RegroupOptions, Scattered};
use cffs_serve::served::control::{
    self, AskError, RegroupRequest, RegroupStatus, Request, Stage, Which,
};
use clap::Args;
use indicatif::ProgressBar;
use serde_json::json;

use crate::output::{self, counted, note, say};
use crate::{image, names, progress, size};

#[cfg(test)]
mod tests;

/// The interval between queries of a regrouping's status.
const POLL_INTERVAL: Duration = Duration::from_millis(100);
/// The most files of a trace per request: their numbers form the value of an attribute.
const FILES_AT_ONCE: usize = 3000;

/// Move files together that renames, deletions and years of use have scattered
///
/// Files of one directory, and of directories that are read one after the other, are rewritten side by side
/// if that makes reading them at least twice as cheap. So are files with the same key, if they have one other
/// than their directory (the attribute user.cffs.key, and mkfs --policy). Their contents, inode numbers,
/// times and links stay the same, and a crash damages none of them. A second run moves nothing. A mounted
/// volume is regrouped by its server and can be used meanwhile: other calls have priority, so this takes long
/// on a busy disk. Interrupting this command does not end the regrouping, --stop does. Files of more than 2
/// MiB, immutable and append-only files, and files for which no free run of 1 to 4 MiB is available are not
/// moved.
///
/// With --used or --trace, files that are read together are stored together, whatever their directories. With
/// the mount option regroup=use, the server observes which files programs read one after the other, and does
/// this by itself while the volume is idle. It keeps its observations in memory: the volume stores only the
/// new places of the files, and a number that files which are read together share. Files with a hint
/// (user.cffs.key) stay. A scan of a directory whose files were moved takes more requests.
///
/// On a volume with compressed contents, regrouping also compacts clusters of which an eighth or more is dead
/// contents of deleted and rewritten files. It compresses the contents in use into new clusters, and frees
/// the old ones. cffs layout shows how much is dead.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  cffs regroup --dry-run mnt              what would be moved, and the gain
  cffs regroup mnt/src                    a part of a mounted volume
  cffs regroup tree.cffs                  an image that is not mounted
  cffs regroup --trace opened.txt mnt     the files of a list, in its order
  cffs regroup --used mnt                 what programs have read together")]
pub struct Regroup {
    /// An image, a device, or a directory of a mounted volume. A mounted volume can be given by any of its
    /// names.
    #[arg(value_name = "IMAGE|DEVICE|DIR")]
    target: PathBuf,
    /// The directory in the volume, or below DIR; all of it if none is given.
    #[arg(value_name = "PATH")]
    path: Option<PathBuf>,
    /// Store the files of this list together, in its order: a path per line, as programs opened them on a
    /// mounted volume (relative paths begin at DIR), or from the root of an image.
    #[arg(long, value_name = "FILE", conflicts_with = "path")]
    trace: Option<PathBuf>,
    /// Store files together that programs have read together since the volume was mounted with the option
    /// regroup=use. DIR is any directory of the mount.
    #[arg(long, conflicts_with_all = ["trace", "path"])]
    used: bool,
    /// Move nothing, only count.
    #[arg(short = 'n', long)]
    dry_run: bool,
    /// End the regrouping of a mounted volume.
    #[arg(long, conflicts_with_all = ["trace", "used", "dry_run", "path"])]
    stop: bool,
    /// Print the result as JSON.
    #[arg(long)]
    json: bool,
}

impl Regroup {
    /// Regroups, and prints the counts of moved files.
    pub fn run(self) -> anyhow::Result<ExitCode> {
        let status = self.regroup().with_context(|| self.target.display().to_string())?;
        if self.json {
            output::json(&json!(status))?;
        } else {
            self.print(&status)?;
        }
        if status.progress.moved_files == 0 && status.progress.without_room > 0 {
            bail!(
                "{}: no free run is long enough for {}; delete something, or grow the volume",
                self.target.display(),
                counted(status.progress.without_room, "scattered file")
            );
        }
        Ok(ExitCode::SUCCESS)
    }

    fn regroup(&self) -> anyhow::Result<RegroupStatus> {
        if let Some(mounted) = names::mounted(&self.target)? {
            return self.on_server(&mounted.join(self.path.as_deref())?);
        }
        if self.target.is_dir() {
            bail!(AskError::NotMounted);
        }
        if self.stop {
            bail!("the volume is not mounted: there is nothing to stop");
        }
        if self.used {
            bail!("the volume is not mounted: --used is for a mount with the option regroup=use");
        }
        let access = if self.dry_run { Access::ReadOnly } else { Access::ReadWrite };
        self.on_image(image::open_device(&self.target, access)?)
    }

    fn on_image(&self, device: FileDevice) -> anyhow::Result<RegroupStatus> {
        let options = OpenOptions { read_only: self.dry_run, ..OpenOptions::default() };
        let files = Files::new(image::open_volume(&self.target, device, options)?);
        let traced = match &self.trace {
            Some(trace) => Some(listed(trace, |path| {
                let node = files.node(path).ok()?;
                Some(node.ino())
            })?),
            None => None,
        };
        let path = self.path.as_ref().map_or(&b"/"[..], |path| path.as_os_str().as_bytes());
        let dir = files.node(path).with_context(|| output::printable(path))?;
        let what = traced.as_deref().map_or(Scattered::Tree(dir.ino()), Scattered::Files);
        let options = RegroupOptions { dry_run: self.dry_run, ..RegroupOptions::default() };
        let bar = self.bar();
        let done = files.volume().regroup(what, &options, &mut |progress| {
            show(&bar, &RegroupStatus::new(Stage::Running, progress));
            ControlFlow::Continue(())
        });
        bar.finish_and_clear();
        drop(dir);
        files.close()?;
        Ok(RegroupStatus::new(Stage::Done, &done?))
    }

    fn on_server(&self, directory: &Path) -> anyhow::Result<RegroupStatus> {
        if self.stop {
            if control::regroup_status(directory)?.stage != Stage::Running {
                bail!("no regrouping is under way: there is nothing to stop");
            }
            control::request(directory, Request::StopRegroup)?;
            return self.follow(directory);
        }
        let dry_run = self.dry_run;
        let run = |which| {
            control::request(directory, Request::Regroup(RegroupRequest { dry_run, which }))?;
            self.follow(directory)
        };
        let Some(trace) = &self.trace else {
            return run(if self.used { Which::Used } else { Which::Tree });
        };
        let volume = fs::metadata(directory)?.st_dev();
        let files = listed(trace, |path| {
            let found = fs::metadata(directory.join(OsStr::from_bytes(path))).ok()?;
            (found.st_dev() == volume).then(|| InodeNo(found.st_ino()))
        })?;
        let mut sum = RegroupStatus { stage: Stage::Done, ..RegroupStatus::default() };
        for files in files.chunks(FILES_AT_ONCE) {
            let status = run(Which::Files(files.to_vec()))?;
            if status.stage == Stage::Stopped {
                sum.stage = Stage::Stopped;
            }
            sum.progress += &status.progress;
        }
        Ok(sum)
    }

    /// Waits until the server's regrouping has ended.
    fn follow(&self, directory: &Path) -> anyhow::Result<RegroupStatus> {
        let bar = self.bar();
        loop {
            let status = control::regroup_status(directory)
                .context("the volume was unmounted before it was regrouped")?;
            show(&bar, &status);
            if status.stage != Stage::Running {
                bar.finish_and_clear();
                return match status.failure {
                    Some(why) => bail!("{why}"),
                    None => Ok(status),
                };
            }
            thread::sleep(POLL_INTERVAL);
        }
    }

    fn bar(&self) -> ProgressBar {
        progress::counter("regroup", None, "files", self.json)
    }

    fn print(&self, status: &RegroupStatus) -> anyhow::Result<()> {
        let name = self.target.display();
        say!("{name}: {}", summary(status, self.dry_run))?;
        for (count, why) in [
            (status.progress.protected, "immutable or append-only"),
            (status.progress.damaged, "damaged: cffs scrub says more"),
            (status.progress.without_room, "without a free run that is long enough"),
        ] {
            if count > 0 {
                say!("{name}: {} not moved: {why}", counted(count, "file"))?;
            }
        }
        if status.progress.freed_bytes > 0 {
            let freed = size::show(status.progress.freed_bytes);
            say!("{name}: {freed} of dead contents in clusters freed")?;
        }
        if status.stage == Stage::Stopped {
            say!("{name}: ended before it was complete")?;
        }
        Ok(())
    }
}

/// The numbers of moved files, and the gain.
fn summary(status: &RegroupStatus, dry_run: bool) -> String {
    let RegroupStatus { stage, progress, .. } = status;
    let files = counted(progress.files, "file");
    let verb = if dry_run { "to be moved" } else { "moved" };
    if progress.moved_files > 0 {
        return format!(
            "{files} examined, {} ({}) {verb}; reading these takes {} instead of {}",
            counted(progress.moved_files, "file"),
            size::show(progress.moved_bytes),
            accesses(progress.accesses_after),
            progress.accesses_before
        );
    }
    if *stage == Stage::Done && progress.without_room == 0 && progress.damaged == 0 {
        let gain = "no move would halve the cost of reading";
        return format!("{files} examined, nothing to gain: {gain}");
    }
    format!("{files} examined, none {verb}")
}

/// A number of device accesses, in words.
fn accesses(count: u64) -> String {
    if count == 1 { String::from("1 access") } else { format!("{count} accesses") }
}

fn show(bar: &ProgressBar, status: &RegroupStatus) {
    bar.set_position(status.progress.files);
    bar.set_message(format!("{} moved", size::show(status.progress.moved_bytes)));
}

/// The existing files of a list.
fn listed(list: &Path, find: impl Fn(&[u8]) -> Option<InodeNo>) -> anyhow::Result<Vec<InodeNo>> {
    let text = fs::read(list).with_context(|| list.display().to_string())?;
    let lines: Vec<&[u8]> =
        text.split(|byte| *byte == b'\n').filter(|line| !line.is_empty()).collect();
    let found: Vec<InodeNo> = lines.iter().filter_map(|line| find(line)).collect();
    let missing = lines.len() - found.len();
    if missing > 0 {
        note!("cffs: {}: {missing} of {} paths are not on the volume", list.display(), lines.len());
    }
    Ok(found)
}
