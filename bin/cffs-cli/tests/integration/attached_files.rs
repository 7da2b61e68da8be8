//! `cffs import` and `cffs tar --extract` into a mounted volume: its server makes the files.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{IoSlice, Read, Write};
use std::mem::MaybeUninit;
use std::num::NonZeroUsize;
use std::os::fd::AsFd;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt, chown, symlink};
use std::os::unix::net::{SocketAddr, UnixStream};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, UNIX_EPOCH};

use cffs::files::{CopyOptions, Node, Observer, import_into};
use cffs::wire::{ATTRIBUTE, Call, Invitation, VERSION};
use rustix::fs::{FileType, Mode, XattrFlags, getxattr, lgetxattr, llistxattr, mknodat, setxattr};
use rustix::mount::{MountFlags, mount_remount};
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};

use crate::harness::{CFFS, Scratch, can_mount, fail, succeed, wait_for};

const OWNER: u32 = 1000;

fn is_root_with_mounts() -> bool {
    can_mount() && rustix::process::geteuid().is_root()
}

/// Makes a tree with files of all kinds and sizes.
fn fill(tree: &Path) {
    let mode = |path: &Path, mode| {
        fs::set_permissions(path, PermissionsExt::from_mode(mode)).expect("set");
    };
    fs::create_dir_all(tree.join("many/below")).expect("made");
    for (number, bytes) in
        [0, 1, 100, 4096, 70_000, 1 << 20, (1 << 20) + 1, 3 << 20].iter().enumerate()
    {
        let path = tree.join(format!("{number}"));
        fs::write(&path, vec![number as u8; *bytes]).expect("written");
        mode(&path, [0o644, 0o600, 0o4755, 0o2755, 0o444][number % 5]);
        chown(&path, Some(OWNER), Some(OWNER + number as u32)).expect("given away");
        mode(&path, [0o644, 0o600, 0o4755, 0o2755, 0o444][number % 5]);
    }
    for number in 0..300 {
        fs::write(tree.join(format!("many/{number}")), format!("{number}")).expect("written");
    }
    let sparse = File::create(tree.join("sparse")).expect("made");
    sparse.set_len(5 << 20).expect("sized");
    sparse.write_all_at(b"in the middle", 2 << 20).expect("written");
    fs::hard_link(tree.join("3"), tree.join("many/below/hard link")).expect("linked");
    symlink("../3", tree.join("many/link")).expect("linked");
    let fifo = Mode::from_raw_mode(0o640);
    mknodat(rustix::fs::CWD, tree.join("fifo"), FileType::Fifo, fifo, 0).expect("made");
    let attribute = |path: &Path, name: &str, value: &[u8]| {
        setxattr(path, name, value, XattrFlags::empty()).expect("set");
    };
    attribute(&tree.join("1"), "user.a", b"value");
    attribute(&tree.join("many"), "user.b", b"of a directory");
    // The user 7 may read and write.
    let acl =
        b"\x02\0\0\0\x01\0\x06\0\xff\xff\xff\xff\x02\0\x06\0\x07\0\0\0\x04\0\x04\0\xff\xff\xff\xff\
        \x10\0\x06\0\xff\xff\xff\xff\x20\0\x04\0\xff\xff\xff\xff";
    attribute(&tree.join("4"), "system.posix_acl_access", acl);
    mode(&tree.join("many/below"), 0o2770);
    fs::create_dir(tree.join("closed")).expect("made");
    fs::write(tree.join("closed/file"), "of an owner who may not add another one")
        .expect("written");
    mode(&tree.join("closed"), 0o555);
}

/// All that shows of the files below a directory, except for the times of changes.
fn shown(top: &Path) -> BTreeMap<PathBuf, String> {
    let (mut all, mut pending) = (BTreeMap::new(), vec![top.to_owned()]);
    while let Some(path) = pending.pop() {
        let data = fs::symlink_metadata(&path).expect("there");
        let mut contents = Vec::new();
        if data.is_dir() {
            pending.extend(fs::read_dir(&path).expect("listed").map(|entry| entry.unwrap().path()));
        } else if data.is_file() {
            contents = fs::read(&path).expect("read");
        }
        let link = fs::read_link(&path).ok();
        let size = if data.is_dir() { 0 } else { data.size() };
        let mut names = vec![0; 4096];
        let len = llistxattr(&path, &mut names).expect("listed");
        let values = names[..len].split(|byte| *byte == 0).map(|name| {
            let mut value = vec![0; 4096];
            let len = lgetxattr(&path, name, &mut value).unwrap_or(0);
            format!("{}={:?}", name.escape_ascii(), &value[..len])
        });
        let mut values: Vec<String> = values.collect();
        values.sort();
        let text = format!(
            "{:o} {} {} {size} {} {}.{} {link:?} {values:?} {}",
            data.mode(),
            data.uid(),
            data.gid(),
            data.nlink(),
            data.mtime(),
            data.mtime_nsec(),
            crc(&contents)
        );
        all.insert(path.strip_prefix(top).expect("below it").to_owned(), text);
    }
    all
}

fn crc(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0, |sum, byte| sum.rotate_left(5) ^ u64::from(*byte))
}

#[test]
fn an_imported_tree_equals_one_imported_unmounted() {
    if !is_root_with_mounts() {
        return;
    }
    let scratch = Scratch::with_image();
    let source = scratch.path().join("source");
    fill(&source);
    let import = |into: &Path, target: &str| {
        succeed(scratch.cffs(["import"]).arg(into).arg(&source).arg(target))
    };
    let counts = import(&scratch.image(), "/unmounted");
    scratch.mount("");
    let dir = scratch.mountpoint();
    // The kernel knows that the names do not exist, and an older file.
    let made = dir.join("below/mounted");
    fs::create_dir_all(&made).expect("made");
    fs::write(made.join("2"), "an older file that is replaced").expect("written");
    assert!(fs::metadata(made.join("many")).is_err());
    assert_eq!(fs::read_dir(&made).expect("listed").count(), 1);
    let old = File::open(made.join("2")).expect("opened");
    assert_eq!(import(&dir.join("below"), "/mounted"), counts);
    assert_eq!(shown(&made), shown(&dir.join("unmounted")));
    assert_eq!(old.metadata().expect("there").nlink(), 0, "it was replaced");
    // Again, over the files that are there.
    assert_eq!(import(&dir.join("below"), "/mounted"), counts);
    assert_eq!(shown(&made), shown(&dir.join("unmounted")));
    drop(old);
    scratch.umount();
    scratch.assert_clean();
}

#[test]
fn a_tree_is_extracted_as_by_tar() {
    if !is_root_with_mounts() {
        return;
    }
    let scratch = Scratch::with_image();
    let (source, archive) = (scratch.path().join("source"), scratch.path().join("archive"));
    fill(&source);
    let mut tar = Command::new("tar");
    succeed(tar.args(["-c", "--format=pax", "-f"]).arg(&archive).arg("-C").arg(&source).arg("."));
    scratch.mount("allow_other");
    drop(scratch.cffs_by_nobody([]));
    let program = scratch.path().join("cffs");
    let user: &[&str] = &["--reuid=1000", "--regid=1000", "--clear-groups"];
    for (who, ids) in [("root", &["--reuid=0"][..]), ("user", user)] {
        let [by_kernel, by_server] =
            ["kernel", "server"].map(|way| scratch.mountpoint().join(format!("{who}-{way}")));
        let run = |words: &[&str], into: &Path| {
            fs::create_dir(into).expect("made");
            chown(into, Some(if who == "user" { OWNER } else { 0 }), None).expect("given away");
            let mut command = Command::new("setpriv");
            command.args(ids).args(["sh", "-c", "umask 027; exec \"$@\"", "sh"]).args(words);
            command.arg(into).stdin(File::open(&archive).expect("opened"));
            succeed(&mut command)
        };
        run(&["tar", "-x", "-f", "-", "-C"], &by_kernel);
        run(&[program.to_str().expect("text"), "tar", "-x", "--no-xattrs"], &by_server);
        assert_eq!(shown(&by_server), shown(&by_kernel), "{who}");
    }
    scratch.umount();
    scratch.assert_clean();
}

/// The files of root with set-id bits. Others may be made or removed meanwhile.
fn programs_of_root(top: &Path) -> Vec<PathBuf> {
    let (mut found, mut pending) = (Vec::new(), vec![top.to_owned()]);
    while let Some(path) = pending.pop() {
        let Ok(data) = fs::symlink_metadata(&path) else { continue };
        if data.is_dir() {
            let names = fs::read_dir(&path).into_iter().flatten().flatten();
            pending.extend(names.map(|entry| entry.path()));
        } else if data.uid() == 0 && data.mode() & 0o6000 != 0 {
            found.push(path);
        }
    }
    found
}

/// Ends a copy in the middle of its first file.
#[derive(Default)]
struct Impatient(AtomicUsize);

impl Observer for Impatient {
    fn is_cancelled(&self) -> bool {
        // Asked before the directory, before the file, and before each megabyte of it.
        self.0.fetch_add(1, Ordering::Relaxed) >= 4
    }
}

/// Regression: the file was root's, with the set-id bits and contents of another user.
#[test]
fn a_file_that_is_copied_in_part_gives_no_rights() {
    if !is_root_with_mounts() {
        return;
    }
    let scratch = Scratch::with_image();
    let source = scratch.path().join("source");
    fs::create_dir(&source).expect("made");
    fs::write(source.join("program"), vec![1; 3 << 20]).expect("written");
    chown(source.join("program"), Some(OWNER), Some(OWNER)).expect("given away");
    fs::set_permissions(source.join("program"), PermissionsExt::from_mode(0o6755)).expect("set");
    scratch.mount("");
    let dir = scratch.mountpoint();
    let root = Node::attach(&dir).expect("attached");
    let options = CopyOptions { threads: NonZeroUsize::new(1), ..CopyOptions::default() };
    let summary = import_into(&root, &source, b"/", &options, &Impatient::default());
    assert_eq!(summary.expect("the copy has begun").failures, 1);
    let left = fs::metadata(dir.join("program")).expect("a part is there");
    assert!((1..3 << 20).contains(&left.size()), "{}", left.size());
    assert_eq!((left.uid(), left.mode() & 0o7777), (0, 0o700));
    drop(root);
    scratch.umount();
    scratch.assert_clean();
}

/// A tar(1) archive of the files in a directory.
fn archive_of(source: &Path, words: &[&str]) -> Vec<u8> {
    let mut tar = Command::new("tar");
    let made = tar.args(["-c", "--format=pax", "-b", "1", "-C"]).arg(source).args(words).output();
    made.expect("it starts").stdout
}

#[test]
fn the_files_before_the_error_of_an_archive_are_extracted() {
    if !is_root_with_mounts() {
        return;
    }
    let scratch = Scratch::with_image();
    let source = scratch.path().join("source");
    fs::create_dir(&source).expect("made");
    let names: Vec<String> = (10..21).map(|number| number.to_string()).collect();
    for name in &names {
        fs::write(source.join(name), vec![1; 1000]).expect("written");
    }
    let words: Vec<&str> = names.iter().map(String::as_str).collect();
    let mut archive = archive_of(&source, &words);
    // The last file, and the end of the archive.
    archive.truncate(archive.len() - 1024 - 700);
    fs::write(scratch.path().join("cut"), archive).expect("written");
    scratch.mount("");
    let dir = scratch.mountpoint();
    let cut = File::open(scratch.path().join("cut")).expect("opened");
    fail(1, scratch.cffs(["tar", "-x"]).arg(&dir).stdin(cut));
    for name in &names[..10] {
        assert_eq!(fs::read(dir.join(name)).expect("there").len(), 1000, "{name}");
    }
    scratch.umount();
    scratch.assert_clean();
}

#[test]
fn a_restart_ends_an_extraction_with_one_message() {
    if !is_root_with_mounts() {
        return;
    }
    let scratch = Scratch::with_image();
    let source = scratch.path().join("source");
    fs::create_dir(&source).expect("made");
    for number in 1000..2000 {
        fs::write(source.join(number.to_string()), vec![1; 1000]).expect("written");
    }
    let archive = archive_of(&source, &["--sort=name", "."]);
    scratch.mount("");
    let dir = scratch.mountpoint();
    let mut tar = scratch.cffs(["tar", "-x"]);
    tar.arg(&dir).stdin(Stdio::piped()).stderr(Stdio::piped());
    let mut tar = tar.spawn().expect("it starts");
    let mut input = tar.stdin.take().expect("piped");
    let (begin, rest) = archive.split_at(archive.len() / 2);
    input.write_all(begin).expect("read");
    wait_for(|| dir.join("1300").exists());
    succeed(scratch.cffs(["restart"]).arg(&dir));
    let _ = input.write_all(rest);
    drop(input);
    let ended = tar.wait_with_output().expect("ended");
    let said = String::from_utf8_lossy(&ended.stderr).into_owned();
    assert_eq!(ended.status.code(), Some(1), "{said}");
    assert!(said.contains("its server restarted"), "{said}");
    assert_eq!(said.lines().count(), 1, "{said}");
    scratch.umount();
    scratch.assert_clean();
}

#[test]
fn a_user_extracts_an_archive_without_the_attributes_of_the_system() {
    if !is_root_with_mounts() {
        return;
    }
    let scratch = Scratch::with_image();
    let source = scratch.path().join("source");
    fs::create_dir(&source).expect("made");
    fs::write(source.join("file"), "contents").expect("written");
    for name in ["user.a", "trusted.b", "security.c"] {
        setxattr(source.join("file"), name, b"value", XattrFlags::empty()).expect("set");
    }
    let archive = archive_of(&source, &["--xattrs", "--xattrs-include=*", "file"]);
    fs::write(scratch.path().join("archive"), archive).expect("written");
    scratch.mount("allow_other");
    drop(scratch.cffs_by_nobody([]));
    let into = scratch.mountpoint().join("of user");
    fs::create_dir(&into).expect("made");
    chown(&into, Some(OWNER), None).expect("given away");
    let mut tar = Command::new("setpriv");
    tar.args(["--reuid=1000", "--regid=1000", "--clear-groups"]).arg(scratch.path().join("cffs"));
    tar.args(["tar", "-x"]).arg(&into);
    succeed(tar.stdin(File::open(scratch.path().join("archive")).expect("opened")));
    let shown = shown(&into);
    assert!(shown[Path::new("file")].contains("user.a="), "{shown:?}");
    assert!(!shown[Path::new("file")].contains("trusted."), "{shown:?}");
    scratch.umount();
    scratch.assert_clean();
}

/// Regression: the message named no attribute, and the copies lost their times and owners.
#[test]
fn a_copy_without_a_refused_attribute_has_all_others() {
    if !is_root_with_mounts() {
        return;
    }
    let scratch = Scratch::with_image();
    let source = scratch.path().join("source");
    fs::create_dir_all(source.join("dir")).expect("made");
    fs::write(source.join("file"), "contents").expect("written");
    let refused = [("file", "security.b"), ("dir", "trusted.b")];
    for (name, refused) in refused {
        let path = source.join(name);
        for attribute in [refused, "security.selinux", "user.a", "user.c"] {
            setxattr(&path, attribute, b"value", XattrFlags::empty()).expect("set");
        }
        chown(&path, Some(OWNER), Some(OWNER)).expect("given away");
        fs::set_permissions(&path, PermissionsExt::from_mode(0o751)).expect("set");
        let opened = File::open(&path).expect("opened");
        opened.set_modified(UNIX_EPOCH + Duration::from_secs(12345)).expect("set");
    }
    let archive = archive_of(&source, &["--xattrs", "--xattrs-include=*", "file", "dir"]);
    fs::write(scratch.path().join("archive"), archive).expect("written");
    scratch.mount("");
    let into = ["import", "tar"].map(|name| scratch.mountpoint().join(name));
    into.iter().for_each(|into| fs::create_dir(into).expect("made"));
    let said = [
        fail(1, scratch.cffs(["import"]).arg(&into[0]).arg(&source)),
        fail(
            1,
            scratch
                .cffs(["tar", "-x"])
                .arg(&into[1])
                .stdin(File::open(scratch.path().join("archive")).expect("opened")),
        ),
    ];
    let shows = |name: &str| format!("\"{name}={:?}\", ", b"value");
    for (into, said) in into.iter().zip(said) {
        assert!(!said.contains("selinux"), "a label is left out: {said}");
        for (name, refused) in refused {
            let is_named = |line: &str| line.contains(name) && line.contains(refused);
            assert!(said.lines().any(is_named), "{name}: {said}");
            let mut wanted = shown(&source)[Path::new(name)].clone();
            for attribute in [refused, "security.selinux"] {
                assert!(wanted.contains(&shows(attribute)), "{wanted}");
                wanted = wanted.replace(&shows(attribute), "");
            }
            assert_eq!(shown(into)[Path::new(name)], wanted, "{said}");
        }
    }
    scratch.umount();
    scratch.assert_clean();
}

/// Regression: the copies were copied as well, until the volume was full.
#[test]
fn a_tree_is_not_copied_into_itself() {
    if !can_mount() {
        return;
    }
    let scratch = Scratch::with_image();
    scratch.mount("");
    let dir = scratch.mountpoint();
    fs::create_dir_all(dir.join("a/b")).expect("made");
    fs::write(dir.join("a/file"), "contents").expect("written");
    std::os::unix::fs::symlink("a/b", dir.join("link")).expect("made");
    let source = dir.join("a");
    for (below, target) in [("", "/a/b/c"), ("", "/a"), ("", "/link/new"), ("a/b", "/")] {
        let mut import = scratch.cffs(["import", "-q"]);
        let refused = fail(1, import.arg(dir.join(below)).arg(&source).arg(target));
        assert!(refused.contains("into itself"), "{target}: {refused}");
    }
    assert_eq!(fs::read_dir(dir.join("a/b")).expect("there").count(), 0);
    let mut import = scratch.cffs(["import", "-q"]);
    succeed(import.arg(&dir).arg(&source).arg("/ab"));
    assert_eq!(fs::read(dir.join("ab/file")).expect("there"), b"contents");
    scratch.umount();
}

/// Regression: each file was made, could not be given away, and was removed again.
#[test]
fn root_that_may_not_give_files_away_keeps_them() {
    if !is_root_with_mounts() {
        return;
    }
    let scratch = Scratch::with_image();
    let source = scratch.path().join("source");
    fs::create_dir(&source).expect("made");
    fs::write(source.join("file"), "contents").expect("written");
    chown(source.join("file"), Some(OWNER), Some(OWNER)).expect("given away");
    let archive = archive_of(&source, &["file"]);
    fs::write(scratch.path().join("archive"), archive).expect("written");
    scratch.mount("");
    let dir = scratch.mountpoint();
    let without_chown = |arguments: &[&str]| {
        let mut command = Command::new("setpriv");
        command.args(["--bounding-set=-chown", "--inh-caps=-chown"]).arg(CFFS).args(arguments);
        command
    };
    succeed(without_chown(&["import", "-q"]).arg(&dir).arg(&source).arg("/imported"));
    fs::create_dir(dir.join("extracted")).expect("made");
    let archive = File::open(scratch.path().join("archive")).expect("opened");
    succeed(without_chown(&["tar", "-x"]).arg(dir.join("extracted")).stdin(archive));
    for made in ["imported/file", "extracted/file"] {
        assert_eq!(fs::read(dir.join(made)).expect("there"), b"contents", "{made}");
        assert_eq!(fs::metadata(dir.join(made)).expect("there").uid(), 0, "{made}");
    }
    scratch.umount();
    scratch.assert_clean();
}

#[test]
fn a_program_that_is_killed_in_any_call_leaves_nothing_behind() {
    if !is_root_with_mounts() {
        return;
    }
    let scratch = Scratch::with_image();
    let source = scratch.path().join("source");
    fill(&source);
    scratch.mount("");
    let dir = scratch.mountpoint();
    for turn in 0..12 {
        let mut import = scratch.cffs(["import", "--quiet"]);
        let mut import = import.arg(&dir).arg(&source).arg("/copy").spawn().expect("it starts");
        thread::sleep(Duration::from_millis(2 * turn * turn));
        import.kill().expect("killed");
        import.wait().expect("ended");
        assert_eq!(programs_of_root(&dir), Vec::<PathBuf>::new());
        // The server may still make some files that it has received.
        let copy = dir.join("copy");
        let remove = || scratch.cffs(["rm", "-rq"]).arg(&copy).output().expect("it starts");
        wait_for(|| !copy.exists() || remove().status.success());
    }
    succeed(scratch.cffs(["import", "--quiet"]).arg(&dir).arg(&source));
    scratch.umount();
    scratch.assert_clean();
}

#[test]
fn a_session_obeys_a_mount_that_becomes_read_only() {
    if !is_root_with_mounts() {
        return;
    }
    let scratch = Scratch::with_image();
    scratch.mount("");
    let dir = scratch.mountpoint();
    let source = scratch.path().join("source");
    fs::create_dir(&source).expect("made");
    for name in ["1", "2"] {
        fs::write(source.join(name), vec![1; 2 << 20]).expect("written");
    }
    let archive = |name: &str| {
        let mut tar = Command::new("tar");
        let made = tar.args(["-c", "-b", "1", "-C"]).arg(&source).arg(name).output();
        made.expect("it starts").stdout
    };
    let mut tar = scratch.cffs(["tar", "-x"]);
    tar.arg(&dir).stdin(Stdio::piped()).stderr(Stdio::piped());
    let mut tar = tar.spawn().expect("it starts");
    let mut input = tar.stdin.take().expect("piped");
    let first = archive("1");
    // Without the two blocks that end an archive.
    input.write_all(&first[..first.len() - 1024]).expect("read");
    while fs::metadata(dir.join("1")).map_or(0, |data| data.len()) < 2 << 20 {
        thread::sleep(Duration::from_millis(10));
    }
    // The kernel refuses this while a call that may write is in progress.
    wait_for(|| mount_remount(&dir, MountFlags::BIND | MountFlags::RDONLY, "").is_ok());
    thread::sleep(Duration::from_millis(1200));
    let _ = input.write_all(&archive("2"));
    drop(input);
    let ended = tar.wait_with_output().expect("ended");
    let said = String::from_utf8_lossy(&ended.stderr).into_owned();
    assert_eq!(ended.status.code(), Some(1), "{said}");
    assert!(said.contains("read-only"), "{said}");
    assert!(!dir.join("2").exists());
    let said = fail(1, scratch.cffs(["import"]).arg(&dir).arg(&source));
    assert!(said.contains("mounted read-only"), "{said}");
    scratch.umount();
    scratch.assert_clean();
}

/// A server that read such a file would wait for itself.
#[test]
fn a_file_of_the_same_mount_is_refused_as_memory() {
    if !is_root_with_mounts() {
        return;
    }
    let scratch = Scratch::with_image();
    scratch.mount("");
    let dir = scratch.mountpoint();
    fs::write(dir.join("file"), vec![0; 1 << 20]).expect("written");
    let memory = File::options().read(true).write(true).open(dir.join("file")).expect("opened");
    setxattr(&dir, ATTRIBUTE, b"12", XattrFlags::empty()).expect("asked");
    let mut value = vec![0; 4096];
    let len = getxattr(&dir, format!("{ATTRIBUTE}.12"), &mut value).expect("answered");
    let Ok(Invitation::Ticket { socket, ticket }) = Invitation::decode(&value[..len]) else {
        panic!("no ticket")
    };
    let address = SocketAddr::from_abstract_name(socket).expect("a name");
    let mut stream = UnixStream::connect_addr(&address).expect("connected");
    stream.set_read_timeout(Some(Duration::from_secs(30))).expect("set");
    stream.write_all(&Call::Hello { oldest: VERSION, newest: VERSION }.encode()).expect("sent");
    stream.read_exact(&mut [0; 10]).expect("welcome");
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    let descriptors = [memory.as_fd()];
    assert!(control.push(SendAncillaryMessage::ScmRights(&descriptors)));
    let attach = Call::Attach { ticket, umask: 0, memory_bytes: 1 << 20 }.encode();
    sendmsg(&stream, &[IoSlice::new(&attach)], &mut control, SendFlags::empty()).expect("sent");
    assert_eq!(stream.read(&mut [0; 10]).expect("the server ends it"), 0);
    assert_eq!(fs::read(dir.join("file")).expect("served").len(), 1 << 20);
    drop(memory);
    scratch.umount();
    scratch.assert_clean();
}
