//! `cffs rm`: a program that is attached to the server of a mounted volume.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;

use rustix::fs::{IFlags, XattrFlags, ioctl_setflags};

use crate::harness::{Scratch, can_mount, succeed};

const OWNER: u32 = 1000;
const MEMBER: u32 = 1001;
const STRANGER: u32 = 1002;
const GROUP: u32 = 2000;

/// An ACL that gives `STRANGER` all permissions and the group none.
const ACL: &[u8] = b"\x02\0\0\0\
    \x01\0\x07\0\xff\xff\xff\xff\x02\0\x07\0\xea\x03\0\0\x04\0\0\0\xff\xff\xff\xff\
    \x10\0\x07\0\xff\xff\xff\xff\x20\0\0\0\xff\xff\xff\xff";

fn is_root_with_mounts() -> bool {
    can_mount() && rustix::process::geteuid().is_root()
}

fn set_mode(path: &Path, mode: u32) {
    fs::set_permissions(path, PermissionsExt::from_mode(mode)).expect("set");
}

/// Makes a tree of `OWNER` with directories of all modes, in which others own some files.
fn fill(tree: &Path) {
    let own = |path: &Path, uid| chown(path, Some(uid), Some(GROUP)).expect("given away");
    let dir = |path: &Path, uid| {
        fs::create_dir(path).expect("made");
        own(path, uid);
    };
    let file = |path: PathBuf, uid| {
        fs::write(&path, "contents").expect("written");
        own(&path, uid);
    };
    dir(tree, OWNER);
    let modes =
        [0o755, 0o700, 0o775, 0o777, 0o1777, 0o1775, 0o555, 0o333, 0o444, 0o711, 0o000, 0o2770];
    for (number, mode) in modes.into_iter().enumerate() {
        for uid in [0, OWNER] {
            let at = tree.join(format!("{number}-{uid}"));
            dir(&at, uid);
            for owner in [0, OWNER, STRANGER] {
                file(at.join(format!("file of {owner}")), owner);
                dir(&at.join(format!("empty of {owner}")), owner);
            }
            dir(&at.join("below"), OWNER);
            file(at.join("below/file"), MEMBER);
            symlink("/", at.join("link")).expect("linked");
            set_mode(&at, mode);
            let empty = tree.join(format!("{number}-{uid}-empty"));
            dir(&empty, uid);
            set_mode(&empty, mode);
        }
    }
    let listed = tree.join("with an ACL");
    dir(&listed, OWNER);
    file(listed.join("file"), OWNER);
    rustix::fs::setxattr(&listed, "system.posix_acl_access", ACL, XattrFlags::empty())
        .expect("set");
    for (name, flag) in [("immutable", IFlags::IMMUTABLE), ("append", IFlags::APPEND)] {
        let at = tree.join(name);
        dir(&at, OWNER);
        file(at.join("in"), OWNER);
        file(at.join("flagged"), OWNER);
        for path in [at.join("flagged"), at] {
            ioctl_setflags(File::open(path).expect("opened"), flag).expect("set");
        }
    }
    set_mode(tree, 0o775);
}

/// The paths below a directory, with the modes and owners.
fn left(top: &Path) -> BTreeSet<(PathBuf, u32, u32)> {
    let (mut all, mut pending) = (BTreeSet::new(), vec![top.to_owned()]);
    while let Some(path) = pending.pop() {
        let Ok(data) = fs::symlink_metadata(&path) else { continue };
        if data.is_dir() {
            pending.extend(fs::read_dir(&path).expect("listed").map(|entry| entry.unwrap().path()));
        }
        let name = path.strip_prefix(top).expect("below it").to_owned();
        all.insert((name, data.mode(), data.uid()));
    }
    all
}

/// Removes a tree that only root can remove, with flags.
fn clear(top: &Path) {
    for (name, mode, _) in left(top) {
        if mode & 0o170_000 != 0o120_000 && mode & 0o170_000 != 0 {
            let file = File::open(top.join(name)).expect("opened");
            ioctl_setflags(file, IFlags::empty()).expect("set");
        }
    }
    if top.exists() {
        fs::remove_dir_all(top).expect("removed");
    }
}

#[test]
fn rm_as_each_user_equals_rm() {
    if !is_root_with_mounts() {
        return;
    }
    let scratch = Scratch::with_image();
    scratch.mount("allow_other");
    // Installs the program where all users can execute it.
    drop(scratch.cffs_by_nobody([]));
    let program = scratch.path().join("cffs");
    let base = scratch.mountpoint().join("base");
    fs::create_dir(&base).expect("made");
    let group = GROUP.to_string();
    let users: [(&str, &[&str]); 7] = [
        ("root", &["--reuid=0"]),
        ("root without capabilities", &["--reuid=0", "--clear-groups", "--bounding-set=-all"]),
        ("the owner", &["--reuid=1000", "--regid=1000", "--clear-groups"]),
        ("a member", &["--reuid=1001", "--regid=1001", "--groups", &group]),
        ("a stranger", &["--reuid=1002", "--regid=1002", "--clear-groups"]),
        (
            "a stranger who may read all",
            &[
                "--reuid=1002",
                "--clear-groups",
                "--inh-caps=+dac_read_search",
                "--ambient-caps=+dac_read_search",
            ],
        ),
        (
            "a stranger with the rights of owners",
            &["--reuid=1002", "--clear-groups", "--inh-caps=+fowner", "--ambient-caps=+fowner"],
        ),
    ];
    for (base_mode, base_uid) in [(0o777, 0), (0o1777, 0), (0o755, OWNER)] {
        set_mode(&base, base_mode);
        chown(&base, Some(base_uid), None).expect("given away");
        for (who, user) in users {
            let [by_kernel, by_server] = ["kernel", "server"].map(|name| base.join(name));
            fill(&by_kernel);
            fill(&by_server);
            let run = |words: &[&str], tree: &Path| {
                let mut command = Command::new("setpriv");
                command.args(user).args(words).arg(tree);
                command.output().expect("it starts").status.code()
            };
            let expected = run(&["rm", "-rf"], &by_kernel);
            let found = run(&[program.to_str().expect("text"), "rm", "-rq"], &by_server);
            assert_eq!(found, expected, "{who}");
            let (expected, found) = (left(&by_kernel), left(&by_server));
            assert_eq!(found, expected, "{who}, mode {base_mode:o} of {base_uid}");
            // The flags keep files from all users.
            assert!(!found.is_empty(), "{who}");
            clear(&by_kernel);
            clear(&by_server);
        }
    }
    scratch.umount();
    scratch.assert_clean();
}

#[test]
fn the_mount_sees_a_removed_tree_at_once() {
    if !can_mount() {
        return;
    }
    let scratch = Scratch::with_image();
    for transport in ["auto", "dev"] {
        scratch.mount(&format!("transport={transport}"));
        let dir = scratch.mountpoint();
        let tree = dir.join("tree");
        fs::create_dir_all(tree.join("a/b")).expect("made");
        for number in 0..300 {
            fs::write(tree.join(format!("a/{number}")), "contents").expect("written");
        }
        fs::hard_link(tree.join("a/7"), dir.join("other")).expect("linked");
        let before = left(&tree);
        assert_eq!(before.len(), 303);
        let open = File::open(tree.join("a/5")).expect("opened");
        let linked = File::open(tree.join("a/7")).expect("opened");
        let inside = File::open(tree.join("a")).expect("opened");
        assert_eq!((open.metadata().unwrap().nlink(), linked.metadata().unwrap().nlink()), (1, 2));
        let said = succeed(scratch.cffs(["rm", "-r"]).arg(&tree));
        assert_eq!(said, "removed 300 files, 3 directories\n");
        assert_eq!(fs::symlink_metadata(&tree).expect_err("gone").raw_os_error(), Some(2));
        assert!(fs::symlink_metadata(tree.join("a/9")).is_err());
        assert_eq!(fs::read_dir(&dir).expect("listed").count(), 1);
        assert_eq!((open.metadata().unwrap().nlink(), linked.metadata().unwrap().nlink()), (0, 1));
        assert_eq!(fs::metadata(dir.join("other")).expect("there").nlink(), 1);
        // As for a shell whose working directory is in the tree.
        let through =
            PathBuf::from(format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&inside)));
        assert!(fs::symlink_metadata(through.join("9")).is_err());
        assert!(fs::read_dir(&through).map_or(0, Iterator::count) == 0);
        assert!(fs::write(through.join("new"), "x").is_err());
        assert_eq!(std::io::read_to_string(&open).expect("read"), "contents");
        fs::create_dir(&tree).expect("the name is free");
        succeed(scratch.cffs(["rm", "-rq"]).arg(&tree).arg(dir.join("other")));
        assert_eq!(fs::read_dir(&dir).expect("listed").count(), 0);
        drop((open, linked, inside));
        scratch.umount();
        scratch.assert_clean();
    }
}
