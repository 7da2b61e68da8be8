//! `place pack`: moves the contents of files side by side, in place.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context, Result, bail};
use clap::Args;

use cffs_place::pack::{Group, Options, Packed, pack};
use cffs_place::shadow::Shadow;
use cffs_place::tree::{self, FileEntry, Unseen};
use cffs_place::volume::Volume;

use super::{bar, counter, ends, paths_in, print_unseen, size};
use crate::Interrupt;
use crate::output::{self, counted, note, say};

/// Move the contents of files side by side, in place and while they are in use
///
/// Stores the files of each directory below DIR one after the other, by name; with --trace those of a list,
/// in its order. A file keeps its inode, names, times, attributes and contents, and programs that have it
/// open notice nothing. Directories whose files are already side by side are left alone.
///
/// If it is interrupted, at any moment, nothing is left behind. Files that others keep writing to are named
/// at the end, and the exit status is 1.
///
/// With --group, the contents go to that group of the volume, also from files that are side by side
/// elsewhere. The inodes stay where they are.
///
/// On XFS and btrfs, files that share blocks with clones or snapshots stay where they are, since moving them
/// would take the space twice. XFS needs reflink=1, the default of mkfs.xfs.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub struct Pack {
    /// The directory.
    #[arg(required_unless_present = "trace", conflicts_with = "trace")]
    directory: Option<PathBuf>,
    /// The files that this list names, in its order (place trace).
    #[arg(long, value_name = "FILE")]
    trace: Option<PathBuf>,
    /// The paths of the list end with a zero byte.
    #[arg(short = '0', long, requires = "trace")]
    null: bool,
    /// Move the contents to this group (place groups). Needs place init.
    #[arg(long, value_name = "N")]
    group: Option<u64>,
    /// Only print what would be moved.
    #[arg(short = 'n', long)]
    dry_run: bool,
    /// Larger files stay where they are.
    #[arg(long, value_name = "SIZE", value_parser = size, default_value = "1M")]
    max_size: u64,
    /// Name each file that stays where it is, with the reason.
    #[arg(short, long)]
    verbose: bool,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

const EXAMPLES: &str = "\
Examples:
  place pack --dry-run /srv/tree
  place pack /srv/tree
  place pack --group 3 /srv/logs
  place trace -o t -- ./start && place pack --trace t";

impl Pack {
    /// Moves the files and prints a summary.
    pub fn run(self, interrupt: &Interrupt) -> Result<ExitCode> {
        let (volume, groups, unseen) = self.groups()?;
        let files = groups.iter().map(|group| group.len() as u64).sum();
        let progress = bar(files, if self.dry_run { "looking" } else { "packing" });
        let shadow = self.shadow(&groups)?;
        let options = Options {
            file_bytes_max: self.max_size,
            dry_run: self.dry_run,
            group: shadow.as_ref().zip(self.group),
        };
        let seen = || progress.inc(1);
        let packed = pack(&volume, groups, &options, &seen, &|| interrupt.is_set())?;
        progress.finish_and_clear();
        match self.json {
            true => output::json(&packed)?,
            false => self.print(&packed)?,
        }
        let is_unseen = print_unseen(&unseen);
        Ok(match () {
            () if packed.interrupted => ExitCode::from(130),
            () if is_unseen || !packed.busy.is_empty() => ExitCode::FAILURE,
            () => ExitCode::SUCCESS,
        })
    }

    /// The tree of the group to move to, if one was given.
    fn shadow(&self, groups: &[Group]) -> Result<Option<Shadow>> {
        let Some(group) = self.group else { return Ok(None) };
        let first = groups.iter().flatten().next().map(|file| file.path.clone());
        let at = self.directory.as_ref().map(|directory| directory.join("any")).or(first);
        let shadow = Shadow::find(&at.context("no files")?)?;
        shadow.directory(group)?;
        Ok(Some(shadow))
    }

    /// The files to make contiguous, by group.
    fn groups(&self) -> Result<(Volume, Vec<Group>, Vec<Unseen>)> {
        let counter = counter("looking at files:");
        if let Some(directory) = &self.directory {
            let volume = Volume::of(directory)?;
            let (found, unseen) = tree::walk(directory, true, |entries| counter.inc(entries))?;
            let groups = found.into_iter().map(|directory| directory.files).collect();
            return Ok((volume, groups, unseen));
        }
        let list = self.trace.as_deref().context("a directory or --trace")?;
        let paths = paths_in(list, ends(self.null))?;
        let Some(first) = paths.iter().find(|path| path.exists()) else {
            bail!("{}: none of the files in the list exists", list.display());
        };
        let volume = Volume::of(first)?;
        let (mut group, mut unseen) = (Group::new(), Vec::new());
        for path in paths {
            counter.inc(1);
            let is_here = std::fs::symlink_metadata(&path).is_ok_and(|status| {
                use std::os::unix::fs::MetadataExt;
                status.is_file() && status.dev() == volume.device
            });
            // A trace also lists files of other volumes and of /proc, and deleted ones.
            if !is_here {
                continue;
            }
            match FileEntry::look(path.clone(), true) {
                Ok(file) => group.extend(file),
                Err(error) => unseen.push((path, error)),
            }
        }
        Ok((volume, vec![group], unseen))
    }

    fn print(&self, packed: &Packed) -> Result<()> {
        let verb = if self.dry_run { "would be moved" } else { "moved" };
        say!(
            "{} {verb} ({} KiB), {} already contiguous, {} left in place",
            counted(packed.moved, "file"),
            packed.moved_bytes >> 10,
            packed.in_place,
            packed.left.len() + packed.busy.len(),
        )?;
        let mut reasons: BTreeMap<&str, u64> = BTreeMap::new();
        for left in &packed.left {
            *reasons.entry(&left.why).or_default() += 1;
            if self.verbose {
                say!("{}: {}", left.path.display(), left.why)?;
            }
        }
        for (why, files) in reasons {
            say!("  {files}: {why}")?;
        }
        for path in &packed.busy {
            note!("place: {}: busy: other programs keep writing to it; try again", path.display());
        }
        if packed.interrupted {
            note!("place: interrupted; moved files stay, and the rest can be packed later");
        }
        Ok(())
    }
}
