//! How often the kernel asked for what: each request is a round trip, the price of being mounted.

use std::sync::atomic::{AtomicU64, Ordering};

use fuse_ring::protocol::Opcode;
use serde_json::Value;

/// Room for the numbers of all operations.
const SLOTS: usize = 64;

/// What this thread is serving, for the report of a panic.
pub fn current_request() -> Option<String> {
    let (opcode, node) = fuse_ring::current_request()?;
    Some(format!("{} of inode {}", format!("{opcode:?}").to_lowercase(), node.0))
}

/// Requests, counted by operation.
pub struct Requests([AtomicU64; SLOTS]);

impl Default for Requests {
    fn default() -> Requests {
        Requests(std::array::from_fn(|_| AtomicU64::new(0)))
    }
}

impl Requests {
    /// Counts one.
    pub fn count(&self, opcode: Opcode) {
        if let Some(counter) = self.0.get(opcode as usize) {
            counter.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// The counts of the operations that were asked for, by name.
    pub fn describe(&self) -> Value {
        let count = |opcode: Opcode| Some(self.0.get(opcode as usize)?.load(Ordering::Relaxed));
        Opcode::ALL
            .iter()
            .filter_map(|opcode| Some((format!("{opcode:?}").to_lowercase(), count(*opcode)?)))
            .filter(|(_, count)| *count > 0)
            .map(|(name, count)| (name, Value::from(count)))
            .collect()
    }
}
