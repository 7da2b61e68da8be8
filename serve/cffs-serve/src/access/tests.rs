use cffs::clock::Timestamp;
use cffs::format::inode::InodeFlags;
use cffs::units::InodeNo;

use super::*;

fn file(permissions: u32) -> Attr {
    let time = Timestamp::default();
    Attr {
        ino: InodeNo(100),
        generation: 1,
        file_type: FileType::Regular,
        permissions,
        nlink: 1,
        uid: 10,
        gid: 20,
        device: 0,
        size: 0,
        allocated_bytes: 0,
        atime: time,
        mtime: time,
        ctime: time,
        btime: time,
        change: 0,
        flags: InodeFlags::default(),
    }
}

fn user(uid: u32, gid: u32, groups: &[u32]) -> User {
    User::new(uid, gid, groups.to_vec())
}

fn acl(entries: &[(u16, u16, u32)]) -> Vec<u8> {
    let mut bytes = 2u32.to_le_bytes().to_vec();
    for (tag, permissions, id) in entries {
        bytes.extend_from_slice(&tag.to_le_bytes());
        bytes.extend_from_slice(&permissions.to_le_bytes());
        bytes.extend_from_slice(&id.to_le_bytes());
    }
    bytes
}

#[test]
fn the_first_matching_class_decides() {
    let file = file(0o074);
    assert!(!user(10, 20, &[]).may(&file, None, READ), "the owner has nothing, the group all");
    assert!(user(11, 20, &[]).may(&file, None, READ | WRITE | EXECUTE));
    assert!(user(11, 1, &[5, 20]).may(&file, None, WRITE), "by a supplementary group");
    assert!(user(11, 1, &[]).may(&file, None, READ));
    assert!(!user(11, 1, &[]).may(&file, None, READ | WRITE));
}

#[test]
fn root_executes_only_files_with_an_execute_bit() {
    let root = user(0, 0, &[]);
    assert!(root.may(&file(0), None, READ | WRITE));
    assert!(!root.may(&file(0o666), None, EXECUTE));
    assert!(root.may(&file(0o001), None, EXECUTE));
    let dir = Attr { file_type: FileType::Directory, ..file(0) };
    assert!(root.may(&dir, None, EXECUTE));
}

#[test]
fn an_acl_names_users_and_groups_within_its_mask() {
    let list = acl(&[
        (USER_OBJ, 7, 0),
        (USER, 7, 11),
        (GROUP_OBJ, 4, 0),
        (GROUP, 2, 30),
        (MASK, 6, 0),
        (OTHER, 7, 0),
    ]);
    let (file, list) = (file(0o767), Some(&list[..]));
    assert!(user(11, 1, &[]).may(&file, list, READ | WRITE));
    assert!(!user(11, 1, &[]).may(&file, list, EXECUTE), "the mask takes it");
    assert!(user(12, 20, &[]).may(&file, list, READ));
    assert!(user(12, 20, &[30]).may(&file, list, WRITE));
    assert!(!user(12, 20, &[30]).may(&file, list, READ | WRITE), "no entry has both");
    assert!(!user(12, 20, &[]).may(&file, list, EXECUTE), "a member is not one of the others");
    assert!(user(12, 1, &[]).may(&file, list, EXECUTE), "the mask is not for others");
}

#[test]
fn an_invalid_acl_grants_nothing() {
    for bad in [&b""[..], b"\x02\0\0\0short", &acl(&[(0x40, 7, 0)])] {
        assert!(!user(11, 1, &[]).may(&file(0o777), Some(bad), READ));
    }
}

#[test]
fn the_sticky_bit_protects_the_names_of_others() {
    let dir = Attr { file_type: FileType::Directory, uid: 1, ..file(0o1777) };
    let file = file(0o666);
    assert!(user(10, 1, &[]).may_take()(&file, Some(&dir)));
    assert!(user(1, 1, &[]).may_take()(&file, Some(&dir)));
    assert!(user(0, 0, &[]).may_take()(&file, Some(&dir)));
    assert!(!user(11, 20, &[]).may_take()(&file, Some(&dir)));
    let free = Attr { permissions: 0o777, ..dir };
    assert!(user(11, 20, &[]).may_take()(&file, Some(&free)));
}

#[test]
fn each_privilege_grants_what_the_capability_of_its_name_does() {
    let file = file(0);
    let dir = Attr { file_type: FileType::Directory, ..file };
    let with = |privileges| User { privileges, ..user(11, 1, &[]) };
    let none = Privileges::default();
    let overriding = with(Privileges { dac_override: true, ..none });
    assert!(overriding.may(&file, None, READ | WRITE));
    assert!(!overriding.may(&file, None, EXECUTE));
    assert!(overriding.may(&dir, None, READ | WRITE | EXECUTE));
    assert!(!overriding.owns(&file));
    let reading = with(Privileges { dac_read_search: true, ..none });
    assert!(reading.may(&file, None, READ) && reading.may(&dir, None, READ | EXECUTE));
    assert!(!reading.may(&file, None, WRITE) && !reading.may(&dir, None, WRITE));
    assert!(!reading.may(&file, None, READ | EXECUTE));
    let owning = with(Privileges { fowner: true, ..none });
    assert!(owning.owns(&file) && !owning.may(&file, None, READ));
}

#[test]
fn a_root_without_capabilities_has_no_privileges() {
    let root = User { privileges: Privileges::default(), ..user(0, 0, &[]) };
    assert!(!root.may(&file(0o770), None, READ));
    assert!(root.may(&file(0o004), None, READ), "as one of the others");
    assert!(!root.owns(&file(0)) && !root.is_root());
    let sticky = Attr { file_type: FileType::Directory, ..file(0o1777) };
    assert!(!root.may_take()(&file(0), Some(&sticky)));
}
