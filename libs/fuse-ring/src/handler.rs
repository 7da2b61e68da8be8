//! The trait that a file system implements.

use rustix::io::Errno;

use crate::protocol::{
    AttrReply, Context, CopyFileRange, Create, Entry, Fallocate, FileHandle, Granted, Ioctl,
    Listing, ListingPlus, LockOwner, NodeId, Opcode, Open, Opened, Read, Release, Rename, SetAttr,
    SetXattr, Statfs, StatxReply, Unique, Write,
};

/// A file system, from the kernel's point of view: one method per request.
///
/// **Threads.** Methods are called concurrently from several threads and answer by returning. A method
/// that waits occupies its thread, so the number of threads bounds the number of concurrent requests.
///
/// **Memory.** Names and data are borrowed from the request, contents are written directly into the
/// reply. This crate allocates nothing per call.
///
/// **Absent methods.** All methods have a default, usually `ENOSYS`. After that answer to `OPEN`,
/// `OPENDIR`, `FLUSH`, `FSYNC`, `FSYNCDIR`, `ACCESS`, `CREATE`, `GETXATTR` and the other xattr
/// requests, `FALLOCATE`, `LSEEK`, `COPY_FILE_RANGE`, `STATX`, `TMPFILE`, `SYNCFS` or `RENAME2`, the
/// kernel uses a fallback if it has one, and does not send that request again on this mount. So a method
/// that is implemented must never return `ENOSYS`.
///
/// **Panics.** A handler that panicked is not called again, since its state is unknown: that request and
/// all later ones are answered with `EIO`, and the session ends with an error when it is unmounted.
///
/// **Lookups.** Each returned [`Entry`] counts as a lookup, see there. At the end of a session the kernel
/// drops its remaining lookups without `FORGET`s; [`destroy`](Handler::destroy) must do the same.
#[allow(unused_variables, reason = "the defaults ignore what they are given")]
pub trait Handler: Send + Sync {
    /// A session begins, with these features.
    fn init(&self, granted: &Granted) {}

    /// The connection to the kernel has ended: no new requests arrive, but other threads may still serve
    /// some. [`destroy`](Handler::destroy) follows when they have ended. Several threads may call this. With
    /// a block device, `destroy` may be called first.
    fn disconnected(&self) {}

    /// The session has ended: no caller waits for a method any more, and results are ignored. Called once,
    /// however the session ended. If the file system was mounted on a [block
    /// device](crate::MountOptions::block_device), unmounting waits for this.
    fn destroy(&self) {}

    /// A request about a node has arrived, possibly one that no other method serves; for counting requests
    /// and for tracking those in progress. The method that serves it is called next, in this thread.
    /// `process` is the caller's, as in [`Context::pid`].
    fn arrived(&self, opcode: Opcode, node: NodeId, process: u32) {}

    /// The last request of this thread has been served.
    fn served(&self) {}

    /// The kernel drops this many lookups of a node.
    fn forget(&self, node: NodeId, lookups: u64) {}

    /// The caller of a request received a signal. The request should end soon, with `EINTR` if it has had no
    /// effect. It may have ended already, or not have begun; then nothing needs to be done.
    fn interrupt(&self, unique: Unique) {}

    /// Finds a name. For `.` and `..` see
    /// [`EXPORT_SUPPORT`](crate::protocol::Features::EXPORT_SUPPORT).
    fn lookup(&self, cx: &Context<'_>, parent: NodeId, name: &[u8]) -> Result<Entry, Errno> {
        Err(Errno::NOENT)
    }

    /// The attributes of an inode, through an open file if there is one.
    fn getattr(
        &self,
        cx: &Context<'_>,
        node: NodeId,
        handle: Option<FileHandle>,
    ) -> Result<AttrReply, Errno> {
        Err(Errno::NOSYS)
    }

    /// More attributes. `flags` are `AT_STATX_*`; `mask` selects the wanted fields.
    fn statx(
        &self,
        cx: &Context<'_>,
        node: NodeId,
        handle: Option<FileHandle>,
        flags: u32,
        mask: u32,
    ) -> Result<StatxReply, Errno> {
        Err(Errno::NOSYS)
    }

    /// Changes attributes, including the size.
    fn setattr(
        &self,
        cx: &Context<'_>,
        node: NodeId,
        change: &SetAttr,
    ) -> Result<AttrReply, Errno> {
        Err(Errno::NOSYS)
    }

    /// Writes the target of a symbolic link into the buffer, without a NUL, and returns its length.
    fn readlink(&self, cx: &Context<'_>, node: NodeId, buf: &mut [u8]) -> Result<usize, Errno> {
        Err(Errno::NOSYS)
    }

    /// Makes a symbolic link.
    fn symlink(
        &self,
        cx: &Context<'_>,
        parent: NodeId,
        name: &[u8],
        target: &[u8],
    ) -> Result<Entry, Errno> {
        Err(Errno::NOSYS)
    }

    /// Makes a file of any kind but directory and symbolic link. `rdev` is in the encoding of
    /// [`encode_device`](crate::protocol::encode_device).
    fn mknod(
        &self,
        cx: &Context<'_>,
        parent: NodeId,
        name: &[u8],
        mode: u32,
        rdev: u32,
        umask: u32,
    ) -> Result<Entry, Errno> {
        Err(Errno::NOSYS)
    }

    /// Makes a directory.
    fn mkdir(
        &self,
        cx: &Context<'_>,
        parent: NodeId,
        name: &[u8],
        mode: u32,
        umask: u32,
    ) -> Result<Entry, Errno> {
        Err(Errno::NOSYS)
    }

    /// Removes a name that is not a directory's.
    fn unlink(&self, cx: &Context<'_>, parent: NodeId, name: &[u8]) -> Result<(), Errno> {
        Err(Errno::NOSYS)
    }

    /// Removes an empty directory.
    fn rmdir(&self, cx: &Context<'_>, parent: NodeId, name: &[u8]) -> Result<(), Errno> {
        Err(Errno::NOSYS)
    }

    /// Renames.
    fn rename(&self, cx: &Context<'_>, parent: NodeId, rename: &Rename<'_>) -> Result<(), Errno> {
        Err(Errno::NOSYS)
    }

    /// Adds a name to an inode.
    fn link(
        &self,
        cx: &Context<'_>,
        node: NodeId,
        new_parent: NodeId,
        new_name: &[u8],
    ) -> Result<Entry, Errno> {
        Err(Errno::NOSYS)
    }

    /// Opens a file; not called while the opening is
    /// [elided](crate::protocol::Granted::elide_open).
    fn open(&self, cx: &Context<'_>, node: NodeId, open: &Open) -> Result<Opened, Errno> {
        Ok(Opened::default())
    }

    /// Creates and opens a file; opens it if it exists and `O_EXCL` is not set.
    fn create(
        &self,
        cx: &Context<'_>,
        parent: NodeId,
        name: &[u8],
        create: &Create,
    ) -> Result<(Entry, Opened), Errno> {
        Err(Errno::NOSYS)
    }

    /// Creates and opens a file without a name.
    fn tmpfile(
        &self,
        cx: &Context<'_>,
        parent: NodeId,
        create: &Create,
    ) -> Result<(Entry, Opened), Errno> {
        Err(Errno::NOSYS)
    }

    /// Reads into the buffer, whose length is that of the request, and returns the number of bytes read:
    /// fewer only at the end of the file. The buffer contains old data of another request.
    fn read(
        &self,
        cx: &Context<'_>,
        node: NodeId,
        read: &Read,
        buf: &mut [u8],
    ) -> Result<usize, Errno> {
        Err(Errno::NOSYS)
    }

    /// Writes, and returns the number of bytes written.
    fn write(&self, cx: &Context<'_>, node: NodeId, write: &Write<'_>) -> Result<usize, Errno> {
        Err(Errno::NOSYS)
    }

    /// The state of the file system.
    fn statfs(&self, cx: &Context<'_>, node: NodeId) -> Result<Statfs, Errno> {
        Ok(Statfs { namelen: 255, bsize: 4096, frsize: 4096, ..Statfs::default() })
    }

    /// A descriptor of the open file was closed; others may remain.
    fn flush(
        &self,
        cx: &Context<'_>,
        node: NodeId,
        handle: FileHandle,
        lock_owner: LockOwner,
    ) -> Result<(), Errno> {
        Err(Errno::NOSYS)
    }

    /// The open file is closed. An error is ignored.
    fn release(&self, cx: &Context<'_>, node: NodeId, release: &Release) -> Result<(), Errno> {
        Ok(())
    }

    /// Makes a file durable.
    fn fsync(
        &self,
        cx: &Context<'_>,
        node: NodeId,
        handle: FileHandle,
        data_only: bool,
    ) -> Result<(), Errno> {
        Err(Errno::NOSYS)
    }

    /// Opens a directory; not called while the opening is
    /// [elided](crate::protocol::Granted::elide_opendir).
    fn opendir(&self, cx: &Context<'_>, node: NodeId, open: &Open) -> Result<Opened, Errno> {
        Ok(Opened::default())
    }

    /// Lists the entries after the cookie `read.offset`, or all if it is zero.
    fn readdir(
        &self,
        cx: &Context<'_>,
        node: NodeId,
        read: &Read,
        listing: &mut Listing<'_>,
    ) -> Result<(), Errno> {
        Err(Errno::NOSYS)
    }

    /// The same, with the attributes.
    fn readdirplus(
        &self,
        cx: &Context<'_>,
        node: NodeId,
        read: &Read,
        listing: &mut ListingPlus<'_>,
    ) -> Result<(), Errno> {
        Err(Errno::NOSYS)
    }

    /// The open directory is closed.
    fn releasedir(&self, cx: &Context<'_>, node: NodeId, release: &Release) -> Result<(), Errno> {
        Ok(())
    }

    /// Makes a directory durable.
    fn fsyncdir(
        &self,
        cx: &Context<'_>,
        node: NodeId,
        handle: FileHandle,
        data_only: bool,
    ) -> Result<(), Errno> {
        Err(Errno::NOSYS)
    }

    /// Makes everything durable.
    ///
    /// Linux sends this only for mounts of a [block device](crate::MountOptions::block_device), since 6.18,
    /// and for virtiofs: other servers do not learn of `sync` and `syncfs`.
    fn syncfs(&self, cx: &Context<'_>, node: NodeId) -> Result<(), Errno> {
        Err(Errno::NOSYS)
    }

    /// Sets an extended attribute.
    fn setxattr(&self, cx: &Context<'_>, node: NodeId, set: &SetXattr<'_>) -> Result<(), Errno> {
        Err(Errno::NOSYS)
    }

    /// Returns the length of an extended attribute's value and, if it fits, writes the value into the buffer.
    /// An empty buffer only queries the length; the handler need not return `ERANGE`.
    fn getxattr(
        &self,
        cx: &Context<'_>,
        node: NodeId,
        name: &[u8],
        buf: &mut [u8],
    ) -> Result<usize, Errno> {
        Err(Errno::NOSYS)
    }

    /// The same for the list of names, each terminated by a NUL.
    fn listxattr(&self, cx: &Context<'_>, node: NodeId, buf: &mut [u8]) -> Result<usize, Errno> {
        Err(Errno::NOSYS)
    }

    /// Removes an extended attribute.
    fn removexattr(&self, cx: &Context<'_>, node: NodeId, name: &[u8]) -> Result<(), Errno> {
        Err(Errno::NOSYS)
    }

    /// Checks permissions; not called with the mount option `default_permissions`.
    fn access(&self, cx: &Context<'_>, node: NodeId, mask: u32) -> Result<(), Errno> {
        Err(Errno::NOSYS)
    }

    /// Allocates space or punches holes.
    fn fallocate(&self, cx: &Context<'_>, node: NodeId, what: &Fallocate) -> Result<(), Errno> {
        Err(Errno::NOSYS)
    }

    /// Finds data or a hole: `whence` is `SEEK_DATA` or `SEEK_HOLE`; the kernel handles the others.
    fn lseek(
        &self,
        cx: &Context<'_>,
        node: NodeId,
        handle: FileHandle,
        offset: u64,
        whence: u32,
    ) -> Result<u64, Errno> {
        Err(Errno::NOSYS)
    }

    /// Executes an ioctl on an open file or directory, and returns how many bytes it wrote into the buffer.
    /// The error for an unknown ioctl is `ENOTTY`.
    fn ioctl(
        &self,
        cx: &Context<'_>,
        node: NodeId,
        ioctl: &Ioctl<'_>,
        buf: &mut [u8],
    ) -> Result<usize, Errno> {
        Err(Errno::NOTTY)
    }

    /// Copies between two files of this file system, and returns the number of bytes copied.
    fn copy_file_range(
        &self,
        cx: &Context<'_>,
        node: NodeId,
        copy: &CopyFileRange,
    ) -> Result<u64, Errno> {
        Err(Errno::NOSYS)
    }
}
