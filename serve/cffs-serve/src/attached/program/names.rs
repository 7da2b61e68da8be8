//! The requests that remove directories and rename files.

use cffs::error::{Error, Result};
use cffs::format::inode::FileType;
use cffs::units::InodeNo;
use cffs::vfs::types::{Attr, RenameMode};
use cffs::wire::Handle;

use super::super::removal::owner_and_mode;
use super::super::walk::{Found, Walk};
use super::{Program, retried};
use crate::access::{EXECUTE, WRITE, checks};
use crate::shared::Change;

impl<'a> Program<'a> {
    pub(super) fn remove_dir(&self, dir: Handle, name: &[u8]) -> Result<()> {
        let dir = self.handles.directory(dir)?;
        let removed = retried(|| {
            let (attr, found) = self.named_in(dir, name)?;
            let found = found?;
            self.check_names(&attr)?;
            let may_take = self.user.may_take();
            let holds = |file: &Attr, dir: Option<&Attr>| {
                may_take(file, dir)
                    && dir.is_some_and(|dir| owner_and_mode(dir) == owner_and_mode(&attr))
            };
            self.volume.remove_dir(&self.caller(Some(&holds)), dir, name)?;
            Ok(found.attr.ino)
        })?;
        self.tell_name(dir, name);
        self.tell(removed, Change::Contents(removed, 0, None));
        Ok(())
    }

    pub(super) fn rename(
        &self,
        (dir, name): (Handle, &[u8]),
        (new_dir, new_name): (Handle, &[u8]),
    ) -> Result<()> {
        let (dir, new_dir) = (self.handles.directory(dir)?, self.handles.directory(new_dir)?);
        let (moved, replaced) = retried(|| {
            let (from, moved) = self.named_in(dir, name)?;
            let (to, replaced) = self.named_in(new_dir, new_name)?;
            let moved = moved?;
            let replaced = match replaced {
                Err(Error::NotFound) => None,
                found => Some(found?),
            };
            let replaced_ino = replaced.as_ref().map(|replaced| replaced.attr.ino);
            if replaced_ino == Some(moved.attr.ino) {
                return Ok((moved.attr.ino, None));
            }
            self.check_names(&from)?;
            self.check_names(&to)?;
            let is_dir = |attr: &Attr| attr.file_type == FileType::Directory;
            match replaced.as_ref().map(|replaced| (is_dir(&moved.attr), is_dir(&replaced.attr))) {
                Some((true, false)) => return Err(Error::NotDirectory),
                Some((false, true)) => return Err(Error::IsDirectory),
                _ => {}
            }
            let changes_parent = is_dir(&moved.attr) && dir != new_dir;
            if changes_parent {
                // Its entry `..` changes.
                checks::check(self.volume, self.user, &moved.attr, WRITE)?;
            }
            let may_take = self.user.may_take();
            let holds = |file: &Attr, in_dir: Option<&Attr>| {
                let is_unchanged = in_dir.is_none_or(|now| {
                    [&from, &to].iter().any(|checked| {
                        (now.ino, owner_and_mode(now)) == (checked.ino, owner_and_mode(checked))
                    })
                });
                let is_moved = file.ino == moved.attr.ino;
                let keeps_rights = owner_and_mode(file) == owner_and_mode(&moved.attr);
                may_take(file, in_dir)
                    && is_unchanged
                    && (!is_moved || !changes_parent || keeps_rights)
                    && (is_moved || replaced_ino == Some(file.ino))
            };
            let caller = self.caller(Some(&holds));
            self.volume.rename(&caller, dir, name, new_dir, new_name, RenameMode::Replace)?;
            Ok((moved.attr.ino, replaced_ino))
        })?;
        self.tell_name(dir, name);
        self.tell_name(new_dir, new_name);
        for ino in [Some(moved), replaced].into_iter().flatten() {
            self.tell(ino, Change::Attributes(ino));
        }
        Ok(())
    }

    /// The attributes of a directory that the program may search, and the file with a name in it.
    pub(super) fn named_in(&self, dir: InodeNo, name: &[u8]) -> Result<(Attr, Result<Found<'a>>)> {
        let attr = self.volume.attr(dir)?;
        checks::check(self.volume, self.user, &attr, EXECUTE)?;
        Ok((attr, Walk::new(self.volume, self.user).named(dir, name)))
    }

    /// Fails if the program may not change the names of a directory.
    fn check_names(&self, dir: &Attr) -> Result<()> {
        checks::check(self.volume, self.user, dir, WRITE | EXECUTE)
    }
}
