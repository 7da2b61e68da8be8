//! The adapter: one method per request of the kernel, each a call of the facade.
//!
//! The kernel's node number of an inode is the inode number, so this module keeps no state per inode (except
//! for a mount that follows another program), and file handles stay valid after the kernel has forgotten an
//! inode. Opening a file needs no state either: the lookup before it keeps the inode, with or without names,
//! until the kernel forgets it.

use std::sync::Arc;
use std::time::Duration;

use cffs::error::Error;
use cffs::format::inode::FileType;
use cffs::trace::set_process;
use cffs::vfs::types::{self, NewKind};
use cffs::vfs::{Caller, Quotas};
use fuse_ring::protocol::{
    AttrReply, Context, CopyFileRange, Create, Entry, Fallocate, FileHandle, Ioctl, Listing,
    ListingPlus, NodeId, Opcode, Open, OpenFlags, Opened, Read, Release, Rename, SetAttr, SetXattr,
    Statfs, StatxReply, Write,
};
use fuse_ring::{Errno, Handler};

use super::TTL_SHARED;
use super::caches::KernelCaches;
use super::closing::Closing;
use super::credentials;
use super::follow::ReadView;
use super::interest::Interest;
use super::ioctl;
use super::panic_guard::PanicGuard;
use super::privileges::{self, SET_GROUP_ID_BIT, caller, unprivileged};
use super::requests::Requests;
use super::translate::{self, errno, ino};
use super::volume_handle::{VolumeHandle, VolumeRef};
use super::watch::Watch;
use crate::access;
use crate::attached::{self, Sessions};
use crate::served::control::{CloneRequest, Control, Piece, Request};
use crate::served::recording::Ask;
use crate::served::shutdown::ShutdownReports;

/// Cookies of the two entries that the volume does not store; the volume's own cookies are shifted by this.
const DOT: u64 = 1;
const DOT_DOT: u64 = 2;

const O_EXCL: u32 = 0o200;
const O_TRUNC: u32 = 0o1000;
const O_DSYNC: u32 = 0o10_000;
/// The bit of `O_SYNC` that `O_DSYNC` lacks.
const O_SYNC_ONLY: u32 = 0o4_000_000;

mod attaching;
mod changes;
mod finding;
#[cfg(test)]
mod tests;

/// Serves one volume.
pub struct Adapter {
    volume: VolumeHandle,
    control: Control,
    requests: Arc<Requests>,
    closing: Arc<Closing>,
    watch: Arc<Watch>,
    caches: KernelCaches,
    interest: Interest,
    sessions: Arc<Sessions>,
    /// How long the kernel may cache names and attributes while no program is attached.
    ttl: Duration,
    block_bytes: u32,
}

type Result<T> = std::result::Result<T, Errno>;

impl Adapter {
    /// An adapter for the volume. The kernel may cache its answers for `ttl`, or less while programs are
    /// attached.
    pub fn new(
        volume: VolumeHandle,
        control: Control,
        requests: Arc<Requests>,
        closing: Arc<Closing>,
        watch: Arc<Watch>,
        (caches, ttl): (KernelCaches, Duration),
        sessions: Arc<Sessions>,
    ) -> Adapter {
        let block_bytes = volume.get().writer().superblock.get().block_bytes;
        let interest = Interest::new();
        Adapter {
            volume,
            control,
            requests,
            closing,
            watch,
            caches,
            interest,
            sessions,
            ttl,
            block_bytes,
        }
    }

    /// How long the kernel may cache names and attributes.
    fn ttl(&self) -> Duration {
        self.sessions.lifetime(self.ttl, TTL_SHARED)
    }

    fn entry(&self, attr: &types::Attr) -> Entry {
        translate::entry(attr, self.block_bytes, self.ttl())
    }

    fn attr_reply(&self, attr: &types::Attr) -> AttrReply {
        AttrReply { attr: translate::attr(attr, self.block_bytes), ttl: self.ttl() }
    }

    fn volume(&self) -> PanicGuard<'_, VolumeRef<'_>> {
        PanicGuard::new(self.volume.get(), &self.closing)
    }

    /// Reads a property of an inode.
    fn on<T>(
        &self,
        node: NodeId,
        act: impl FnMut(&ReadView<'_>) -> cffs::error::Result<T>,
    ) -> cffs::error::Result<T> {
        PanicGuard::new(&self.volume, &self.closing).on(ino(node), act)
    }
}

/// Copies the value of an attribute into the buffer, if it fits, and returns its length.
fn filled(value: cffs::error::Result<Vec<u8>>, buf: &mut [u8]) -> Result<usize> {
    let value = value.map_err(errno("getxattr"))?;
    if let Some(room) = buf.get_mut(..value.len()) {
        room.copy_from_slice(&value);
    }
    Ok(value.len())
}

impl Handler for Adapter {
    fn arrived(&self, opcode: Opcode, node: NodeId, process: u32) {
        set_process(process);
        self.requests.count(opcode);
        self.watch.request(opcode, node);
    }

    fn served(&self) {
        self.watch.answered();
    }

    fn disconnected(&self) {
        self.closing.begin();
    }

    fn destroy(&self) {
        self.closing.run();
    }

    fn forget(&self, node: NodeId, lookups: u64) {
        PanicGuard::new(&self.volume, &self.closing).forget(ino(node), lookups);
    }

    fn lookup(&self, _: &Context<'_>, parent: NodeId, name: &[u8]) -> Result<Entry> {
        let found = match name {
            // The kernel looks these names up only to resolve a file handle of an inode that it has
            // forgotten; "." may then be looked up in any kind of file.
            b"." => self.find_named(ino(parent)),
            b".." => self.volume().parent(ino(parent)).and_then(|above| self.volume().find(above)),
            _ => match self.on(parent, |view| {
                let found = view.volume.lookup(ino(parent), name);
                found.inspect(|attr| view.note(ino(parent), name, attr))
            }) {
                Err(Error::NotFound) => return Ok(Entry::negative(self.ttl())),
                found => found,
            },
        };
        let attr = found.map_err(errno("lookup"))?;
        if attr.file_type != FileType::Directory {
            self.caches.drop_listings(self.interest.looked_up(ino(parent)));
        }
        Ok(self.entry(&attr))
    }

    fn getattr(&self, _: &Context<'_>, node: NodeId, _: Option<FileHandle>) -> Result<AttrReply> {
        let attr = self.on(node, |view| view.volume.attr(ino(node)));
        attr.map(|attr| self.attr_reply(&attr)).map_err(errno("stat"))
    }

    fn statx(
        &self,
        _: &Context<'_>,
        node: NodeId,
        _: Option<FileHandle>,
        _flags: u32,
        _mask: u32,
    ) -> Result<StatxReply> {
        let attr = self.on(node, |view| view.volume.attr(ino(node))).map_err(errno("stat"))?;
        Ok(StatxReply {
            attr: translate::attr(&attr, self.block_bytes),
            ttl: self.ttl(),
            btime: Some(translate::time(attr.btime)),
            attributes: ioctl::statx_attributes(attr.flags),
            attributes_mask: ioctl::STATX_ATTRIBUTES,
        })
    }

    fn setattr(&self, cx: &Context<'_>, node: NodeId, change: &SetAttr) -> Result<AttrReply> {
        let mut changes = translate::set_attr(change);
        privileges::complete(&self.volume(), cx, node, change, &mut changes)?;
        let attr =
            self.volume().set_attr(&caller(cx), ino(node), &changes).map_err(errno("setattr"))?;
        Ok(self.attr_reply(&attr))
    }

    fn readlink(&self, _: &Context<'_>, node: NodeId, buf: &mut [u8]) -> Result<usize> {
        let target = self.on(node, |view| view.volume.read_link(ino(node)));
        let target = target.map_err(errno("readlink"))?;
        buf.get_mut(..target.len()).ok_or(Errno::NAMETOOLONG)?.copy_from_slice(&target);
        Ok(target.len())
    }

    fn symlink(
        &self,
        cx: &Context<'_>,
        parent: NodeId,
        name: &[u8],
        target: &[u8],
    ) -> Result<Entry> {
        self.make(cx, parent, name, NewKind::Symlink(target), 0o777, 0)
    }

    fn mknod(
        &self,
        cx: &Context<'_>,
        parent: NodeId,
        name: &[u8],
        mode: u32,
        rdev: u32,
        umask: u32,
    ) -> Result<Entry> {
        self.make(cx, parent, name, translate::new_kind(mode, rdev)?, mode, umask)
    }

    fn mkdir(
        &self,
        cx: &Context<'_>,
        parent: NodeId,
        name: &[u8],
        mode: u32,
        umask: u32,
    ) -> Result<Entry> {
        self.make(cx, parent, name, NewKind::Directory, mode, umask)
    }

    fn unlink(&self, cx: &Context<'_>, parent: NodeId, name: &[u8]) -> Result<()> {
        self.volume().unlink(&caller(cx), ino(parent), name).map_err(errno("unlink"))
    }

    fn rmdir(&self, cx: &Context<'_>, parent: NodeId, name: &[u8]) -> Result<()> {
        self.volume().remove_dir(&caller(cx), ino(parent), name).map_err(errno("rmdir"))
    }

    fn rename(&self, cx: &Context<'_>, parent: NodeId, rename: &Rename<'_>) -> Result<()> {
        let mode = translate::rename_mode(rename.flags)?;
        let (new_parent, new_name) = (ino(rename.new_parent), rename.new_name);
        self.volume()
            .rename(&caller(cx), ino(parent), rename.name, new_parent, new_name, mode)
            .map(drop)
            .map_err(errno("rename"))
    }

    fn link(
        &self,
        _: &Context<'_>,
        node: NodeId,
        new_parent: NodeId,
        new_name: &[u8],
    ) -> Result<Entry> {
        let attr =
            self.volume().link(ino(node), ino(new_parent), new_name).map_err(errno("link"))?;
        Ok(self.entry(&attr))
    }

    fn open(&self, cx: &Context<'_>, node: NodeId, open: &Open) -> Result<Opened> {
        if open.kill_suid_sgid {
            self.clear_privileges(cx, node, privileges::clear)?;
        }
        Ok(match self.volume.open(ino(node)).map_err(errno("open"))? {
            None => Opened { handle: FileHandle(0), flags: OpenFlags::KEEP_CACHE },
            Some(handle) => Opened { handle, flags: OpenFlags::empty() },
        })
    }

    fn release(&self, _: &Context<'_>, node: NodeId, release: &Release) -> Result<()> {
        self.volume.close(ino(node), release.handle);
        Ok(())
    }

    fn create(
        &self,
        cx: &Context<'_>,
        parent: NodeId,
        name: &[u8],
        create: &Create,
    ) -> Result<(Entry, Opened)> {
        match self.make(cx, parent, name, NewKind::Regular, create.mode, create.umask) {
            // The kernel assumed that the name was free. It holds the directory's lock, so this is rare: it
            // happens for a name that it has not looked up.
            Err(Errno::EXIST) if create.flags & O_EXCL == 0 => {
                let attr = self.volume().lookup(ino(parent), name).map_err(errno("open"))?;
                if create.flags & O_TRUNC != 0 {
                    let changes = types::SetAttr {
                        size: Some(0),
                        clear_privileges: create.kill_suid_sgid.then(|| unprivileged(cx, &attr)),
                        ..types::SetAttr::default()
                    };
                    let cut = self.volume().set_attr(&caller(cx), attr.ino, &changes);
                    let attr = cut.map_err(|error| {
                        self.volume().release(attr.ino, 1);
                        errno("open")(error)
                    })?;
                    return Ok((self.entry(&attr), translate::opened(create)));
                }
                Ok((self.entry(&attr), translate::opened(create)))
            }
            made => Ok((made?, translate::opened(create))),
        }
    }

    fn tmpfile(
        &self,
        cx: &Context<'_>,
        parent: NodeId,
        create: &Create,
    ) -> Result<(Entry, Opened)> {
        let new = translate::new_file(cx, NewKind::Regular, create.mode);
        let made = self.as_caller(cx, "tmpfile", |volume, caller| {
            volume.make_unnamed(&Caller { umask: create.umask, ..*caller }, ino(parent), &new)
        });
        Ok((self.entry(&made?), translate::opened(create)))
    }

    fn read(&self, _: &Context<'_>, node: NodeId, read: &Read, buf: &mut [u8]) -> Result<usize> {
        let access = self.access(read.flags);
        self.volume.used(ino(node), read.handle);
        self.on(node, |view| view.volume.read_with(ino(node), read.offset, buf, access))
            .map_err(errno("read"))
    }

    fn write(&self, cx: &Context<'_>, node: NodeId, write: &Write<'_>) -> Result<usize> {
        if write.kill_suid_sgid {
            self.clear_privileges(cx, node, privileges::clear)?;
        }
        let written = self.write_or_append(cx, node, write)?;
        // Through the page cache, one write of a program may become several requests, and the kernel sends an
        // `FSYNC` after the last of them. For uncached writes it sends none.
        if write.handle == translate::UNCACHED && write.flags & O_DSYNC != 0 {
            let data_only = write.flags & O_SYNC_ONLY == 0;
            self.volume().sync_file(ino(node), data_only).map_err(errno("write"))?;
        }
        Ok(written)
    }

    fn statfs(&self, _: &Context<'_>, node: NodeId) -> Result<Statfs> {
        Ok(translate::statfs(&Quotas::of(&self.volume()).stat_fs(ino(node))))
    }

    fn fsync(&self, _: &Context<'_>, node: NodeId, _: FileHandle, data_only: bool) -> Result<()> {
        self.volume().sync_file(ino(node), data_only).map_err(errno("fsync"))
    }

    fn readdir(
        &self,
        _: &Context<'_>,
        node: NodeId,
        read: &Read,
        listing: &mut Listing<'_>,
    ) -> Result<()> {
        let mut from = read.offset;
        while from < DOT_DOT {
            let (target, cookie, name) = self.dot_entry(node, from)?;
            if listing.push(target.0, 0o040_000, cookie, name).is_err() {
                return Ok(());
            }
            from = cookie;
        }
        self.on(node, |view| {
            let start = from - DOT_DOT;
            view.volume.read_dir_plus(
                ino(node),
                start,
                None,
                self.access(read.flags),
                &mut |entry| {
                    let mode = entry.file_type.mode_bits();
                    let cookie = entry.cookie + DOT_DOT;
                    let is_taken = listing.push(entry.ino.0, mode, cookie, entry.name).is_ok();
                    if is_taken {
                        from = cookie;
                    }
                    is_taken
                },
            )
        })
        .map_err(errno("readdir"))
    }

    fn readdirplus(
        &self,
        _: &Context<'_>,
        node: NodeId,
        read: &Read,
        listing: &mut ListingPlus<'_>,
    ) -> Result<()> {
        let mut from = read.offset;
        while from < DOT_DOT {
            let (target, cookie, name) = self.dot_entry(node, from)?;
            if listing.push_name(target.0, 0o040_000, cookie, name).is_err() {
                return Ok(());
            }
            from = cookie;
        }
        let interest = self.interest.list(ino(node));
        let plus: types::Plus<'_> =
            &|entry| entry.file_type == FileType::Directory || interest.wants_inode();
        self.on(node, |view| {
            let start = from - DOT_DOT;
            let access = self.access(read.flags);
            view.volume.read_dir_plus(ino(node), start, Some(plus), access, &mut |entry| {
                let cookie = entry.cookie + DOT_DOT;
                let pushed = match &entry.attr {
                    Some(attr) => listing.push(&self.entry(attr), cookie, entry.name),
                    None => {
                        let mode = entry.file_type.mode_bits();
                        listing.push_name(entry.ino.0, mode, cookie, entry.name)
                    }
                };
                if pushed.is_err() {
                    return false;
                }
                from = cookie;
                if let Some(attr) = &entry.attr {
                    view.note(ino(node), entry.name, attr);
                }
                true
            })
        })
        .map_err(errno("readdir"))
    }

    fn fsyncdir(
        &self,
        _: &Context<'_>,
        node: NodeId,
        _: FileHandle,
        data_only: bool,
    ) -> Result<()> {
        self.volume().sync_file(ino(node), data_only).map_err(errno("fsync"))
    }

    fn syncfs(&self, _: &Context<'_>, _: NodeId) -> Result<()> {
        self.volume().sync().map_err(errno("sync"))
    }

    fn setxattr(&self, cx: &Context<'_>, node: NodeId, set: &SetXattr<'_>) -> Result<()> {
        if let Some(request) = Request::from_attribute(set.name, set.value) {
            let carry_out = |request| {
                self.control.carry_out(&self.volume(), ino(node), request, credentials::uid(cx))
            };
            return request.and_then(carry_out).map_err(errno("control"));
        }
        if let Some(request) = CloneRequest::from_attribute(set.name, set.value) {
            let (user, caches) = (credentials::user(cx), Box::new(self.caches.clone()));
            let carry_out = |request| self.control.clone_tree(ino(node), request, user, caches);
            return request.and_then(carry_out).map_err(errno("control"));
        }
        if let Some(number) = attached::asked(set.name, set.value) {
            return attaching::ask(&self.sessions, cx, node, number).map_err(errno("control"));
        }
        let mode = translate::xattr_mode(set.flags)?;
        self.as_caller(cx, "setxattr", |volume, caller| {
            volume.set_xattr(caller, ino(node), set.name, set.value, mode)
        })?;
        // The kernel requests this for a default ACL as well, which does not change the mode.
        if set.kill_sgid && set.name == access::ACL {
            let attr = self.volume().attr(ino(node)).map_err(errno("setxattr"))?;
            let permissions = Some(attr.permissions & !SET_GROUP_ID_BIT);
            let changes = types::SetAttr { permissions, ..types::SetAttr::default() };
            self.volume().set_attr(&caller(cx), ino(node), &changes).map_err(errno("setxattr"))?;
        }
        Ok(())
    }

    fn getxattr(
        &self,
        cx: &Context<'_>,
        node: NodeId,
        name: &[u8],
        buf: &mut [u8],
    ) -> Result<usize> {
        let uid = || credentials::uid(cx);
        if let Some(number) = ShutdownReports::number(name) {
            let connected = self.control.send_shutdown_reports(number, uid());
            return connected.map(|()| 0).map_err(errno("control"));
        }
        if let Some(ask) = Ask::made_by(name) {
            return ask.carry_out(&self.volume(), uid(), buf).map_err(errno("control"));
        }
        if let Some(token) = CloneRequest::asked_by(name) {
            return filled(self.control.clone_status(token, uid()), buf);
        }
        if name == attached::END.as_bytes() {
            return self.end_changes(uid()).map(|()| 0).map_err(errno("control"));
        }
        if let Some(least) = Control::trim_asked_by(name) {
            return filled(self.control.trim_all(&self.volume(), least, uid()), buf);
        }
        if let Some(number) = attached::asked_by(name) {
            return filled(self.sessions.answer(number, uid()), buf);
        }
        if let Some(number) = attached::asked_to_read(name) {
            return filled(attaching::to_read(&self.sessions, &self.volume, cx, node, number), buf);
        }
        let value = match (Control::question(name), Piece::asked_by(name)) {
            (Some(question), _) => self.control.answer(&self.volume(), ino(node), question, uid()),
            (_, Some(piece)) => self.control.report(&self.volume(), ino(node), piece, uid()),
            _ => self.on(node, |view| view.volume.xattr(ino(node), name)),
        };
        filled(value, buf)
    }

    fn listxattr(&self, cx: &Context<'_>, node: NodeId, buf: &mut [u8]) -> Result<usize> {
        let mut list = Vec::new();
        let names = self.on(node, |view| view.volume.xattr_names(ino(node)));
        for name in names.map_err(errno("listxattr"))? {
            // The kernel hides the values of these attributes from users, but not their names.
            if name.starts_with(b"trusted.") && credentials::uid(cx) != 0 {
                continue;
            }
            list.extend_from_slice(&name);
            list.push(0);
        }
        if let Some(room) = buf.get_mut(..list.len()) {
            room.copy_from_slice(&list);
        }
        Ok(list.len())
    }

    fn removexattr(&self, _: &Context<'_>, node: NodeId, name: &[u8]) -> Result<()> {
        self.volume().remove_xattr(ino(node), name).map_err(errno("removexattr"))
    }

    fn fallocate(&self, cx: &Context<'_>, node: NodeId, what: &Fallocate) -> Result<()> {
        let mode = translate::allocate_mode(what.mode)?;
        self.clear_privileges(cx, node, privileges::clear_unless_kept)?;
        let allocated = self.as_caller(cx, "fallocate", |volume, caller| {
            volume.allocate(caller, ino(node), what.offset, what.length, mode)
        });
        // A call that fails may have zeroed the range, which the kernel does not expect.
        allocated.inspect_err(|_| self.caches.drop_cached(vec![ino(node)], what.offset))
    }

    fn lseek(
        &self,
        _: &Context<'_>,
        node: NodeId,
        _: FileHandle,
        offset: u64,
        whence: u32,
    ) -> Result<u64> {
        let what = translate::seek_for(whence)?;
        self.on(node, |view| view.volume.seek(ino(node), offset, what)).map_err(errno("lseek"))
    }

    fn ioctl(
        &self,
        cx: &Context<'_>,
        node: NodeId,
        ioctl: &Ioctl<'_>,
        buf: &mut [u8],
    ) -> Result<usize> {
        let len = ioctl::carry_out(&self.volume(), &self.control, ino(node), ioctl, cx, buf)?;
        if ioctl::changes_attributes(ioctl.command) {
            self.attributes_changed(node);
        }
        Ok(len)
    }

    fn copy_file_range(&self, cx: &Context<'_>, node: NodeId, copy: &CopyFileRange) -> Result<u64> {
        self.clear_privileges(cx, copy.node_out, privileges::clear_unless_kept)?;
        let from = (ino(node), copy.offset_in);
        let to = (ino(copy.node_out), copy.offset_out);
        self.as_caller(cx, "copy_file_range", |volume, caller| {
            volume.copy(caller, from, to, copy.length)
        })
    }
}
