//! Keys of files' own: the space that their files take.
//!
//! A directory knows from its sectors where its files are. Nothing on the device lists the files of another
//! key, so the space that each such key got since the volume was opened is counted, less the space that its
//! files gave up. Large files do not count. A key counts as new until its files fill a segment: until then,
//! its files go with those that are made at the same time. Small keys are numerous, and a run for each of
//! them would scatter their files.
//!
//! The count is approximate. Space that a file had before the volume was opened or before its key changed,
//! that it shares, or that was preallocated is subtracted when the file gives it up, although it was not
//! added; then the key counts as new for longer. Space of a file that gets another key stays counted for the
//! old one.

use foldhash::HashMap;

use super::Owner;
use crate::lock::{Mutex, Rank};
use crate::units::Key;

/// For each key of files' own: the fragments that its files got since the volume was opened, and still have.
pub struct KeySizes {
    segment_fragments: u32,
    keys_max: usize,
    sizes: Mutex<HashMap<Key, u32>>,
}

impl KeySizes {
    /// The sizes of up to `keys_max` keys. If there are more, all count as new again.
    pub(super) fn new(segment_fragments: u32, keys_max: usize) -> KeySizes {
        let sizes = Mutex::new(Rank::Leaf, HashMap::default());
        KeySizes { segment_fragments, keys_max, sizes }
    }

    /// Whether the files of a key have filled a segment, so that their next ones get a reservation.
    pub fn has_filled(&self, key: Key) -> bool {
        self.size(key) >= self.segment_fragments
    }

    /// Records that a file of a key took `before` fragments until now, and takes `after`.
    pub fn note(&self, key: Key, before: u64, after: u64) {
        if before == after {
            return;
        }
        let mut sizes = self.sizes.lock();
        let size = sizes.get(&key).copied().unwrap_or(0);
        let changed = u64::from(size).saturating_add(after).saturating_sub(before);
        if changed == 0 {
            sizes.remove(&key);
            return;
        }
        if sizes.len() >= self.keys_max && !sizes.contains_key(&key) {
            sizes.clear();
        }
        sizes.insert(key, u32::try_from(changed).unwrap_or(u32::MAX));
    }

    /// The size of a key of files' own, which is the length of its next reservation before it is rounded. So
    /// at most half of the key's runs is unused, and few runs have all of its files. `None` for a directory.
    pub(super) fn of_owner(&self, owner: Owner) -> Option<u32> {
        match owner {
            Owner::Key(key) if key.is_own() => Some(self.size(key)),
            _ => None,
        }
    }

    fn size(&self, key: Key) -> u32 {
        self.sizes.lock().get(&key).copied().unwrap_or(0)
    }

    #[cfg(test)]
    pub(super) fn known(&self) -> usize {
        self.sizes.lock().len()
    }
}
