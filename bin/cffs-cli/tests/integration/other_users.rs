//! Commands of users on a volume that another user has mounted. They need root, which mounts; otherwise the
//! tests print that and pass.

use std::fs;
use std::os::unix::fs::PermissionsExt;

use crate::harness::nfs::{ANY_PORT, started};
use crate::harness::{Scratch, can_mount, fail, succeed};

/// A volume that root has mounted for all users.
fn mounted() -> Option<Scratch> {
    if !can_mount() || !rustix::process::geteuid().is_root() {
        return None;
    }
    let scratch = Scratch::with_image();
    scratch.mount("allow_other");
    Some(scratch)
}

/// Regression: the listing ended there.
#[test]
fn a_listing_continues_after_a_directory_that_the_user_may_not_read() {
    let Some(scratch) = mounted() else { return };
    let dir = scratch.mountpoint();
    for (name, mode) in [("1", 0o755), ("2", 0o700), ("3", 0o700), ("4", 0o755)] {
        fs::create_dir(dir.join(name)).expect("made");
        fs::write(dir.join(name).join("file"), "contents").expect("written");
        fs::set_permissions(dir.join(name), PermissionsExt::from_mode(mode)).expect("set");
    }
    let output = scratch.cffs_by_nobody(["ls", "-R"]).arg(&dir).output().expect("it starts");
    assert_eq!(output.status.code(), Some(1));
    let listed = String::from_utf8_lossy(&output.stdout);
    assert_eq!(listed, "/\n/1\n/1/file\n/2\n/3\n/4\n/4/file\n");
    let said = String::from_utf8_lossy(&output.stderr);
    let lines: Vec<&str> = said.lines().collect();
    assert!(lines.len() == 2 && lines.iter().all(|line| line.contains("denied")), "{said}");
    assert!(lines[0].starts_with("cffs ls: /2: ") && lines[1].contains("/3: "), "{said}");

    // Regression: the message named "/". The directory may be listed, but not what is in it.
    fs::set_permissions(dir.join("2"), PermissionsExt::from_mode(0o744)).expect("set");
    let said = fail(1, scratch.cffs_by_nobody(["ls", "-R"]).arg(dir.join("2")));
    let named = format!("cffs ls: {}: ", dir.join("2").display());
    assert!(said.starts_with(&named) && said.contains("denied"), "{said}");
    fs::set_permissions(dir.join("2"), PermissionsExt::from_mode(0o700)).expect("set");

    // Likewise with several paths.
    let mut several = scratch.cffs_by_nobody(["ls"]);
    let output = several.arg(&dir).args(["/missing", "/2", "/4"]).output().expect("it starts");
    assert_eq!((output.status.code(), &output.stdout[..]), (Some(1), &b"file\n"[..]));
    scratch.umount();
    scratch.assert_clean();
}

/// Regression: the message was that of fusermount3, which looks for the mount in /etc/mtab.
#[test]
fn only_the_owner_of_a_mount_and_root_may_unmount_it() {
    let Some(scratch) = mounted() else { return };
    for options in [&["umount"][..], &["umount", "-l"]] {
        let mut command = scratch.cffs_by_nobody([]);
        let said = fail(1, command.args(options).arg(scratch.mountpoint()));
        assert!(said.contains("root has mounted") && said.contains("only root may"), "{said}");
        assert!(!said.contains("mtab"), "{said}");
    }
    scratch.umount();
    succeed(scratch.cffs(["ls"]).arg(scratch.image()));
}

/// Regression: the message said that the image is not served.
#[test]
fn commands_about_a_served_image_that_the_user_may_not_read_say_so() {
    if !rustix::process::geteuid().is_root() {
        return;
    }
    let scratch = Scratch::with_image();
    fs::set_permissions(scratch.image(), PermissionsExt::from_mode(0o600)).expect("set");
    let port = started(
        scratch
            .cffs(["serve", "--nfs", ANY_PORT, "--export", "/:no_root_squash,insecure"])
            .arg("-o")
            .arg(scratch.log_option())
            .arg(scratch.image()),
    );
    assert!(port > 0);
    for arguments in [&["stats"][..], &["sync"], &["serve", "--exports"]] {
        let mut command = scratch.cffs_by_nobody([]);
        let said = fail(1, command.args(arguments).arg(scratch.image()));
        assert!(said.contains("run this as its owner or as root"), "{said}");
    }
    succeed(scratch.cffs(["serve", "--stop"]).arg(scratch.image()));
}

/// Regression: the message named the source.
#[test]
fn an_import_to_where_the_user_may_not_write_names_the_target() {
    let Some(scratch) = mounted() else { return };
    let (dir, tree) = (scratch.mountpoint(), scratch.path().join("tree"));
    fs::create_dir(dir.join("closed")).expect("made");
    fs::create_dir(&tree).expect("made");
    fs::write(tree.join("file"), "contents").expect("written");
    fs::set_permissions(&tree, PermissionsExt::from_mode(0o755)).expect("set");
    for (source, target, named) in [
        (tree.join("file"), "/closed", "/closed"),
        (tree.join("file"), "/closed/copy", "/closed/copy"),
        (tree.clone(), "/closed", "/closed/file"),
        (tree.clone(), "/closed/copy", "/closed/copy"),
    ] {
        let mut import = scratch.cffs_by_nobody(["import"]);
        let said = fail(1, import.arg(&dir).arg(source).arg(target));
        assert!(said.contains(&format!(": {named}: permission denied\n")), "{said}");
    }
    scratch.umount();
}
