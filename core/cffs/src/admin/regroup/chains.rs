//! Files that are read together, as the volume observed them (`vfs::used`).

use std::ops::ControlFlow;

use super::Regrouping;
use super::unit::{Candidate, Unit};
use crate::error::Result;
use crate::inode::keys;
use crate::units::{InodeNo, Key};

impl Regrouping<'_> {
    /// Moves the files of each chain together, and gives them a key, if that makes reading the chain cheaper.
    /// The cost is that of the chain alone: several chains share a unit, but a reader takes one at a time.
    pub(super) fn chains(&mut self, chains: &[Vec<InodeNo>]) -> Result<ControlFlow<()>> {
        // A file that is in a unit moves.
        let gain = std::mem::take(&mut self.options.gain);
        let mut unit = Unit::new(&self.regrouper.writer.inodes);
        for chain in chains {
            let Some(key) = keys::learned_key(chain) else { continue };
            let mut part = Unit::new(&self.regrouper.writer.inodes);
            for ino in chain {
                let Some(candidate) = self.candidate_of_chain(*ino, key)? else { continue };
                if part.is_full_with(&candidate)
                    && self.choose(part.take(), gain, &mut unit)?.is_break()
                {
                    return Ok(ControlFlow::Break(()));
                }
                part.append(candidate);
            }
            if self.choose(part, gain, &mut unit)?.is_break()
                || (self.watch)(&self.progress).is_break()
            {
                return Ok(ControlFlow::Break(()));
            }
        }
        Ok(self.finish(&mut unit)?.map_break(|_| ()))
    }

    /// Adds the files of a chain to the unit if moving them makes reading them `gain` times as cheap.
    fn choose(&mut self, part: Unit, gain: u64, unit: &mut Unit) -> Result<ControlFlow<()>> {
        if part.gain(gain).is_none() {
            return Ok(ControlFlow::Continue(()));
        }
        for file in part.files {
            if unit.is_full_with(&file) && self.finish(unit)?.is_break() {
                return Ok(ControlFlow::Break(()));
            }
            unit.append(file);
        }
        Ok(ControlFlow::Continue(()))
    }

    /// A file of a chain, unless it stays. A file with a hint is with the others of that hint.
    fn candidate_of_chain(&mut self, ino: InodeNo, key: Key) -> Result<Option<Candidate>> {
        self.progress.files += 1;
        let Some(vnode) = self.vnode(ino)? else { return Ok(None) };
        let file = vnode.state.read();
        if file.inode.key.is_some_and(keys::is_hint) {
            return Ok(None);
        }
        let mut candidate = self.if_movable(&file);
        candidate.iter_mut().for_each(|candidate| candidate.learned = Some(key));
        Ok(candidate)
    }
}
