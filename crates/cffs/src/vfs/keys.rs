//! By which key a file is placed: the files of one key lie together (decision 005).
//!
//! A file without a key lies with its directory. A hint, which is an extended attribute, wins over the
//! policy of the volume. The key of an inode counts when its contents are next placed; nothing moves when
//! it changes.

use crate::format::checksum;
use crate::format::superblock::Policy;
use crate::inode::Inode;
use crate::units::Key;

/// How long files are made that lie together by time, in seconds.
const TIME_SECONDS: i64 = 60;

/// The key that a hint names. 0 stands for none, and small numbers for directories, so the top bit
/// is set.
pub(super) fn hint_key(value: &[u8]) -> Key {
    let high = u64::from(checksum::contents(0, value)) << 32;
    let low = u64::from(checksum::contents(0x9e37_79b9, value));
    Key(high | low | 1 << 63)
}

/// The key of all files that have this in common, by a policy. No attribute has a zero byte in front.
fn common_key(policy: Policy, what: i64) -> Key {
    let mut bytes = [0; 10];
    bytes[1] = policy as u8;
    bytes[2..].copy_from_slice(&what.to_le_bytes());
    hint_key(&bytes)
}

/// The key that the policy of a volume gives a file without a hint. `process` made it; 0 if that is not
/// known. Directories have a place of their own.
pub(super) fn policy_key(policy: Policy, inode: &Inode, process: u32) -> Option<Key> {
    let key = |what| Some(common_key(policy, what));
    match policy {
        _ if inode.is_dir() => None,
        Policy::Owner => key(inode.uid.into()),
        Policy::Time => key(inode.btime.seconds.div_euclid(TIME_SECONDS)),
        Policy::Process if process > 0 => key(process.into()),
        _ => None,
    }
}

/// Gives a file to another owner. If it lies with the files of its owner, it will lie with those of the new.
pub(super) fn give_to(policy: Policy, inode: &mut Inode, owner: u32) {
    let before = policy_key(policy, inode, 0);
    inode.uid = owner;
    if before.is_some() && inode.key == before {
        inode.key = policy_key(policy, inode, 0);
    }
}
