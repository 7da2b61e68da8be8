use std::net::Ipv4Addr;
use std::thread;

use super::*;

fn key(xid: u32) -> Key {
    Key { address: IpAddr::V4(Ipv4Addr::LOCALHOST), xid, procedure: 12, arguments: 5 }
}

fn fill(replies: &Replies, xid: u32) {
    let Err(ticket) = replies.get(key(xid)) else { panic!("answered before") };
    ticket.fill(b"reply");
}

#[test]
fn a_repeated_call_gets_the_same_reply() {
    let replies = Replies::default();
    fill(&replies, 1);
    assert_eq!(replies.get(key(1)).ok().as_deref(), Some(&b"reply"[..]));
    assert!(replies.get(key(2)).is_err());
    let other = Key { arguments: 6, ..key(1) };
    assert!(replies.get(other).is_err(), "other arguments, another call");
}

#[test]
fn a_duplicate_waits_while_the_call_is_under_way() {
    let replies = Replies::default();
    let Err(ticket) = replies.get(key(1)) else { panic!("answered before") };
    thread::scope(|scope| {
        let again = scope.spawn(|| replies.get(key(1)).ok());
        ticket.fill(b"late");
        assert_eq!(again.join().expect("no panic").as_deref(), Some(&b"late"[..]));
    });
    let Err(ticket) = replies.get(key(2)) else { panic!("answered before") };
    drop(ticket);
    assert!(replies.get(key(2)).is_err(), "it was not carried out");
}

#[test]
fn the_oldest_replies_are_dropped_first() {
    let replies = Replies::default();
    (0..=REPLIES_MAX as u32).for_each(|xid| fill(&replies, xid));
    assert!(replies.get(key(REPLIES_MAX as u32)).is_ok());
    assert!(replies.get(key(1)).is_ok());
    assert!(replies.get(key(0)).is_err());
}

#[test]
fn replies_are_handed_over_in_order() {
    let replies = Replies::default();
    let v6 = Key { address: "2001:db8::7".parse().expect("one"), ..key(1) };
    let Err(ticket) = replies.get(v6) else { panic!("answered before") };
    ticket.fill(b"of version 6");
    (1..REPLIES_MAX as u32 - 1).for_each(|xid| fill(&replies, xid));
    let underway = replies.get(Key { procedure: 9, ..key(0) });
    let bytes = replies.to_bytes();
    drop(underway);
    let again = Replies::from_bytes(&bytes).expect("replies");
    assert_eq!(again.get(v6).ok().as_deref(), Some(&b"of version 6"[..]));
    assert!((1..REPLIES_MAX as u32 - 1).all(|xid| again.get(key(xid)).is_ok()));
    assert!(again.get(Key { procedure: 9, ..key(0) }).is_err(), "it was never answered");
    fill(&again, REPLIES_MAX as u32);
    fill(&again, REPLIES_MAX as u32 + 1);
    assert!(again.get(v6).is_err(), "the oldest went first");
    for end in 1..40 {
        assert!(Replies::from_bytes(&bytes[..bytes.len() - end]).is_none(), "{end} are missing");
    }
}
