//! Directories of other users, who may change them while a command runs.

use std::fs;
use std::os::unix::fs::{PermissionsExt, chown, symlink};
use std::path::{Path, PathBuf};

use crate::volume::{Kind, Volume, text};
use crate::{Home, NOBODY};

/// Makes a directory that belongs to a user.
fn make(at: &Path, user: u32) {
    fs::create_dir(at).expect("a directory");
    chown(at, Some(user), Some(user)).expect("chown");
}

#[test]
fn a_tree_of_another_user_is_neither_used_nor_cleaned() {
    let Some(volume) = Volume::make(Kind::Ext4WithoutFlex) else { return };
    let home = Home::on(&volume);
    let victim = volume.root().join("victim");
    fs::create_dir_all(victim.join("sub")).expect("directories");
    for file in ["file", "sub/deep"] {
        fs::write(victim.join(file), "contents").expect("write");
    }
    let tree = home.dir.join(".place");
    make(&tree, NOBODY);
    // A link with a name of a tree's directory, and one with another name.
    for name in ["x", "g00003"] {
        symlink(&victim, tree.join(name)).expect("a link");
    }
    home.succeed(0, &["groups", "."]);
    let said = home.fail(0, &["mkdir", "--group", "3", "d"]);
    assert!(said.contains("has a tree of this user"), "{said}");
    let said = home.fail(0, &["init", "."]);
    assert!(said.contains("not a directory that only this user can change"), "{said}");
    // Nor does a link to an own directory count as a tree.
    fs::rename(&tree, home.dir.join("renamed")).expect("rename");
    symlink(&victim, &tree).expect("a link");
    home.fail(0, &["init", "."]);
    home.succeed(0, &["groups", "."]);
    for file in ["file", "sub/deep"] {
        assert!(victim.join(file).exists(), "{file}");
    }
    // Root uses its own tree, further up.
    home.succeed(0, &["init", ".."]);
    home.succeed(0, &["mkdir", "--group", "3", "d"]);
}

#[test]
fn only_the_directories_of_groups_are_cleaned_and_links_are_not_followed() {
    let Some(volume) = Volume::make(Kind::Ext4WithoutFlex) else { return };
    let home = Home::on(&volume);
    home.succeed(0, &["init", "."]);
    let tree = home.dir.join(".place");
    let victim = volume.root().join("victim");
    fs::create_dir(&victim).expect("a directory");
    fs::create_dir(tree.join("notes")).expect("a directory");
    for file in [victim.join("file"), tree.join("notes/file"), tree.join("g00002/left")] {
        fs::write(file, "contents").expect("write");
    }
    symlink(&victim, tree.join("x")).expect("a link");
    fs::remove_dir(tree.join("g00003")).expect("remove");
    symlink(&victim, tree.join("g00003")).expect("a link");
    home.succeed(0, &["groups", "."]);
    assert!(victim.join("file").exists());
    assert!(tree.join("notes/file").exists());
    assert!(!tree.join("g00002/left").exists());
    // A tree that others may change is not used.
    fs::write(tree.join("g00002/left"), "contents").expect("write");
    fs::set_permissions(&tree, PermissionsExt::from_mode(0o777)).expect("set");
    home.succeed(0, &["groups", "."]);
    assert!(tree.join("g00002/left").exists());
}

/// Runs a command of root until its destination exists, and then replaces a directory by a link. `None` if
/// the command was faster.
fn swapped(
    home: &Home,
    arguments: &[&str],
    (swap, link): (&str, &Path),
) -> Option<std::process::Output> {
    let to = home.dir.join(arguments.last().expect("a destination"));
    let swap = home.dir.join(swap);
    std::thread::scope(|scope| {
        let swapper = scope.spawn(|| {
            let end = std::time::Instant::now() + std::time::Duration::from_secs(60);
            while !to.exists() && std::time::Instant::now() < end {}
            let is_renamed = fs::rename(&swap, swap.with_extension("away")).is_ok();
            is_renamed.then(|| symlink(link, &swap).expect("a link"))
        });
        let output = home.call(0, arguments);
        swapper.join().expect("the other user").map(|()| output)
    })
}

/// A user's home with a tree of three directories, and a directory of root next to the home.
fn home_and_victim(volume: &Volume) -> (Home, PathBuf) {
    let home = Home::on(volume);
    home.succeed(0, &["init", ".."]);
    let victim = volume.root().join("etc");
    fs::create_dir(&victim).expect("a directory");
    // Commands treat entries in the reverse order: the directory `a` is the last.
    for directory in ["tree", "tree/a", "tree/b"] {
        make(&home.dir.join(directory), NOBODY);
    }
    (home, victim)
}

#[test]
fn a_move_removes_nothing_through_a_link_that_replaces_a_directory() {
    let Some(volume) = Volume::make(Kind::Ext4WithoutFlex) else { return };
    let (home, victim) = home_and_victim(&volume);
    fs::write(victim.join("passwd"), "contents").expect("write");
    fs::write(home.dir.join("tree/a/passwd"), "other").expect("write");
    for number in 0..2000 {
        fs::write(home.dir.join(format!("tree/b/f{number}")), "").expect("write");
    }
    let swap = ("tree/a", Path::new("../../etc"));
    let Some(output) = swapped(&home, &["mv", "--group", "3", "tree", "moved"], swap) else {
        eprintln!("not run: the command ended before the directory was replaced");
        return;
    };
    let said = text(&output.stderr);
    assert!(victim.join("passwd").exists(), "{said}");
    assert!(!output.status.success());
    assert!(home.dir.join("tree/a.away/passwd").exists());
}

#[test]
fn a_copy_sets_no_mode_through_a_link_that_replaces_a_directory() {
    let Some(volume) = Volume::make(Kind::Ext4WithoutFlex) else { return };
    let (home, victim) = home_and_victim(&volume);
    fs::set_permissions(&victim, PermissionsExt::from_mode(0o700)).expect("set");
    for number in 0..2000 {
        let directory = home.dir.join(format!("tree/b/d{number}"));
        make(&directory, NOBODY);
        fs::set_permissions(&directory, PermissionsExt::from_mode(0o555)).expect("set");
    }
    fs::set_permissions(home.dir.join("tree/a"), PermissionsExt::from_mode(0o555)).expect("set");
    let swap = ("copy/a", Path::new("../../etc"));
    if swapped(&home, &["cp", "--group", "3", "tree", "copy"], swap).is_none() {
        eprintln!("not run: the command ended before the directory was replaced");
        return;
    }
    assert_eq!(fs::metadata(&victim).expect("status").permissions().mode() & 0o777, 0o700);
    let mode = |at: &str| fs::metadata(home.dir.join(at)).expect("status").permissions().mode();
    assert_eq!(mode("copy/b/d7") & 0o777, 0o555);
}
