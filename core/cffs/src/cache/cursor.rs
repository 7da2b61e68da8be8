//! Sequential readers: their positions, and the windows of their read-ahead.
//!
//! ```text
//!     reads on from where it was: window × factor, up to the most
//!    none ────────────────────────────────▶ following
//!     ▲          reads somewhere else           │
//!     └──────────── (another cursor) ───────────┘
//! ```

#[cfg(test)]
mod tests;

/// The growth of a window with each sequential step.
#[derive(Clone, Copy, Debug)]
pub struct Growth {
    /// The factor from one window to the next.
    pub factor: u64,
    /// The shortest window.
    pub least: u64,
    /// The longest window.
    pub most: u64,
}

/// A sequential reader at a place of any kind: a run of blocks, a file of a directory, a directory of a
/// tree.
#[derive(Clone, Debug, Default)]
pub struct Cursor<P> {
    /// Where it is.
    pub at: P,
    /// Its next window, in the unit of its [`Growth`].
    pub window: u64,
}

impl<P> Cursor<P> {
    /// A reader at a place, without a window yet.
    pub fn new(at: P) -> Cursor<P> {
        Cursor { at, window: 0 }
    }

    /// Records that it continued, to this place.
    pub fn advance(&mut self, at: P, growth: Growth) {
        self.at = at;
        self.window = self.next_window(growth);
    }

    /// The window after one more sequential step.
    pub fn next_window(&self, growth: Growth) -> u64 {
        self.window.saturating_mul(growth.factor).max(growth.least).min(growth.most)
    }
}

/// The most recently active readers. Beyond the limit, the one that moved longest ago is forgotten.
#[derive(Debug)]
pub struct Cursors<P> {
    /// Each with the time of its last move.
    cursors: Vec<(u64, Cursor<P>)>,
    most: usize,
    moves: u64,
}

impl<P> Cursors<P> {
    /// No readers yet; at most `most`, at least one.
    pub fn new(most: usize) -> Cursors<P> {
        Cursors { cursors: Vec::new(), most, moves: 0 }
    }

    /// The reader that matches.
    pub fn find(&self, is_it: impl Fn(&P) -> bool) -> Option<&Cursor<P>> {
        self.cursors.iter().map(|(_, cursor)| cursor).find(|cursor| is_it(&cursor.at))
    }

    /// The reader that moved last.
    pub fn latest(&self) -> Option<&Cursor<P>> {
        self.cursors.iter().max_by_key(|(moved, _)| *moved).map(|(_, cursor)| cursor)
    }

    /// The reader that matches, to be moved.
    pub fn find_to_move(&mut self, is_it: impl Fn(&P) -> bool) -> Option<&mut Cursor<P>> {
        self.moves += 1;
        let (moved, cursor) = self.cursors.iter_mut().find(|(_, cursor)| is_it(&cursor.at))?;
        *moved = self.moves;
        Some(cursor)
    }

    /// Adds a reader that has just moved.
    pub fn add(&mut self, cursor: Cursor<P>) {
        self.moves += 1;
        let is_full = self.cursors.len() >= self.most;
        let oldest = self.cursors.iter_mut().min_by_key(|(moved, _)| *moved);
        match oldest.filter(|_| is_full) {
            Some(oldest) => *oldest = (self.moves, cursor),
            None => self.cursors.push((self.moves, cursor)),
        }
    }
}
