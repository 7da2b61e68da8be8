//! Counts of the kernel's requests by operation: each is a round trip between kernel and server.

use cffs::padded::Counter;
use fuse_ring::protocol::Opcode;
use serde_json::Value;

/// Room for the numbers of all operations.
const SLOTS: usize = 64;

/// The request that this thread is serving, for crash reports.
pub fn current_request() -> Option<String> {
    let (opcode, node) = fuse_ring::current_request()?;
    Some(format!("{} of inode {}", format!("{opcode:?}").to_lowercase(), node.0))
}

pub struct Requests(Box<[Counter]>);

impl Default for Requests {
    fn default() -> Requests {
        Requests((0..SLOTS).map(|_| Counter::default()).collect())
    }
}

impl Requests {
    pub fn count(&self, opcode: Opcode) {
        if let Some(counter) = self.0.get(opcode as usize) {
            counter.count();
        }
    }

    /// The non-zero counts by operation name.
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
