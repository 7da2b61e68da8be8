//! Mounting as an ordinary user.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::os::unix::process::CommandExt;
use std::process::Command;

use fuse_ring::{Transport, TransportChoice};

use crate::harness::{Setup, is_mounted, on_dev};
use crate::tree::Tree;

/// Any user other than root; on most systems this is `nobody`.
const NOBODY: u32 = 65534;

/// Runs itself as an ordinary user if it is run by root.
#[test]
fn an_ordinary_user_mounts() {
    let device = fs::metadata("/dev/fuse").map(|metadata| metadata.mode() & 0o7);
    if !device.as_ref().is_ok_and(|mode| *mode == 0o6) {
        println!("SKIPPED: /dev/fuse is not open to ordinary users: {device:?}");
        return;
    }
    if Command::new("fusermount3").arg("-V").output().is_err() {
        println!("SKIPPED: there is no fusermount3");
        return;
    }
    if rustix::process::geteuid().is_root() {
        // The program's path may have directories that this user may not search; this link avoids them.
        let output = Command::new("/proc/self/exe")
            .args(["--exact", "users::an_ordinary_user_mounts", "--nocapture"])
            .uid(NOBODY)
            .gid(NOBODY)
            .current_dir("/")
            .output()
            .unwrap();
        let said = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success() && said.contains("1 passed"), "{output:?}");
        return;
    }
    on_dev(|mut setup: Setup| {
        setup.config.transport = TransportChoice::Auto;
        // A comma in the name must not become an option.
        setup.options.fsname = "a,b\\c".into();
        setup.options.subtype = "ring".into();
        let (_directory, session) = setup.session(Tree::default());
        assert!(matches!(session.transport(), Transport::Dev { .. } | Transport::Uring { .. }));
        drop(session);
        let mounted = setup.mount(Tree::default());
        let mounts = fs::read_to_string("/proc/self/mounts").unwrap();
        let line = mounts.lines().find(|line| line.contains(mounted.path.to_str().unwrap()));
        assert!(line.unwrap().starts_with("a,b\\134c "), "{line:?}");
        assert!(line.unwrap().contains(" fuse.ring "), "{line:?}");
        fs::write(mounted.path.join("file"), "contents").unwrap();
        assert_eq!(fs::read(mounted.path.join("file")).unwrap(), b"contents");
        let path = mounted.path.clone();
        mounted.end().unwrap();
        assert!(!is_mounted(&path));
    });
}
