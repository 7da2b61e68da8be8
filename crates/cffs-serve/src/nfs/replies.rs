//! Replies that were sent, for calls that come again: a client that lost its connection before it had
//! the reply repeats the call, and what must not happen twice happens once.
//!
//! A call is the same if address, number, procedure and arguments are, and if it comes by the same
//! connection or the one it first came by is gone: two clients of one machine may well number their
//! calls alike.

use std::collections::{HashMap, VecDeque};
use std::net::IpAddr;
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

/// A connection, for as long as somebody has this.
pub type Connection = Arc<()>;

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
    connection: Weak<()>,
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

    fn find(&self, key: Key, connection: &Connection) -> Option<Arc<Slot>> {
        let slot = self.0.lock().by_key.get(&key).cloned()?;
        let same = slot.connection.upgrade().is_none_or(|first| Arc::ptr_eq(&first, connection));
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
