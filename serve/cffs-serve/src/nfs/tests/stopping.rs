//! Servers that stop or pause while clients call.

use std::io::ErrorKind;

use super::durability::Counting;
use super::*;
use crate::shared::Companion;
use cffs::vfs::Caller;

const ALL: &str = "/:insecure,no_root_squash";

/// A NULL call and its reply, as records.
fn null() -> ([u8; 44], [u8; 28]) {
    let (mut call, mut reply) = ([0; 44], [0; 28]);
    let put = |to: &mut [u8], words: &[(usize, u32)]| {
        for (at, word) in words {
            to[at * 4..at * 4 + 4].copy_from_slice(&word.to_be_bytes());
        }
    };
    put(&mut call, &[(0, 1 << 31 | 40), (1, 7), (3, 2), (4, 100_003), (5, 3)]);
    put(&mut reply, &[(0, 1 << 31 | 24), (1, 7), (2, 1)]);
    (call, reply)
}

/// A client that keeps calling gets complete replies, and then the end of the stream, not a reset that
/// discards replies it has not read yet.
#[test]
fn a_server_that_stops_resets_no_connection() {
    let (call, reply) = null();
    for _ in 0..10 {
        let mut served = Served::new(&[ALL]);
        let (mut stream, ended) = (served.stream(), AtomicBool::new(false));
        let calls = call.repeat(100);
        let replies = thread::scope(|scope| {
            let mut sending = stream.try_clone().expect("a descriptor");
            let (ended, calls) = (&ended, &calls);
            // A reset would be seen by the first read after it.
            let sent = scope.spawn(move || {
                while !ended.load(Ordering::Acquire) {
                    if let Err(error) = sending.write_all(calls) {
                        return ended.load(Ordering::Acquire).then_some(()).ok_or(error);
                    }
                }
                Ok(())
            });
            let mut replies = vec![0; 28 * 1000];
            stream.read_exact(&mut replies).expect("they are answered");
            served.stopper.stop();
            let rest = stream.read_to_end(&mut replies);
            ended.store(true, Ordering::Release);
            // A send in progress fails now, if it waits.
            let _ = stream.shutdown(Shutdown::Both);
            rest.expect("it ends, and is not reset");
            sent.join().expect("no panic").expect("what is sent is taken until then");
            replies
        });
        assert!(replies.chunks(28).all(|one| one == reply), "whole replies");
        served.stop();
    }
}

/// A volume on a device that may delay flushes, and its server.
fn running() -> (Arc<Counting>, Arc<Volume>, SocketAddr, Running) {
    let device = Arc::new(Counting::new(4 << 20));
    let volume = cffs::open(Arc::clone(&device) as _, Arc::new(SystemClock), Default::default());
    let volume = Arc::new(volume.expect("opened"));
    let any = "127.0.0.1:0".parse().expect("an address");
    let exports = vec![ALL.parse().expect("an export")];
    let server = Server::bind(Arc::clone(&volume), any, exports, Arc::new(NoObserver));
    let server = server.expect("bound");
    let address = server.address().expect("an address");
    (device, volume, address, server.start().expect("started"))
}

fn ask(address: SocketAddr, patience: Duration) -> io::Result<[u8; 28]> {
    let mut stream = TcpStream::connect(address).expect("a server listens");
    stream.set_read_timeout(Some(patience)).expect("set");
    stream.write_all(&null().0)?;
    let mut reply = [0; 28];
    stream.read_exact(&mut reply)?;
    Ok(reply)
}

#[test]
fn clients_wait_for_a_paused_server() {
    let (_, _, address, running) = running();
    let minute = Duration::from_secs(60);
    assert_eq!(ask(address, minute).expect("served"), null().1);
    running.pause().expect("it pauses");
    let waits = ask(address, Duration::from_millis(200)).expect_err("no answer");
    assert_eq!(waits.kind(), ErrorKind::WouldBlock);
    thread::scope(|scope| {
        let waiting = scope.spawn(|| ask(address, minute));
        running.go_on();
        assert_eq!(waiting.join().expect("no panic").expect("served"), null().1);
    });
    running.pause().expect("it pauses again");
    let handover = running.hand_over().expect("it has paused");
    assert_eq!(handover.listener.local_addr().expect("bound"), address);
    running.pause().expect_err("it has ended");
    drop(handover);
    TcpStream::connect(address).expect_err("no listener");
}

/// A pause is bounded: if a call waits too long for the device, the server continues.
#[test]
fn a_server_whose_calls_do_not_end_serves_on() {
    let (device, volume, address, running) = running();
    let service = Arc::clone(&running.service);
    let peer = Peer { address: "127.0.0.1".parse().expect("an address"), port: 1 };
    let root = service.exported().first_handle(peer.address, 1, b"/").expect("exported");
    let mut stream = TcpStream::connect(address).expect("connected");
    let everybody = cffs::vfs::types::SetAttr { permissions: Some(0o777), ..Default::default() };
    volume.set_attr(&Caller::ROOT, cffs::units::InodeNo::ROOT, &everybody).expect("set");
    // An anonymous MKDIR, which is answered when it is durable.
    let mut call = null().0[4..40].to_vec();
    call[20..24].copy_from_slice(&9_u32.to_be_bytes());
    call.extend([0; 4]);
    call.extend((root.len() as u32).to_be_bytes());
    call.extend(root);
    call.extend([0, 0, 0, 1, b'd', 0, 0, 0]);
    call.extend([0; 24]);
    device.hold(true);
    stream.write_all(&(1 << 31 | call.len() as u32).to_be_bytes()).expect("sent");
    stream.write_all(&call).expect("sent");
    while !service.calls().contains(&("mkdir", 1)) {
        thread::sleep(Duration::from_millis(1));
    }
    let refused = running.pause().expect_err("the call does not end");
    assert!(refused.contains("wait for the device"), "{refused}");
    device.hold(false);
    assert_eq!(ask(address, Duration::from_secs(60)).expect("served"), null().1);
    running.pause().expect("it pauses now");
    volume.lookup(cffs::units::InodeNo::ROOT, b"d").expect("it was carried out");
    running.end().expect("it ends");
}
