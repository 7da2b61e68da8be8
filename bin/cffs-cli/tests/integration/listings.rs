//! Which listings of a mount contain inodes, determined by the kernel's later lookups. If mounting is
//! impossible, the tests print that and pass.

use std::fs;
use std::path::Path;

use crate::harness::{Scratch, can_mount, succeed};

const DIRECTORIES: usize = 60;
const FILES_PER_DIRECTORY: usize = 100;
const FILES: u64 = (DIRECTORIES * FILES_PER_DIRECTORY) as u64;

/// A mounted volume with a tree that the kernel has not cached.
fn mounted() -> Scratch {
    let scratch = Scratch::with_image();
    let tree = scratch.path().join("tree");
    for directory in 0..DIRECTORIES {
        let directory = tree.join(format!("p{}/d{directory:02}", directory / 10));
        fs::create_dir_all(&directory).expect("made");
        for file in 0..FILES_PER_DIRECTORY {
            fs::write(directory.join(format!("f{file:02}")), b"").expect("made");
        }
    }
    succeed(scratch.cffs(["import", "-q"]).arg(scratch.image()).arg(&tree));
    scratch.mount("rw");
    scratch
}

/// Lists the tree depth first, one directory after another, and visits each file.
fn walk(scratch: &Scratch, visit: &dyn Fn(&Path)) {
    let inner = |dir: &Path| -> Vec<_> {
        fs::read_dir(dir).expect("listed").map(|entry| entry.expect("an entry").path()).collect()
    };
    for parent in inner(&scratch.mountpoint()) {
        for directory in inner(&parent) {
            inner(&directory).iter().for_each(|file| visit(file));
        }
    }
}

/// The number of names that the kernel looks up during some work.
fn looked_up(scratch: &Scratch, work: impl FnOnce()) -> u64 {
    let count = || {
        let stats = succeed(scratch.cffs(["stats", "--json"]).arg(scratch.mountpoint()));
        let stats: serde_json::Value = serde_json::from_str(&stats).expect("it is JSON");
        stats["requests"]["lookup"].as_u64().unwrap_or(0)
    };
    let before = count();
    work();
    count() - before
}

fn stat(file: &Path) {
    assert_eq!(fs::metadata(file).expect("there").len(), 0);
}

#[test]
fn listings_have_no_inodes_while_files_are_not_looked_up() {
    if !can_mount() {
        return;
    }
    let scratch = mounted();
    let listing = looked_up(&scratch, || walk(&scratch, &|_| ()));
    assert!(listing < 8, "{listing} lookups where names are listed");
    let first = looked_up(&scratch, || stat(&scratch.mountpoint().join("p0/d00/f00")));
    // For the last directories the kernel received names without inodes.
    let last = scratch.mountpoint().join("p5/d59");
    let unknown = looked_up(&scratch, || {
        (0..FILES_PER_DIRECTORY).for_each(|file| stat(&last.join(format!("f{file:02}"))));
    });
    scratch.umount();
    assert_eq!(first, 0, "the first directories came with their inodes");
    assert_eq!(unknown, FILES_PER_DIRECTORY as u64);
}

#[test]
fn listings_have_inodes_while_files_are_looked_up() {
    if !can_mount() {
        return;
    }
    let scratch = mounted();
    let looking = looked_up(&scratch, || walk(&scratch, &stat));
    scratch.umount();
    assert!(looking > 0 && looking < FILES / 100, "{looking} lookups for {FILES} files");
}

#[test]
fn inodes_are_loaded_when_files_are_looked_up_again() {
    if !can_mount() {
        return;
    }
    let scratch = mounted();
    walk(&scratch, &|_| ());
    // The kernel has cached all these listings.
    let looking = looked_up(&scratch, || walk(&scratch, &stat));
    scratch.umount();
    // All names of some directories until a sample is looked up, and one in a hundred of the rest.
    assert!(looking < FILES / 8, "{looking} lookups for {FILES} files");
}
