//! Calls the handler's method for a request, and encodes its result as a reply.
//!
//! Pure with respect to the transport, which lends a buffer for the payload and gets the [`Outcome`].

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::io::Errno;

use crate::Handler;
use crate::protocol::{
    Context, CopyFileRange, Dialect, Entry, Frame, Granted, Ioctl, Listing, ListingPlus, NodeId,
    Opcode, Opened, Operation, Read, Request, Write, encode,
};
use crate::serving::Serving;
use crate::start_file::{self, StartFile};

/// The outcome of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// The kernel expects no answer.
    Silent,
    /// The answer: an error, or the length of the payload.
    Reply(Result<usize, Errno>),
}

/// A handler, with the features negotiated with the kernel.
pub(crate) struct Dispatcher<H> {
    pub(crate) handler: H,
    pub(crate) granted: Granted,
    pub(crate) start_file: Arc<StartFile>,
    panicked: AtomicBool,
    destroyed: AtomicBool,
}

impl<H: Handler> Dispatcher<H> {
    pub(crate) fn new(handler: H, granted: Granted) -> Dispatcher<H> {
        Dispatcher {
            handler,
            granted,
            start_file: Arc::new(StartFile::new()),
            panicked: AtomicBool::new(false),
            destroyed: AtomicBool::new(false),
        }
    }

    pub(crate) fn dialect(&self) -> Dialect {
        self.granted.dialect()
    }

    /// Whether the handler has panicked and is therefore no longer called.
    pub(crate) fn panicked(&self) -> bool {
        self.panicked.load(Ordering::Relaxed)
    }

    /// Serves one message. `payload` has room for at least [`encode::FIXED_LEN_MAX`] bytes, and for the whole
    /// reply if that consists of data.
    pub(crate) fn serve(&self, frame: &Frame<'_>, payload: &mut [u8]) -> Outcome {
        if let Some(result) = self.start_file.answer(frame, self.dialect(), payload) {
            let is_forget = frame.opcode() == Some(Opcode::Forget);
            return if is_forget { Outcome::Silent } else { Outcome::Reply(result) };
        }
        let Some(opcode) = frame.opcode() else { return self.serve_known(frame, payload) };
        self.handler.arrived(opcode, frame.node(), frame.process());
        let outcome = self.serve_known(frame, payload);
        self.handler.served();
        outcome
    }

    fn serve_known(&self, frame: &Frame<'_>, payload: &mut [u8]) -> Outcome {
        let request = match Request::decode(frame, self.dialect()) {
            Ok(request) => request,
            Err(malformed) => {
                tracing::error!(?frame, %malformed, "malformed request");
                return Outcome::Reply(Err(Errno::IO));
            }
        };
        let _serving = Serving::begin(frame.opcode(), request.node);
        let result = if self.panicked() {
            Err(Errno::IO)
        } else {
            let call = || self.call(&request, payload);
            catch_unwind(AssertUnwindSafe(call)).unwrap_or_else(|_| {
                self.panicked.store(true, Ordering::Relaxed);
                Err(Errno::IO)
            })
        };
        if request.wants_reply() { Outcome::Reply(result) } else { Outcome::Silent }
    }

    /// Calls the handler's `disconnected`, unless it panicked before.
    pub(crate) fn disconnected(&self) {
        if !self.panicked() {
            self.handler.disconnected();
        }
    }

    /// Calls the handler's `destroy`, once; fails if the handler panicked before.
    pub(crate) fn destroy(&self) -> Result<(), Errno> {
        if self.panicked() {
            return Err(Errno::IO);
        }
        if !self.destroyed.swap(true, Ordering::AcqRel) {
            self.handler.destroy();
        }
        Ok(())
    }

    fn call(&self, request: &Request<'_>, out: &mut [u8]) -> Result<usize, Errno> {
        let Request { context: cx, node, operation } = request;
        let (h, node) = (&self.handler, *node);
        let done = |()| 0;
        let entry = |entry| encode::entry(out, &entry);
        match operation {
            Operation::Lookup { name } => h.lookup(cx, node, name).map(entry),
            Operation::Forget { lookups } => self.forget([(node, *lookups)]),
            Operation::BatchForget(forgets) => self.forget(*forgets),
            Operation::Interrupt { unique } => {
                h.interrupt(*unique);
                Ok(0)
            }
            Operation::GetAttr { handle } => Ok(encode::attr(out, &h.getattr(cx, node, *handle)?)),
            Operation::Statx { handle, flags, mask } => {
                Ok(encode::statx(out, &h.statx(cx, node, *handle, *flags, *mask)?))
            }
            Operation::SetAttr(change) => Ok(encode::attr(out, &h.setattr(cx, node, change)?)),
            Operation::ReadLink => within(out, |out| h.readlink(cx, node, out)),
            Operation::Symlink { name, target } => h.symlink(cx, node, name, target).map(entry),
            Operation::MkNod { name, mode, rdev, umask } => {
                h.mknod(cx, node, name, *mode, *rdev, *umask).map(entry)
            }
            Operation::MkDir { name, mode, umask } => {
                h.mkdir(cx, node, name, *mode, *umask).map(entry)
            }
            Operation::Unlink { name } => h.unlink(cx, node, name).map(done),
            Operation::RmDir { name } => h.rmdir(cx, node, name).map(done),
            Operation::Rename(rename) => h.rename(cx, node, rename).map(done),
            Operation::Link { target, name } => h.link(cx, *target, node, name).map(entry),
            Operation::Open(_) if self.granted.elide_open => Err(Errno::NOSYS),
            Operation::Open(open) => Ok(encode::opened(out, &h.open(cx, node, open)?)),
            Operation::Create { name, create } => created(out, h.create(cx, node, name, create)?),
            Operation::TmpFile { create } => created(out, h.tmpfile(cx, node, create)?),
            Operation::Read(read) => {
                within(sized(out, read.size), |buf| h.read(cx, node, read, buf))
            }
            Operation::Write(write) => self.write(cx, node, write, out),
            Operation::StatFs => Ok(encode::statfs(out, &h.statfs(cx, node)?)),
            Operation::Flush { handle, lock_owner } => {
                h.flush(cx, node, *handle, *lock_owner).map(done)
            }
            Operation::Release(release) => h.release(cx, node, release).map(done),
            Operation::Fsync { handle, data_only } => {
                h.fsync(cx, node, *handle, *data_only).map(done)
            }
            Operation::OpenDir(_) if self.granted.elide_opendir => Err(Errno::NOSYS),
            Operation::OpenDir(open) => Ok(encode::opened(out, &h.opendir(cx, node, open)?)),
            Operation::ReadDir(read) => self.readdir(cx, node, read, out),
            Operation::ReadDirPlus(read) => self.readdirplus(cx, node, read, out),
            Operation::ReleaseDir(release) => h.releasedir(cx, node, release).map(done),
            Operation::FsyncDir { handle, data_only } => {
                h.fsyncdir(cx, node, *handle, *data_only).map(done)
            }
            Operation::SyncFs => h.syncfs(cx, node).map(done),
            Operation::SetXattr(set) => h.setxattr(cx, node, set).map(done),
            Operation::GetXattr { name, size } => {
                xattr(out, *size, |buf| h.getxattr(cx, node, name, buf))
            }
            Operation::ListXattr { size } => xattr(out, *size, |buf| h.listxattr(cx, node, buf)),
            Operation::RemoveXattr { name } => h.removexattr(cx, node, name).map(done),
            Operation::Access { mask } => h.access(cx, node, *mask).map(done),
            Operation::Fallocate(what) => h.fallocate(cx, node, what).map(done),
            Operation::Lseek { handle, offset, whence } => {
                Ok(encode::offset(out, h.lseek(cx, node, *handle, *offset, *whence)?))
            }
            Operation::CopyFileRange(copy) => self.copy_file_range(cx, node, copy, out),
            // Sent for block devices only; otherwise the connection just ends.
            Operation::Destroy => self.destroy().map(done),
            Operation::Ioctl(ioctl) => self.ioctl(cx, node, ioctl, out),
            Operation::Init(_)
            | Operation::Lock
            | Operation::Bmap { .. }
            | Operation::Poll { .. }
            | Operation::Unknown { .. } => Err(Errno::NOSYS),
        }
    }

    fn forget(&self, forgets: impl IntoIterator<Item = (NodeId, u64)>) -> Result<usize, Errno> {
        let of_handler = forgets.into_iter().filter(|(node, _)| *node != start_file::NODE);
        of_handler.for_each(|(node, lookups)| self.handler.forget(node, lookups));
        Ok(0)
    }

    fn readdir(
        &self,
        cx: &Context<'_>,
        node: NodeId,
        read: &Read,
        out: &mut [u8],
    ) -> Result<usize, Errno> {
        let mut listing = Listing::new(sized(out, read.size));
        self.handler.readdir(cx, node, read, &mut listing)?;
        Ok(listing.len())
    }

    fn readdirplus(
        &self,
        cx: &Context<'_>,
        node: NodeId,
        read: &Read,
        out: &mut [u8],
    ) -> Result<usize, Errno> {
        let mut listing = ListingPlus::new(sized(out, read.size));
        self.handler.readdirplus(cx, node, read, &mut listing)?;
        Ok(listing.len())
    }

    fn write(
        &self,
        cx: &Context<'_>,
        node: NodeId,
        write: &Write<'_>,
        out: &mut [u8],
    ) -> Result<usize, Errno> {
        let len = self.handler.write(cx, node, write)?;
        let len = u32::try_from(len).ok().filter(|_| len <= write.data.len());
        Ok(encode::size(out, len.ok_or(Errno::IO)?))
    }

    fn copy_file_range(
        &self,
        cx: &Context<'_>,
        node: NodeId,
        copy: &CopyFileRange,
        out: &mut [u8],
    ) -> Result<usize, Errno> {
        let len = self.handler.copy_file_range(cx, node, copy)?;
        if copy.wide {
            return Ok(encode::offset(out, len));
        }
        // The kernel requests no more than fits, so a larger length is the handler's mistake.
        Ok(encode::size(out, u32::try_from(len).map_err(|_| Errno::IO)?))
    }

    fn ioctl(
        &self,
        cx: &Context<'_>,
        node: NodeId,
        ioctl: &Ioctl<'_>,
        out: &mut [u8],
    ) -> Result<usize, Errno> {
        let head = encode::ioctl(out);
        let buf = sized(&mut out[head..], ioctl.out_size);
        Ok(head + within(buf, |buf| self.handler.ioctl(cx, node, ioctl, buf))?)
    }
}

fn created(out: &mut [u8], (entry, opened): (Entry, Opened)) -> Result<usize, Errno> {
    Ok(encode::created(out, &entry, &opened))
}

/// The first bytes of the buffer, at most as many as requested.
fn sized(out: &mut [u8], size: u32) -> &mut [u8] {
    let len = out.len().min(size as usize);
    &mut out[..len]
}

/// Runs a function that fills a buffer; a length beyond the buffer is the handler's mistake, and an error.
fn within(
    buf: &mut [u8],
    fill: impl FnOnce(&mut [u8]) -> Result<usize, Errno>,
) -> Result<usize, Errno> {
    let len = fill(buf)?;
    if len <= buf.len() { Ok(len) } else { Err(Errno::IO) }
}

fn xattr(
    out: &mut [u8],
    size: u32,
    get: impl FnOnce(&mut [u8]) -> Result<usize, Errno>,
) -> Result<usize, Errno> {
    let buf = sized(out, size);
    let len = get(buf)?;
    if size == 0 {
        return Ok(encode::size(out, u32::try_from(len).map_err(|_| Errno::TOOBIG)?));
    }
    if len <= buf.len() { Ok(len) } else { Err(Errno::RANGE) }
}

#[cfg(test)]
mod tests;
