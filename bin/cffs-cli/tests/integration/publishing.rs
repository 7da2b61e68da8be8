//! `cffs publish`: a tree as a version of a volume in an object store.

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use rustix::process::{Pid, Signal, kill_process};

use crate::harness::store_server::{SECRET, StoreServer};
use crate::harness::{CFFS, Scratch, can_mount, fail, succeed};

const NOBODY: u32 = 65534;
/// The number of files of 1 MiB in a publish that is killed.
const FILES: u8 = 96;
const MIB: usize = 1 << 20;
const INTERRUPTED: &str = "cffs publish: interrupted; it ends when the volume is closed, and the same \
                           command continues from here\n";
const SENT: &str =
    "cffs publish: interrupted after all files were sent; it ends when the version is complete\n";

struct Published {
    scratch: Scratch,
    url: String,
}

impl Published {
    fn new() -> Published {
        let scratch = Scratch::new();
        let url = format!("file://{}", scratch.path().join("store").display());
        Published { scratch, url }
    }

    fn version(&self, name: &str) -> String {
        format!("{}@{name}", self.url)
    }

    fn publish(&self, source: &Path, name: &str) -> Command {
        let mut command = self.scratch.cffs(["publish", "--json", "--size", "4G"]);
        command.arg(source).arg(self.version(name));
        command
    }

    /// Counts of copied, unchanged and removed files.
    fn done(&self, source: &Path, name: &str) -> [u64; 3] {
        let done = succeed(&mut self.publish(source, name));
        let done: serde_json::Value = serde_json::from_str(&done).expect("it is JSON");
        ["copied", "same", "removed"].map(|count| done[count].as_u64().expect(count))
    }

    fn cat(&self, name: &str, path: &str) -> String {
        succeed(self.scratch.cffs(["cat"]).arg(self.version(name)).arg(path))
    }

    /// Fails unless rsync finds the version and the tree equal.
    fn is(&self, name: &str, tree: &Path) {
        let out = self.scratch.path().join(format!("out-{name}"));
        let _ = fs::remove_dir_all(&out);
        succeed(self.scratch.cffs(["export", "-q"]).arg(self.version(name)).arg("/").arg(&out));
        let [tree, out] = [tree, &out].map(seen);
        let without_contents = |seen: &[(String, Vec<u8>)]| -> Vec<String> {
            seen.iter().map(|(described, _)| described.clone()).collect()
        };
        assert_eq!(without_contents(&tree), without_contents(&out));
        for ((described, contents), (_, copied)) in tree.iter().zip(&out) {
            assert!(contents == copied, "{described} has other contents in the version");
        }
    }

    fn stored_bytes(&self) -> u64 {
        fn below(dir: &Path) -> u64 {
            let Ok(entries) = fs::read_dir(dir) else { return 0 };
            let bytes = |path: PathBuf| match path.symlink_metadata() {
                Ok(metadata) if metadata.is_dir() => below(&path),
                metadata => metadata.map_or(0, |metadata| metadata.len()),
            };
            entries.flatten().map(|entry| bytes(entry.path())).sum()
        }
        below(&self.scratch.path().join("store"))
    }
}

/// Each file of a tree: its name, mode, owner, time and number of names; and its contents.
fn seen(dir: &Path) -> Vec<(String, Vec<u8>)> {
    let mut all = Vec::new();
    let mut todo = vec![dir.to_owned()];
    while let Some(path) = todo.pop() {
        let metadata = path.symlink_metadata().expect("there");
        let mut contents = Vec::new();
        if metadata.is_dir() {
            let entries = fs::read_dir(&path).expect("listed");
            todo.extend(entries.map(|entry| entry.expect("listed").path()));
        } else if metadata.is_file() {
            contents = fs::read(&path).expect("read");
        } else {
            contents = fs::read_link(&path).expect("a link").into_os_string().into_encoded_bytes();
        }
        let nlink = if metadata.is_dir() { 0 } else { metadata.nlink() };
        let described = format!(
            "{:?} {:o} {}:{} {}.{} {nlink}",
            path.strip_prefix(dir).expect("below"),
            metadata.mode(),
            metadata.uid(),
            metadata.gid(),
            metadata.mtime(),
            metadata.mtime_nsec(),
        );
        all.push((described, contents));
    }
    all.sort();
    all
}

fn wait_for(is_so: impl Fn() -> bool) {
    let began = Instant::now();
    while !is_so() {
        assert!(began.elapsed() < Duration::from_secs(300), "nothing is sent");
        thread::sleep(Duration::from_millis(2));
    }
}

fn tree(scratch: &Scratch) -> PathBuf {
    let tree = scratch.path().join("tree");
    fs::create_dir_all(tree.join("d/e")).expect("made");
    fs::write(tree.join("d/one"), b"one").expect("written");
    fs::write(tree.join("d/e/two"), b"two").expect("written");
    fs::write(tree.join("large"), vec![7; 8 * MIB]).expect("written");
    fs::hard_link(tree.join("d/one"), tree.join("d/again")).expect("linked");
    symlink("d/one", tree.join("link")).expect("linked");
    tree
}

#[test]
fn a_tree_is_published_and_updated() {
    let published = Published::new();
    let tree = tree(&published.scratch);
    // The root, two directories, three files, an additional name and a link.
    assert_eq!(published.done(&tree, "1"), [8, 0, 0]);
    published.is("1", &tree);

    let before = published.stored_bytes();
    let [copied, same, removed] = published.done(&tree, "2");
    assert_eq!([copied, removed], [0, 0]);
    assert_eq!(same, 7, "all but the root");
    let sent = published.stored_bytes() - before;
    assert!(sent < MIB as u64 / 2, "{sent} bytes for what is there already");
    let taken = fail(1, &mut published.publish(&tree, "2"));
    assert!(taken.contains("version 2 already exists; choose another name"), "{taken}");

    // One file changes, one appears in a new directory, one changes its type, others are removed.
    fs::write(tree.join("d/one"), b"changed").expect("written");
    // The same length as before.
    fs::write(tree.join("large"), vec![8; 8 * MIB]).expect("written");
    fs::create_dir(tree.join("new")).expect("made");
    fs::write(tree.join("new/file"), b"new").expect("written");
    fs::hard_link(tree.join("large"), tree.join("new/large")).expect("linked");
    fs::remove_dir_all(tree.join("d/e")).expect("removed");
    fs::write(tree.join("d/e"), b"no directory").expect("written");
    fs::remove_file(tree.join("link")).expect("removed");
    symlink("elsewhere", tree.join("link")).expect("linked");
    fs::set_permissions(tree.join("d"), fs::Permissions::from_mode(0o2711)).expect("set");
    std::os::unix::fs::chown(tree.join("large"), Some(7), Some(8)).expect("given away");
    let [copied, same, removed] = published.done(&tree, "3");
    // d/one, large, their other names, d/e, new, new/file and link; d; d/e and d/e/two.
    assert_eq!([copied, same, removed], [8, 1, 2]);
    published.is("3", &tree);
    assert_eq!(published.cat("1", "/d/one"), "one", "a version stays as it is");
    succeed(published.scratch.cffs(["fsck", "-n", "-f", "--contents"]).arg(&published.url));
}

/// A whole image, and then another state of it.
#[test]
fn an_image_is_published_and_updated() {
    let published = Published::new();
    let tree = tree(&published.scratch);
    let image = published.scratch.image();
    let cffs = |arguments: &[&str]| {
        let mut command = published.scratch.cffs([]);
        command.args(arguments);
        command
    };
    let (at, from) = (image.to_str().expect("UTF-8"), tree.to_str().expect("UTF-8"));
    succeed(&mut cffs(&["mkfs", "-q", "--size", "64M", at]));
    succeed(&mut cffs(&["import", "-q", at, from]));
    published.done(&image, "1");
    published.is("1", &tree);
    fs::write(tree.join("d/one"), b"changed").expect("written");
    succeed(&mut cffs(&["import", "-q", at, from]));
    let [copied, same, removed] = published.done(&image, "2");
    assert!(copied >= 2 && same >= 4 && removed == 0, "{copied} {same} {removed}");
    published.is("2", &tree);
    // A version can be a source, also for another volume.
    let other = Published::new();
    other.done(Path::new(&published.version("1")), "from");
    assert_eq!(other.cat("from", "/d/one"), "one");
}

/// A killed publish has sent some files. The next one is refused with advice, and continues from there.
#[test]
fn a_killed_publish_is_continued() {
    let published = Published::new();
    let tree = published.scratch.path().join("tree");
    fs::create_dir_all(&tree).expect("made");
    for number in 0..FILES {
        fs::write(tree.join(number.to_string()), vec![number; MIB]).expect("written");
    }
    let mut command = published.publish(&tree, "1");
    let mut killed = command.stderr(Stdio::null()).spawn().expect("it starts");
    let signal = |signal: &str| {
        let sent = Command::new("kill").args([signal, &killed.id().to_string()]).status();
        assert!(sent.expect("it starts").success());
    };
    wait_for(|| published.stored_bytes() > 8 * MIB as u64);
    // So that an epoch is due.
    signal("-STOP");
    let log = published.scratch.path().join("store/log");
    // An object that is being written has another name.
    let is_there = |name: &fs::DirEntry| !name.file_name().to_string_lossy().contains('#');
    let records = || fs::read_dir(&log).map_or(0, |all| all.flatten().filter(is_there).count());
    thread::sleep(Duration::from_secs(6));
    let before = records();
    signal("-CONT");
    wait_for(|| records() > before);
    killed.kill().expect("killed");
    killed.wait().expect("it ends");
    let refused = fail(1, &mut published.publish(&tree, "1"));
    assert!(refused.contains("of this host had the volume open for writing"), "{refused}");
    assert!(refused.contains("to take it over: --take-over"), "{refused}");
    assert!(!refused.contains("if that program has ended"), "{refused}");
    let done = succeed(published.publish(&tree, "1").arg("--take-over"));
    let done: serde_json::Value = serde_json::from_str(&done).expect("it is JSON");
    let [copied, same] = ["copied", "same"].map(|count| done[count].as_u64().expect(count));
    println!("{copied} copied, {same} the same");
    // It may have finished before the record was seen.
    assert!(same > 0 && copied + same == u64::from(FILES));
    published.is("1", &tree);
    let [copied, same, _] = published.done(&tree, "2");
    assert_eq!([copied, same], [0, u64::from(FILES)]);
}

/// A publish may be killed while it makes the volume. Regression: after its claim, no command could use the
/// place, and each gave other advice.
#[test]
fn a_volume_that_was_not_completed_is_made_again() {
    let published = Published::new();
    let tree = tree(&published.scratch);
    let store = published.scratch.path().join("store");
    let cffs = |arguments: &[&str]| {
        let mut command = published.scratch.cffs([]);
        command.args(arguments).arg(&published.url);
        command
    };
    let mkfs = ["mkfs", "-q", "--size", "1G"];
    let above = format!("file://{}", published.scratch.path().display());
    for has_claim in [false, true] {
        for is_published in [false, true] {
            succeed(&mut cffs(&mkfs));
            for name in ["map", "head", "data"] {
                let name = store.join(name);
                let _ = fs::remove_dir_all(&name).or_else(|_| fs::remove_file(&name));
            }
            for record in fs::read_dir(store.join("log")).expect("made").flatten() {
                if !has_claim || !record.file_name().to_string_lossy().ends_with("01") {
                    fs::remove_file(record.path()).expect("removed");
                }
            }
            for arguments in [
                &["ls"][..],
                &["info"],
                &["snapshot", "ls"],
                &["fsck", "-p", "--take-over"],
                &["destroy", "--yes"],
            ] {
                let mut command = cffs(arguments);
                let output = command.stdin(Stdio::null()).output().expect("it starts");
                let said = String::from_utf8_lossy(&output.stderr).into_owned();
                assert!(!output.status.success() && said.contains("was not completed"), "{said}");
                let remedy = "cffs mkfs or cffs publish makes it again, and cffs destroy --force";
                assert!(said.contains(remedy) && said.lines().count() == 1, "{said}");
            }
            let list = |options: &[&str]| {
                let mut command = published.scratch.cffs(["ls"]);
                succeed(command.args(options).arg(&above))
            };
            assert!(list(&[]).contains("not completed"), "{}", list(&[]));
            assert!(list(&["--json"]).contains("\"complete\":false"), "{}", list(&["--json"]));
            match is_published {
                true => {
                    published.done(&tree, "1");
                    published.is("1", &tree);
                }
                false => {
                    succeed(&mut cffs(&mkfs));
                    assert_eq!(succeed(&mut cffs(&["ls"])), "");
                }
            }
            succeed(&mut cffs(&["destroy", "--yes"]));
        }
    }
}

/// An interrupt while the volume is closed does not leave it claimed: the publish completes. Regression: the
/// program said that the same command continues, and ended during the close.
#[test]
fn an_interrupt_at_any_time_leaves_a_volume_that_the_same_command_continues() {
    let published = Published::new();
    let tree = tree(&published.scratch);
    let store = published.scratch.path().join("store");
    let mut outcomes = [0, 0];
    for round in 0..30 {
        let _ = fs::remove_dir_all(&store);
        let mut command = published.publish(&tree, "1");
        let publish = command.stderr(Stdio::piped()).stdout(Stdio::null()).spawn();
        let publish = publish.expect("it starts");
        wait_for(|| store.join("log/00000000000000000001").exists());
        thread::sleep(Duration::from_micros(round * 1500));
        let sent = Command::new("kill").args(["-INT", &publish.id().to_string()]).status();
        sent.expect("it starts");
        let ended = publish.wait_with_output().expect("it ends");
        let said = String::from_utf8_lossy(&ended.stderr).into_owned();
        match ended.status.code() {
            Some(0) => {
                assert!(said == SENT || said.is_empty(), "{said}");
                outcomes[0] += 1;
            }
            Some(130) => {
                assert_eq!(said, INTERRUPTED);
                published.done(&tree, "1");
                outcomes[1] += 1;
            }
            code => panic!("round {round}: {code:?}: {said}"),
        }
        published.is("1", &tree);
    }
    println!("{outcomes:?} completed and interrupted");
}

/// An interrupt while the version is made is too late, and changes nothing. Regression: it dropped the
/// volume, and with it connections that the rest of the command used.
#[test]
fn an_interrupt_after_all_files_were_sent_changes_nothing() {
    let scratch = Scratch::new();
    let tree = tree(&scratch);
    let slow = StoreServer::start_with_kept_connections(&scratch);
    let Some(mut slow) = slow else { return };
    let direct = slow.endpoint.clone();
    let Some(_line) = slow.put_behind_line(&["--delay-ms", "100"]) else { return };
    let from = tree.to_str().expect("UTF-8");
    let publishes: Vec<_> = (0..16)
        .map(|round| {
            let name = format!("tree-{round}");
            let url = format!("s3://bucket/{name}@1");
            let mut command = slow.cffs(&scratch, SECRET, &["publish", "--json", from, &url]);
            let publish = command.stderr(Stdio::piped()).stdout(Stdio::null()).spawn();
            let head = scratch.path().join(format!("store/bucket/{name}/head"));
            let publish = publish.expect("it starts");
            thread::spawn(move || {
                // The release of the volume. The version follows, and the end of the first publish.
                wait_for(|| head.exists());
                thread::sleep(Duration::from_millis(round * 100));
                kill_process(Pid::from_child(&publish), Signal::INT).expect("sent");
                (url, publish.wait_with_output().expect("it ends"))
            })
        })
        .collect();
    let mut late = 0;
    for publish in publishes {
        let (url, ended) = publish.join().expect("no panic");
        let said = String::from_utf8_lossy(&ended.stderr).into_owned();
        assert_eq!(ended.status.code(), Some(0), "{url}: {said}");
        late += usize::from(said == SENT);
        assert!(said == SENT || said.is_empty(), "{said}");
        let mut cat = slow.cffs(&scratch, SECRET, &["cat", &url, "/d/one"]);
        assert_eq!(succeed(cat.env("AWS_ENDPOINT_URL", &direct)), "one");
    }
    println!("{late} of 16 interrupts came before the end");
}

/// An interrupted publish closes the volume: the next one continues, without a takeover.
#[test]
fn an_interrupted_publish_is_continued() {
    let published = Published::new();
    let tree = published.scratch.path().join("tree");
    fs::create_dir_all(&tree).expect("made");
    for number in 0..FILES {
        fs::write(tree.join(number.to_string()), vec![number; MIB]).expect("written");
    }
    // The first publish uses different code than later ones.
    for (name, signal, code) in [("1", Signal::INT, 130), ("2", Signal::TERM, 130)] {
        let before = published.stored_bytes();
        let mut command = published.publish(&tree, name);
        let publish = command.stderr(Stdio::piped()).stdout(Stdio::null()).spawn();
        let publish = publish.expect("it starts");
        wait_for(|| published.stored_bytes() > before + 8 * MIB as u64);
        kill_process(Pid::from_child(&publish), signal).expect("sent");
        let ended = publish.wait_with_output().expect("it ends");
        let said = String::from_utf8_lossy(&ended.stderr).into_owned();
        assert_eq!(ended.status.code(), Some(code), "{said}");
        assert_eq!(said, INTERRUPTED);
        let listed = published.scratch.cffs(["snapshot", "ls"]).arg(&published.url).output();
        let listed = listed.expect("it starts");
        assert!(listed.status.success() && listed.stdout.is_empty(), "{listed:?}");
        let said = String::from_utf8_lossy(&listed.stderr).into_owned();
        assert!(said.contains("its first publish is in progress or was interrupted"), "{said}");
    }
    let [copied, same, removed] = published.done(&tree, "3");
    // The second one may have copied all others before it saw the signal.
    assert!(same > 0, "{copied} {same}");
    assert_eq!([copied + same, removed], [u64::from(FILES), 0]);
    published.is("3", &tree);
}

/// Regression: a publish to a volume with a wrong URL removed all files, and no version had them.
#[test]
fn a_volume_with_files_and_no_version_is_not_published_to() {
    let published = Published::new();
    let tree = tree(&published.scratch);
    let cffs = |arguments: &[&str]| {
        let mut command = published.scratch.cffs([]);
        command.args(arguments).arg(&published.url);
        command
    };
    succeed(&mut cffs(&["mkfs", "-q", "--size", "1G"]));
    succeed(cffs(&["import", "-q"]).arg(tree.join("d")).arg("/mine"));
    let refused = fail(1, &mut published.publish(&tree, "1"));
    assert!(refused.contains("has files and no version"), "{refused}");
    assert_eq!(succeed(cffs(&["cat"]).arg("/mine/one")), "one");
    succeed(published.scratch.cffs(["snapshot", "create"]).arg(published.version("before")));
    let [_, _, removed] = published.done(&tree, "1");
    assert_eq!(removed, 5, "/mine and all in it");
    published.is("1", &tree);
    assert_eq!(published.cat("before", "/mine/one"), "one");

    // After the first publish, the same holds as for any other volume.
    let other = Published::new();
    succeed(other.scratch.cffs(["mkfs", "-q", "--size", "1G"]).arg(&other.url));
    other.done(&tree, "1");
    succeed(other.scratch.cffs(["snapshot", "rm"]).arg(other.version("1")));
    fail(1, &mut other.publish(&tree, "2"));
}

/// Regression: after a first publish without a version, the volume was refused as one with other files.
#[test]
fn a_first_publish_that_could_not_make_its_version_is_continued() {
    let published = Published::new();
    let tree = tree(&published.scratch);
    let scratch = &published.scratch;
    succeed(scratch.cffs(["mkfs", "-q", "--size", "1G"]).arg(&published.url));
    // No object can have the name of a directory.
    let in_its_place = scratch.path().join("store/snapshots/1");
    fs::create_dir_all(&in_its_place).expect("made");
    fail(1, &mut published.publish(&tree, "1"));
    fs::remove_dir(&in_its_place).expect("removed");
    assert_eq!(published.done(&tree, "1"), [0, 7, 0], "all files were sent before");
    published.is("1", &tree);

    // A clone has the files of the version. No publish to it has begun.
    let clone = format!("file://{}", scratch.path().join("clone").display());
    succeed(scratch.cffs(["clone"]).arg(published.version("1")).arg(&clone));
    let refused = fail(1, scratch.cffs(["publish"]).arg(&tree).arg(format!("{clone}@1")));
    assert!(refused.contains("has files and no version"), "{refused}");
}

/// If a file cannot be read, no version is made, and the volume keeps its files.
#[test]
fn a_tree_that_cannot_be_read_is_not_published() {
    let published = Published::new();
    let tree = tree(&published.scratch);
    let scratch = published.scratch.path();
    fs::set_permissions(scratch, fs::Permissions::from_mode(0o777)).expect("set");
    let as_nobody = |name: &str| {
        let mut command = published.publish(&tree, name);
        command.uid(NOBODY).gid(NOBODY);
        command
    };
    succeed(&mut as_nobody("1"));
    fs::set_permissions(tree.join("d"), fs::Permissions::from_mode(0o000)).expect("set");
    fs::write(tree.join("other"), b"other").expect("written");
    let failed = fail(1, &mut as_nobody("2"));
    assert!(failed.contains("/d: Permission denied"), "{failed}");
    assert!(failed.contains("1 file could not be published completely, so version 2"), "{failed}");
    let none = fail(1, published.scratch.cffs(["cat"]).arg(published.version("2")).arg("/other"));
    assert!(none.contains("has no version 2"), "{none}");
    fs::set_permissions(tree.join("d"), fs::Permissions::from_mode(0o755)).expect("set");
    let done = succeed(&mut as_nobody("2"));
    assert!(done.contains("\"removed\": 0"), "{done}");
    published.is("2", &tree);
}

#[test]
fn targets_without_a_version_and_sources_that_are_no_tree() {
    let published = Published::new();
    let tree = tree(&published.scratch);
    let refused = |source: &Path, target: &str, why: &str| {
        let mut publish = published.scratch.cffs(["publish"]);
        let said = fail(1, publish.arg(source).arg(target));
        assert!(said.contains(why), "{said}");
    };
    refused(&tree, &published.url, "names no version; write file://");
    refused(&tree, "image@1", "versions are of volumes in object stores");
    refused(&tree, &published.version("a/b"), "does not exist");
    refused(&published.scratch.path().join("none"), &published.version("1"), "No such file");
    refused(&tree.join("d/one"), &published.version("1"), "not a C-FFS volume (only");
    assert!(!published.scratch.path().join("store").exists(), "nothing was made");
}

#[test]
fn a_publish_since_a_mark_compares_and_copies_what_changed() {
    if !can_mount() {
        return;
    }
    let published = Published::new();
    let scratch = &published.scratch;
    succeed(scratch.cffs(["mkfs", "-q", "--size", "256M"]).arg(scratch.image()));
    scratch.mount("rw");
    let mount = scratch.mountpoint();
    let at = |name: &str| mount.join(name);
    for dir in ["kept", "some/below", "moved/deep", "gone", "links"] {
        fs::create_dir_all(at(dir)).expect("made");
        for number in 0..10 {
            fs::write(at(dir).join(format!("file {number}")), dir).expect("written");
        }
    }
    fs::hard_link(at("moved/deep/file 1"), at("links/other name")).expect("linked");
    // Regression: a version that was published in the same second as the mark did not count as younger.
    let mark = |name: &str| succeed(scratch.cffs(["mark"]).arg(&mount).arg(name));
    let since = |version: &str, name: &str| {
        let mut command = published.publish(&mount, version);
        command.args(["--since", name]);
        command
    };
    mark("one");
    let said = fail(1, &mut since("1", "one"));
    assert!(said.contains("no version was published after the mark one"), "{said}");
    published.done(&mount, "1");
    fs::write(at("some/below/file 2"), "SOME/BELOW").expect("written");
    let time = fs::metadata(at("some/below/file 3")).expect("there").modified().expect("a time");
    fs::write(at("some/below/file 3"), "Some/below").expect("written");
    let file = fs::File::options().write(true).open(at("some/below/file 3")).expect("opened");
    file.set_modified(time).expect("set");
    drop(file);
    fs::write(at("some/new"), "new").expect("written");
    fs::remove_file(at("some/below/file 4")).expect("removed");
    fs::remove_dir_all(at("gone")).expect("removed");
    fs::write(at("gone"), "a file now").expect("written");
    let done = succeed(&mut since("2", "one"));
    let done: serde_json::Value = serde_json::from_str(&done).expect("it is JSON");
    // The directories some and some/below, and no file.
    assert_eq!((done["copied"].as_u64(), done["same"].as_u64()), (Some(4), Some(2)), "{done}");
    published.is("2", &mount);
    mark("two");
    published.done(&mount, "3");
    // The name in links is not listed.
    fs::rename(at("moved"), at("some/moved")).expect("renamed");
    let done = succeed(&mut since("4", "two"));
    published.is("4", &mount);
    // Regression: the second walk, which finds that name, counted files again.
    let done: serde_json::Value = serde_json::from_str(&done).expect("it is JSON");
    let [copied, same] = ["copied", "same"].map(|count| done[count].as_u64().expect(count));
    assert_eq!(copied + same, seen(&mount).len() as u64 - 1, "all but the root: {done}");
    mark("three");
    let said = fail(1, &mut since("5", "three"));
    assert!(said.contains("no version was published after the mark three"), "{said}");
    // Regression: the message named the URL, which has no marks.
    let said = fail(1, &mut since("5", "never"));
    let named = format!("cffs publish: {}: the mark never does not exist", mount.display());
    assert!(said.contains(&named) && !said.contains("file://"), "{said}");
    scratch.umount();
    // A volume that is not mounted.
    succeed(&mut {
        let mut command = published.publish(&scratch.image(), "6");
        command.args(["--since", "two"]);
        command
    });
    assert_eq!(published.cat("6", "/some/moved/deep/file 1"), "moved/deep");
}

/// Regression: the version in README's example had a fixed name, so that the second run failed.
#[test]
fn the_example_of_the_readme_can_be_run_again() {
    let published = Published::new();
    tree(&published.scratch);
    let readme = include_str!("../../../../README.md");
    let example = readme.lines().find(|line| line.starts_with("    cffs publish ")).expect("there");
    let directory = Path::new(CFFS).parent().expect("a directory");
    let script = format!(
        "PATH={}:$PATH; {}",
        directory.display(),
        example.replace("~/src", "tree").replace("s3://bucket/src", &published.url)
    );
    let second = || SystemTime::now().duration_since(UNIX_EPOCH).expect("a time").as_secs();
    for _ in 0..2 {
        let mut shell = Command::new("sh");
        succeed(shell.args(["-ec", &script]).current_dir(published.scratch.path()));
        // The version is named after a second that has begun.
        let ended = second();
        while second() == ended {
            thread::sleep(Duration::from_millis(20));
        }
    }
    let listed = succeed(published.scratch.cffs(["snapshot", "ls"]).arg(&published.url));
    assert_eq!(listed.lines().count(), 2, "{listed}");
}
