//! A cache of replies to repeated calls: a client that loses its connection before it has received the reply
//! repeats the call, which must not take effect twice.
//!
//! Calls are the same if address, transaction number, procedure and arguments are. The connection does not
//! matter: a client repeats a call on a new one, and the server may notice late, or never, that the old one
//! has ended.

use std::collections::{HashMap, VecDeque};
use std::net::{IpAddr, Ipv6Addr};
use std::sync::Arc;

use parking_lot::{Condvar, Mutex};

#[cfg(test)]
mod tests;

/// The most replies kept. They have some 300 bytes each.
const REPLIES_MAX: usize = 4096;

/// Identifies a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Key {
    /// The client's address.
    pub address: IpAddr,
    /// Its transaction number.
    pub xid: u32,
    pub procedure: u32,
    pub arguments: u64,
}

#[derive(Default)]
pub struct Replies(Mutex<Kept>);

#[derive(Default)]
struct Kept {
    by_key: HashMap<Key, Arc<Slot>>,
    /// The calls, oldest first.
    order: VecDeque<Key>,
}

struct Slot {
    reply: Mutex<Progress>,
    done: Condvar,
}

enum Progress {
    Underway,
    Done(Vec<u8>),
    /// It was not executed after all.
    Abandoned,
}

/// A call that must be executed. If this is dropped without a reply, the call may be repeated.
pub struct Ticket(Arc<Slot>);

impl Ticket {
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
    /// The reply to an earlier identical call, waiting for it if that is in progress; or a ticket for the
    /// first call.
    pub fn get(&self, key: Key) -> Result<Vec<u8>, Ticket> {
        loop {
            let slot = {
                let mut kept = self.0.lock();
                match kept.find(key) {
                    Some(slot) => slot,
                    None => return Err(kept.enter(key)),
                }
            };
            let mut reply = slot.reply.lock();
            while matches!(*reply, Progress::Underway) {
                slot.done.wait(&mut reply);
            }
            if let Progress::Done(bytes) = &*reply {
                return Ok(bytes.clone());
            }
        }
    }

    /// The replies, oldest first, for another server. No call is in progress.
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

    /// The replies of another server; `None` if the bytes are invalid.
    pub fn from_bytes(mut bytes: &[u8]) -> Option<Replies> {
        let mut kept = Kept::default();
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
            kept.enter(key).fill(reply);
        }
        Some(Replies(Mutex::new(kept)))
    }
}

impl Kept {
    /// A call that was executed, or is in progress.
    fn find(&self, key: Key) -> Option<Arc<Slot>> {
        let slot = self.by_key.get(&key)?;
        let is_abandoned = matches!(*slot.reply.lock(), Progress::Abandoned);
        (!is_abandoned).then(|| Arc::clone(slot))
    }

    /// Records a call that will be executed.
    fn enter(&mut self, key: Key) -> Ticket {
        let slot = Arc::new(Slot { reply: Mutex::new(Progress::Underway), done: Condvar::new() });
        if self.by_key.insert(key, Arc::clone(&slot)).is_none() {
            self.order.push_back(key);
        }
        if self.order.len() > REPLIES_MAX
            && let Some(oldest) = self.order.pop_front()
        {
            self.by_key.remove(&oldest);
        }
        Ticket(slot)
    }
}

/// Removes and returns the first bytes.
fn take<'a, const N: usize>(bytes: &mut &'a [u8]) -> Option<&'a [u8; N]> {
    let (first, rest) = bytes.split_first_chunk()?;
    *bytes = rest;
    Some(first)
}
