//! The load on a server inside the process, and the report on runs.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use anyhow::{Context, Result};
use cffs::clock::SystemClock;
use cffs::device::MemoryDevice;
use cffs::vfs::types::OpenOptions;
use cffs_serve::nfs::{Server, Stopper};
use cffs_serve::shared::NoObserver;
use nfs_wire::xdr::Writer;
use nfs_wire::{record, rpc};

use super::calls::{self, Handle};
use super::client::{Client, IN_FLIGHT};
use super::report::{Bar, Cell, Report};
use super::server::Contender;
use super::workload::{self, Load, Target};
use crate::disk::{Counters, Profile};
use crate::workload::Phase;
use crate::workload::catalog::Scale;

/// A server of a volume in memory.
struct InMemory {
    address: SocketAddr,
    chilled: u32,
    stopper: Stopper,
    thread: Option<JoinHandle<()>>,
}

impl InMemory {
    fn start() -> InMemory {
        let device = Arc::new(MemoryDevice::new(64 << 20));
        cffs::mkfs::make(&*device, &Default::default()).expect("made");
        let volume = cffs::open(device, Arc::new(SystemClock), OpenOptions::default());
        let volume = Arc::new(volume.expect("opened"));
        let export = "/:insecure,no_root_squash".parse().expect("an export");
        let any = "127.0.0.1:0".parse().expect("an address");
        let server = Server::bind(volume, any, vec![export], Arc::new(NoObserver)).expect("bound");
        let (address, stopper) = (server.address().expect("bound"), server.stopper());
        let thread = std::thread::spawn(move || server.serve().expect("served"));
        InMemory { address, chilled: 0, stopper, thread: Some(thread) }
    }
}

impl Drop for InMemory {
    fn drop(&mut self) {
        self.stopper.stop();
        let ended = self.thread.take().map(JoinHandle::join);
        assert!(matches!(ended, Some(Ok(()))) || std::thread::panicking());
    }
}

impl Target for InMemory {
    fn connect(&mut self) -> Result<Client> {
        Client::connect(self.address)
    }
    fn root(&mut self) -> Result<Handle> {
        self.connect()?.call(&calls::mount("/"), calls::mounted)
    }
    fn chill(&mut self) -> Result<()> {
        self.chilled += 1;
        Ok(())
    }
    fn set_free(&self, _free: bool) {}
    fn counters(&self) -> Counters {
        Counters::default()
    }
}

#[test]
fn a_load_does_what_it_says_and_each_operation_counts() {
    let mut server = InMemory::start();
    let load = Load { files: 250, phase_time_max: Duration::from_secs(1), seed: 1 };
    let phases = workload::run(&mut server, load).expect("run");
    let counts: Vec<_> = phases.iter().map(|phase| (&*phase.name, phase.files)).collect();
    let expected = [
        (workload::CREATE, 250),
        (workload::COMMIT, 250),
        (workload::READ_COLD, 250),
        (workload::READ, 250),
        (workload::LIST_COLD, 250),
    ];
    assert_eq!(counts[..5], expected);
    assert!(counts[5].0 == workload::LIST && counts[5].1 > 250, "{counts:?}");
    assert_eq!(counts[6], (workload::REMOVE, 250));
    assert_eq!(server.chilled, 2);
    // The created files are gone, and the tree exists.
    let root = server.root().expect("mounted");
    let mut client = server.connect().expect("connected");
    let again = client.call(&calls::make_dir(&root, "tree-0"), calls::made);
    assert!(again.is_err(), "the name is taken");
    let freed = client.call(&calls::make_dir(&root, "new-3"), calls::made);
    assert!(freed.is_ok(), "three directories are enough for 250 files");
}

#[test]
fn a_phase_ends_when_its_time_is_over() {
    let mut server = InMemory::start();
    let load = Load { files: 100, phase_time_max: Duration::ZERO, seed: 1 };
    let phases = workload::run(&mut server, load).expect("run");
    assert_eq!(phases.iter().map(|phase| phase.files).sum::<u64>(), 0);
}

#[test]
fn a_reply_that_is_missing_or_cut_off_is_an_error() {
    let mut server = InMemory::start();
    let root = server.root().expect("mounted");
    let mut client = server.connect().expect("connected");
    let file = client.call(&calls::create(&root, "file"), calls::made).expect("made");
    let whole = client
        .call(&calls::list(&root, &calls::Position::default()), |results| Ok(results.to_vec()));
    let whole = whole.expect("listed");
    assert_eq!(calls::listed(&whole).expect("whole").names, 1);
    for len in 0..whole.len() {
        assert!(calls::listed(&whole[..len]).is_err(), "cut to {len} bytes");
    }
    // An entry as in READDIR: without attributes and handle.
    let mut bare = Writer::default();
    [0, 0, 0, 0, 1, 0, 7].into_iter().for_each(|number| bare.u32(number));
    bare.opaque(b"file");
    [0, 1, 0, 0, 0, 1].into_iter().for_each(|number| bare.u32(number));
    let error = calls::listed(bare.bytes()).expect_err("it lacks the requested data");
    assert!(error.to_string().contains("without"), "{error}");
    let refused = client.call(&calls::commit(b"no handle"), calls::committed);
    assert!(refused.expect_err("no such file").to_string().contains("status"));
    let verifiers = (0..2).map(|_| client.call(&calls::commit(&file), calls::committed));
    let verifiers: Vec<_> = verifiers.collect::<Result<_>>().context("committed").expect("both");
    assert_eq!(verifiers[0], verifiers[1]);
}

fn cell(contender: Contender, order: usize, name: &str, files: u64, flushes: u64) -> Cell {
    let device = Some(Counters { flushes, writes: 2 * files, ..Counters::default() });
    let phase = Phase { name: name.into(), files, seconds: 2.0, device, ..Phase::default() };
    Cell { profile: Profile::Hdd7200, order, contender, phase }
}

#[test]
fn bars_compare_medians_with_each_peer_and_count_flushes() {
    use Contender::{Cffs, Ganesha, GaneshaDirsync};
    let mut cells = Vec::new();
    for files in [300, 100, 900] {
        cells.push(cell(Cffs, 0, workload::CREATE, files, 0));
        cells.push(cell(Ganesha, 0, workload::CREATE, files / 2, 0));
        cells.push(cell(GaneshaDirsync, 0, workload::CREATE, files, 0));
        cells.push(cell(Cffs, 1, workload::COMMIT, 160, 31));
        cells.push(cell(Ganesha, 1, workload::COMMIT, 160, 160));
    }
    let report = Report::new(Scale::Quick, 3, vec![String::from("versions")], &cells);
    let bar = |name: &str, goal, measured, is_most| Bar {
        name: name.to_owned(),
        goal,
        measured,
        is_most,
    };
    assert_eq!(
        report.bars,
        [
            bar("create on Hdd7200, × ganesha", 1.5, 2.0, false),
            bar("create on Hdd7200, × ganesha, dirsync", 1.5, 1.0, false),
            bar("write, COMMIT on Hdd7200, flushes for each", 0.1875, 93.0 / 480.0, true),
        ]
    );
    let met: Vec<_> = report.bars.iter().map(Bar::is_met).collect();
    assert_eq!(met, [true, false, false]);
    let row = &report.rows[0];
    assert_eq!((row.operations_per_sec, row.range), (150.0, (50.0, 450.0)));
    assert_eq!(row.requests_per_operation, 2.0);
    let document = report.markdown();
    assert!(document.contains("7200 rpm") && document.contains("MISSED"), "{document}");
    let directory = tempfile::tempdir().expect("made");
    report.write(directory.path()).expect("written");
    let written = std::fs::read_to_string(directory.path().join("nfs-quick.md"));
    assert_eq!(written.expect("read"), document);
}

#[test]
fn sixteen_calls_are_in_flight_and_replies_may_arrive_in_any_order() {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = listener.local_addr().expect("bound");
    let server = std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().expect("a client");
        stream.set_read_timeout(Some(Duration::from_secs(5))).expect("set");
        for _ in 0..2 {
            let mut xids = Vec::new();
            while xids.len() < IN_FLIGHT {
                let mut header = [0; record::HEADER_BYTES];
                stream.read_exact(&mut header).expect("as many calls as may be under way");
                let limits = record::Limits { bytes_max: 1 << 10, fragments_max: 1 };
                let call = record::read(&mut stream, header, limits).expect("a call");
                xids.push(rpc::Call::decode(&call).expect("well-formed").xid);
            }
            for xid in xids.into_iter().rev() {
                let mut reply = rpc::reply(xid, rpc::Verdict::Success);
                reply.u32(0);
                let mut reply = reply.into_bytes();
                record::finish(&mut reply);
                stream.write_all(&reply).expect("sent");
            }
        }
    });
    let mut client = Client::connect(address).expect("connected");
    let mut order = Vec::new();
    let take = |job, results: &[u8]| {
        order.push(job);
        calls::removed(results).map(|()| None)
    };
    client.work(0..2 * IN_FLIGHT, |_| calls::remove(b"dir", "file"), take).expect("answered");
    server.join().expect("it got its calls");
    assert_eq!((order[0], order[IN_FLIGHT - 1]), (IN_FLIGHT - 1, 0));
    order.sort_unstable();
    assert!(order.into_iter().eq(0..2 * IN_FLIGHT));
}
