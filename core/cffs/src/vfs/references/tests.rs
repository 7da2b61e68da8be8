use std::collections::HashMap;

use proptest::prelude::*;

use super::*;

#[test]
fn a_million_files_made_together_take_a_few_bytes_each() {
    let references = References::default();
    let files = 1_000_000;
    (16..16 + files).map(InodeNo).for_each(|ino| references.take(ino));
    // A table is filled to seven eighths at most, and has one more byte per slot.
    let entry = size_of::<(u64, [u8; BLOCK])>() + 1;
    let places =
        |shard: &Padded<Mutex<Shard>>| shard.lock().counts.blocks.capacity().div_ceil(7) * 8;
    let bytes = references.0.iter().map(places).sum::<usize>() * entry;
    assert!(bytes <= 4 * files as usize, "{bytes} bytes for {files} references");
    (16..16 + files).for_each(|ino| assert!(!references.release(InodeNo(ino), 1)));
    assert!(references.0.iter().all(|shard| shard.lock().counts.blocks.is_empty()));
}

/// Ends a deletion when a call waits for it.
struct Deletes<'a>(&'a References, Mutex<u32>);

impl std::fmt::Debug for Deletes<'_> {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str("Deletes")
    }
}

impl Waiter for Deletes<'_> {
    fn about_to_wait(&self) {
        *self.1.lock() += 1;
        self.0.deleted(InodeNo(16));
    }
}

/// Regression: a call that found no space was repeated while another thread was deleting a file.
#[test]
fn a_file_that_is_being_deleted_is_waited_for() {
    let (references, ino) = (References::default(), InodeNo(16));
    references.take(ino);
    assert!(!references.orphan(ino));
    assert!(references.release(ino, 1) && references.take_unused(ino));
    let waiter = Deletes(&references, Mutex::new(Rank::Leaf, 0));
    assert!(references.await_deletions(&waiter, |_| true));
    assert_eq!(*waiter.1.lock(), 1);
    assert!(references.await_deletions(&waiter, |_| true));
    assert_eq!(*waiter.1.lock(), 1, "nothing is being deleted any more");
}

proptest! {
    /// Against a map of plain counts, with numbers that share blocks and counts beyond a byte.
    #[test]
    fn counts_are_those_of_a_plain_map(
        steps in prop::collection::vec((0u64..40, 0u64..400, any::<bool>()), 1..60),
    ) {
        let references = References::default();
        let mut plain: HashMap<u64, u64> = HashMap::new();
        for (ino, times, takes) in steps {
            let count = plain.entry(ino).or_default();
            references.orphan(InodeNo(ino));
            if takes {
                (0..times).for_each(|_| references.take(InodeNo(ino)));
                *count += times;
            } else {
                let is_last = *count > 0 && *count <= times;
                prop_assert_eq!(references.release(InodeNo(ino), times), is_last);
                *count = count.saturating_sub(times);
            }
            for (&ino, &count) in &plain {
                prop_assert_eq!(references.shard(InodeNo(ino)).lock().counts.get(InodeNo(ino)), count);
            }
        }
        for (ino, count) in plain {
            prop_assert_eq!(references.take_unused(InodeNo(ino)), count == 0);
        }
    }
}
