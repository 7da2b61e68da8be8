//! Placement by group on loop devices with each kind of file system, compared with debugfs and xfs_db.
//!
//! Needs root, since it mounts; for another user it prints this and passes.

mod geometry;
mod later;
mod others;
mod trees;
mod volume;
mod writers;

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::time::Duration;

use cffs_place::controlled::make_directory;
use cffs_place::extents;
use cffs_place::shadow::Shadow;
use cffs_place::trees::copy;
use rustix::fs::{XattrFlags, getxattr, listxattr, setxattr};

use volume::{Kind, Volume, place, text};

const PLACED: [Kind; 3] = [Kind::Ext4WithoutFlex, Kind::Ext4, Kind::Xfs];
const ALL: [Kind; 6] = [
    Kind::Ext4WithoutFlex,
    Kind::Ext4,
    Kind::Ext4SmallGroups,
    Kind::Ext4Bigalloc,
    Kind::Ext4SmallBlocks,
    Kind::Xfs,
];

/// The sizes of files in each group: small ones, and one that ext4 allocates in pieces.
const SIZES: [u64; 7] = [1, 4096, 8192, 20_000, 65_535, 65_536, 10_000_000];

#[test]
fn directories_and_files_are_in_the_requested_group() {
    for kind in ALL {
        let Some(volume) = Volume::make(kind) else { return };
        let (shadow, made) = Shadow::init(volume.root()).expect("init");
        let groups = shadow.groups().clone();
        println!("{kind:?}: {made:?} of {}", groups.count);
        assert_eq!(made.reached, groups.count, "{kind:?}: root reaches all groups");
        let (mut files, mut right, mut mkdirs) = (0, 0, 0);
        let mut inodes = Vec::new();
        for group in 0..groups.count {
            let directory = volume.root().join(format!("in{group}"));
            mkdirs += make_directory(&shadow, &directory, 0o755, group).expect("a directory");
            inodes.push((fs::metadata(&directory).expect("status").ino(), group));
            for size in SIZES {
                let from = volume.root().join("from");
                fs::write(&from, vec![size as u8; size as usize]).expect("write");
                let to = directory.join(size.to_string());
                files += 1;
                if let Err(error) = copy(&shadow, &from, &to, group) {
                    println!("{kind:?}: group {group}, {size} bytes: {error:#}");
                    continue;
                }
                assert!(fs::read(&to).expect("read") == fs::read(&from).expect("read"), "{kind:?}");
                inodes.push((fs::metadata(&to).expect("status").ino(), group));
                let places =
                    extents::of(&fs::File::open(&to).expect("open"), true).expect("extents");
                right += u64::from(places.iter().all(|e| groups.of_place(e.physical) == group));
            }
        }
        println!("{kind:?}: {right} of {files} files, {mkdirs} mkdirs");
        assert_eq!(right, files, "{kind:?}");
        // ext4 avoids the group filled by the journal until that group is requested. XFS rotates among all
        // groups.
        let most = if kind == Kind::Xfs { groups.count * groups.count } else { groups.count + 1 };
        assert!(mkdirs <= most, "{kind:?}: {mkdirs} mkdirs");
        drop(shadow);
        volume.settle();
        for (inode, group) in inodes {
            assert_eq!(volume.group_by_its_own_tools(inode), group, "{kind:?}: inode {inode}");
        }
        volume.check();
    }
}

/// A directory of an unprivileged user, with a copy of the program that this user may run.
struct Home {
    dir: PathBuf,
    program: PathBuf,
}

impl Home {
    fn on(volume: &Volume) -> Home {
        let dir = volume.root().join("home");
        fs::create_dir(&dir).expect("a directory");
        std::os::unix::fs::chown(&dir, Some(NOBODY), Some(NOBODY)).expect("chown");
        let program = volume.root().join("place");
        // Another program copies it: if this one had the copy open for writing, a child that another test
        // starts at that moment could inherit the descriptor, and the copy could not be executed.
        let copied =
            Command::new("cp").args([Path::new(env!("CARGO_BIN_EXE_place")), &program]).status();
        assert!(copied.expect("run").success());
        Home { dir, program }
    }

    /// Runs the program in the directory.
    fn call(&self, user: u32, arguments: &[&str]) -> Output {
        let mut command = Command::new(&self.program);
        command.args(arguments).current_dir(&self.dir).uid(user).gid(user);
        command.output().expect("place")
    }

    /// The same; must succeed. Returns its output.
    fn succeed(&self, user: u32, arguments: &[&str]) -> String {
        let output = self.call(user, arguments);
        assert!(output.status.success(), "{arguments:?}: {}", text(&output.stderr));
        text(&output.stderr)
    }

    /// The same; must fail. Returns its output.
    fn fail(&self, user: u32, arguments: &[&str]) -> String {
        let output = self.call(user, arguments);
        assert!(!output.status.success(), "{arguments:?} succeeded");
        text(&output.stderr)
    }
}

const NOBODY: u32 = 65_534;

#[test]
fn an_unprivileged_user_can_use_an_own_tree() {
    for kind in PLACED {
        let Some(volume) = Volume::make(kind) else { return };
        let home = Home::on(&volume);
        let output = home.call(NOBODY, &["init", "."]);
        println!("{kind:?}: {}{}", text(&output.stdout), text(&output.stderr));
        let said = text(&output.stdout);
        let reached: u64 = said.split(' ').next().and_then(|n| n.parse().ok()).expect("a number");
        assert!(reached > 1, "{kind:?}: {said}");
        fs::write(home.dir.join("from"), vec![7; 8192]).expect("write");
        for arguments in
            [&["mkdir", "--near", ".", "d"][..], &["cp", "--near", ".", "from", "d/to"]]
        {
            home.succeed(NOBODY, arguments);
        }
        assert_eq!(fs::read(home.dir.join("d/to")).expect("read"), vec![7; 8192]);
        let foreign = home.call(NOBODY, &["groups", "--json", "."]);
        assert!(text(&foreign.stdout).contains("\"emptiest\""), "{}", text(&foreign.stderr));
    }
}

#[test]
fn an_unprivileged_user_can_measure_a_disk_in_a_file_that_leaves_nothing() {
    let Some(volume) = Volume::make(Kind::Ext4) else { return };
    let home = Home::on(&volume);
    volume.settle();
    let free = || rustix::fs::statvfs(volume.root()).expect("statvfs").f_bfree;
    let before = free();
    let output = home.call(NOBODY, &["disk", "--seconds", "1", "--json", "."]);
    let said = text(&output.stderr);
    assert!(output.status.success(), "{said}");
    assert!(said.contains(": measured in 1 pieces from "), "{said}");
    let found: serde_json::Value = serde_json::from_slice(&output.stdout).expect("JSON");
    assert_eq!((&found["size_bytes"], &found["rpm"]), (&(256 << 20).into(), &().into()));
    assert!(found["zones"][0]["bytes_per_second"].as_f64().is_some_and(|rate| rate > 1e6));
    volume.settle();
    assert_eq!(free(), before);
    let said = home.fail(NOBODY, &["disk", "--try-writes", "."]);
    assert!(said.contains("a directory is not a device"), "{said}");
}

/// A control group of memory, gone when dropped.
struct MemoryGroup(PathBuf);

impl MemoryGroup {
    /// Nothing where the kernel limits no memory.
    fn limited_to(bytes: u64) -> Option<MemoryGroup> {
        let (root, limit) =
            [("/sys/fs/cgroup/memory", "memory.limit_in_bytes"), ("/sys/fs/cgroup", "memory.max")]
                .into_iter()
                .find(|(root, _)| Path::new(root).join("cgroup.procs").exists())?;
        let group = MemoryGroup(Path::new(root).join(format!("place-{}", std::process::id())));
        fs::create_dir(&group.0).ok()?;
        fs::write(group.0.join(limit), bytes.to_string()).ok()?;
        Some(group)
    }
}

impl Drop for MemoryGroup {
    fn drop(&mut self) {
        let _ = fs::remove_dir(&self.0);
    }
}

#[test]
fn the_page_cache_ends_where_a_control_group_limits_it() {
    let Some(volume) = Volume::make(Kind::Ext4) else { return };
    let Some(group) = MemoryGroup::limited_to(64 << 20) else {
        eprintln!("not run: no control group limits memory");
        return;
    };
    let said = |limited: bool| -> serde_json::Value {
        let join = if limited { "echo $$ >\"$0\" && " } else { "" };
        let output = Command::new("sh")
            .args(["-c", &format!("{join}exec \"$@\"")])
            .arg(group.0.join("cgroup.procs"))
            .args([env!("CARGO_BIN_EXE_place"), "memory", "--json", "--limit", "160M"])
            .arg(volume.root())
            .output()
            .expect("place");
        assert!(output.status.success(), "{}", text(&output.stderr));
        serde_json::from_slice(&output.stdout).expect("JSON")
    };
    let limited = said(true);
    let bytes = limited["file_bytes"].as_u64().expect("a number");
    println!("{} MiB of 64", bytes >> 20);
    assert!((24 << 20..=64 << 20).contains(&bytes), "{limited}");
    assert_eq!(limited["is_whole"], false);
    // Not all of it: other tests fill memory meanwhile.
    let free = said(false)["file_bytes"].as_u64().expect("a number");
    assert!(bytes < free, "{bytes} and {free}");
}

/// A copy that belongs to another user does not run as that user.
#[test]
fn a_copy_without_its_owner_is_not_set_user_id() {
    for kind in PLACED {
        let Some(volume) = Volume::make(kind) else { return };
        let home = Home::on(&volume);
        let from = home.dir.join("from");
        fs::write(&from, [7; 8192]).expect("write");
        fs::set_permissions(&from, PermissionsExt::from_mode(0o6755)).expect("set");
        home.succeed(NOBODY, &["init", "."]);
        home.succeed(0, &["init", ".."]);
        let mode = |file| fs::metadata(home.dir.join(file)).expect("status").mode() & 0o7777;
        home.succeed(NOBODY, &["cp", "--near", ".", "from", "users"]);
        assert_eq!(mode("users"), 0o755, "{kind:?}");
        home.succeed(0, &["cp", "--near", ".", "from", "roots"]);
        assert_eq!(mode("roots"), 0o6755, "{kind:?}");
        let said = home.fail(NOBODY, &["mv", "--near", ".", "from", "moved"]);
        assert!(said.contains("its owner"), "{kind:?}: {said}");
        assert!(from.exists());
    }
}

#[test]
fn copies_and_moved_files_keep_their_attributes() {
    for kind in PLACED {
        let Some(volume) = Volume::make(kind) else { return };
        let home = Home::on(&volume);
        let from = home.dir.join("from");
        fs::write(&from, [7; 8192]).expect("write");
        // A list that lets user 1000 read, and a mask.
        let list = b"\x02\0\0\0\x01\0\x04\0\xff\xff\xff\xff\x02\0\x04\0\xe8\x03\0\0\
                     \x04\0\x04\0\xff\xff\xff\xff\x10\0\x04\0\xff\xff\xff\xff\
                     \x20\0\0\0\xff\xff\xff\xff";
        // cap_net_bind_service, as setcap writes it.
        let capability = b"\x01\0\0\x02\0\x04\0\0\0\0\0\0\0\0\0\0\0\0\0\0";
        let large = vec![b'x'; 2000];
        let of_user: [(&str, &[u8]); 4] = [
            ("user.empty", b""),
            ("user.note", b"a\0b"),
            ("user.large", &large),
            ("system.posix_acl_access", list),
        ];
        let of_root: [(&str, &[u8]); 2] =
            [("security.capability", capability), ("trusted.note", b"root's")];
        std::os::unix::fs::chown(&from, Some(NOBODY), Some(NOBODY)).expect("chown");
        for (name, value) in of_user.iter().chain(&of_root) {
            setxattr(&from, *name, value, XattrFlags::empty()).expect("set an attribute");
        }
        let mode = fs::metadata(&from).expect("status").mode();
        assert_eq!(mode & 0o7777, 0o440, "read-only, by the list");
        let value = |file: &str, name: &str| {
            let mut value = vec![0; 65_536];
            let length = getxattr(home.dir.join(file), name, &mut value[..]).ok()?;
            Some(value[..length].to_vec())
        };
        home.succeed(NOBODY, &["init", "."]);
        home.succeed(0, &["init", ".."]);
        let said = home.succeed(NOBODY, &["cp", "--near", ".", "from", "users"]);
        assert!(said.contains("left out") && said.contains("security.capability"), "{said}");
        assert_eq!(home.succeed(0, &["cp", "--near", ".", "from", "roots"]), "");
        let said = home.fail(NOBODY, &["mv", "--near", ".", "from", "lost"]);
        assert!(said.contains("security.capability"), "{kind:?}: {said}");
        assert!(from.exists() && !home.dir.join("lost").exists());
        home.succeed(0, &["mv", "--near", ".", "from", "moved"]);
        for file in ["users", "roots", "moved"] {
            assert_eq!(fs::metadata(home.dir.join(file)).expect("status").mode(), mode, "{file}");
            for (name, wanted) in of_user {
                assert!(value(file, name).as_deref() == Some(wanted), "{kind:?}: {file}: {name}");
            }
            for (name, wanted) in of_root {
                let wanted = (file != "users").then_some(wanted);
                assert_eq!(value(file, name).as_deref(), wanted, "{kind:?}: {file}: {name}");
            }
        }
        volume.check();
    }
}

/// Files are made in the tree, which would inherit lists from the directory of `place init`.
#[test]
fn copies_inherit_no_access_control_lists() {
    for kind in PLACED {
        let Some(volume) = Volume::make(kind) else { return };
        let home = Home::on(&volume);
        let private = home.dir.join("private");
        fs::create_dir(&private).expect("a directory");
        fs::write(private.join("file"), [7; 8192]).expect("write");
        for (at, mode) in [(&private, 0o750), (&private.join("file"), 0o640)] {
            fs::set_permissions(at, PermissionsExt::from_mode(mode)).expect("set");
        }
        // User 1000 may do everything with new files.
        let list = b"\x02\0\0\0\x01\0\x07\0\xff\xff\xff\xff\x02\0\x07\0\xe8\x03\0\0\
                     \x04\0\x05\0\xff\xff\xff\xff\x10\0\x07\0\xff\xff\xff\xff\
                     \x20\0\0\0\xff\xff\xff\xff";
        let inherited = "system.posix_acl_default";
        setxattr(&home.dir, inherited, list, XattrFlags::empty()).expect("set a list");
        home.succeed(0, &["init", "."]);
        let check = || {
            home.succeed(0, &["cp", "--group", "1", "private/file", "copy"]);
            home.succeed(0, &["cp", "--group", "1", "private", "tree"]);
            home.succeed(0, &["mkdir", "--group", "1", "new"]);
            home.succeed(0, &["create", "--group", "1", "--room", "64K", "empty"]);
            for name in ["copy", "tree", "tree/file", "new", "empty"] {
                let (at, mut names) = (home.dir.join(name), [0; 1000]);
                let length = listxattr(&at, &mut names[..]).expect("list");
                assert_eq!(text(&names[..length]), "", "{kind:?}: {name}");
            }
            for (name, mode) in [("copy", 0o640), ("tree", 0o750), ("tree/file", 0o640)] {
                let status = fs::metadata(home.dir.join(name)).expect("status");
                assert_eq!(status.mode() & 0o7777, mode, "{kind:?}: {name}");
            }
        };
        check();
        // In a tree that has the lists, too.
        for name in ["copy", "tree", "new", "empty"] {
            let at = home.dir.join(name);
            if at.is_dir() { fs::remove_dir_all(at) } else { fs::remove_file(at) }.expect("remove");
        }
        for directory in [".place", ".place/g00001"] {
            let at = home.dir.join(directory);
            setxattr(at, inherited, list, XattrFlags::empty()).expect("set a list");
        }
        check();
    }
}

#[test]
fn a_directory_that_cannot_be_controlled_is_refused_with_the_reason() {
    for (kind, why) in [(Kind::Ext2, "no extents"), (Kind::Btrfs, "no group can be chosen")] {
        let Some(volume) = Volume::make(kind) else { return };
        let root = volume.root().to_str().expect("UTF-8");
        for arguments in [["init", root], ["groups", root]] {
            let output = place(&arguments);
            assert_eq!(output.status.code(), Some(1), "{kind:?}");
            assert!(text(&output.stderr).contains(why), "{kind:?}: {}", text(&output.stderr));
        }
        assert!(!volume.root().join(".place").exists(), "{kind:?}: something is left");
    }
    let Some(volume) = Volume::make(Kind::Xfs) else { return };
    let at = |name: &str| volume.root().join(name).to_str().expect("UTF-8").to_owned();
    let refused = |arguments: &[&str], why: &str| {
        let output = place(arguments);
        assert_eq!(output.status.code(), Some(1), "{arguments:?}");
        assert!(text(&output.stderr).contains(why), "{arguments:?}: {}", text(&output.stderr));
    };
    refused(&["mkdir", "--outer", &at("d")], "place init");
    assert!(place(&["init", &at("")]).status.success());
    refused(&["mkdir", "--group", "99", &at("d")], "there is no group 99");
    fs::write(at("file"), "contents").expect("write");
    refused(&["create", "--outer", &at("file")], "it exists");
    fs::hard_link(at("file"), at("link")).expect("link");
    refused(&["mv", "--outer", &at("file"), &at("moved")], "other names");
    // More than the free space of the group.
    let large = fs::File::create(at("large")).expect("create");
    large.set_len(0).expect("empty");
    fs::write(at("large"), vec![1; 200 << 20]).expect("write");
    refused(&["cp", "--group", "0", &at("large"), &at("copy")], "is full: ");
    assert!(!Path::new(&at("copy")).exists());
}

#[test]
fn a_hundred_kills_leave_nothing_behind() {
    let Some(volume) = Volume::make(Kind::Ext4WithoutFlex) else { return };
    let root = volume.root();
    assert!(place(&["init", root.to_str().expect("UTF-8")]).status.success());
    fs::write(root.join("from"), vec![9; 30_000]).expect("write");
    let mut done = 0;
    for kill in 0..100u64 {
        let arguments = match kill % 2 {
            0 => vec!["mkdir", "--group", "5", "d1", "d2", "d3"],
            _ => vec!["cp", "--group", "5", "from", "to"],
        };
        let mut child = Command::new(env!("CARGO_BIN_EXE_place"))
            .args(&arguments)
            .current_dir(root)
            .stderr(std::process::Stdio::null())
            .spawn()
            .expect("place");
        std::thread::sleep(Duration::from_micros(kill * 150));
        child.kill().expect("kill");
        child.wait().expect("wait");
        // A copy is either complete or missing.
        if let Ok(copied) = fs::read(root.join("to")) {
            assert!(copied == vec![9; 30_000], "kill {kill}");
            fs::remove_file(root.join("to")).expect("remove");
            done += 1;
        }
        for directory in ["d1", "d2", "d3"] {
            done += u64::from(fs::remove_dir(root.join(directory)).is_ok());
        }
    }
    println!("{done} finished before they were killed");
    // The next command cleans.
    assert!(place(&["init", root.to_str().expect("UTF-8")]).status.success());
    let left = volume::below(&root.join(".place"));
    let groups = left.iter().filter(|path| path.is_dir()).count() as u64;
    assert_eq!(left.len() as u64, groups + 1, "a directory for each group, and the lock: {left:?}");
    volume.check();
}
