//! Replacing the program of a mount of a volume in a store.

use std::fs::{self, File};
use std::io::{Read, Seek, Write};
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt};
use std::path::PathBuf;
use std::process::{Command, Stdio};

use serde_json::Value;

use crate::harness::{
    CFFS, Scratch, can_mount, fail, install, install_script, install_vanishing, succeed, wait_for,
};

/// A volume in a store in a directory.
struct Stored {
    scratch: Scratch,
}

impl Stored {
    fn new() -> Stored {
        let stored = Stored { scratch: Scratch::new() };
        stored.cffs(&["mkfs", "-q", "--size", "1G", &stored.url()]);
        stored
    }

    fn url(&self) -> String {
        format!("file://{}", self.path("volume").display())
    }

    fn path(&self, name: &str) -> PathBuf {
        self.scratch.path().join(name)
    }

    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = self.scratch.cffs([]);
        command.args(arguments);
        command
    }

    fn cffs(&self, arguments: &[&str]) -> String {
        succeed(&mut self.command(arguments))
    }

    fn mount(&self, more: &[&str]) {
        let (log, url, at) = (self.scratch.log_option(), self.url(), self.at());
        let arguments = [&["mount", "-o", &log], more, &[&url, &at]].concat();
        self.cffs(&arguments);
    }

    fn at(&self) -> String {
        self.scratch.mountpoint().display().to_string()
    }

    fn restart(&self) {
        self.cffs(&["restart", &self.at()]);
    }

    /// The message of a restart that fails.
    fn refused(&self) -> String {
        let said = fail(1, &mut self.command(&["restart", &self.at()]));
        assert!(said.contains("not restarted"), "{said}");
        said
    }

    fn json(&self, command: &str) -> Value {
        let said = self.cffs(&[command, "--json", &self.at()]);
        serde_json::from_str(&said).expect("it is JSON")
    }

    fn write(&self, name: &str, contents: &str) {
        fs::write(self.scratch.mountpoint().join(name), contents).expect("written");
    }

    fn assert_has(&self, name: &str, contents: &str) {
        let there = fs::read(self.scratch.mountpoint().join(name)).expect("read");
        assert_eq!(String::from_utf8_lossy(&there), contents);
    }

    /// Unmounts and checks the volume.
    fn end(&self, keys: &[&str]) {
        self.scratch.umount();
        let url = self.url();
        self.cffs(&[keys, &["fsck", "-n", "-f", "--contents", &url]].concat());
    }
}

#[test]
fn files_stay_open_on_a_volume_in_a_store() {
    if can_mount() {
        keep_files_open("auto");
        keep_files_open("dev");
    }
}

fn keep_files_open(transport: &str) {
    let stored = Stored::new();
    stored.mount(&["-o", &format!("commit=3600,transport={transport}")]);
    let dir = stored.scratch.mountpoint();
    let create = |name: &str| {
        let mut options = File::options();
        options.read(true).write(true).create_new(true).open(dir.join(name)).expect("made")
    };
    let (mut open, gone) = (create("open"), create("gone"));
    open.write_all(b"before").expect("written");
    gone.write_all_at(&[7; 500_000], 0).expect("written");
    fs::remove_file(dir.join("gone")).expect("removed");
    let before = stored.json("info")["server"].clone();
    for round in 0..3 {
        stored.restart();
        let now = stored.json("info")["server"].clone();
        assert_eq!(now["pid"], before["pid"], "the process stays");
        assert_ne!(now["started"], before["started"]);
        let serve = ["serve", "--nfs", "127.0.0.1:0", &stored.url()];
        let refused = fail(1, &mut stored.command(&serve));
        assert!(refused.contains("open for writing on this host"), "{refused}");
        assert!(stored.json("stats")["store"]["puts"].as_u64() > Some(0), "requests are counted");
        open.write_all(round.to_string().as_bytes()).expect("written");
        gone.write_all_at(b"x", round).expect("written");
        stored.write(&format!("new{round}"), "new");
    }
    open.rewind().expect("sought");
    let mut contents = String::new();
    open.read_to_string(&mut contents).expect("read");
    assert_eq!(contents, "before012");
    let mut bytes = vec![0; 500_000];
    gone.read_exact_at(&mut bytes, 0).expect("read");
    assert!(bytes.starts_with(b"xxx\x07") && bytes[4..].iter().all(|byte| *byte == 7));
    assert_eq!(gone.metadata().expect("open").nlink(), 0);
    drop((open, gone));
    let mut names: Vec<_> =
        fs::read_dir(&dir).expect("listed").map(|entry| entry.expect("read").file_name()).collect();
    names.sort();
    assert_eq!(names, ["new0", "new1", "new2", "open"]);
    stored.end(&[]);
}

/// The next program needs neither the file of the key, nor the secret with which the volume was opened.
#[test]
fn an_encrypted_volume_stays_open_when_its_key_is_replaced() {
    if !can_mount() {
        return;
    }
    let stored = Stored { scratch: Scratch::new() };
    let [first, second] = ["first", "second"].map(|name| {
        let path = stored.path(name);
        fs::write(&path, format!("a passphrase of the {name} year")).expect("written");
        fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).expect("set");
        path.display().to_string()
    });
    let url = stored.url();
    stored.cffs(&["--key-file", &first, "mkfs", "-q", "--encrypt", "--size", "1G", &url]);
    stored.mount(&["--key-file", &first]);
    stored.write("file", "secret");
    stored.restart();
    stored.assert_has("file", "secret");
    stored.cffs(&["--key-file", &first, "tune", "--new-key-file", &second, &url]);
    fs::remove_file(first).expect("removed");
    for round in 0..2 {
        stored.restart();
        stored.assert_has("file", "secret");
        stored.write(&format!("{round}"), "also");
    }
    stored.end(&["--key-file", &second]);
    let said = stored.cffs(&["--key-file", &second, "cat", &url, "/file"]);
    assert_eq!(said, "secret");
}

#[test]
fn a_staging_directory_and_a_cache_are_used_after_a_restart() {
    if !can_mount() {
        return;
    }
    let stored = Stored::new();
    let [staging, cache] = ["staging", "cache"].map(|name| stored.path(name).display().to_string());
    stored.mount(&["--staging", &staging, "--cache", &format!("{cache}=64M")]);
    for round in 0..3 {
        let mut file =
            File::create(stored.scratch.mountpoint().join(format!("{round}"))).expect("made");
        file.write_all(&[7; 5000]).expect("written");
        file.sync_all().expect("staged");
        stored.restart();
        let stats = stored.json("stats");
        assert!(stats["staging"]["records"].is_u64(), "{stats}");
        assert!(stats["store"]["cache_hits"].as_u64() > Some(0), "{stats}");
    }
    stored.end(&[]);
}

/// The store is gone when the restart begins: it is refused, and nothing is lost.
#[test]
fn a_mount_that_waits_for_its_store_is_not_restarted() {
    if !can_mount() {
        return;
    }
    let stored = Stored::new();
    stored.mount(&[]);
    stored.write("file", "contents");
    fs::rename(stored.path("volume"), stored.path("away")).expect("moved");
    // Regression: an outage that the server had not noticed was found when the mount was suspended.
    let said = stored.refused();
    assert!(said.contains("is gone"), "{said}");
    let mut sync = stored.command(&["sync", &stored.at()]);
    let mut sync = sync.stderr(Stdio::null()).spawn().expect("it starts");
    wait_for(|| stored.json("stats")["store"]["outage"].is_string());
    let said = stored.refused();
    assert!(said.contains("the store does not answer"), "{said}");
    fs::rename(stored.path("away"), stored.path("volume")).expect("moved back");
    assert!(sync.wait().expect("it ends").success());
    stored.restart();
    stored.assert_has("file", "contents");
    stored.end(&[]);
}

/// If the next program cannot be executed, the old one claims the volume again. Another program cannot
/// interfere.
#[test]
fn a_server_that_is_not_replaced_continues_with_its_store() {
    if !can_mount() {
        return;
    }
    let stored = Stored::new();
    let program = stored.path("cffs");
    install(CFFS, &program);
    let (log, at, url) = (stored.scratch.log_option(), stored.at(), stored.url());
    let mount = ["mount", "-o", &log, &url, &at];
    succeed(stored.scratch.named(program.as_os_str(), []).args(mount));
    stored.write("file", "before");
    fs::remove_file(&program).expect("removed");
    // A program that knows no volumes in stores.
    install_script("#!/bin/sh\n[ $# = 1 ] && echo 3\n", &program);
    let said = stored.refused();
    assert!(said.contains("cannot take over"), "{said}");
    install_vanishing(&stored.scratch, &program);
    let said = stored.refused();
    assert!(said.contains("No such file"), "{said}");
    stored.assert_has("file", "before");
    stored.write("file", "after");
    stored.cffs(&["sync", &at]);
    install(CFFS, &program);
    stored.restart();
    stored.assert_has("file", "after");
    stored.end(&[]);
}

/// A version never changes. Another read-only mount may show a state that its successor cannot find again.
#[test]
fn only_a_version_is_restarted_when_mounted_read_only() {
    if !can_mount() {
        return;
    }
    let stored = Stored::new();
    stored.mount(&[]);
    stored.write("file", "contents");
    stored.scratch.umount();
    for options in ["ro", "follow"] {
        stored.mount(&["-o", options]);
        let said = stored.refused();
        assert!(said.contains("mounted read-only"), "{said}");
        stored.assert_has("file", "contents");
        stored.scratch.umount();
    }
    let version = format!("{}@monday", stored.url());
    stored.cffs(&["snapshot", "create", &version]);
    stored.cffs(&["mount", "-o", &stored.scratch.log_option(), &version, &stored.at()]);
    let mut open = File::open(stored.scratch.mountpoint().join("file")).expect("opened");
    stored.restart();
    let mut contents = String::new();
    open.read_to_string(&mut contents).expect("read");
    assert_eq!(contents, "contents");
    drop(open);
    stored.scratch.umount();
}

/// The next program would wait for itself.
#[test]
fn a_mount_over_its_own_cache_is_not_restarted() {
    if !can_mount() {
        return;
    }
    let stored = Stored::new();
    let cache = format!("{}=64M", stored.scratch.mountpoint().join("cache").display());
    stored.mount(&["--cache", &cache]);
    let said = stored.refused();
    assert!(said.contains("cache is below the mount point"), "{said}");
    stored.end(&[]);
}
