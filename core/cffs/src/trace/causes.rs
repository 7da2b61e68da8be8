//! The operations that changed a block or an inode since it was last written.

use std::collections::BTreeMap;

use super::op::{OpId, Share, WHOLE};

/// The most operations that are kept for one block; changes by others count for these.
const CAUSES_MAX: usize = 256;

/// Operations, in their order. The first one takes no allocation.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Causes {
    first: Option<OpId>,
    #[allow(clippy::box_collection, reason = "every page has room for this, and few have more")]
    more: Option<Box<Vec<OpId>>>,
}

impl Causes {
    /// Adds an operation, if there is one.
    pub fn note(&mut self, op: Option<OpId>) {
        let Some(op) = op else { return };
        match (&self.first, &mut self.more) {
            (None, _) => self.first = Some(op),
            (Some(first), None) if *first != op => self.more = Some(Box::new(vec![op])),
            (Some(first), Some(more))
                if more.last() != Some(&op) && *first != op && more.len() + 1 < CAUSES_MAX =>
            {
                more.push(op);
            }
            _ => {}
        }
    }

    /// Adds all of others.
    pub fn note_all(&mut self, others: &Causes) {
        others.iter().for_each(|op| self.note(Some(op)));
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.first.is_none()
    }

    /// Forgets them.
    pub fn clear(&mut self) {
        if self.first.is_some() {
            *self = Causes::default();
        }
    }

    /// Each of them.
    pub fn iter(&self) -> impl Iterator<Item = OpId> + '_ {
        self.first.into_iter().chain(self.more.iter().flat_map(|more| more.iter().copied()))
    }

    fn len(&self) -> u32 {
        u32::from(self.first.is_some()) + self.more.as_ref().map_or(0, |more| more.len() as u32)
    }
}

/// The shares of a request of several blocks, each with its causes; those of a block without any belong to
/// `otherwise`. Each block counts the same, and so does each of its causes.
pub(super) fn shares<'a>(
    blocks: impl ExactSizeIterator<Item = Option<&'a Causes>>,
    otherwise: OpId,
) -> Vec<Share> {
    let mut parts: BTreeMap<OpId, u32> = BTreeMap::new();
    let mut add = |op, part| *parts.entry(op).or_default() += part;
    for (block, index) in divided(WHOLE, blocks.len() as u32).zip(blocks) {
        match index {
            Some(causes) if !causes.is_empty() => {
                for (part, op) in divided(block, causes.len()).zip(causes.iter()) {
                    add(op, part);
                }
            }
            _ => add(otherwise, block),
        }
    }
    if parts.is_empty() {
        parts.insert(otherwise, WHOLE);
    }
    parts.into_iter().filter(|(_, part)| *part > 0).map(|(op, part)| Share { op, part }).collect()
}

/// Divides `whole` into parts that differ by at most one.
fn divided(whole: u32, parts: u32) -> impl Iterator<Item = u32> {
    let (each, rest) = (whole / parts.max(1), whole % parts.max(1));
    (0..parts).map(move |index| each + u32::from(index < rest))
}
