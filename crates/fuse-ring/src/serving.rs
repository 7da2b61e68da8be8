//! Records the request that each thread serves, so that the report of a panic can name it.

use std::cell::Cell;

use crate::protocol::{NodeId, Opcode};

thread_local! {
    static CURRENT: Cell<Option<(Opcode, NodeId)>> = const { Cell::new(None) };
}

/// The request that this thread is serving: the operation, and the inode that it is about. For a panic
/// hook, which runs before the stack is unwound.
pub fn current_request() -> Option<(Opcode, NodeId)> {
    CURRENT.get()
}

/// The request is served until this is dropped.
pub(crate) struct Serving(());

impl Serving {
    /// Begins a request; one of an unknown operation is not noted.
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
