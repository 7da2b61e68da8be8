//! The file of a call: referenced while the call runs, and checked with the caller's permissions.

use std::sync::Arc;

use cffs::units::InodeNo;
use cffs::vfs::types::{Access, Attr, SetAttr};
use nfs_wire::nfs::{Attributes, Status, Wcc};

use super::exported::{Directory, Exported};
use super::translate;
use crate::access::{self, User, checks};
use crate::shared::Change;

/// A file, on which this holds a reference.
pub(super) struct File<'a> {
    pub exported: &'a Exported,
    pub directory: Arc<Directory>,
    /// The attributes at the beginning of the call.
    pub attr: Attr,
    /// The user that the caller is mapped to.
    pub user: User,
}

impl Drop for File<'_> {
    fn drop(&mut self) {
        self.exported.volume.release(self.attr.ino, 1);
    }
}

impl File<'_> {
    pub fn ino(&self) -> InodeNo {
        self.attr.ino
    }

    /// The current attributes, for the reply.
    pub fn after(&self) -> Option<Attributes> {
        let attr = self.exported.volume.attr(self.ino()).ok()?;
        Some(translate::attributes(&attr, self.exported.fsid))
    }

    /// The attributes before and after the call. Those from before are sent only if the change counter has
    /// risen by exactly the call's own changes: then no other caller changed the file in between, and the
    /// client's cache is valid up to its own change.
    pub fn wcc<T>(&self, outcome: &Result<T, Status>) -> Wcc {
        self.wcc_of(u64::from(outcome.is_ok()))
    }

    /// The same for a call that changed the file `own_changes` times.
    pub fn wcc_of(&self, own_changes: u64) -> Wcc {
        let Ok(now) = self.exported.volume.attr(self.ino()) else { return Wcc::default() };
        let alone = now.change.wrapping_sub(self.attr.change) == own_changes;
        Wcc {
            before: alone.then(|| translate::before(&self.attr)),
            after: Some(translate::attributes(&now, self.exported.fsid)),
        }
    }

    /// Whether the caller has all of these permissions.
    pub fn may(&self, wanted: u32) -> Result<bool, Status> {
        let volume = &self.exported.volume;
        checks::may(volume, &self.user, &self.attr, wanted).map_err(translate::status("access"))
    }

    /// Fails if the caller lacks any of these permissions.
    pub fn check(&self, wanted: u32) -> Result<(), Status> {
        if self.may(wanted)? { Ok(()) } else { Err(Status::Access) }
    }

    /// The same for contents, which the owner may always read and write: a program with an open file may
    /// continue after any change of its mode, and the protocol has no open files.
    pub fn check_contents(&self, wanted: u32) -> Result<(), Status> {
        if self.user.owns(&self.attr) { Ok(()) } else { self.check(wanted) }
    }

    /// Fails on a read-only export, on a volume that was opened for reading only, and while its mount is
    /// read-only.
    pub fn check_writable(&self) -> Result<(), Status> {
        let is_read_only = self.directory.export.read_only
            || self.exported.volume.admin().is_read_only()
            || self.exported.observer.refuses_changes();
        if is_read_only { Err(Status::RoFs) } else { Ok(()) }
    }

    /// Whether a read sets the access time.
    pub fn access(&self) -> Access {
        if self.exported.observer.refuses_changes() { Access::Unnoted } else { Access::Noted }
    }

    /// Fails if the caller may not change the names of this directory.
    pub fn check_names(&self) -> Result<(), Status> {
        self.check_writable()?;
        self.check_dir()?;
        self.check(access::WRITE | access::EXECUTE)
    }

    pub fn check_dir(&self) -> Result<(), Status> {
        let is_dir = self.attr.file_type == cffs::format::inode::FileType::Directory;
        if is_dir { Ok(()) } else { Err(Status::NotDir) }
    }

    /// The handle of another file, through the same export.
    pub fn handle_of(&self, attr: &Attr) -> [u8; super::handle::HANDLE_BYTES] {
        self.exported.handles.make(self.directory.id, attr)
    }

    /// Notifies the other front end of a change.
    pub fn changed(&self, change: Change<'_>) {
        self.exported.observer.changed(change);
    }

    /// Notifies the other front end of a changed name in this directory.
    pub fn changed_name(&self, name: &[u8]) {
        self.changed(Change::Name(self.ino(), name));
    }

    /// Makes files durable before a call is answered.
    pub fn durable(&self, files: &[InodeNo]) -> Result<(), Status> {
        self.exported.durable(files, false)
    }

    /// Checks and completes the attribute changes that the caller requests.
    pub fn check_set_attr(&self, changes: &mut SetAttr) -> Result<(), Status> {
        checks::check_owner(&self.user, &self.attr, changes)
            .map_err(translate::status("setattr"))?;
        if changes.size.is_some() || changes.atime.is_some() || changes.mtime.is_some() {
            self.check_contents(access::WRITE)?;
        }
        checks::complete(&self.user, &self.attr, changes);
        Ok(())
    }
}
