//! A volume with its exported directories, shared by all calls.

use std::net::IpAddr;
use std::sync::Arc;

use cffs::error::{Error, Result};
use cffs::units::InodeNo;
use cffs::vfs::Volume;
use cffs::vfs::types::Attr;
use nfs_wire::nfs::Status;
use parking_lot::RwLock;

use super::exports::Export;
use super::handle::{HANDLE_BYTES, Handles, random};
use super::handover::Kept;
use super::translate;
use crate::shared::{self, Observer};

/// The most concurrent exports of a volume: each call searches them.
const EXPORTS_MAX: usize = 256;

pub struct Directory {
    /// The export's options.
    pub export: Export,
    /// Its number in handles.
    pub id: u32,
    pub root: InodeNo,
}

pub struct Exported {
    pub volume: Arc<Volume>,
    directories: RwLock<Vec<Arc<Directory>>>,
    /// Makes and reads handles.
    pub handles: Handles,
    /// The volume's file system number for clients.
    pub fsid: u64,
    /// Is notified of changes.
    pub observer: Arc<dyn Observer>,
    verifier: [u8; 8],
}

impl Exported {
    /// Exports these directories of a volume.
    ///
    /// # Errors
    ///
    /// [`Error::Unsupported`] if an export is not a directory; errors of [`Exported::add`] and
    /// [`Handles::of`].
    pub fn new(
        volume: Arc<Volume>,
        exports: Vec<Export>,
        observer: Arc<dyn Observer>,
    ) -> Result<Exported> {
        let handles = Handles::of(&volume)?;
        let mut verifier = [0; 8];
        random(&mut verifier)?;
        let exported = Exported::nothing(volume, handles, observer, verifier);
        for export in exports {
            let path = export.path.clone();
            exported.add(export).map_err(|error| match error {
                Error::NotFound | Error::NotDirectory => Error::Unsupported(format!(
                    "{path}: {error}; an export is a directory of the volume"
                )),
                error => error,
            })?;
        }
        Ok(exported)
    }

    /// Continues the exports of another server of the same volume; `None` if they are invalid. The verifier
    /// stays the same, since that server closed the volume completely.
    pub fn resume(
        volume: Arc<Volume>,
        kept: Kept,
        observer: Arc<dyn Observer>,
    ) -> Option<Exported> {
        let handles = Handles::with_key(&volume, kept.key);
        let exported = Exported::nothing(volume, handles, observer, kept.verifier);
        for (text, root) in kept.exports {
            exported.set(text.parse().ok()?, InodeNo(root)).ok()?;
        }
        Some(exported)
    }

    fn nothing(
        volume: Arc<Volume>,
        handles: Handles,
        observer: Arc<dyn Observer>,
        verifier: [u8; 8],
    ) -> Exported {
        let uuid = volume.writer().superblock.get().uuid;
        let fsid = uuid.iter().fold(0, |fsid: u64, byte| fsid.rotate_left(8) ^ u64::from(*byte));
        let directories = RwLock::default();
        observer.joined();
        Exported { volume, directories, handles, fsid, observer, verifier }
    }

    /// The state with which another server can continue the same exports.
    pub fn keep(&self) -> Kept {
        let directories = self.directories();
        let exports = directories.iter();
        Kept {
            exports: exports.map(|it| (it.export.to_string(), it.root.0)).collect(),
            key: self.handles.key(),
            verifier: self.verifier,
        }
    }

    /// Exports a directory. Replaces an export of the same path, whose handles stay valid.
    ///
    /// # Errors
    ///
    /// `ENOENT` and `ENOTDIR` if it is not a directory; [`Error::Invalid`] if the volume has too many
    /// exports.
    pub fn add(&self, export: Export) -> Result<()> {
        let root = directory_at(&self.volume, InodeNo::ROOT, &export.path)?.ino;
        self.set(export, root)
    }

    fn set(&self, export: Export, root: InodeNo) -> Result<()> {
        let id = self.handles.export_id(&export.path);
        let mut directories = self.directories.write();
        directories.retain(|directory| directory.export.path != export.path);
        if directories.len() == EXPORTS_MAX {
            return Err(Error::Invalid("too many exports"));
        }
        directories.push(Arc::new(Directory { export, id, root }));
        Ok(())
    }

    /// Ends the export of this path; returns whether it existed.
    pub fn remove(&self, path: &str) -> bool {
        let mut directories = self.directories.write();
        let count = directories.len();
        directories.retain(|directory| directory.export.path != path);
        directories.len() < count
    }

    pub fn directories(&self) -> Vec<Arc<Directory>> {
        self.directories.read().clone()
    }

    pub fn directory(&self, id: u32) -> Option<Arc<Directory>> {
        self.directories.read().iter().find(|directory| directory.id == id).cloned()
    }

    /// A value that tells clients whether unstable writes were lost: it differs in each start of a server,
    /// and changes when a failed write has lost data.
    pub fn verifier(&self) -> [u8; 8] {
        let mut verifier = self.verifier;
        verifier[0] ^= u8::from(self.volume.writer().health.latched().is_some());
        verifier
    }

    /// Makes files durable. A failure is reported to clients as an I/O error: they cannot use the information
    /// that the volume is read-only from then on.
    pub fn durable(&self, files: &[InodeNo], data_only: bool) -> Result<(), Status> {
        match self.volume.sync_files(files, data_only) {
            // One of the files was removed meanwhile. Only the change of names remains to be synced, which
            // every sync includes.
            Err(Error::Stale) => self.volume.sync(),
            other => other,
        }
        .map_err(|error| match translate::status("sync")(error) {
            Status::RoFs => Status::Io,
            status => status,
        })
    }

    /// The handle of a directory that is exported, or is below an exported one.
    pub fn first_handle(
        &self,
        address: IpAddr,
        port: u16,
        path: &[u8],
    ) -> Result<[u8; HANDLE_BYTES], Status> {
        let path = std::str::from_utf8(path).map_err(|_| Status::NoEnt)?;
        let below = |directory: &Arc<Directory>| {
            let rest = path.strip_prefix(directory.export.path.trim_end_matches('/'));
            rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
        };
        let of_all = self.directories().into_iter().filter(below);
        let directory = of_all.max_by_key(|directory| directory.export.path.len());
        let directory = directory.ok_or(Status::NoEnt)?;
        if let Some(why) = directory.export.hindrance(address, port) {
            let export = &directory.export.path;
            tracing::info!(%address, port, export, "a client may not mount: {why}");
            return Err(Status::Access);
        }
        let rest = &path[directory.export.path.trim_end_matches('/').len()..];
        let attr =
            directory_at(&self.volume, directory.root, rest).map_err(translate::status("mount"))?;
        Ok(self.handles.make(directory.id, &attr))
    }
}

fn directory_at(volume: &Volume, from: InodeNo, path: &str) -> Result<Attr> {
    let found = shared::find(volume, from, path)?;
    let is_dir = found.file_type == cffs::format::inode::FileType::Directory;
    if is_dir { Ok(found) } else { Err(Error::NotDirectory) }
}
