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
    assert!(has_room(&other), "every peer gets a first call");
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

/// The sender of replies to a peer, and the writer's end of its queue.
fn way_to(stream: TcpStream) -> (Replies, Arc<Underway>, Receiver<Reply>) {
    let output = Arc::new(Output { stream: Arc::new(stream), rest: Mutex::default() });
    let (writer, to_write) = mpsc::channel();
    (Replies { output, writer }, Arc::new(Underway::new(&Arc::default())), to_write)
}

#[test]
fn a_worker_sends_a_reply_itself_if_no_other_call_is_in_progress() {
    let (stream, mut peer) = pair();
    peer.set_read_timeout(Some(Duration::from_secs(10))).expect("set");
    let (replies, underway, to_write) = way_to(stream);
    replies.send((Some(b"alone".to_vec()), Permit::take(&underway, 5)));
    let mut reply = [0; 5];
    peer.read_exact(&mut reply).expect("sent, though no writer runs");
    assert_eq!((&reply, underway.count.lock().0), (b"alone", 0));

    let _other = Permit::take(&underway, 1);
    replies.send((Some(b"second".to_vec()), Permit::take(&underway, 6)));
    let (reply, _permit) =
        to_write.try_recv().expect("left to the writer, for others to go with it");
    assert_eq!(reply.as_deref(), Some(&b"second"[..]));
}

#[test]
fn a_reply_that_must_wait_blocks_no_worker_and_precedes_the_next() {
    let (stream, mut peer) = pair();
    let (replies, underway, to_write) = way_to(stream);
    let long: Vec<u8> = (0..64 << 20).map(|i: u32| (i % 251) as u8).collect();
    // This returns although the peer does not read.
    replies.send((Some(long.clone()), Permit::take(&underway, long.len())));
    let output = Arc::clone(&replies.output);
    assert!(!output.rest.lock().is_empty(), "a part of it was sent");
    assert_eq!(underway.count.lock().0, 1, "it counts until the peer has it");
    replies.send((Some(b"next".to_vec()), Permit::take(&underway, 4)));
    drop(replies);
    thread::scope(|scope| {
        scope.spawn(|| write_replies(&output, to_write));
        let mut all = vec![0; long.len() + 4];
        peer.read_exact(&mut all).expect("all of it came");
        let (first, next) = all.split_at(long.len());
        assert!(first == long && next == b"next", "in order");
    });
    assert_eq!(underway.count.lock().0, 0);
}
