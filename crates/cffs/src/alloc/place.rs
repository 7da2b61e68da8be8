//! The search for space: the numbered list of the module above, in code.

use super::group::Among;
use super::{Allocator, State, Window};
use crate::error::{Error, Result};
use crate::format::superblock::Policy;
use crate::units::{BlockNo, CgIndex, FragNo, FragRun, Key};

/// The key of the stream: what no key's window takes goes there.
const STREAM: Key = Key(0);
/// A window is at most this many segments long.
const WINDOW_SEGMENTS_MAX: u32 = 16;
/// How many windows are kept at once.
const WINDOWS_MAX: usize = 2048;

/// What is to be placed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A small file, whole.
    Small,
    /// A piece of a large file.
    Large,
    /// One block of metadata, aligned to a block.
    Metadata,
}

/// Space that a file needs.
pub struct Request<'a> {
    /// Small, large or metadata.
    pub kind: Kind,
    /// The key whose files it is to lie beside.
    pub key: Key,
    /// How many fragments.
    pub len: u32,
    /// The fragment after the file's last one: where it would go on without a seek.
    pub goal: Option<FragNo>,
    /// Whether files of the key were placed in an earlier epoch.
    pub grown: bool,
    /// The segments that files of the key have now. Asked only when it matters.
    pub neighbours: &'a dyn Fn() -> Vec<u64>,
}

impl Allocator {
    /// Finds fragments and takes them into use. The run may be shorter than what was asked for,
    /// but for metadata; the caller asks again for the rest.
    pub fn place(&self, request: &Request<'_>) -> Result<FragRun> {
        let mut state = self.state.lock();
        state.clock += 1;
        let run = match (request.kind, self.policy) {
            (Kind::Metadata, _) => self.place_metadata(&mut state, request)?,
            (_, Policy::None) => self.place_conventionally(&mut state, request)?,
            (Kind::Large, _) => self.place_large(&mut state, request)?,
            (Kind::Small, _) => self.place_small(&mut state, request)?,
        };
        let run = match run {
            Some(run) => run,
            None => self.place_anywhere(&mut state, request)?.ok_or(Error::NoSpace)?,
        };
        self.take(&mut state, run)?;
        Ok(run)
    }

    fn take(&self, state: &mut State, run: FragRun) -> Result<()> {
        let cg = self.layout.cg_of_fragment(run.start);
        let at = self.in_group(cg, run.start);
        let group = self.group(state, cg)?;
        group.take(at, run.len);
        group.rotor = at + run.len;
        state.free -= u64::from(run.len);
        Ok(())
    }

    fn place_small(&self, state: &mut State, request: &Request<'_>) -> Result<Option<FragRun>> {
        if let Some(run) = self.take_from_window(state, request.key, request.len) {
            return Ok(Some(run));
        }
        if request.grown {
            if let Some(run) = self.take_from_holes(state, request)? {
                return Ok(Some(run));
            }
            if self.open_window(state, request.key, request.len)? {
                return Ok(self.take_from_window(state, request.key, request.len));
            }
        }
        self.take_from_stream(state, request.len)
    }

    fn take_from_stream(&self, state: &mut State, len: u32) -> Result<Option<FragRun>> {
        if let Some(run) = self.take_from_window(state, STREAM, len) {
            return Ok(Some(run));
        }
        Ok(if self.open_window(state, STREAM, len)? {
            self.take_from_window(state, STREAM, len)
        } else {
            None
        })
    }

    /// Takes the next fragments of a key's window. They are still marked as held.
    fn take_from_window(&self, state: &mut State, key: Key, len: u32) -> Option<FragRun> {
        let clock = state.clock;
        let window = state.windows.get_mut(&key)?;
        if window.end.0 - window.next.0 < u64::from(len) {
            return None;
        }
        let run = FragRun::new(window.next, len);
        window.next = run.end();
        window.used = clock;
        Some(run)
    }

    fn take_from_holes(&self, state: &mut State, request: &Request<'_>) -> Result<Option<FragRun>> {
        let segment = u64::from(self.layout.segment_fragments());
        for number in (request.neighbours)() {
            let first = FragNo(number * segment);
            if first.0 >= self.layout.fragments() {
                continue;
            }
            let cg = self.layout.cg_of_fragment(first);
            let from = self.in_group(cg, first);
            let to = from + segment as u32;
            let found = self.group(state, cg)?.find(from, to, request.len, 1, Among::Unheld);
            if let Some(at) = found {
                return Ok(Some(FragRun::new(self.of_group(cg, at), request.len)));
            }
        }
        Ok(None)
    }

    /// Sets a run aside for a key: right behind the last one if possible, else from the hot spot on.
    fn open_window(&self, state: &mut State, key: Key, len: u32) -> Result<bool> {
        let segment = self.layout.segment_fragments();
        let previous = state.windows.remove(&key);
        let roomy = state.free > self.layout.allocatable_fragments() / 4;
        let longest = if roomy { WINDOW_SEGMENTS_MAX * segment } else { segment };
        let doubled = previous.map_or(segment, |window| window.opened * 2);
        let mut want = doubled.clamp(segment, longest).max(len.next_multiple_of(segment));
        if let Some(window) = previous {
            self.let_go(state, &window)?;
            if let Some(run) = self.run_behind(state, window.end, want)? {
                return self.start_window(state, key, run, want);
            }
        }
        loop {
            if let Some(run) = self.find_from_hot(state, want, segment, Among::Unheld)? {
                return self.start_window(state, key, run, want);
            }
            if want <= segment {
                return Ok(false);
            }
            want = (want / 2).max(segment);
            if want < len {
                return Ok(false);
            }
        }
    }

    fn start_window(&self, state: &mut State, key: Key, run: FragRun, opened: u32) -> Result<bool> {
        if state.windows.len() >= WINDOWS_MAX {
            let oldest = state.windows.iter().min_by_key(|(_, window)| window.used);
            if let Some((oldest, window)) = oldest.map(|(key, window)| (*key, *window)) {
                self.let_go(state, &window)?;
                state.windows.remove(&oldest);
            }
        }
        let cg = self.layout.cg_of_fragment(run.start);
        let at = self.in_group(cg, run.start);
        self.group(state, cg)?.hold(at, run.len);
        let used = state.clock;
        state.windows.insert(key, Window { next: run.start, end: run.end(), opened, used });
        Ok(true)
    }

    fn let_go(&self, state: &mut State, window: &Window) -> Result<()> {
        let len = (window.end.0 - window.next.0) as u32;
        if len > 0 {
            let cg = self.layout.cg_of_fragment(window.next);
            let at = self.in_group(cg, window.next);
            self.group(state, cg)?.unhold(at, len);
        }
        Ok(())
    }

    fn run_behind(&self, state: &mut State, end: FragNo, len: u32) -> Result<Option<FragRun>> {
        if end.0 >= self.layout.fragments() {
            return Ok(None);
        }
        let cg = self.layout.cg_of_fragment(end);
        let at = self.in_group(cg, end);
        let free = self.group(state, cg)?.run_at(at, len, Among::Unheld);
        Ok((free == len).then(|| FragRun::new(end, len)))
    }

    /// The first run of `len` fragments from the hot spot on, group by group. The hot spot follows.
    fn find_from_hot(
        &self,
        state: &mut State,
        len: u32,
        align: u32,
        among: Among,
    ) -> Result<Option<FragRun>> {
        let cgs = self.layout.cgs();
        for step in 0..cgs {
            let cg = CgIndex((state.hot.0 + step) % cgs);
            let group = self.group(state, cg)?;
            if group.free_count() < len {
                continue;
            }
            let (rotor, end) = (group.rotor, group.fragments());
            let found = group
                .find(rotor, end, len, align, among)
                .or_else(|| group.find(0, end, len, align, among));
            if let Some(at) = found {
                state.hot = cg;
                return Ok(Some(FragRun::new(self.of_group(cg, at), len)));
            }
        }
        Ok(None)
    }

    fn place_large(&self, state: &mut State, request: &Request<'_>) -> Result<Option<FragRun>> {
        let block = self.layout.block_fragments();
        if let Some(goal) = request.goal
            && goal.0 < self.layout.fragments()
        {
            let cg = self.layout.cg_of_fragment(goal);
            let at = self.in_group(cg, goal);
            let free = self.group(state, cg)?.run_at(at, request.len, Among::Unheld);
            // A short piece behind the file is worth less than a long one elsewhere.
            if free >= request.len.min(self.layout.segment_fragments()) {
                return Ok(Some(FragRun::new(goal, free)));
            }
        }
        let group_fragments = self.layout.cg_blocks * block;
        let mut want = request.len.min(group_fragments / 2);
        while want >= block {
            if let Some(run) = self.find_from_hot(state, want, block, Among::Unheld)? {
                return Ok(Some(run));
            }
            want /= 2;
        }
        Ok(None)
    }

    /// What a conventional file system does: behind the file, or the first free place in the group
    /// of its directory (USENIX'97 4.1).
    fn place_conventionally(
        &self,
        state: &mut State,
        request: &Request<'_>,
    ) -> Result<Option<FragRun>> {
        if request.goal.is_some() && request.kind == Kind::Large {
            return self.place_large(state, request);
        }
        let cgs = self.layout.cgs();
        let home = (request.key.0.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32) as u32 % cgs;
        for step in 0..cgs {
            let cg = CgIndex((home + step) % cgs);
            let group = self.group(state, cg)?;
            let end = group.fragments();
            if let Some(at) = group.find(0, end, request.len, 1, Among::Unheld) {
                return Ok(Some(FragRun::new(self.of_group(cg, at), request.len)));
            }
        }
        Ok(None)
    }

    fn place_metadata(&self, state: &mut State, request: &Request<'_>) -> Result<Option<FragRun>> {
        let block = self.layout.block_fragments();
        debug_assert_eq!(request.len, block, "metadata comes in blocks");
        // A key's metadata lies at the head of its files, where the window or the stream stands,
        // on the next whole block.
        for key in [request.key, STREAM] {
            if key == STREAM && !state.windows.contains_key(&STREAM) {
                self.open_window(state, STREAM, block)?;
            }
            if let Some(window) = state.windows.get_mut(&key) {
                let start = window.next.0.next_multiple_of(block.into());
                if start + u64::from(block) <= window.end.0 {
                    let skipped = FragRun::new(window.next, (start - window.next.0) as u32);
                    window.next = FragNo(start + u64::from(block));
                    if skipped.len > 0 {
                        let cg = self.layout.cg_of_fragment(skipped.start);
                        let at = self.in_group(cg, skipped.start);
                        self.group(state, cg)?.unhold(at, skipped.len);
                    }
                    return Ok(Some(FragRun::new(FragNo(start), block)));
                }
            }
        }
        if self.open_window(state, STREAM, block)? {
            return Ok(self.take_from_window(state, STREAM, block));
        }
        if let Some(run) = self.find_from_hot(state, block, block, Among::Unheld)? {
            return Ok(Some(run));
        }
        self.give_up_windows(state)?;
        if let Some(run) = self.find_from_hot(state, block, block, Among::Unheld)? {
            return Ok(Some(run));
        }
        let pooled = state.pool.pop();
        Ok(pooled.map(|number| FragRun::new(self.layout.block_start(number), block)))
    }

    /// The last resort: windows are given up; whole if possible, in pieces if not.
    fn place_anywhere(&self, state: &mut State, request: &Request<'_>) -> Result<Option<FragRun>> {
        if request.kind == Kind::Metadata {
            return Ok(None);
        }
        self.give_up_windows(state)?;
        if let Some(run) = self.find_from_hot(state, request.len, 1, Among::Unheld)? {
            return Ok(Some(run));
        }
        let cgs = self.layout.cgs();
        for step in 0..cgs {
            let cg = CgIndex((state.hot.0 + step) % cgs);
            let (at, len) = self.group(state, cg)?.longest(1, Among::Unheld);
            if len > 0 {
                return Ok(Some(FragRun::new(self.of_group(cg, at), len.min(request.len))));
            }
        }
        Ok(None)
    }

    fn give_up_windows(&self, state: &mut State) -> Result<()> {
        for (_, window) in std::mem::take(&mut state.windows) {
            self.let_go(state, &window)?;
        }
        Ok(())
    }

    /// Sets blocks aside for metadata, as many as are missing. At mount, and after each epoch.
    pub fn fill_pool(&self) -> Result<()> {
        let mut state = self.state.lock();
        let block = self.layout.block_fragments();
        // From the end of the volume's used part, away from the hot spot; made groups first, so
        // that this alone makes none.
        let groups = state.cgs_made.max(1).min(self.layout.cgs());
        for cg in (0..groups).rev().map(CgIndex) {
            while state.pool.len() < self.pool_blocks {
                let group = self.group(&mut state, cg)?;
                let from = group.fragments() * 3 / 4 / block * block;
                let found = group
                    .find(from, group.fragments(), block, block, Among::Unheld)
                    .or_else(|| group.find(0, group.fragments(), block, block, Among::Unheld));
                let Some(at) = found else { break };
                group.hold(at, block);
                let number: BlockNo = self.layout.block_of(self.of_group(cg, at));
                state.pool.push(number);
            }
        }
        Ok(())
    }
}
