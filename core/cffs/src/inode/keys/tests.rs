//! Keys of hints and of policies are told apart.

use super::*;
use crate::format::inode::FileType;
use crate::units::InodeNo;

const POLICIES: [Policy; 4] = [Policy::Owner, Policy::Time, Policy::Process, Policy::Access];

fn file(uid: u32, seconds: i64) -> Inode {
    let now = Timestamp { seconds, nanoseconds: 0 };
    let mut inode = Inode::new(InodeNo(99), 1, FileType::Regular, InodeNo::ROOT, now);
    inode.uid = uid;
    inode
}

#[test]
fn a_key_names_its_policy() {
    for policy in POLICIES {
        for (number, seconds) in [(1, 0), (u32::MAX, -1), (7, i64::MIN), (9, i64::MAX)] {
            let key = policy_key(policy, &file(number, seconds), number).expect("a key");
            assert!(key.is_own());
            assert_eq!(policy_of(key), Some(policy), "{number} {seconds}");
        }
    }
    assert_eq!(policy_of(Key(InodeNo::ROOT.0)), None);
    for number in 0..1_000_000u32 {
        let key = hint_key(&number.to_le_bytes());
        assert!(key.is_own() && key.0 >> 48 != POLICY_TAG, "{number}");
        assert_eq!(policy_of(key), None, "{number}");
    }
}

#[test]
fn what_files_have_in_common_decides() {
    let owner = |uid| policy_key(Policy::Owner, &file(uid, 0), 0);
    assert_ne!(owner(1), owner(2));
    let minute = |seconds| policy_key(Policy::Time, &file(0, seconds), 0);
    assert_eq!(minute(60), minute(119));
    assert_ne!(minute(60), minute(120));
    assert_ne!(minute(60), policy_key(Policy::Owner, &file(1, 0), 0));
    assert_eq!(policy_key(Policy::Process, &file(0, 0), 0), None);
    assert_eq!(policy_key(Policy::Directory, &file(0, 0), 1), None);
}

#[test]
fn another_policy_replaces_only_keys_of_policies() {
    let with = |key| Inode { key, ..file(1000, 60) };
    let [owner, time, process, access] =
        POLICIES.map(|policy| policy_key(policy, &file(1000, 60), 55));
    let hint = Some(hint_key(b"a hint"));
    for key in [None, owner, time, process, access] {
        assert_eq!(present(Policy::Owner, &with(key)), owner);
        assert_eq!(present(Policy::Time, &with(key)), time);
        assert_eq!(present(Policy::Access, &with(key)), access);
        assert_eq!(present(Policy::Directory, &with(key)), None);
        assert_eq!(present(Policy::Process, &with(key)), process.filter(|_| key == process));
    }
    for policy in Policy::ALL {
        assert_eq!(present(policy, &with(hint)), hint);
    }
}

#[test]
fn a_file_with_an_owners_key_gets_the_key_of_its_new_owner() {
    let given = |key| {
        let mut inode = Inode { key, ..file(1000, 60) };
        give_to(&mut inode, 1001);
        (inode.uid, inode.key)
    };
    let owner = |uid| policy_key(Policy::Owner, &file(uid, 0), 0);
    let (hint, minute) = (Some(hint_key(b"a hint")), policy_key(Policy::Time, &file(0, 0), 0));
    assert_eq!(given(owner(1000)), (1001, owner(1001)));
    for other in [None, hint, minute] {
        assert_eq!(given(other), (1001, other));
    }
}

#[test]
fn a_learned_key_stays_whatever_the_policy_and_is_no_hint() {
    let files = [InodeNo(70), InodeNo(7), InodeNo(77)];
    let key = learned_key(&files);
    assert_eq!(key, learned_key(&files[1..]));
    assert_ne!(key, learned_key(&files[..1]));
    for policy in Policy::ALL {
        assert_eq!(present(policy, &Inode { key, ..file(1000, 60) }), key);
    }
    let key = key.expect("there are files");
    assert!(key.is_own() && is_learned(key) && !is_hint(key));
    assert_eq!(policy_of(key), None);
    assert!(is_hint(hint_key(b"a hint")) && !is_learned(hint_key(b"a hint")));
    assert!(!is_hint(Key(InodeNo::ROOT.0)) && !is_learned(Key(InodeNo::ROOT.0)));
}
