//! The key by which a file is placed: the files of one key are stored together (decision 005).
//!
//! A file without a key is placed by its directory. A hint, which is an extended attribute, wins over the
//! policy of the volume. The key of an inode counts when its contents are next placed; nothing moves when it
//! changes.
//!
//! The key of a policy can be told from a hint, so that it can be replaced when the policy changes:
//!
//! ```text
//! bits 63..62   61..48   47..40   39..0
//!      11       2C0Fh    policy   owner, minute or process
//! ```
//!
//! Any other key with bit 63 is the hash of a hint. Keys without it are numbers of directories.
//!
//! Files that regrouping found to be read together have a learned key. It is a key of a policy with a number
//! that no policy has, and with the low bits of the lowest number of these files. It stays like a hint.

use super::Inode;
use crate::clock::Timestamp;
use crate::format::checksum;
use crate::format::superblock::Policy;
use crate::units::{InodeNo, Key};

/// Files that are made, or read, within this many seconds have one key by time.
const TIME_SECONDS: i64 = 60;
/// The first 16 bits of the key of a policy.
const POLICY_TAG: u64 = 0b11 << 14 | 0x2C0F;
/// The number of bits for the owner, minute or process.
const COMMON_BITS: u32 = 40;
/// Stands for the policy in learned keys.
const LEARNED: u64 = 0xff;

/// The policy that gave a key; `None` for directories, hints and learned keys.
pub fn policy_of(key: Key) -> Option<Policy> {
    let policy = Policy::from_byte((key.0 >> COMMON_BITS) as u8);
    policy.filter(|_| key.0 >> 48 == POLICY_TAG)
}

/// The key that a hint names. 0 stands for none, and small numbers for directories, so the top bit
/// is set.
pub fn hint_key(value: &[u8]) -> Key {
    let high = u64::from(checksum::contents(0, value)) << 32;
    let low = u64::from(checksum::contents(0x9e37_79b9, value));
    let key = high | low | 1 << 63;
    // The next bit distinguishes it from the key of a policy.
    Key(if key >> 48 == POLICY_TAG { key & !(1 << 62) } else { key })
}

/// Whether a hint gave this key.
pub fn is_hint(key: Key) -> bool {
    key.is_own() && key.0 >> 48 != POLICY_TAG
}

/// Whether a key says that files are read together.
pub fn is_learned(key: Key) -> bool {
    key.0 >> COMMON_BITS == POLICY_TAG << 8 | LEARNED
}

/// The learned key of files that are read together.
pub fn learned_key(files: &[InodeNo]) -> Option<Key> {
    let lowest = files.iter().min()?.0 & ((1 << COMMON_BITS) - 1);
    Some(Key((POLICY_TAG << 8 | LEARNED) << COMMON_BITS | lowest))
}

/// The key of all files that have this in common, by a policy.
fn common_key(policy: Policy, what: i64) -> Key {
    let what = what as u64 & ((1 << COMMON_BITS) - 1);
    Key(POLICY_TAG << 48 | (policy as u64) << COMMON_BITS | what)
}

/// The key that a policy gives a file without a hint. `process` made the file; 0 if that is unknown.
/// Directories have a place of their own.
pub fn policy_key(policy: Policy, inode: &Inode, process: u32) -> Option<Key> {
    let key = |what| Some(common_key(policy, what));
    let minute = |time: Timestamp| key(time.seconds.div_euclid(TIME_SECONDS));
    match policy {
        _ if inode.is_dir() => None,
        Policy::Owner => key(inode.uid.into()),
        Policy::Time => minute(inode.btime),
        Policy::Access => minute(inode.atime),
        Policy::Process if process > 0 => key(process.into()),
        _ => None,
    }
}

/// The key of a file by the present policy: hints and learned keys stay, and the key of another policy does
/// not. The process that made a file is known only by its key.
pub fn present(policy: Policy, inode: &Inode) -> Option<Key> {
    match inode.key {
        Some(key) if policy_of(key).is_none() || policy == Policy::Process => {
            inode.key.filter(|_| policy_of(key).is_none_or(|of| of == policy))
        }
        _ => policy_key(policy, inode, 0),
    }
}

/// Follows the time of the last access, if that is the policy. For each change of that time.
pub fn follow_access(policy: Policy, inode: &mut Inode) {
    if policy == Policy::Access {
        inode.key = present(policy, inode);
    }
}

/// Gives a file to another owner, and, if its key is its owner, the key of the new one.
pub fn give_to(inode: &mut Inode, owner: u32) {
    inode.uid = owner;
    if inode.key.is_some_and(|key| policy_of(key) == Some(Policy::Owner)) {
        inode.key = policy_key(Policy::Owner, inode, 0);
    }
}

#[cfg(test)]
mod tests;
