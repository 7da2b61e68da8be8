//! The procedures on one file: attributes, contents, and properties of the file system.

use cffs::error::Error;
use cffs::format::inode::FileType;
use cffs::format::{FILE_BYTES_MAX, LINKS_MAX};
use cffs::vfs::Quotas;
use cffs::vfs::types::{Attr, SetAttr};
use nfs_wire::nfs::reply::{self, FsInfo, Written};
use nfs_wire::nfs::{Access, SetAttributes, Stability, Status, Time};
use nfs_wire::xdr::Writer;

use super::file::File;
use super::request::{Request, TRANSFER_BYTES_MAX};
use super::translate;
use crate::access::{EXECUTE, READ, WRITE, checks};
use crate::shared::Change;

/// The preferred multiple of transfer sizes.
const MULTIPLE_BYTES: u32 = 4096;
/// The preferred size of listings, which fits some hundred entries.
const LISTING_BYTES: u32 = 64 << 10;

impl Request<'_> {
    pub(super) fn get_attr(&self, w: &mut Writer, handle: &[u8]) {
        let file = self.file(handle);
        let attributes = |file: &File<'_>| translate::attributes(&file.attr, self.exported.fsid);
        reply::attributes(w, file.as_ref().map(attributes).map_err(|status| *status));
    }

    pub(super) fn set_attr(
        &self,
        w: &mut Writer,
        handle: &[u8],
        changes: &SetAttributes,
        guard: Option<Time>,
    ) {
        let file = match self.file(handle) {
            Ok(file) => file,
            Err(status) => return reply::changed(w, Err(status), &Default::default()),
        };
        let outcome = self.set_attr_of(&file, changes, guard);
        // Setting the size is a separate change, and with a guard a separate call.
        let sets_size = u64::from(changes.size.is_some());
        let own = 1 + sets_size * (1 + u64::from(guard.is_some()));
        reply::changed(w, outcome, &file.wcc_of(if outcome.is_ok() { own } else { 0 }));
    }

    fn set_attr_of(
        &self,
        file: &File<'_>,
        changes: &SetAttributes,
        guard: Option<Time>,
    ) -> Result<(), Status> {
        file.check_writable()?;
        let mut changes = translate::set_attr(changes)?;
        file.check_set_attr(&mut changes)?;
        let volume = &self.exported.volume;
        let in_sync = |now: &Attr, _: Option<&Attr>| {
            guard.is_none_or(|ctime| ctime == translate::time(now.ctime))
        };
        let guarded = file.user.caller(Some(&in_sync));
        let set = match (changes.size, guard) {
            // The size changes the time that the guard names, so the rest is set without the guard.
            (Some(_), Some(_)) => {
                let size = SetAttr { size: changes.size, ..SetAttr::default() };
                let rest = SetAttr { size: None, ..changes };
                volume
                    .set_attr(&guarded, file.ino(), &size)
                    .and_then(|_| volume.set_attr(&file.user.caller(None), file.ino(), &rest))
            }
            _ => volume.set_attr(&guarded, file.ino(), &changes),
        };
        // The size is set first, and stays if the rest fails.
        file.changed(match changes.size {
            None => Change::Attributes(file.ino()),
            Some(size) => Change::Contents(file.ino(), size.min(file.attr.size), None),
        });
        match set {
            Err(Error::Unmet) => return Err(Status::NotSync),
            set => set.map_err(translate::status("setattr"))?,
        };
        file.durable(&[file.ino()])
    }

    pub(super) fn access(&self, w: &mut Writer, handle: &[u8], wanted: u32) {
        let file = match self.file(handle) {
            Ok(file) => file,
            Err(status) => return reply::access(w, Err(status), None),
        };
        let outcome = granted(&file, wanted);
        reply::access(w, outcome, file.after().as_ref());
    }

    pub(super) fn read_link(&self, w: &mut Writer, handle: &[u8]) {
        let file = match self.file(handle) {
            Ok(file) => file,
            Err(status) => return reply::link_target(w, Err(status), None),
        };
        let target = self.exported.volume.read_link(file.ino());
        let outcome = target.as_deref().map_err(|_| Status::Inval);
        reply::link_target(w, outcome, file.after().as_ref());
    }

    pub(super) fn read(&self, w: &mut Writer, handle: &[u8], offset: u64, count: u32) {
        let file = match self.file(handle) {
            Ok(file) => file,
            Err(status) => return reply::failed(w, status, None),
        };
        let volume = &self.exported.volume;
        let read = |buf: &mut [u8]| {
            check_regular(&file)?;
            if !file.may(EXECUTE)? || file.user.is_root() {
                // Permission to execute implies permission to read: the client's kernel must read the
                // program.
                file.check_contents(READ)?;
            }
            let len = volume
                .read_with(file.ino(), offset, buf, file.access())
                .map_err(translate::status("read"))?;
            let attr = volume.attr(file.ino()).map_err(translate::status("read"))?;
            let is_end = offset.saturating_add(len as u64) >= attr.size;
            Ok((len, is_end, translate::attributes(&attr, self.exported.fsid)))
        };
        let left = file.attr.size.saturating_sub(offset);
        let max = left.min(count.min(TRANSFER_BYTES_MAX).into()) as usize;
        if let Err(status) = reply::read(w, max, read) {
            reply::failed(w, status, file.after().as_ref());
        }
    }

    pub(super) fn write(
        &self,
        w: &mut Writer,
        handle: &[u8],
        offset: u64,
        stability: Stability,
        data: &[u8],
    ) {
        let file = match self.file(handle) {
            Ok(file) => file,
            Err(status) => return reply::written(w, Err(status), &Default::default()),
        };
        // Taken before the write: given a verifier from after a restart, a client would consider earlier
        // writes durable.
        let verifier = self.exported.verifier();
        let outcome = self.write_to(&file, offset, stability, data);
        let outcome = outcome.map(|count| Written { count, stability, verifier });
        let is_change = outcome.is_ok() && !data.is_empty();
        reply::written(w, outcome, &file.wcc_of(is_change.into()));
    }

    fn write_to(
        &self,
        file: &File<'_>,
        offset: u64,
        stability: Stability,
        data: &[u8],
    ) -> Result<u32, Status> {
        file.check_writable()?;
        check_regular(file)?;
        file.check_contents(WRITE)?;
        let volume = &self.exported.volume;
        let failed = translate::status("write");
        let mut count = 0;
        while count < data.len() {
            let at = offset.checked_add(count as u64).ok_or(Status::FBig)?;
            match checks::write(volume, &file.user, file.ino(), at, &data[count..]) {
                Ok(0) => break,
                Ok(written) => count += written,
                Err(_) if count > 0 => break,
                Err(error) => return Err(failed(error)),
            }
        }
        file.changed(Change::Contents(file.ino(), offset, Some(count as u64)));
        if stability > Stability::Unstable {
            self.exported.durable(&[file.ino()], stability == Stability::DataSync)?;
        }
        Ok(count as u32)
    }

    pub(super) fn commit(&self, w: &mut Writer, handle: &[u8]) {
        let file = match self.file(handle) {
            Ok(file) => file,
            Err(status) => return reply::committed(w, Err(status), &Default::default()),
        };
        let verifier = self.exported.verifier();
        let outcome = file.durable(&[file.ino()]);
        reply::committed(w, outcome.map(|()| verifier), &file.wcc_of(0));
    }

    pub(super) fn fs_stat(&self, w: &mut Writer, handle: &[u8]) {
        let file = match self.file(handle) {
            Ok(file) => file,
            Err(status) => return reply::fs_stat(w, Err(status), None),
        };
        let stat = Quotas::of(&self.exported.volume).stat_fs(file.ino());
        let bytes = |fragments: u64| fragments.saturating_mul(stat.fragment_bytes.into());
        let files = stat.inodes.saturating_add(stat.free_inodes);
        let numbers = [
            bytes(stat.fragments),
            bytes(stat.free_fragments),
            bytes(stat.available_fragments),
            files,
            stat.free_inodes,
            stat.free_inodes,
        ];
        reply::fs_stat(w, Ok(numbers), file.after().as_ref());
    }

    pub(super) fn fs_info(&self, w: &mut Writer, handle: &[u8]) {
        let file = match self.file(handle) {
            Ok(file) => file,
            Err(status) => return reply::fs_info(w, Err(status), None),
        };
        let info = FsInfo {
            transfer_bytes_max: TRANSFER_BYTES_MAX,
            multiple_bytes: MULTIPLE_BYTES,
            listing_bytes: LISTING_BYTES,
            file_bytes_max: FILE_BYTES_MAX,
        };
        reply::fs_info(w, Ok(info), file.after().as_ref());
    }

    pub(super) fn path_conf(&self, w: &mut Writer, handle: &[u8]) {
        let file = match self.file(handle) {
            Ok(file) => file,
            Err(status) => return reply::path_conf(w, Err(status), None),
        };
        let limits = (LINKS_MAX, self.exported.volume.stat_fs().name_bytes_max);
        reply::path_conf(w, Ok(limits), file.after().as_ref());
    }
}

/// Those of the wanted access rights that the caller has.
fn granted(file: &File<'_>, wanted: u32) -> Result<u32, Status> {
    let is_dir = file.attr.file_type == FileType::Directory;
    let is_regular = file.attr.file_type == FileType::Regular;
    let changes = if is_dir { WRITE | EXECUTE } else { WRITE };
    let kinds = [
        (Access::READ, READ, true),
        (Access::LOOKUP, EXECUTE, is_dir),
        (Access::MODIFY, changes, true),
        (Access::EXTEND, changes, true),
        (Access::DELETE, changes, is_dir),
        (Access::EXECUTE, EXECUTE, is_regular),
    ];
    let mut granted = 0;
    for (bit, permissions, makes_sense) in kinds {
        let is_change = permissions & WRITE != 0;
        let refused = is_change && file.check_writable().is_err();
        if wanted & bit != 0 && makes_sense && !refused && file.may(permissions)? {
            granted |= bit;
        }
    }
    Ok(granted)
}

fn check_regular(file: &File<'_>) -> Result<(), Status> {
    match file.attr.file_type {
        FileType::Regular => Ok(()),
        FileType::Directory => Err(Status::IsDir),
        _ => Err(Status::Inval),
    }
}
