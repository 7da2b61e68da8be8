//! A disk that fails on demand: one file, served over FUSE by the test itself.
//!
//! The program under test sees an ordinary image, on its ordinary command line. Nothing is cached in between,
//! so that each of its requests arrives here, and fails or not.

use std::fs::File;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

use fuse_ring::protocol::{
    Attr, AttrReply, Context, Create, Entry, FileHandle, LockOwner, NodeId, Open, OpenFlags,
    Opened, Read, SetAttr, Write,
};
use fuse_ring::{
    Config, Errno, Handler, MountOptions, Session, TransportChoice, Unmount, Unmounter,
};

const NAME: &str = "disk";
const NODE: NodeId = NodeId(2);
const TTL: Duration = Duration::from_secs(86_400);
const NEVER: i64 = i64::MAX;

/// The kind of the request that fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    Read,
    Write,
    Flush,
    /// Closing, which loses unflushed writes.
    Close,
}

/// The numbers of requests of each kind that still succeed, and of those that failed.
struct Faults {
    left: [AtomicI64; 4],
    failed: AtomicU64,
    /// Bytes that cannot be read until they are written.
    unreadable: Mutex<Range<u64>>,
    /// Whether flushes are delayed.
    holds: Mutex<bool>,
    let_go: Condvar,
}

impl Faults {
    fn new() -> Faults {
        Faults {
            left: [const { AtomicI64::new(NEVER) }; 4],
            failed: AtomicU64::new(0),
            unreadable: Mutex::new(0..0),
            holds: Mutex::new(false),
            let_go: Condvar::new(),
        }
    }

    fn check(&self, fault: Fault) -> Result<(), Errno> {
        if self.left[fault as usize].fetch_sub(1, Ordering::AcqRel) > 0 {
            return Ok(());
        }
        self.failed.fetch_add(1, Ordering::AcqRel);
        Err(Errno::IO)
    }
}

/// The disk, which is removed when the value is dropped.
pub struct FailingDisk {
    faults: Arc<Faults>,
    data: Arc<Data>,
    unmounter: Unmounter,
    server: Option<JoinHandle<()>>,
    directory: tempfile::TempDir,
}

impl FailingDisk {
    /// A disk of zeros.
    pub fn new(size_bytes: u64) -> FailingDisk {
        let data = tempfile::tempfile().expect("a file");
        data.set_len(size_bytes).expect("room");
        FailingDisk::with(data)
    }

    /// A disk with the contents and size of a file.
    pub fn with(data: File) -> FailingDisk {
        let size_bytes = data.metadata().expect("readable").len();
        let faults = Arc::new(Faults::new());
        let data = Arc::new(Data { file: data, unflushed: Mutex::new(Vec::new()) });
        let disk = Disk {
            data: Arc::clone(&data),
            size_bytes,
            is_there: AtomicBool::new(true),
            faults: Arc::clone(&faults),
        };
        let directory = tempfile::tempdir().expect("a directory");
        let options = MountOptions { fsname: "failing".into(), ..MountOptions::default() };
        let config = Config { transport: TransportChoice::Dev, ..Config::default() };
        let session =
            Session::mount(disk, directory.path(), &options, &config).expect("it can be mounted");
        let unmounter = session.unmounter();
        let server = std::thread::spawn(move || drop(session.serve()));
        FailingDisk { faults, data, unmounter, server: Some(server), directory }
    }

    /// The image on the disk.
    pub fn image(&self) -> PathBuf {
        self.directory.path().join(NAME)
    }

    /// Makes all requests of this kind fail, after the next `after` ones.
    pub fn fail(&self, fault: Fault, after: i64) {
        self.faults.failed.store(0, Ordering::Release);
        self.faults.left[fault as usize].store(after, Ordering::Release);
    }

    /// Makes these bytes unreadable, until a write replaces all of them.
    pub fn lose(&self, bytes: Range<u64>) {
        *self.faults.unreadable.lock().expect("no panic") = bytes;
    }

    /// Sets whether flushes are delayed.
    pub fn hold(&self, holds: bool) {
        *self.faults.holds.lock().expect("no panic") = holds;
        self.faults.let_go.notify_all();
    }

    /// The disk after a power cut: all flushed writes, and none after the last flush.
    pub fn after_power_cut(&self) -> Vec<u8> {
        self.data.lose_unflushed().expect("written");
        let mut bytes = vec![0; self.data.file.metadata().expect("readable").len() as usize];
        self.data.file.read_exact_at(&mut bytes, 0).expect("read");
        bytes
    }

    /// Ends all failures. Returns how many requests failed.
    pub fn heal(&self) -> u64 {
        for left in &self.faults.left {
            left.store(NEVER, Ordering::Release);
        }
        self.faults.failed.load(Ordering::Acquire)
    }
}

impl Drop for FailingDisk {
    fn drop(&mut self) {
        self.hold(false);
        // A child that another test has just forked may have the image open until it executes its program.
        let try_now = |_| {
            let unmounted = self.unmounter.unmount(Unmount::Now);
            unmounted.inspect_err(|_| std::thread::sleep(Duration::from_millis(50))).is_ok()
        };
        if std::thread::panicking() || !(0..100).any(try_now) {
            let _ = self.unmounter.unmount(Unmount::Lazy);
        } else if let Some(server) = self.server.take() {
            let _ = server.join();
        }
    }
}

struct Data {
    file: File,
    /// The bytes before each write since the last flush.
    unflushed: Mutex<Vec<(u64, Vec<u8>)>>,
}

impl Data {
    /// Undoes all writes since the last flush.
    fn lose_unflushed(&self) -> std::io::Result<()> {
        let mut unflushed = self.unflushed.lock().expect("no panic");
        while let Some((offset, before)) = unflushed.pop() {
            self.file.write_all_at(&before, offset)?;
        }
        Ok(())
    }
}

struct Disk {
    data: Arc<Data>,
    size_bytes: u64,
    /// False while the file has no name. Its contents stay, like those of a disk.
    is_there: AtomicBool,
    faults: Arc<Faults>,
}

impl Disk {
    fn entry(&self) -> Result<Entry, Errno> {
        let attr = self.attr(NODE)?;
        Ok(Entry { node: NODE, generation: 0, attr, entry_ttl: TTL, attr_ttl: TTL })
    }

    fn attr(&self, node: NodeId) -> Result<Attr, Errno> {
        let (mode, size) = match node {
            NodeId::ROOT => (0o040_755, 0),
            NODE => (0o100_600, self.size_bytes),
            _ => return Err(Errno::NOENT),
        };
        let owner = (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw());
        let (uid, gid) = owner;
        Ok(Attr {
            ino: node.0,
            size,
            blocks: size / 512,
            mode,
            nlink: 1,
            uid,
            gid,
            blksize: 4096,
            ..Attr::default()
        })
    }
}

impl Handler for Disk {
    fn lookup(&self, _: &Context<'_>, parent: NodeId, name: &[u8]) -> Result<Entry, Errno> {
        let is_disk = parent == NodeId::ROOT && name == NAME.as_bytes();
        if !is_disk || !self.is_there.load(Ordering::Acquire) {
            return Err(Errno::NOENT);
        }
        self.entry()
    }

    fn unlink(&self, _: &Context<'_>, _: NodeId, _: &[u8]) -> Result<(), Errno> {
        self.is_there.store(false, Ordering::Release);
        Ok(())
    }

    fn create(
        &self,
        cx: &Context<'_>,
        _: NodeId,
        name: &[u8],
        create: &Create,
    ) -> Result<(Entry, Opened), Errno> {
        if name != NAME.as_bytes() {
            return Err(Errno::PERM);
        }
        self.is_there.store(true, Ordering::Release);
        let open = Open { flags: create.flags, kill_suid_sgid: create.kill_suid_sgid };
        Ok((self.entry()?, self.open(cx, NODE, &open)?))
    }

    fn getattr(
        &self,
        _: &Context<'_>,
        node: NodeId,
        _: Option<FileHandle>,
    ) -> Result<AttrReply, Errno> {
        Ok(AttrReply { attr: self.attr(node)?, ttl: TTL })
    }

    fn setattr(&self, _: &Context<'_>, node: NodeId, _: &SetAttr) -> Result<AttrReply, Errno> {
        Ok(AttrReply { attr: self.attr(node)?, ttl: TTL })
    }

    fn open(&self, _: &Context<'_>, _: NodeId, _: &Open) -> Result<Opened, Errno> {
        let flags = OpenFlags::DIRECT_IO | OpenFlags::PARALLEL_DIRECT_WRITES;
        Ok(Opened { handle: FileHandle(0), flags })
    }

    fn read(
        &self,
        _: &Context<'_>,
        _: NodeId,
        read: &Read,
        buf: &mut [u8],
    ) -> Result<usize, Errno> {
        self.faults.check(Fault::Read)?;
        let unreadable = self.faults.unreadable.lock().expect("no panic").clone();
        if read.offset < unreadable.end && unreadable.start < read.offset + buf.len() as u64 {
            return Err(Errno::IO);
        }
        let left = self.size_bytes.saturating_sub(read.offset);
        let len = buf.len().min(usize::try_from(left).unwrap_or(usize::MAX));
        self.data.file.read_exact_at(&mut buf[..len], read.offset).map_err(|_| Errno::IO)?;
        Ok(len)
    }

    fn write(&self, _: &Context<'_>, _: NodeId, write: &Write<'_>) -> Result<usize, Errno> {
        self.faults.check(Fault::Write)?;
        let end = write.offset + write.data.len() as u64;
        let mut unreadable = self.faults.unreadable.lock().expect("no panic");
        if write.offset <= unreadable.start && unreadable.end <= end {
            *unreadable = 0..0;
        }
        drop(unreadable);
        let mut unflushed = self.data.unflushed.lock().expect("no panic");
        let mut before = vec![0; write.data.len()];
        self.data.file.read_exact_at(&mut before, write.offset).map_err(|_| Errno::IO)?;
        unflushed.push((write.offset, before));
        self.data.file.write_all_at(write.data, write.offset).map_err(|_| Errno::IO)?;
        Ok(write.data.len())
    }

    fn fsync(&self, _: &Context<'_>, _: NodeId, _: FileHandle, _: bool) -> Result<(), Errno> {
        let holds = self.faults.holds.lock().expect("no panic");
        drop(self.faults.let_go.wait_while(holds, |holds| *holds).expect("no panic"));
        self.faults.check(Fault::Flush)?;
        self.data.unflushed.lock().expect("no panic").clear();
        Ok(())
    }

    fn flush(&self, _: &Context<'_>, _: NodeId, _: FileHandle, _: LockOwner) -> Result<(), Errno> {
        let closed = self.faults.check(Fault::Close);
        if closed.is_err() {
            self.data.lose_unflushed().map_err(|_| Errno::IO)?;
        }
        closed
    }
}
