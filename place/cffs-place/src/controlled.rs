//! Directories and files in a chosen group.
//!
//! Each is made in the tree's directory of that group ([`crate::shadow`]) and checked, and only then gets its
//! name; until then, a file has no name. A directory or file that is in another group is removed, and the
//! error gives the reason.

use std::fs::{self, DirBuilder, File, Metadata, Permissions};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{DirBuilderExt, FileExt, MetadataExt, PermissionsExt, fchown};
use std::path::Path;

use anyhow::{Context, Result, bail};
use rustix::fs::{AtFlags, CWD, XattrFlags, fgetxattr, flistxattr, fsetxattr, linkat, syncfs};
use rustix::io::Errno;

use crate::full::{Full, no_inodes};
use crate::room::{Size, set_aside};
use crate::shadow::{Shadow, TRIES, remove_lists};
use crate::source::Source;

/// Calls a function for a group and, as long as groups are full, for the others in the order of their
/// distance. Returns the group for which it succeeded.
pub fn nearby<T>(shadow: &Shadow, group: u64, work: impl Fn(u64) -> Result<T>) -> Result<(T, u64)> {
    shadow.groups().check(group)?;
    let mut first = None;
    let others = shadow.groups().by_distance(group);
    for near in others.into_iter().filter(|&near| near == group || shadow.directory(near).is_ok()) {
        match work(near) {
            Err(error) if error.downcast_ref::<Full>().is_some() => {
                first.get_or_insert(error);
            }
            result => return result.map(|made| (made, near)),
        }
    }
    Err(first.context("no group")?.context("no group has room"))
}

/// Makes an empty directory in a group, and returns how many attempts it took.
pub fn make_directory(shadow: &Shadow, path: &Path, mode: u32, group: u64) -> Result<u64> {
    refuse_existing(path)?;
    let above = shadow.directory(group)?;
    let mut refused = Vec::new();
    let mut made = None;
    // Root can request a group that the kernel avoids, for example because the journal fills it.
    let mut goal = None;
    for number in 0..TRIES {
        let at = above.join(format!("d{number}"));
        DirBuilder::new().mode(mode).create(&at).with_context(|| at.display().to_string())?;
        if shadow.groups().of_inode(fs::metadata(&at).context("look at a directory")?.ino())
            == group
        {
            made = Some(at);
            break;
        }
        // Directories in wrong groups stay until one is in the right group: otherwise the next one would get
        // the same place.
        refused.push(at);
        goal = goal.or_else(|| shadow.goal(group));
    }
    drop(goal);
    refused.iter().try_for_each(fs::remove_dir).context("remove directories in wrong groups")?;
    let Some(at) = made else {
        return Err(no_inodes(group, "directory").into());
    };
    fs::rename(&at, path)
        .or_else(|error| {
            fs::remove_dir(&at)?;
            Err(error)
        })
        .with_context(|| path.display().to_string())?;
    Ok(refused.len() as u64 + 1)
}

/// Makes an empty file in a group, with room for this many bytes that programs will write. On XFS, contents
/// follow the inode also without room. ext4 puts contents without room where the processor has preallocated
/// space.
pub fn create_file(shadow: &Shadow, path: &Path, mode: u32, group: u64, room: u64) -> Result<()> {
    refuse_existing(path)?;
    let mut file = shadow.nameless(mode, group)?;
    if room > 0 {
        let mode = file.metadata().context("read the attributes of a file")?.permissions();
        file = set_aside(shadow, group, room, Size::Stays)?;
        file.set_permissions(mode).context("set the mode")?;
    }
    name(&file, path)
}

/// See [`crate::trees::copy`].
pub(crate) fn copy_file(
    shadow: &Shadow,
    from: &Source,
    status: &Metadata,
    to: &Path,
    group: u64,
) -> Result<Vec<String>> {
    let copy = Duplicate::of(shadow, from, Path::new(""), status, group)?;
    name(&copy.file, to)?;
    Ok(copy.kept.left_out)
}

/// A copy without a name.
pub(crate) struct Duplicate {
    pub file: File,
    pub kept: Kept,
}

/// The properties of the original that a copy lacks.
#[derive(Debug, Default)]
pub(crate) struct Kept {
    pub lacks_owner: bool,
    pub left_out: Vec<String>,
}

impl Kept {
    /// Refuses a move that would lose properties of the file.
    pub fn all_of(&self, from: &Path) -> Result<()> {
        let at = from.display();
        if self.lacks_owner {
            bail!("{at}: only root may keep its owner and group; not moved");
        }
        if !self.left_out.is_empty() {
            bail!("{at}: only root may keep {}; not moved", self.left_out.join(", "));
        }
        Ok(())
    }
}

impl Duplicate {
    /// A copy of an entry of a tree, which had this status.
    pub fn of(
        shadow: &Shadow,
        from: &Source,
        entry: &Path,
        expected: &Metadata,
        group: u64,
    ) -> Result<Duplicate> {
        let at = || from.shown(entry).display().to_string();
        if !expected.is_file() {
            bail!("{}: neither a regular file nor a directory", at());
        }
        let source = from.read(entry, expected).with_context(at)?;
        let status = source.metadata().with_context(at)?;
        let file = filled(shadow, &source, status.len(), group).with_context(at)?;
        let kept = dress(&source, &status, &file).with_context(at)?;
        Ok(Duplicate { file, kept })
    }
}

/// Gives a copy the owner, the attributes, the mode and the times of the original.
pub(crate) fn dress(source: &File, status: &Metadata, copy: &File) -> Result<Kept> {
    // Only root may change owners: copies made by other users belong to these users, as with cp, and are not
    // set-user-id.
    let has_owner = fchown(copy, Some(status.uid()), Some(status.gid())).is_ok();
    let modes = if has_owner { 0o7777 } else { 0o1777 };
    // Before the mode is set, since only root may add attributes to a read-only file; and after the owner
    // is, since that removes capabilities.
    let left_out = copy_attributes(source, copy)?;
    let mode = Permissions::from_mode(status.mode() & modes);
    copy.set_permissions(mode).context("set the mode")?;
    let times =
        fs::FileTimes::new().set_accessed(status.accessed()?).set_modified(status.modified()?);
    copy.set_times(times).context("set the times")?;
    Ok(Kept { lacks_owner: !has_owner, left_out })
}

/// Copies extended attributes, including access control lists: the copy has no lists but these. For users
/// other than root, leaves out and returns the attributes that only root may set; it is an error if a user's
/// attribute cannot be copied.
fn copy_attributes(from: &File, to: &File) -> Result<Vec<String>> {
    remove_lists(to).context("remove inherited access control lists")?;
    // The kernel supports no longer lists and values.
    let mut names = vec![0; ATTRIBUTE_BYTES_MAX];
    let length = match flistxattr(from, &mut names[..]) {
        Err(Errno::NOTSUP) => return Ok(Vec::new()),
        length => length.context("list its extended attributes")?,
    };
    let mut names: Vec<_> = names[..length].split(|&b| b == 0).filter(|n| !n.is_empty()).collect();
    // Access control lists come last: they change the mode, and may make the file read-only.
    names.sort_by_key(|name| name.starts_with(ACCESS_LIST));
    let mut value = vec![0; ATTRIBUTE_BYTES_MAX];
    let mut left_out = Vec::new();
    for name in names {
        let at = || format!("copy the extended attribute {}", String::from_utf8_lossy(name));
        let length = fgetxattr(from, name, &mut value[..]).with_context(at)?;
        match fsetxattr(to, name, &value[..length], XattrFlags::empty()) {
            Err(Errno::PERM | Errno::ACCESS) if !is_of_user(name) => {
                left_out.push(String::from_utf8_lossy(name).into_owned());
            }
            set => set.with_context(at)?,
        }
    }
    Ok(left_out)
}

/// The maximum bytes of a list of names, and of a value (`XATTR_LIST_MAX`, `XATTR_SIZE_MAX`).
const ATTRIBUTE_BYTES_MAX: usize = 64 << 10;

/// The prefix of the names of access control lists.
const ACCESS_LIST: &[u8] = b"system.posix_acl_";

/// Whether the owner of a file may set the attribute.
fn is_of_user(name: &[u8]) -> bool {
    name.starts_with(b"user.") || name.starts_with(ACCESS_LIST)
}

/// A file without a name that has the contents of another file.
fn filled(shadow: &Shadow, source: &File, bytes: u64, group: u64) -> Result<File> {
    let file = match bytes {
        0 => shadow.nameless(0o600, group)?,
        _ => set_aside(shadow, group, bytes, Size::Grows)?,
    };
    let copied = copy_contents(source, &file)?;
    if copied > bytes {
        bail!("another program is writing to it; try again");
    }
    file.set_len(copied).context("cut the copy")?;
    Ok(file)
}

/// See [`crate::trees::relocate`].
pub(crate) fn move_file(
    shadow: &Shadow,
    from: &Source,
    status: &Metadata,
    to: &Path,
    group: u64,
) -> Result<()> {
    let root = Path::new("");
    let shown = from.shown(root);
    let at = || shown.display().to_string();
    if status.nlink() > 1 {
        bail!("{}: it has other names, which would still refer to the old file", at());
    }
    let copy = Duplicate::of(shadow, from, root, status, group)?;
    copy.kept.all_of(&shown)?;
    copy.file.sync_all().with_context(at)?;
    if from.has_changed(root, status) {
        bail!("{}: changed meanwhile; not moved", at());
    }
    name(&copy.file, to)?;
    syncfs(&copy.file).context("syncfs")?;
    if from.has_changed(root, status) {
        bail!(outdated(&shown, to));
    }
    from.remove(root, status)
        .with_context(|| format!("{}: copied completely, but not removed", at()))
}

/// The message for a source that was changed when its copy had its name.
pub(crate) fn outdated(from: &Path, to: &Path) -> String {
    let (from, to) = (from.display(), to.display());
    format!("{from}: changed meanwhile; nothing is removed, and {to} is an older copy")
}

/// The group of a path's inode.
pub fn group_of(shadow: &Shadow, path: &Path) -> Result<u64> {
    let status = fs::symlink_metadata(path).with_context(|| path.display().to_string())?;
    Ok(shadow.groups().of_inode(status.ino()))
}

pub(crate) fn refuse_existing(path: &Path) -> Result<()> {
    match fs::symlink_metadata(path) {
        Ok(_) => bail!("{}: it exists", path.display()),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(error) => Err(error).with_context(|| path.display().to_string()),
    }
}

/// Gives a file its name.
pub(crate) fn name(file: &File, path: &Path) -> Result<()> {
    let from = format!("/proc/self/fd/{}", file.as_raw_fd());
    linkat(CWD, &*from, CWD, path, AtFlags::SYMLINK_FOLLOW)
        .with_context(|| path.display().to_string())
}

fn copy_contents(from: &File, to: &File) -> io::Result<u64> {
    let mut buffer = vec![0; 1 << 20];
    let mut at = 0;
    loop {
        match from.read_at(&mut buffer, at) {
            Ok(0) => return Ok(at),
            Ok(read) => {
                to.write_all_at(&buffer[..read], at)?;
                at += read as u64;
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
}
