//! One NFS call: its caller, and the procedure that executes it.

use std::net::IpAddr;

use nfs_wire::nfs::{self, Status};
use nfs_wire::rpc::Credentials;
use nfs_wire::xdr::Writer;

use super::exported::Exported;
use super::file::File;
use super::translate;

/// The most bytes of one READ, WRITE or listing.
pub const TRANSFER_BYTES_MAX: u32 = 1 << 20;
/// The size limit of a call or reply without its data.
pub const HEAD_BYTES_MAX: u32 = 8 << 10;

/// The sender of a call.
#[derive(Clone, Copy, Debug)]
pub struct Peer {
    /// The client's address.
    pub address: IpAddr,
    /// The client's port.
    pub port: u16,
}

/// An NFS call in progress.
pub(super) struct Request<'a> {
    pub(super) exported: &'a Exported,
    pub(super) peer: &'a Peer,
    pub(super) credentials: &'a Credentials,
}

impl<'a> Request<'a> {
    /// Executes the call and appends the results.
    pub(super) fn run(&self, call: &nfs::Call<'_>, w: &mut Writer) {
        use nfs::Call;
        match *call {
            Call::Null => {}
            Call::GetAttr { file } => self.get_attr(w, file),
            Call::SetAttr { file, changes, guard } => self.set_attr(w, file, &changes, guard),
            Call::Lookup(at) => self.lookup(w, at),
            Call::Access { file, wanted } => self.access(w, file, wanted),
            Call::ReadLink { file } => self.read_link(w, file),
            Call::Read { file, offset, count } => self.read(w, file, offset, count),
            Call::Write { file, offset, stability, data } => {
                self.write(w, file, offset, stability, data);
            }
            Call::Create { at, how } => self.create(w, at, how),
            Call::MakeDir { at, attributes } => self.make_dir(w, at, &attributes),
            Call::Symlink { at, attributes, target } => self.symlink(w, at, &attributes, target),
            Call::MakeNode { at, node } => self.make_node(w, at, node),
            Call::Remove(at) => self.remove(w, at, false),
            Call::RemoveDir(at) => self.remove(w, at, true),
            Call::Rename { from, to } => self.rename(w, from, to),
            Call::Link { file, to } => self.link(w, file, to),
            Call::ReadDir { dir, cookie, bytes_max, .. } => {
                self.read_dir(w, dir, cookie, bytes_max);
            }
            Call::ReadDirPlus { dir, cookie, names_max, bytes_max, .. } => {
                self.read_dir_plus(w, dir, cookie, names_max, bytes_max);
            }
            Call::FsStat { root } => self.fs_stat(w, root),
            Call::FsInfo { root } => self.fs_info(w, root),
            Call::PathConf { file } => self.path_conf(w, file),
            Call::Commit { file, .. } => self.commit(w, file),
        }
    }

    /// The file of a handle, which cannot be freed while the value exists.
    pub(super) fn file(&self, handle: &[u8]) -> Result<File<'a>, Status> {
        let target = self.exported.handles.read(handle).ok_or(Status::BadHandle)?;
        let directory = self.exported.directory(target.export).ok_or(Status::Stale)?;
        if !directory.export.admits(self.peer.address, self.peer.port) {
            return Err(Status::Access);
        }
        let volume = &self.exported.volume;
        let attr = volume.find(target.ino).map_err(translate::status("find"))?;
        let user = directory.export.act_as(self.credentials);
        // Dropping it releases the reference.
        let file = File { exported: self.exported, directory, attr, user };
        let is_it = attr.generation == target.generation && attr.nlink > 0;
        if is_it { Ok(file) } else { Err(Status::Stale) }
    }
}
