//! Rights that change during a removal.

use cffs::vfs::types::XattrMode;

use super::*;
use crate::access;

/// Removes a tree, and makes a change after the tree was entered.
fn removed_after(user: &User, change: impl Fn(&Volume, InodeNo)) -> (Removed, Vec<String>) {
    let volume = volume();
    let [tree, ..] = tree(&volume);
    root_of_user(&volume);
    set_acl(&volume, tree, 7);
    let watch = |step| {
        if step == 1 {
            change(&volume, tree);
        }
    };
    remove_while(&volume, &NoObserver, user, "tree", watch)
}

fn set_mode(volume: &Volume, dir: InodeNo, permissions: u32) {
    let changes = SetAttr { permissions: Some(permissions), ..SetAttr::default() };
    volume.set_attr(ME, dir, &changes).expect("set");
}

/// Gives these permissions to the user after [`user_id`].
fn set_acl(volume: &Volume, dir: InodeNo, permissions: u8) {
    let mut acl = b"\x02\0\0\0".to_vec();
    let undefined = u32::MAX;
    let entries = [
        (1, 7, undefined),
        (2, permissions, user_id() + 1),
        (4, 5, undefined),
        (0x10, 7, undefined),
    ];
    for (tag, permissions, id) in entries.into_iter().chain([(0x20, 5, undefined)]) {
        acl.extend([tag, 0, permissions, 0]);
        acl.extend(id.to_le_bytes());
    }
    volume.set_xattr(ME, dir, access::ACL, &acl, XattrMode::Any).expect("set");
}

#[test]
fn a_change_of_rights_is_obeyed_by_entering_and_listing() {
    let nothing = Removed::default();
    let denied = |names: &[&str]| {
        names.iter().map(|name| format!("{name}: permission denied")).collect::<Vec<_>>()
    };
    let below = denied(&["tree/a", "tree/b"]);
    let done = removed_after(&user(), |volume, tree| set_mode(volume, tree, 0o600));
    assert_eq!(done, (nothing, below.clone()), "search");
    let done = removed_after(&user(), |volume, tree| set_mode(volume, tree, 0o300));
    assert_eq!(done, (nothing, denied(&["tree"])), "read");
    let other = User::new(user_id() + 1, user_id() + 1, Vec::new());
    let done = removed_after(&other, |volume, tree| set_acl(volume, tree, 6));
    assert_eq!(done, (nothing, below), "search by the ACL");
    let done = removed_after(&other, |volume, tree| set_acl(volume, tree, 3));
    assert_eq!(done, (nothing, denied(&["tree"])), "read by the ACL");
}
