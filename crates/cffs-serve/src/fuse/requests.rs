//! How often the kernel asked for what: each request is a round trip, the price of being mounted.

use cffs::line::Counter;
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
pub struct Requests(Box<[Counter]>);

impl Default for Requests {
    fn default() -> Requests {
        Requests((0..SLOTS).map(|_| Counter::default()).collect())
    }
}

impl Requests {
    /// Counts one.
    pub fn count(&self, opcode: Opcode) {
        if let Some(counter) = self.0.get(opcode as usize) {
            counter.count();
        }
    }

    /// The counts of the operations that were asked for, by name.
    pub fn describe(&self) -> Value {
        let count = |opcode: Opcode| Some(self.0.get(opcode as usize)?.get());
        Opcode::ALL
            .iter()
            .filter_map(|opcode| Some((format!("{opcode:?}").to_lowercase(), count(*opcode)?)))
            .filter(|(_, count)| *count > 0)
            .map(|(name, count)| (name, Value::from(count)))
            .collect()
    }
}
