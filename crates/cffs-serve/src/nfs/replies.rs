//! Replies that were sent, for calls that come again: a client that lost its connection before it had
//! the reply repeats the call, and what must not happen twice happens once.
//!
//! A call is the same if address, number, procedure and arguments are, and if it comes by the same
//! connection or no more calls come by the one it first came by: two clients of one machine may well number
//! their calls alike.

use std::collections::{HashMap, VecDeque};
use std::net::{IpAddr, Ipv6Addr};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};

use parking_lot::{Condvar, Mutex};

#[cfg(test)]
mod tests;

/// How many replies are kept. They have some 300 bytes each.
const REPLIES_MAX: usize = 4096;

/// What distinguishes calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Key {
    /// The client's address.
    pub address: IpAddr,
    /// Its number of the call.
    pub xid: u32,
    /// The procedure.
    pub procedure: u32,
    /// A hash of the arguments.
    pub arguments: u64,
}

/// A connection, for as long as somebody has this; and whether no more calls come by it, though some that
/// came may be under way.
pub type Connection = Arc<AtomicBool>;

/// The replies of one server.
#[derive(Default)]
pub struct Replies(Mutex<Kept>);

#[derive(Default)]
struct Kept {
    by_key: HashMap<Key, Arc<Slot>>,
    /// From the oldest to the newest.
    order: VecDeque<Key>,
}

struct Slot {
    connection: Weak<AtomicBool>,
    reply: Mutex<Progress>,
    done: Condvar,
}

enum Progress {
    Underway,
    Done(Vec<u8>),
    /// It was not carried out after all.
    Abandoned,
}

/// A call that has to be carried out. Dropped without a reply, it may come again.
pub struct Ticket(Arc<Slot>);

impl Ticket {
    /// Keeps the reply.
    pub fn fill(self, reply: &[u8]) {
        *self.0.reply.lock() = Progress::Done(reply.to_vec());
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        let mut reply = self.0.reply.lock();
        if matches!(*reply, Progress::Underway) {
            *reply = Progress::Abandoned;
        }
        self.0.done.notify_all();
    }
}

impl Replies {
    /// The reply to a call that came before, waited for if that is under way; or a ticket for the first
    /// to come.
    pub fn get(&self, key: Key, connection: &Connection) -> Result<Vec<u8>, Ticket> {
        let Some(slot) = self.find(key, connection) else {
            return Err(self.enter(key, connection));
        };
        let mut reply = slot.reply.lock();
        while matches!(*reply, Progress::Underway) {
            slot.done.wait(&mut reply);
        }
        match &*reply {
            Progress::Done(bytes) => Ok(bytes.clone()),
            Progress::Underway | Progress::Abandoned => Err(self.enter(key, connection)),
        }
    }

    /// The replies, from the oldest to the newest, for another server. Nothing is under way.
    pub fn to_bytes(&self) -> Vec<u8> {
        let kept = self.0.lock();
        let mut bytes = Vec::new();
        for key in &kept.order {
            let Some(slot) = kept.by_key.get(key) else { continue };
            if let Progress::Done(reply) = &*slot.reply.lock() {
                let address = match key.address {
                    IpAddr::V4(address) => address.to_ipv6_mapped(),
                    IpAddr::V6(address) => address,
                };
                bytes.extend(address.octets());
                bytes.extend(key.xid.to_be_bytes());
                bytes.extend(key.procedure.to_be_bytes());
                bytes.extend(key.arguments.to_be_bytes());
                bytes.extend((reply.len() as u32).to_be_bytes());
                bytes.extend(reply);
            }
        }
        bytes
    }

    /// The replies of another server. The connections by which the calls came are gone. `None` if that are no
    /// replies.
    pub fn from_bytes(mut bytes: &[u8]) -> Option<Replies> {
        let replies = Replies::default();
        let gone = Connection::default();
        while !bytes.is_empty() {
            let address = Ipv6Addr::from(*take(&mut bytes)?);
            let key = Key {
                address: IpAddr::V6(address).to_canonical(),
                xid: u32::from_be_bytes(*take(&mut bytes)?),
                procedure: u32::from_be_bytes(*take(&mut bytes)?),
                arguments: u64::from_be_bytes(*take(&mut bytes)?),
            };
            let len = u32::from_be_bytes(*take(&mut bytes)?) as usize;
            let (reply, rest) = bytes.split_at_checked(len)?;
            bytes = rest;
            replies.enter(key, &gone).fill(reply);
        }
        Some(replies)
    }

    fn find(&self, key: Key, connection: &Connection) -> Option<Arc<Slot>> {
        let slot = self.0.lock().by_key.get(&key).cloned()?;
        let same = slot
            .connection
            .upgrade()
            .is_none_or(|first| Arc::ptr_eq(&first, connection) || first.load(Ordering::Acquire));
        same.then_some(slot)
    }

    fn enter(&self, key: Key, connection: &Connection) -> Ticket {
        let slot = Arc::new(Slot {
            connection: Arc::downgrade(connection),
            reply: Mutex::new(Progress::Underway),
            done: Condvar::new(),
        });
        let mut kept = self.0.lock();
        if kept.by_key.insert(key, Arc::clone(&slot)).is_none() {
            kept.order.push_back(key);
        }
        if kept.order.len() > REPLIES_MAX
            && let Some(oldest) = kept.order.pop_front()
        {
            kept.by_key.remove(&oldest);
        }
        Ticket(slot)
    }
}

/// The first bytes, which are taken away.
fn take<'a, const N: usize>(bytes: &mut &'a [u8]) -> Option<&'a [u8; N]> {
    let (first, rest) = bytes.split_first_chunk()?;
    *bytes = rest;
    Some(first)
}
