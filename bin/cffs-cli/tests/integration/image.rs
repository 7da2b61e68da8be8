//! The program on images, without a mount.

use std::fs;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::Stdio;

use crate::harness::{CFFS, Scratch, can_mount, fail, succeed};
use cffs::files::Files;
use cffs::format::inode::FileType;
use cffs::vfs::Caller;
use cffs::vfs::types::OpenOptions;

#[test]
fn mkfs_makes_an_image_that_info_describes() {
    let scratch = Scratch::new();
    let made = succeed(
        scratch
            .cffs(["mkfs", "--size", "64M", "-L", "a label", "-O", "^inline"])
            .arg(scratch.image()),
    );
    assert!(made.contains("64 MiB"), "{made}");
    let info = succeed(scratch.cffs(["info", "--json"]).arg(scratch.image()));
    let info: serde_json::Value = serde_json::from_str(&info).expect("it is JSON");
    let superblock = &info["superblock"];
    assert_eq!(superblock["label"], "a label");
    assert_eq!(superblock["size_bytes"], 64 << 20);
    assert_eq!(superblock["state"], "clean");
    let features = superblock["features"].as_array().expect("a list");
    assert!(features.contains(&"embed".into()) && !features.contains(&"inline".into()));
    scratch.assert_clean();
}

/// The report has no line for files below the directories in `lost+found`.
#[test]
fn a_salvage_says_that_contents_come_back() {
    let scratch = Scratch::with_image();
    let source = scratch.path().join("source");
    fs::create_dir_all(source.join("below")).expect("made");
    for number in 0..10 {
        fs::write(source.join("below").join(number.to_string()), "contents").expect("written");
    }
    succeed(scratch.cffs(["import", "-q"]).arg(scratch.image()).arg(&source).arg("/d"));
    let files = Files::open_image(&scratch.image(), OpenOptions::default()).expect("opened");
    files.root().remove_all(b"d", FileType::Directory).expect("removed");
    files.close().expect("closed");
    drop(files);
    let fsck = |options: &[&str]| {
        let output = scratch.cffs(["fsck"]).args(options).arg(scratch.image()).output();
        let output = output.expect("it starts");
        [output.stdout, output.stderr]
            .map(|text| String::from_utf8_lossy(&text).into_owned())
            .concat()
    };
    let listed = fsck(&["--salvage", "-n"]);
    assert!(listed.contains("all that they contain would come back;"), "{listed}");
    let restored = fsck(&["--salvage", "-y"]);
    assert!(restored.contains("all that they contain is back;"), "{restored}");
    let again = fsck(&["-n"]);
    assert!(!again.contains("all that they contain"), "{again}");
}

#[test]
fn mkfs_refuses_to_overwrite_contents() {
    let scratch = Scratch::new();
    fs::write(scratch.image(), vec![7; 64 << 20]).expect("written");
    let said = fail(1, scratch.cffs(["mkfs"]).arg(scratch.image()));
    assert!(said.contains("--force"), "{said}");
    assert!(fs::read(scratch.image()).expect("read").iter().all(|byte| *byte == 7));
    succeed(scratch.cffs(["mkfs", "--force"]).arg(scratch.image()));
    scratch.assert_clean();
}

/// Regression: the image was emptied before the options were checked.
#[test]
fn mkfs_that_is_refused_changes_nothing() {
    let scratch = Scratch::with_image();
    let before = fs::read(scratch.image()).expect("read");
    let label = "x".repeat(65);
    for options in [
        &["--sector-size", "1000"][..],
        &["--journal", "2000M"],
        &["--journal-device", "/dev/missing"],
        &["--label", &label],
        &["--size", "10"],
        &["--size", "100000T"],
    ] {
        let mut mkfs = scratch.cffs(["mkfs", "--force"]);
        if options[0] != "--size" {
            mkfs.args(["--size", "256M"]);
        }
        fail(1, mkfs.args(options).arg(scratch.image()));
        assert!(fs::read(scratch.image()).expect("read") == before, "{options:?}");
    }
}

#[test]
fn mkfs_names_foreign_contents_and_erases_them_only_with_force() {
    let scratch = Scratch::new();
    let signatures: [(usize, &[u8], &str); 3] = [
        (0x438, &[0x53, 0xef], "ext4"),
        ((64 << 10) + 64, b"_BHRfS_M", "btrfs"),
        (510, &[0x55, 0xaa], "partition table"),
    ];
    for (at, signature, name) in signatures {
        let mut image = vec![0; 64 << 20];
        image[at..at + signature.len()].copy_from_slice(signature);
        fs::write(scratch.image(), &image).expect("written");
        let said = fail(1, scratch.cffs(["mkfs"]).arg(scratch.image()));
        assert!(said.contains(name) && said.contains("--force"), "{said}");
        assert!(fs::read(scratch.image()).expect("read") == image);
        succeed(scratch.cffs(["mkfs", "--force"]).arg(scratch.image()));
        let made = fs::read(scratch.image()).expect("read");
        assert!(!made.windows(signature.len()).take(128 << 10).any(|bytes| bytes == signature));
    }
    let said = fail(1, scratch.cffs(["mkfs"]).arg(scratch.image()));
    assert!(said.contains("a C-FFS volume"), "{said}");
}

#[test]
fn every_name_of_the_program_prints_its_version() {
    let scratch = Scratch::new();
    for name in ["mkfs.cffs", "fsck.cffs", "mount.cffs"] {
        let program = scratch.path().join(name);
        std::os::unix::fs::symlink(CFFS, &program).expect("linked");
        for option in ["-V", "--version"] {
            let printed = succeed(&mut scratch.named(program.as_os_str(), [option]));
            assert!(printed.contains(env!("CARGO_PKG_VERSION")), "{name} {option}: {printed}");
        }
    }
}

#[test]
fn mkfs_that_fails_leaves_nothing() {
    let scratch = Scratch::new();
    fail(1, scratch.cffs(["mkfs", "--size", "1k"]).arg(scratch.image()));
    assert!(!scratch.image().exists());
    let said = fail(1, scratch.cffs(["mkfs"]).arg(scratch.image()));
    assert!(said.contains("--size"), "{said}");
    assert!(!scratch.image().exists());
    let in_directory = fail(1, scratch.cffs(["mkfs", "--size", "64M"]).arg(scratch.path()));
    let mut mkfs = scratch.cffs(["mkfs", "--size", "64M", "--journal-device"]);
    let journal_in_directory = fail(1, mkfs.arg(scratch.path()).arg(scratch.image()));
    for said in [in_directory, journal_in_directory] {
        assert!(said.contains("is a directory; name a file or a device"), "{said}");
    }
    assert!(!scratch.image().exists());
}

#[test]
fn mkfs_says_when_the_journal_has_to_be_named() {
    let scratch = Scratch::new();
    for (image, journal, is_found) in
        [("one", "./one.journal", true), ("./two", "two.journal", true), ("three", "other", false)]
    {
        let options =
            ["mkfs", "--size", "64M", "--journal", "4M", "--journal-device", journal, image];
        let output = scratch.cffs(options).current_dir(scratch.path()).output().expect("it starts");
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{said}");
        assert_eq!(!said.contains("is found by itself only in"), is_found, "{said}");
    }
}

/// Regression: a command that found the image of another one in use, or overwrote it and failed, removed it.
#[test]
fn concurrent_mkfs_of_one_image_leave_a_volume() {
    let scratch = Scratch::new();
    for _ in 0..10 {
        let mkfs = || {
            let mut command = scratch.cffs(["mkfs", "-q", "--size", "64M"]);
            command.arg(scratch.image()).stderr(Stdio::null()).spawn().expect("it starts")
        };
        let all = [mkfs(), mkfs(), mkfs(), mkfs()];
        let made = all.map(|mut command| command.wait().expect("it ends").success());
        assert!(made.contains(&true), "none made a volume");
        scratch.assert_clean();
        fs::remove_file(scratch.image()).expect("removed");
    }
}

#[test]
fn an_exported_tree_equals_the_imported_one() {
    let scratch = Scratch::with_image();
    let source = scratch.path().join("source");
    fs::create_dir_all(source.join("d/e")).expect("made");
    fs::write(source.join("d/f"), b"contents").expect("written");
    fs::write(source.join("d/e/large"), vec![3; 300_000]).expect("written");
    let printed =
        succeed(scratch.cffs(["import", "--json"]).arg(scratch.image()).arg(&source).arg("/in"));
    let printed: serde_json::Value = serde_json::from_str(&printed).expect("it is JSON");
    assert_eq!((&printed["files"], &printed["directories"]), (&2.into(), &3.into()));
    scratch.assert_clean();

    let cat = succeed(scratch.cffs(["cat"]).arg(scratch.image()).arg("/in/d/f"));
    assert_eq!(cat, "contents");
    let names = succeed(scratch.cffs(["ls"]).arg(scratch.image()).arg("/in/d"));
    assert_eq!(names.lines().collect::<Vec<_>>(), ["e", "f"]);
    let long = succeed(scratch.cffs(["ls", "-l"]).arg(scratch.image()).arg("/in/d/f"));
    assert!(long.starts_with("-rw") && long.contains(" 8 "), "{long}");

    let target = scratch.path().join("target");
    succeed(scratch.cffs(["export", "-q"]).arg(scratch.image()).arg("/in").arg(&target));
    assert_eq!(fs::read(target.join("d/e/large")).expect("read"), vec![3; 300_000]);
    let said = fail(1, scratch.cffs(["cat"]).arg(scratch.image()).arg("/missing"));
    assert!(said.contains("/missing: no such file"), "{said}");
}

/// The space that a file occupies on the host.
fn on_disk(path: &std::path::Path) -> u64 {
    use std::os::unix::fs::MetadataExt;
    fs::metadata(path).expect("there").blocks() * 512
}

#[test]
fn trim_returns_space_to_the_host() {
    let scratch = Scratch::with_image();
    let source = scratch.path().join("source");
    fs::create_dir(&source).expect("made");
    fs::write(source.join("kept"), vec![3; 3 << 20]).expect("written");
    fs::write(source.join("gone"), vec![4; 40 << 20]).expect("written");
    succeed(scratch.cffs(["import", "-q"]).arg(scratch.image()).arg(&source).arg("/in"));
    let full = on_disk(&scratch.image());
    let options = cffs::vfs::OpenOptions::default();
    let device = cffs::device::FileDevice::open(&scratch.image(), Default::default());
    let clock = std::sync::Arc::new(cffs::clock::SystemClock);
    let device = std::sync::Arc::new(device.expect("open"));
    let volume = cffs::open(device, clock, options).expect("open");
    let dir = volume.lookup(cffs::units::InodeNo::ROOT, b"in").expect("there").ino;
    volume.unlink(&Caller::ROOT, dir, b"gone").expect("removed");
    volume.close().expect("closed");
    drop(volume);
    let printed = succeed(scratch.cffs(["trim", "--json"]).arg(scratch.image()));
    let printed: serde_json::Value = serde_json::from_str(&printed).expect("it is JSON");
    assert!(printed["trimmed_bytes"].as_u64() > Some(240 << 20), "{printed}");
    let left = on_disk(&scratch.image());
    assert!(full > 43 << 20 && left < 6 << 20, "{full} {left}");
    assert_eq!(succeed(scratch.cffs(["cat"]).arg(scratch.image()).arg("/in/kept")).len(), 3 << 20);
    scratch.assert_clean();
    let said = fail(1, scratch.cffs(["trim"]).arg(scratch.path()));
    assert!(said.contains("not a C-FFS volume that is mounted or served"), "{said}");
}

#[test]
fn inspect_shows_on_disk_structures() {
    let scratch = Scratch::with_image();
    let source = scratch.path().join("source");
    fs::create_dir(&source).expect("made");
    fs::write(source.join("f"), vec![3; 30_000]).expect("written");
    succeed(scratch.cffs(["import", "-q"]).arg(scratch.image()).arg(&source).arg("/in"));
    let inspect = |what: &[&str]| {
        let mut command = scratch.cffs(["inspect", "--json"]);
        let shown = succeed(command.arg(scratch.image()).args(what));
        serde_json::from_str::<serde_json::Value>(&shown).expect("it is JSON")
    };
    let by_path = inspect(&["path", "/in/f"]);
    assert_eq!(by_path["size"], 30_000);
    assert_eq!(by_path["extents"][0]["len"], 30);
    let number = by_path["inode"].to_string();
    assert_eq!(inspect(&["inode", &number]), by_path);
    let place = by_path["in"].as_str().expect("text").to_owned();
    assert_eq!(inspect(&["sector", &place])["entries"][0]["name"], "f");
    assert_eq!(inspect(&["group", "0"])["bitmap_checksum_matches"], true);
    assert_eq!(inspect(&["superblock"])["state"], "clean");
    fail(1, scratch.cffs(["inspect"]).arg(scratch.image()).args(["inode", "999999"]));
}

#[test]
fn every_command_refuses_a_file_that_is_no_volume() {
    let scratch = Scratch::new();
    fs::write(scratch.image(), vec![0x55; 1 << 20]).expect("written");
    for (code, arguments) in
        [(1, &["info"][..]), (1, &["ls"]), (8, &["fsck", "-n"]), (1, &["import"])]
    {
        let mut command = scratch.cffs([]);
        command.args(arguments).arg(scratch.image());
        if arguments == ["import"] {
            command.arg(scratch.path());
        }
        let said = fail(code, &mut command);
        assert!(said.contains("superblock"), "{arguments:?}: {said}");
        assert!(!said.contains("panicked"), "{said}");
    }
}

#[test]
fn wrong_usage_has_the_exit_code_of_its_kind() {
    let scratch = Scratch::new();
    fail(2, &mut scratch.cffs(["mkfs", "--size", "much"]));
    fail(16, &mut scratch.cffs(["fsck", "--bogus"]));
    fail(1, &mut scratch.cffs(["mount", "--bogus"]));
    fail(2, &mut scratch.cffs(["bogus"]));
    let link = scratch.path().join("fsck.cffs");
    std::os::unix::fs::symlink(CFFS, &link).expect("linked");
    fail(16, &mut scratch.named(link.as_os_str(), ["--bogus"]));
    assert!(succeed(&mut scratch.cffs(["--help"])).contains("cffs umount mnt"));
}

#[test]
fn other_names_follow_other_conventions() {
    let scratch = Scratch::new();
    let name = |name: &str| {
        let link = scratch.path().join(name);
        std::os::unix::fs::symlink(CFFS, &link).expect("linked");
        link
    };
    let (mkfs, fsck) = (name("mkfs.cffs"), name("fsck.cffs"));
    succeed(scratch.named(mkfs.as_os_str(), ["-q", "-s", "64M"]).arg(scratch.image()));
    let printed = succeed(scratch.named(fsck.as_os_str(), ["-a", "-C", "0"]).arg(scratch.image()));
    assert!(printed.contains("not checked"), "{printed}");
    succeed(scratch.named(fsck.as_os_str(), ["-f", "-y"]).arg(scratch.image()));
}

#[test]
fn a_pipe_that_its_reader_closes_early_is_no_error() {
    let scratch = Scratch::with_image();
    let source = scratch.path().join("source");
    fs::create_dir(&source).expect("made");
    fs::write(source.join("large"), vec![b'x'; 4 << 20]).expect("written");
    succeed(scratch.cffs(["import", "-q"]).arg(scratch.image()).arg(&source));
    let mut command = scratch.cffs(["cat"]);
    let mut child = command
        .arg(scratch.image())
        .arg("/large")
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("it starts");
    drop(child.stdout.take());
    let output = child.wait_with_output().expect("it ends");
    assert_eq!(String::from_utf8_lossy(&output.stderr), "");
}

#[test]
fn man_pages_and_completions_come_from_the_same_definition() {
    let scratch = Scratch::new();
    let dir = scratch.path().join("generated");
    succeed(scratch.cffs(["generate", "man"]).arg(&dir));
    succeed(scratch.cffs(["generate", "completions"]).arg(&dir));
    let page = |path| fs::read_to_string(dir.join(path)).expect(path);
    for path in ["man1/cffs-mount.1", "man8/mount.cffs.8"] {
        assert!(page(path).contains("relatime"), "the options of -o are in {path}");
    }
    assert!(page("man8/mkfs.cffs.8").contains(".SY mkfs.cffs\n"));
    assert!(page("man1/cffs.1").contains("cffs\\-umount"));
    assert_eq!(page("man8/mount.fuse.cffs.8"), ".so man8/mount.cffs.8\n");
    for completion in ["cffs.bash", "_cffs", "cffs.fish"] {
        let text = fs::read_to_string(dir.join(completion)).expect(completion);
        assert!(text.contains("strictatime") || text.contains("umount"), "{completion}");
    }
}

#[test]
fn info_gives_udev_its_properties_also_while_the_volume_is_in_use() {
    let scratch = Scratch::new();
    let uuid = "0f1e2d3c-4b5a-6978-8796-a5b4c3d2e1f0";
    let mut mkfs = scratch.cffs(["mkfs", "-q", "--size", "64M", "-L", "my tree", "-U", uuid]);
    succeed(mkfs.arg(scratch.image()));
    let held = fs::File::open(scratch.image()).expect("opened");
    rustix::fs::flock(&held, rustix::fs::FlockOperation::LockExclusive).expect("locked");
    let properties = succeed(scratch.cffs(["info", "--udev"]).arg(scratch.image()));
    assert_eq!(
        properties,
        format!(
            "ID_FS_TYPE=cffs\nID_FS_USAGE=filesystem\nID_FS_VERSION=2\nID_FS_UUID={uuid}\n\
             ID_FS_UUID_ENC={uuid}\nID_FS_LABEL=my_tree\nID_FS_LABEL_ENC=my\\x20tree\n"
        )
    );
    fs::write(scratch.image(), vec![0x55; 4096]).expect("written");
    let mut command = scratch.cffs(["info", "--udev"]);
    let output = command.arg(scratch.image()).output().expect("it starts");
    assert_eq!((output.status.code(), output.stdout.len()), (Some(1), 0), "nothing is imported");
}

#[test]
fn a_dry_run_of_an_import_changes_nothing_and_says_whether_it_fits() {
    let scratch = Scratch::with_image();
    let source = scratch.path().join("source");
    fs::create_dir(&source).expect("made");
    fs::write(source.join("small"), b"contents").expect("written");
    let image = fs::read(scratch.image()).expect("read");
    let import = |arguments: &[&str]| {
        let mut command = scratch.cffs(["import", "--dry-run"]);
        command.args(arguments).arg(scratch.image()).arg(&source).arg("/in");
        command
    };
    let printed = succeed(&mut import(&[]));
    assert!(printed.starts_with("would copy 1 file (8 B), 1 directory"), "{printed}");
    assert!(printed.trim_end().ends_with(": fits"), "{printed}");
    fs::write(source.join("large"), vec![1; 300 << 20]).expect("written");
    let output = import(&["--json"]).output().expect("it starts");
    assert_eq!(output.status.code(), Some(1));
    let printed: serde_json::Value = serde_json::from_slice(&output.stdout).expect("it is JSON");
    assert_eq!((&printed["files"], &printed["fits"]), (&2.into(), &false.into()));
    assert!(fs::read(scratch.image()).expect("read") == image, "the image is as it was");
    if !can_mount() {
        return;
    }
    // Regression: the message for a mounted volume was to unmount it.
    scratch.mount("rw");
    let mount = scratch.mountpoint();
    fs::create_dir(mount.join("in")).expect("made");
    fs::write(mount.join("in/small"), b"earlier").expect("written");
    let survey = |target: &Path| -> serde_json::Value {
        let mut command = scratch.cffs(["import", "--dry-run", "--json"]);
        let output = command.arg(target).arg(&source).arg("/in").output().expect("it starts");
        serde_json::from_slice(&output.stdout).expect("it is JSON")
    };
    let found = survey(&mount);
    assert_eq!((&found["files"], &found["replaced"]), (&2.into(), &1.into()));
    assert_eq!((&found["needed_bytes"], &found["fits"]), (&printed["needed_bytes"], &false.into()));
    fs::remove_file(source.join("large")).expect("removed");
    assert_eq!(survey(&scratch.image())["fits"], true);
    // The space of the target's quota counts.
    succeed(scratch.cffs(["quota", "set", "--size", "1"]).arg(mount.join("in")));
    let found = survey(&mount);
    assert_eq!((&found["available_bytes"], &found["fits"]), (&0.into(), &false.into()));
    assert_eq!(fs::read(mount.join("in/small")).expect("there"), b"earlier");
    scratch.umount();
}

/// Regression: the check of a truncated image advised a repair, which printed the same line.
#[test]
fn the_remedy_for_a_truncated_image_works() {
    let scratch = Scratch::with_image();
    let tree = scratch.path().join("tree");
    fs::create_dir(&tree).expect("made");
    fs::write(tree.join("file"), b"contents").expect("written");
    succeed(scratch.cffs(["import"]).arg(scratch.image()).arg(&tree).arg("/tree"));
    let whole = fs::metadata(scratch.image()).expect("there").len();
    let resize = |len| {
        let image = fs::File::options().write(true).open(scratch.image()).expect("open");
        image.set_len(len).expect("resized");
    };
    resize(whole / 2);
    for repair in ["-n", "-y"] {
        let output = scratch.cffs(["fsck", "-f", repair]).arg(scratch.image()).output();
        let output = output.expect("it starts");
        let said = String::from_utf8_lossy(&output.stdout);
        assert_eq!(output.status.code(), Some(4), "{repair}: {said}");
        assert!(said.contains("CF0103") && said.contains("no repair helps"), "{repair}: {said}");
        assert!(said.contains("extend it to that size"), "{repair}: {said}");
    }
    // The remedy that it names works.
    resize(whole);
    let output = scratch.cffs(["fsck", "-f", "-y"]).arg(scratch.image()).output();
    assert_eq!(output.expect("it starts").status.code(), Some(1));
    scratch.assert_clean();
    assert_eq!(succeed(scratch.cffs(["cat"]).arg(scratch.image()).arg("/tree/file")), "contents");
}

/// Regression: a check without -f read a whole clean volume, which e2fsck skips.
#[test]
fn a_clean_volume_is_skipped_unless_a_check_is_requested() {
    let scratch = Scratch::with_image();
    for arguments in [&["fsck"][..], &["fsck", "-p"]] {
        let said = succeed(scratch.cffs([]).args(arguments).arg(scratch.image()));
        assert!(said.contains("clean, not checked (-f checks it)"), "{arguments:?}: {said}");
    }
    for arguments in [&["fsck", "-f"][..], &["fsck", "-n"], &["fsck", "-y"]] {
        let said = succeed(scratch.cffs([]).args(arguments).arg(scratch.image()));
        assert!(said.contains(" inodes, ") && said.ends_with(": clean\n"), "{said}");
    }
}

/// Regression: `--journal 64M`, half a cylinder group, was refused because of the 24 KiB of the group's head.
#[test]
fn a_journal_may_be_half_a_group_and_sizes_are_told_with_units() {
    let scratch = Scratch::new();
    let mkfs = |size: &str, journal: &str| {
        let mut mkfs = scratch.cffs(["mkfs", "--force", "--size", size, "--journal", journal]);
        mkfs.arg(scratch.image());
        mkfs
    };
    let said = succeed(&mut mkfs("1G", "64M"));
    assert!(said.contains("a journal of 64.0 MiB"), "{said}");
    scratch.assert_clean();
    let said = fail(1, &mut mkfs("1G", "65M"));
    assert!(said.contains("a journal of 65 MiB is not possible") && said.contains("KiB"), "{said}");
    let said = fail(1, &mut mkfs("100k", "none"));
    assert!(said.contains("100 KiB is too small for a volume; the minimum is"), "{said}");
}

/// Regression: for `cffs rm`, `resume-version` was suggested, a command for programs.
#[test]
fn a_wrong_command_suggests_only_what_the_help_lists() {
    let scratch = Scratch::new();
    let said = fail(2, &mut scratch.cffs(["rm"]));
    assert!(!said.contains("resume-version"), "{said}");
    let said = fail(2, &mut scratch.cffs(["umoun"]));
    assert!(said.contains("umount"), "{said}");
}

/// Regression: a repair that lost 13 files said "1 problem, repaired", and "recovered after a crash" where
/// there was none.
#[test]
fn a_repair_says_what_was_lost() {
    let scratch = Scratch::with_image();
    let tree = scratch.path().join("tree");
    fs::create_dir(&tree).expect("made");
    for index in 0..5 {
        fs::write(tree.join(format!("file-{index}")), [index; 3000]).expect("written");
    }
    succeed(scratch.cffs(["import"]).arg(scratch.image()).arg(&tree).arg("/tree"));
    let image = fs::read(scratch.image()).expect("read");
    let at = image.windows(6).position(|bytes| bytes == b"file-3").expect("the name is there");
    let file = fs::File::options().write(true).open(scratch.image()).expect("open");
    file.write_at(b"FILE", at as u64).expect("damaged");
    drop(file);
    let output =
        scratch.cffs(["fsck", "-f", "-n"]).arg(scratch.image()).output().expect("it starts");
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(said.contains("with a repair: 5 files lost"), "{said}");
    let output =
        scratch.cffs(["fsck", "-f", "-y"]).arg(scratch.image()).output().expect("it starts");
    let said = String::from_utf8_lossy(&output.stdout);
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(said.contains("files in /tree/)") && said.contains(": 5 files lost"), "{said}");
    let first = said.lines().next().unwrap_or_default();
    assert!(first.contains("problem") && first.contains("5 files lost"), "a summary first: {said}");
    assert!(!said.contains("crash"), "{said}");
    assert!(said.contains("follows from the above"), "{said}");
}

/// Regression: printing to a full device was a panic of `import --dry-run` and of `fsck`, and other commands
/// silently lost their output.
#[test]
fn output_that_cannot_be_written_is_a_failure() {
    let scratch = Scratch::with_image();
    let source = scratch.path().join("file");
    fs::write(&source, b"contents").expect("written");
    succeed(scratch.cffs(["import", "-q"]).arg(scratch.image()).arg(&source));
    let image = scratch.image().display().to_string();
    let (image, source) = (image.as_str(), &*source.display().to_string());
    let commands: [(&[&str], i32); 20] = [
        (&["mkfs", "-f", image], 1),
        (&["import", "--dry-run", image, source], 1),
        (&["import", "--dry-run", "--json", image, source], 1),
        (&["import", image, source], 1),
        (&["import", "--json", image, source], 1),
        (&["ls", image], 1),
        (&["cat", image, "/file"], 1),
        (&["path", image, "1"], 1),
        (&["info", image], 1),
        (&["info", "--json", image], 1),
        (&["info", "--udev", image], 1),
        (&["inspect", image, "superblock"], 1),
        (&["tune", "--label", "x", image], 1),
        (&["trim", image], 1),
        (&["grow", image, "300M"], 1),
        (&["fsck", "-n", image], 8),
        (&["fsck", "-p", image], 8),
        (&["fsck", "-f", "-y", "--json", image], 8),
        (&["scrub", "--rate", "0", image], 8),
        (&["--help"], 1),
    ];
    for (arguments, code) in commands {
        let full = || fs::File::options().write(true).open("/dev/full").expect("open");
        let mut command = scratch.cffs([]);
        let said = fail(code, command.args(arguments).stdout(full()));
        assert!(said.contains("standard output: No space left"), "{arguments:?}: {said}");
        // If the message itself cannot be written, the exit code reports the failure.
        let mut command = scratch.cffs([]);
        fail(code, command.args(arguments).stdout(full()).stderr(full()));
    }
    scratch.assert_clean();
}

/// The arguments of each command for a closed pipe: enough to make it print something. `I` is an image, `D` a
/// directory that is not a mount point, `N` an unused name, `U` the URL of a store.
const UNREAD: [(&str, &[&str]); 33] = [
    ("mkfs", &["mkfs", "-f", "I"]),
    ("mount", &["mount", "I", "N"]),
    ("umount", &["umount", "D"]),
    ("serve", &["serve", "N"]),
    ("restart", &["restart", "D"]),
    ("sync", &["sync", "D"]),
    ("fsck", &["fsck", "-f", "-n", "I"]),
    ("scrub", &["scrub", "I"]),
    ("grow", &["grow", "I", "300M"]),
    ("tune", &["tune", "--label", "x", "I"]),
    ("trim", &["trim", "I"]),
    ("info", &["info", "I"]),
    ("ls", &["ls", "-lR", "I"]),
    ("cat", &["cat", "I", "/file"]),
    ("import", &["import", "I", "D", "/in"]),
    ("export", &["export", "I", "/", "N"]),
    ("tar", &["tar", "I"]),
    ("snapshot", &["snapshot", "ls", "U"]),
    ("clone", &["clone", "U@v", "U"]),
    ("destroy", &["destroy", "--yes", "U"]),
    ("cp", &["cp", "-a", "N", "N"]),
    ("rm", &["rm", "-f", "N"]),
    ("publish", &["publish", "-q", "D", "U@v"]),
    ("mark", &["mark", "I"]),
    ("changes", &["changes", "--since", "m", "I"]),
    ("quota", &["quota", "list", "--json", "I"]),
    ("stats", &["stats", "D"]),
    ("explain", &["explain", "D"]),
    ("layout", &["layout", "I"]),
    ("regroup", &["regroup", "--dry-run", "I"]),
    ("trace", &["trace", "D"]),
    ("path", &["path", "I", "1"]),
    ("inspect", &["inspect", "I", "superblock"]),
];

/// Regression: `fsck IMAGE | head` ended with 8, as if the check could not have been made.
#[test]
fn a_closed_pipe_causes_no_panic() {
    let scratch = Scratch::with_image();
    let file = scratch.path().join("file");
    fs::write(&file, vec![b'x'; 100_000]).expect("written");
    let directory = scratch.path().join("directory");
    fs::create_dir(&directory).expect("made");
    let words = |word: &str| match word {
        "I" => scratch.image().display().to_string(),
        "D" => directory.display().to_string(),
        "N" => scratch.path().join("missing").display().to_string(),
        word => word.replace('U', &format!("file://{}/store", scratch.path().display())),
    };
    let help = succeed(&mut scratch.cffs(["--help"]));
    let listed = help.lines().skip_while(|line| *line != "Commands:").skip(1);
    let listed: Vec<&str> = listed
        .take_while(|line| !line.is_empty())
        .filter_map(|line| line.strip_prefix("  ")?.split(' ').next())
        .filter(|name| !name.is_empty() && *name != "help")
        .collect();
    let known: Vec<&str> = UNREAD.iter().map(|(name, _)| *name).collect();
    assert_eq!(listed, known, "each command is called here");
    for (name, arguments) in UNREAD {
        if name == "cat" {
            succeed(scratch.cffs(["import", "-q"]).arg(scratch.image()).arg(&file));
        }
        for json in [None, Some("--json")] {
            let (reader, writer) = std::io::pipe().expect("a pipe");
            drop(reader);
            let mut command = scratch.cffs([]);
            command.args(arguments.iter().map(|word| words(word))).args(json).stdout(writer);
            let output = command.output().expect("it starts");
            let said = String::from_utf8_lossy(&output.stderr);
            assert!(!said.contains("panicked"), "{name}: {said}");
            let code = output.status.code();
            assert!(matches!(code, Some(0 | 1 | 2 | 8 | 16 | 32)), "{name}: {code:?}: {said}");
            // The exit code reports the findings even if no program reads the report.
            if ["fsck", "scrub"].contains(&name) && json.is_none() {
                assert_eq!((code, &*said), (Some(0), ""), "{name}");
            }
        }
    }
}

#[test]
fn path_finds_every_name_of_an_inode() {
    let scratch = Scratch::with_image();
    let tree = scratch.path().join("tree");
    fs::create_dir_all(tree.join("a/b")).expect("made");
    fs::write(tree.join("a/b/one"), b"1").expect("written");
    fs::hard_link(tree.join("a/b/one"), tree.join("a/two")).expect("linked");
    fs::write(tree.join("a/tab\there"), b"2").expect("written");
    succeed(scratch.cffs(["import", "-q"]).arg(scratch.image()).arg(&tree));
    let number = |path: &str| {
        let listed = succeed(scratch.cffs(["ls", "-d", "--json"]).arg(scratch.image()).arg(path));
        let listed: serde_json::Value = serde_json::from_str(&listed).expect("it is JSON");
        listed["ino"].to_string()
    };
    let path = |inodes: &[&str]| {
        let mut command = scratch.cffs(["path"]);
        command.arg(scratch.image()).args(inodes);
        command
    };
    let file = number("/a/b/one");
    let mut found: Vec<String> = succeed(&mut path(&[&file])).lines().map(Into::into).collect();
    found.sort();
    assert_eq!(found, [format!("{file}\t/a/b/one"), format!("{file}\t/a/two")]);
    let dir = number("/a/b");
    assert_eq!(succeed(&mut path(&[&dir, "1"])), format!("1\t/\n{dir}\t/a/b\n"));
    let odd = number("/a/tab\there");
    assert_eq!(succeed(&mut path(&[&odd])), format!("{odd}\t/a/tab\\there\n"));

    // A free inode has no path; the others are printed nevertheless.
    let mut both = path(&["999999", &dir]);
    let output = both.output().expect("it starts");
    assert_eq!(output.status.code(), Some(1));
    assert_eq!(String::from_utf8_lossy(&output.stdout), format!("{dir}\t/a/b\n"));
    assert!(String::from_utf8_lossy(&output.stderr).contains("inode 999999 has no path"));
    fail(2, &mut path(&["0"]));

    // A mounted volume is searched for the same numbers, given its directory or its image.
    if crate::harness::can_mount() {
        scratch.mount("ro");
        let mount = scratch.mountpoint();
        for target in [scratch.image(), mount.clone()] {
            let mut command = scratch.cffs(["path", "--json"]);
            let printed = succeed(command.arg(&target).args([&file, "1"]));
            let printed: Vec<serde_json::Value> =
                printed.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect();
            assert_eq!(printed[0]["paths"], serde_json::json!([mount.to_string_lossy()]));
            let mut paths: Vec<&str> = printed[1]["paths"]
                .as_array()
                .expect("a list")
                .iter()
                .flat_map(|p| p.as_str())
                .collect();
            paths.sort_unstable();
            let expected = [mount.join("a/b/one"), mount.join("a/two")];
            assert_eq!(paths.iter().map(std::path::PathBuf::from).collect::<Vec<_>>(), expected);
        }
        fail(1, scratch.cffs(["path"]).arg(&mount).arg("999999"));
        scratch.umount();
    }
}
