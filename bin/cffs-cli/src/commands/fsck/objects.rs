//! Missing and damaged objects of a volume in a store, in a check. They can often be restored, so without
//! `--without-objects` the check refuses to continue, and changes nothing.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context, bail};
use cffs::fsck::{self, CheckOptions, Progress, Repair, Report};
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
    /// How many of these the volume no longer needs.
    given_up: usize,
    /// How many more the check met.
    missed: usize,
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
            given_up: 0,
            missed: 0,
        }
    }

    /// Finds missing objects and those that are cut off, and if `contents` is set, all damaged ones.
    pub fn find(&mut self, contents: bool) -> anyhow::Result<()> {
        let mut nothing = |_| {};
        let read: Option<&mut dyn FnMut(u64)> = if contents { Some(&mut nothing) } else { None };
        let found = self.device.verify(read).with_context(|| self.target.display().to_string())?;
        self.add(found);
        Ok(())
    }

    fn add(&mut self, found: Vec<Unusable>) {
        let in_words = |Unusable { object, why, bytes }: &Unusable| {
            (object.clone(), format!("{why} ({} of the volume are in it)", size::show(*bytes)))
        };
        self.unusable.extend(found.iter().map(in_words));
        self.found.extend(found);
    }

    /// Adds the ranges of the volume that are lost with the objects to the options of the check. Only reading
    /// shows that an encrypted object was changed: if not all were read, a check without repair shows the
    /// changed ones that the check will meet.
    pub fn find_lost(
        &mut self,
        options: &mut CheckOptions,
        progress: &dyn Progress,
    ) -> Result<(), anyhow::Error> {
        if self.device.is_encrypted() && !options.contents {
            let dry = CheckOptions { repair: Repair::No, ..options.clone() };
            // The check itself reports its errors.
            let _ = fsck::check(&*self.device, &dry, progress);
            let met = self.newly_met()?;
            self.add(met);
        }
        options.lost = self.device.lost_with(&self.found)?;
        Ok(())
    }

    /// The missing and damaged objects that reads found, and no search before.
    fn newly_met(&self) -> anyhow::Result<Vec<Unusable>> {
        let mut met = self.device.verify_met()?;
        met.retain(|one| self.found.iter().all(|known| known.object != one.object));
        Ok(met)
    }

    /// Removes the objects from a repaired volume, except the lost ranges in which files have contents.
    pub fn give_up(&mut self, report: &mut Report) -> io::Result<()> {
        if self.found.is_empty() {
            return Ok(());
        }
        let needed = self.device.give_up(&self.found, &report.lost_contents)?;
        self.given_up = self.found.len() - needed.len();
        // They were in the objects.
        report.unreadable_sectors = 0;
        report.changed = true;
        Ok(())
    }

    /// Whether reads found objects that are missing or damaged.
    pub fn have_met(&self) -> bool {
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

    /// Counts the objects that only the check itself has met: it may read more than the search before it. An
    /// object that can be read is not among them, since its metadata is repaired.
    pub fn count_missed(&mut self) -> anyhow::Result<()> {
        self.missed = self.newly_met()?.len();
        Ok(())
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

    /// Names the objects whose contents the check took for lost, and counts the lost inodes. Returns the
    /// least exit code of the check.
    pub fn print_lost(&self, report: Option<&Report>) -> u8 {
        self.name_all();
        let Some(report) = report else { return 0 };
        let name = self.target.display();
        let lost = self.inodes.unwrap_or_default().saturating_sub(report.inodes);
        if let Some(before) = self.inodes.filter(|_| lost > 0 && !self.unusable.is_empty()) {
            let outcome = if report.changed { "are lost" } else { "would be lost" };
            note!("{name}: {} of {before} {outcome} with these objects", counted(lost, "inode"));
        }
        let them = |count| if count == 1 { "it" } else { "them" };
        if self.given_up > 0 {
            let (objects, them) = (counted(self.given_up as u64, "object"), them(self.given_up));
            note!("{name}: {objects} removed from the volume, which no longer needs {them}");
        }
        let left = self.found.len() - self.given_up + self.missed;
        match left {
            0 => u8::from(self.given_up > 0),
            _ => {
                // Otherwise the verdict says what to do.
                if report.problems.is_empty() || self.missed > 0 {
                    note!(
                        "{name}: cffs fsck -y --without-objects {name} removes {} from the volume",
                        counted(left as u64, "object")
                    );
                }
                super::PROBLEMS_LEFT
            }
        }
    }

    fn name_all(&self) {
        for (object, why) in &self.unusable {
            note!("{}: object {object}: {why}", self.target.display());
        }
    }
}
