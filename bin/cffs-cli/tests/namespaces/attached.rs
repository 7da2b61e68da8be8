//! Removals that `cffs rm` refuses, most of them in a mount namespace.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::Command;

use crate::harness::{Scratch, can_mount, fail, succeed, take_turns};

#[test]
fn a_removal_that_is_impossible_is_refused() {
    let _turn = take_turns();
    if !can_mount() || !rustix::process::geteuid().is_root() {
        return;
    }
    let scratch = Scratch::with_image();
    scratch.mount("allow_other");
    let dir = scratch.mountpoint();
    fs::create_dir_all(dir.join("tree/below")).expect("made");
    let rm = |file: &Path| {
        let mut rm = scratch.cffs(["rm", "-r"]);
        rm.arg(file);
        rm
    };
    let refused = |file: &Path, why: &str| {
        let said = fail(1, &mut rm(file));
        assert!(said.contains(why), "{said}");
    };
    refused(&dir, "something is mounted on");
    refused(&dir.join("tree/."), "are not removed");
    symlink("tree", dir.join("link")).expect("linked");
    refused(&dir.join("link/"), "Not a directory");
    fs::remove_file(dir.join("link")).expect("removed");
    refused(&dir.join("\u{1b}[2J"), "\\u{1b}[2J: No such file");
    refused(&dir.join("missing"), "No such file");
    refused(&scratch.image(), "not in a mounted C-FFS volume");
    let said = fail(1, scratch.cffs(["rm"]).arg(dir.join("tree")));
    assert!(said.contains("is a directory"), "{said}");
    succeed(scratch.cffs(["rm", "-f"]).arg(dir.join("missing")));
    let program = scratch.cffs([]).get_program().to_owned();
    let script = |text: &str| {
        let mut command = Command::new("unshare");
        command.args(["-m", "sh", "-c", text, "sh"]).arg(&dir).arg(&program);
        fail(1, &mut command)
    };
    let said = script("mount --bind $1 $1 && mount -o remount,bind,ro $1 && $2 rm -r $1/tree");
    assert!(said.contains("mounted read-only"), "{said}");
    let said = script("mount -t tmpfs none $1/tree/below && $2 rm -r $1/tree");
    assert!(said.contains("something is mounted on"), "{said}");
    let bound = scratch.path().join("bound");
    fs::create_dir(&bound).expect("made");
    let said = script(&format!(
        "mount --bind $1/tree {0} && mount -t tmpfs none {0}/below && $2 rm -r $1/tree",
        bound.display()
    ));
    assert!(said.contains("something is mounted on"), "{said}");
    let import = "$2 import $1 $1/../source";
    fs::create_dir(scratch.path().join("source")).expect("made");
    let said = script(&format!("mount -t tmpfs none $1/tree && {import} tree"));
    assert!(said.contains("something is mounted on"), "{said}");
    let said =
        script("mount --bind -o ro $1/tree/below $1/tree/below && $2 import $1/tree $1/../source");
    assert!(said.contains("something is mounted on"), "{said}");
    // The server does not know where the mount is.
    fs::create_dir(dir.join("other")).expect("made");
    let said = script("mount -t tmpfs none $1/tree/below && $2 import $1/other $1/../source");
    assert!(said.contains("something is mounted in a volume"), "{said}");
    let said = script("unshare -n $2 rm -r $1/tree");
    assert!(said.contains("network namespace"), "{said}");
    let said = script("setpriv --no-new-privs $2 rm -r $1/tree");
    assert!(said.contains("no_new_privs"), "{said}");
    let said = script("unshare -U --map-root-user $2 rm -r $1/tree");
    assert!(said.contains("another user namespace"), "{said}");
    assert!(dir.join("tree/below").exists());
    succeed(scratch.cffs(["restart"]).arg(&dir));
    assert_eq!(succeed(&mut rm(&dir.join("tree"))), "removed 0 files, 2 directories\n");
    // A user who does not reach the volume gets no ticket.
    fs::create_dir(dir.join("tree")).expect("made");
    scratch.umount();
    scratch.mount("default_permissions");
    fail(1, scratch.cffs_by_nobody(["rm", "-r"]).arg(dir.join("tree")));
    assert!(dir.join("tree").exists());
    scratch.umount();
    scratch.assert_clean();
}
