//! Files outside of the copied trees are neither read nor changed, even while other programs change
//! those trees.

use std::num::NonZeroUsize;
use std::sync::atomic::AtomicBool;

use parking_lot::Mutex;

use super::*;
use crate::clock::Timestamp;
use crate::vfs::Caller;
use crate::vfs::types::{NewFile, NewKind, SetAttr, SetTime, XattrMode};

/// Does something when a file was copied that has this name.
struct When<F: Fn() + Sync>(&'static str, F);

impl<F: Fn() + Sync> Observer for When<F> {
    fn copied(&self, path: &Path, _: u64) {
        if path.ends_with(self.0) {
            (self.1)();
        }
    }
}

/// The failures of a copy, in words.
#[derive(Default)]
struct Failures(Mutex<Vec<String>>);

impl Observer for Failures {
    fn failed(&self, error: &CopyError) {
        self.0.lock().push(error.to_string());
    }
}

fn one_thread() -> CopyOptions {
    CopyOptions { threads: NonZeroUsize::new(1), ..CopyOptions::default() }
}

/// A directory with a file that must not be read.
fn secret(host: &Path) -> std::path::PathBuf {
    let secret = host.join("secret");
    fs::create_dir(&secret).expect("made");
    fs::write(secret.join("key"), b"secret").expect("written");
    secret
}

fn replace_by_link(dir: &Path, target: &Path) {
    fs::rename(dir, dir.with_extension("away")).expect("renamed");
    symlink(target, dir).expect("linked");
}

#[test]
fn an_import_does_not_follow_a_link_that_took_the_place_of_a_directory() {
    let host = tempfile::tempdir().expect("a directory");
    let (source, secret) = (host.path().join("source"), secret(host.path()));
    fs::create_dir_all(source.join("sub")).expect("made");
    fs::write(source.join("first"), b"copied before").expect("written");
    let files = files();
    let swap = When("first", || {
        // By then the directory was not looked at, or was seen as one.
        replace_by_link(&source.join("sub"), &secret);
    });
    let summary = import(&files, &source, b"/", &one_thread(), &swap).expect("goes on");
    assert!(files.stat("/sub/key").is_err(), "it was led out of the tree");
    assert!(files.read_link("/sub").is_ok() || summary.failures == 1);
}

#[test]
fn an_import_does_not_follow_a_link_that_took_the_place_of_one_that_was_listed() {
    let host = tempfile::tempdir().expect("a directory");
    let (source, secret) = (host.path().join("source"), secret(host.path()));
    fs::create_dir_all(source.join("a/b")).expect("made");
    fs::write(source.join("z"), b"copied after the directory was listed").expect("written");
    let files = files();
    let swap = When("z", || replace_by_link(&source.join("a"), &secret));
    let summary = import(&files, &source, b"/", &one_thread(), &swap).expect("goes on");
    assert_eq!(summary.failures, 1);
    assert!(files.stat("/a/key").is_err(), "it was led out of the tree");
    assert_eq!(files.stat_itself("/a").expect("made").file_type, FileType::Directory);
}

/// Seven of 150 imports copied a file that the attacker could not read into the attacker's.
#[test]
fn an_import_reads_the_file_that_it_looked_at() {
    let host = tempfile::tempdir().expect("a directory");
    let (source, secret) = (host.path().join("source"), secret(host.path()));
    fs::create_dir(&source).expect("made");
    let (own, link, key) = (source.join("f"), host.path().join("link"), secret.join("key"));
    fs::write(&own, b"own").expect("written");
    symlink(&key, &link).expect("linked");
    let is_over = AtomicBool::new(false);
    std::thread::scope(|threads| {
        threads.spawn(|| {
            while !is_over.load(Ordering::Relaxed) {
                let flags = rustix::fs::RenameFlags::EXCHANGE;
                let cwd = rustix::fs::CWD;
                rustix::fs::renameat_with(cwd, &own, cwd, &link, flags).expect("exchanged");
            }
        });
        for _ in 0..100 {
            let files = files_of(4 << 20);
            let copied = import(&files, &source, b"/", &one_thread(), &());
            assert!(copied.is_ok(), "{copied:?}");
            // A file that went just then is a failure, and a link is a link.
            if let Ok(attr) = files.stat_itself("/f")
                && attr.file_type == FileType::Regular
            {
                let contents = files.read("/f").expect("read");
                assert!(contents.is_empty() || contents == b"own", "{contents:?}");
            }
        }
        is_over.store(true, Ordering::Relaxed);
    });
}

fn exported() -> Files {
    let files = files();
    files.make_dir_all("/sub/deep").expect("made");
    files.write("/first", b"1").expect("written");
    files.write("/sub/deep/key", b"overwritten").expect("written");
    files
        .write("/sub/inner", b"made after the directory, and so listed after it")
        .expect("written");
    files
}

#[test]
fn an_export_does_not_write_through_a_link_that_took_the_place_of_a_directory() {
    let host = tempfile::tempdir().expect("a directory");
    let (target, secret) = (host.path().join("target"), secret(host.path()));
    let files = exported();
    // The directory is there by then, and is filled later.
    let swap = When("inner", || replace_by_link(&target.join("sub/deep"), &secret));
    let summary = export(&files, b"/", &target, &one_thread(), &swap).expect("goes on");
    assert_eq!(fs::read(secret.join("key")).expect("read"), b"secret");
    assert!(summary.failures >= 1);
}

/// A directory gets its mode at the end, when another program may have replaced it by another one,
/// or a link.
#[test]
fn an_export_sets_attributes_only_of_its_own_directories() {
    let host = tempfile::tempdir().expect("a directory");
    let (target, secret) = (host.path().join("target"), secret(host.path()));
    fs::set_permissions(&secret, fs::Permissions::from_mode(0o700)).expect("set");
    let files = exported();
    let world = SetAttr { permissions: Some(0o777), ..SetAttr::default() };
    files.set_attr("/sub", &world).expect("set");
    files.set_attr("/sub/deep", &world).expect("set");
    let swap = When("key", || {
        replace_by_link(&target.join("sub/deep"), &secret);
        fs::rename(target.join("sub"), target.join("away")).expect("renamed");
        fs::create_dir(target.join("sub")).expect("made");
        fs::set_permissions(target.join("sub"), fs::Permissions::from_mode(0o700)).expect("set");
    });
    let summary = export(&files, b"/", &target, &one_thread(), &swap).expect("goes on");
    // The export has its own directories open, wherever they are now.
    assert_eq!(summary.failures, 0, "its own directories are open");
    assert_eq!(fs::metadata(target.join("away")).expect("moved").mode() & 0o777, 0o777);
    for untouched in [secret, target.join("sub")] {
        let mode = fs::metadata(&untouched).expect("there").mode() & 0o777;
        assert_eq!(mode, 0o700, "{}", untouched.display());
    }
}

#[test]
fn a_hard_link_is_made_to_what_was_exported() {
    let host = tempfile::tempdir().expect("a directory");
    let target = host.path().join("target");
    let files = files();
    files.write("/a", b"one file").expect("written");
    files.make_dir("/sub").expect("made");
    files.hard_link("/a", "/sub/c").expect("linked");
    // The root is complete, and the directory in it comes next.
    let swap = When("target", || {
        fs::rename(target.join("a"), target.join("away")).expect("renamed");
        fs::write(target.join("a"), b"another's").expect("written");
    });
    let summary = export(&files, b"/", &target, &one_thread(), &swap).expect("goes on");
    assert_eq!(summary.failures, 1);
    assert!(!target.join("sub/c").exists());
}

#[test]
fn an_imported_program_keeps_its_capabilities() {
    let host = tempfile::tempdir().expect("a directory");
    let (program, capability) = (host.path().join("program"), c"security.capability");
    fs::write(&program, "contents").expect("written");
    // As setcap(8) writes cap_net_raw=ep.
    let value = [1, 0, 0, 2, 0, 32, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
    if rustix::fs::setxattr(&program, capability, &value, rustix::fs::XattrFlags::empty()).is_err()
    {
        eprintln!("not run: only root sets capabilities, and not on every file system");
        return;
    }
    let files = files_of(16 << 20);
    import(&files, host.path(), b"/into", &CopyOptions::default(), &()).expect("imported");
    let ino = files.stat("/into/program").expect("there").ino;
    assert_eq!(files.volume().xattr(ino, capability.to_bytes()).expect("kept"), value);
}

/// A copy without its owner must not keep set-id bits, which would run it with another user's rights.
#[test]
fn copies_without_their_owner_give_no_rights() {
    let host = tempfile::tempdir().expect("a directory");
    let (target, capability) = (host.path().join("target"), b"security.capability");
    let files = exported();
    let program = SetAttr { permissions: Some(0o6755), ..SetAttr::default() };
    files.set_attr("/first", &program).expect("set");
    let sticky = SetAttr { permissions: Some(0o3755), ..SetAttr::default() };
    files.set_attr("/sub", &sticky).expect("set");
    let ino = files.stat("/first").expect("there").ino;
    // As setcap(8) writes cap_net_raw=ep.
    let value = [1, 0, 0, 2, 0, 32, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
    files.volume().set_xattr(&Caller::ROOT, ino, capability, &value, XattrMode::Any).expect("set");
    let options = CopyOptions { owner: false, ..CopyOptions::default() };
    let summary = export(&files, b"/", &target, &options, &()).expect("exported");
    assert_eq!(summary.failures, 0);
    let mode = |name: &str| fs::metadata(target.join(name)).expect("there").mode() & 0o7777;
    assert_eq!((mode("first"), mode("sub")), (0o755, 0o1755));
    let mut buf = [0; 64];
    let found = rustix::fs::getxattr(target.join("first"), c"security.capability", &mut buf);
    assert!(found.is_err(), "{found:?}");

    fs::set_permissions(target.join("first"), fs::Permissions::from_mode(0o4755)).expect("set");
    let back = files_of(16 << 20);
    let owner = SetAttr { uid: Some(12), gid: Some(34), ..SetAttr::default() };
    back.make_dir("/into").expect("made");
    back.set_attr("/into", &owner).expect("set");
    import(&back, &target, b"/into", &options, &()).expect("imported");
    let attr = back.stat("/into/first").expect("there");
    assert_eq!((attr.permissions, attr.uid, attr.gid), (0o755, 12, 34));
    assert_eq!(back.stat("/into/sub/deep").expect("there").uid, 12);
}

/// The system outside refuses attributes of `user.` for pipes. Regression: the copy lost its times and mode.
#[test]
fn a_copy_without_a_refused_attribute_has_all_others() {
    let host = tempfile::tempdir().expect("a directory");
    let (files, target) = (files(), host.path().join("target"));
    let fifo = NewFile { kind: NewKind::Fifo, permissions: 0o640, uid: 0, gid: 0, times: None };
    let made = files.root().make(b"pipe", &fifo).expect("made");
    made.set_xattr(b"user.a", b"value").expect("set");
    let mtime = SetTime::To(Timestamp { seconds: 12345, nanoseconds: 0 });
    made.set_attr(&SetAttr { mtime: Some(mtime), ..SetAttr::default() }).expect("set");
    let said = Failures::default();
    let options = CopyOptions { owner: false, ..one_thread() };
    let summary = export(&files, b"/", &target, &options, &said).expect("goes on");
    assert_eq!(summary.failures, 1);
    let said = said.0.into_inner();
    assert!(said[0].contains("target/pipe: extended attribute user.a: "), "{said:?}");
    let copy = fs::symlink_metadata(target.join("pipe")).expect("made");
    assert_eq!((copy.mode() & 0o7777, copy.mtime()), (0o640, 12345));
}

/// Regression: without its default ACL, a directory was closed to its group, and without its access ACL, a
/// program lost its set-id bits.
#[test]
fn a_copy_without_its_access_acl_is_closed_to_others_only() {
    let files = files();
    let kind = NewKind::Directory;
    let directory = NewFile { kind, permissions: 0o755, uid: 0, gid: 0, times: None };
    let node = files.root().make(b"directory", &directory).expect("made");
    let acl = |name: &str| (format!("system.posix_acl_{name}").into_bytes(), b"no ACL".to_vec());
    let other = (b"user.a".to_vec(), b"value".to_vec());
    for (refused, permissions) in [("default", 0o7755), ("access", 0o7700)] {
        let (allowed, outcome) = node.copy_xattrs(&[acl(refused), other.clone()], 0o7755);
        let said = outcome.expect_err("no ACL").to_string();
        assert!(
            said.starts_with(&format!("extended attribute system.posix_acl_{refused}: ")),
            "{said}"
        );
        assert_eq!(allowed, permissions, "without the {refused} ACL");
        assert_eq!(node.xattr(b"user.a").expect("set"), b"value");
    }
    let (allowed, outcome) = node.copy_xattrs(&[], 0o7755);
    outcome.expect("removed");
    assert_eq!((allowed, node.xattr_names().expect("listed").len()), (0o7755, 0));
}

/// `export a.cffs /nope x` blamed `x`.
#[test]
fn an_error_names_the_path_that_could_not_be_used() {
    let host = tempfile::tempdir().expect("a directory");
    let (files, options) = (exported(), CopyOptions::default());
    let blamed = |outcome: Result<super::super::Summary, CopyError>| {
        outcome.expect_err("it cannot be").path.to_string_lossy().into_owned()
    };
    let missing = host.path().join("missing");
    assert_eq!(blamed(export(&files, b"/nope", &missing, &options, &())), "/nope");
    assert!(!missing.exists());
    let file = host.path().join("file");
    fs::write(&file, b"in the way").expect("written");
    let below = file.join("x");
    assert_eq!(blamed(export(&files, b"/", &below, &options, &())), below.to_string_lossy());
    assert_eq!(blamed(import(&files, &missing, b"/", &options, &())), missing.to_string_lossy());
    assert_eq!(blamed(import(&files, host.path(), b"/first/x", &options, &())), "/first/x");
    assert_eq!(blamed(import(&files, &file, b"/nope/x", &options, &())), "/nope/x");
}
