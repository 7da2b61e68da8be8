//! Trees in a chosen group.
//!
//! A tree is copied within the tree's directory of the group, directories first, and renamed when it is
//! complete. So a killed command leaves nothing at the destination.

use std::collections::HashMap;
use std::fs::{self, File, Metadata, Permissions};
use std::os::unix::fs::{MetadataExt, PermissionsExt, lchown, symlink};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use rustix::fs::{
    AtFlags, CWD, Mode, OFlags, ResolveFlags, Timespec, Timestamps, openat2, syncfs, utimensat,
};

use crate::controlled::{
    Duplicate, Kept, copy_file, dress, make_directory, move_file, name, outdated, refuse_existing,
};
use crate::shadow::{NAME, Shadow};
use crate::source::Source;

/// The name of an unfinished tree in its group's directory.
const UNFINISHED: &str = "tree";

/// The mode of a directory whose owner may change it.
const WRITABLE: u32 = 0o700;

/// An entry of a tree, with its path from the root.
struct Entry {
    path: PathBuf,
    status: Metadata,
}

/// Copies a file or a tree into a group, with contents, extended attributes, mode, times and, for root,
/// owner. Returns the names of the attributes that were left out because only root may set them.
pub fn copy(shadow: &Shadow, from: &Path, to: &Path, group: u64) -> Result<Vec<String>> {
    refuse_existing(to)?;
    let source = Source::open(from)?;
    let status = source.status(Path::new("")).with_context(|| from.display().to_string())?;
    if !status.is_dir() {
        return copy_file(shadow, &source, &status, to, group);
    }
    let entries = list(from, &source, to)?;
    Unfinished::fill(shadow, &source, &entries, group)?.finish(to)
}

/// Copies a file or a tree into a group under another name, and removes the old one. Refuses a source that
/// cannot be copied exactly or that other programs change meanwhile: it is checked before the copy gets its
/// name, and again when the copy is on the device, immediately before the source is removed.
pub fn relocate(shadow: &Shadow, from: &Path, to: &Path, group: u64) -> Result<()> {
    refuse_existing(to)?;
    let source = Source::open(from)?;
    let status = source.written_back().with_context(|| from.display().to_string())?;
    if !status.is_dir() {
        return move_file(shadow, &source, &status, to, group);
    }
    source.refuse_nameless()?;
    let entries = list(from, &source, to)?;
    // As in `written_back`: a later write through a mapping then changes the time of its file.
    source.write_back(&status).with_context(|| from.display().to_string())?;
    refuse_other_names(&source, &entries)?;
    let unfinished = Unfinished::fill(shadow, &source, &entries, group)?;
    unfinished.kept.all_of(from)?;
    // Now, so that little remains to be written between the two checks.
    syncfs(File::open(shadow.root())?).context("syncfs")?;
    let changed = |entry: &&Entry| source.has_changed(&entry.path, &entry.status);
    if let Some(entry) = entries.iter().find(changed) {
        bail!("{}: changed meanwhile; not moved", source.shown(&entry.path).display());
    }
    unfinished.finish(to)?;
    syncfs(File::open(to).with_context(|| to.display().to_string())?).context("syncfs")?;
    if let Some(entry) = entries.iter().find(changed) {
        bail!(outdated(&source.shown(&entry.path), to));
    }
    // Entries that other programs made meanwhile are not removed, nor are their directories.
    for entry in entries.iter().rev() {
        source.remove(&entry.path, &entry.status).with_context(|| {
            format!("{}: copied completely, but not removed", source.shown(&entry.path).display())
        })?;
    }
    Ok(())
}

/// All entries of a tree, the root first and each directory before its entries.
fn list(from: &Path, source: &Source, to: &Path) -> Result<Vec<Entry>> {
    let root = fs::canonicalize(from).with_context(|| from.display().to_string())?;
    let above = to.parent().filter(|above| !above.as_os_str().is_empty());
    let above = fs::canonicalize(above.unwrap_or(Path::new(".")))
        .with_context(|| format!("the directory of {}", to.display()))?;
    if above.starts_with(&root) {
        bail!("{}: it is in {}, which is copied", to.display(), from.display());
    }
    let mut entries = Vec::new();
    let mut pending = vec![PathBuf::new()];
    while let Some(path) = pending.pop() {
        let at = source.shown(&path);
        let status = source.status(&path).with_context(|| at.display().to_string())?;
        let device = entries.first().map_or(status.dev(), |root: &Entry| root.status.dev());
        if status.dev() != device {
            bail!("{}: another file system is mounted there; copy it by itself", at.display());
        }
        let kind = status.file_type();
        if !(kind.is_dir() || kind.is_file() || kind.is_symlink()) {
            bail!("{}: neither a file, a directory nor a symbolic link", at.display());
        }
        if kind.is_dir() {
            if at.file_name().is_some_and(|name| name == NAME) {
                bail!("{}: a tree of place init cannot be moved or copied", at.display());
            }
            let mut names =
                source.names(&path, &status).with_context(|| at.display().to_string())?;
            names.sort_by(|a, b| b.cmp(a));
            pending.extend(names.iter().map(|name| path.join(name)));
        }
        entries.push(Entry { path, status });
    }
    Ok(entries)
}

/// Refuses a tree with a file that has a name elsewhere, which would still refer to the old file.
fn refuse_other_names(source: &Source, entries: &[Entry]) -> Result<()> {
    let mut names: HashMap<u64, u64> = HashMap::new();
    for entry in entries {
        *names.entry(entry.status.ino()).or_default() += 1;
    }
    let has_others = |entry: &&Entry| {
        !entry.status.is_dir() && entry.status.nlink() > names[&entry.status.ino()]
    };
    match entries.iter().find(has_others) {
        Some(entry) => bail!(
            "{}: it has other names outside the tree, which would still refer to the old file",
            source.shown(&entry.path).display()
        ),
        None => Ok(()),
    }
}

/// A copy in its group's directory, removed when dropped.
struct Unfinished {
    root: Option<PathBuf>,
    kept: Kept,
    /// Directories that their owner may not change, with their inodes and modes: set when the tree has its
    /// name.
    read_only: Vec<(PathBuf, u64, u32)>,
}

impl Unfinished {
    fn fill(shadow: &Shadow, source: &Source, entries: &[Entry], group: u64) -> Result<Unfinished> {
        let root = shadow.directory(group)?.join(UNFINISHED);
        let mut copy =
            Unfinished { root: Some(root.clone()), kept: Kept::default(), read_only: Vec::new() };
        // Not by `join`: the root's path is empty, and its name would end with a slash.
        let at = |entry: &Entry| -> PathBuf {
            root.components().chain(entry.path.components()).collect()
        };
        let directories = || entries.iter().filter(|entry| entry.status.is_dir());
        for directory in directories() {
            make_directory(shadow, &at(directory), 0o700, group)?;
        }
        let mut known: HashMap<u64, PathBuf> = HashMap::new();
        for entry in entries.iter().filter(|entry| !entry.status.is_dir()) {
            let at = at(entry);
            if let Some(other) = known.get(&entry.status.ino()) {
                fs::hard_link(other, &at).with_context(|| at.display().to_string())?;
                continue;
            }
            match entry.status.is_symlink() {
                true => copy_link(source, entry, &at)
                    .map(|has_owner| copy.kept.lacks_owner |= !has_owner)
                    .with_context(|| source.shown(&entry.path).display().to_string())?,
                false => {
                    let file = Duplicate::of(shadow, source, &entry.path, &entry.status, group)?;
                    name(&file.file, &at)?;
                    copy.note(file.kept);
                }
            }
            if entry.status.nlink() > 1 {
                known.insert(entry.status.ino(), at);
            }
        }
        // Last, since each entry changes the times of its directory, and a mode may forbid entries.
        for directory in directories().collect::<Vec<_>>().into_iter().rev() {
            let made = File::open(at(directory)).context("open a copied directory")?;
            copy.dress_directory(source, directory, &made)
                .with_context(|| source.shown(&directory.path).display().to_string())?;
        }
        Ok(copy)
    }

    fn dress_directory(&mut self, source: &Source, entry: &Entry, made: &File) -> Result<()> {
        let original = source.read(&entry.path, &entry.status)?;
        let kept = dress(&original, &entry.status, made)?;
        let status = made.metadata()?;
        let mode = status.mode();
        if mode & WRITABLE != WRITABLE {
            made.set_permissions(Permissions::from_mode(mode | WRITABLE))?;
            self.read_only.push((entry.path.clone(), status.ino(), mode));
        }
        self.note(kept);
        Ok(())
    }

    fn note(&mut self, kept: Kept) {
        self.kept.lacks_owner |= kept.lacks_owner;
        self.kept.left_out.extend(kept.left_out);
        self.kept.left_out.sort();
        self.kept.left_out.dedup();
    }

    /// Gives the tree its name. Returns the attributes that were left out.
    fn finish(mut self, to: &Path) -> Result<Vec<String>> {
        let at = || to.display().to_string();
        if let Some(root) = &self.root {
            let held = File::open(root).context("open the copy")?;
            fs::rename(root, to).with_context(at)?;
            self.root = None;
            for (path, inode, mode) in &self.read_only {
                set_mode(&held, path, *inode, *mode)
                    .with_context(|| to.join(path).display().to_string())?;
            }
        }
        Ok(std::mem::take(&mut self.kept.left_out))
    }
}

impl Drop for Unfinished {
    fn drop(&mut self) {
        // The next command removes the rest if this fails.
        let _ = self.root.take().map(fs::remove_dir_all);
    }
}

/// Sets the mode of a directory in a tree that its owner may already change.
fn set_mode(tree: &File, path: &Path, inode: u64, mode: u32) -> Result<()> {
    let path = if path.as_os_str().is_empty() { Path::new(".") } else { path };
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let within = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS;
    let directory = File::from(openat2(tree, path, flags, Mode::empty(), within)?);
    if directory.metadata()?.ino() != inode {
        bail!("replaced meanwhile; its mode is not set");
    }
    Ok(directory.set_permissions(Permissions::from_mode(mode))?)
}

/// Makes a symbolic link like another; whether it has the same owner.
fn copy_link(source: &Source, entry: &Entry, at: &Path) -> Result<bool> {
    let status = &entry.status;
    symlink(source.link_target(&entry.path)?, at)?;
    let has_owner = lchown(at, Some(status.uid()), Some(status.gid())).is_ok();
    let time = |tv_sec, tv_nsec| Timespec { tv_sec, tv_nsec };
    let times = Timestamps {
        last_access: time(status.atime(), status.atime_nsec()),
        last_modification: time(status.mtime(), status.mtime_nsec()),
    };
    utimensat(CWD, at, &times, AtFlags::SYMLINK_NOFOLLOW)?;
    Ok(has_owner)
}
