use std::io::Write;

use super::*;

#[test]
fn memory_has_a_bound_over_all_connections_and_each_may_have_one_call() {
    let total = Arc::new(Total::default());
    let greedy: Vec<_> = (0..TOTAL_BYTES_MAX / BYTES_MAX)
        .map(|_| Permit::take(&Arc::new(Underway::new(&total)), BYTES_MAX))
        .collect();
    let other = Arc::new(Underway::new(&total));
    let has_room = |underway: &Underway| underway.has_room(*underway.count.lock());
    assert!(has_room(&other), "nobody is kept from a first call");
    let first = Permit::take(&other, 1);
    assert!(!has_room(&other), "a second one has to wait");
    drop(first);
    assert!(has_room(&other));
    let first = Permit::take(&other, 1);
    drop(greedy);
    assert!(has_room(&other), "there is room again");
    drop(first);
    assert_eq!(total.0.load(Ordering::Relaxed), 0);
}

/// Both ends of a connection.
fn pair() -> (TcpStream, TcpStream) {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    let peer = TcpStream::connect(listener.local_addr().expect("bound")).expect("connected");
    (listener.accept().expect("accepted").0, peer)
}

#[test]
fn bytes_that_trickle_in_do_not_prolong_a_record() {
    let (stream, mut slow) = pair();
    let feeding = thread::spawn(move || {
        while slow.write_all(b"x").is_ok() {
            thread::sleep(Duration::from_millis(5));
        }
    });
    let mut timed = TimedStream {
        stream: &stream,
        until: Instant::now() + Duration::from_millis(300),
        stop: None,
    };
    let error = timed.read_exact(&mut vec![0; 1 << 20]).expect_err("a megabyte takes an hour");
    assert!(matches!(error.kind(), io::ErrorKind::TimedOut | io::ErrorKind::WouldBlock));
    drop(stream);
    feeding.join().expect("it ends with the connection");
}

#[test]
fn a_reply_that_is_taken_slowly_is_given_up() {
    let (stream, mut slow) = pair();
    let peer = slow.try_clone().expect("a descriptor");
    let reading = thread::spawn(move || {
        let mut byte = [0; 512];
        while slow.read(&mut byte).is_ok_and(|len| len > 0) {
            thread::sleep(Duration::from_millis(5));
        }
    });
    let timed = TimedStream {
        stream: &stream,
        until: Instant::now() + Duration::from_millis(300),
        stop: None,
    };
    let error =
        timed.write_pieces(&mut [IoSlice::new(&vec![0; 64 << 20])]).expect_err("it takes minutes");
    assert!(matches!(error.kind(), io::ErrorKind::TimedOut | io::ErrorKind::WouldBlock));
    peer.shutdown(Shutdown::Both).expect("shut down");
    reading.join().expect("it ends with the connection");
}
