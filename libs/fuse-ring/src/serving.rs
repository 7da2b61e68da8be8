//! Records the request of each thread, so that a panic report can name it.

use std::cell::Cell;

use crate::protocol::{NodeId, Opcode};

thread_local! {
    static CURRENT: Cell<Option<(Opcode, NodeId)>> = const { Cell::new(None) };
}

/// The request that this thread is serving: its operation and inode. For panic hooks, which run before the
/// stack is unwound.
pub fn current_request() -> Option<(Opcode, NodeId)> {
    CURRENT.get()
}

/// Marks a request as being served until this is dropped.
pub(crate) struct Serving(());

impl Serving {
    /// Begins a request; one with an unknown operation is not recorded.
    pub(crate) fn begin(opcode: Option<Opcode>, node: NodeId) -> Serving {
        CURRENT.set(opcode.map(|opcode| (opcode, node)));
        Serving(())
    }
}

impl Drop for Serving {
    fn drop(&mut self) {
        CURRENT.set(None);
    }
}
