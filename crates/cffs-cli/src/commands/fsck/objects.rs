//! Missing and damaged objects of a volume in a store, in a check. They can often be restored, so without
//! `--without-objects` the check refuses to continue, and changes nothing.

use std::collections::BTreeMap;
use std::io;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context, bail};
use cffs::fsck::Report;
use cffs::vfs::read_superblock;
use cffs_object::{LogDevice, Unusable};

use crate::output::{counted, note};
use crate::size;

/// The objects of a volume that are missing or damaged.
pub(super) struct Objects {
    target: PathBuf,
    device: Arc<LogDevice>,
    /// The fault of each, by path in the store.
    unusable: BTreeMap<String, String>,
    /// Those that a search found.
    found: Vec<Unusable>,
    /// The inodes of the volume, by its superblock.
    inodes: Option<u64>,
}

impl Objects {
    /// The objects of a volume; no missing or damaged one is known yet.
    pub fn new(target: &Path, device: Arc<LogDevice>) -> Objects {
        let inodes = read_superblock(&*device).ok().map(|superblock| superblock.inodes);
        Objects {
            target: target.to_owned(),
            device,
            unusable: BTreeMap::new(),
            found: Vec::new(),
            inodes,
        }
    }

    /// Finds missing objects and those that are cut off, and if `contents` is set, all damaged ones.
    pub fn find(&mut self, contents: bool) -> anyhow::Result<()> {
        let mut nothing = |_| {};
        let read: Option<&mut dyn FnMut(u64)> = if contents { Some(&mut nothing) } else { None };
        let found = self.device.verify(read).with_context(|| self.target.display().to_string())?;
        let in_words = |Unusable { object, why, bytes }: &Unusable| {
            (object.clone(), format!("{why} ({} of the volume are in it)", size::show(*bytes)))
        };
        self.unusable.extend(found.iter().map(in_words));
        self.found = found;
        Ok(())
    }

    /// The ranges of the volume that are lost with the objects found.
    pub fn lost(&self) -> io::Result<Vec<Range<u64>>> {
        self.device.lost_with(&self.found)
    }

    /// Discards the lost ranges of a repaired volume, except those in which files have contents.
    pub fn give_up(&self, report: &Report) -> io::Result<()> {
        match self.found.is_empty() {
            true => Ok(()),
            false => self.device.give_up(&self.found, &report.lost_contents),
        }
    }

    /// Whether reads found objects that are missing or damaged.
    pub fn have_more(&self) -> bool {
        !self.device.met().is_empty()
    }

    /// Drops the repairs that are not committed: they may rest on damaged objects.
    pub fn drop_repairs(&self) -> io::Result<()> {
        self.device.drop_changes()
    }

    /// Adds the objects that reads found.
    pub fn take_met(&mut self) {
        for (object, why) in self.device.met() {
            self.unusable.entry(object).or_insert(why);
        }
    }

    /// Fails if there is such an object: names all, and the remedy.
    pub fn refuse(&self) -> anyhow::Result<()> {
        if self.unusable.is_empty() {
            return Ok(());
        }
        let name = self.target.display();
        self.name_all();
        let (are, them) = if self.unusable.len() == 1 { ("is", "it") } else { ("are", "them") };
        bail!(
            "{name}: {} {are} missing or damaged; nothing was changed. Put {them} back, from a copy or from \
             older versions of the objects in the store, or read a version of the volume (cffs snapshot \
             ls). If neither is possible, cffs fsck -n --without-objects {name} lists what is lost, and -y \
             instead of -n gives it up; remove files that lost contents then, or write these again",
            counted(self.unusable.len() as u64, "object")
        )
    }

    /// Names the objects whose contents the check took for lost, and counts the lost inodes.
    pub fn print_lost(&self, report: Option<&Report>) -> anyhow::Result<()> {
        self.name_all();
        let (Some(before), Some(report)) = (self.inodes, report) else { return Ok(()) };
        let lost = before.saturating_sub(report.inodes);
        if lost > 0 && !self.unusable.is_empty() {
            let outcome = if report.changed { "are lost" } else { "would be lost" };
            note!(
                "{}: {} of {before} {outcome} with these objects",
                self.target.display(),
                counted(lost, "inode")
            );
        }
        Ok(())
    }

    fn name_all(&self) {
        for (object, why) in &self.unusable {
            note!("{}: object {object}: {why}", self.target.display());
        }
    }
}
