//! The walk of an attached program. The server keeps its position.

use std::collections::VecDeque;
use std::sync::Arc;

use super::super::connection::Asked;
use super::{Session, unexpected};
use crate::error::Result;
use crate::wire::{Handle, Memory, Query, Reply, Request, Step};

/// How many answers the server prepares while the program uses the steps of an earlier one.
const ANSWERS_AHEAD: usize = 2;

/// A walk below a directory. The server forgets it when this is dropped.
pub(crate) struct Tree {
    session: Arc<Session>,
    walk: Handle,
    asked: VecDeque<Asked>,
    /// The steps that have arrived.
    steps: VecDeque<Step>,
    has_ended: bool,
}

impl Tree {
    /// Begins to walk below a directory.
    pub fn begin(session: &Arc<Session>, dir: Handle) -> Result<Tree> {
        let walk = session.next_handle()?;
        session.done(&Request::Query(Query::Descend { dir, result: walk }))?;
        let (asked, steps) = Default::default();
        let mut tree = Tree { session: Arc::clone(session), walk, asked, steps, has_ended: false };
        tree.ask()?;
        Ok(tree)
    }

    /// The next step; `None` at the end, also after an error.
    pub fn next(&mut self) -> Option<Result<Step>> {
        while self.steps.is_empty() && !self.has_ended {
            if let Err(error) = self.receive() {
                self.has_ended = true;
                return Some(Err(error));
            }
        }
        self.steps.pop_front().map(Ok)
    }

    fn receive(&mut self) -> Result<()> {
        let Some(asked) = self.asked.pop_front() else { return Err(unexpected()) };
        let Reply::Steps(steps, is_end) = self.session.answer(asked)?.reply else {
            return Err(unexpected());
        };
        self.steps.extend(steps);
        self.has_ended = is_end;
        if is_end { Ok(()) } else { self.ask() }
    }

    /// Asks for as many answers as are prepared ahead.
    fn ask(&mut self) -> Result<()> {
        let mut connection = self.session.connection()?;
        while self.asked.len() < ANSWERS_AHEAD {
            let next = Request::Query(Query::Continue { walk: self.walk });
            self.asked.push_back(connection.ask(&next, Memory::default())?);
        }
        connection.send()
    }
}

impl Drop for Tree {
    fn drop(&mut self) {
        // If the session has ended, so has the walk.
        let Ok(mut connection) = self.session.connection() else { return };
        self.asked.drain(..).for_each(|asked| connection.abandon(asked));
        let _ = connection.begin(&Request::Forget { node: self.walk });
    }
}
