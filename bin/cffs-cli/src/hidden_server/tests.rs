use super::*;

#[test]
fn servers_are_recognised_by_their_arguments() {
    assert_eq!(kind(b"/usr/bin/cffs\0mount\0image\0dir\0"), Some(Kind::Mounts));
    assert_eq!(kind(b"/sbin/mount.fuse.cffs\0image\0dir\0-o\0rw\0"), Some(Kind::Mounts));
    assert_eq!(kind(b"cffs\0serve\0--nfs\0localhost:2049\0image\0"), Some(Kind::Serves));
    assert_eq!(kind(b"cffs\0import\0image\0tree\0"), None);
    assert_eq!(kind(b"cffs\0"), None);
    assert_eq!(kind(b""), None);
}
