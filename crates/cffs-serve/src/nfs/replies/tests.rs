use std::net::Ipv4Addr;
use std::thread;

use super::*;

fn key(xid: u32) -> Key {
    Key { address: IpAddr::V4(Ipv4Addr::LOCALHOST), xid, procedure: 12, arguments: 5 }
}

fn fill(replies: &Replies, xid: u32, connection: &Connection) {
    let Err(ticket) = replies.get(key(xid), connection) else { panic!("answered before") };
    ticket.fill(b"reply");
}

#[test]
fn a_call_that_comes_again_gets_the_reply() {
    let replies = Replies::default();
    let connection = Connection::default();
    fill(&replies, 1, &connection);
    assert_eq!(replies.get(key(1), &connection).ok().as_deref(), Some(&b"reply"[..]));
    assert!(replies.get(key(2), &connection).is_err());
    let other = Key { arguments: 6, ..key(1) };
    assert!(replies.get(other, &connection).is_err(), "other arguments, another call");
}

#[test]
fn another_client_is_not_given_it() {
    let replies = Replies::default();
    let (first, second) = (Connection::default(), Connection::default());
    fill(&replies, 1, &first);
    assert!(replies.get(key(1), &second).is_err(), "both are there: two clients");
    fill(&replies, 2, &first);
    first.store(true, Ordering::Release);
    assert!(replies.get(key(2), &second).is_ok(), "the client has connected again");
    fill(&replies, 3, &first);
    drop(first);
    assert!(replies.get(key(3), &second).is_ok(), "also if that is known to be gone");
}

#[test]
fn a_duplicate_waits_while_the_call_is_under_way() {
    let replies = Replies::default();
    let connection = Connection::default();
    let Err(ticket) = replies.get(key(1), &connection) else { panic!("answered before") };
    thread::scope(|scope| {
        let again = scope.spawn(|| replies.get(key(1), &connection).ok());
        ticket.fill(b"late");
        assert_eq!(again.join().expect("no panic").as_deref(), Some(&b"late"[..]));
    });
    let Err(ticket) = replies.get(key(2), &connection) else { panic!("answered before") };
    drop(ticket);
    assert!(replies.get(key(2), &connection).is_err(), "it was not carried out");
}

#[test]
fn the_oldest_go_first() {
    let replies = Replies::default();
    let connection = Connection::default();
    (0..=REPLIES_MAX as u32).for_each(|xid| fill(&replies, xid, &connection));
    assert!(replies.get(key(REPLIES_MAX as u32), &connection).is_ok());
    assert!(replies.get(key(1), &connection).is_ok());
    assert!(replies.get(key(0), &connection).is_err());
}

#[test]
fn another_server_has_them_all_in_their_order() {
    let replies = Replies::default();
    let connection = Connection::default();
    let v6 = Key { address: "2001:db8::7".parse().expect("one"), ..key(1) };
    let Err(ticket) = replies.get(v6, &connection) else { panic!("answered before") };
    ticket.fill(b"of version 6");
    (1..REPLIES_MAX as u32 - 1).for_each(|xid| fill(&replies, xid, &connection));
    let underway = replies.get(Key { procedure: 9, ..key(0) }, &connection);
    let bytes = replies.to_bytes();
    drop(underway);
    let again = Replies::from_bytes(&bytes).expect("replies");
    let other = Connection::default();
    assert_eq!(again.get(v6, &other).ok().as_deref(), Some(&b"of version 6"[..]));
    assert!((1..REPLIES_MAX as u32 - 1).all(|xid| again.get(key(xid), &other).is_ok()));
    assert!(again.get(Key { procedure: 9, ..key(0) }, &other).is_err(), "it was never answered");
    fill(&again, REPLIES_MAX as u32, &other);
    fill(&again, REPLIES_MAX as u32 + 1, &other);
    assert!(again.get(v6, &other).is_err(), "the oldest went first");
    for end in 1..40 {
        assert!(Replies::from_bytes(&bytes[..bytes.len() - end]).is_none(), "{end} are missing");
    }
}
