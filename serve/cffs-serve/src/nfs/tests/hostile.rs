//! Peers that send invalid data.

use nfs_wire::rpc::{Verdict, reply};
use nfs3_client::nfs3_types::xdr_codec::Pack;

use super::*;

/// The record of a call with anonymous credentials, without arguments.
fn call(program: u32, version: u32, procedure: u32, arguments: &[u8]) -> Vec<u8> {
    let words = [7, 0, 2, program, version, procedure, 0, 0, 0, 0];
    let words = words.into_iter().flat_map(u32::to_be_bytes);
    record(&words.chain(arguments.iter().copied()).collect::<Vec<_>>())
}

fn record(body: &[u8]) -> Vec<u8> {
    [&(1 << 31 | body.len() as u32).to_be_bytes(), body].concat()
}

/// The reply to these bytes, or `None` if the connection ends.
fn answer(served: &Served, bytes: &[u8]) -> Option<Vec<u8>> {
    let mut stream = served.stream();
    stream.set_read_timeout(Some(Duration::from_secs(20))).expect("set");
    // The server may close the connection before everything is sent.
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
fn a_missing_file_is_reported_with_its_status() {
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
fn invalid_calls_end_the_connection_only() {
    let served = Served::new(&["/:insecure"]);
    let endless = 0u32.to_be_bytes().repeat(65);
    let huge = u32::MAX.to_be_bytes();
    for bytes in [&b"GET / HTTP/1.1\r\n\r\n"[..], &record(b""), &record(b"abc"), &endless, &huge] {
        assert_eq!(answer(&served, bytes), None, "{bytes:?}");
    }
    assert_eq!(answer(&served, &call(100_003, 3, 0, b"")), head(Verdict::Success));
}

fn packed(arguments: &impl Pack) -> Vec<u8> {
    let mut bytes = Vec::new();
    arguments.pack(&mut bytes).expect("packed");
    bytes
}

/// Regression: a client that lost its connection repeats a REMOVE on a new one. While the server had not
/// noticed that the old one had ended, it executed the REMOVE again, and answered that the file does not
/// exist.
#[test]
fn a_repeated_change_gets_the_first_reply_although_the_old_connection_is_open() {
    let served = Served::new(&["/:insecure,no_root_squash"]);
    let root = served.root();
    let mut admin = served.client(0, 0);
    let mode = sattr3 { mode: Nfs3Option::Some(0o777), ..sattr3::default() };
    let set = SETATTR3args { object: root.clone(), new_attributes: mode, guard: Nfs3Option::None };
    ok(now(admin.setattr(&set)));
    let file = create(&mut admin, &root, "file", 0o666);
    let changed = attributes(&mut admin, &file).ctime;
    let any = sattr3::default;
    let lengthen = SETATTR3args {
        object: file.clone(),
        new_attributes: sattr3 { size: Nfs3Option::Some(5), ..any() },
        guard: Nfs3Option::Some(changed),
    };
    let create = CREATE3args { where_: at(&root, "created"), how: createhow3::GUARDED(any()) };
    let symlink = SYMLINK3args {
        where_: at(&root, "symlink"),
        symlink: symlinkdata3 {
            symlink_attributes: any(),
            symlink_data: nfspath3(Opaque::borrowed(b"file")),
        },
    };
    let mknod = MKNOD3args { where_: at(&root, "fifo"), what: mknoddata3::NF3FIFO(any()) };
    // Each of these fails if it is executed twice.
    let calls = [
        (2, packed(&lengthen)),
        (8, packed(&create)),
        (9, packed(&MKDIR3args { where_: at(&root, "dir"), attributes: any() })),
        (10, packed(&symlink)),
        (11, packed(&mknod)),
        (15, packed(&LINK3args { file, link: at(&root, "link") })),
        (14, packed(&RENAME3args { from: at(&root, "link"), to: at(&root, "renamed") })),
        (12, packed(&REMOVE3args { object: at(&root, "renamed") })),
        (13, packed(&RMDIR3args { object: at(&root, "dir") })),
    ];
    for (procedure, arguments) in calls {
        let change = call(100_003, 3, procedure, &arguments);
        let mut first = served.stream();
        first.write_all(&change).expect("sent");
        let again = answer(&served, &change).expect("answered");
        assert_eq!(again[24..28], [0; 4], "procedure {procedure} does not return NFS3_OK");
        let mut reply = vec![0; 4 + again.len()];
        first.read_exact(&mut reply).expect("answered");
        assert_eq!(reply[4..], again, "procedure {procedure}");
    }
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
    // More calls are in progress there than the server has threads.
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

/// A device whose writes panic on request.
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

fn words(words: &[u32]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_be_bytes()).collect()
}

/// Bytes preceded by their length, and padded to a multiple of four.
fn opaque(bytes: &[u8]) -> Vec<u8> {
    let mut out = [&words(&[bytes.len() as u32]), bytes].concat();
    out.resize(out.len().next_multiple_of(4), 0);
    out
}

/// Valid arguments of every procedure, each field separately.
fn arguments_of_all(root: &nfs_fh3) -> Vec<(u32, u32, Vec<Vec<u8>>)> {
    let (handle, name) = (opaque(&root.data), opaque(b"name"));
    let (h, n, none) = (|| handle.clone(), || name.clone(), words(&[0; 6]));
    // Mode, owner, group, size, times of the server and of the client.
    let all = words(&[1, 0o644, 1, 5, 1, 6, 1, 0, 7, 1, 2, 8, 9]);
    let path = opaque(b"/");
    vec![
        (100_005, 1, vec![path.clone()]),
        (100_005, 3, vec![path.clone()]),
        (100_003, 1, vec![h()]),
        (100_003, 2, vec![h(), all.clone(), words(&[1, 2, 3])]),
        (100_003, 3, vec![h(), n()]),
        (100_003, 4, vec![h(), words(&[63])]),
        (100_003, 5, vec![h()]),
        (100_003, 6, vec![h(), words(&[0, 0]), words(&[10])]),
        (100_003, 7, vec![h(), words(&[0, 0]), words(&[5, 2]), opaque(b"data!")]),
        (100_003, 8, vec![h(), n(), words(&[0]), all.clone()]),
        (100_003, 8, vec![h(), n(), words(&[2, 7, 7])]),
        (100_003, 9, vec![h(), n(), all.clone()]),
        (100_003, 10, vec![h(), n(), none.clone(), path]),
        (100_003, 11, vec![h(), n(), words(&[3]), none.clone(), words(&[1, 2])]),
        (100_003, 11, vec![h(), n(), words(&[7]), none]),
        (100_003, 12, vec![h(), n()]),
        (100_003, 13, vec![h(), n()]),
        (100_003, 14, vec![h(), n(), h(), n()]),
        (100_003, 15, vec![h(), h(), n()]),
        (100_003, 16, vec![h(), words(&[0; 4]), words(&[4096])]),
        (100_003, 17, vec![h(), words(&[0; 4]), words(&[4096, 4096])]),
        (100_003, 18, vec![h()]),
        (100_003, 19, vec![h()]),
        (100_003, 20, vec![h()]),
        (100_003, 21, vec![h(), words(&[0; 3])]),
    ]
}

/// Every procedure, with arguments that are truncated, too long, or have any word replaced: malformed ones
/// cause an RPC error, others an NFS reply, which is never longer than allowed.
#[test]
fn malformed_arguments_of_each_procedure_are_refused() {
    let served = Served::new(&["/:insecure,no_root_squash"]);
    let root = served.root();
    let peer = Peer { address: "127.0.0.1".parse().expect("an address"), port: 1 };
    let ask = |program, procedure, arguments: &[u8]| {
        let message = &call(program, 3, procedure, arguments)[4..];
        let bytes_max = served.service.reply_bytes_max(message);
        let reply = served.service.answer(&peer, message).expect("a call is answered");
        assert!(reply.len() <= bytes_max, "{program} {procedure}: {} bytes", reply.len());
        reply[4..].to_vec()
    };
    let garbage = head(Verdict::GarbageArguments).expect("a reply");
    let success = head(Verdict::Success).expect("a reply");
    for (program, procedure, fields) in arguments_of_all(&root) {
        let whole = fields.concat();
        let what = format!("procedure {procedure} of {program}");
        assert!(ask(program, procedure, &whole).starts_with(&success), "{what}");
        for end in 0..whole.len() {
            assert_eq!(ask(program, procedure, &whole[..end]), garbage, "{what}, {end} bytes");
        }
        let longer = [&whole[..], &[0; 4]].concat();
        assert_eq!(ask(program, procedure, &longer), garbage, "{what}, longer");
        for at in (0..whole.len()).step_by(4) {
            for word in [0, 1, 2, 255, 256, 0x7fff_fffc, 0x7fff_ffff, 0x8000_0000, u32::MAX] {
                let mut changed = whole.clone();
                let len = changed.len().min(at + 4) - at;
                changed[at..at + len].copy_from_slice(&word.to_be_bytes()[..len]);
                ask(program, procedure, &changed);
            }
        }
    }
    assert!(!served.service.panicked());
}

#[test]
fn credentials_that_make_no_sense_are_refused() {
    let served = Served::new(&["/:insecure"]);
    let name = opaque(&[b'n'; 256]);
    let groups = [words(&[0, 0, 1, 2, 17]), words(&[9; 17])].concat();
    let short = words(&[0, 0, 1]);
    let long_name = [words(&[0]), name, words(&[1, 2, 0])].concat();
    for body in [groups, short, long_name, vec![0; 401], vec![0xff; 400]] {
        let head_of_call = words(&[7, 0, 2, 100_003, 3, 0, 1]);
        let bytes = record(&[head_of_call, opaque(&body), words(&[0, 0])].concat());
        assert_eq!(answer(&served, &bytes), head(Verdict::BadCredentials), "{body:?}");
    }
    let unknown = words(&[7, 0, 2, 100_003, 3, 1, 6, 0, 0, 0]);
    let unknown = record(&[unknown, opaque(&served.root().data)].concat());
    assert_eq!(answer(&served, &unknown), head(Verdict::TooWeak));
}

#[test]
fn half_a_record_delays_no_other_peer_and_is_dropped_with_its_own() {
    let served = Served::new(&["/:insecure"]);
    let null = call(100_003, 3, 0, b"");
    let mut halves = Vec::new();
    for len in 1..null.len() {
        let mut stream = served.stream();
        stream.write_all(&null[..len]).expect("sent");
        halves.push(stream);
        assert_eq!(answer(&served, &null), head(Verdict::Success), "next to {len} bytes");
    }
    // The rest of each is sent later, byte by byte.
    for (mut stream, len) in halves.drain(..).zip(1..) {
        null[len..].iter().for_each(|byte| stream.write_all(&[*byte]).expect("sent"));
        let mut reply = vec![0; 4 + head(Verdict::Success).expect("a reply").len()];
        stream.read_exact(&mut reply).expect("it is answered");
    }
    let mut announced = served.stream();
    announced.write_all(&(1u32 << 31 | 1 << 20).to_be_bytes()).expect("sent");
    drop(announced);
    assert!(eventually(|| served.connections.streams.lock().is_empty()));
}

#[test]
fn a_thousand_connections_are_cut_to_the_limit() {
    let served = Served::new(&["/:insecure"]);
    let null = call(100_003, 3, 0, b"");
    let mut kept = std::collections::VecDeque::new();
    let mut most = 0;
    for _ in 0..1000 {
        let mut stream = served.stream();
        // A refused connection may be closed by now.
        let _ = stream.write_all(&null[..8]);
        kept.push_back(stream);
        most = most.max(served.connections.streams.lock().len());
        // This process has both ends, and so twice as many descriptors.
        if kept.len() > CONNECTIONS_MAX + 50 {
            kept.pop_front();
        }
    }
    assert!(most > CONNECTIONS_MAX / 2 && most <= CONNECTIONS_MAX, "{most}");
    assert!(served.connections.streams.lock().len() <= CONNECTIONS_MAX);
    drop(kept);
    assert!(eventually(|| answer(&served, &null).is_some()));
}

fn eventually(is_so: impl Fn() -> bool) -> bool {
    (0..1000).any(|_| {
        thread::sleep(Duration::from_millis(10));
        is_so()
    })
}
