use cffs::vfs::types::NewFile;
use tar::{Builder, EntryType, Header};
use tar_wire::acl::Acl;

use super::super::create;
use super::*;
use crate::mirror::tests::{deep, volume};

/// The most lookups per directory and its file.
const LOOKUPS_MAX: u64 = 6;

/// An archive of a chain of directories, each with a file.
fn deep_archive(depth: usize) -> Vec<u8> {
    let mut bytes = Vec::new();
    let options = create::Options { xattrs: false, holes: false };
    assert_eq!(create::archive(&deep(depth), b"/", options, &mut bytes).expect("written"), 0);
    bytes
}

/// Each entry was looked up by its whole path, which took time quadratic in the depth.
#[test]
fn the_work_for_an_entry_does_not_depend_on_its_depth() {
    for depth in [100, 400] {
        let (bytes, target) = (deep_archive(depth), volume());
        let options = Options { owner: false, xattrs: false, umask: 0, incremental: false };
        let before = target.volume().stats().lookups;
        let missing = archive(&target.root(), b"/", &options, &bytes[..]).expect("extracted");
        assert_eq!(missing, 0);
        let lookups = target.volume().stats().lookups - before;
        assert!(lookups <= LOOKUPS_MAX * depth as u64, "{lookups} lookups at a depth of {depth}");
    }
}

/// An archive of one entry, of a kind that has no contents.
fn archive_of(kind: EntryType, name: &str, target: &str) -> Vec<u8> {
    let mut builder = Builder::new(Vec::new());
    let mut header = Header::new_gnu();
    header.set_entry_type(kind);
    header.set_size(0);
    header.set_path(name).expect("short");
    if !target.is_empty() {
        header.set_link_name(target).expect("short");
    }
    header.set_cksum();
    builder.append(&header, std::io::empty()).expect("written");
    builder.into_inner().expect("written")
}

/// Regression: the lookup of a link's target created missing directories of the target's path.
#[test]
fn an_entry_that_cannot_be_extracted_leaves_no_directory_behind() {
    for (kind, name, target) in [
        (EntryType::Link, "link", "missing/directory/file"),
        (EntryType::Link, "new/link", "missing"),
        (EntryType::Link, "new/link", ""),
        (EntryType::Symlink, "new/link", ""),
        (EntryType::new(b'Z'), "new/unknown", ""),
    ] {
        let (bytes, volume) = (archive_of(kind, name, target), volume());
        let options = Options { owner: false, xattrs: false, umask: 0, incremental: false };
        let missing = archive(&volume.root(), b"/", &options, &bytes[..]).expect("read to its end");
        assert_eq!(missing, 1, "{name}");
        let left = volume.read_dir("/").expect("read");
        assert!(left.is_empty(), "{name} to '{target}' left {left:?}");
    }
}

/// Regression: an ACL that was set after the mode gave back the rights that the umask takes away, if it takes
/// all of the group and of others.
#[test]
fn an_umask_applies_to_files_with_acls() {
    let access = rights::XATTRS[0];
    let acl = "user::rwx,user:1:rw-,group::r--,mask::rwx,other::r-x";
    let acl = Acl::from_text(acl.as_bytes(), |_| None).expect("an ACL");
    let source = volume();
    for (name, kind) in [(&b"file"[..], NewKind::Regular), (b"dir", NewKind::Directory)] {
        let new = NewFile { kind, permissions: 0o775, uid: 7, gid: 7, times: None };
        let node = source.root().make(name, &new).expect("made");
        for acl_name in rights::XATTRS {
            if acl_name == access || kind == NewKind::Directory {
                node.set_xattr(acl_name, &acl.to_bytes()).expect("set");
            }
        }
    }
    let mut bytes = Vec::new();
    let options = create::Options { xattrs: true, holes: false };
    assert_eq!(create::archive(&source, b"/", options, &mut bytes).expect("written"), 0);
    for (umask, mode) in [(0, 0o775), (0o022, 0o755), (0o027, 0o750), (0o077, 0o700)] {
        let target = volume();
        let options = Options { owner: false, xattrs: true, umask, incremental: false };
        let missing = archive(&target.root(), b"/", &options, &bytes[..]).expect("extracted");
        assert_eq!(missing, 0);
        for name in ["/file", "/dir"] {
            let attr = target.stat(name).expect("made");
            assert_eq!(attr.permissions, mode, "{name} with {umask:03o}");
            let set = target.volume().xattr(attr.ino, access).expect("set");
            let set = Acl::from_bytes(&set).and_then(|acl| acl.to_text()).expect("an ACL");
            assert!(set.starts_with("user::rwx,user:1:rw-,group::r--,mask::"), "{set}");
        }
    }
}

/// Regression: everything below a directory that GNU tar would rename was removed.
#[test]
fn an_archive_that_renames_directories_removes_nothing() {
    let target = volume();
    target.make_dir_all("/x/old").expect("made");
    target.write("/x/old/file", b"kept").expect("written");
    let mut builder = Builder::new(Vec::new());
    for (name, list) in [("./", &b"Rx/old\0Tx/new\0Dx\0\0"[..]), ("./x/", b"Dnew\0\0")] {
        let mut header = Header::new_gnu();
        header.set_entry_type(EntryType::new(b'D'));
        header.set_size(list.len() as u64);
        header.set_mode(0o755);
        header.set_path(name).expect("short");
        header.set_cksum();
        builder.append(&header, list).expect("written");
    }
    let bytes = builder.into_inner().expect("written");
    let options = Options { owner: false, xattrs: false, umask: 0, incremental: true };
    let error = archive(&target.root(), b"/", &options, &bytes[..]).expect_err("refused");
    assert!(error.is::<changed::Renames>(), "{error:#}");
    assert_eq!(target.read("/x/old/file").expect("kept"), b"kept");
}
