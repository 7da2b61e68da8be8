//! A tree with a directory in each group of a volume, in which the files for that group are made.
//!
//! A file is placed in the group of the directory in which it is made, and renaming moves neither the file
//! nor its contents. So such a tree is enough to control placement; it is named `.place` and belongs to the
//! user that made it. Files in its directories are unfinished: a command locks the tree, and removes the
//! remains of killed commands. A command uses only trees of its own user that no other user may change: the
//! owner of a tree could put links in it, and so direct the command to other directories.

use std::ffi::OsStr;
use std::fs::{self, DirBuilder, File};
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use rustix::fs::{
    FlockOperation, IFlags, OFlags, flock, fremovexattr, ioctl_getflags, ioctl_setflags,
};
use rustix::io::Errno;
use rustix::process::geteuid;

use crate::full::no_inodes;
use crate::groups::{Groups, Unit};
use crate::volume::{Volume, node};

/// The name of the tree.
pub const NAME: &str = ".place";
/// In the tree: the file that commands lock.
const LOCK: &str = "lock";
/// In the tree: the directory in which directories are made until each group has one of them.
const NURSERY: &str = "new";

/// ext4's setting for where inodes are allocated.
const GOAL: &str = "inode_goal";
/// The value for the number of groups that ext4 searches from its goal on: more than exist, and a value that
/// no other program sets.
const ALL_GROUPS: u64 = 2_000_033;
/// ext4's setting for that number.
const LIMIT: &str = "mb_max_linear_groups";

/// How often a file or a directory is made again if the kernel places it in another group.
pub(crate) const TRIES: u64 = 64;

/// A tree of directories, locked for this process.
pub struct Shadow {
    root: PathBuf,
    groups: Groups,
    _lock: File,
}

/// The result of making a tree.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Made {
    /// The number of directories made, including those that were removed again.
    pub tries: u64,
    /// The groups that have a directory.
    pub reached: u64,
}

impl Shadow {
    /// Makes a tree in a directory, or the missing parts of one.
    pub fn init(directory: &Path) -> Result<(Shadow, Made)> {
        let groups = Groups::of(directory)?;
        let root = directory.join(NAME);
        make(&root)?;
        if !is_own(&root) {
            bail!(
                "{}: it is not a directory that only this user can change; use another directory",
                root.display()
            );
        }
        let shadow = Shadow::lock(root, groups)?;
        let tries = shadow.fill(directory)?;
        let reached = (0..shadow.groups.count).filter(|&group| shadow.at(group).is_dir()).count();
        Ok((shadow, Made { tries, reached: reached as u64 }))
    }

    /// The tree that a path belongs to: that of the nearest ancestor that has one of this user, on the same
    /// volume.
    pub fn find(path: &Path) -> Result<Shadow> {
        let path = std::path::absolute(path).context("the current directory")?;
        let existing = path.ancestors().skip(1).find(|above| above.is_dir());
        let existing = existing.unwrap_or(Path::new("/"));
        let device = fs::metadata(existing).with_context(|| existing.display().to_string())?.dev();
        for above in existing.ancestors() {
            if fs::metadata(above).map(|status| status.dev()).ok() != Some(device) {
                break;
            }
            let root = above.join(NAME);
            if is_own(&root) {
                let groups = Groups::of(&root)?;
                return Shadow::lock(root, groups);
            }
        }
        bail!(
            "{}: no directory above it has a tree of this user to place by; place init makes one",
            path.display()
        )
    }

    pub fn root(&self) -> &Path {
        &self.root
    }

    pub fn groups(&self) -> &Groups {
        &self.groups
    }

    pub fn directory(&self, group: u64) -> Result<PathBuf> {
        self.groups.check(group)?;
        let at = self.at(group);
        let status = fs::metadata(&at).with_context(|| {
            format!("group {group} could not be reached from {}", self.root.display())
        })?;
        if self.groups.of_inode(status.ino()) != group {
            bail!("{} is no longer in group {group}; run place init again", at.display());
        }
        Ok(at)
    }

    /// A file without a name whose inode is in a group.
    pub fn nameless(&self, mode: u32, group: u64) -> Result<File> {
        let above = self.directory(group)?;
        let mut refused = Vec::new();
        for _ in 0..TRIES {
            let file = File::options()
                .read(true)
                .write(true)
                .mode(mode)
                .custom_flags(OFlags::TMPFILE.bits() as i32)
                .open(&above)
                .with_context(|| format!("make a file without a name in {}", above.display()))?;
            if self.groups.of_inode(file.metadata().context("read the attributes of a file")?.ino())
                == group
            {
                return Ok(file);
            }
            refused.push(file);
        }
        Err(no_inodes(group, "file").into())
    }

    /// The groups in which files can be placed.
    pub fn reached(&self) -> Vec<u64> {
        (0..self.groups.count).filter(|&group| self.directory(group).is_ok()).collect()
    }

    /// Asks ext4 to allocate inodes in a group until the result is dropped; nothing without that privilege.
    pub fn goal(&self, group: u64) -> Option<Setting> {
        let goal = Setting::of(&self.root, &self.groups, GOAL)?;
        goal.set(self.groups.first_inode(group)).is_ok().then_some(goal)
    }

    /// Makes ext4 search group after group from its goal on, until the result is dropped; nothing without
    /// that privilege. Otherwise, on a device that does not rotate, it takes the best fit anywhere.
    pub fn search_from_goal(&self) -> Option<Setting> {
        let limit = Setting::of(&self.root, &self.groups, LIMIT)?;
        limit.set(ALL_GROUPS).is_ok().then_some(limit)
    }

    /// Makes ext4 read its block bitmaps: it chooses among groups whose bitmap it has read.
    pub fn learn_free_space(&self) {
        // Without them, files may be placed elsewhere; that is detected.
        let _ = self.groups.free_bytes(&self.root);
    }

    fn at(&self, group: u64) -> PathBuf {
        self.root.join(format!("g{group:05}"))
    }

    /// Waits until no other command uses the tree, and removes the remains of a killed one.
    fn lock(root: PathBuf, groups: Groups) -> Result<Shadow> {
        let at = root.join(LOCK);
        let mut options = File::options();
        let lock = options.create(true).truncate(false).write(true).open(&at);
        let lock = lock.with_context(|| at.display().to_string())?;
        flock(&lock, FlockOperation::LockExclusive).context("lock the tree")?;
        let shadow = Shadow { root, groups, _lock: lock };
        shadow.clean()?;
        // Dropping a setting restores it.
        for name in [GOAL, LIMIT] {
            drop(Setting::of(&shadow.root, &shadow.groups, name));
        }
        Ok(shadow)
    }

    /// Removes the contents of the tree's directories, and the access control lists that new files would
    /// inherit. Other entries are not part of a tree and stay.
    fn clean(&self) -> Result<()> {
        without_lists(&self.root)?;
        let entries = fs::read_dir(&self.root).with_context(|| self.root.display().to_string())?;
        for entry in entries {
            let path = entry.context("read the tree")?.path();
            let is_nursery = path.file_name().is_some_and(|name| name == NURSERY);
            if !(is_nursery || is_of_group(&path)) || !is_directory(&path) {
                continue;
            }
            without_lists(&path)?;
            for left in fs::read_dir(&path).with_context(|| path.display().to_string())? {
                let left = left.context("read the tree")?.path();
                let gone = match is_directory(&left) {
                    true => fs::remove_dir_all(&left),
                    false => fs::remove_file(&left),
                };
                gone.with_context(|| format!("clean {}", left.display()))?;
            }
            if is_nursery {
                fs::remove_dir(&path).with_context(|| path.display().to_string())?;
            }
        }
        Ok(())
    }

    /// Makes a directory for each group that the kernel lets us reach, and returns how many were made.
    fn fill(&self, directory: &Path) -> Result<u64> {
        let wrong = |group: u64| self.at(group).is_dir() && self.directory(group).is_err();
        for group in (0..self.groups.count).filter(|&group| wrong(group)) {
            fs::remove_dir(self.at(group)).context("remove a directory of another group")?;
        }
        let nursery = self.root.join(NURSERY);
        make(&nursery)?;
        spread(&nursery);
        let goal = Setting::of(directory, &self.groups, GOAL);
        let mut tries = 0;
        for group in 0..self.groups.count {
            if !self.at(group).is_dir()
                && let Some(goal) = &goal
                && goal.set(self.groups.first_inode(group)).is_ok()
            {
                tries += 1;
                self.adopt(&nursery, tries)?;
            }
        }
        drop(goal);
        let mut in_vain = 0;
        while in_vain < IN_VAIN_MAX && (0..self.groups.count).any(|group| !self.at(group).is_dir())
        {
            tries += 1;
            in_vain = if self.adopt(&nursery, tries)? { 0 } else { in_vain + 1 };
        }
        self.clean()?;
        Ok(tries)
    }

    /// Makes a directory, and keeps it if its group has none; returns whether it did. The others stay until
    /// the end, since the kernel prefers groups with few directories.
    fn adopt(&self, nursery: &Path, number: u64) -> Result<bool> {
        let at = nursery.join(number.to_string());
        make(&at)?;
        let group = self.groups.of_inode(fs::metadata(&at).context("look at a directory")?.ino());
        let place = self.at(group);
        if group >= self.groups.count || place.is_dir() {
            return Ok(false);
        }
        fs::rename(&at, &place).with_context(|| place.display().to_string())?;
        Ok(true)
    }
}

/// After this many directories in groups that already have one, the remaining groups count as unreachable. 64
/// groups took at most 1,500 directories.
const IN_VAIN_MAX: u64 = 1000;

/// Whether this is a directory, and not a link to one, of this user, that no other user may change.
fn is_own(at: &Path) -> bool {
    fs::symlink_metadata(at).is_ok_and(|status| {
        status.is_dir() && status.uid() == geteuid().as_raw() && status.mode() & 0o022 == 0
    })
}

/// Whether this is a directory, and not a link to one.
fn is_directory(at: &Path) -> bool {
    fs::symlink_metadata(at).is_ok_and(|status| status.is_dir())
}

fn without_lists(directory: &Path) -> Result<()> {
    File::open(directory)
        .and_then(|open| remove_lists(&open))
        .with_context(|| format!("remove the access control lists of {}", directory.display()))
}

/// Removes the access control lists that a file or directory has inherited.
pub(crate) fn remove_lists(file: &File) -> io::Result<()> {
    for name in ["system.posix_acl_access", "system.posix_acl_default"] {
        match fremovexattr(file, name) {
            Err(Errno::NODATA | Errno::NOTSUP) => {}
            result => result?,
        }
    }
    Ok(())
}

/// Whether a path in the tree has the name of the directory of a group.
fn is_of_group(at: &Path) -> bool {
    let digits =
        at.file_name().and_then(|name| name.to_str()).and_then(|name| name.strip_prefix('g'));
    digits.is_some_and(|digits| digits.len() >= 5 && digits.bytes().all(|b| b.is_ascii_digit()))
}

/// Makes a directory that only its owner may access, unless it exists.
fn make(at: &Path) -> Result<()> {
    match DirBuilder::new().mode(0o700).create(at) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => {
            Err(error).with_context(|| format!("make {}", at.display()))
        }
        _ => Ok(()),
    }
}

/// Tells ext4 that the subdirectories are unrelated, so that it spreads them (`chattr +T`). XFS does this by
/// default.
fn spread(directory: &Path) {
    let flag = |file: &File| {
        let flags = ioctl_getflags(file)? | IFlags::TOPDIR;
        ioctl_setflags(file, flags)
    };
    // Without it, fewer groups are reached.
    let _ = File::open(directory).map(|file| flag(&file));
}

/// ext4: a setting of the allocator, which only root may change. It applies to the whole volume, so it is set
/// only briefly, and restored when this is dropped. The next command with a tree replaces the value of a
/// killed command by the default.
pub struct Setting {
    attribute: PathBuf,
    before: String,
}

impl Setting {
    fn of(directory: &Path, groups: &Groups, name: &str) -> Option<Setting> {
        if groups.unit == Unit::AllocationGroup {
            return None;
        }
        let device = node(Volume::of(directory).ok()?.device)?;
        let device = device.file_name()?;
        let attribute = Path::new("/sys/fs/ext4").join(device).join(name);
        let before = fs::read_to_string(&attribute).ok()?.trim().to_owned();
        let before = match name {
            // No other program sets a goal.
            GOAL => String::from("0"),
            LIMIT if before == ALL_GROUPS.to_string() => String::from(usual_limit(device)),
            _ => before,
        };
        Some(Setting { attribute, before })
    }

    fn set(&self, value: u64) -> io::Result<()> {
        fs::write(&self.attribute, value.to_string())
    }
}

/// The default number of groups that ext4 searches from its goal on.
fn usual_limit(device: &OsStr) -> &'static str {
    let device = Path::new("/sys/class/block").join(device);
    // The second one is for a partition: its disk has the attribute.
    let mut rotational = ["queue/rotational", "../queue/rotational"]
        .into_iter()
        .filter_map(|attribute| fs::read_to_string(device.join(attribute)).ok());
    if rotational.next().is_some_and(|text| text.trim() == "0") { "0" } else { "4" }
}

impl Drop for Setting {
    fn drop(&mut self) {
        let _ = fs::write(&self.attribute, &self.before);
    }
}
