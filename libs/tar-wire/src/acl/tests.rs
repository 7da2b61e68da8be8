use super::*;

fn known(named: Named<'_>) -> Option<u32> {
    match named {
        Named::User("bin") => Some(2),
        Named::Group("adm") => Some(4),
        _ => None,
    }
}

#[test]
fn all_notations_are_accepted() {
    let expected = "user::rw-,user:2:r--,group::---,group:4:-w-,group:10:r-x,mask::rw-,other::r--";
    let texts = [
        // GNU tar.
        "user::rw-\nuser:bin:r--\ngroup::---\ngroup:adm:-w-\ngroup:10:r-x\nmask::rw-\nother::r--\n",
        // bsdtar and star: names of another machine, and numbers.
        "user::rw-,group::---,other::r--,user:who:r--:2,group:adm:-w-:4,group:x:r-x:10,mask::rw-",
        "default:user::rw-,default:user:2:r--,d:group::---",
        "u::rw,u:2:r,g::,g:4:w,g:10:rx,m:rw,o:r\0",
        "user::rw-  # the owner\n user:2:r--\t#effective:r--\n\ngroup::---\ngroup:4:-w-\ngroup:10:r-x\nmask::rw-\nother::r--",
    ];
    for text in texts {
        match (Acl::from_text(text.as_bytes(), known), text.contains("d:group")) {
            (Ok(acl), false) => assert_eq!(acl.to_text().as_deref(), Some(expected), "{text}"),
            (Err(Malformed(entry)), true) => assert_eq!(entry, "d:group::---"),
            (other, _) => panic!("{text}: {other:?}"),
        }
    }
}

#[test]
fn bytes_and_text_are_equivalent() {
    let text = "user::rwx,user:1000:r-x,group::r-x,mask::rwx,other::---";
    let acl = Acl::from_text(text.as_bytes(), known).expect("an ACL");
    let bytes = acl.to_bytes();
    assert_eq!(bytes.len(), 4 + 5 * 8);
    assert_eq!(Acl::from_bytes(&bytes), Some(acl.clone()));
    assert_eq!(acl.to_text().as_deref(), Some(text));
    assert_eq!(Acl::from_bytes(&bytes[1..]), None);
    assert_eq!(Acl::from_bytes(b"\x01\0\0\0"), None);
}

#[test]
fn missing_entries_are_added_or_reported() {
    let acl = Acl::from_text(b"user::rw-,user:3:r--,user:nobody:rwx,group::-w-,other::---", known);
    let acl = acl.expect("an ACL");
    assert_eq!(acl.unknown, ["user:nobody:rwx"]);
    let text = acl.to_text();
    assert_eq!(text.as_deref(), Some("user::rw-,user:3:r--,group::-w-,mask::rw-,other::---"));
    for wrong in ["user", "user:1", "user::rwz", "user:1:r:x", "other:1:r", "mask:1:r", "a:b:c:d:e"]
    {
        assert_eq!(Acl::from_text(wrong.as_bytes(), known), Err(Malformed(wrong.to_owned())));
    }
}

/// Regression: with an ACL, the group bits of a mode are the mask. A copy without the ACL granted them to the
/// owning group.
#[test]
fn a_mode_without_its_acl_grants_the_group_no_more() {
    let acl = Acl::from_text(b"user::rw-,user:1:rw-,group::r--,mask::rw-,other::---", known);
    assert_eq!(acl.expect("an ACL").mode_without(0o4660), 0o4640);
    let acl = Acl::from_text(b"user::rw-,user:1:r--,group::rwx,mask::r--,other::---", known);
    assert_eq!(acl.expect("an ACL").mode_without(0o640), 0o640);
}

/// bsdtar writes the permissions of the owning group into the mode, not the mask.
#[test]
fn the_mode_of_a_file_has_the_mask_of_its_acl() {
    let acl = |text: &str| Acl::from_text(text.as_bytes(), known).expect("an ACL");
    let named = acl("user::rw-,user:2:rwx,group::rwx,mask::---,other::r--");
    assert_eq!(named.mode_with(0o4677), 0o4604);
    assert_eq!(acl("user::rwx,group::r-x,other::---").mode_with(0o1000), 0o1750);
    assert_eq!(Acl::default().mode_with(0o640), 0o640);
}

#[test]
fn a_mode_changes_an_acl_as_chmod_does() {
    let cases = [
        (
            "user::rw-,user:1:rw-,group::r--,mask::rw-,other::r--",
            "user::rwx,user:1:rw-,group::r--,mask::r-x,other::--x",
        ),
        ("user::rw-,group::rw-,other::r--", "user::rwx,group::r-x,other::--x"),
    ];
    for (before, after) in cases {
        let mut acl = Acl::from_text(before.as_bytes(), known).expect("an ACL");
        acl.set_mode(0o100_751);
        assert_eq!(acl.to_text().as_deref(), Some(after));
        assert_eq!(acl.mode_with(0), 0o751);
    }
}
