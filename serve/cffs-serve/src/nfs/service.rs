//! The two RPC programs for one volume: from the bytes of a call to the bytes of its reply.

use std::hash::Hasher;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use cffs::vfs::Volume;
use nfs_wire::nfs;
use nfs_wire::rpc::{self, BadCall, Credentials, Verdict};
use nfs_wire::xdr::Writer;
use nfs_wire::{mount, record};
use siphasher::sip::SipHasher13;

use super::exported::Exported;
use super::exports::Export;
use super::replies::{Key, Replies};
use super::request::{HEAD_BYTES_MAX, Peer, Request, TRANSFER_BYTES_MAX};
use crate::shared::Observer;

/// Executes calls.
pub struct Service {
    exported: Exported,
    replies: Replies,
    calls: [AtomicU64; PROCEDURES.len()],
    panicked: AtomicBool,
}

/// The procedures of NFS, by number.
const PROCEDURES: [&str; 22] = [
    "null",
    "getattr",
    "setattr",
    "lookup",
    "access",
    "readlink",
    "read",
    "write",
    "create",
    "mkdir",
    "symlink",
    "mknod",
    "remove",
    "rmdir",
    "rename",
    "link",
    "readdir",
    "readdirplus",
    "fsstat",
    "fsinfo",
    "pathconf",
    "commit",
];

impl Service {
    /// Serves these exports of a volume. The observer is notified of changes.
    ///
    /// # Errors
    ///
    /// `ENOENT` and `ENOTDIR` if an export is not a directory; errors from reading and writing the key of
    /// handles.
    pub fn over(
        volume: Arc<Volume>,
        exports: Vec<Export>,
        observer: Arc<dyn Observer>,
    ) -> cffs::error::Result<Service> {
        Ok(Service::new(Exported::new(volume, exports, observer)?, Replies::default()))
    }

    /// Serves the exports, and answers repeated calls from these replies.
    pub(super) fn new(exported: Exported, replies: Replies) -> Service {
        let calls = std::array::from_fn(|_| AtomicU64::new(0));
        Service { exported, replies, calls, panicked: AtomicBool::new(false) }
    }

    /// The replies to calls that may be repeated.
    pub(super) fn replies(&self) -> Vec<u8> {
        self.replies.to_bytes()
    }

    pub(super) fn exported(&self) -> &Exported {
        &self.exported
    }

    /// The number of calls of each procedure by name, without unused ones.
    pub fn calls(&self) -> Vec<(&'static str, u64)> {
        let counts = self.calls.iter().map(|count| count.load(Ordering::Relaxed));
        PROCEDURES.into_iter().zip(counts).filter(|(_, count)| *count > 0).collect()
    }

    /// Whether a call panicked, in this server or in the mount. The volume in memory may then be half
    /// changed: it must not be used for answers or written to the device.
    pub fn panicked(&self) -> bool {
        self.panicked.load(Ordering::Acquire)
    }

    /// Makes all further calls fail, as after a panic.
    pub fn answer_no_more(&self) {
        self.panicked.store(true, Ordering::Release);
    }

    /// Runs a part of the server; returns `None` if it panics, after which all calls fail.
    pub fn guard<T>(&self, part: impl FnOnce() -> T) -> Option<T> {
        let outcome = catch_unwind(AssertUnwindSafe(part)).ok();
        if outcome.is_none() && !self.panicked.swap(true, Ordering::AcqRel) {
            tracing::error!("the NFS server panicked; calls fail until it is started again");
            self.exported.volume.writer().distrust("the NFS server panicked");
            self.exported.observer.broken();
        }
        outcome
    }

    /// The most bytes that the reply to a call may have.
    pub fn reply_bytes_max(&self, message: &[u8]) -> usize {
        let moved = match rpc::Call::decode(message) {
            Ok(call) if call.program == nfs::PROGRAM => {
                match nfs::Call::decode(call.procedure, call.arguments) {
                    Ok(Some(nfs::Call::Read { count, .. })) => count,
                    Ok(Some(nfs::Call::ReadDir { bytes_max, .. })) => bytes_max,
                    Ok(Some(nfs::Call::ReadDirPlus { bytes_max, .. })) => bytes_max,
                    _ => 0,
                }
            }
            _ => 0,
        };
        (moved.min(TRANSFER_BYTES_MAX) + HEAD_BYTES_MAX) as usize
    }

    /// Executes a call; the reply is a record. `None` for an invalid call or after a panic; the connection
    /// must then be closed. A client that repeats a call that panicked gets an error.
    pub fn answer(&self, peer: &Peer, message: &[u8]) -> Option<Vec<u8>> {
        self.guard(|| self.answer_call(peer, message)).flatten()
    }

    fn answer_call(&self, peer: &Peer, message: &[u8]) -> Option<Vec<u8>> {
        let call = match rpc::Call::decode(message) {
            Ok(call) => call,
            Err(BadCall::NoCall(why)) => {
                tracing::debug!(peer = %peer.address, %why, "not a call");
                return None;
            }
            Err(BadCall::RpcVersion { xid }) => return Some(refused(xid, Verdict::RpcMismatch)),
            Err(BadCall::Credentials { xid }) => {
                return Some(refused(xid, Verdict::BadCredentials));
            }
        };
        let (program, version) = (call.program, call.version);
        let mut reply = match (program, version) {
            _ if self.panicked() => refused(call.xid, Verdict::SystemError),
            (nfs::PROGRAM, nfs::VERSION) => self.nfs(peer, &call),
            (mount::PROGRAM, mount::VERSION) => self.mount(peer, &call),
            (nfs::PROGRAM, _) => refused(call.xid, Verdict::NoVersion(nfs::VERSION, nfs::VERSION)),
            (mount::PROGRAM, _) => {
                refused(call.xid, Verdict::NoVersion(mount::VERSION, mount::VERSION))
            }
            _ => refused(call.xid, Verdict::NoProgram),
        };
        record::finish(&mut reply);
        Some(reply)
    }

    fn nfs(&self, peer: &Peer, call: &rpc::Call<'_>) -> Vec<u8> {
        let request = match nfs::Call::decode(call.procedure, call.arguments) {
            Ok(Some(request)) => request,
            Ok(None) => return refused(call.xid, Verdict::NoProcedure),
            Err(_) => return refused(call.xid, Verdict::GarbageArguments),
        };
        if let Some(count) = self.calls.get(call.procedure as usize) {
            count.fetch_add(1, Ordering::Relaxed);
        }
        let is_null = request == nfs::Call::Null;
        if matches!(call.credentials, Credentials::Unknown(_)) && !is_null {
            return refused(call.xid, Verdict::TooWeak);
        }
        let run = || {
            let mut w = rpc::reply(call.xid, Verdict::Success);
            Request { exported: &self.exported, peer, credentials: &call.credentials }
                .run(&request, &mut w);
            w.into_bytes()
        };
        if !request.must_not_repeat() {
            return run();
        }
        match self.replies.get(key(peer, call)) {
            Ok(reply) => reply,
            Err(ticket) => {
                let reply = run();
                ticket.fill(&reply);
                reply
            }
        }
    }

    fn mount(&self, peer: &Peer, call: &rpc::Call<'_>) -> Vec<u8> {
        let request = match mount::Call::decode(call.procedure, call.arguments) {
            Ok(Some(request)) => request,
            Ok(None) => return refused(call.xid, Verdict::NoProcedure),
            Err(_) => return refused(call.xid, Verdict::GarbageArguments),
        };
        let mut w = rpc::reply(call.xid, Verdict::Success);
        match request {
            mount::Call::Null | mount::Call::Unmount(_) | mount::Call::UnmountAll => {}
            mount::Call::Dump => mount::dumped(&mut w),
            mount::Call::Mount(path) => {
                match self.exported.first_handle(peer.address, peer.port, path) {
                    Ok(handle) => mount::mounted(&mut w, Ok(&handle)),
                    Err(status) => mount::mounted(&mut w, Err(status)),
                }
            }
            mount::Call::Export => self.list_exports(&mut w),
        }
        w.into_bytes()
    }

    fn list_exports(&self, w: &mut Writer) {
        let directories = self.exported.directories();
        let exports = directories.iter().map(|directory| {
            (directory.export.path.as_bytes(), directory.export.clients().into_iter())
        });
        mount::exported(w, exports);
    }
}

fn refused(xid: u32, verdict: Verdict) -> Vec<u8> {
    let mut reply = rpc::reply(xid, verdict).into_bytes();
    record::finish(&mut reply);
    reply
}

fn key(peer: &Peer, call: &rpc::Call<'_>) -> Key {
    let mut hasher = SipHasher13::new();
    hasher.write(call.arguments);
    let (address, xid, procedure) = (peer.address, call.xid, call.procedure);
    Key { address, xid, procedure, arguments: hasher.finish() }
}
