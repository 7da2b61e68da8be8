//! Keys of files' own: the space that their files take.
//!
//! A directory knows from its sectors where its files lie. Nothing on the device lists the files of another
//! key, so the allocator counts the space that it gave to each such key since the volume was opened. A key
//! counts as new until its files fill a segment: until then, its files go with those that are made at the
//! same time. Small keys are many, and a run for each of them would scatter them.

use super::{Allocator, Class, Owner, State};
use crate::units::Key;

impl Allocator {
    /// Whether the files of a key have filled a segment, so that their next ones get a reservation.
    pub fn has_filled(&self, key: Key) -> bool {
        let state = &*self.lock();
        let reserved = state.reservations.contains_key(&(Owner::Key(key), Class::Files));
        reserved || state.key_sizes.get(&key).copied() >= Some(self.layout.segment_fragments())
    }

    /// Records that a file of a key took `before` fragments until now, and takes `after`.
    pub fn note_file(&self, key: Key, before: u64, after: u64) {
        if before == after {
            return;
        }
        let state = &mut *self.lock();
        let is_known = state.key_sizes.contains_key(&key);
        if !is_known && state.key_sizes.len() >= self.placing.key_sizes_max {
            state.key_sizes.clear();
        }
        let size = state.key_sizes.entry(key).or_default();
        let changed = u64::from(*size).saturating_add(after).saturating_sub(before);
        *size = u32::try_from(changed).unwrap_or(u32::MAX);
    }

    /// The length of the next reservation of a key of files' own, before it is rounded: as long as all of its
    /// files. So at most half of the key's runs is unused, and few runs have all of its files. `None` for a
    /// directory.
    pub(super) fn size_of_key(&self, state: &State, owner: Owner) -> Option<u32> {
        match owner {
            Owner::Key(key) if key.is_own() => {
                Some(state.key_sizes.get(&key).copied().unwrap_or(0))
            }
            _ => None,
        }
    }
}
