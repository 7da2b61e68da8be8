//! Trees in a group, and groups nearby.

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use cffs_place::extents;
use cffs_place::groups::Groups;
use rustix::fs::{XattrFlags, getxattr, setxattr};

use crate::volume::{Kind, Volume, below, place, text, unmount};

/// Makes a tree with everything that can be copied.
fn plant(at: &Path) {
    for directory in ["", "pages", "pages/deep", "images"] {
        fs::create_dir(at.join(directory)).expect("a directory");
    }
    for number in 0..30usize {
        let directory = ["pages", "pages/deep", "images"][number % 3];
        let bytes = vec![number as u8; 1 + number * 5000];
        fs::write(at.join(format!("{directory}/f{number:02}")), bytes).expect("write");
    }
    fs::write(at.join("empty"), "").expect("write");
    fs::hard_link(at.join("images/f02"), at.join("pages/other-name")).expect("link");
    symlink("pages/f00", at.join("link")).expect("a symbolic link");
    symlink("/nowhere", at.join("dangling")).expect("a symbolic link");
    setxattr(at.join("pages"), "user.note", b"kept", XattrFlags::empty()).expect("set");
    std::os::unix::fs::lchown(at.join("link"), Some(1000), Some(1001)).expect("chown");
    for (name, mode) in [("pages/f00", 0o4750), ("images", 0o2755), ("pages/deep", 0o555)] {
        std::os::unix::fs::chown(at.join(name), Some(1000), Some(1001)).expect("chown");
        fs::set_permissions(at.join(name), PermissionsExt::from_mode(mode)).expect("set");
    }
    let touch = ["-exec", "touch", "-h", "-d", "2001-02-03", "{}", "+"];
    assert!(Command::new("find").arg(at).args(touch).status().expect("find").success());
}

/// A tree without its places: names, kinds, modes, owners, sizes, times, links, and contents.
fn described(at: &Path) -> (String, Vec<Vec<u8>>) {
    let mut find = Command::new("find");
    find.arg(at).args(["-printf", "%P %y %m %U %G %T@ %l %n\n"]);
    let said = text(&find.output().expect("find").stdout);
    let mut lines: Vec<&str> = said.lines().collect();
    lines.sort_unstable();
    let mut paths = below(at);
    paths.sort();
    let contents =
        paths.iter().filter(|path| path.is_file()).map(|path| fs::read(path).expect("read"));
    (lines.join("\n"), contents.collect())
}

/// Whether each inode and all contents of a tree are in a group.
fn lies_in(groups: &Groups, at: &Path, group: u64) -> bool {
    let mut paths = below(at);
    paths.push(at.to_owned());
    paths.iter().all(|path| {
        let status = fs::symlink_metadata(path).expect("status");
        let is_inside = |extent: &extents::Extent| groups.of_place(extent.physical) == group;
        let contents_are = || {
            let open = fs::File::open(path).expect("open");
            extents::of(&open, true).expect("extents").iter().all(is_inside)
        };
        groups.of_inode(status.ino()) == group && (!status.is_file() || contents_are())
    })
}

#[test]
fn a_tree_is_copied_and_moved_into_a_group_as_it_is() {
    for kind in [Kind::Ext4, Kind::Ext4WithoutFlex, Kind::Ext4SmallBlocks, Kind::Xfs] {
        let Some(volume) = Volume::make(kind) else { return };
        let at = |name: &str| volume.root().join(name);
        let call = |arguments: &[&str], from: &str, to: &str| {
            let (from, to) = (at(from), at(to));
            let paths = [from.to_str().expect("UTF-8"), to.to_str().expect("UTF-8")];
            place(&[arguments, &paths].concat())
        };
        plant(&at("tree"));
        let groups = Groups::of(volume.root()).expect("groups");
        let original = described(&at("tree"));
        assert!(place(&["init", volume.root().to_str().expect("UTF-8")]).status.success());
        for group in 0..groups.count {
            let number = group.to_string();
            let output = call(&["cp", "--group", &number], "tree", "copy");
            assert!(output.status.success(), "{kind:?}: {}", text(&output.stderr));
            assert_eq!(described(&at("copy")), original, "{kind:?}, group {group}");
            assert!(lies_in(&groups, &at("copy"), group), "{kind:?}, group {group}");
            let mut note = [0; 8];
            let length = getxattr(at("copy/pages"), "user.note", &mut note[..]).expect("a note");
            assert_eq!(&note[..length], b"kept");
            let output = call(&["mv", "--group", &number], "copy", "moved");
            assert!(output.status.success(), "{kind:?}: {}", text(&output.stderr));
            assert!(!at("copy").exists());
            assert_eq!(described(&at("moved")), original, "{kind:?}, group {group}");
            assert!(lies_in(&groups, &at("moved"), group), "{kind:?}, group {group}");
            fs::remove_dir_all(at("moved")).expect("remove");
        }
        assert_eq!(described(&at("tree")), original);
        assert!(!below(&at(".place")).iter().any(|path| path.ends_with("tree")), "nothing is left");
        volume.check();
    }
}

#[test]
fn a_tree_that_cannot_be_copied_or_moved_is_refused_and_stays() {
    let Some(volume) = Volume::make(Kind::Ext4WithoutFlex) else { return };
    let at = |name: &str| volume.root().join(name);
    plant(&at("tree"));
    assert!(place(&["init", volume.root().to_str().expect("UTF-8")]).status.success());
    let refused = |command: &str, from: &str, to: &str, why: &str| {
        let before = described(&at("tree"));
        let (from, to) = (at(from), at(to));
        let paths = [from.to_str().expect("UTF-8"), to.to_str().expect("UTF-8")];
        let output = place(&[command, "--group", "3", paths[0], paths[1]]);
        assert_eq!(output.status.code(), Some(1), "{why}");
        assert!(text(&output.stderr).contains(why), "{}", text(&output.stderr));
        assert!(!to.exists(), "{why}");
        assert_eq!(described(&at("tree")), before, "{why}");
    };
    refused("cp", "tree", "tree/pages/inside", "it is in");
    refused("cp", "missing", "copy", "No such file");
    fs::hard_link(at("tree/images/f05"), at("outside")).expect("link");
    refused("mv", "tree", "moved", "images/f05: it has other names outside the tree");
    fs::remove_file(at("outside")).expect("remove");
    assert!(Command::new("mkfifo").arg(at("tree/pipe")).status().expect("mkfifo").success());
    refused("cp", "tree", "copy", "tree/pipe: neither a file");
    fs::remove_file(at("tree/pipe")).expect("remove");
    fs::create_dir(at("tree/mounted")).expect("a directory");
    let mount =
        Command::new("mount").args(["-t", "tmpfs", "none"]).arg(at("tree/mounted")).status();
    assert!(mount.expect("mount").success());
    refused("mv", "tree", "moved", "mounted: another file system");
    assert!(unmount(&at("tree/mounted")));
    fs::write(at("tree/large"), vec![1; 150 << 20]).expect("write");
    refused("mv", "tree", "moved", "group 3 is full: ");
}

#[test]
fn kills_leave_either_a_whole_tree_or_none() {
    let Some(volume) = Volume::make(Kind::Ext4WithoutFlex) else { return };
    let root = volume.root();
    plant(&root.join("tree"));
    let original = described(&root.join("tree"));
    assert!(place(&["init", root.to_str().expect("UTF-8")]).status.success());
    let mut done = 0;
    for kill in 0..40u64 {
        let mut child = Command::new(env!("CARGO_BIN_EXE_place"))
            .args(["cp", "--group", "5", "tree", "copy"])
            .current_dir(root)
            .stderr(std::process::Stdio::null())
            .spawn()
            .expect("place");
        std::thread::sleep(Duration::from_millis(kill * 2));
        child.kill().expect("kill");
        child.wait().expect("wait");
        if root.join("copy/pages").exists() {
            let names =
                |(listed, contents): (String, Vec<Vec<u8>>)| (listed.lines().count(), contents);
            let copy = names(described(&root.join("copy")));
            assert_eq!(copy, names(original.clone()), "kill {kill}");
            fs::remove_dir_all(root.join("copy")).expect("remove");
            done += 1;
        }
    }
    println!("{done} finished before they were killed");
    assert!(place(&["init", root.to_str().expect("UTF-8")]).status.success());
    let left = below(&root.join(".place"));
    assert_eq!(left.len(), 17, "a directory for each group, and the lock: {left:?}");
    volume.check();
}

#[test]
fn nearby_takes_the_nearest_group_with_room_and_names_it() {
    for kind in [Kind::Ext4WithoutFlex, Kind::Xfs] {
        let Some(volume) = Volume::make(kind) else { return };
        let at = |name: &str| volume.root().join(name).to_str().expect("UTF-8").to_owned();
        assert!(place(&["init", &at("")]).status.success());
        fs::write(at("from"), vec![7; 8 << 20]).expect("write");
        let groups = Groups::of(volume.root()).expect("groups");
        let refused = (0..100).find_map(|number| {
            let output = place(&["cp", "--group", "2", &at("from"), &at(&format!("fill{number}"))]);
            (!output.status.success()).then(|| (number, text(&output.stderr)))
        });
        let (number, said) = refused.expect("a group of 128 MiB is full at last");
        // The journal of XFS takes half of this group.
        assert!(number >= 6, "{kind:?}: only {number} files of 8 MiB");
        assert!(said.contains("group 2 is full") || said.contains("group 2 has no room"), "{said}");
        assert!(!Path::new(&at(&format!("fill{number}"))).exists());
        let output = place(&["cp", "--group", "999", "--nearby", &at("from"), &at("copy")]);
        assert_eq!(output.status.code(), Some(1), "{kind:?}");
        assert!(text(&output.stderr).contains("there is no group 999"), "{}", text(&output.stderr));
        let output = place(&["cp", "--group", "2", "--nearby", &at("from"), &at("copy")]);
        let said = text(&output.stderr);
        assert!(output.status.success(), "{kind:?}: {said}");
        let taken = groups.of_inode(fs::metadata(at("copy")).expect("status").ino());
        assert!([1, 3].contains(&taken), "{kind:?}: group {taken}");
        assert!(said.contains(&format!("in group {taken}, since group 2 is full")), "{said}");
        let open = fs::File::open(at("copy")).expect("open");
        let found = extents::of(&open, true).expect("extents");
        assert!(found.iter().all(|extent| groups.of_place(extent.physical) == taken), "{kind:?}");
    }
}
