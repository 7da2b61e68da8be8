//! `cffs regroup` on images and on mounted volumes.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use crate::harness::{Scratch, can_mount, fail, succeed};
use serde_json::Value;

const DIRECTORIES: usize = 12;
const FILES: usize = 100;

fn json(command: &mut Command) -> Value {
    serde_json::from_str(&succeed(command)).expect("it is JSON")
}

/// Directories that grow alternately, and files that are renamed over others.
fn age(scratch: &Scratch) {
    let tree = scratch.mountpoint();
    let sync = || succeed(scratch.cffs(["sync"]).arg(&tree));
    let dir = |number: usize| tree.join(format!("d{number:02}"));
    (0..DIRECTORIES).for_each(|number| fs::create_dir_all(dir(number)).expect("made"));
    for file in 0..FILES {
        for number in 0..DIRECTORIES {
            let contents = vec![(file * 3 + number) as u8; 2000 + (file * 7 + number) % 30 * 1000];
            fs::write(dir(number).join(format!("f{file}")), contents).expect("written");
        }
        if file % 5 == 0 {
            sync();
        }
    }
    sync();
    for file in 0..FILES {
        for number in 0..DIRECTORIES {
            let to = dir((number * 5 + file * 3) % DIRECTORIES).join(format!("m{number}-{file}"));
            fs::rename(dir(number).join(format!("f{file}")), to).expect("renamed");
        }
    }
}

/// The visible state of each file.
fn seen(tree: &Path) -> BTreeMap<PathBuf, (u64, i64, i64, u64, Vec<u8>)> {
    let files = (0..DIRECTORIES).flat_map(|number| {
        let dir = tree.join(format!("d{number:02}"));
        fs::read_dir(dir).expect("listed").map(|entry| entry.expect("an entry").path())
    });
    files
        .map(|path| {
            let data = fs::metadata(&path).expect("there");
            let contents = fs::read(&path).expect("read");
            let path = path.strip_prefix(tree).expect("below it").to_owned();
            (path, (data.ino(), data.mtime_nsec(), data.ctime_nsec(), data.nlink(), contents))
        })
        .collect()
}

#[test]
fn an_image_is_regrouped_once() {
    if !can_mount() {
        return;
    }
    let scratch = Scratch::with_image();
    scratch.mount("rw");
    age(&scratch);
    scratch.umount();
    let requests = || {
        let layout = json(scratch.cffs(["layout", "--json"]).arg(scratch.image()));
        layout["requests"].as_u64().expect("a count")
    };
    let before = requests();
    let dry = json(scratch.cffs(["regroup", "--json", "--dry-run"]).arg(scratch.image()));
    assert_eq!(requests(), before);
    let first = json(scratch.cffs(["regroup", "--json"]).arg(scratch.image()));
    assert!(first["moved_files"].as_u64() > Some(FILES as u64), "{first}");
    assert_eq!(dry["moved_files"], first["moved_files"]);
    assert!(requests() * 2 <= before, "{before} requests before, {} after", requests());
    let second = succeed(scratch.cffs(["regroup"]).arg(scratch.image()));
    assert!(second.contains("nothing to gain"), "{second}");
    scratch.assert_clean();

    let said = fail(1, scratch.cffs(["regroup", "--stop"]).arg(scratch.image()));
    assert!(said.contains("nothing to stop"), "{said}");
    let said = fail(1, scratch.cffs(["regroup"]).arg(scratch.image()).arg("/missing"));
    assert!(said.contains("/missing"), "{said}");
}

#[test]
fn a_mounted_volume_is_regrouped_by_its_server() {
    if !can_mount() {
        return;
    }
    let scratch = Scratch::with_image();
    scratch.mount("rw");
    let tree = scratch.mountpoint();
    age(&scratch);
    let before = seen(&tree);
    let trace = scratch.path().join("trace");
    let opened: Vec<String> =
        before.keys().step_by(9).map(|path| path.display().to_string()).collect();
    fs::write(&trace, opened.join("\n") + "\nmissing\n").expect("written");
    let together = ["regroup", "--json", "--trace"];
    let traced = json(scratch.cffs(together).arg(&trace).arg(&tree));
    assert!(traced["moved_files"].as_u64() > Some(50), "{traced}");
    let again = json(scratch.cffs(together).arg(&trace).arg(&tree));
    assert_eq!(again["moved_files"], 0, "{again}");
    let first = json(scratch.cffs(["regroup", "--json"]).arg(&tree));
    assert!(first["moved_files"].as_u64() > Some(FILES as u64), "{first}");
    let second = json(scratch.cffs(["regroup", "--json"]).arg(scratch.image()));
    assert_eq!(second["moved_files"], 0, "{second}");
    assert!(seen(&tree) == before, "what a user sees has changed");
    scratch.umount();
    scratch.assert_clean();

    scratch.mount("ro");
    assert!(seen(&tree) == before, "what a user sees has changed on the device");
    let said = fail(1, scratch.cffs(["regroup"]).arg(&tree));
    assert!(said.contains("read-only"), "{said}");
    scratch.umount();
}

/// The events of a trace.
fn events_of(trace: &Path) -> Vec<Value> {
    serde_json::from_slice(&fs::read(trace).expect("a trace")).expect("a JSON array")
}

/// The shares of each request add up to the request.
#[test]
fn a_trace_says_which_program_caused_which_requests() {
    if !can_mount() {
        return;
    }
    let scratch = Scratch::with_image();
    scratch.mount("rw");
    let (tree, trace) = (scratch.mountpoint(), scratch.path().join("trace"));
    let copy = "for n in 1 2 3 4 5 6 7 8; do head -c 20000 /dev/zero > $0/f$n; done";
    let mut record = scratch.cffs(["trace", "record", "-o"]);
    succeed(record.arg(&trace).arg(&tree).args(["--", "sh", "-c", copy]).arg(&tree));
    let events = events_of(&trace);
    assert!(!events.iter().any(|event| event["name"] == "lost"));
    let requests = events.iter().filter(|event| event["cat"] == "request");
    let mut shares = BTreeMap::<(String, &str), f64>::new();
    for request in requests {
        let (name, mut whole) = (request["name"].as_str().expect("a name"), 0.0);
        for (key, share) in request["args"]["shares"].as_object().expect("shares") {
            let share = share.as_f64().expect("a number");
            let operation = key.split(' ').next().expect("an operation");
            *shares.entry((operation.to_owned(), name)).or_default() += share;
            whole += share;
        }
        assert!((whole - 1.0).abs() < 1e-6, "{request}");
    }
    assert!(shares.get(&(String::from("write"), "write")) > Some(&0.0), "{shares:?}");
    let counts = events.iter().find(|event| event["name"] == "counts").expect("counts");
    assert_eq!(counts["args"]["create"], 8);
    assert!(events.iter().any(|event| event["args"]["way"] == "write-back"));
    // The recording has ended: another one may begin, and contains only its own events.
    succeed(scratch.cffs(["trace", "record", "--seconds", "0", "-o"]).arg(&trace).arg(&tree));
    scratch.umount();
    let said = fail(1, scratch.cffs(["trace", "record", "-o", "-"]).arg(&tree));
    assert!(said.contains("not a C-FFS volume that is mounted"), "{said}");
}

/// The trace is sent to another machine, here the same one.
#[test]
fn a_trace_is_fetched_over_the_network() {
    use std::io::{BufRead, BufReader};
    use std::process::Stdio;
    if !can_mount() {
        return;
    }
    let scratch = Scratch::with_image();
    scratch.mount("rw");
    let (tree, trace) = (scratch.mountpoint(), scratch.path().join("far"));
    let mut record = scratch.cffs(["trace", "record", "--listen", "127.0.0.1:0"]);
    record.arg(&tree).args(["--", "mkdir"]).arg(tree.join("made"));
    let mut recording = record.stderr(Stdio::piped()).spawn().expect("it starts");
    let mut said = String::new();
    let stderr = recording.stderr.take().expect("piped");
    BufReader::new(stderr).read_line(&mut said).expect("it says where");
    let address = said.split("fetch ").nth(1).and_then(|rest| rest.split('`').next());
    succeed(scratch.cffs(["trace", "fetch", "-o"]).arg(&trace).arg(address.expect(&said)));
    assert!(recording.wait().expect("it ends").success());
    let events = events_of(&trace);
    let count = |cat: &str, name: &str| {
        events.iter().filter(|event| event["cat"] == cat && event["name"] == name).count()
    };
    assert_eq!(count("operation", "create"), 1);
    assert!(count("request", "write") > 0);
}

/// With the mount option, the server regroups an idle volume.
#[test]
fn a_mounted_volume_is_regrouped_while_it_is_idle() {
    if !can_mount() {
        return;
    }
    let scratch = Scratch::with_image();
    scratch.mount("rw");
    age(&scratch);
    let before = seen(&scratch.mountpoint());
    scratch.umount();
    scratch.mount("rw,regroup=1");
    let tree = scratch.mountpoint();
    fs::write(tree.join("a change"), "").expect("written");
    let until = Instant::now() + Duration::from_secs(60);
    let is_done = || {
        let count = json(scratch.cffs(["regroup", "--dry-run", "--json"]).arg(&tree));
        count["moved_files"] == 0
    };
    // Each check uses the volume, so it is left idle in between.
    while Instant::now() < until {
        thread::sleep(Duration::from_secs(3));
        if is_done() {
            break;
        }
    }
    assert!(is_done(), "it was not regrouped");
    assert_eq!(before, seen(&tree));
    scratch.umount();
    scratch.assert_clean();
}
