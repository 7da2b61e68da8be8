//! Exit codes and messages of copying commands: if data was lost, the exit code is never 0.

use std::ffi::OsStr;
use std::fs::{self, File};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;

use cffs::clock::SystemClock;
use cffs::units::InodeNo;
use cffs::vfs::{OpenOptions, XattrMode, set_own_xattr};
use rustix::fs::{XattrFlags, lgetxattr, llistxattr, lremovexattr, lsetxattr};
use rustix::io::Errno;

use crate::harness::{Scratch, can_mount, fail, succeed, umount_8};

fn with_tree() -> Scratch {
    let scratch = Scratch::with_image();
    let source = scratch.path().join("source");
    fs::create_dir(&source).expect("made");
    for index in 0..20 {
        fs::write(source.join(format!("f{index}")), vec![index; 100_000]).expect("written");
    }
    succeed(scratch.cffs(["import", "-q"]).arg(scratch.image()).arg(&source));
    scratch
}

/// Standard output without space.
fn full() -> Stdio {
    File::options().write(true).open("/dev/full").expect("opened").into()
}

#[test]
fn output_that_could_not_be_written_is_a_failure() {
    let scratch = with_tree();
    let (image, target) = (scratch.image(), scratch.path().join("target"));
    let source = scratch.path().join("source");
    let commands = [
        scratch.cffs(["cat"]).arg(&image).arg("/f7").stdout(full()).output(),
        scratch.cffs(["ls", "-l"]).arg(&image).stdout(full()).output(),
        scratch.cffs(["ls", "--json", "-R"]).arg(&image).stdout(full()).output(),
        scratch.cffs(["export"]).arg(&image).arg("/").arg(&target).stdout(full()).output(),
        scratch.cffs(["import"]).arg(&image).arg(&source).stdout(full()).output(),
        scratch.cffs(["import", "--json"]).arg(&image).arg(&source).stdout(full()).output(),
    ];
    for output in commands {
        let output = output.expect("it starts");
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(1), "{said}");
        assert!(said.contains("No space left on device"), "{said}");
    }
}

#[test]
fn the_path_that_could_not_be_used_is_named() {
    let scratch = with_tree();
    let image = scratch.image();
    let said = fail(1, scratch.cffs(["export"]).arg(&image).args(["/nope", "x"]));
    assert!(said.contains("/nope: no such file or directory"), "{said}");
    let said = fail(1, scratch.cffs(["cat"]).arg(&image).args(["/f1", "/nope"]));
    assert!(said.contains("/nope: no such file or directory"), "{said}");
    let said = fail(1, scratch.cffs(["ls"]).arg(&image).arg("/nope"));
    assert!(said.contains("/nope: no such file or directory"), "{said}");
    let missing = scratch.path().join("missing");
    let said = fail(1, scratch.cffs(["import"]).arg(&image).arg(&missing));
    assert!(said.contains(&format!("{}: No such file", missing.display())), "{said}");
}

#[test]
fn a_tree_that_does_not_fit_is_a_failure() {
    let scratch = with_tree();
    let small = scratch.path().join("small.cffs");
    succeed(scratch.cffs(["mkfs", "-q", "--size", "1M"]).arg(&small));
    let said = fail(1, scratch.cffs(["import"]).arg(&small).arg(scratch.path().join("source")));
    assert!(said.contains("no space left on the volume"), "{said}");
    succeed(scratch.cffs(["fsck", "-f", "-n"]).arg(&small));
}

#[test]
fn an_export_to_a_full_host_is_a_failure() {
    if !rustix::process::geteuid().is_root() {
        eprintln!("not run: mounting tmpfs takes root");
        return;
    }
    let scratch = with_tree();
    let target = scratch.path().join("small");
    fs::create_dir(&target).expect("made");
    let mount = ["-t", "tmpfs", "-o", "size=1M", "none"];
    succeed(Command::new("mount").args(mount).arg(&target));
    let output = scratch.cffs(["export"]).arg(scratch.image()).arg("/").arg(&target).output();
    umount_8(&target);
    let output = output.expect("it starts");
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(said.contains("No space left on device") && said.contains("small/f"), "{said}");
}

/// If one file cannot be copied, the others are, and the command fails.
#[test]
fn a_file_that_could_not_be_copied_makes_the_command_fail() {
    let scratch = with_tree();
    let target = scratch.path().join("target");
    fs::create_dir_all(target.join("f3/in the way")).expect("made");
    let said = fail(1, scratch.cffs(["export"]).arg(scratch.image()).arg("/").arg(&target));
    assert!(said.contains("target/f3: ") && said.contains("1 file could not"), "{said}");
    assert_eq!(fs::read_dir(&target).expect("there").count(), 20);
}

/// Regression: files of /proc report a size of 0, and those of /sys the size of a page: the former were
/// copied as empty files, with success, and the latter not at all.
#[test]
fn files_with_a_wrong_size_are_copied_completely() {
    let scratch = Scratch::with_image();
    for (file, name) in [("/proc/self/mountinfo", "/mountinfo"), ("/proc/version", "/version")] {
        succeed(scratch.cffs(["import", "-q"]).arg(scratch.image()).arg(file).arg(name));
        let copied = succeed(scratch.cffs(["cat"]).arg(scratch.image()).arg(name));
        assert!(!copied.is_empty(), "{file}");
    }
    let version = fs::read_to_string("/proc/version").expect("there");
    assert_eq!(succeed(scratch.cffs(["cat"]).arg(scratch.image()).arg("/version")), version);
    let page = "/sys/kernel/mm/transparent_hugepage/enabled";
    if let Ok(expected) = fs::read_to_string(page) {
        succeed(scratch.cffs(["import", "-q"]).arg(scratch.image()).arg(page).arg("/page"));
        assert_eq!(succeed(scratch.cffs(["cat"]).arg(scratch.image()).arg("/page")), expected);
    }
    scratch.assert_clean();
}

/// Regression: two names of one symbolic link became two links.
#[test]
fn hard_links_of_a_symbolic_link_stay_one_file() {
    use std::os::unix::fs::MetadataExt;
    let scratch = Scratch::with_image();
    let tree = scratch.path().join("tree");
    fs::create_dir(&tree).expect("made");
    std::os::unix::fs::symlink("target", tree.join("a")).expect("made");
    fs::hard_link(tree.join("a"), tree.join("b")).expect("made");
    succeed(scratch.cffs(["import", "-q"]).arg(scratch.image()).arg(&tree).arg("/tree"));
    let back = scratch.path().join("back");
    succeed(scratch.cffs(["export", "-q"]).arg(scratch.image()).arg("/tree").arg(&back));
    let (a, b) = (fs::symlink_metadata(back.join("a")), fs::symlink_metadata(back.join("b")));
    let (a, b) = (a.expect("there"), b.expect("there"));
    assert_eq!((a.ino(), a.nlink()), (b.ino(), 2));
}

/// Creates nested directories until the path of the last one exceeds the limit, and a file in it.
fn make_deep(top: &std::path::Path, depth: usize) {
    use rustix::fs::{CWD, Mode, OFlags, mkdirat, openat};
    let mut dir = openat(CWD, top, OFlags::DIRECTORY, Mode::empty()).expect("opened");
    for _ in 0..depth {
        mkdirat(&dir, "directory", Mode::from_raw_mode(0o750)).expect("made");
        dir = openat(&dir, "directory", OFlags::DIRECTORY, Mode::empty()).expect("opened");
    }
    let flags = OFlags::CREATE | OFlags::WRONLY;
    drop(openat(&dir, "leaf", flags, Mode::from_raw_mode(0o640)).expect("made"));
}

/// Regression: `cffs path` found no path of more than 4,096 bytes on a mount.
#[test]
fn a_tree_deeper_than_any_path_is_copied_and_searched() {
    const DEPTH: usize = 600;
    let scratch = Scratch::with_image();
    let tree = scratch.path().join("tree");
    fs::create_dir_all(tree.join("other/below")).expect("made");
    fs::write(tree.join("other/below/file"), b"x").expect("written");
    make_deep(&tree, DEPTH);
    succeed(scratch.cffs(["import", "-q"]).arg(scratch.image()).arg(&tree));
    let leaf = format!("{}/leaf", "/directory".repeat(DEPTH));
    let back = scratch.path().join("back");
    succeed(scratch.cffs(["export", "-q"]).arg(scratch.image()).arg("/").arg(&back));
    let listed = |top: &std::path::Path| {
        let format = ["-printf", "%P %y %m %T@\\n"];
        let mut lines: Vec<String> =
            succeed(Command::new("find").arg(top).args(format)).lines().map(String::from).collect();
        lines.sort();
        lines
    };
    assert_eq!(listed(&back), listed(&tree));
    let archive = scratch.cffs(["tar"]).arg(scratch.image()).output().expect("it starts");
    let file = scratch.path().join("archive");
    fs::write(&file, &archive.stdout).expect("written");
    let mut tar = scratch.cffs(["tar", "-x"]);
    succeed(tar.arg(scratch.image()).arg("/again").stdin(fs::File::open(&file).expect("there")));
    let again = succeed(scratch.cffs(["ls", "-R"]).arg(scratch.image()).arg("/again"));
    assert!(again.lines().any(|line| line == format!("/again{leaf}")));
    if can_mount() {
        let number = succeed(scratch.cffs(["ls", "-d", "--json"]).arg(scratch.image()).arg(&leaf));
        let number: serde_json::Value = serde_json::from_str(&number).expect("it is JSON");
        let number = number["ino"].to_string();
        let tar = |volume: &Path| scratch.cffs(["tar"]).arg(volume).output().expect("it starts");
        let unmounted = tar(&scratch.image());
        scratch.mount("ro");
        // Regression: the archive of a mounted volume lacked these files.
        let mounted = tar(&scratch.mountpoint());
        assert!(mounted.status.success(), "{}", String::from_utf8_lossy(&mounted.stderr));
        assert!(mounted.stdout == unmounted.stdout, "the archives differ");
        let found = succeed(scratch.cffs(["path"]).arg(scratch.mountpoint()).arg(&number));
        assert_eq!(found, format!("{number}\t{}{leaf}\n", scratch.mountpoint().display()));
        scratch.umount();
    }
    // The cleanup of scratch directories uses whole paths.
    for top in [tree, back] {
        succeed(Command::new("rm").arg("-rf").arg(top));
    }
}

/// The key of NFS handles, with which a client could forge them.
const KEY: &str = "trusted.cffs.nfs.key";

/// Makes a volume with a key of NFS handles, as `cffs serve` does.
fn set_key(image: &Path) {
    let device = cffs::device::FileDevice::open(image, Default::default()).expect("opened");
    let volume = cffs::open(Arc::new(device), Arc::new(SystemClock), OpenOptions::default());
    let volume = volume.expect("opened");
    let key = KEY.as_bytes();
    set_own_xattr(&volume, InodeNo::ROOT, key, &[7; 16], XattrMode::Any).expect("set");
    volume.close().expect("closed");
}

/// Whether the root directory of a volume has the key.
fn has_key(scratch: &Scratch, volume: impl AsRef<OsStr>) -> bool {
    let root = scratch.cffs(["inspect", "--json"]).arg(volume).args(["path", "/"]).output();
    let root = String::from_utf8_lossy(&root.expect("it starts").stdout).into_owned();
    assert!(root.contains("\"xattrs\""), "{root}");
    root.contains(KEY)
}

/// Regression: archives, exports and published versions had the key of NFS handles, and volumes that were
/// filled from them took it over.
#[test]
fn no_copy_has_the_key_of_nfs_handles() {
    let scratch = with_tree();
    let (image, copy) = (scratch.image(), scratch.path().join("copy.cffs"));
    set_key(&image);
    assert!(has_key(&scratch, &image));
    let archive = scratch.cffs(["tar"]).arg(&image).output().expect("it starts").stdout;
    assert!(archive.len() > 2_000_000);
    assert!(!archive.windows(KEY.len()).any(|bytes| bytes == KEY.as_bytes()));
    let url = format!("file://{}/store@1", scratch.path().display());
    succeed(scratch.cffs(["publish", "-q"]).arg(&image).arg(&url));
    assert!(!has_key(&scratch, &url));
    let out = scratch.path().join("out");
    succeed(scratch.cffs(["export", "-q"]).arg(&image).arg("/").arg(&out));
    assert!(lgetxattr(&out, KEY, &mut [0; 16]).is_err());

    // An archive and a tree that have the attribute.
    succeed(scratch.cffs(["mkfs", "-q", "--size", "64M"]).arg(&copy));
    let option = format!("--pax-option=SCHILY.xattr.{KEY}:=0123456789abcdef");
    let with_key = scratch.path().join("archive");
    let mut tar = Command::new("tar");
    tar.args(["-c", "--format=pax", &option, "-f"]).arg(&with_key).arg("-C").arg(&out).arg(".");
    succeed(&mut tar);
    let mut extract = scratch.cffs(["tar", "-x"]);
    succeed(extract.arg(&copy).arg("/").stdin(File::open(&with_key).expect("there")));
    assert!(!has_key(&scratch, &copy));
    if lsetxattr(&out, KEY, &[7; 16], XattrFlags::empty()).is_ok() {
        succeed(scratch.cffs(["import", "-q"]).arg(&copy).arg(&out));
        succeed(scratch.cffs(["publish", "-q"]).arg(&out).arg(url.replace("@1", "@2")));
        assert!(!has_key(&scratch, &copy) && !has_key(&scratch, url.replace("@1", "@2")));
    }
}

/// Root could read the key of NFS handles on a mount, and so copied it with a tree.
#[test]
fn a_mount_does_not_show_the_key_of_nfs_handles() {
    if !can_mount() {
        return;
    }
    let scratch = Scratch::with_image();
    set_key(&scratch.image());
    scratch.mount("rw");
    let root = scratch.mountpoint();
    let mut names = [0; 4096];
    let len = llistxattr(&root, &mut names).expect("listed");
    assert!(!String::from_utf8_lossy(&names[..len]).contains("cffs"));
    assert_eq!(lgetxattr(&root, KEY, &mut [0; 16]), Err(Errno::NODATA));
    if rustix::process::geteuid().is_root() {
        let set = lsetxattr(&root, KEY, &[8; 16], XattrFlags::empty());
        assert_eq!(set, Err(Errno::OPNOTSUPP));
        lremovexattr(&root, KEY).expect("removed, which ends all handles");
        assert_eq!(lremovexattr(&root, KEY), Err(Errno::NODATA));
    }
    scratch.umount();
    assert_eq!(has_key(&scratch, scratch.image()), !rustix::process::geteuid().is_root());
}
