//! Peers that send what nobody should.

use nfs_wire::rpc::{Verdict, reply};

use super::*;

/// The record that a call has, without arguments, of anonymous credentials.
fn call(program: u32, version: u32, procedure: u32, arguments: &[u8]) -> Vec<u8> {
    let words = [7, 0, 2, program, version, procedure, 0, 0, 0, 0];
    let words = words.into_iter().flat_map(u32::to_be_bytes);
    record(&words.chain(arguments.iter().copied()).collect::<Vec<_>>())
}

fn record(body: &[u8]) -> Vec<u8> {
    [&(1 << 31 | body.len() as u32).to_be_bytes(), body].concat()
}

/// What comes back for these bytes: a reply, or nothing and the end of the connection.
fn answer(served: &Served, bytes: &[u8]) -> Option<Vec<u8>> {
    let mut stream = served.stream();
    stream.set_read_timeout(Some(Duration::from_secs(20))).expect("set");
    // The server may have closed it before all was sent.
    let _ = stream.write_all(bytes);
    let mut header = [0; 4];
    stream.read_exact(&mut header).ok()?;
    let mut body = vec![0; (u32::from_be_bytes(header) & !(1 << 31)) as usize];
    stream.read_exact(&mut body).ok()?;
    Some(body)
}

fn head(verdict: Verdict) -> Option<Vec<u8>> {
    Some(reply(7, verdict).into_bytes()[4..].to_vec())
}

#[test]
fn what_does_not_exist_is_refused_by_name() {
    let served = Served::new(&["/:insecure"]);
    assert_eq!(answer(&served, &call(100_003, 3, 0, b"")), head(Verdict::Success));
    assert_eq!(answer(&served, &call(100_003, 2, 0, b"")), head(Verdict::NoVersion(3, 3)));
    assert_eq!(answer(&served, &call(100_005, 1, 0, b"")), head(Verdict::NoVersion(3, 3)));
    assert_eq!(answer(&served, &call(100_021, 4, 0, b"")), head(Verdict::NoProgram));
    assert_eq!(answer(&served, &call(100_003, 3, 22, b"")), head(Verdict::NoProcedure));
    assert_eq!(answer(&served, &call(100_003, 3, 1, b"")), head(Verdict::GarbageArguments));
    let long = [0xff; 8];
    assert_eq!(answer(&served, &call(100_003, 3, 1, &long)), head(Verdict::GarbageArguments));
    assert_eq!(answer(&served, &call(100_005, 3, 1, &long)), head(Verdict::GarbageArguments));
}

#[test]
fn what_is_no_call_ends_the_connection_and_no_more() {
    let served = Served::new(&["/:insecure"]);
    let endless = 0u32.to_be_bytes().repeat(65);
    let huge = u32::MAX.to_be_bytes();
    for bytes in [&b"GET / HTTP/1.1\r\n\r\n"[..], &record(b""), &record(b"abc"), &endless, &huge] {
        assert_eq!(answer(&served, bytes), None, "{bytes:?}");
    }
    assert_eq!(answer(&served, &call(100_003, 3, 0, b"")), head(Verdict::Success));
}

#[test]
fn a_peer_that_does_not_read_delays_no_other() {
    let served = Served::new(&["/:insecure,no_root_squash"]);
    let root = served.root();
    let mut client = served.client(0, 0);
    let file = create(&mut client, &root, "f", 0o644);
    let data = vec![1; 1 << 20];
    ok(now(client.write(&write_args(&file, 0, &data, stable_how::UNSTABLE))));
    let mut greedy = served.stream();
    greedy.set_write_timeout(Some(Duration::from_millis(200))).expect("set");
    let mut arguments = (file.data.len() as u32).to_be_bytes().to_vec();
    arguments.extend_from_slice(&file.data);
    arguments.extend_from_slice(&[0, 0, 0, 0, 0, 0, 0, 0, 0, 16, 0, 0]);
    let read = call(100_003, 3, 6, &arguments);
    for _ in 0..2000 {
        if greedy.write_all(&read).is_err() {
            break;
        }
    }
    // More calls are under way there than the server has threads.
    for _ in 0..50 {
        ok(now(client.read(&read_args(&file))));
    }
}

#[test]
fn beyond_the_most_connections_others_are_closed() {
    let served = Served::new(&["/:insecure"]);
    let null = call(100_003, 3, 0, b"");
    let kept: Vec<_> = (0..CONNECTIONS_MAX).map(|_| served.stream()).collect();
    // They are accepted in order: this one comes after all of them.
    assert_eq!(answer(&served, &null), None);
    drop(kept);
    let served_again = (0..500).any(|_| {
        thread::sleep(Duration::from_millis(10));
        answer(&served, &null).is_some()
    });
    assert!(served_again);
}

/// A device whose writes panic once that is wanted.
pub(super) struct Panicking(pub(super) MemoryDevice, pub(super) AtomicBool);

impl cffs::device::BlockDevice for Panicking {
    fn geometry(&self) -> cffs::device::Geometry {
        self.0.geometry()
    }
    fn read_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<()> {
        self.0.read_at(offset, buf)
    }
    fn write_at(&self, offset: u64, bufs: &[io::IoSlice<'_>]) -> io::Result<()> {
        assert!(!self.1.load(Ordering::Relaxed), "as the test wants it");
        self.0.write_at(offset, bufs)
    }
    fn barrier(&self) -> io::Result<()> {
        self.0.barrier()
    }
    fn sync(&self) -> io::Result<()> {
        self.0.sync()
    }
    fn discard(&self, offset: u64, len: u64) -> io::Result<()> {
        self.0.discard(offset, len)
    }
}

#[test]
fn after_a_panic_calls_fail_and_the_server_still_stops() {
    let device = MemoryDevice::new(64 << 20);
    cffs::mkfs::make(&device, &Default::default()).expect("made");
    let device = Arc::new(Panicking(device, AtomicBool::new(false)));
    let mut served = Served::over(Arc::clone(&device) as _, &["/:insecure,no_root_squash"]);
    let root = served.root();
    let mut client = served.client(0, 0);
    let file = create(&mut client, &root, "f", 0o644);
    device.1.store(true, Ordering::Relaxed);
    let write = write_args(&file, 0, b"never", stable_how::FILE_SYNC);
    assert!(now(client.write(&write)).is_err(), "the connection is closed");
    assert_eq!(answer(&served, &call(100_003, 3, 0, b"")), head(Verdict::SystemError));
    served.stopper.stop();
    let ended = served.thread.take().expect("it ran").join().expect("no thread panicked");
    assert!(matches!(ended, Err(ServeError::Panicked)));
}
