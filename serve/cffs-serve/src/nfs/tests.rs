//! Tests every procedure over TCP, with a client that shares no code with the server.

use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::task::{Context, Poll, Waker};
use std::thread;
use std::time::Duration;

use cffs::clock::SystemClock;
use cffs::device::MemoryDevice;
use cffs::vfs::types::OpenOptions;
use nfs3_client::io::{AsyncRead, AsyncWrite};
use nfs3_client::nfs3_types::nfs3::*;
use nfs3_client::nfs3_types::rpc::{auth_unix, opaque_auth};
use nfs3_client::nfs3_types::xdr_codec::Opaque;
use nfs3_client::{MountClient, Nfs3Client, RpcError};

use super::*;
use crate::shared::NoObserver;

mod consistency;
mod durability;
mod exporting;
mod hostile;
mod mounted;
mod permissions;
mod procedures;
mod stopping;

/// A blocking stream that a client can use as an asynchronous one.
struct Blocking(TcpStream);

impl AsyncRead for Blocking {
    async fn async_read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        match self.0.read(buf)? {
            0 => Err(io::ErrorKind::UnexpectedEof.into()),
            len => Ok(len),
        }
    }
}

impl AsyncWrite for Blocking {
    async fn async_write(&mut self, buf: &[u8]) -> io::Result<usize> {
        self.0.write(buf)
    }
}

/// The value of a future that never waits.
fn now<T>(future: impl Future<Output = T>) -> T {
    match pin!(future).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(value) => value,
        Poll::Pending => panic!("it waits"),
    }
}

type Client = Nfs3Client<Blocking>;
type Answer<T, E> = Result<Nfs3Result<T, E>, RpcError>;

/// The result of a call that must succeed.
#[track_caller]
fn ok<T, E: std::fmt::Debug>(answer: Answer<T, E>) -> T {
    match answer.expect("an answer") {
        Nfs3Result::Ok(value) => value,
        Nfs3Result::Err(failure) => panic!("{failure:?}"),
    }
}

/// The status of a call that must fail.
#[track_caller]
fn failure<T, E>(answer: Answer<T, E>) -> nfsstat3 {
    match answer.expect("an answer") {
        Nfs3Result::Ok(_) => panic!("it succeeded"),
        Nfs3Result::Err((status, _)) => status,
    }
}

#[track_caller]
fn some<
    T: nfs3_client::nfs3_types::xdr_codec::Pack + nfs3_client::nfs3_types::xdr_codec::Unpack,
>(
    value: Nfs3Option<T>,
) -> T {
    match value {
        Nfs3Option::Some(value) => value,
        Nfs3Option::None => panic!("there is no value"),
    }
}

fn at<'a>(dir: &nfs_fh3, name: &'a str) -> diropargs3<'a> {
    diropargs3 { dir: dir.clone(), name: name.as_bytes().into() }
}

/// Creates a file with a mode and no other attributes.
fn create(client: &mut Client, dir: &nfs_fh3, name: &str, mode: u32) -> nfs_fh3 {
    let attributes = sattr3 { mode: Nfs3Option::Some(mode), ..sattr3::default() };
    let args = CREATE3args { where_: at(dir, name), how: createhow3::GUARDED(attributes) };
    some(ok(now(client.create(&args))).obj)
}

fn mkdir(client: &mut Client, dir: &nfs_fh3, name: &str, mode: u32) -> nfs_fh3 {
    let attributes = sattr3 { mode: Nfs3Option::Some(mode), ..sattr3::default() };
    let args = MKDIR3args { where_: at(dir, name), attributes };
    some(ok(now(client.mkdir(&args))).obj)
}

fn write_args<'a>(
    file: &nfs_fh3,
    offset: u64,
    data: &'a [u8],
    stable: stable_how,
) -> WRITE3args<'a> {
    let (file, data) = (file.clone(), Opaque::borrowed(data));
    WRITE3args { file, offset, count: data.len() as u32, stable, data }
}

fn read_args(file: &nfs_fh3) -> READ3args {
    READ3args { file: file.clone(), offset: 0, count: 1 << 20 }
}

fn lookup(client: &mut Client, dir: &nfs_fh3, name: &str) -> Answer<LOOKUP3resok, LOOKUP3resfail> {
    now(client.lookup(&LOOKUP3args { what: at(dir, name) }))
}

fn attributes(client: &mut Client, file: &nfs_fh3) -> fattr3 {
    ok(now(client.getattr(&GETATTR3args { object: file.clone() }))).obj_attributes
}

/// A volume that is served until the value is dropped.
struct Served {
    volume: Arc<Volume>,
    service: Arc<Service>,
    connections: Arc<Connections>,
    address: SocketAddr,
    stopper: Stopper,
    thread: Option<thread::JoinHandle<Result<(), ServeError>>>,
}

impl Served {
    fn new(exports: &[&str]) -> Served {
        let device = Arc::new(MemoryDevice::new(64 << 20));
        cffs::mkfs::make(&*device, &Default::default()).expect("made");
        Served::over(device, exports)
    }

    fn over(device: Arc<dyn cffs::device::BlockDevice>, exports: &[&str]) -> Served {
        let volume = cffs::open(device, Arc::new(SystemClock), OpenOptions::default());
        Served::of(Arc::new(volume.expect("opened")), exports)
    }

    fn of(volume: Arc<Volume>, exports: &[&str]) -> Served {
        Served::with_observer(volume, exports, Arc::new(NoObserver))
    }

    /// One with an observer of its changes.
    fn with_observer(volume: Arc<Volume>, exports: &[&str], observer: Arc<dyn Observer>) -> Served {
        let exports = exports.iter().map(|text| text.parse().expect("an export")).collect();
        let any = "127.0.0.1:0".parse().expect("an address");
        let server = Server::bind(Arc::clone(&volume), any, exports, observer).expect("bound");
        let address = server.address().expect("an address");
        let stopper = server.stopper();
        let service = Arc::clone(&server.service);
        let connections = Arc::clone(&server.connections);
        let thread = thread::spawn(move || server.serve());
        Served { volume, service, connections, address, stopper, thread: Some(thread) }
    }

    fn stream(&self) -> TcpStream {
        let stream = TcpStream::connect(self.address).expect("connected");
        // A missing reply fails the test.
        stream.set_read_timeout(Some(Duration::from_secs(60))).expect("set");
        stream
    }

    /// A client with the credentials of this user.
    fn client(&self, uid: u32, gid: u32) -> Client {
        let auth =
            auth_unix { stamp: 1, machinename: Opaque::borrowed(b"test"), uid, gid, gids: vec![] };
        Client::new_with_auth(
            Blocking(self.stream()),
            opaque_auth::auth_unix(&auth),
            opaque_auth::default(),
        )
    }

    fn root(&self) -> nfs_fh3 {
        self.handle("/").expect("mounted")
    }

    fn handle(&self, path: &str) -> Option<nfs_fh3> {
        let mut client = MountClient::new(Blocking(self.stream()));
        let path = nfs3_client::nfs3_types::mount::dirpath(Opaque::borrowed(path.as_bytes()));
        let mounted = now(client.mnt(path)).ok()?;
        Some(nfs_fh3 { data: Opaque::owned(mounted.fhandle.0.to_vec()) })
    }

    /// The current verifier.
    fn verifier(&self) -> [u8; 8] {
        self.service.exported().verifier()
    }

    fn stop(&mut self) {
        self.stopper.stop();
        if let Some(thread) = self.thread.take() {
            thread.join().expect("ended").expect("served");
        }
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        self.stop();
    }
}
