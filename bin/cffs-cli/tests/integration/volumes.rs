//! `cffs ls` of volumes, `cffs destroy`, and `cffs serve` of a volume in an object store.

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::mpsc;
use std::thread;

use serde_json::Value;

use crate::harness::nfs::{ANY_PORT, Client, OK, entry, made, port_in, status};
use crate::harness::store_server::{SECRET, StoreServer};
use crate::harness::{PATIENCE, Scratch, can_mount, fail, succeed};

/// A directory for volumes, as a URL.
fn place(scratch: &Scratch) -> String {
    let directory = scratch.path().join("store");
    fs::create_dir_all(&directory).expect("made");
    format!("file://{}", directory.display())
}

fn make(url: &str, run: impl Fn(&[&str]) -> Command) {
    succeed(&mut run(&["mkfs", "-q", "--size", "1G", url]));
}

/// Regression: a program that was interrupted while it emptied the journal left a volume that could not be
/// made again.
#[test]
fn a_volume_in_a_store_has_no_journal() {
    let scratch = Scratch::new();
    let url = format!("{}/one", place(&scratch));
    let mkfs = ["mkfs", "-q", "--size", "1G", &url, "--journal"];
    let refused = fail(1, scratch.cffs(mkfs).arg("64M"));
    assert!(refused.contains("cannot have a journal"), "{refused}");
    succeed(scratch.cffs(mkfs).arg("none"));
}

fn source(scratch: &Scratch) -> String {
    let source = scratch.path().join("source");
    fs::create_dir_all(&source).expect("made");
    fs::write(source.join("file"), b"contents").expect("written");
    source.display().to_string()
}

fn listed(text: &str) -> Vec<Value> {
    text.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect()
}

/// Lists, uses and deletes volumes below a place.
fn list_and_delete(scratch: &Scratch, place: &str, run: impl Fn(&[&str]) -> Command) {
    let nothing = fail(1, &mut run(&["ls", place]));
    assert!(nothing.contains(&format!("no volume at {place}")), "{nothing}");
    let (one, two) = (format!("{place}/one"), format!("{place}/two"));
    make(&one, &run);
    make(&two, &run);
    succeed(&mut run(&["import", "-q", &one, &source(scratch), "/in"]));
    let table = succeed(&mut run(&["ls", place]));
    let lines: Vec<_> = table.lines().collect();
    assert_eq!(lines.len(), 3, "{table}");
    assert!(lines[1].starts_with("one") && lines[1].contains("1 GiB"), "{table}");
    let volumes = listed(&succeed(&mut run(&["ls", "--json", place])));
    assert_eq!(volumes.len(), 2);
    for (volume, url) in volumes.iter().zip([&one, &two]) {
        assert_eq!(volume["url"], **url);
        assert_eq!(
            (&volume["size_bytes"], &volume["encrypted"]),
            (&(1_u64 << 30).into(), &false.into())
        );
        assert_eq!((&volume["in_use"], &volume["in_use_by"]), (&false.into(), &Value::Null));
        assert!(volume["changed_seconds"].as_i64().expect("a time") > 1_700_000_000, "{volume}");
    }
    // The URL of a volume lists names in it.
    assert_eq!(succeed(&mut run(&["ls", &one])), "in\n");

    let unconfirmed = fail(1, &mut run(&["destroy", &one]));
    assert!(unconfirmed.contains("add --yes"), "{unconfirmed}");
    for url in [place, &format!("{place}/typo"), &format!("{one}/in")] {
        let none = fail(1, &mut run(&["destroy", "--yes", url]));
        assert!(none.contains(&format!("no volume at {url}")), "{none}");
    }
    let kept = format!("{one}@v1");
    succeed(&mut run(&["snapshot", "create", &kept]));
    let version = fail(1, &mut run(&["destroy", "--yes", &kept]));
    assert!(version.contains("cffs snapshot rm deletes one"), "{version}");
    let clone = format!("{place}/clone");
    succeed(&mut run(&["clone", &kept, &clone]));
    let origin = fail(1, &mut run(&["destroy", "--yes", &one]));
    assert!(origin.contains(&format!("cffs destroy {clone}")), "{origin}");
    assert_eq!(succeed(&mut run(&["cat", &clone, "/in/file"])), "contents");
    succeed(&mut run(&["import", "-q", &one, &source(scratch), "/more"]));
    assert!(succeed(&mut run(&["destroy", "--yes", &clone])).starts_with("deleted "));
    succeed(&mut run(&["destroy", "-q", "--yes", &one]));
    assert_eq!(listed(&succeed(&mut run(&["ls", "--json", place]))).len(), 1);
    make(&one, &run);
    for url in [one, two] {
        succeed(&mut run(&["destroy", "-q", "--yes", &url]));
    }
    let nothing = fail(1, &mut run(&["ls", place]));
    assert!(nothing.contains("no volume at"), "{nothing}");
}

/// Regression: the message was that of a directory which does not exist.
#[test]
fn an_empty_directory_has_no_volumes() {
    let scratch = Scratch::new();
    fs::create_dir(scratch.path().join("empty")).expect("made");
    let url = format!("file://{}", scratch.path().join("empty").display());
    let nothing = fail(1, &mut scratch.cffs(["ls", &url]));
    assert_eq!(nothing, format!("cffs ls: no volume at {url}, nor directly below it\n"));
}

#[test]
fn volumes_in_a_directory_are_listed_and_deleted() {
    let scratch = Scratch::new();
    let run = |arguments: &[&str]| {
        let mut command = scratch.cffs([]);
        command.args(arguments);
        command
    };
    let place = place(&scratch);
    list_and_delete(&scratch, &place, run);
    assert_eq!(fs::read_dir(scratch.path().join("store")).expect("there").count(), 0);
    // Volumes are below the next level.
    make(&format!("{place}/one"), run);
    let above = format!("file://{}", scratch.path().display());
    let deeper = fail(1, &mut run(&["ls", &above]));
    assert!(deeper.contains("there may be some below") && deeper.contains("store"), "{deeper}");
    let image = fail(1, &mut run(&["destroy", "--yes", "/tmp/tree.cffs"]));
    assert!(image.contains("volumes in object stores"), "{image}");
}

#[test]
fn volumes_in_s3_are_listed_and_deleted() {
    let scratch = Scratch::new();
    let Some(gateway) = StoreServer::start(&scratch) else { return };
    let run = |arguments: &[&str]| gateway.cffs(&scratch, SECRET, arguments);
    list_and_delete(&scratch, "s3://bucket", run);
    list_and_delete(&scratch, "s3://bucket/a/prefix", run);
    let none = fail(1, &mut run(&["ls", "s3://nothing"]));
    assert!(none.contains("bucket nothing does not exist"), "{none}");
    let denied = fail(1, &mut gateway.cffs(&scratch, "another secret", &["ls", "s3://bucket"]));
    assert!(denied.contains("these credentials"), "{denied}");
    // With a key that only reads, volumes are listed and stay.
    make("s3://bucket/tree", run);
    drop(gateway);
    let reading = StoreServer::start_to_read(&scratch.path().join("store"));
    let reading = reading.expect("it starts again");
    let run = |arguments: &[&str]| reading.cffs(&scratch, SECRET, arguments);
    assert_eq!(listed(&succeed(&mut run(&["ls", "--json", "s3://bucket"]))).len(), 1);
    let denied = fail(1, &mut run(&["destroy", "--yes", "s3://bucket/tree"]));
    assert!(denied.contains("these credentials lack a permission"), "{denied}");
    assert_eq!(listed(&succeed(&mut run(&["ls", "--json", "s3://bucket"]))).len(), 1);
}

/// On a terminal, only the name of the volume or `y` deletes it.
#[test]
fn a_deletion_is_confirmed_on_a_terminal() {
    if Command::new("script").arg("--version").stdout(Stdio::null()).status().is_err() {
        eprintln!("not run: there is no script (util-linux)");
        return;
    }
    let scratch = Scratch::new();
    let run = |arguments: &[&str]| {
        let mut command = scratch.cffs([]);
        command.args(arguments);
        command
    };
    let url = format!("{}/tree", place(&scratch));
    make(&url, run);
    let answer = |answer: &str| {
        let line = format!("{} destroy {url}", env!("CARGO_BIN_EXE_cffs"));
        let mut script = Command::new("script");
        script.args(["-qec", &line, "/dev/null"]).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut script = script.spawn().expect("it starts");
        let mut input = script.stdin.take().expect("piped");
        input.write_all(answer.as_bytes()).expect("written");
        let output = script.wait_with_output().expect("it ends");
        drop(input);
        (output.status.code(), String::from_utf8_lossy(&output.stdout).into_owned())
    };
    for no in ["n\n", "\n", "one\n"] {
        let (code, said) = answer(no);
        assert_eq!(code, Some(1), "{said}");
        assert!(said.contains("Type its name (tree) or y") && said.contains("stays"), "{said}");
        succeed(&mut run(&["ls", &url]));
    }
    let (code, said) = answer("tree\n");
    assert_eq!(code, Some(0), "{said}");
    assert!(said.contains("deleted "), "{said}");
    fail(1, &mut run(&["ls", &url]));
}

/// An NFS server of a volume in a store, in the foreground. It is killed at the end of a failed test.
struct Serving {
    child: std::process::Child,
    port: u16,
}

impl Serving {
    fn start(scratch: &Scratch, url: &str, options: &[&str]) -> Serving {
        let mut command = scratch.cffs(["serve", "-f", "--nfs", ANY_PORT]);
        command.args(["--export", "/:no_root_squash,insecure"]).args(options).arg(url);
        let mut child = command.stderr(Stdio::piped()).spawn().expect("it starts");
        let said = BufReader::new(child.stderr.take().expect("piped"));
        let mut server = Serving { child, port: 0 };
        let (found, ports) = mpsc::channel();
        thread::spawn(move || {
            // To the end, so that the server can print more.
            let ports = said.lines().map_while(Result::ok).filter_map(|line| port_in(&line));
            ports.for_each(|port| found.send(port).unwrap_or_default());
        });
        server.port = ports.recv_timeout(PATIENCE).expect("it listens");
        server
    }

    fn signal(&self, signal: &str) {
        succeed(Command::new("kill").args([signal, &self.child.id().to_string()]));
    }

    fn end(mut self) -> Option<i32> {
        self.child.wait().expect("it ends").code()
    }

    /// Makes a directory with a file as a client.
    fn work(&self, number: u32) {
        let mut client = Client::new(self.port, number << 24);
        let root = client.mount("/").expect("exported");
        let make = client.prepare(9, |w| {
            entry(&root, &format!("d{number}"))(w);
            (0..6).for_each(|_| w.u32(0));
        });
        let directory = made(&client.make(&make));
        let create = client.prepare(8, |w| {
            entry(&directory, "file")(w);
            (0..7).for_each(|_| w.u32(0));
        });
        let file = made(&client.make(&create));
        let write = client.prepare(7, |w| {
            w.opaque(&file);
            // The offset; 8 bytes, not stable: COMMIT or the end of the server makes them durable.
            [0, 0, 8, 0].into_iter().for_each(|n| w.u32(n));
            w.opaque(b"contents");
        });
        assert_eq!(status(&client.make(&write)), OK);
    }
}

impl Drop for Serving {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Several clients write a volume in a store through one server. At SIGTERM, or `--stop`, it sends
/// everything, and the next program can write the volume at once.
#[test]
fn a_volume_in_a_store_is_served_without_a_mount() {
    let scratch = Scratch::new();
    let run = |arguments: &[&str]| {
        let mut command = scratch.cffs([]);
        command.args(arguments);
        command
    };
    let url = format!("{}/tree", place(&scratch));
    make(&url, run);
    let staging = scratch.path().join("staging").display().to_string();
    let cache = format!("{}=16M", scratch.path().join("cache").display());
    let mut number = 0;
    for (options, stop) in [
        (&[][..], "-TERM"),
        (&["--cache", &cache, "--staging", &staging][..], "-TERM"),
        (&[][..], "--stop"),
    ] {
        let server = Serving::start(&scratch, &url, options);
        for _ in 0..3 {
            number += 1;
            server.work(number);
        }
        ask_server(&server, &url, run);
        match stop {
            "--stop" => drop(succeed(&mut run(&["serve", "--stop", &url]))),
            signal => server.signal(signal),
        }
        assert_eq!(server.end(), Some(0));
        for made in 1..=number {
            let read = succeed(&mut run(&["cat", &url, &format!("/d{made}/file")]));
            assert_eq!(read, "contents", "{made}");
        }
        // It was released.
        succeed(&mut run(&["import", "-q", &url, &source(&scratch), &format!("/in{number}")]));
    }
    assert!(fs::read_dir(&staging).expect("there").flatten().all(|entry| {
        // No record is left.
        entry.file_name().to_string_lossy().parse::<u64>().is_err()
    }));
    succeed(&mut run(&["fsck", "-n", "-f", &url]));
    let gone = fail(1, &mut run(&["serve", "--stop", &url]));
    assert!(gone.contains("is not being served on this machine"), "{gone}");
    let stats = fail(1, &mut run(&["stats", &url]));
    assert!(stats.contains("not mounted"), "{stats}");
}

/// Commands find the server by the URL, and no second program writes the volume.
fn ask_server(server: &Serving, url: &str, run: impl Fn(&[&str]) -> Command) {
    let stats = succeed(&mut run(&["stats", "--json", url]));
    let stats: Value = serde_json::from_str(&stats).expect("JSON");
    assert_eq!(stats["transport"], format!("NFS at 127.0.0.1:{}", server.port));
    assert!(stats["store"].is_object(), "{stats}");
    succeed(&mut run(&["sync", url]));
    succeed(&mut run(&["trace", "record", "-o", "/dev/null", url, "--", "true"]));
    let exports = succeed(&mut run(&["serve", "--exports", url]));
    assert!(exports.contains("no_root_squash"), "{exports}");
    let other = fail(1, &mut run(&["serve", "--nfs", "127.0.0.1:0", url]));
    assert!(other.contains("open for writing on this host"), "{other}");
    let in_use = fail(1, &mut run(&["destroy", "--yes", url]));
    assert!(in_use.contains(&format!("cffs serve --stop {url}")), "{in_use}");
    let (above, _) = url.rsplit_once('/').expect("a path");
    let volume = listed(&succeed(&mut run(&["ls", "--json", above]))).remove(0);
    assert_eq!(volume["in_use_by"]["pid"], server.child.id());
}

/// A version is served for reading only.
#[test]
fn a_version_in_a_store_is_served_for_reading() {
    let scratch = Scratch::new();
    let run = |arguments: &[&str]| {
        let mut command = scratch.cffs([]);
        command.args(arguments);
        command
    };
    let url = format!("{}/tree", place(&scratch));
    make(&url, run);
    succeed(&mut run(&["import", "-q", &url, &source(&scratch), "/in"]));
    let version = format!("{url}@v1");
    succeed(&mut run(&["snapshot", "create", &version]));
    let server = Serving::start(&scratch, &version, &[]);
    let mut client = Client::new(server.port, 0);
    let root = client.mount("/").expect("exported");
    let make = client.prepare(9, |w| {
        entry(&root, "new")(w);
        (0..6).for_each(|_| w.u32(0));
    });
    // NFS3ERR_ROFS.
    assert_eq!(status(&client.make(&make)), 30);
    // Others write the volume meanwhile.
    succeed(&mut run(&["import", "-q", &url, &source(&scratch), "/more"]));
    server.signal("-TERM");
    assert_eq!(server.end(), Some(0));
    let follow = fail(1, &mut run(&["serve", "--nfs", "127.0.0.1:0", "-o", "follow", &url]));
    assert!(follow.contains("leave out 'follow'"), "{follow}");
}

/// Regression: a scrub of such a version failed with impossible advice, since a version cannot be repaired. A
/// listing warned that a program may be changing it.
#[test]
fn a_version_of_a_volume_in_use_is_read_and_scrubbed() {
    let scratch = Scratch::new();
    let run = |arguments: &[&str]| {
        let mut command = scratch.cffs([]);
        command.args(arguments);
        command
    };
    let url = format!("{}/tree", place(&scratch));
    make(&url, run);
    let server = Serving::start(&scratch, &url, &[]);
    server.work(1);
    let version = format!("{url}@v1");
    succeed(&mut run(&["snapshot", "create", &version]));
    server.work(2);
    let info = succeed(&mut run(&["info", "--json", &version]));
    assert!(info.contains("in use"), "the test needs a volume that was not left clean: {info}");
    for command in [&["ls", &version][..], &["cat", &version, "/d1/file"]] {
        let output = run(command).output().expect("it starts");
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success() && said.is_empty(), "{said}");
    }
    let scrub = || {
        let output = run(&["scrub", "--json", &version]).output().expect("it starts");
        let status: Value = serde_json::from_slice(&output.stdout).expect("it is JSON");
        (output.status.code(), status)
    };
    let (code, status) = scrub();
    assert_eq!((code, &status["problem_count"]), (Some(0), &0.into()), "{status}");
    assert_eq!((&status["stage"], &status["inodes"]), (&"done".into(), &2.into()), "{status}");
    server.signal("-TERM");
    assert_eq!(server.end(), Some(0));
    let mut damaged = 0;
    for object in fs::read_dir(scratch.path().join("store/tree/log")).expect("there") {
        let object = object.expect("listed").path();
        let mut bytes = fs::read(&object).expect("read");
        if let Some(at) = bytes.windows(8).position(|window| window == b"contents") {
            bytes[at] ^= 1;
            fs::write(&object, bytes).expect("written");
            damaged += 1;
        }
    }
    assert!(damaged > 0);
    let (code, status) = scrub();
    assert_eq!(code, Some(4), "{status}");
    let problems = status["problems"].as_array().expect("a list");
    assert!(problems.iter().any(|one| one.as_str().expect("text").contains("CF0")), "{status}");
}

/// Regression: the version has the mark of the program that had the origin open for writing, which kept all
/// other programs from opening the clone.
#[test]
fn a_clone_of_a_volume_in_use_is_opened_for_writing() {
    let scratch = Scratch::new();
    let run = |arguments: &[&str]| {
        let mut command = scratch.cffs([]);
        command.args(arguments);
        command
    };
    let (url, clone) = (format!("{}/tree", place(&scratch)), format!("{}/clone", place(&scratch)));
    make(&url, run);
    let server = Serving::start(&scratch, &url, &[]);
    server.work(1);
    let version = format!("{url}@v1");
    succeed(&mut run(&["snapshot", "create", &version]));
    succeed(&mut run(&["clone", &version, &clone]));
    let output = run(&["ls", &clone]).output().expect("it starts");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && said.is_empty(), "{said}");
    succeed(&mut run(&["import", "-q", &clone, &source(&scratch), "/more"]));
    succeed(&mut run(&["fsck", "-p", &clone]));
    server.work(2);
    server.signal("-TERM");
    assert_eq!(server.end(), Some(0));
}

/// A server that was killed leaves a claim, which a deletion reports with the remedy.
#[test]
fn a_volume_of_a_killed_server_is_deleted_by_a_takeover() {
    let scratch = Scratch::new();
    let run = |arguments: &[&str]| {
        let mut command = scratch.cffs([]);
        command.args(arguments);
        command
    };
    let url = format!("{}/tree", place(&scratch));
    make(&url, run);
    let server = Serving::start(&scratch, &url, &[]);
    let process = server.child.id();
    drop(server);
    let refused = fail(1, &mut run(&["destroy", "--yes", &url]));
    let parts =
        [&format!("process {process} of this host")[..], "ended without closing it", "--take-over"];
    assert!(parts.iter().all(|part| refused.contains(part)), "{refused}");
    succeed(&mut run(&["destroy", "--yes", "--take-over", &url]));
    fail(1, &mut run(&["ls", &url]));
}

/// A volume that is mounted here, also for reading only, is not deleted.
#[test]
fn a_mounted_volume_is_not_deleted() {
    if !can_mount() {
        return;
    }
    let scratch = Scratch::new();
    let url = format!("{}/tree", place(&scratch));
    let run = |arguments: &[&str]| {
        let mut command = scratch.cffs([]);
        command.args(arguments);
        command
    };
    make(&url, run);
    let at: PathBuf = scratch.mountpoint();
    let at = at.to_str().expect("UTF-8");
    for options in ["rw", "ro"] {
        succeed(&mut run(&["mount", "-o", options, "-o", &scratch.log_option(), &url, at]));
        let refused = fail(1, &mut run(&["destroy", "--yes", "--take-over", &url]));
        assert!(refused.contains(&format!("cffs umount {at}")), "{refused}");
        scratch.umount();
    }
    succeed(&mut run(&["destroy", "--yes", &url]));
}
