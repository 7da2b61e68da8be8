//! How far after the last record the next one goes.
//!
//! When a record is durable, the place after it has just passed under the head of a disk, and returns after a
//! whole turn. Records without gaps therefore take a turn each, as Trail's authors found (Chiueh and Huang,
//! ICDE 1999). A place a little further on reaches the head in time. The best distance depends on the disk
//! and on the time until the next record, so it is measured: each gap is tried, the fastest is used, and now
//! and then one of its neighbours is tried again. A device that is fast without gaps gets none, and a gap
//! that gains little is not worth its space.

use std::time::Duration;

#[cfg(test)]
mod tests;

/// Records with a gap before it is judged.
const TRIAL: u32 = 2;

/// The number of records after which a neighbour of the best gap is tried again.
const RETRY: u32 = 256;

/// A record that takes at most this long did not wait for a turn of a disk.
const QUICK: Duration = Duration::from_millis(1);

/// The number of recent records of which the mean is taken.
const WINDOW: u32 = 16;

struct Candidate {
    blocks: u32,
    /// The mean time of the last records after such a gap.
    mean: Duration,
    /// The records of that mean, up to [`WINDOW`].
    count: u32,
}

impl Candidate {
    fn add(&mut self, took: Duration) {
        self.count = (self.count + 1).min(WINDOW);
        let others = self.mean * (self.count - 1);
        self.mean = (others + took) / self.count;
    }
}

/// The possible gaps of a journal, with their measurements.
pub(super) struct Gaps {
    /// From none to the longest.
    candidates: Vec<Candidate>,
    /// The one in use.
    now: usize,
    /// Records until a neighbour is tried.
    until_retry: u32,
    is_retry_above: bool,
}

impl Gaps {
    /// Gaps of up to `blocks_max` blocks, without measurements.
    pub fn new(blocks_max: u32) -> Gaps {
        let halved = std::iter::successors(Some(blocks_max), |blocks| Some(blocks / 2));
        let mut blocks: Vec<u32> = halved.take(6).take_while(|blocks| *blocks > 0).collect();
        blocks.push(0);
        blocks.reverse();
        let unknown = |blocks| Candidate { blocks, mean: Duration::ZERO, count: 0 };
        let candidates = blocks.into_iter().map(unknown).collect();
        Gaps { candidates, now: 0, until_retry: RETRY, is_retry_above: true }
    }

    /// Candidates ascend from no gap, one of them is in use, and no mean is of more records than the window.
    pub fn check(&self) {
        assert_eq!(self.candidates.first().map(|candidate| candidate.blocks), Some(0));
        assert!(self.candidates.windows(2).all(|pair| pair[0].blocks < pair[1].blocks));
        assert!(self.now < self.candidates.len(), "a gap is in use");
        assert!(self.candidates.iter().all(|candidate| candidate.count <= WINDOW));
        assert!(self.until_retry <= RETRY);
    }

    /// The gap before the next record, in blocks.
    pub fn next(&self) -> u32 {
        self.candidates[self.now].blocks
    }

    /// Records the time of a record after the current gap.
    pub fn took(&mut self, took: Duration) {
        self.candidates[self.now].add(took);
        self.until_retry = self.until_retry.saturating_sub(1);
        let best = self.best();
        let is_quick = self.candidates[best].mean <= QUICK;
        self.now = match self.least_tried() {
            _ if is_quick => best,
            Some(untried) => untried,
            None if self.until_retry == 0 => self.neighbour(best),
            None => best,
        };
    }

    /// The shortest of the gaps with the fewest trials, if these were too few.
    fn least_tried(&self) -> Option<usize> {
        let trials = |index: &usize| self.candidates[*index].count;
        (0..self.candidates.len()).filter(|index| trials(index) < TRIAL).min_by_key(trials)
    }

    /// The shortest of those that are about as fast as the fastest.
    fn best(&self) -> usize {
        let known = || self.candidates.iter().filter(|candidate| candidate.count > 0);
        let fastest = known().map(|candidate| candidate.mean).min().unwrap_or_default();
        let is_near =
            |candidate: &Candidate| candidate.count > 0 && candidate.mean <= fastest + fastest / 8;
        self.candidates.iter().position(is_near).unwrap_or(0)
    }

    /// A neighbour of the best gap, which is tried again.
    fn neighbour(&mut self, best: usize) -> usize {
        self.until_retry = RETRY;
        self.is_retry_above = !self.is_retry_above;
        let neighbour = match self.is_retry_above {
            true => (best + 1).min(self.candidates.len() - 1),
            false => best.saturating_sub(1),
        };
        self.candidates[neighbour].count = 0;
        neighbour
    }
}
