//! Files with keys of their own. The files of a key may be in any directories, so a walk gathers them, and
//! they are regrouped at its end: key by key, in the order in which the walk met the keys.

use std::collections::HashMap;
use std::ops::ControlFlow;

use super::unit::{Candidate, Unit};
use super::{Left, Pending, Regrouping};
use crate::error::Result;
use crate::units::{InodeNo, Key};

/// With this many files after a directory, a walk regroups them before it continues. They take 16 bytes each.
const FILES_MAX: usize = 64 << 10;

/// The rest of a walk over trees.
#[derive(Default)]
pub(crate) struct Walk {
    /// The directories that remain.
    pub(super) pending: Vec<Pending>,
    /// The files with keys of their own in the other directories.
    keyed: Vec<(Key, InodeNo)>,
}

impl Walk {
    /// A walk over a tree.
    pub(crate) fn over(dir: InodeNo) -> Walk {
        Walk { pending: vec![Pending::tree(dir)], keyed: Vec::new() }
    }

    /// Whether nothing remains.
    pub(crate) fn is_over(&self) -> bool {
        self.pending.is_empty() && self.keyed.is_empty()
    }

    /// Adds a file that has a key of its own.
    pub(super) fn add(&mut self, key: Key, ino: InodeNo) {
        self.keyed.push((key, ino));
    }

    /// Whether the files that were gathered are to be regrouped now.
    pub(super) fn is_full(&self) -> bool {
        self.keyed.len() >= FILES_MAX
    }
}

impl Regrouping<'_> {
    /// Regroups the files that a walk has gathered. Those that remain when `watch` ends it stay in the walk.
    pub(super) fn keyed(&mut self, walk: &mut Walk) -> Result<ControlFlow<()>> {
        let mut files = std::mem::take(&mut walk.keyed);
        let mut first = HashMap::new();
        for (at, (key, _)) in files.iter().enumerate() {
            first.entry(*key).or_insert(at);
        }
        files.sort_by_key(|(key, _)| first[key]);
        let left = self.keys(&files)?;
        files.drain(..files.len() - left);
        walk.keyed = files;
        Ok(if left > 0 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) })
    }

    /// Regroups files that are in the order of their keys. Returns how many of the last ones remain.
    fn keys(&mut self, files: &[(Key, InodeNo)]) -> Result<usize> {
        let mut unit = Unit::new(&self.regrouper.writer.inodes);
        // The files from the first one on whose key has files in the unit.
        let mut begun = files.len();
        let mut left = files.len();
        for of_key in files.chunk_by(|one, next| one.0 == next.0) {
            let mut candidates = Vec::new();
            for (key, ino) in of_key {
                if (self.watch)(&self.progress).is_break() {
                    return Ok(begun);
                }
                candidates.extend(self.candidate_of_key(*ino, *key)?);
            }
            for candidate in unit.in_device_order(candidates) {
                if unit.is_full_with(&candidate) {
                    match self.finish(&mut unit)? {
                        ControlFlow::Continue(()) => begun = left,
                        ControlFlow::Break(Left::Unit) => return Ok(begun),
                        ControlFlow::Break(Left::Nothing) => return Ok(left),
                    }
                }
                unit.add(candidate);
            }
            left -= of_key.len();
            if unit.files.is_empty() {
                begun = left;
            }
            if (self.watch)(&self.progress).is_break() {
                return Ok(begun);
            }
        }
        match self.finish(&mut unit)? {
            ControlFlow::Break(Left::Unit) => Ok(begun),
            _ => Ok(0),
        }
    }

    /// A file that the walk has seen, unless its key has changed or it stays for another reason.
    fn candidate_of_key(&mut self, ino: InodeNo, key: Key) -> Result<Option<Candidate>> {
        let Some(vnode) = self.vnode(ino)? else { return Ok(None) };
        let file = vnode.state.read();
        if self.regrouper.present_key(&file) != key {
            return Ok(None);
        }
        Ok(self.if_movable(&file))
    }
}
