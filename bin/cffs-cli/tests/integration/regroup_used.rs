//! `regroup=use`: a mount observes which files are read together, and moves them together.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::harness::{Scratch, can_mount, fail, succeed};

/// Documents have a part in each directory, and a directory is longer than the gaps that are read.
const PARTS: usize = 8;
const DOCUMENTS: usize = 100;
const PART_BYTES: usize = 14_000;
/// Processes that read at once.
const READERS: usize = 4;

fn json(command: &mut Command) -> Value {
    serde_json::from_str(&succeed(command)).expect("it is JSON")
}

fn paths(tree: &Path, document: usize) -> Vec<PathBuf> {
    (0..PARTS).map(|part| tree.join(format!("d{part}/f{document:02}"))).collect()
}

fn make(scratch: &Scratch) {
    let tree = scratch.mountpoint();
    for part in 0..PARTS {
        fs::create_dir(tree.join(format!("d{part}"))).expect("made");
        for document in 0..DOCUMENTS {
            let path = tree.join(format!("d{part}/f{document:02}"));
            fs::write(path, vec![document as u8; PART_BYTES]).expect("written");
        }
        succeed(scratch.cffs(["sync"]).arg(&tree));
    }
}

/// Reads documents a few times, each by a process of its own. The kernel's cache is emptied before each time.
fn read(tree: &Path, documents: &[usize]) {
    for _ in 0..4 {
        for path in documents.iter().flat_map(|document| paths(tree, *document)) {
            let file = File::open(path).expect("opened");
            rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed).expect("advised");
        }
        for together in documents.chunks(READERS) {
            let reader = |document: &usize| {
                let mut cat = Command::new("cat");
                cat.args(paths(tree, *document)).stdout(Stdio::null()).spawn().expect("started")
            };
            let readers: Vec<_> = together.iter().map(reader).collect();
            for mut reader in readers {
                assert!(reader.wait().expect("it ends").success());
            }
        }
    }
}

/// The requests for reading a document on a mount that has read no contents yet.
fn cost(scratch: &Scratch, document: usize) -> u64 {
    scratch.mount("rw");
    let tree = scratch.mountpoint();
    assert!(paths(&tree, document).iter().all(|path| path.exists()));
    let requests = || {
        let stats = json(scratch.cffs(["stats", "--json"]).arg(&tree));
        stats["device"]["reads"].as_u64().expect("a count")
    };
    let before = requests();
    for path in paths(&tree, document) {
        assert_eq!(fs::read(path).expect("read"), [document as u8; PART_BYTES]);
    }
    let made = requests() - before;
    scratch.umount();
    made
}

#[test]
fn a_mount_moves_files_together_that_are_read_together() {
    if !can_mount() {
        return;
    }
    let scratch = Scratch::with_image();
    scratch.mount("rw");
    let tree = scratch.mountpoint();
    make(&scratch);
    let used = ["regroup", "--used", "--json"];
    let refused = fail(1, scratch.cffs(used).arg(&tree));
    assert!(refused.contains("regroup=use"), "{refused}");
    scratch.umount();
    let refused = fail(1, scratch.cffs(used).arg(scratch.image()));
    assert!(refused.contains("regroup=use"), "{refused}");
    let cost_of_some = || [3, 17, 84].map(|document| cost(&scratch, document)).iter().sum::<u64>();
    let before = cost_of_some();

    // Half of them by the command.
    let documents: Vec<usize> = (0..DOCUMENTS).collect();
    let (first, second) = documents.split_at(DOCUMENTS / 2);
    scratch.mount("rw,regroup=use");
    read(&tree, first);
    let moved = json(scratch.cffs(used).arg(&tree));
    assert_eq!(moved["moved_files"], first.len() * PARTS, "{moved}");
    assert_eq!(json(scratch.cffs(used).arg(&tree))["moved_files"], 0);
    scratch.umount();

    // The others by the server, when the volume is idle.
    scratch.mount("rw,regroup=use:1");
    read(&tree, second);
    let is_done = || {
        thread::sleep(Duration::from_secs(3));
        let count = json(scratch.cffs(["regroup", "--used", "--json", "--dry-run"]).arg(&tree));
        count["files"] == second.len() * PARTS && count["moved_files"] == 0
    };
    let until = Instant::now() + Duration::from_secs(60);
    while !is_done() {
        assert!(Instant::now() < until, "it was not regrouped");
    }
    scratch.umount();
    scratch.assert_clean();
    let after = cost_of_some();
    println!("{before} requests before, {after} after");
    assert!(after * 2 <= before, "{before} requests before, {after} after");
}
