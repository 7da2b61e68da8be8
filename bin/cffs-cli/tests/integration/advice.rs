//! Warnings and advice of commands whose result may not be the wanted one, or whose request makes no sense.

use std::fs::{self, File, Permissions};
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::process::Command;

use rustix::fs::statvfs;
use serde_json::Value;

use crate::harness::{Scratch, can_mount, fail, succeed};

/// The standard error of a command that succeeds.
fn warnings(command: &mut Command) -> String {
    let output = command.output().expect("it starts");
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{said}");
    said
}

/// An image is sparse: nothing but a warning says that its file system is smaller.
#[test]
fn an_image_larger_than_the_space_of_its_host_causes_a_warning() {
    let scratch = Scratch::new();
    let host = statvfs(scratch.path()).expect("read");
    let large = (host.f_bavail * host.f_frsize + (64 << 30)).to_string();
    let small = warnings(scratch.cffs(["mkfs", "--size", "64M"]).arg(scratch.image()));
    assert_eq!(small, "");
    let grown = warnings(scratch.cffs(["grow"]).arg(scratch.image()).arg("+64M"));
    assert_eq!(grown, "");
    let grown = warnings(scratch.cffs(["grow"]).arg(scratch.image()).arg(&large));
    assert!(grown.contains("warning: ") && grown.contains("its file system has only"), "{grown}");
    fs::remove_file(scratch.image()).expect("removed");
    let made = warnings(scratch.cffs(["mkfs", "--size", &large]).arg(scratch.image()));
    assert!(made.contains("warning: ") && made.contains("its file system has only"), "{made}");
    fs::remove_file(scratch.image()).expect("removed");
    let quiet = warnings(scratch.cffs(["mkfs", "-q", "--size", &large]).arg(scratch.image()));
    assert_eq!(quiet, "");
}

/// Regression: if the root directory and the locator table were lost, `fsck -y` dropped all files, and did
/// not say that a salvage finds them.
#[test]
fn a_check_names_salvage_if_that_may_find_more() {
    let scratch = Scratch::with_image();
    let source = scratch.path().join("source");
    fs::create_dir_all(source.join("below")).expect("made");
    fs::write(source.join("below/file"), "contents").expect("written");
    succeed(scratch.cffs(["import", "-q"]).arg(scratch.image()).arg(&source).arg("/in"));
    let wipe = |inode: &str| {
        let mut inspect = scratch.cffs(["inspect", "--json"]);
        let shown = succeed(inspect.arg(scratch.image()).args(["inode", inode]));
        let shown: Value = serde_json::from_str(&shown).expect("JSON");
        let extent = &shown["extents"][0];
        let number = |name: &str| extent[name].as_u64().expect("a number") * 1024;
        let image = File::options().write(true).open(scratch.image()).expect("opened");
        image.write_all_at(&vec![0; number("len") as usize], number("start")).expect("written");
    };
    let check = |options: &[&str]| {
        let output = scratch.cffs(["fsck"]).args(options).arg(scratch.image()).output();
        String::from_utf8_lossy(&output.expect("it starts").stdout).into_owned()
    };
    // The locator table still lists the lost directories.
    wipe("1");
    let said = check(&["-f", "-y"]);
    assert!(said.contains("moved to lost+found") && !said.contains("--salvage"), "{said}");
    wipe("1");
    wipe("2");
    for options in [["-f", "-n"], ["-f", "-y"]] {
        let said = check(&options);
        assert!(said.contains("cffs fsck --salvage -n"), "{said}");
    }
    let said = check(&["--salvage", "-y"]);
    assert!(said.contains("moved to lost+found"), "{said}");
}

/// Regression: `cffs scrub --stop` succeeded if no scrub was running, and `cffs serve --stop` of a mount
/// named no command that ends its server.
#[test]
fn a_stop_of_nothing_fails() {
    if !can_mount() {
        return;
    }
    let scratch = Scratch::with_image();
    let said = fail(8, scratch.cffs(["scrub", "--stop"]).arg(scratch.image()));
    assert!(said.contains("nothing to stop"), "{said}");
    scratch.mount("rw");
    for (code, command) in [(8, "scrub"), (1, "regroup")] {
        for name in [scratch.image(), scratch.mountpoint()] {
            let said = fail(code, scratch.cffs([command, "--stop"]).arg(name));
            assert!(said.contains("nothing to stop"), "{said}");
        }
    }
    for name in [scratch.image(), scratch.mountpoint()] {
        let said = fail(1, scratch.cffs(["serve", "--stop"]).arg(name));
        let command = format!("cffs umount {}", scratch.mountpoint().display());
        assert!(said.contains(&command), "{said}");
    }
    scratch.umount();
}

/// Regression: a restart dropped the page silently if the new program could not serve it.
#[test]
fn a_restart_says_that_the_page_has_ended() {
    if !can_mount() {
        return;
    }
    let scratch = Scratch::with_image();
    let tokens = scratch.path().join("tokens");
    let mount = |options: &[&str]| {
        let mut command = scratch.cffs(["mount", "--web", "127.0.0.1:0"]);
        command.args(options).args(["-o", &scratch.log_option()]);
        succeed(command.arg(scratch.image()).arg(scratch.mountpoint()));
    };
    mount(&["--web-token", tokens.to_str().expect("UTF-8")]);
    let restart = || {
        let mut command = scratch.cffs(["restart"]);
        command.arg(scratch.mountpoint());
        command
    };
    succeed(&mut restart());
    fs::set_permissions(&tokens, Permissions::from_mode(0o644)).expect("set");
    let said = fail(1, &mut restart());
    assert!(said.contains("restarted, but the page has ended: "), "{said}");
    assert!(said.contains("chmod 600") && said.contains("another restart"), "{said}");
    fs::write(scratch.mountpoint().join("file"), "contents").expect("the mount continues");
    fs::set_permissions(&tokens, Permissions::from_mode(0o600)).expect("set");
    succeed(&mut restart());
    scratch.umount();
    // Its tokens were printed, and are not known to the next program.
    mount(&[]);
    let said = fail(1, &mut restart());
    assert!(said.contains("--web-token"), "{said}");
    scratch.umount();
}
