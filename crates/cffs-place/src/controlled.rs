//! Directories and files in a chosen group.
//!
//! Each is made in the tree's directory of that group ([`crate::shadow`]), checked, and only then given its
//! name. A file has no name until then. A directory or file that ends up in another group is removed, and the
//! error says why.

use std::fs::{self, DirBuilder, File, OpenOptions, Permissions};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{
    DirBuilderExt, FileExt, MetadataExt, OpenOptionsExt, PermissionsExt, fchown,
};
use std::path::Path;

use anyhow::{Context, Result, bail};
use rustix::fs::{
    AtFlags, CWD, FallocateFlags, OFlags, XattrFlags, fallocate, fgetxattr, flistxattr, fsetxattr,
    linkat,
};
use rustix::io::Errno;

use crate::extents::{self, Kind};
use crate::groups::Unit;
use crate::shadow::Shadow;
use crate::tree::open_for_reading;

/// How often a directory is made again if the kernel puts it into another group.
const TRIES: u64 = 64;

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
        // Refused directories stay until one is right: otherwise the next would be placed where they were.
        refused.push(at);
        goal = goal.or_else(|| shadow.goal(group));
    }
    drop(goal);
    refused.iter().try_for_each(fs::remove_dir).context("remove what was not right")?;
    let Some(at) = made else {
        bail!("group {group} takes no directory: it has no inodes left, or the kernel avoids it");
    };
    fs::rename(&at, path)
        .or_else(|error| {
            fs::remove_dir(&at)?;
            Err(error)
        })
        .with_context(|| path.display().to_string())?;
    Ok(refused.len() as u64 + 1)
}

/// Makes an empty file in a group. Its inode is there, and on XFS its later contents as well; ext4 puts the
/// contents of small files where the processor has preallocated space, so use [`copy_file`] for a file with
/// contents.
pub fn create_file(shadow: &Shadow, path: &Path, mode: u32, group: u64) -> Result<()> {
    refuse_existing(path)?;
    let file = nameless(shadow, mode, group)?;
    name(&file, path)
}

/// Copies a file into a group, with its contents, extended attributes, mode, times and, for root, owner.
/// Returns the names of the attributes that were left out because only root may set them.
pub fn copy_file(shadow: &Shadow, from: &Path, to: &Path, group: u64) -> Result<Vec<String>> {
    refuse_existing(to)?;
    let copy = Duplicate::of(shadow, from, group)?;
    name(&copy.file, to)?;
    Ok(copy.left_out)
}

/// A copy without a name.
struct Duplicate {
    file: File,
    has_owner: bool,
    left_out: Vec<String>,
}

impl Duplicate {
    fn of(shadow: &Shadow, from: &Path, group: u64) -> Result<Duplicate> {
        let at = || from.display().to_string();
        let source = open_for_reading(from).with_context(at)?;
        let status = source.metadata().with_context(at)?;
        if !status.is_file() {
            bail!("{}: not a regular file", at());
        }
        let mut tries = COPY_TRIES;
        let file = loop {
            let file = filled(shadow, &source, group).with_context(at)?;
            match (check_contents(shadow, &file, group), tries) {
                (Ok(()), _) => break file,
                (Err(error), 1) => return Err(error),
                (Err(_), _) => {
                    shadow.learn_free_space();
                    tries -= 1;
                }
            }
        };
        // Only root may give files away; the copies of others belong to them, as with cp, and are not
        // set-user-id.
        let has_owner = fchown(&file, Some(status.uid()), Some(status.gid())).is_ok();
        let modes = if has_owner { 0o7777 } else { 0o1777 };
        // Before the mode is set, since only root may add attributes to a read-only file; and after the owner
        // is, since that removes capabilities.
        let left_out = copy_attributes(&source, &file).with_context(at)?;
        let mode = Permissions::from_mode(status.mode() & modes);
        file.set_permissions(mode).context("set the mode")?;
        let times =
            fs::FileTimes::new().set_accessed(status.accessed()?).set_modified(status.modified()?);
        file.set_times(times).context("set the times")?;
        Ok(Duplicate { file, has_owner, left_out })
    }
}

/// Copies extended attributes, including access control lists. For users other than root, leaves out and
/// returns those that only root may set; an attribute of the user's that cannot be copied is an error.
fn copy_attributes(from: &File, to: &File) -> Result<Vec<String>> {
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

/// The most bytes of a list of names, and of a value (`XATTR_LIST_MAX`, `XATTR_SIZE_MAX`).
const ATTRIBUTE_BYTES_MAX: usize = 64 << 10;

/// The prefix of the names of access control lists.
const ACCESS_LIST: &[u8] = b"system.posix_acl_";

/// Whether the owner of a file may set the attribute.
fn is_of_user(name: &[u8]) -> bool {
    name.starts_with(b"user.") || name.starts_with(ACCESS_LIST)
}

/// How often contents are rewritten if ext4 puts them into another group: it skips groups whose block bitmap
/// it has not read yet.
const COPY_TRIES: u32 = 3;

/// A file without a name that has the contents of another file.
fn filled(shadow: &Shadow, source: &File, group: u64) -> Result<File> {
    let file = nameless(shadow, 0o600, group)?;
    Ok(match shadow.groups().unit {
        Unit::AllocationGroup => copy(source, &file, 0).map(|_| file)?,
        Unit::BlockGroup | Unit::FlexGroup(_) => copy_beyond(source, file)?,
    })
}

/// Copies a file into a group under another name, and removes the old one. Refuses a file that cannot be
/// copied exactly.
pub fn move_file(shadow: &Shadow, from: &Path, to: &Path, group: u64) -> Result<()> {
    let at = || from.display().to_string();
    if fs::symlink_metadata(from).with_context(at)?.nlink() > 1 {
        bail!("{}: it has other names, which would go on naming the old file", at());
    }
    refuse_existing(to)?;
    let copy = Duplicate::of(shadow, from, group)?;
    if !copy.has_owner {
        bail!("{}: only root may keep its owner and group; not moved", at());
    }
    if !copy.left_out.is_empty() {
        bail!("{}: only root may keep {}; not moved", at(), copy.left_out.join(", "));
    }
    name(&copy.file, to)?;
    fs::remove_file(from).with_context(at)
}

/// The group of a path's inode.
pub fn group_of(shadow: &Shadow, path: &Path) -> Result<u64> {
    let status = fs::symlink_metadata(path).with_context(|| path.display().to_string())?;
    Ok(shadow.groups().of_inode(status.ino()))
}

fn refuse_existing(path: &Path) -> Result<()> {
    match fs::symlink_metadata(path) {
        Ok(_) => bail!("{}: it exists", path.display()),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(error) => Err(error).with_context(|| path.display().to_string()),
    }
}

/// A file without a name whose inode is in a group.
fn nameless(shadow: &Shadow, mode: u32, group: u64) -> Result<File> {
    let above = shadow.directory(group)?;
    let mut refused = Vec::new();
    for _ in 0..TRIES {
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .mode(mode)
            .custom_flags(OFlags::TMPFILE.bits() as i32)
            .open(&above)
            .with_context(|| format!("make a file without a name in {}", above.display()))?;
        if shadow.groups().of_inode(file.metadata().context("look at a file")?.ino()) == group {
            return Ok(file);
        }
        refused.push(file);
    }
    bail!("group {group} takes no file: it has no inodes left")
}

/// Gives a file its name.
fn name(file: &File, path: &Path) -> Result<()> {
    let from = format!("/proc/self/fd/{}", file.as_raw_fd());
    linkat(CWD, &*from, CWD, path, AtFlags::SYMLINK_FOLLOW)
        .with_context(|| path.display().to_string())
}

fn copy(from: &File, to: &File, offset: u64) -> io::Result<u64> {
    let mut buffer = vec![0; 1 << 20];
    let mut at = 0;
    loop {
        match from.read_at(&mut buffer, at) {
            Ok(0) => return Ok(at),
            Ok(read) => {
                to.write_all_at(&buffer[..read], offset + at)?;
                at += read as u64;
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
}

/// The size below which ext4 uses the processor's preallocated space, wherever that is.
const SMALL_BYTES: u64 = 64 << 10;

/// ext4: copies contents behind a hole, so that the file does not count as small, and removes the hole after
/// allocation. The file must not be open for writing when its contents are allocated: ext4 would then place
/// them near other files that are being written. So this function closes and reopens it.
fn copy_beyond(from: &File, to: File) -> io::Result<File> {
    let link = |file: &File| format!("/proc/self/fd/{}", file.as_raw_fd());
    let reading = File::open(link(&to))?;
    let copied = copy(from, &to, SMALL_BYTES)?;
    if copied == 0 {
        return Ok(to);
    }
    let padded = copied.max(SMALL_BYTES).next_power_of_two();
    if padded <= PADDED_BYTES_MAX {
        to.write_all_at(&vec![0; (padded - copied) as usize], SMALL_BYTES + copied)?;
    }
    drop(to);
    reading.sync_data()?;
    let to = OpenOptions::new().read(true).write(true).open(link(&reading))?;
    fallocate(&to, FallocateFlags::COLLAPSE_RANGE, 0, SMALL_BYTES)?;
    to.set_len(copied)?;
    Ok(to)
}

/// Contents up to this size are padded to a power of two during allocation: on a device that does not rotate,
/// ext4 begins its search at the inode only for such lengths.
const PADDED_BYTES_MAX: u64 = 1 << 20;

/// Refuses a file whose contents are in another group.
fn check_contents(shadow: &Shadow, file: &File, group: u64) -> Result<()> {
    let groups = shadow.groups();
    let extents = extents::of(file, true).context("look where the contents are")?;
    let plain = extents.iter().filter(|extent| extent.kind == Kind::Plain);
    let elsewhere = plain.flat_map(|extent| {
        [groups.of_place(extent.physical), groups.of_place(extent.physical_end() - 1)]
    });
    match elsewhere.into_iter().find(|&found| found != group) {
        Some(found) => bail!(
            "contents went to group {found}, not {group}: it is full, or the file is too large for \
             the kernel to keep there"
        ),
        None => Ok(()),
    }
}
