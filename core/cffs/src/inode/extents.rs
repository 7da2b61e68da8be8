//! The extents of a file in memory, in file order; each records whether it is in the inode.
//!
//! Many files are in memory, and nearly all have one extent, which takes no extra memory. A few extents are a
//! list without spare capacity. A file with more has a tree, and keeps it.

use std::collections::BTreeMap;
use std::ops::Range;
use std::slice;

use crate::format::extent::Extent;

/// The longest list.
const FEW: usize = 8;
/// The longest tree that debug builds check after each change.
const CHECKED_MAX: usize = 64;
/// Approximate memory of an extent in a tree, whose nodes are two thirds full.
const MANY_BYTES: u64 = 64;

/// An extent, and its place on the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Kept {
    pub extent: Extent,
    /// Whether it is in the inode, not in a leaf of the tree.
    pub direct: bool,
}

/// Extents by their first fragment in the file.
#[derive(Debug)]
pub(super) enum Extents {
    One(Kept),
    Few(Vec<Kept>),
    Many(BTreeMap<u64, Kept>),
}

impl Default for Extents {
    fn default() -> Extents {
        Extents::Few(Vec::new())
    }
}

/// The representation of the extents.
enum Form<'a> {
    List(&'a [Kept]),
    Tree(&'a BTreeMap<u64, Kept>),
}

/// The number of extents of a list that begin before `logical`.
fn count_before(list: &[Kept], logical: u64) -> usize {
    list.partition_point(|kept| kept.extent.logical < logical)
}

impl Extents {
    fn form(&self) -> Form<'_> {
        match self {
            Extents::One(kept) => Form::List(slice::from_ref(kept)),
            Extents::Few(list) => Form::List(list),
            Extents::Many(tree) => Form::Tree(tree),
        }
    }

    pub fn len(&self) -> usize {
        match self.form() {
            Form::List(list) => list.len(),
            Form::Tree(tree) => tree.len(),
        }
    }

    /// Approximate memory in addition to a short list, in bytes.
    pub fn memory_bytes(&self) -> u64 {
        match self.form() {
            Form::List(_) => 0,
            Form::Tree(tree) => tree.len() as u64 * MANY_BYTES,
        }
    }

    /// All extents in file order.
    pub fn iter(&self) -> impl Iterator<Item = &Kept> {
        self.range(0..u64::MAX)
    }

    /// The extents that begin in the range.
    pub fn range(&self, range: Range<u64>) -> impl Iterator<Item = &Kept> {
        let (few, many) = match self.form() {
            Form::List(list) => {
                let end = count_before(list, range.end);
                (&list[count_before(list, range.start).min(end)..end], None)
            }
            Form::Tree(tree) => (&[][..], Some(tree.range(range))),
        };
        let all = few.iter().chain(many.into_iter().flatten().map(|(_, kept)| kept));
        #[cfg(test)]
        let all = all.inspect(|_| tests::VISITS.set(tests::VISITS.get() + 1));
        all
    }

    /// The last extent that begins before `logical`.
    pub fn before(&self, logical: u64) -> Option<&Kept> {
        match self.form() {
            Form::List(list) => list[..count_before(list, logical)].last(),
            Form::Tree(tree) => tree.range(..logical).next_back().map(|(_, kept)| kept),
        }
    }

    /// The same for changing it; its beginning must not change.
    pub fn before_mut(&mut self, logical: u64) -> Option<&mut Kept> {
        let list: &mut [Kept] = match self {
            Extents::One(kept) => slice::from_mut(kept),
            Extents::Few(list) => list,
            Extents::Many(tree) => {
                return tree.range_mut(..logical).next_back().map(|(_, kept)| kept);
            }
        };
        let count = count_before(list, logical);
        list[..count].last_mut()
    }

    /// The first extent that begins at `logical` or after it.
    pub fn at_or_after(&self, logical: u64) -> Option<&Kept> {
        match self.form() {
            Form::List(list) => list.get(count_before(list, logical)),
            Form::Tree(tree) => tree.range(logical..).next().map(|(_, kept)| kept),
        }
    }

    /// Extents begin at different places, in order, and a list is short. Debug builds check this after each
    /// change, and that a tree finds each by its place.
    fn check(&self) {
        match self.form() {
            Form::List(list) => {
                assert!(list.len() <= FEW, "a list of {} extents", list.len());
                let in_order = |pair: &[Kept]| pair[0].extent.logical < pair[1].extent.logical;
                assert!(list.windows(2).all(in_order), "a list is not in order");
            }
            Form::Tree(tree) => {
                let is_at = |(at, kept): (&u64, &Kept)| *at == kept.extent.logical;
                assert!(tree.iter().all(is_at), "an extent is elsewhere in the tree");
            }
        }
    }

    /// Adds an extent, in place of one that begins there.
    pub fn insert(&mut self, kept: Kept) {
        let logical = kept.extent.logical;
        match self {
            Extents::Few(list) if list.is_empty() => *self = Extents::One(kept),
            Extents::One(one) if one.extent.logical == logical => *one = kept,
            Extents::One(one) => {
                let is_first = one.extent.logical < logical;
                *self = Extents::Few(if is_first { vec![*one, kept] } else { vec![kept, *one] });
            }
            Extents::Few(list) => {
                let at = count_before(list, logical);
                if list.get(at).is_some_and(|other| other.extent.logical == logical) {
                    list[at] = kept;
                } else if list.len() < FEW {
                    list.reserve_exact(1);
                    list.insert(at, kept);
                } else {
                    let all = list.drain(..).chain([kept]);
                    *self = Extents::Many(all.map(|kept| (kept.extent.logical, kept)).collect());
                }
            }
            Extents::Many(tree) => {
                tree.insert(logical, kept);
            }
        }
        if cfg!(debug_assertions) && self.len() <= CHECKED_MAX {
            self.check();
        }
    }

    /// Removes the extent that begins at `logical`.
    pub fn remove(&mut self, logical: u64) -> Option<Kept> {
        match self {
            Extents::One(one) => {
                let kept = *one;
                (kept.extent.logical == logical).then(|| {
                    *self = Extents::default();
                    kept
                })
            }
            Extents::Few(list) => {
                let at = count_before(list, logical);
                let found = list.get(at).is_some_and(|kept| kept.extent.logical == logical);
                found.then(|| list.remove(at))
            }
            Extents::Many(tree) => tree.remove(&logical),
        }
    }
}

#[cfg(test)]
pub(crate) mod tests;
